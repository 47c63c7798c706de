//! A history file: keeps the history when the brain ends, even if it is killed.
//!
//! ```text
//! History ──queue──► thread ──frames──► FILE ──FILE is full──► FILE.old
//! ```
//!
//! Nothing waits for the disk: if it is full or too slow, the thread stops recording.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::SystemTime,
};

use bytes::Bytes;
use localnet_proto::{
    Revision,
    history::{FullState, entry::Event},
};
use prost::Message as _;
use tokio::sync::oneshot;

use super::{
    entry,
    frames::{Encoder, Frames, MAGIC},
};
use crate::{feed::State, platform};

/// Maximum number of messages that wait for the thread.
const QUEUE: usize = 4096;
/// The size of the content of a frame at which it is written, in bytes.
const FRAME: usize = 64 << 10;

/// What the thread has to do.
pub(super) enum Message {
    /// Record entries, and then the state, if there is one.
    Begin(Vec<Bytes>, Option<State>),
    /// Record an entry.
    Entry(Bytes),
    /// Record the change that led to this state. If `whole`, the change does not contain what changed.
    Change { entry: Bytes, state: State, whole: bool },
    /// Open the files, with their lengths, oldest first.
    Read(oneshot::Sender<Vec<(File, u64)>>),
}

/// Starts to record in a file. The two files together occupy at most `limit` bytes.
pub(super) fn start(path: PathBuf, limit: u64) -> io::Result<SyncSender<Message>> {
    let (sender, messages) = sync_channel(QUEUE);
    let record = move || {
        if let Err(error) = Log::open(path.clone(), limit).and_then(|mut log| log.record(&messages)) {
            tracing::error!(
                file = %path.display(), %error,
                "cannot record the history in this file; the brain serves on, and keeps the history in memory until it restarts"
            );
        }
    };
    thread::Builder::new().name("history".to_owned()).spawn(record)?;
    Ok(sender)
}

/// The content of the frames of an open file, which has this length.
pub(super) fn contents((file, length): (File, u64)) -> impl Iterator<Item = Bytes> {
    let mut reader = BufReader::new(file.take(length));
    _ = reader.read_exact(&mut [0; MAGIC.len()]);
    Frames::new(reader).contents()
}

struct Log {
    path: PathBuf,
    old: PathBuf,
    /// Maximum size of one file.
    limit: u64,
    file: File,
    length: u64,
    encoder: Encoder,
    /// Entries that are not written yet, each after its length.
    buffer: Vec<u8>,
    /// The newest state.
    latest: Option<State>,
}

impl Log {
    fn open(path: PathBuf, limit: u64) -> io::Result<Self> {
        let mut old = path.clone().into_os_string();
        old.push(".old");
        let (file, length) = opened(&path)?;
        Ok(Self {
            path,
            old: old.into(),
            limit: limit / 2,
            file,
            length,
            encoder: Encoder::default(),
            buffer: Vec::new(),
            latest: None,
        })
    }

    /// Records until the history of the brain ends.
    fn record(&mut self, messages: &Receiver<Message>) -> io::Result<()> {
        while let Ok(message) = messages.recv() {
            self.take(message)?;
            for message in messages.try_iter() {
                self.take(message)?;
            }
            self.flush()?;
        }
        Ok(())
    }

    fn take(&mut self, message: Message) -> io::Result<()> {
        match message {
            Message::Begin(entries, state) => {
                for entry in entries {
                    self.add(&entry)?;
                }
                self.latest = state;
                self.add_state()?;
            }
            Message::Entry(entry) => self.add(&entry)?,
            Message::Change { entry, state, whole } => {
                self.add(&entry)?;
                self.latest = Some(state);
                if whole {
                    self.add_state()?;
                }
            }
            Message::Read(reply) => {
                self.flush()?;
                // Without the file, the reader gets what is in memory.
                if let Ok(file) = File::open(&self.path) {
                    let old = File::open(&self.old).and_then(|old| Ok((old.metadata()?.len(), old)));
                    let old = old.ok().map(|(length, old)| (old, length));
                    // The reader may have gone.
                    _ = reply.send(old.into_iter().chain([(file, self.length)]).collect());
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, entry: &[u8]) -> io::Result<()> {
        prost::encode_length_delimiter(entry.len(), &mut self.buffer)?;
        self.buffer.extend_from_slice(entry);
        if self.buffer.len() >= FRAME { self.flush() } else { Ok(()) }
    }

    fn add_state(&mut self) -> io::Result<()> {
        for entry in self.latest.clone().iter().flat_map(state_entries) {
            self.add(&entry)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let content = std::mem::take(&mut self.buffer);
        if content.is_empty() {
            return Ok(());
        }
        if self.length + content.len() as u64 <= self.limit {
            return self.write(&content);
        }
        fs::rename(&self.path, &self.old)?;
        (self.file, self.length) = opened(&self.path)?;
        self.encoder = Encoder::default();
        self.write(&content)?;
        for entry in self.latest.clone().iter().flat_map(state_entries) {
            let mut content = Vec::new();
            prost::encode_length_delimiter(entry.len(), &mut content)?;
            content.extend_from_slice(&entry);
            self.write(&content)?;
        }
        if self.length > self.limit {
            return Err(io::Error::other("the state occupies more than half of --history-size; raise it"));
        }
        Ok(())
    }

    fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let frame = self.encoder.frame(content);
        self.file.write_all(&frame).inspect_err(|_| {
            // Otherwise, the next brain cuts off the incomplete frame.
            _ = self.file.set_len(self.length);
        })?;
        self.length += frame.len() as u64;
        Ok(())
    }
}

/// Opens a history file, or creates it. Cuts off a damaged end. Returns the file and its length.
fn opened(path: &Path) -> io::Result<(File, u64)> {
    let mut file = platform::open_alone(path)?
        .ok_or_else(|| io::Error::other("another process records its history in this file"))?;
    let size = file.metadata()?.len();
    let mut reader = BufReader::new((&file).take(size));
    let mut head = Vec::new();
    reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut head)?;
    if !MAGIC.starts_with(&head) {
        return Err(io::Error::other("this file is no history of localnet-brain; choose another --history-file"));
    }
    let mut length = 0;
    if head == MAGIC {
        let mut frames = Frames::new(reader);
        frames.skip();
        length = MAGIC.len() as u64 + frames.valid;
    }
    if length < size {
        file.set_len(length)?;
        tracing::warn!(file = %path.display(), bytes = size - length, "the end of the history file is damaged; the brain has cut it off");
    }
    file.seek(SeekFrom::Start(length))?;
    if length == 0 {
        file.write_all(MAGIC)?;
        length = MAGIC.len() as u64;
    }
    Ok((file, length))
}

/// A state as serialized entries, each of about the size of a frame.
fn state_entries(state: &State) -> impl Iterator<Item = Vec<u8>> {
    let digest = state.digest().0;
    let mut items = state.answer(Revision::default(), false).items.peekable();
    std::iter::from_fn(move || {
        let (mut part, mut bytes) = (FullState::default(), 0);
        while bytes < FRAME
            && let Some(item) = items.next()
        {
            bytes += item.len();
            part.items.push(item);
        }
        part.continues = items.peek().is_some();
        part.digest = if part.continues { 0 } else { digest };
        (bytes > 0).then(|| entry(SystemTime::now(), Event::State(part)).encode_to_vec())
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use localnet_cluster::localize::{Localized, ObjectChanges};
    use localnet_proto::{Endpoint, Port, Scopes, Service, ServiceKey, history::Entry};

    use super::*;
    use crate::feed::Feed;

    /// Publishes Service `web` with this endpoint.
    fn publish(feed: &Feed, number: u16) {
        let key = ServiceKey::new("shop", "web");
        let [high, low] = number.to_be_bytes();
        let endpoint = Endpoint {
            address: [10, 244, high, low].into(),
            ports: Vec::new(),
            local: false,
            hostname: None,
            scopes: Scopes { internal: true, ..Scopes::default() },
            weight: None,
        };
        let mut service = Service::new(key.clone(), vec!["10.96.0.1".parse().unwrap()]);
        service.ports.push(Port { name: "http".into(), port: 80, ..Port::default() });
        service.endpoints.push(endpoint);
        let services = BTreeMap::from([(key, Some(Arc::new(service)))]).into_iter().collect();
        feed.publish(Localized { services, changes: ObjectChanges::default(), ..Localized::default() });
    }

    async fn recorded(feed: &Feed) -> Vec<Event> {
        feed.history().recorded().await.map(|entry| Entry::decode(entry).unwrap().event.unwrap()).collect()
    }

    fn in_words(event: &Event) -> String {
        match event {
            Event::Start(start) => format!("start {}", start.instance_id),
            Event::Change(change) => format!("revision {}", change.rev),
            Event::State(state) => format!("state in {} items", state.items.len()),
            _ => "other".to_owned(),
        }
    }

    async fn words(feed: &Feed) -> Vec<String> {
        recorded(feed).await.iter().map(in_words).collect()
    }

    /// Runs a brain that publishes this number of revisions.
    async fn run(path: &Path, instance: u64, revisions: u16) -> Vec<String> {
        let feed = Feed::new(instance);
        publish(&feed, 0);
        feed.record_into(path.to_owned(), 1 << 20);
        (1..revisions).for_each(|number| publish(&feed, number));
        let words = words(&feed).await;
        drop(feed);
        // The thread releases the file when it has noticed that the history ended.
        let file = File::open(path).unwrap();
        file.lock().unwrap();
        words
    }

    #[tokio::test]
    async fn the_history_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let first = ["start 1", "revision 1", "state in 3 items", "revision 2", "revision 3"];
        assert_eq!(run(&path, 1, 3).await, first);
        let second = ["start 2", "revision 1", "state in 3 items", "revision 2"];
        assert_eq!(run(&path, 2, 2).await, [&first[..], &second[..]].concat());
    }

    /// However much of the end is missing or damaged, the brain starts, keeps everything before it, and records on.
    #[tokio::test]
    async fn a_torn_end_is_cut_off_at_every_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        // Each of them writes at least one frame.
        run(&path, 1, 4).await;
        let all = run(&path, 2, 4).await;
        let whole = fs::read(&path).unwrap();
        let next = ["start 3", "revision 1", "state in 3 items"];
        let mut kept = 0;
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let words = run(&path, 3, 1).await;
            let (before, after) = words.split_at(words.len() - next.len());
            assert_eq!((before, after), (&all[..before.len()], &next.map(str::to_owned)[..]), "{length} bytes");
            assert!(before.len() >= kept, "{length} bytes keep less than fewer bytes");
            kept = before.len();
        }
        assert!(kept > 0);
    }

    #[tokio::test]
    async fn both_files_are_bounded_and_the_newer_one_begins_with_a_state() {
        const LIMIT: u64 = 256 << 10;
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("history"), folder.path().join("history.old"));
        let feed = Feed::new(1);
        feed.record_into(path.clone(), LIMIT);
        let mut number = 0;
        let found = loop {
            (0..1000).for_each(|more| publish(&feed, number + more));
            number += 1000;
            let found = recorded(&feed).await;
            let sizes = [&path, &old].map(|path| path.metadata().map_or(0, |file| file.len()));
            assert!(sizes.iter().sum::<u64>() <= LIMIT, "{sizes:?}");
            if !matches!(found[0], Event::Start(_)) {
                break found;
            }
        };
        let changes: Vec<_> = found.iter().filter(|event| matches!(event, Event::Change(_))).collect();
        // One of the two files has just begun.
        assert!(changes.len() as u64 * 100 > LIMIT / 2, "{} changes in {LIMIT} bytes", changes.len());
        assert_eq!(in_words(changes[changes.len() - 1]), format!("revision {number}"));
        assert_eq!(found.iter().filter(|event| matches!(event, Event::State(_))).count(), 2);
    }

    /// A full disk, a file of another program and a file of another brain: the history stays in memory.
    #[tokio::test]
    async fn without_a_usable_file_the_history_stays_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let (other, used) = (folder.path().join("other"), folder.path().join("used"));
        fs::write(&other, "precious").unwrap();
        let owner = Feed::new(1);
        owner.record_into(used.clone(), 1 << 20);
        assert_eq!(words(&owner).await, ["start 1"]);
        for path in [Path::new("/dev/full"), &other, &used, Path::new("/nowhere/history")] {
            let feed = Feed::new(2);
            feed.record_into(path.to_owned(), 1 << 20);
            publish(&feed, 1);
            assert_eq!(words(&feed).await, ["start 2", "revision 1"], "{}", path.display());
            publish(&feed, 2);
            assert_eq!(words(&feed).await, ["start 2", "revision 1", "revision 2"], "{}", path.display());
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
        assert_eq!(words(&owner).await, ["start 1"]);
    }

    #[test]
    fn a_large_state_is_split() {
        let feed = Feed::new(1);
        let services = (0..3000_u16).map(|number| {
            let key = ServiceKey::new("shop", format!("service-{number}").as_str());
            (key.clone(), Some(Arc::new(Service::new(key, vec!["10.96.0.1".parse().unwrap()]))))
        });
        feed.publish(Localized { services: services.collect(), ..Localized::default() });
        let parts: Vec<_> = state_entries(&feed.state())
            .map(|entry| match Entry::decode(&*entry).unwrap().event {
                Some(Event::State(part)) => part,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(parts.len() > 1);
        assert!(parts.iter().enumerate().all(|(number, part)| part.continues == (number + 1 < parts.len())));
        let items: Vec<_> = parts.into_iter().flat_map(|part| part.items).collect();
        assert_eq!(items, feed.state().answer(Revision::default(), false).items.collect::<Vec<_>>());
    }
}
