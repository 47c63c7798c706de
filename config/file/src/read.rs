//! Reads the configuration from the flags and the file, and adds the path of the file to each problem of the file.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use anyhow::bail;
use localnet_config::{Invalid, KubeProxyFlags, Reader, Reading};
use localnet_core::Diagnostic;

/// Reads the configuration from the flags and the file's text. Each problem of the file contains its path.
pub(crate) fn read(
    flags: &KubeProxyFlags,
    reader: Reader,
    file: Option<&Path>,
    text: Option<&str>,
) -> anyhow::Result<Reading> {
    let invalid = |Invalid(all)| Invalid(all.iter().map(|found| placed(found, file)).collect()).into();
    flags.read(reader, text).map_err(invalid)
}

/// The lines that a program prints to standard error before it exits. An invalid configuration has one line for each
/// problem; any other error has one line.
pub fn last_words(error: &anyhow::Error) -> String {
    let text = match error.downcast_ref::<Invalid>() {
        Some(invalid) => invalid.to_string(),
        None => format!("{error:#}").replace('\n', " "),
    };
    text.lines().map(|line| format!("error: {line}\n")).collect()
}

/// Adds the file to a diagnostic, unless the diagnostic is about a flag.
pub(crate) fn placed(diagnostic: &Diagnostic, file: Option<&Path>) -> Diagnostic {
    let diagnostic = diagnostic.clone();
    match file {
        Some(file) => diagnostic.in_file(file),
        None => diagnostic,
    }
}

/// The maximum size of the file in bytes. Typical files have a few thousand.
const LARGEST: u64 = 1 << 20;

/// Returns the text of a file. Refuses everything except a regular file, because reading anything else could block.
pub(crate) fn text(path: &Path) -> anyhow::Result<String> {
    let unreadable = |error: io::Error| {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => "; give the path of a KubeProxyConfiguration",
            io::ErrorKind::PermissionDenied => "; make it readable for the user who runs this program",
            _ => "",
        };
        anyhow::anyhow!("{}: cannot be read: {error}{remedy}", path.display())
    };
    // Opening a FIFO blocks until another process opens its other end.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        bail!("{}: is not a regular file; give the path of a KubeProxyConfiguration", path.display());
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{}: is not UTF-8 text; save it as UTF-8", path.display()))
}
