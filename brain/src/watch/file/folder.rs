//! Finds the files to read, and describes files that cannot be read.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::SystemTime,
};

use localnet_core::{Code, Diagnostic, Subject};

use super::{
    known::Known,
    open::{self, Entry, Refused},
    thread,
};
use crate::cluster::Event;

/// Extensions of the files that are read from a folder.
pub(super) const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The content of the files.
#[derive(Debug, Default, PartialEq)]
pub struct Loaded {
    /// One batch: a complete list of each kind.
    pub events: Vec<Event>,
    /// Objects without effect: objects of other kinds (the first one of each), slices without a Service, and Services without a
    /// ClusterIP.
    pub ignored: Vec<Diagnostic>,
}

/// Reads a file, or all `.yaml`, `.yml` and `.json` files of a folder, but not of its subfolders. If any file cannot be read,
/// returns the problems of all files.
pub fn load(path: &Path) -> Result<Loaded, Vec<Diagnostic>> {
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

/// The diagnostic for a panic of the parser, which is a foreign crate.
pub(super) fn crashed(path: &Path) -> Diagnostic {
    whole_file(Code::ParserCrashed, path, "cannot be read: the parser has crashed", "simplify what changed last")
}

pub(super) fn refused_file(file: &Path, refused: &Refused) -> Diagnostic {
    match refused {
        Refused::Failed(error) => unreadable(file, error),
        Refused::Odd(problem, remedy) => whole_file(Code::FileUnsuitable, file, problem, remedy),
    }
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "give the path of a file or folder of Kubernetes YAML",
        io::ErrorKind::PermissionDenied => "let the user that this runs as read it",
        _ => "",
    };
    whole_file(Code::FileUnreadable, path, &format!("cannot be read: {error}"), remedy)
}

/// The diagnostic for an emptied file. A writer may have truncated the file without writing its new content yet.
pub(super) fn emptied(file: &Path) -> Diagnostic {
    let remedy = "write it, or delete it if its objects are to go (or write a List with items: [])";
    whole_file(Code::FileEmptied, file, "is empty now, and had objects before", remedy)
}

/// The diagnostic for a folder whose mount has disappeared, so that an empty folder is visible below.
pub(super) fn unmounted(folder: &Path) -> Diagnostic {
    let problem = "is another, empty file system now, and had objects before";
    let remedy = "mount it again, or write a file with a List of items: [] if all objects are to go";
    whole_file(Code::FolderUnmounted, folder, problem, remedy)
}

pub(super) fn not_text(file: &Path) -> Diagnostic {
    whole_file(Code::FileNotText, file, "is not UTF-8 text", "save it as UTF-8")
}

fn whole_file(code: Code, file: &Path, problem: &str, remedy: &str) -> Diagnostic {
    Diagnostic::new(code, Subject::in_file_of(file.into(), 0, None), problem).remedy(remedy)
}

/// The files to read, sorted.
pub(super) fn files(path: &Path, problems: &mut Vec<Diagnostic>) -> io::Result<Vec<PathBuf>> {
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

/// Whether a file in a folder is read, judged by its name. The private files of editors and ConfigMaps begin with a dot.
pub(super) fn is_named_like_one(file: &Path) -> bool {
    let hidden = file.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = file.extension().and_then(|extension| extension.to_str());
    !hidden && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}
