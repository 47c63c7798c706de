//! A YAML or JSON text as a tree that keeps the place of every field, and duplicate fields.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

use crate::Subject;

/// A position in a text: line and column, from 1.
type Place = (u64, u64);

/// A value and the place where it begins.
#[derive(Debug)]
pub struct Tree {
    /// Line and column, from 1.
    pub place: Place,
    /// The value.
    pub node: Node,
}

/// A value.
#[derive(Debug)]
pub enum Node {
    /// No value, as if the field were missing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// A list of items.
    List(Vec<Tree>),
    /// The fields in the order of the text.
    Map(Vec<(Key, Tree)>),
}

/// The name of a field and its line.
#[derive(Debug)]
pub struct Key {
    /// The name.
    pub name: String,
    /// The line, from 1.
    pub line: u64,
}

impl Tree {
    /// The line on which the value begins, from 1.
    pub fn line(&self) -> u64 {
        self.place.0
    }

    /// Returns the value without lines. The last of several fields with the same name applies, and a field without value is
    /// omitted.
    pub fn value(&self) -> Value {
        match &self.node {
            Node::Null => Value::Null,
            Node::Bool(value) => Value::Bool(*value),
            Node::Number(number) => Value::Number(number.clone()),
            Node::Text(text) => Value::String(text.clone()),
            Node::List(items) => Value::Array(items.iter().map(Self::value).collect()),
            Node::Map(fields) => {
                let mut map = Map::new();
                for (key, value) in fields {
                    match value.value() {
                        Value::Null => map.remove(&key.name),
                        value => map.insert(key.name.clone(), value),
                    };
                }
                Value::Object(map)
            }
        }
    }

    /// Returns the last field with this name.
    pub fn field(&self, name: &str) -> Option<(&Key, &Self)> {
        let Node::Map(fields) = &self.node else { return None };
        fields.iter().rev().find(|(key, _)| key.name == name).map(|(key, tree)| (key, tree))
    }

    /// Returns the line of a field such as `spec.ports[1].port`. If the field is missing, it is the line on which the value of its
    /// nearest parent begins.
    pub fn line_of(&self, path: &str) -> u64 {
        self.find(path).0
    }

    /// Whether a field exists.
    pub fn has(&self, path: &str) -> bool {
        self.find(path).1
    }

    /// The line of a field and true; or false, and the line on which the value of its nearest parent begins.
    fn find(&self, path: &str) -> (u64, bool) {
        let (mut node, mut line) = (self, self.line());
        for step in path.split(['.', '[', ']']).filter(|step| !step.is_empty()) {
            let next = match &node.node {
                Node::List(items) => {
                    step.parse().ok().and_then(|position: usize| items.get(position)).map(|item| (item.line(), item))
                }
                _ => node.field(step).map(|(key, tree)| (key.line, tree)),
            };
            let Some((next_line, next)) = next else { return (node.line(), false) };
            (node, line) = (next, next_line);
        }
        (line, true)
    }

    /// The field whose value is at a place, or the last one before it.
    pub fn field_at(&self, place: Place) -> String {
        let mut found = (self.place, String::new());
        self.search(place, &mut String::new(), &mut found);
        found.1
    }

    fn search(&self, place: Place, path: &mut String, found: &mut (Place, String)) {
        if self.place <= place && self.place >= found.0 {
            *found = (self.place, path.clone());
        }
        let length = path.len();
        let mut inside = |step: String, tree: &Self| {
            path.push_str(&step);
            tree.search(place, path, found);
            path.truncate(length);
        };
        match &self.node {
            Node::Map(fields) => fields.iter().for_each(|(key, tree)| {
                inside(if length == 0 { key.name.clone() } else { format!(".{}", key.name) }, tree);
            }),
            Node::List(items) => {
                items.iter().enumerate().for_each(|(position, tree)| inside(format!("[{position}]"), tree));
            }
            _ => {}
        }
    }

    /// Returns the position of a field, for a diagnostic.
    pub fn place_of(&self, path: &str) -> Subject {
        Subject::text(self.line_of(path))
    }

    /// Describes the value for a message.
    pub fn describe(&self) -> String {
        match &self.node {
            Node::Null => "nothing".to_owned(),
            Node::Bool(value) => value.to_string(),
            Node::Number(number) => number.to_string(),
            Node::Text(text) => format!("{text:?}"),
            Node::List(_) => "a list".to_owned(),
            Node::Map(_) => "a map of fields".to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned: Spanned<Node> = Spanned::deserialize(deserializer)?;
        let place = (spanned.referenced.line(), spanned.referenced.column());
        Ok(Self { place, node: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    // So large a number is kept as text: no numeric field accepts it.
    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Text(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
        Ok(Node::Text(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Number::from_f64(value).map_or_else(|| Node::Text(value.to_string()), Node::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    // A text with the tag !!binary.
    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Node, E> {
        Ok(Node::Text(String::from_utf8_lossy(bytes).into_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some((key, tree)) = map.next_entry::<Spanned<String>, Tree>()? {
            fields.push((Key { name: key.value, line: key.referenced.line() }, tree));
        }
        Ok(Node::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_saphyr::options::DuplicateKeyPolicy;

    use super::*;

    fn read(text: &str) -> Tree {
        let options = serde_saphyr::options! {
            duplicate_keys: DuplicateKeyPolicy::PassThrough,
            legacy_octal_numbers: true,
        };
        serde_saphyr::from_str_with_options(text, options).unwrap()
    }

    const TEXT: &str = "a:\n  b: 1\n  c:\n  - x\n  - d: null\n    e: 2\na:\n  b: [yes, 010, ~]\n";

    #[test]
    fn fields_have_lines_and_the_last_duplicate_applies() {
        let tree = read(TEXT);
        assert_eq!(tree.value(), serde_json::json!({"a": {"b": [true, 8, null]}}));
        assert_eq!(tree.line_of("a.b[0]"), 8);
        assert_eq!(tree.line_of("a"), 7);
        assert_eq!(tree.line_of("a.c[1]"), 8);
        let Node::Map(fields) = &tree.node else { panic!("{tree:?}") };
        assert_eq!((fields.len(), fields[0].0.line, fields[0].1.line_of("c[1].e")), (2, 1, 6));
    }

    #[test]
    fn a_field_without_value_is_missing() {
        assert_eq!(read("a: 1\na:\nb: null\nc: {}").value(), serde_json::json!({"c": {}}));
    }

    #[test]
    fn json_is_parsed_with_lines() {
        let tree = read("{\n\t\"a\": {\n\t\t\"b\": 1.5\n\t}\n}\n");
        assert_eq!(tree.value(), serde_json::json!({"a": {"b": 1.5}}));
        assert_eq!(tree.line_of("a.b"), 3);
    }

    #[test]
    fn fields_have_lines_and_places_have_fields() {
        let text = "kind: Service\nspec:\n  ports:\n  - name: a\n    port: 1\n  - name: b\n    port: x\n";
        let tree = read(text);
        assert_eq!(tree.line_of("spec.ports[1].port"), 7);
        assert_eq!(tree.line_of("spec.ports[0].name"), 4);
        assert_eq!(tree.line_of("spec.ports[1].nodePort"), 6);
        assert_eq!((tree.has("spec.ports[1].port"), tree.has("spec.ports[1].nodePort")), (true, false));
        assert_eq!(tree.field_at((7, 11)), "spec.ports[1].port");
        assert_eq!(tree.field_at((1, 7)), "kind");
    }
}
