//! Reads the objects of one document. If typed reading fails, the document is parsed again as a tree, to name the line and field.

use std::{cell::RefCell, fmt, path::Path, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use localnet_core::{
    Code, Diagnostic, Object as Named, Subject,
    yaml::{self, Document, Tree},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

use super::{
    checks,
    limits::{DEEPEST, options},
};
use localnet_cluster::objects::{Kind, Object};

/// Documents above this size, in bytes, are not parsed again to name the field at fault.
const LARGEST_TREE: usize = 8 << 20;

/// An object, and its first line.
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

impl From<Diagnostic> for Reading {
    fn from(problem: Diagnostic) -> Self {
        Self { problems: vec![problem], ..Self::default() }
    }
}

/// The header of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Header {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<Metadata>,
    items: Option<Vec<Spanned<Item>>>,
}

/// The header of an item of a list. A list inside a list is ignored, so its items are not read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Item {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<Metadata>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: Option<String>,
    name: Option<String>,
}

/// How to treat an object.
#[derive(Clone, Debug)]
enum Meaning {
    Object(Kind),
    List,
    Ignored(String),
    Nothing,
}

impl Header {
    fn meaning(&self) -> Meaning {
        meaning(self.api_version.as_deref(), self.kind.as_deref())
    }

    fn object(&self) -> Named {
        spoken(&self.meaning(), self.kind.as_deref(), self.metadata.as_ref())
    }
}

impl Item {
    fn meaning(&self) -> Meaning {
        meaning(self.api_version.as_deref(), self.kind.as_deref())
    }

    fn object(&self) -> Named {
        spoken(&self.meaning(), self.kind.as_deref(), self.metadata.as_ref())
    }
}

fn meaning(version: Option<&str>, kind: Option<&str>) -> Meaning {
    let version = version.unwrap_or_default();
    let Some(kind) = kind.filter(|kind| !kind.is_empty()) else { return Meaning::Nothing };
    match (version, kind) {
        ("v1", "Service") => Meaning::Object(Kind::Service),
        ("v1", "Node") => Meaning::Object(Kind::Node),
        ("discovery.k8s.io/v1", "EndpointSlice") => Meaning::Object(Kind::Slice),
        ("networking.k8s.io/v1", "ServiceCIDR") => Meaning::Object(Kind::ServiceCidr),
        ("v1", "List" | "ServiceList" | "NodeList")
        | ("discovery.k8s.io/v1", "EndpointSliceList")
        | ("networking.k8s.io/v1", "ServiceCIDRList") => Meaning::List,
        _ => Meaning::Ignored(format!("{version} {kind}").trim().to_owned()),
    }
}

/// The name of an object in messages: `Service default/web`.
fn spoken(meaning: &Meaning, kind: Option<&str>, metadata: Option<&Metadata>) -> Named {
    let kind = kind.unwrap_or("object").to_owned();
    let metadata = metadata.cloned().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or("without a name");
    match meaning {
        Meaning::Object(Kind::Service | Kind::Slice) => {
            Named::new(kind, metadata.namespace.as_deref().unwrap_or("default"), name)
        }
        Meaning::Object(_) => Named::new(kind, "", name),
        _ => Named::new(kind, "", ""),
    }
}

/// Reads the objects of a document.
pub(super) fn read(document: Document<'_>, file: &Arc<Path>) -> Reading {
    let reader = Reader { document, file };
    // The items of a list with several kinds are read in a second pass, once their kinds are known.
    match quick_meaning(document.text) {
        Some(Meaning::Object(kind)) => reader.single(kind),
        // Ignored documents are not read.
        Some(Meaning::Ignored(what)) => reader.ignored(what),
        _ => reader.with_header(),
    }
}

struct Reader<'a> {
    document: Document<'a>,
    file: &'a Arc<Path>,
}

impl Reader<'_> {
    fn single(&self, kind: Kind) -> Reading {
        let line = self.line(first_line(self.document.text));
        let read = with_text(self.document.text, |deserializer| ObjectSeed(Some(kind)).deserialize(deserializer));
        match read {
            Ok(Some(read)) => self.checked(vec![(String::new(), line, read)], Vec::new()),
            Ok(None) => Reading::default(),
            Err(error) => self.failed(&error),
        }
    }

    fn with_header(&self) -> Reading {
        let header: Header = match self.header() {
            Ok(header) => header,
            Err(error) => return self.failed(&error),
        };
        let line = self.line(first_line(self.document.text));
        match header.meaning() {
            Meaning::Object(kind) => self.single(kind),
            Meaning::List => self.list(header.items.as_deref().unwrap_or_default()),
            Meaning::Ignored(what) => self.ignored(what),
            Meaning::Nothing => Diagnostic::new(Code::FieldMissing, self.at(line, Some(header.object())), "is missing")
                .field("kind")
                .remedy("every document is a Kubernetes object with apiVersion and kind")
                .into(),
        }
    }

    fn ignored(&self, what: String) -> Reading {
        Reading { ignored: vec![(self.line(first_line(self.document.text)), what)], ..Reading::default() }
    }

    fn list(&self, items: &[Spanned<Item>]) -> Reading {
        let (mut ignored, mut kinds) = (Vec::new(), Vec::new());
        for (position, item) in items.iter().enumerate() {
            let line = self.line(item.referenced.line());
            kinds.push(match item.value.meaning() {
                Meaning::Object(kind) => Some(kind),
                Meaning::Ignored(what) => {
                    ignored.push((line, what));
                    None
                }
                Meaning::List | Meaning::Nothing => {
                    let problem = "an item of a list is an object with apiVersion and kind";
                    let at = self.at(line, Some(item.value.object()));
                    return Diagnostic::new(Code::KindUnknown, at, problem).field(format!("items[{position}]")).into();
                }
            });
        }
        let read = with_text(self.document.text, |deserializer| ListSeed(&kinds).deserialize(deserializer));
        let objects = match read {
            Ok(objects) => objects,
            Err(error) => return self.failed(&error),
        };
        let lines = items.iter().map(|item| self.line(item.referenced.line()));
        let objects = objects.into_iter().zip(lines).enumerate();
        let objects = objects
            .filter_map(|(position, (object, line))| Some((format!("items[{position}]."), line, object?)))
            .collect();
        self.checked(objects, ignored)
    }

    /// Checks the values that the types accept.
    fn checked(&self, objects: Vec<(String, u64, Read)>, ignored: Vec<(u64, String)>) -> Reading {
        let mut reading = Reading { ignored, ..Reading::default() };
        let tree = RefCell::new(None);
        for (prefix, line, Read { object, wrong }) in objects {
            for mut wrong in wrong.into_iter().chain(checks::check(&object)) {
                let mut tree = tree.borrow_mut();
                let tree = tree.get_or_insert_with(|| self.tree());
                let has_field = |field: &str| tree.as_ref().is_some_and(|tree| tree.has(&format!("{prefix}{field}")));
                let first_ip = format!("spec.{}[0]", checks::CLUSTER_IPS);
                let one_ip = format!("spec.{}", checks::CLUSTER_IP);
                if wrong.field == first_ip && !has_field(&first_ip) && has_field(&one_ip) {
                    wrong.field = one_ip;
                }
                let field = format!("{prefix}{}", wrong.field);
                let line = tree.as_ref().map_or(line, |tree| self.line(tree.line_of(&field)));
                wrong.subject = self.at(line, Some(checks::named(&object)));
                reading.problems.push(wrong);
            }
            reading.found.push(Found { line, object });
        }
        reading
    }

    fn failed(&self, error: &serde_saphyr::Error) -> Reading {
        let place = error.location().map_or((1, 1), |place| (place.line().max(1), place.column()));
        let line = self.line(place.0);
        // A large document is not parsed again.
        let named = self.tree().and_then(|tree| Some(self.named(&tree.field_at(place), &self.header().ok()?)));
        let (object, field) = named.unzip();
        let diagnostic = match mistyped(error) {
            Some(Mistyped::Number) => no_number(self.scalar(place)),
            Some(Mistyped::Truth) => {
                let problem = format!("{:?} is neither true nor false", self.scalar(place));
                about(Code::FieldMistyped, problem).remedy("write true or false")
            }
            None => yaml::diagnose(error, DEEPEST),
        };
        Diagnostic { subject: self.at(line, object), ..diagnostic }.field(field.unwrap_or_default()).into()
    }

    /// The scalar at a position, as it is written in the document.
    fn scalar(&self, (line, column): (u64, u64)) -> &str {
        let at = |number: u64| usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
        let line = self.document.text.lines().nth(at(line)).unwrap_or_default();
        let start = line.char_indices().nth(at(column)).map_or(line.len(), |(start, _)| start);
        let rest = &line[start..];
        match rest.chars().next() {
            Some(quote @ ('"' | '\'')) => rest[1..].split(quote).next().unwrap_or_default(),
            _ => {
                rest.split(" #").next().unwrap_or_default().split([',', '}', ']']).next().unwrap_or_default().trim_end()
            }
        }
    }

    /// The object and its field, from a field of the document. A field in an item of a list belongs to that item.
    fn named(&self, field: &str, header: &Header) -> (Named, String) {
        let in_list = field.strip_prefix("items[").and_then(|rest| rest.split_once(']'));
        let item = in_list.and_then(|(position, rest)| {
            let item = header.items.as_ref()?.get(position.parse::<usize>().ok()?)?;
            Some((item.value.object(), rest.trim_start_matches('.').to_owned()))
        });
        item.unwrap_or_else(|| (header.object(), field.to_owned()))
    }

    /// A position in the file.
    fn at(&self, line: u64, object: Option<Named>) -> Subject {
        Subject::in_file_of(Arc::clone(self.file), line, object)
    }

    fn header(&self) -> Result<Header, serde_saphyr::Error> {
        serde_saphyr::from_str_with_options(self.document.text, options(self.document.text.len()))
    }

    fn tree(&self) -> Option<Tree> {
        let text = Some(self.document.text).filter(|text| text.len() <= LARGEST_TREE)?;
        parse_tree(text)
    }

    fn line(&self, line_of_document: u64) -> u64 {
        self.document.lines_before + line_of_document
    }
}

/// Parses a YAML or JSON text as a tree. Returns `None` if it is invalid.
pub(crate) fn parse_tree(text: &str) -> Option<Tree> {
    serde_saphyr::from_str_with_options(text, options(text.len())).ok()
}

fn with_text<'de, T>(
    text: &'de str,
    read: impl for<'e> FnOnce(serde_saphyr::Deserializer<'de, 'e>) -> Result<T, serde_saphyr::Error>,
) -> Result<T, serde_saphyr::Error> {
    serde_saphyr::with_deserializer_from_str_with_options(text, options(text.len()), read)
}

/// The meaning of a document whose kind is on a plain line, as in nearly all documents. This saves a pass over the text.
fn quick_meaning(text: &str) -> Option<Meaning> {
    let plain = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        lines.next().map(str::trim_end).filter(|_| lines.next().is_none()).filter(|word| is_plain(word))
    };
    Some(meaning(Some(plain("apiVersion")?), Some(plain("kind")?)))
}

/// Whether a word is a plain YAML scalar, without quotes or a comment.
fn is_plain(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./-".contains(&byte))
}

/// The type that a scalar should have.
enum Mistyped {
    Number,
    Truth,
}

fn mistyped(error: &serde_saphyr::Error) -> Option<Mistyped> {
    match error.without_snippet() {
        serde_saphyr::Error::InvalidScalar { ty: "bool" | "boolean", .. } => Some(Mistyped::Truth),
        serde_saphyr::Error::InvalidScalar { ty, .. } if ty.starts_with(['i', 'u', 'f']) => Some(Mistyped::Number),
        _ => None,
    }
}

/// The diagnostic for a text that should be an integer.
fn no_number(text: &str) -> Diagnostic {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number.fract() == 0.0 => {
            about(Code::ValueInvalid, format!("{text} is out of range")).remedy("use a smaller number")
        }
        Ok(number) if number.is_finite() => {
            about(Code::FieldMistyped, format!("{text} is not a whole number")).remedy("remove the fraction")
        }
        _ => about(Code::FieldMistyped, format!("{text:?} is not a number")).remedy("write it in digits"),
    }
}

fn about(code: Code, problem: String) -> Diagnostic {
    Diagnostic::new(code, Subject::text(0), problem)
}

/// The first line with content.
fn first_line(text: &str) -> u64 {
    let empty = |line: &&str| line.trim().is_empty() || line.starts_with(['#', '%', '-']);
    text.lines().take_while(empty).count() as u64 + 1
}

/// An object, and problems with values that the object no longer contains.
struct Read {
    object: Object,
    wrong: Vec<Diagnostic>,
}

/// Reads an object of a kind. `None` for ignored objects.
struct ObjectSeed(Option<Kind>);

impl<'de> DeserializeSeed<'de> for ObjectSeed {
    type Value = Option<Read>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Read>, D::Error> {
        let mut wrong = Vec::new();
        let object = match self.0 {
            None => return IgnoredAny::deserialize(deserializer).map(|_| None),
            Some(Kind::Service) => {
                let mut service = Service::deserialize(deserializer)?;
                default_namespace(&mut service.metadata.namespace);
                wrong = checks::choices(&service);
                Object::Service(service.into())
            }
            Some(Kind::Slice) => {
                let mut slice = EndpointSlice::deserialize(deserializer)?;
                default_namespace(&mut slice.metadata.namespace);
                Object::Slice(slice.into())
            }
            Some(Kind::Node) => Object::Node(Node::deserialize(deserializer)?.into()),
            Some(Kind::ServiceCidr) => Object::ServiceCidr(ServiceCIDR::deserialize(deserializer)?.into()),
        };
        Ok(Some(Read { object, wrong }))
    }
}

fn default_namespace(namespace: &mut Option<String>) {
    namespace.get_or_insert_with(|| "default".to_owned());
}

/// Reads the items of a list, each by its kind.
struct ListSeed<'a>(&'a [Option<Kind>]);

impl<'de> DeserializeSeed<'de> for ListSeed<'_> {
    type Value = Vec<Option<Read>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ListSeed<'_> {
    type Value = Vec<Option<Read>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a List")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut objects = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" {
                objects = map.next_value_seed(ItemsSeed(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(objects)
    }
}

struct ItemsSeed<'a>(&'a [Option<Kind>]);

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_> {
    type Value = Vec<Option<Read>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            return IgnoredAny::deserialize(deserializer).map(|_| Vec::new());
        }
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_> {
    type Value = Vec<Option<Read>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a List")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut objects = Vec::with_capacity(self.0.len());
        for kind in self.0 {
            let Some(object) = seq.next_element_seed(ObjectSeed(*kind))? else { break };
            objects.push(object);
        }
        Ok(objects)
    }
}
