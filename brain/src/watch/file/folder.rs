//! Reads all files at a path into one batch of events.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use super::{
    checks, document,
    open::{self, Entry, Refused},
    problem::Problem,
    reading, thread,
};
use crate::cluster::{Event, Kind, Object, ServiceType};

/// Names of files that are read from a folder end in one of these.
pub(super) const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// What the files say.
#[derive(Debug, Default, PartialEq)]
pub struct Loaded {
    /// One batch: a complete list of each kind.
    pub events: Vec<Event>,
    /// What means nothing here: objects of other kinds (the first of each), slices that belong to no Service, Services
    /// without a ClusterIP.
    pub ignored: Vec<Problem>,
    /// Of the names and contents of the files: equal for equal files.
    pub fingerprint: u64,
}

impl Loaded {
    /// Whether there are node ports, and no Node of this name that would say where they are.
    pub(super) fn lacks_node(&self, name: &str) -> bool {
        let mut node_ports = false;
        for event in &self.events {
            let Event::Replace { objects, .. } = event else { continue };
            for object in objects {
                match object {
                    Object::Node(node) if *node.name == *name => return false,
                    Object::Service(service) => node_ports |= service.ports.iter().any(|port| port.node_port != 0),
                    _ => {}
                }
            }
        }
        node_ports
    }
}

/// Reads a file, or all `.yaml`, `.yml` and `.json` files of a folder (not of the folders in it). If anything cannot be
/// read, nothing is.
pub fn load(path: &Path) -> Result<Loaded, Vec<Problem>> {
    let of = path.to_owned();
    match thread::start(move || read(&of)).map(JoinHandle::join) {
        Ok(Ok(read)) => read,
        Ok(Err(_panic)) => Err(vec![crashed(path)]),
        Err(error) => Err(vec![unreadable(path, &error)]),
    }
}

/// What is said when reading has crashed: the parser is not ours.
pub(super) fn crashed(path: &Path) -> Problem {
    whole_file(
        &Arc::new(path.to_owned()),
        "cannot be read: the parser has crashed".to_owned(),
        "simplify what changed last",
    )
}

/// Does it, on a thread that has the stack for it.
pub(super) fn read(path: &Path) -> Result<Loaded, Vec<Problem>> {
    let mut all = Collected::default();
    for file in files(path, &mut all.problems).map_err(|error| vec![unreadable(path, &error)])? {
        match open::read(&file) {
            Ok(bytes) => {
                (&file, &bytes).hash(&mut all.hasher);
                all.file(&Arc::new(file), bytes);
            }
            // It is gone again; what is there now is read next, when the watch tells.
            Err(Refused::Failed(error)) if error.kind() == io::ErrorKind::NotFound && file != path => {}
            Err(refused) => all.problems.push(refused_file(&file, &refused)),
        }
    }
    all.finish()
}

fn refused_file(file: &Path, refused: &Refused) -> Problem {
    match refused {
        Refused::Failed(error) => unreadable(file, error),
        Refused::Odd(problem, remedy) => whole_file(&Arc::new(file.to_owned()), problem.clone(), remedy),
    }
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> Problem {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "give the path of a file or folder of Kubernetes YAML",
        io::ErrorKind::PermissionDenied => "let the user that this runs as read it",
        _ => "",
    };
    whole_file(&Arc::new(path.to_owned()), format!("cannot be read: {error}"), remedy)
}

fn whole_file(file: &Arc<PathBuf>, problem: String, remedy: &str) -> Problem {
    let (object, field) = (String::new(), String::new());
    Problem { file: Arc::clone(file), line: 0, object, field, problem, remedy: remedy.to_owned() }
}

/// The files to read, sorted.
fn files(path: &Path, problems: &mut Vec<Problem>) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        if !is_named_like_one(&file) {
            continue;
        }
        match open::entry(&file) {
            Ok(Entry::File) => files.push(file),
            Ok(Entry::Nothing) => {}
            Err(refused) => problems.push(refused_file(&file, &refused)),
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Whether a folder's file is read, by its name. Editors' and ConfigMaps' own files begin with a dot.
pub(super) fn is_named_like_one(file: &Path) -> bool {
    let hidden = file.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = file.extension().and_then(|extension| extension.to_str());
    !hidden && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

/// Whether a Service should have a ClusterIP and has none. An API server would have chosen one.
fn is_without_cluster_ip(object: &Object) -> bool {
    matches!(object, Object::Service(service)
        if service.cluster_ips.is_empty() && !service.headless && service.kind != ServiceType::ExternalName)
}

/// Where an object stands.
type Place = (Arc<PathBuf>, u64);

#[derive(Default)]
struct Collected {
    objects: BTreeMap<Kind, Vec<Object>>,
    places: BTreeMap<(Kind, String, String), Place>,
    ignored: Vec<Problem>,
    ignored_kinds: BTreeSet<String>,
    hasher: DefaultHasher,
    problems: Vec<Problem>,
}

impl Collected {
    fn file(&mut self, file: &Arc<PathBuf>, bytes: Vec<u8>) {
        let Ok(text) = String::from_utf8(bytes) else {
            self.problems.push(whole_file(file, "is not UTF-8 text".to_owned(), "save it as UTF-8"));
            return;
        };
        for document in document::split(&text) {
            let reading = reading::read(document, file);
            self.problems.extend(reading.problems);
            for (line, kind) in reading.ignored {
                if self.ignored_kinds.insert(kind.clone()) {
                    let mut problem = whole_file(file, "objects of this kind are ignored".to_owned(), "");
                    (problem.line, problem.object) = (line, kind);
                    self.ignored.push(problem);
                }
            }
            for found in reading.found {
                self.object(file, found);
            }
        }
    }

    fn object(&mut self, file: &Arc<PathBuf>, reading::Found { line, object }: reading::Found) {
        if matches!(&object, Object::Slice(slice) if slice.owner().is_none()) {
            let problem = "belongs to no Service".to_owned();
            let remedy = "name its Service with the label kubernetes.io/service-name".to_owned();
            let (file, object, field) = (Arc::clone(file), checks::spoken(&object), String::new());
            self.ignored.push(Problem { file, line, object, field, problem, remedy });
        }
        if is_without_cluster_ip(&object) {
            let problem = "has no ClusterIP and is not proxied".to_owned();
            let remedy = "set spec.clusterIP: none is invented".to_owned();
            let (file, object, field) = (Arc::clone(file), checks::spoken(&object), String::new());
            self.ignored.push(Problem { file, line, object, field, problem, remedy });
        }
        let key = (object.kind(), object.namespace().to_owned(), object.name().to_owned());
        match self.places.entry(key) {
            btree_map::Entry::Vacant(vacant) => {
                vacant.insert((Arc::clone(file), line));
                self.objects.entry(object.kind()).or_default().push(object);
            }
            btree_map::Entry::Occupied(first) => {
                let (first, first_line) = first.get();
                let problem = format!("is there twice, first in {}:{first_line}", first.display());
                let (file, object, field) = (Arc::clone(file), checks::spoken(&object), String::new());
                let remedy = "remove one of them".to_owned();
                self.problems.push(Problem { file, line, object, field, problem, remedy });
            }
        }
    }

    fn finish(mut self) -> Result<Loaded, Vec<Problem>> {
        if !self.problems.is_empty() {
            return Err(self.problems);
        }
        let events =
            Kind::ALL.map(|kind| Event::Replace { kind, objects: self.objects.remove(&kind).unwrap_or_default() });
        Ok(Loaded { events: events.into(), ignored: self.ignored, fingerprint: self.hasher.finish() })
    }
}
