//! Remembers the content of the files at the last read, so that the next read parses only what has changed.
//!
//! ```text
//! folder ─► each file: new stamp?  ─► its documents: new text?  ─► reading ─► News ─► events
//! ```
//!
//! The cluster stores the objects. This module stores only the name and line of each object, to detect deleted objects
//! and duplicates. Reading produces `News`, which changes nothing until `Contents::take` applies it. After a problem, the
//! next attempt therefore starts from the last valid content.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map},
    fs,
    hash::{BuildHasher as _, RandomState},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use localnet_core::{
    Code, Diagnostic, ServiceKey, Severity, Subject,
    yaml::{self, Document},
};

use super::{
    folder,
    open::{self, Refused},
    problems, reading,
};
use crate::{platform, stamp::Stamp};
use localnet_cluster::objects::{Event, Kind, Object, Publish, ServiceType};

/// If a file changed less than this time before it was read, it is read again even if its stamp is unchanged. The file
/// may have changed twice within one tick of the clock that stamps it.
const TICKS: Duration = Duration::from_secs(2);

/// The content of the files at the last read without a problem.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    files: BTreeMap<Arc<Path>, File>,
    hashes: RandomState,
    /// Whether the first list was taken. All later events are changes.
    listed: bool,
    /// The device that contains the path.
    device: Option<u64>,
    publish: Option<Arc<Publish>>,
}

/// A file that was read.
#[derive(Clone, Debug)]
struct File {
    stamp: Stamp,
    /// Whether any later change of the content would also change the stamp.
    settled: bool,
    texts: Vec<Text>,
    ignored: Vec<Diagnostic>,
}

/// A document of a file.
#[derive(Clone, Debug)]
struct Text {
    /// The hash of the text, including the `---` before it.
    hash: u64,
    lines_before: u64,
    objects: Box<[Named]>,
    /// Kinds that the brain does not use, each with its line in the document.
    ignored: Box<[(u64, String)]>,
}

/// An object in a document.
#[derive(Clone, Debug)]
struct Named {
    name: ServiceKey,
    /// The line in the document.
    line: u32,
    kind: Kind,
    odd: Option<Odd>,
    has_node_port: bool,
}

/// Why an object has no effect.
#[derive(Clone, Copy, Debug)]
enum Odd {
    SliceOfNone,
    WithoutClusterIp,
}

type Id<'a> = (Kind, &'a ServiceKey);

impl Named {
    fn new(object: &Object, line: u64) -> Self {
        let has_node_port =
            matches!(object, Object::Service(service) if service.ports.iter().any(|port| port.node_port != 0));
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        Self { name: object.key(), line, kind: object.kind(), odd: Odd::of(object), has_node_port }
    }

    fn id(&self) -> Id<'_> {
        (self.kind, &self.name)
    }
}

impl Odd {
    fn of(object: &Object) -> Option<Self> {
        match object {
            Object::Slice(slice) if slice.owner().is_none() => Some(Self::SliceOfNone),
            // An API server would have allocated a ClusterIP.
            Object::Service(service)
                if service.cluster_ips.is_empty() && !service.headless && service.kind != ServiceType::ExternalName =>
            {
                Some(Self::WithoutClusterIp)
            }
            _ => None,
        }
    }

    fn about(self, subject: Subject) -> Diagnostic {
        match self {
            Self::SliceOfNone => Diagnostic::new(Code::SliceWithoutService, subject, "belongs to no Service")
                .remedy("name its Service with the label kubernetes.io/service-name"),
            Self::WithoutClusterIp => {
                Diagnostic::new(Code::ServiceWithoutAddress, subject, "has no ClusterIP and is not proxied")
                    .remedy("set spec.clusterIP: the brain allocates none")
                    .severity(Severity::Warning)
            }
        }
    }
}

impl File {
    fn new(path: &Arc<Path>, stamp: Stamp, settled: bool, texts: Vec<Text>) -> Self {
        let mut ignored = Vec::new();
        let at = |line, object| Subject::in_file_of(Arc::clone(path), line, Some(object));
        for text in &texts {
            for (line, kind) in &text.ignored {
                let subject = at(text.lines_before + line, localnet_core::Object::new(kind.clone(), "", ""));
                ignored.push(Diagnostic::new(Code::KindIgnored, subject, "objects of this kind are ignored"));
            }
            for named in &text.objects {
                if let Some(odd) = named.odd {
                    ignored.push(odd.about(at(text.lines_before + u64::from(named.line), spoken(named.id()))));
                }
            }
        }
        Self { stamp, settled, texts, ignored }
    }

    fn has_objects(&self) -> bool {
        self.objects().next().is_some()
    }

    fn objects(&self) -> impl Iterator<Item = &Named> {
        self.texts.iter().flat_map(|text| &text.objects)
    }

    /// The objects, each with its first line.
    fn places(&self) -> impl Iterator<Item = (Id<'_>, u64)> {
        self.texts
            .iter()
            .flat_map(|text| text.objects.iter().map(|named| (named.id(), text.lines_before + u64::from(named.line))))
    }
}

/// The device of a file or folder.
fn device(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().as_ref().and_then(platform::device)
}

fn spoken((kind, name): Id<'_>) -> localnet_core::Object {
    localnet_core::Object::new(kind.as_str(), Arc::clone(&name.namespace), Arc::clone(&name.name))
}

/// The changes since the last read.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The files that were read. `None` for deleted files.
    files: BTreeMap<Arc<Path>, Option<File>>,
    /// The objects of documents whose text has changed.
    objects: Vec<Object>,
    gone: Vec<(Kind, ServiceKey)>,
    device: Option<u64>,
    /// The number of documents that were parsed.
    pub(super) parsed: usize,
}

impl News {
    /// The number of files that were read.
    #[cfg(test)]
    pub(super) fn files(&self) -> usize {
        self.files.values().flatten().count()
    }
}

impl Contents {
    /// Nothing was read yet. `publish` is what readers of the draft `localnet.v1` may select.
    pub(super) fn new(publish: Option<Arc<Publish>>) -> Self {
        Self { publish, ..Self::default() }
    }

    /// Reads the changes. If any file cannot be read, returns all problems instead. Must be called on a thread of
    /// `super::thread`, because reading needs its large stack.
    pub(super) fn read(&self, path: &Path, now: SystemTime) -> Result<News, Vec<Diagnostic>> {
        let (mut news, mut problems) = (News::default(), Vec::new());
        let paths = folder::files(path, &mut problems).map_err(|error| vec![problems::unreadable(path, &error)])?;
        news.device = device(path);
        if paths.is_empty() && news.device != self.device && self.files.values().any(File::has_objects) {
            problems.push(problems::unmounted(path));
        }
        let there: HashSet<&Path> = paths.iter().map(PathBuf::as_path).collect();
        let gone = self.files.keys().filter(|file| !there.contains(&***file));
        news.files.extend(gone.map(|file| (Arc::clone(file), None)));
        for file in &paths {
            let before = self.files.get(file.as_path());
            if before.is_some_and(|before| before.settled && Stamp::of(file).is_ok_and(|stamp| stamp == before.stamp)) {
                continue;
            }
            let file: Arc<Path> = file.as_path().into();
            match open::read(&file) {
                Ok((bytes, stamp)) => match String::from_utf8(bytes) {
                    Ok(text) if before.is_some_and(File::has_objects) && yaml::documents(&text).next().is_none() => {
                        problems.push(problems::emptied(&file));
                    }
                    Ok(text) => {
                        let texts = self.texts(&file, &text, before, &mut news, &mut problems);
                        let settled = stamp.is_older_than(now, TICKS);
                        news.files.insert(Arc::clone(&file), Some(File::new(&file, stamp, settled, texts)));
                    }
                    Err(_) => problems.push(problems::not_text(&file)),
                },
                // The file was deleted after it was listed. If another file has replaced it, the watch reports this.
                Err(Refused::Failed(error)) if error.kind() == io::ErrorKind::NotFound && *file != *path => {
                    if before.is_some() {
                        news.files.insert(file, None);
                    }
                }
                Err(refused) => problems.push(problems::refused(&file, &refused)),
            }
        }
        let twice = self.twice(&news);
        problems.extend(twice);
        if problems.is_empty() {
            news.gone = self.gone(&news);
            Ok(news)
        } else {
            problems.sort();
            Err(problems)
        }
    }

    /// The documents of a file. Documents with a known text are not parsed again.
    fn texts(
        &self,
        file: &Arc<Path>,
        text: &str,
        before: Option<&File>,
        news: &mut News,
        problems: &mut Vec<Diagnostic>,
    ) -> Vec<Text> {
        let texts_before: HashMap<u64, &Text> =
            before.iter().flat_map(|file| &file.texts).map(|text| (text.hash, text)).collect();
        yaml::documents(text)
            .map(|document| {
                let Document { text, lines_before, .. } = document;
                let hash = self.hashes.hash_one(text);
                if let Some(text) = texts_before.get(&hash) {
                    return Text { lines_before, ..(*text).clone() };
                }
                news.parsed += 1;
                let reading = reading::read(document, file, self.publish.as_deref());
                problems.extend(reading.problems);
                let ignored = reading.ignored.into_iter().map(|(line, kind)| (line - lines_before, kind)).collect();
                let found = reading.found.iter();
                let objects = found.map(|found| Named::new(&found.object, found.line - lines_before)).collect();
                news.objects.extend(reading.found.into_iter().map(|found| found.object));
                Text { hash, lines_before, objects, ignored }
            })
            .collect()
    }

    /// The files without changes.
    fn unchanged<'a>(&'a self, news: &'a News) -> impl Iterator<Item = (&'a Arc<Path>, &'a File)> {
        self.files.iter().filter(|(file, _)| !news.files.contains_key(*file))
    }

    /// Objects that are defined twice: two definitions in the news, or one in the news and one in an unchanged file.
    fn twice(&self, news: &News) -> Vec<Diagnostic> {
        let mut first: HashMap<Id<'_>, (&Arc<Path>, u64)> = HashMap::new();
        let mut problems = Vec::new();
        let mut found = |id, place, first: (&Arc<Path>, u64)| {
            let ((first, first_line), (file, line)) = if first <= place { (first, place) } else { (place, first) };
            let problem = format!("is defined twice, first in {}:{first_line}", first.display());
            let subject = Subject::in_file_of(Arc::clone(file), line, Some(spoken(id)));
            problems.push(Diagnostic::new(Code::ObjectTwice, subject, problem).remedy("remove one of the two"));
        };
        for (path, file) in &news.files {
            for (id, line) in file.iter().flat_map(File::places) {
                match first.entry(id) {
                    hash_map::Entry::Vacant(vacant) => {
                        vacant.insert((path, line));
                    }
                    hash_map::Entry::Occupied(first) => found(id, (path, line), *first.get()),
                }
            }
        }
        for (path, file) in self.unchanged(news) {
            for (id, line) in file.places() {
                if let Some(other) = first.get(&id) {
                    found(id, *other, (path, line));
                }
            }
        }
        problems
    }

    /// Objects that have disappeared from their file and are not in any other file.
    fn gone(&self, news: &News) -> Vec<(Kind, ServiceKey)> {
        let now: HashSet<Id<'_>> = news.files.values().flatten().flat_map(File::objects).map(Named::id).collect();
        let were = news.files.keys().filter_map(|file| self.files.get(file)).flat_map(File::objects).map(Named::id);
        were.filter(|id| !now.contains(id)).map(|(kind, name)| (kind, name.clone())).collect()
    }

    /// Applies the news, and returns its events. The first call returns a complete list of each kind; later calls return
    /// changes.
    pub(super) fn take(&mut self, news: News) -> Vec<Event> {
        self.device = news.device;
        for (path, file) in news.files {
            match file {
                Some(file) => {
                    self.files.insert(path, file);
                }
                None => {
                    self.files.remove(&path);
                }
            }
        }
        if std::mem::replace(&mut self.listed, true) {
            let gone = news.gone.into_iter().map(|(kind, ServiceKey { namespace, name })| Event::Delete {
                kind,
                namespace,
                name,
            });
            return gone.chain(news.objects.into_iter().map(Event::Apply)).collect();
        }
        let mut objects: BTreeMap<Kind, Vec<Object>> = BTreeMap::new();
        for object in news.objects {
            objects.entry(object.kind()).or_default().push(object);
        }
        Kind::ALL.map(|kind| Event::Replace { kind, objects: objects.remove(&kind).unwrap_or_default() }).into()
    }

    /// The ignored objects, and the first object of each ignored kind.
    pub(super) fn ignored(&self) -> Vec<&Diagnostic> {
        let mut kinds = BTreeSet::new();
        let ignored = self.files.values().flat_map(|file| &file.ignored);
        ignored.filter(|of| of.code != Code::KindIgnored || kinds.insert(of.subject.object())).collect()
    }

    /// Whether there are NodePorts, but no Node object of this name that would contain the addresses for them.
    pub(super) fn lacks_node(&self, name: &str) -> bool {
        let objects = || self.files.values().flat_map(File::objects);
        let is_node = |named: &Named| named.kind == Kind::Node && *named.name.name == *name;
        objects().any(|named| named.has_node_port) && !objects().any(is_node)
    }
}
