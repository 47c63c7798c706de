//! Lists the objects of a kind and follows their changes, one step after the other.
//!
//! ```text
//! list ─► watch ─► it ends ─► check ─► watch      the server is still the one that was listed
//!   ▲                           └────► list       it has gone back: it was restored from a backup
//!   └── 410, a second silence, somebody asks ◄── watch
//! ```
//!
//! kube's watcher does this too, but it tells neither of bookmarks nor that a watch has begun or ended, and one object that
//! cannot be read ends all of it.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::{AsyncBufRead, AsyncBufReadExt as _, Stream, StreamExt as _, io::Lines, stream};
use http::{HeaderValue, header::ACCEPT_ENCODING};
use kube::{
    Client, Resource,
    api::{ListParams, WatchParams},
    core::Request,
};
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, time};

use super::{
    decode::{self, Change, Item, Page, Unreadable},
    trouble::{Trouble, cause},
};

/// Objects of a page, as client-go asks for them.
const PAGE: u32 = 500;
/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// An API server sends a bookmark about once a minute: a watch that has been silent for so long is begun anew.
pub(super) const SILENCE: Duration = Duration::from_secs(150);

/// Which objects of a kind are asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Selectors {
    pub(super) labels: Option<String>,
    pub(super) fields: Option<String>,
}

/// What has happened.
#[derive(Debug)]
pub(super) enum Step<K> {
    /// A part of a list.
    Page { items: Vec<Item<K>>, first: bool, last: bool },
    /// A watch has begun.
    Opened,
    /// An object is new, or now like this.
    Applied(K),
    /// An object is new or has changed, and cannot be read.
    Unreadable(Unreadable),
    /// An object is gone.
    Deleted { namespace: String, name: String },
    /// Nothing else has changed until now.
    Bookmark,
    /// The watch has ended without an error, as watches do after some minutes.
    Closed,
    /// The watch has said nothing for long.
    Silent,
    /// The object had changed before the watch fell silent, and only the list told.
    Missed(String),
    /// The list is of an older state than the one that was known.
    Restored { was: u64, is: u64 },
}

/// Where the objects are.
pub(super) struct Place {
    client: Client,
    request: Request,
    selectors: Selectors,
    relist: Arc<Notify>,
}

impl Place {
    /// The objects of kind `K` that `selectors` name. Whoever notifies `relist` wants them listed again.
    pub(super) fn new<K: Resource<DynamicType = ()>>(
        client: Client,
        selectors: Selectors,
        relist: Arc<Notify>,
    ) -> Self {
        Self { client, request: Request::new(K::url_path(&(), None)), selectors, relist }
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

    async fn page<K: DeserializeOwned>(&self, limit: u32, more: Option<String>) -> Result<Page<K>, Trouble> {
        let request = self.request.list(&self.list(limit, more)).map_err(|error| Trouble::Failing(cause(&error)))?;
        let text = time::timeout(PATIENCE, self.client.request_text(request)).await;
        let text =
            text.map_err(|_| Trouble::Unreachable(format!("a list is not complete after {} s", PATIENCE.as_secs())))?;
        let text = text.map_err(|error| Trouble::of_request("list", &error))?;
        decode::page(&text).map_err(|error| Trouble::Failing(format!("its answer is no list: {}", cause(&error))))
    }

    async fn watch(&self, version: &str) -> Result<Texts, Trouble> {
        let Selectors { labels, fields } = self.selectors.clone();
        let parameters = WatchParams { label_selector: labels, field_selector: fields, ..WatchParams::default() };
        let request = self.request.watch(&parameters, version);
        let mut request = request.map_err(|error| Trouble::Failing(cause(&error)))?;
        // Some API servers compress each event for itself, and nobody here undoes that.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let body = self.client.request_stream(request).await.map_err(|error| Trouble::of_request("watch", &error))?;
        let body: Body = Box::pin(body);
        Ok(body.lines())
    }
}

type Body = Pin<Box<dyn AsyncBufRead + Send>>;
type Texts = Lines<Body>;

/// What comes next.
enum State {
    /// A page; with what asks for it, unless it is the first.
    List(Option<String>),
    /// Whether the API server is where it was.
    Check,
    Open,
    Watch(Texts),
}

/// How far it is.
struct Walk {
    place: Place,
    state: State,
    /// The state that is known.
    version: String,
    /// Watches that fell silent, one after the other.
    silences: u32,
    /// The version at which the watch fell silent before this list.
    silent_at: Option<u64>,
    missed: Option<String>,
    /// The versions before this list and in it, if the API server has gone back.
    restored: Option<(u64, u64)>,
}

/// The steps, without an end. After an error the next step is another attempt; whoever reads says when.
pub(super) fn steps<K>(place: Place) -> impl Stream<Item = Result<Step<K>, Trouble>> + Send
where
    K: Resource + DeserializeOwned + Send + 'static,
{
    let state = State::List(None);
    let walk =
        Walk { place, state, version: String::new(), silences: 0, silent_at: None, missed: None, restored: None };
    stream::unfold(walk, |mut walk| async {
        loop {
            if let Some(step) = walk.step().await.transpose() {
                return Some((step, walk));
            }
        }
    })
}

/// Versions are revisions of etcd: numbers that grow. What is no number is not compared.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

impl Walk {
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
                let page: Page<serde_json::Value> = self.place.page(1, None).await?;
                let older = self.older(&page.version).is_some();
                self.state = if older { State::List(None) } else { State::Open };
                Ok(None)
            }
            State::Open => {
                self.state = match self.place.watch(&self.version).await {
                    Ok(texts) => State::Watch(texts),
                    Err(trouble) => {
                        self.state = if trouble == Trouble::Outdated { State::List(None) } else { State::Check };
                        return Err(trouble);
                    }
                };
                Ok(Some(Step::Opened))
            }
            State::Watch(texts) => {
                let next = tokio::select! {
                    next = time::timeout(SILENCE, texts.next()) => next,
                    () = self.place.relist.notified() => {
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
                            // Whatever it keeps silent, a list tells.
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
        // If this fails, the list is begun anew.
        let page: Page<K> = self.place.page(PAGE, more).await?;
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

    /// The version that is known and `version`, if that is an older one.
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
                // The connection was cut within the last line.
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
    format!("what it sends is no change of an object: {}", cause(error))
}
