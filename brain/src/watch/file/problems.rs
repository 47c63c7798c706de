//! Describes files that cannot be read.

use std::{io, path::Path};

use localnet_core::{Code, Diagnostic, Subject};

use super::open::Refused;

/// The diagnostic for a panic of the parser, which is a foreign crate.
pub(super) fn crashed(path: &Path) -> Diagnostic {
    whole_file(Code::ParserCrashed, path, "cannot be read: the parser has crashed", "undo or simplify the last change")
}

/// The diagnostic for a file that is not read.
pub(super) fn refused(file: &Path, refused: &Refused) -> Diagnostic {
    match refused {
        Refused::Failed(error) => unreadable(file, error),
        Refused::Odd(problem, remedy) => whole_file(Code::FileUnsuitable, file, problem, remedy),
    }
}

/// The diagnostic for a file or folder that cannot be read.
pub(super) fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "give the path of a file or folder of Kubernetes YAML",
        io::ErrorKind::PermissionDenied => "make it readable for the user who runs this program",
        _ => "",
    };
    whole_file(Code::FileUnreadable, path, &format!("cannot be read: {error}"), remedy)
}

/// The diagnostic for a file that has become empty. A writer may have truncated it, but not written the new content yet.
pub(super) fn emptied(file: &Path) -> Diagnostic {
    let remedy = "write it again; to remove its objects, delete it or write a List with items: []";
    whole_file(Code::FileEmptied, file, "is empty, but had objects before", remedy)
}

/// The diagnostic for a folder whose mount has disappeared. What remains is the empty folder on which it was mounted.
pub(super) fn unmounted(folder: &Path) -> Diagnostic {
    let problem = "is now a different, empty file system, but had objects before";
    let remedy = "mount the old one again; to remove all objects, write a file that contains a List with items: []";
    whole_file(Code::FolderUnmounted, folder, problem, remedy)
}

/// The diagnostic for a file that is not text.
pub(super) fn not_text(file: &Path) -> Diagnostic {
    whole_file(Code::FileNotText, file, "is not UTF-8 text", "save it as UTF-8")
}

fn whole_file(code: Code, file: &Path, problem: &str, remedy: &str) -> Diagnostic {
    Diagnostic::new(code, Subject::in_file_of(file.into(), 0, None), problem).remedy(remedy)
}
