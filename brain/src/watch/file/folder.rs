//! Which files there are to read, and what is said of those that cannot be.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::SystemTime,
};

use super::{
    known::Known,
    open::{self, Entry, Refused},
    problem::Problem,
    thread,
};
use crate::cluster::Event;

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
}

/// Reads a file, or all `.yaml`, `.yml` and `.json` files of a folder (not of the folders in it). If anything cannot be
/// read, nothing is.
pub fn load(path: &Path) -> Result<Loaded, Vec<Problem>> {
    let of = path.to_owned();
    match thread::start(move || Known::default().read(&of, SystemTime::now())).map(JoinHandle::join) {
        Ok(Ok(read)) => read.map(|news| {
            let mut known = Known::default();
            let events = known.take(news);
            Loaded { events, ignored: known.ignored().into_iter().cloned().collect() }
        }),
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

pub(super) fn refused_file(file: &Path, refused: &Refused) -> Problem {
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

/// A writer may have emptied it, and not yet written what is to be in it.
pub(super) fn emptied(file: &Path) -> Problem {
    let remedy = "write it, or delete it if its objects are to go (or write a List with items: [])";
    whole_file(&Arc::new(file.to_owned()), "is empty now, and had objects before".to_owned(), remedy)
}

/// What was mounted there is gone, and the folder below it has no files.
pub(super) fn unmounted(folder: &Path) -> Problem {
    let remedy = "mount it again, or write a file with a List of items: [] if all objects are to go";
    whole_file(
        &Arc::new(folder.to_owned()),
        "is another, empty file system now, and had objects before".to_owned(),
        remedy,
    )
}

pub(super) fn not_text(file: &Path) -> Problem {
    whole_file(&Arc::new(file.to_owned()), "is not UTF-8 text".to_owned(), "save it as UTF-8")
}

fn whole_file(file: &Arc<PathBuf>, problem: String, remedy: &str) -> Problem {
    let (object, field) = (String::new(), String::new());
    Problem { file: Arc::clone(file), line: 0, object, field, problem, remedy: remedy.to_owned() }
}

/// The files to read, sorted.
pub(super) fn files(path: &Path, problems: &mut Vec<Problem>) -> io::Result<Vec<PathBuf>> {
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
