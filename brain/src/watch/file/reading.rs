//! Reads the objects of one document. A typed reading that fails is looked at again as a tree, to name line and field.

use std::{cell::RefCell, fmt, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

use super::{checks, document::Document, limits::options, problem::Problem, tree::Tree, words::words};
use crate::cluster::{Kind, Object};

/// Documents that are larger than this are not read a second time to name the field at fault.
const LARGEST_TREE: usize = 8 << 20;

/// An object, and the line it begins on.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) line: u64,
    pub(super) object: Object,
}

/// What a document says.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) found: Vec<Found>,
    /// Kinds that mean nothing here, with the line.
    pub(super) ignored: Vec<(u64, String)>,
    pub(super) problems: Vec<Problem>,
}

/// What every object says about itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Header {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<Named>,
    items: Option<Vec<Spanned<Item>>>,
}

/// What an item of a list says about itself. A list in a list means nothing, so its own items are not looked at.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Item {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<Named>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    namespace: Option<String>,
    name: Option<String>,
}

/// What is to be made of an object.
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

    fn object(&self) -> String {
        spoken(&self.meaning(), self.kind.as_deref(), self.metadata.as_ref())
    }
}

impl Item {
    fn meaning(&self) -> Meaning {
        meaning(self.api_version.as_deref(), self.kind.as_deref())
    }

    fn object(&self) -> String {
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

/// An object as it is spoken of: `Service default/web`.
fn spoken(meaning: &Meaning, kind: Option<&str>, named: Option<&Named>) -> String {
    let kind = kind.unwrap_or("object");
    let named = named.cloned().unwrap_or_default();
    let name = named.name.as_deref().unwrap_or("without a name");
    match meaning {
        Meaning::Object(Kind::Service | Kind::Slice) => {
            format!("{kind} {}/{name}", named.namespace.as_deref().unwrap_or("default"))
        }
        Meaning::Object(_) => format!("{kind} {name}"),
        _ => kind.to_owned(),
    }
}

/// Reads the objects of a document.
pub(super) fn read(document: Document<'_>, file: &Arc<std::path::PathBuf>) -> Reading {
    let reader = Reader { document, file };
    // The items of a list of many kinds are read in a second pass, when their kinds are known.
    match quick_meaning(document.text) {
        Some(Meaning::Object(kind)) => reader.single(kind),
        // What is ignored is not even read.
        Some(Meaning::Ignored(what)) => reader.ignored(what),
        _ => reader.with_header(),
    }
}

struct Reader<'a> {
    document: Document<'a>,
    file: &'a Arc<std::path::PathBuf>,
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
            Meaning::Nothing => self.one_problem(
                line,
                header.object(),
                "kind",
                "is missing".to_owned(),
                "every document is a Kubernetes object with apiVersion and kind",
            ),
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
                    let problem = "an item of a list is an object with apiVersion and kind".to_owned();
                    return self.one_problem(line, item.value.object(), &format!("items[{position}]"), problem, "");
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

    /// Looks at what the types let pass.
    fn checked(&self, objects: Vec<(String, u64, Read)>, ignored: Vec<(u64, String)>) -> Reading {
        let mut reading = Reading { ignored, ..Reading::default() };
        let tree = RefCell::new(None);
        for (prefix, line, Read { object, wrong }) in objects {
            for checks::Wrong { field, problem, remedy } in wrong.into_iter().chain(checks::check(&object)) {
                let mut tree = tree.borrow_mut();
                let tree = tree.get_or_insert_with(|| self.tree());
                let said = |field: &str| tree.as_ref().is_some_and(|tree| tree.has(&format!("{prefix}{field}")));
                let first_ip = format!("spec.{}[0]", checks::CLUSTER_IPS);
                let one_ip = format!("spec.{}", checks::CLUSTER_IP);
                let field = if field == first_ip && !said(&field) && said(&one_ip) { one_ip } else { field };
                let line = tree.as_ref().map_or(line, |tree| self.line(tree.line(&format!("{prefix}{field}"))));
                let (file, object) = (Arc::clone(self.file), checks::spoken(&object));
                let remedy = remedy.to_owned();
                reading.problems.push(Problem { file, line, object, field, problem, remedy });
            }
            reading.found.push(Found { line, object });
        }
        reading
    }

    fn failed(&self, error: &serde_saphyr::Error) -> Reading {
        let place = error.location().map_or((1, 1), |place| (place.line().max(1), place.column()));
        let line = self.line(place.0);
        // A large document is not read again.
        let named = self.tree().and_then(|tree| Some(self.named(&tree.field(place), &self.header().ok()?)));
        let (object, field) = named.unwrap_or_default();
        let options = serde_saphyr::render_options! { snippets: serde_saphyr::SnippetMode::Off };
        let (problem, remedy) = match mistyped(error) {
            Some(Mistyped::Number) => no_number(self.scalar(place)),
            Some(Mistyped::Truth) => {
                (format!("{:?} is neither true nor false", self.scalar(place)), "write true or false")
            }
            None => words(error).unwrap_or_else(|| (without_place(&error.render_with_options(options)), "")),
        };
        self.one_problem(line, object, &field, problem, remedy)
    }

    /// The scalar that stands at a place, as it is written there.
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

    /// Object and field, seen from the document: those of an item of a list are its own.
    fn named(&self, field: &str, header: &Header) -> (String, String) {
        let in_list = field.strip_prefix("items[").and_then(|rest| rest.split_once(']'));
        let item = in_list.and_then(|(position, rest)| {
            let item = header.items.as_ref()?.get(position.parse::<usize>().ok()?)?;
            Some((item.value.object(), rest.trim_start_matches('.').to_owned()))
        });
        item.unwrap_or_else(|| (header.object(), field.to_owned()))
    }

    fn one_problem(&self, line: u64, object: String, field: &str, problem: String, remedy: &str) -> Reading {
        let (file, field, remedy) = (Arc::clone(self.file), field.to_owned(), remedy.to_owned());
        Reading { problems: vec![Problem { file, line, object, field, problem, remedy }], ..Reading::default() }
    }

    fn header(&self) -> Result<Header, serde_saphyr::Error> {
        serde_saphyr::from_str_with_options(self.document.text, options(self.document.text.len()))
    }

    fn tree(&self) -> Option<Tree> {
        let text = Some(self.document.text).filter(|text| text.len() <= LARGEST_TREE)?;
        serde_saphyr::from_str_with_options(text, options(text.len())).ok()
    }

    fn line(&self, line_of_document: u64) -> u64 {
        self.document.lines_before + line_of_document
    }
}

fn with_text<'de, T>(
    text: &'de str,
    read: impl for<'e> FnOnce(serde_saphyr::Deserializer<'de, 'e>) -> Result<T, serde_saphyr::Error>,
) -> Result<T, serde_saphyr::Error> {
    serde_saphyr::with_deserializer_from_str_with_options(text, options(text.len()), read)
}

/// The meaning of a document that says it in plain lines of its own, as nearly all do; it spares a pass over the text.
fn quick_meaning(text: &str) -> Option<Meaning> {
    let plain = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        lines.next().map(str::trim_end).filter(|_| lines.next().is_none()).filter(|word| is_plain(word))
    };
    Some(meaning(Some(plain("apiVersion")?), Some(plain("kind")?)))
}

/// Whether a text means itself in YAML, without quotes or a comment.
fn is_plain(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./-".contains(&byte))
}

/// What a scalar should have been.
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

/// What is wrong with a text that should be a whole number, and what helps.
fn no_number(text: &str) -> (String, &'static str) {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number.fract() == 0.0 => {
            (format!("{text} is out of range"), "use a smaller number")
        }
        Ok(number) if number.is_finite() => (format!("{text} is not a whole number"), "leave out the fraction"),
        _ => (format!("{text:?} is not a number"), "write it in digits"),
    }
}

/// The first line that says something.
fn first_line(text: &str) -> u64 {
    let empty = |line: &&str| line.trim().is_empty() || line.starts_with(['#', '%', '-']);
    text.lines().take_while(empty).count() as u64 + 1
}

/// The place is said before the message; once is enough.
fn without_place(message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    let end = message.rfind(" at line ").filter(|end| !message[*end..].contains(':'));
    let message = end.map_or(message, |end| &message[..end]);
    let rest = message.strip_prefix("error: ").unwrap_or(message);
    match rest.strip_prefix("line ").and_then(|rest| rest.split_once(": ")) {
        Some((place, rest)) if place.chars().all(|c| c.is_ascii_digit() || " column".contains(c)) => rest.to_owned(),
        _ => rest.to_owned(),
    }
}

/// An object, and what was wrong with what it no longer says.
struct Read {
    object: Object,
    wrong: Vec<checks::Wrong>,
}

/// Reads an object of a kind; `None` for what is ignored.
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

/// Reads the items of a list, each as what it is.
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
