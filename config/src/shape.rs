//! Compares a text with a pattern, and finds unknown fields, duplicates and values of the wrong type.
//!
//! The pattern is the default document of the text's version, which has every field. All problems are found in one run, each
//! with its line.

use localnet_core::{
    Code, Diagnostic, Subject,
    yaml::{Key, Node, Tree, Type},
};
use serde_json::Value;

use crate::duration::GoDuration;

/// The problems of a text.
#[derive(Debug, Default)]
pub(crate) struct Misfits {
    /// Unknown and duplicate fields. A strict reader refuses them, and a lenient reader skips them.
    pub(crate) strict: Vec<Diagnostic>,
    /// Values of the wrong type, which no reader accepts.
    pub(crate) mistyped: Vec<Diagnostic>,
}

/// Compares a text with the pattern of its version. `elsewhere` returns the remedy for a field of another version.
pub(crate) fn compare(text: &Tree, pattern: &Value, elsewhere: &dyn Fn(&str) -> Option<String>) -> Misfits {
    let mut walk = Walk { misfits: Misfits::default(), elsewhere };
    walk.at("", text.line(), text, pattern);
    walk.misfits
}

struct Walk<'a> {
    misfits: Misfits,
    elsewhere: &'a dyn Fn(&str) -> Option<String>,
}

impl Walk<'_> {
    fn at(&mut self, path: &str, line: u64, text: &Tree, pattern: &Value) {
        match (&text.node, pattern) {
            // A null field counts as missing.
            (Node::Null, _) => {}
            (Node::Map(given), Value::Object(fields)) => {
                self.twice(path, given);
                for (key, value) in given {
                    self.field(joined(path, &key.name), key, value, fields);
                }
            }
            (Node::List(items), Value::Array(_)) => {
                let pattern = match path {
                    "logging.vmodule" => serde_json::json!({"filePattern": "", "verbosity": 0}),
                    _ => Value::String(String::new()),
                };
                for (position, item) in items.iter().enumerate() {
                    let path = format!("{path}[{position}]");
                    match item.node {
                        Node::Null => {
                            self.mistyped(&path, item.line(), item, "a string", "write a string, or remove the item");
                        }
                        _ => self.at(&path, item.line(), item, &pattern),
                    }
                }
            }
            (Node::Bool(_), Value::Bool(_)) | (Node::Text(_), Value::String(_)) => {}
            (Node::Number(number), Value::Number(expected)) => {
                if expected.is_i64() && number.is_f64() {
                    self.mistyped(path, line, text, "a whole number", "remove the fraction");
                }
            }
            // A duration in nanoseconds, or a size in bytes.
            (Node::Number(_), Value::String(_)) if is_number_too(path) => {}
            (_, pattern) => {
                let (expected, remedy) = wanted(&text.node, pattern);
                self.mistyped(path, line, text, expected, remedy);
            }
        }
    }

    fn field(&mut self, path: String, key: &Key, value: &Tree, pattern: &serde_json::Map<String, Value>) {
        match pattern.get(&key.name) {
            Some(pattern) => self.at(&path, key.line, value, pattern),
            // A feature gate may have any name.
            None if path.starts_with("featureGates.") => self.at(&path, key.line, value, &Value::Bool(false)),
            None => {
                let remedy = (self.elsewhere)(&path).unwrap_or_else(|| similar(&key.name, pattern));
                let problem = format!("unknown field {:?}", key.name);
                let unknown = Diagnostic::new(Code::FieldUnknown, Subject::text(key.line), problem);
                self.misfits.strict.push(unknown.field(path).remedy(remedy));
            }
        }
    }

    fn twice(&mut self, path: &str, fields: &[(Key, Tree)]) {
        for (position, (key, _)) in fields.iter().enumerate() {
            let first = fields[..position].iter().find(|(other, _)| other.name == key.name);
            if let Some((first, _)) = first {
                let problem = format!("key {:?} already set in map, on line {}", key.name, first.line);
                let twice = Diagnostic::new(Code::FieldTwice, Subject::text(key.line), problem);
                self.misfits.strict.push(twice.field(joined(path, &key.name)).remedy("remove one of the two"));
            }
        }
    }

    fn mistyped(&mut self, path: &str, line: u64, text: &Tree, expected: &str, remedy: &str) {
        let problem = format!("is {}, not {expected}", text.describe());
        let mistyped = Diagnostic::new(Code::FieldMistyped, Subject::text(line), problem);
        self.misfits.mistyped.push(mistyped.field(path).remedy(remedy));
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn is_number_too(path: &str) -> bool {
    path == "logging.flushFrequency" || path.ends_with(".infoBufferSize")
}

/// Returns the expected type and the remedy, for a message about a value of another type.
fn wanted(found: &Node, pattern: &Value) -> (&'static str, &'static str) {
    let wanted = match pattern {
        Value::String(default) if matches!(found, Node::Number(_)) && default.parse::<GoDuration>().is_ok() => {
            return ("a duration", "write it with a unit, like 30s");
        }
        Value::Bool(_) => Type::Bool,
        Value::Number(_) => Type::Number,
        Value::String(_) => Type::Text,
        Value::Array(_) => Type::List,
        Value::Object(_) | Value::Null => Type::Map,
    };
    wanted.expected(found)
}

/// Returns a remedy that suggests a known field with a similar name.
fn similar(name: &str, pattern: &serde_json::Map<String, Value>) -> String {
    let distance =
        |name_of_field: &str| strsim::damerau_levenshtein(&name_of_field.to_lowercase(), &name.to_lowercase());
    // Comparing long names is slow, and no known field has a long name.
    let close = Some(pattern).filter(|_| name.len() <= 64);
    let closest = close
        .into_iter()
        .flat_map(|pattern| pattern.keys())
        .map(|name_of_field| (distance(name_of_field), name_of_field))
        .min();
    match closest.filter(|(distance, _)| *distance * 3 <= name.len()) {
        Some((_, name_of_field)) => format!("did you mean {name_of_field}?"),
        None => "remove it, or correct its name".to_owned(),
    }
}
