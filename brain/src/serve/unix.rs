//! A unix socket and its file. The file has its final owner and mode from the start. An existing file is replaced only if
//! it is stale. If somebody deletes the file, it is created again. The file is removed when the socket is dropped.

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
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use localnet_proto::Address;
use notify::{RecursiveMode, Watcher as _};
use rustix::{
    fs::{FlockOperation, Mode, fchmod, flock},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind as bind_socket, connect, listen, socket_with},
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Notify,
    time::{self, Instant},
};
use tracing::warn;

use super::{credentials, quota::PeerId};
use crate::peer::Peer;

/// Length of the accept queue. It equals the maximum number of connections, because a peer immediately gets `EAGAIN` if the
/// queue is full, unlike with TCP.
const BACKLOG: i32 = super::quota::MAX_CONNECTIONS as i32;
/// Pause after a change of the folder. A process that deletes the file may then also delete the folder or create another
/// file.
const SETTLE: Duration = Duration::from_millis(100);
/// How often the file is checked if there is no event. inotify reports no changes above the folder.
const POLL: Duration = Duration::from_secs(10);

/// A connection.
pub(super) type Stream = UnixStream;

/// The quota of a peer. Linux always has the credentials of the peer. All peers without credentials would share one quota.
pub(super) fn peer_id(stream: &Stream) -> PeerId {
    PeerId::User(stream.peer_cred().map_or(u32::MAX, |credentials| credentials.uid()))
}

/// Authenticates a peer by its credentials: it must be one of these users, or a member of one of these groups. If there are
/// none, every peer may connect.
///
/// # Errors
/// Returns an error if the peer may not connect.
pub(super) fn peer(stream: &Stream, uids: &[u32], gids: &[u32]) -> io::Result<Peer> {
    let credentials = credentials::Peer::of(stream)?;
    if !(uids.is_empty() && gids.is_empty()) {
        let refused = |why| io::Error::new(io::ErrorKind::PermissionDenied, why);
        credentials.check(uids, gids).map_err(refused)?;
    }
    Ok(Peer::User(credentials.uid()))
}

/// A listener that recreates its file if somebody deletes it. Without the file, no backend could connect.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    gid: Option<u32>,
    listener: UnixListener,
    /// The file of the socket. `None` while the file does not exist or belongs to another socket.
    file: Option<SocketFile>,
    /// The listener of the deleted file. Its queue may still contain peers that have connected.
    former: Option<StdListener>,
    watch: Watch,
    next_check: Instant,
    /// The logged reason why the file cannot be recreated. An equal error is not logged again.
    logged: Option<String>,
}

impl Socket {
    /// Listens on the path of a unix socket. The file belongs to group `gid`, if one is given.
    ///
    /// # Errors
    /// Returns an error if the address is a named pipe, if another process listens on the path, or if the file or its folder
    /// cannot be created.
    pub(super) fn bind(address: &Address, gid: Option<u32>) -> anyhow::Result<Self> {
        let Address::Unix(path) = address else {
            bail!("only Windows has named pipes; use unix:///absolute/path or tcp://host:port")
        };
        let (listener, file) = bind(path, gid)?;
        let (path, next_check) = (path.to_owned(), Instant::now() + POLL);
        let watch = Watch::new(&path);
        Ok(Self { path, gid, listener, file: Some(file), former: None, watch, next_check, logged: None })
    }

    /// Waits for the next peer. If the file disappears in the meantime, recreates it. Cancel safe.
    pub(super) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            if let Some(stream) = self.waiting() {
                return stream;
            }
            tokio::select! {
                accepted = self.listener.accept() => return accepted.map(|(stream, _)| stream),
                () = self.watch.changed.notified() => self.next_check = self.next_check.min(Instant::now() + SETTLE),
                () = time::sleep_until(self.next_check) => {
                self.next_check = Instant::now() + POLL;
                self.ensure_file();
                }
            }
        }
    }

    /// A peer that connected before the file was deleted.
    fn waiting(&mut self) -> Option<io::Result<UnixStream>> {
        match self.former.as_ref()?.accept() {
            Ok((stream, _)) => Some(stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream))),
            Err(_) => {
                self.former = None;
                None
            }
        }
    }

    /// Recreates the file if it no longer belongs to this socket.
    fn ensure_file(&mut self) {
        if self.file.as_ref().is_some_and(SocketFile::is_ours) {
            return;
        }
        // Drop the old file before the bind. Otherwise the new file may get the inode number of the old one, and a later
        // drop of the old one would remove the new file.
        self.file = None;
        match bind(&self.path, self.gid) {
            Ok((listener, file)) => {
                self.file = Some(file);
                self.former = std::mem::replace(&mut self.listener, listener).into_std().ok();
                self.logged = None;
                warn!(path = %self.path.display(), "the socket was recreated, because its file had been deleted");
            }
            Err(error) => {
                let error = format!("{error:#}");
                if self.logged.as_ref() != Some(&error) {
                    warn!(path = %self.path.display(), error, "cannot recreate the socket, whose file was deleted; only connected readers are served");
                }
                self.logged = Some(error);
            }
        }
        self.watch.arm(&self.path);
    }
}

/// Watches the folder of a socket.
#[derive(Debug)]
struct Watch {
    changed: Arc<Notify>,
    /// The watcher. `None` if the kernel refuses to create one.
    watcher: Option<notify::RecommendedWatcher>,
}

impl Watch {
    fn new(path: &Path) -> Self {
        let changed = Arc::new(Notify::new());
        let (notify, socket) = (Arc::clone(&changed), path.to_owned());
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let ours = |file: &PathBuf| *file == socket || Some(file.as_path()) == socket.parent();
            // A watch that reports an error may have missed an event.
            if event
                .map_or(true, |event| !event.kind.is_access() && (event.need_rescan() || event.paths.iter().any(ours)))
            {
                notify.notify_one();
            }
        });
        let watcher = watcher.inspect_err(|error| warn_unwatched(path, error)).ok();
        let mut watch = Self { changed, watcher };
        watch.arm(path);
        watch
    }

    /// Watches the folder that the path currently leads to.
    fn arm(&mut self, path: &Path) {
        let (Some(watcher), Some(folder)) = (&mut self.watcher, path.parent()) else { return };
        // This fails if the folder was deleted, because its watch was then deleted with it.
        let _ = watcher.unwatch(folder);
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            warn_unwatched(path, &error);
        }
    }
}

fn warn_unwatched(path: &Path, error: &notify::Error) {
    warn!(path = %path.display(), %error, "cannot watch the folder of the socket; checking the file every 10 s");
}

fn bind(path: &Path, gid: Option<u32>) -> anyhow::Result<(UnixListener, SocketFile)> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    make_folder(folder, gid)?;
    let socket = SocketAddrUnix::new(path)
        .with_context(|| format!("{} is not a valid path of a socket; use at most 107 bytes", path.display()))?;

    // If two processes start simultaneously, only one of them may replace a stale file. Closing the handle releases the
    // lock.
    let lock = File::open(folder).with_context(|| format!("failed to open folder {}", folder.display()))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            bail!("another process is creating a socket in folder {}; try again", folder.display())
        }
        locked => locked.with_context(|| format!("failed to lock folder {}", folder.display()))?,
    }
    remove_stale(path, &socket)?;

    let listener = new_socket()?;
    // Linux gives the file the mode of the socket. Without this call, everybody could open the file until the chmod
    // below.
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
        format!("failed to create folder {}; create it, or choose another one with --listen", folder.display())
    })?;
    chown(folder, None, gid)
        .with_context(|| format!("failed to give folder {} to the socket's group", folder.display()))
}

fn unwritable(folder: &Path) -> String {
    let user = rustix::process::geteuid().as_raw();
    format!(
        "user {user} cannot create a socket in folder {}; make it writable, or choose another one with --listen",
        folder.display()
    )
}

/// Removes the file of a process that has crashed.
///
/// # Errors
/// Returns an error if the file is not a socket, or if a process listens on it.
fn remove_stale(path: &Path, socket: &SocketAddrUnix) -> anyhow::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.with_context(|| format!("failed to read the metadata of {}", path.display()))?,
    };
    if !metadata.file_type().is_socket() {
        bail!("{} exists and is not a socket; remove it or choose another path", path.display());
    }
    match connect(&new_socket()?, socket) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // EAGAIN means that a process listens, and that its accept queue is full.
        Ok(()) | Err(Errno::AGAIN) => bail!("another process listens on this path; stop it or choose another path"),
        Err(error) => bail!(
            "failed to check whether another process listens on this path: {error}; remove {} if none does",
            path.display()
        ),
    }
    fs::remove_file(path).with_context(|| format!("failed to remove the stale socket {}", path.display()))
}

/// The file of this socket. Dropping this value removes the file, unless another process has replaced the file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() })
    }

    /// Whether the path still leads to this file.
    fn is_ours(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|file| file.dev() == self.device && file.ino() == self.inode)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_ours()
            && let Err(error) = fs::remove_file(&self.path)
        {
            warn!(path = %self.path.display(), %error, "failed to remove the socket");
        }
    }
}
