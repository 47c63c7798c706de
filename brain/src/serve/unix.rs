//! The file of a unix socket: made with the right owner and mode, replaced only when stale, removed at the end.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown},
            net::UnixListener as StdListener,
        },
    },
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use rustix::{
    fs::{FlockOperation, Mode, fchmod, flock},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind as bind_socket, connect, listen, socket_with},
};
use tokio::net::UnixListener;

/// Peers that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Listens on `path`; the file belongs to group `gid` if given.
pub(super) fn bind(path: &Path, gid: Option<u32>) -> anyhow::Result<(UnixListener, SocketFile)> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    make_folder(folder, gid)?;
    let socket = SocketAddrUnix::new(path)
        .with_context(|| format!("{} is no path for a socket; a path of at most 107 bytes is", path.display()))?;

    // Two that start at once must not both find the file stale. The lock ends with the handle.
    let lock = File::open(folder).with_context(|| format!("failed to open folder {}", folder.display()))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => bail!("another process is about to listen in folder {}; try again", folder.display()),
        locked => locked.with_context(|| format!("failed to lock folder {}", folder.display()))?,
    }
    remove_stale(path, &socket)?;

    let listener = new_socket()?;
    // Linux gives the file the mode of the socket, so it is never open wider than it ends up.
    fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
    bind_socket(&listener, &socket).with_context(|| unwritable(folder))?;
    let file = SocketFile::of(path)?;
    chown(path, None, gid)
        .with_context(|| format!("failed to give {} to group {}", path.display(), gid.unwrap_or_default()))?;
    fs::set_permissions(path, Permissions::from_mode(0o660))?;
    listen(&listener, BACKLOG)?;
    Ok((UnixListener::from_std(StdListener::from(listener))?, file))
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

fn make_folder(folder: &Path, gid: Option<u32>) -> anyhow::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o750).create(folder).with_context(|| {
        format!("failed to make folder {}; make it, or choose another with --listen", folder.display())
    })?;
    chown(folder, None, gid)
        .with_context(|| format!("failed to give folder {} to the socket's group", folder.display()))
}

fn unwritable(folder: &Path) -> String {
    let user = rustix::process::geteuid().as_raw();
    format!(
        "user {user} cannot make a socket in folder {}; make it writable, or choose another with --listen",
        folder.display()
    )
}

/// Removes the file that a process which ended in haste has left behind.
fn remove_stale(path: &Path, socket: &SocketAddrUnix) -> anyhow::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| format!("failed to look at {}", path.display()))?,
    };
    if !found.file_type().is_socket() {
        bail!("{} exists and is no socket; remove it or choose another path", path.display());
    }
    match connect(&new_socket()?, socket) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // It listens, and too many wait to be accepted.
        Ok(()) | Err(Errno::AGAIN) => bail!("another process serves there; stop it or choose another path"),
        Err(error) => bail!(
            "failed to find out whether another process serves there: {error}; remove {} if none does",
            path.display()
        ),
    }
    fs::remove_file(path).with_context(|| format!("failed to remove the stale socket {}", path.display()))
}

/// The file of a socket of ours; removed when dropped, unless somebody has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| found.dev() == self.device && found.ino() == self.inode);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove the socket");
        }
    }
}
