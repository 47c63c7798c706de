//! The file of a unix socket: made with the right owner and mode, replaced only when stale, made again when it is gone,
//! removed at the end.

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

/// Peers that may wait to be accepted: as many as may connect at all. The next one gets `EAGAIN` at once, unlike with TCP.
const BACKLOG: i32 = super::peers::MAX_CONNECTIONS as i32;
/// Whoever removes the file may be about to remove its folder too, or to put something else there.
const SETTLE: Duration = Duration::from_millis(100);
/// A watch sees nothing that happens above the folder; there is time for that.
const LOOK: Duration = Duration::from_secs(10);

/// Listens on a path for as long as it lives, also when somebody removes the file: nobody could find the brain any more.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    gid: Option<u32>,
    listener: UnixListener,
    /// `None` while there is none of ours.
    file: Option<SocketFile>,
    /// Whose file is gone; peers that have found it may still wait.
    former: Option<StdListener>,
    watch: Watch,
    next_look: Instant,
    /// Why the file could not be made again, as it was said.
    trouble: Option<String>,
}

impl Socket {
    /// Listens on `path`; the file belongs to group `gid` if given.
    pub(super) fn bind(path: &Path, gid: Option<u32>) -> anyhow::Result<Self> {
        let (listener, file) = bind(path, gid)?;
        let (path, next_look) = (path.to_owned(), Instant::now() + LOOK);
        let watch = Watch::new(&path);
        Ok(Self { path, gid, listener, file: Some(file), former: None, watch, next_look, trouble: None })
    }

    /// Waits for the next peer, and looks after the file meanwhile. Nothing is lost when it is not waited for any longer.
    pub(super) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            if let Some(stream) = self.waiting() {
                return stream;
            }
            tokio::select! {
                accepted = self.listener.accept() => return accepted.map(|(stream, _)| stream),
                () = self.watch.changed.notified() => self.next_look = self.next_look.min(Instant::now() + SETTLE),
                () = time::sleep_until(self.next_look) => {
                    self.next_look = Instant::now() + LOOK;
                    self.look();
                }
            }
        }
    }

    /// A peer that connected before the file was removed.
    fn waiting(&mut self) -> Option<io::Result<UnixStream>> {
        match self.former.as_ref()?.accept() {
            Ok((stream, _)) => Some(stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream))),
            Err(_) => {
                self.former = None;
                None
            }
        }
    }

    /// Makes the file again if it is gone.
    fn look(&mut self) {
        if self.file.as_ref().is_some_and(SocketFile::is_there) {
            return;
        }
        // Now and not later: the next file may get the number of this one.
        self.file = None;
        match bind(&self.path, self.gid) {
            Ok((listener, file)) => {
                self.file = Some(file);
                self.former = std::mem::replace(&mut self.listener, listener).into_std().ok();
                self.trouble = None;
                warn!(path = %self.path.display(), "the file of the socket was gone; it was made again");
            }
            Err(error) => {
                let error = format!("{error:#}");
                if self.trouble.as_ref() != Some(&error) {
                    warn!(path = %self.path.display(), error, "the file of the socket is gone, and cannot be made again; only readers that are connected are served");
                }
                self.trouble = Some(error);
            }
        }
        self.watch.arm(&self.path);
    }
}

/// Tells of changes in the folder of a socket.
#[derive(Debug)]
struct Watch {
    changed: Arc<Notify>,
    /// `None` where there cannot be one.
    watcher: Option<notify::RecommendedWatcher>,
}

impl Watch {
    fn new(path: &Path) -> Self {
        let changed = Arc::new(Notify::new());
        let (told, of) = (Arc::clone(&changed), path.to_owned());
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let ours = |file: &PathBuf| *file == of || Some(file.as_path()) == of.parent();
            // A watch that fails may have missed something.
            if event
                .map_or(true, |event| !event.kind.is_access() && (event.need_rescan() || event.paths.iter().any(ours)))
            {
                told.notify_one();
            }
        });
        let watcher = watcher.inspect_err(|error| cannot_be_watched(path, error)).ok();
        let mut watch = Self { changed, watcher };
        watch.arm(path);
        watch
    }

    /// Watches what the folder is now.
    fn arm(&mut self, path: &Path) {
        let (Some(watcher), Some(folder)) = (&mut self.watcher, path.parent()) else { return };
        // The watch of a folder that is gone is gone too.
        let _ = watcher.unwatch(folder);
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            cannot_be_watched(path, &error);
        }
    }
}

fn cannot_be_watched(path: &Path, error: &notify::Error) {
    warn!(path = %path.display(), %error, "the file of the socket cannot be watched: it is looked at every 10 s");
}

fn bind(path: &Path, gid: Option<u32>) -> anyhow::Result<(UnixListener, SocketFile)> {
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

    fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| found.dev() == self.device && found.ino() == self.inode)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there()
            && let Err(error) = fs::remove_file(&self.path)
        {
            warn!(path = %self.path.display(), %error, "failed to remove the socket");
        }
    }
}
