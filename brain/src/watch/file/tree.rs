//! A YAML document as a tree with the line of every field. It is built only to locate a problem.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

use super::limits::options;

/// A position in a text: line and column, from 1.
type Place = (u64, u64);

/// A node of the tree, and its position.
#[derive(Debug)]
pub(crate) struct Tree(Box<Spanned<Inner>>);

#[derive(Debug)]
enum Inner {
    Map(Vec<(String, Tree)>),
    List(Vec<Tree>),
    Leaf,
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::deserialize(deserializer).map(|spanned| Self(Box::new(spanned)))
    }
}

impl<'de> Deserialize<'de> for Inner {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InnerVisitor)
    }
}

struct InnerVisitor;

/// All scalars are leaves.
macro_rules! leaves {
    ($($visit:ident: $type:ty),*) => { $(
        fn $visit<E>(self, _: $type) -> Result<Inner, E> {
            Ok(Inner::Leaf)
        }
    )* };
}

impl<'de> Visitor<'de> for InnerVisitor {
    type Value = Inner;

    leaves!(visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128, visit_f64: f64, visit_str: &str,
        visit_bytes: &[u8]);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Inner, E> {
        Ok(Inner::Leaf)
    }

    fn visit_none<E>(self) -> Result<Inner, E> {
        Ok(Inner::Leaf)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Inner, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Inner::Map(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Inner, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Inner::List(items))
    }
}

impl Tree {
    /// Parses a JSON text. Returns `None` if it is invalid.
    pub(crate) fn of_json(text: &str) -> Option<Self> {
        serde_saphyr::from_str_with_options(text, options(text.len())).ok()
    }

    fn place(&self) -> Place {
        (self.0.referenced.line(), self.0.referenced.column())
    }

    /// The line of a field such as `spec.ports[1].port`. If the field is missing, the line of the nearest existing parent.
    pub(super) fn line(&self, field: &str) -> u64 {
        self.find(field).0.place().0
    }

    /// Whether the field exists.
    pub(super) fn has(&self, field: &str) -> bool {
        self.find(field).1
    }

    /// The node of a field and true, or the last existing node on its path and false.
    fn find(&self, field: &str) -> (&Self, bool) {
        let mut node = self;
        for step in field.split(['.', '[', ']']).filter(|step| !step.is_empty()) {
            let next = match &node.0.value {
                Inner::Map(entries) => entries.iter().find(|(name, _)| name == step).map(|(_, node)| node),
                Inner::List(items) => step.parse::<usize>().ok().and_then(|position| items.get(position)),
                Inner::Leaf => None,
            };
            let Some(next) = next else { return (node, false) };
            node = next;
        }
        (node, true)
    }

    /// The field at a position, or the last one before it.
    pub(crate) fn field(&self, at: Place) -> String {
        let mut found = (self.place(), String::new());
        self.search(at, &mut String::new(), &mut found);
        found.1
    }

    fn search(&self, at: Place, path: &mut String, found: &mut (Place, String)) {
        if self.place() <= at && self.place() >= found.0 {
            *found = (self.place(), path.clone());
        }
        let length = path.len();
        match &self.0.value {
            Inner::Map(entries) => {
                for (name, node) in entries {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(name);
                    node.search(at, path, found);
                    path.truncate(length);
                }
            }
            Inner::List(items) => {
                for (position, node) in items.iter().enumerate() {
                    path.push_str(&format!("[{position}]"));
                    node.search(at, path, found);
                    path.truncate(length);
                }
            }
            Inner::Leaf => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "kind: Service\nspec:\n  ports:\n  - name: a\n    port: 1\n  - name: b\n    port: x\n";

    #[test]
    fn fields_have_lines_and_places_have_fields() {
        let tree: Tree = serde_saphyr::from_str(TEXT).unwrap();
        assert_eq!(tree.line("spec.ports[1].port"), 7);
        assert_eq!(tree.line("spec.ports[0].name"), 4);
        assert_eq!(tree.line("spec.ports[1].nodePort"), 6);
        assert_eq!(tree.field((7, 11)), "spec.ports[1].port");
        assert_eq!(tree.field((1, 7)), "kind");
    }
}
