//! An open watch: which events it sends, and when it ends.

use std::sync::Arc;

use http_body::Frame;
use localnet_cluster::objects::Kind;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::{self, Instant},
};

use super::{Api, BOOKMARK, End, Line, Record, at, is_selected, status_object};

/// An open watch.
pub(super) struct Watcher {
    pub(super) api: Api,
    pub(super) kind: Kind,
    pub(super) version: u64,
    pub(super) epoch: u64,
    pub(super) watch: u64,
    pub(super) until: Instant,
}

impl Watcher {
    /// Sends what is new, and bookmarks, until the watch ends.
    pub(super) async fn run(mut self, mut changed: watch::Receiver<u64>, lines: mpsc::UnboundedSender<Line>) {
        changed.mark_changed();
        let mut bookmark = Instant::now() + BOOKMARK;
        loop {
            let timed_out = tokio::select! {
                biased;
                () = lines.closed() => return,
                _ = changed.changed() => false,
                () = time::sleep_until(bookmark.min(self.until)) => true,
            };
            let delay = self.api.lock().delay(self.kind);
            time::sleep(delay).await;
            // Nothing is delivered to a client that has gone meanwhile.
            if lines.is_closed() {
                return;
            }
            let (text, end) = self.due(timed_out && Instant::now() >= bookmark);
            if timed_out {
                bookmark = Instant::now() + BOOKMARK;
            }
            let Some(text) = text else {
                lines.closed().await;
                return;
            };
            if !text.is_empty() {
                _ = lines.send(Ok(Frame::data(text.into())));
            }
            match end {
                Some(End::Broken) => _ = lines.send(Err("connection reset".into())),
                None if Instant::now() < self.until => continue,
                _ => {}
            }
            return;
        }
    }

    /// The text to send, or `None` if the watch is silent. Also returns how the watch ends, if it does.
    fn due(&mut self, bookmark: bool) -> (Option<String>, Option<End>) {
        let state = &mut *self.api.lock();
        if state.epoch != self.epoch {
            return (Some(String::new()), Some(End::Closed));
        }
        if state.silent.get(&self.kind).is_some_and(|silent| *silent >= self.watch) {
            state.counts.entry(self.kind).or_default().reasons += 1;
            return (None, None);
        }
        let end = state.ends.get(&self.kind).filter(|(ended, _)| *ended >= self.watch).map(|(_, how)| *how);
        if end == Some(End::Expired) || self.version < state.floor {
            state.counts.entry(self.kind).or_default().reasons += 1;
            let status = json!({ "type": "ERROR", "object": status_object(410, "too old resource version") });
            return (Some(format!("{status}\n")), Some(End::Expired));
        }
        let current = *state.version.borrow();
        if current < self.version {
            return (Some(String::new()), end);
        }
        let new = state.history.iter().filter(|record| record.kind == self.kind && record.version > self.version);
        let new: Vec<_> = new.filter_map(|record| Some((record.version, record.line()?))).collect();
        let mut text: String = new.iter().map(|(_, line)| line.as_str()).collect();
        let known = if bookmark { Some(current) } else { new.last().map(|(version, _)| *version) };
        if bookmark {
            let bookmark =
                json!({ "metadata": { "resourceVersion": current.to_string() }, "kind": "x", "apiVersion": "v1" });
            text += &format!("{}\n", json!({ "type": "BOOKMARK", "object": bookmark }));
        }
        if end == Some(End::Cut) && !text.is_empty() {
            text.truncate(text.len() / 2);
            if let Some(whole) = text.rfind('\n') {
                text.truncate(whole + 7);
                let counts = state.counts.entry(self.kind).or_default();
                counts.known = new.first().map_or(counts.known, |(version, _)| *version);
            }
            return (Some(text), end);
        }
        if !text.is_empty() {
            let lines = text.lines().count();
            state.trace.add(format_args!("watch of {}: {lines} lines up to {current}", self.kind));
        }
        let counts = state.counts.entry(self.kind).or_default();
        counts.delivered = counts.delivered.max(current);
        counts.known = known.unwrap_or(counts.known);
        self.version = current;
        (Some(text), end)
    }
}

impl Record {
    /// The event for watches; `None` if the selectors exclude the object before and after.
    fn line(&self) -> Option<String> {
        let selected = |object: &Option<Arc<Value>>| object.clone().filter(|object| is_selected(self.kind, object));
        let (what, object) = match (selected(&self.before), selected(&self.after)) {
            (None, None) => return None,
            (None, Some(object)) => ("ADDED", object),
            (Some(_), Some(object)) => ("MODIFIED", object),
            (Some(object), None) => ("DELETED", object),
        };
        Some(format!("{}\n", json!({ "type": what, "object": at(&object, self.version) })))
    }
}
