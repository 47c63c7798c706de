//! Parses a YAML or JSON text into a tree that keeps the line of every field, and duplicate fields.

use std::fmt;

use localnet_core::{Code, Diagnostic, Subject, yaml};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Spanned, options::DuplicateKeyPolicy};

/// The maximum size of a text in bytes. Typical texts have a few thousand.
const LARGEST: usize = 1 << 20;
/// The maximum nesting depth. A configuration has five levels.
const DEEPEST: usize = 32;

/// A value and the line on which it begins.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) line: u64,
    pub(crate) node: Node,
}

/// A value.
#[derive(Debug)]
pub(crate) enum Node {
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
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) line: u64,
}

impl Tree {
    /// Parses a text that contains one document.
    pub(crate) fn read(text: &str) -> Result<Self, Diagnostic> {
        if text.len() > LARGEST {
            let unsuitable = Diagnostic::new(Code::FileUnsuitable, Subject::text(0), "is larger than 1 MiB");
            return Err(unsuitable.remedy("give a KubeProxyConfiguration"));
        }
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_depth: DEEPEST,
                flow_nesting_limit: 2 * DEEPEST,
                max_nodes: 100_000,
            },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
            duplicate_keys: DuplicateKeyPolicy::PassThrough,
            // kube-proxy reads YAML 1.1.
            legacy_octal_numbers: true,
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let line = error.location().map_or(0, |place| place.line());
            let options = serde_saphyr::render_options! { snippets: serde_saphyr::SnippetMode::Off };
            let message = error.render_with_options(options);
            let invalid = Diagnostic::new(Code::YamlInvalid, Subject::text(line), yaml::without_place(&message));
            invalid.remedy("correct the YAML")
        })
    }

    /// Returns the value without lines. The last of several fields with the same name applies, and a field without value is
    /// omitted.
    pub(crate) fn value(&self) -> Value {
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
    pub(crate) fn field(&self, name: &str) -> Option<(&Key, &Self)> {
        let Node::Map(fields) = &self.node else { return None };
        fields.iter().rev().find(|(key, _)| key.name == name).map(|(key, tree)| (key, tree))
    }

    /// Returns the line of a field such as `spec.ports[1].port`. If the field is missing, it is the line of its nearest parent.
    pub(crate) fn line_of(&self, path: &str) -> u64 {
        let (mut node, mut line) = (self, self.line);
        for step in path.split(['.', '[', ']']).filter(|step| !step.is_empty()) {
            let next = match &node.node {
                Node::List(items) => {
                    step.parse().ok().and_then(|position: usize| items.get(position)).map(|item| (item.line, item))
                }
                _ => node.field(step).map(|(key, tree)| (key.line, tree)),
            };
            let Some((next_line, next)) = next else { break };
            (node, line) = (next, next_line);
        }
        line
    }

    /// Returns the position of a field, for a diagnostic.
    pub(crate) fn place_of(&self, path: &str) -> Subject {
        Subject::text(self.line_of(path))
    }

    /// Describes the value for a message.
    pub(crate) fn spoken(&self) -> String {
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
    use super::*;

    const TEXT: &str = "a:\n  b: 1\n  c:\n  - x\n  - d: null\n    e: 2\na:\n  b: [yes, 010, ~]\n";

    #[test]
    fn fields_have_lines_and_the_last_duplicate_applies() {
        let tree = Tree::read(TEXT).unwrap();
        assert_eq!(tree.value(), serde_json::json!({"a": {"b": [true, 8, null]}}));
        assert_eq!(tree.line_of("a.b[0]"), 8);
        assert_eq!(tree.line_of("a"), 7);
        assert_eq!(tree.line_of("a.c[1]"), 7);
        let Node::Map(fields) = &tree.node else { panic!("{tree:?}") };
        assert_eq!((fields.len(), fields[0].0.line, fields[0].1.line_of("c[1].e")), (2, 1, 6));
    }

    #[test]
    fn a_field_without_value_is_missing() {
        assert_eq!(Tree::read("a: 1\na:\nb: null\nc: {}").unwrap().value(), serde_json::json!({"c": {}}));
    }

    #[test]
    fn json_is_parsed_with_lines() {
        let tree = Tree::read("{\n\t\"a\": {\n\t\t\"b\": 1.5\n\t}\n}\n").unwrap();
        assert_eq!(tree.value(), serde_json::json!({"a": {"b": 1.5}}));
        assert_eq!(tree.line_of("a.b"), 3);
    }

    #[track_caller]
    fn refused(text: &str, line: u64, problem: &str) {
        let error = Tree::read(text).unwrap_err();
        assert_eq!((error.subject.clone(), error.problem.contains(problem)), (Subject::text(line), true), "{error}");
    }

    #[test]
    fn invalid_yaml_is_refused_with_its_line() {
        refused("a: 1\nb: [\n", 2, "unclosed bracket");
        refused("a: 1\n b: 2\n", 2, "");
        refused("bindAddress: ::\n", 1, "");
        refused("a: *nothing\n", 1, "");
        refused(&"x".repeat(LARGEST + 1), 0, "larger than 1 MiB");
        refused(&"[".repeat(100_000), 1, "");
        refused(&format!("a: {}{}", "[".repeat(1_000), "]".repeat(1_000)), 1, "");
    }
}
