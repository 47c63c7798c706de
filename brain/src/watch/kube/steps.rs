//! A stream of steps that lists the objects of a kind and follows their changes.
//!
//! ```text
//! list ─► watch ─► end ─► check ─► watch      the server is at least at the listed version
//!   ▲                       └────► list       the server has gone back: it was restored from a backup
//!   └── 410, two silent watches in a row, or `relist` ◄── watch
//! ```
//!
//! `kube::runtime::watcher` is similar, but it does not report bookmarks or the start and end of a watch, and it fails at
//! the first object that cannot be decoded.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::{AsyncBufRead, AsyncBufReadExt as _, Stream, StreamExt as _, io::Lines, stream};
use http::{HeaderValue, header::ACCEPT_ENCODING};
use kube::{
    Client, Resource,
    api::{ListParams, WatchParams},
    core::Request,
};
use localnet_cluster::objects::Kind;
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, time};
use tracing::warn;

use super::{
    decode::{self, Change, Item, Page, Unreadable},
    trouble::{Trouble, cause, resource},
};

/// Number of objects in a page, as in client-go.
const PAGE: u32 = 500;
/// How long the API server may take to send a page.
const PATIENCE: Duration = Duration::from_secs(60);
/// If a watch has been silent for this time, it is opened again. An API server sends a bookmark about once a minute.
pub(super) const SILENCE: Duration = Duration::from_secs(150);

/// The label and field selectors of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Selectors {
    pub(super) labels: Option<String>,
    pub(super) fields: Option<String>,
}

/// One step.
#[derive(Debug)]
pub(super) enum Step<K> {
    /// The API server has sent a page of a list.
    Page { items: Vec<Item<K>>, first: bool, last: bool },
    /// A watch was opened.
    Opened,
    /// An object was added or modified.
    Applied(K),
    /// An object was added or modified, and cannot be decoded.
    Unreadable(Unreadable),
    /// An object was deleted.
    Deleted { namespace: String, name: String },
    /// The watch has delivered all changes up to now.
    Bookmark,
    /// The watch has ended without an error. This is normal after some minutes.
    Closed,
    /// The watch has been silent for [`SILENCE`].
    Silent,
    /// The watch was silent although the object of this name changed: the list contains a change that the watch did not
    /// deliver.
    Missed(String),
    /// The version of the list is older than the last known one.
    Restored { was: u64, is: u64 },
}

/// The requests for the objects of a kind.
pub(super) struct Query {
    client: Client,
    kind: Kind,
    request: Request,
    selectors: Selectors,
    relist: Arc<Notify>,
}

impl Query {
    /// Requests the objects of kind `K` that match `selectors`. A notification of `relist` makes the stream list them again.
    pub(super) fn new<K: Resource<DynamicType = ()>>(
        client: Client,
        kind: Kind,
        selectors: Selectors,
        relist: Arc<Notify>,
    ) -> Self {
        Self { client, kind, request: Request::new(K::url_path(&(), None)), selectors, relist }
    }

    fn list(&self, limit: u32, more: Option<String>) -> ListParams {
        let Selectors { labels, fields } = self.selectors.clone();
        ListParams {
            label_selector: labels,
            field_selector: fields,
            limit: Some(limit),
            continue_token: more,
            ..ListParams::default()
        }
    }

    /// Requests a page. If the API server does not know the field of the field selector, this and all further requests omit
    /// the selector, and the cluster ignores the additional objects. Kubernetes 1.29 does not know `spec.clusterIP`.
    async fn page<K: DeserializeOwned>(&mut self, limit: u32, more: Option<String>) -> Result<Page<K>, Trouble> {
        let page = self.request_page(limit, more.clone()).await;
        if page.as_ref().is_err_and(Trouble::is_unknown_field)
            && let Some(fields) = self.selectors.fields.take()
        {
            warn!(
                "the API server does not know the field selector {fields} for {}, so the brain also receives the objects that the selector excludes, and ignores them",
                resource(self.kind)
            );
            return self.request_page(limit, more).await;
        }
        page
    }

    async fn request_page<K: DeserializeOwned>(&self, limit: u32, more: Option<String>) -> Result<Page<K>, Trouble> {
        let request = self.request.list(&self.list(limit, more)).map_err(|error| Trouble::Failing(cause(&error)))?;
        let text = time::timeout(PATIENCE, self.client.request_text(request)).await;
        let text =
            text.map_err(|_| Trouble::Unreachable(format!("a list is not complete after {} s", PATIENCE.as_secs())))?;
        let text = text.map_err(|error| Trouble::of_request("list", &error))?;
        decode::page(&text).map_err(|error| Trouble::Failing(format!("its answer is not a list: {}", cause(&error))))
    }

    async fn watch(&self, version: &str) -> Result<TextLines, Trouble> {
        let Selectors { labels, fields } = self.selectors.clone();
        let parameters = WatchParams { label_selector: labels, field_selector: fields, ..WatchParams::default() };
        let request = self.request.watch(&parameters, version);
        let mut request = request.map_err(|error| Trouble::Failing(cause(&error)))?;
        // Some API servers compress each event separately. The crate `kube` does not decompress such events.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let body = self.client.request_stream(request).await.map_err(|error| Trouble::of_request("watch", &error))?;
        let body: Body = Box::pin(body);
        Ok(body.lines())
    }
}

type Body = Pin<Box<dyn AsyncBufRead + Send>>;
type TextLines = Lines<Body>;

/// The next request, or the open watch.
enum State {
    /// Request a page. If it is not the first page, the value is its `continue` token.
    List(Option<String>),
    /// Check that the API server has not gone back to an older version.
    Check,
    /// Open a watch.
    Open,
    Watch(TextLines),
}

/// The state of the stream.
struct ListWatch {
    query: Query,
    state: State,
    /// The last known `resourceVersion`.
    version: String,
    /// The number of consecutive silent watches.
    silences: u32,
    /// If the current list follows a silent watch: the last known version before the list.
    silent_at: Option<u64>,
    /// The name of an object whose change the silent watch did not deliver.
    missed: Option<String>,
    /// If the API server has gone back: the last known version, and the older version of the last list.
    restored: Option<(u64, u64)>,
}

/// The endless stream of steps. After an error, polling for the next step makes another attempt, so the caller decides on
/// the delay.
pub(super) fn steps<K>(query: Query) -> impl Stream<Item = Result<Step<K>, Trouble>> + Send
where
    K: Resource + DeserializeOwned + Send + 'static,
{
    let state = State::List(None);
    let list_watch =
        ListWatch { query, state, version: String::new(), silences: 0, silent_at: None, missed: None, restored: None };
    stream::unfold(list_watch, |mut list_watch| async {
        loop {
            if let Some(step) = list_watch.step().await.transpose() {
                return Some((step, list_watch));
            }
        }
    })
}

/// Parses a `resourceVersion`, which is an increasing revision of etcd. Returns `None` for a version that is not a
/// number; such versions are never compared.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

impl ListWatch {
    async fn step<K>(&mut self) -> Result<Option<Step<K>>, Trouble>
    where
        K: Resource + DeserializeOwned + Send + 'static,
    {
        if matches!(self.state, State::Open) {
            if let Some((was, is)) = self.restored.take() {
                return Ok(Some(Step::Restored { was, is }));
            }
            if let Some(name) = self.missed.take() {
                return Ok(Some(Step::Missed(name)));
            }
        }
        match &mut self.state {
            State::List(more) => {
                let more = more.take();
                self.list(more).await
            }
            State::Check => {
                let page: Page<serde_json::Value> = self.query.page(1, None).await?;
                let older = self.older(&page.version).is_some();
                self.state = if older { State::List(None) } else { State::Open };
                Ok(None)
            }
            State::Open => {
                self.state = match self.query.watch(&self.version).await {
                    Ok(lines) => State::Watch(lines),
                    Err(trouble) => {
                        self.state = if trouble == Trouble::Outdated { State::List(None) } else { State::Check };
                        return Err(trouble);
                    }
                };
                Ok(Some(Step::Opened))
            }
            State::Watch(lines) => {
                let next = tokio::select! {
                    next = time::timeout(SILENCE, lines.next()) => next,
                    () = self.query.relist.notified() => {
                        self.state = State::List(None);
                        return Ok(None);
                    }
                };
                match next {
                    Ok(Some(Ok(text))) => self.line(&text),
                    Ok(Some(Err(error))) => {
                        self.state = State::Check;
                        Err(Trouble::Interrupted(cause(&error)))
                    }
                    Ok(None) => {
                        self.state = State::Check;
                        Ok(Some(Step::Closed))
                    }
                    Err(_) => {
                        self.silences += 1;
                        self.state = State::Check;
                        if self.silences > 1 {
                            // A list contains the changes that the watches did not deliver.
                            (self.silences, self.silent_at) = (0, number(&self.version));
                            self.state = State::List(None);
                        }
                        Ok(Some(Step::Silent))
                    }
                }
            }
        }
    }

    async fn list<K>(&mut self, more: Option<String>) -> Result<Option<Step<K>>, Trouble>
    where
        K: Resource + DeserializeOwned + Send + 'static,
    {
        let first = more.is_none();
        // If this fails, the next step starts a new list.
        let page: Page<K> = self.query.page(PAGE, more).await?;
        let last = page.more.is_none();
        if last && page.version.is_empty() {
            return Err(Trouble::Failing("its list has no resourceVersion".to_owned()));
        }
        if let Some(silent_at) = self.silent_at {
            let late = page.items.iter().filter_map(|item| match item {
                Item::Read(object) => Some(object.meta()),
                Item::Unreadable(_) => None,
            });
            let late = late.filter(|meta| meta.resource_version.as_deref().and_then(number) > Some(silent_at));
            self.missed = self.missed.take().or(late.filter_map(|meta| meta.name.clone()).next());
        }
        let step = Step::Page { items: page.items, first, last };
        if !last {
            self.state = State::List(page.more);
            return Ok(Some(step));
        }
        self.silent_at = None;
        self.state = State::Open;
        self.restored = self.older(&page.version);
        self.version = page.version;
        Ok(Some(step))
    }

    /// If `version` is older than the last known version, returns the last known version and `version`.
    fn older(&self, version: &str) -> Option<(u64, u64)> {
        let (was, is) = (number(&self.version)?, number(version)?);
        (is < was).then_some((was, is))
    }

    fn line<K>(&mut self, text: &str) -> Result<Option<Step<K>>, Trouble>
    where
        K: Resource + DeserializeOwned,
    {
        if text.is_empty() {
            return Ok(None);
        }
        let (step, version) = match decode::change(text) {
            Ok(Change::Applied(Item::Read(object), version)) => (Step::Applied(object), version),
            Ok(Change::Applied(Item::Unreadable(unreadable), version)) => (Step::Unreadable(unreadable), version),
            Ok(Change::Deleted { namespace, name, version }) => (Step::Deleted { namespace, name }, version),
            Ok(Change::Bookmark(version)) => (Step::Bookmark, version),
            Ok(Change::Refused(status)) => {
                let trouble = Trouble::of_status("watch", &status);
                self.state = if trouble == Trouble::Outdated { State::List(None) } else { State::Check };
                return Err(trouble);
            }
            Err(error) => {
                self.state = State::Check;
                // The connection broke off in the middle of the last line.
                let cut = error.is_eof();
                return if cut { Ok(Some(Step::Closed)) } else { Err(Trouble::Interrupted(no_change(&error))) };
            }
        };
        self.silences = 0;
        if version.is_empty() {
            self.state = State::List(None);
            return Err(Trouble::Failing("a change has no resourceVersion".to_owned()));
        }
        self.version = version;
        Ok(Some(step))
    }
}

fn no_change(error: &serde_json::Error) -> String {
    format!("the stream contains a line that is not a change: {}", cause(error))
}
