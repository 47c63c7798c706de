//! Parses a YAML or JSON text into a tree that contains the line of every field, and keeps duplicate fields.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

use crate::Subject;

/// A value and the line on which it begins.
#[derive(Debug)]
pub struct Tree {
    line: u64,
    /// The value.
    pub node: Node,
}

/// A value without its line.
#[derive(Debug)]
pub enum Node {
    /// `null`. A field with this value counts as missing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// A list of items.
    List(Vec<Tree>),
    /// The fields in the order of the text.
    Map(Vec<(Key, Tree)>),
}

/// The name of a field and its line.
#[derive(Debug)]
pub struct Key {
    /// The name of the field.
    pub name: String,
    /// The line, from 1.
    pub line: u64,
}

impl Tree {
    /// A map of fields, which begins on the line of the first field.
    pub fn of_fields(fields: Vec<(Key, Self)>) -> Self {
        Self { line: fields.first().map_or(1, |(key, _)| key.line), node: Node::Map(fields) }
    }

    /// The line on which the value begins, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The string, if the value is one.
    pub fn text(&self) -> Option<&str> {
        match &self.node {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value without lines. If several fields have the same name, the last one applies. A field without a
    /// value is omitted.
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

    /// Returns a field such as `spec.ports[1].port`.
    pub fn at(&self, path: &str) -> Option<&Self> {
        self.find(path).ok().map(|(_, field)| field)
    }

    /// Returns the line of a field such as `spec.ports[1].port`. If the field is missing, returns the line on which the
    /// value of its nearest existing parent begins.
    pub fn line_of(&self, path: &str) -> u64 {
        self.find(path).map_or_else(Self::line, |(line, _)| line)
    }

    /// Returns the line and the value of a field. If the field is missing, returns its nearest existing parent as the
    /// error.
    fn find(&self, path: &str) -> Result<(u64, &Self), &Self> {
        let mut found = (self.line, self);
        for step in path.split(['.', '[', ']']).filter(|step| !step.is_empty()) {
            let (_, node) = found;
            let next = match &node.node {
                Node::List(items) => {
                    step.parse().ok().and_then(|position: usize| items.get(position)).map(|item| (item.line, item))
                }
                _ => node.field(step).map(|(key, tree)| (key.line, tree)),
            };
            found = next.ok_or(node)?;
        }
        Ok(found)
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

/// The type that a value should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `true` or `false`.
    Bool,
    /// A number.
    Number,
    /// A number without a fraction.
    Whole,
    /// A string.
    Text,
    /// A list.
    List,
    /// A map of fields.
    Map,
}

impl Type {
    /// Describes the type for a message about the value `found`, which has another type. Also returns the remedy.
    pub fn expected(self, found: &Node) -> (&'static str, &'static str) {
        match (self, found) {
            (Self::Bool, _) => ("true or false", "write true or false, without quotes"),
            (Self::Whole, Node::Number(_)) => ("a whole number", "remove the fraction"),
            (Self::Number | Self::Whole, Node::Text(_)) => ("a number", "write it in digits, without quotes"),
            (Self::Number | Self::Whole, _) => ("a number", "write it in digits"),
            (Self::Text, Node::Number(_) | Node::Bool(_)) => ("a string", "put it in quotes"),
            (Self::Text, _) => ("a string", "write one value"),
            (Self::List, _) => ("a list", "begin each of its items with '- '"),
            (Self::Map, _) => ("a map of fields", "write its fields as name: value, indented below it"),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned: Spanned<Node> = Spanned::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), node: spanned.value })
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

    // A number this large is kept as text, because no numeric field accepts it.
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
    fn fields_are_found_by_their_paths() {
        let text = "kind: Service\nspec:\n  ports:\n  - name: a\n    port: 1\n  - name: b\n    port: x\n";
        let tree = read(text);
        assert_eq!(tree.line_of("spec.ports[1].port"), 7);
        assert_eq!(tree.line_of("spec.ports[0].name"), 4);
        assert_eq!(tree.line_of("spec.ports[1].nodePort"), 6);
        assert_eq!(tree.at("kind").and_then(Tree::text), Some("Service"));
        assert!(tree.at("spec.ports[1].nodePort").is_none() && tree.at("spec.ports[2]").is_none());
    }
}
