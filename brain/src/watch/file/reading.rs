//! Reads the objects of one document.
//!
//! ```text
//! text ─► tree, with the line of each field ─► typed object ─► checks ─► object, or problems
//! ```
//!
//! The reader processes the items of a list one by one, so that the memory never holds the tree of a whole large list.

use std::{fmt, path::Path, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use localnet_core::{
    Code, Diagnostic, Object as Named, Subject,
    yaml::{self, Document, Key, Tree, Type},
};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::{
    checks,
    limits::{DEEPEST, options},
};
use localnet_cluster::objects::{Kind, Object, Publish, reduce};

/// An object and its first line.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) line: u64,
    pub(super) object: Object,
}

/// The content of a document.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) found: Vec<Found>,
    /// Kinds that the brain does not use, with their lines.
    pub(super) ignored: Vec<(u64, String)>,
    pub(super) problems: Vec<Diagnostic>,
}

/// How to treat an object.
#[derive(Clone, Debug)]
enum Meaning {
    Object(Kind),
    List,
    Ignored(String),
    Nothing,
}

impl Meaning {
    fn of(version: &str, kind: &str) -> Self {
        match (version, kind) {
            ("v1", "Service") => Self::Object(Kind::Service),
            ("v1", "Node") => Self::Object(Kind::Node),
            ("discovery.k8s.io/v1", "EndpointSlice") => Self::Object(Kind::Slice),
            ("networking.k8s.io/v1", "ServiceCIDR") => Self::Object(Kind::ServiceCidr),
            ("v1", "List" | "ServiceList" | "NodeList")
            | ("discovery.k8s.io/v1", "EndpointSliceList")
            | ("networking.k8s.io/v1", "ServiceCIDRList") => Self::List,
            (_, "") => Self::Nothing,
            _ => Self::Ignored(format!("{version} {kind}").trim().to_owned()),
        }
    }
}

/// The meaning of a document, found without parsing the document. This works if `apiVersion` and `kind` are lines such as
/// `kind: Service`, without quotes or a comment, as in nearly all documents. Otherwise returns `None`.
fn quick_meaning(text: &str) -> Option<Meaning> {
    let plain = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        lines.next().map(str::trim_end).filter(|_| lines.next().is_none()).filter(|word| is_plain(word))
    };
    Some(Meaning::of(plain("apiVersion")?, plain("kind")?))
}

/// Whether a word is a plain YAML scalar, without quotes or a comment.
fn is_plain(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./-".contains(&byte))
}

/// Reads the objects of a document. `publish` is what readers of the draft `localnet.v1` may select.
pub(super) fn read(document: Document<'_>, file: &Arc<Path>, publish: Option<&Publish>) -> Reading {
    let text = document.text;
    let mut reader = Reader { lines_before: document.lines_before, file, publish, reading: Reading::default() };
    // An ignored document is not parsed, so it need not be within the limits of the parser.
    if let Some(Meaning::Ignored(what)) = quick_meaning(text) {
        let empty = |line: &&str| line.trim().is_empty() || line.starts_with(['#', '%', '-']);
        let line = text.lines().take_while(empty).count() as u64 + 1;
        reader.reading.ignored.push((reader.lines_before + line, what));
        return reader.reading;
    }
    let parsed = serde_saphyr::with_deserializer_from_str_with_options(text, options(text.len()), |deserializer| {
        deserializer.deserialize_map(Body(&mut reader))
    });
    match parsed {
        Ok(body) => reader.body(&body),
        Err(error) => {
            let line = error.location().map_or(1, |place| place.line().max(1));
            let subject = reader.at(line, None);
            reader.reading = Reading {
                problems: vec![Diagnostic { subject, ..yaml::diagnose(&error, DEEPEST) }],
                ..Reading::default()
            };
        }
    }
    reader.reading
}

/// Reads a document, and collects its content.
struct Reader<'a> {
    lines_before: u64,
    file: &'a Arc<Path>,
    publish: Option<&'a Publish>,
    reading: Reading,
}

impl Reader<'_> {
    /// Reads the fields of a document whose items have already been read.
    fn body(&mut self, body: &Tree) {
        match meaning(body) {
            Meaning::List => {}
            Meaning::Nothing => {
                let problem =
                    Diagnostic::new(Code::FieldMissing, self.at(body.line(), Some(named(body))), "is missing");
                let remedy = "every document must be a Kubernetes object with apiVersion and kind";
                self.reading = Reading { problems: vec![problem.field("kind").remedy(remedy)], ..Reading::default() };
            }
            of => {
                self.reading = Reading::default();
                self.object(&of, body);
            }
        }
    }

    fn item(&mut self, position: usize, item: &Tree) {
        match meaning(item) {
            Meaning::List | Meaning::Nothing => {
                let problem = "an item of a list must be an object with apiVersion and kind";
                let problem = Diagnostic::new(Code::KindUnknown, self.at(item.line(), Some(named(item))), problem);
                self.reading.problems.push(problem.field(format!("items[{position}]")));
            }
            of => self.object(&of, item),
        }
    }

    fn object(&mut self, meaning: &Meaning, tree: &Tree) {
        let kind = match meaning {
            Meaning::Object(kind) => *kind,
            Meaning::Ignored(what) => {
                return self.reading.ignored.push((self.lines_before + tree.line(), what.clone()));
            }
            Meaning::List | Meaning::Nothing => return,
        };
        let mut problems = Vec::new();
        let object = match kind {
            Kind::Service => typed(tree).map(|mut service: Service| {
                default_namespace(&mut service.metadata.namespace);
                problems = checks::choices(&service);
                Object::Service(reduce::service(service, self.publish))
            }),
            Kind::Slice => typed(tree).map(|mut slice: EndpointSlice| {
                default_namespace(&mut slice.metadata.namespace);
                Object::Slice(reduce::slice(slice, self.publish))
            }),
            Kind::Node => typed(tree).map(|node: Node| Object::Node(node.into())),
            Kind::ServiceCidr => typed(tree).map(|cidr: ServiceCIDR| Object::ServiceCidr(cidr.into())),
        };
        match object {
            Ok(object) => {
                problems.extend(checks::check(&object));
                self.reading.found.push(Found { line: self.lines_before + tree.line(), object });
            }
            Err(misfit) => problems.push(misfit),
        }
        for mut problem in problems {
            // A file may contain the field for a single address instead of the list of addresses.
            if problem.field == FIRST_IP && tree.at(FIRST_IP).is_none() && tree.at(ONE_IP).is_some() {
                problem.field = ONE_IP.to_owned();
            }
            problem.subject = self.at(tree.line_of(&problem.field), Some(named(tree)));
            self.reading.problems.push(problem);
        }
    }

    /// A position in the file.
    fn at(&self, line: u64, object: Option<Named>) -> Subject {
        Subject::in_file_of(Arc::clone(self.file), self.lines_before + line, object)
    }
}

const FIRST_IP: &str = "spec.clusterIPs[0]";
const ONE_IP: &str = "spec.clusterIP";

fn text<'a>(tree: &'a Tree, path: &str) -> Option<&'a str> {
    tree.at(path)?.text()
}

fn meaning(tree: &Tree) -> Meaning {
    Meaning::of(text(tree, "apiVersion").unwrap_or_default(), text(tree, "kind").unwrap_or_default())
}

/// The name of an object in messages: `Service default/web`.
fn named(tree: &Tree) -> Named {
    let kind = text(tree, "kind").unwrap_or("object").to_owned();
    let name = text(tree, "metadata.name").unwrap_or_default();
    match meaning(tree) {
        Meaning::Object(Kind::Service | Kind::Slice) => {
            Named::new(kind, text(tree, "metadata.namespace").unwrap_or("default"), name)
        }
        Meaning::Object(_) => Named::new(kind, "", name),
        _ => Named::new(kind, "", ""),
    }
}

fn default_namespace(namespace: &mut Option<String>) {
    namespace.get_or_insert_with(|| "default".to_owned());
}

/// Decodes an object. If a value has the wrong type, returns a diagnostic, to which the caller adds the value's position.
fn typed<T: DeserializeOwned>(tree: &Tree) -> Result<T, Diagnostic> {
    serde_path_to_error::deserialize(tree.value()).map_err(|error| {
        let (field, message) = (error.path().to_string(), error.inner().to_string());
        let expected = message.rsplit("expected ").next().unwrap_or_default();
        let value = tree.at(&field).unwrap_or(tree);
        let (code, problem, remedy) = if message.starts_with("invalid value: integer") {
            (Code::ValueInvalid, format!("{} is out of range", value.describe()), "use a smaller number")
        } else {
            let wanted = match expected {
                "a boolean" => Type::Bool,
                "a string" => Type::Text,
                "a sequence" => Type::List,
                number if number.starts_with(['i', 'u']) => Type::Whole,
                _ => Type::Map,
            };
            let (expected, remedy) = wanted.expected(&value.node);
            (Code::FieldMistyped, format!("is {}, not {expected}", value.describe()), remedy)
        };
        Diagnostic::new(code, Subject::text(0), problem).field(field).remedy(remedy)
    })
}

/// The fields of a document except its items, which the reader receives one by one.
struct Body<'a, 'b>(&'a mut Reader<'b>);

impl<'de> Visitor<'de> for Body<'_, '_> {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            if key.value == "items" {
                map.next_value_seed(Items(self.0))?;
            } else {
                fields.push((Key { line: key.referenced.line(), name: key.value }, map.next_value()?));
            }
        }
        Ok(Tree::of_fields(fields))
    }
}

struct Items<'a, 'b>(&'a mut Reader<'b>);

impl<'de> DeserializeSeed<'de> for Items<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Items<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        for position in 0.. {
            let Some(item) = seq.next_element::<Tree>()? else { break };
            self.0.item(position, &item);
        }
        Ok(())
    }
}
