//! `StateService.NextState` of the draft `localnet.v1`: a long poll. It waits for a state that the caller does not have, and then
//! sends the records that have changed, or all of them.

use std::{
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{TryFutureExt as _, TryStreamExt as _};
use localnet_proto::{
    Revision,
    v1::{
        ErrorInfo, Metadata, PUBLISHED, is_reader_name,
        wire::{Capability, ErrorReason, NextStateRequest, Reader, ReaderRole, View},
    },
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, body::Body, server::ServerStreamingService};
use tracing::{debug, warn};

use super::{
    pace::Pace,
    stall::{PATIENCE, Stalls},
    token, verbatim,
};
use crate::{
    feed::{Feed, Selection, State},
    throttle::Throttle,
};
use localnet_cluster::objects::{Publish, node_name};

/// Maximum size of a request, in bytes: 64 keys of at most 317 bytes, and some more.
const LARGEST_REQUEST: usize = 32 << 10;
/// Maximum length of a token.
const LONGEST_TOKEN: usize = 128;
/// Maximum length of a reader's version.
const LONGEST_VERSION: usize = 63;
/// Maximum number of labels and annotations that a reader may select.
const MOST_KEYS: usize = 64;
/// Minimum time between two warnings about readers from which Services are withheld.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How many of these Services a warning names.
const MOST_NAMED: usize = 10;

/// The handler of `NextState`. It serves the state of the brain's own node only: the view of another node stops with its last
/// stream, and readers of `localnet.v1` make a new call for each state.
#[derive(Clone)]
pub(super) struct NextState {
    feed: Feed,
    published: Arc<Publish>,
    stalls: Stalls,
    stop: CancellationToken,
    warnings: Throttle,
    pace: Pace,
}

type Messages = Pin<Box<dyn futures::Stream<Item = Result<Bytes, Status>> + Send>>;

impl NextState {
    /// `feed` keeps records, and readers may select what `published` lists.
    pub(super) fn new(feed: Feed, published: Arc<Publish>, stalls: Stalls, stop: CancellationToken) -> Self {
        Self { feed, published, stalls, stop, warnings: Throttle::every(LOG_INTERVAL), pace: Pace::default() }
    }

    /// The handler for one connection.
    pub(super) fn of_connection(self) -> Self {
        Self { pace: Pace::default(), ..self }
    }

    pub(super) async fn handle(self, request: http::Request<Body>) -> http::Response<Body> {
        verbatim::grpc_with(LARGEST_REQUEST).server_streaming(self, request).await
    }

    async fn answer(self, request: NextStateRequest) -> Result<Messages, Status> {
        let selection = selection(&request, &self.published)?;
        let feed = self.view(request.view)?;
        let metrics = self.feed.metrics().reader();
        let held = token::revision(&request.token, &selection);
        let next = async {
            let state = differing(feed, &request.node_name, held).await?;
            if !request.full && held.is_some_and(|held| state.continues(held)) {
                return Ok((state, None));
            }
            let turn = self.pace.turn().await;
            Ok::<_, Status>((feed.state(), Some(turn)))
        };
        let (state, turn) = tokio::select! {
            biased;
            () = self.stop.cancelled() => {
                return Err(ErrorInfo::new(ErrorReason::ShuttingDown).status("the brain is shutting down; retry the call"));
            }
            state = next => state?,
        };
        self.log(&request.reader.unwrap_or_default(), held.is_none(), &state, &selection);
        let tokens = (request.token, token::token(state.revision(), &selection));
        // The feed keeps records, so there are messages.
        let messages = state.messages(held.filter(|_| !request.full), selection, tokens).into_iter().flatten();
        let messages = messages.inspect(move |message| {
            metrics.sent(message.len());
            if let Some(turn) = &turn {
                turn.sent(message.len());
            }
        });
        Ok(Box::pin(self.stalls.pace(Box::new(messages)).map_err(stalled)))
    }

    /// The feed of a view.
    fn view(&self, view: i32) -> Result<&Feed, Status> {
        match View::try_from(view) {
            Ok(View::Unspecified) => Ok(&self.feed),
            Ok(View::Dns) => self.feed.dns().ok_or_else(|| {
                let info = ErrorInfo::new(ErrorReason::NotPublished)
                    .with("field", "view")
                    .with("key", View::Dns.as_str_name());
                info.status("this brain does not serve the view for DNS; start the brain with --dns")
            }),
            Err(_) => Err(ErrorInfo::invalid("view", "is a view that this brain does not know")),
        }
    }

    /// Whether to warn about a reader now: at most once a minute, because readers call after each change.
    fn warns(&self, withheld: usize) -> bool {
        withheld > 0 && self.warnings.pass().is_some()
    }

    /// Logs a reader that does not get all Services, or that has no state (`is_full`).
    fn log(&self, Reader { name, version, .. }: &Reader, is_full: bool, state: &State, selection: &Selection) {
        let withheld = state.withheld(selection);
        if self.warns(withheld) {
            let services = state.withheld_services(selection).take(MOST_NAMED).map(ToString::to_string);
            warn!(
                reader = name,
                version,
                withheld,
                services = services.collect::<Vec<_>>().join(" "),
                "withholding Services from a reader that does not understand their restrictions; upgrade the reader"
            );
        } else if is_full {
            debug!(reader = name, version, withheld, "a reader of localnet.v1 gets the full state");
        }
    }
}

impl ServerStreamingService<NextStateRequest> for NextState {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Messages>, Status>> + Send>>;

    /// Sends the headers immediately. The caller can then distinguish a brain that waits from a brain that is unavailable.
    fn call(&mut self, request: Request<NextStateRequest>) -> Self::Future {
        let answer = self.clone().answer(request.into_inner());
        let messages: Messages = Box::pin(answer.try_flatten_stream());
        Box::pin(ready(Ok(Response::new(messages))))
    }
}

/// Waits for a state of the feed other than `held`. `node` is the node whose state the reader wants.
async fn differing(feed: &Feed, node: &str, held: Option<Revision>) -> Result<State, Status> {
    if !node.is_empty() {
        // The first state contains the name of this node.
        let first = feed.differing(Revision::default()).await;
        let own = &first.node().name;
        if node_name(node).as_ref() != Ok(own) {
            return Err(not_served(node, own));
        }
    }
    Ok(feed.differing(held.unwrap_or_default()).await)
}

/// What the reader gets. Besides the annotations in [`PUBLISHED`], it may select what the operator has published.
///
/// # Errors
/// Returns `INVALID_REQUEST` or `NOT_PUBLISHED`.
pub fn selection(request: &NextStateRequest, published: &Publish) -> Result<Selection, Status> {
    let reader = request.reader.clone().unwrap_or_default();
    check_reader(&reader)?;
    if request.token.len() > LONGEST_TOKEN {
        return Err(ErrorInfo::invalid(
            "token",
            "is longer than 128 bytes; send the token of the last answer unchanged",
        ));
    }
    let metadata = request.metadata.clone().unwrap_or_default();
    if metadata.label_keys.len() + metadata.annotation_keys.len() > MOST_KEYS {
        return Err(ErrorInfo::invalid("metadata", "selects more than 64 labels and annotations"));
    }
    if let Some(key) = metadata.label_keys.iter().find(|key| !published.labels.contains(key)) {
        return Err(not_published("label", key));
    }
    let is_published = |key: &String| PUBLISHED.contains(&key.as_str()) || published.annotations.contains(key);
    if let Some(key) = metadata.annotation_keys.iter().find(|key| !is_published(key)) {
        return Err(not_published("annotation", key));
    }
    let labels = metadata.label_keys.into_iter().map(|key| (Metadata::Label, key.into()));
    let annotations = metadata.annotation_keys.into_iter().map(|key| (Metadata::Annotation, key.into()));
    Ok(Selection {
        observes: reader.role() == ReaderRole::Observer,
        source_filters: reader.capabilities.contains(&Capability::SourceFilters.into()),
        metadata: labels.chain(annotations).collect(),
        details: request.endpoint_details,
    })
}

fn check_reader(reader: &Reader) -> Result<(), Status> {
    if !is_reader_name(&reader.name) {
        return Err(ErrorInfo::invalid(
            "reader.name",
            "is not a name: at most 63 lower-case letters, digits and hyphens",
        ));
    }
    if reader.version.chars().count() > LONGEST_VERSION || reader.version.chars().any(char::is_control) {
        return Err(ErrorInfo::invalid("reader.version", "is not a version: at most 63 printable characters"));
    }
    Ok(())
}

/// `kind` is `label` or `annotation`.
fn not_published(kind: &str, key: &str) -> Status {
    let info =
        ErrorInfo::new(ErrorReason::NotPublished).with("field", format!("metadata.{kind}_keys")).with("key", key);
    info.status(format!(
        "the {kind} {key:?} is not published by this brain; start the brain with --publish-{kind} {key}, or do not request the {kind}"
    ))
}

fn not_served(requested: &str, own: &str) -> Status {
    let info = ErrorInfo::new(ErrorReason::NodeNotServed).with("requestedNode", requested).with("node", own);
    info.status(format!(
        "the draft of localnet.v1 serves only the state of the brain's own node {own:?}, not of node {requested:?}; call the brain of \
        that node"
    ))
}

/// The status of an answer that was ended because its reader has stopped reading.
fn stalled(status: Status) -> Status {
    if status.code() != Code::Aborted {
        return status;
    }
    ErrorInfo::new(ErrorReason::ReaderStalled).with("seconds", PATIENCE.as_secs().to_string()).status(status.message())
}

#[cfg(test)]
mod tests {
    use localnet_cluster::localize::Localized;
    use localnet_proto::{Node, v1::wire::MetadataSelector};
    use tokio::time::Instant;

    use super::*;

    /// The reason and the metadata with which a request is refused, or what the reader gets.
    fn selected(request: &NextStateRequest) -> Result<Selection, (ErrorReason, Vec<String>)> {
        let publish = Publish { labels: vec!["app".to_owned()], annotations: vec!["note".to_owned()] };
        selection(request, &publish).map_err(|status| {
            let info = ErrorInfo::of(&status).expect("each error has a reason");
            assert_eq!(status.code(), ErrorInfo::code(info.reason));
            (info.reason, info.metadata.into_values().collect())
        })
    }

    fn annotations(keys: &[&str]) -> NextStateRequest {
        let annotation_keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let metadata = MetadataSelector { annotation_keys, ..MetadataSelector::default() };
        NextStateRequest { metadata: Some(metadata), ..NextStateRequest::default() }
    }

    fn labels(keys: &[&str]) -> NextStateRequest {
        let label_keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let metadata = MetadataSelector { label_keys, ..MetadataSelector::default() };
        NextStateRequest { metadata: Some(metadata), ..NextStateRequest::default() }
    }

    fn selected_keys(keys: &[(Metadata, &str)]) -> Selection {
        let metadata = keys.iter().map(|(kind, key)| (*kind, (*key).into())).collect();
        Selection { metadata, ..Selection::default() }
    }

    #[test]
    fn a_reader_gets_what_it_understands_and_selects() {
        let reader = |role: ReaderRole, capabilities: &[i32]| NextStateRequest {
            reader: Some(Reader { role: role.into(), capabilities: capabilities.to_vec(), ..Reader::default() }),
            ..NextStateRequest::default()
        };
        let rows = [
            (NextStateRequest::default(), Selection::default()),
            (reader(ReaderRole::Backend, &[0, 99]), Selection::default()),
            (reader(ReaderRole::Backend, &[1]), Selection { source_filters: true, ..Selection::default() }),
            (reader(ReaderRole::Observer, &[]), Selection { observes: true, ..Selection::default() }),
            (
                annotations(&["preserve-destination", "note", "note"]),
                selected_keys(&[(Metadata::Annotation, "note"), (Metadata::Annotation, "preserve-destination")]),
            ),
            (labels(&["app"]), selected_keys(&[(Metadata::Label, "app")])),
            (
                NextStateRequest { endpoint_details: true, ..NextStateRequest::default() },
                Selection { details: true, ..Selection::default() },
            ),
        ];
        for (request, expected) in rows {
            assert_eq!(selected(&request), Ok(expected), "{request:?}");
        }
    }

    #[test]
    fn invalid_requests_are_refused() {
        let named = |name: &str, version: &str| NextStateRequest {
            reader: Some(Reader { name: name.to_owned(), version: version.to_owned(), ..Reader::default() }),
            ..NextStateRequest::default()
        };
        assert!(selected(&named(&"a".repeat(63), "1.0 (é)")).is_ok());
        let rows = [
            (named("Nft", ""), ErrorReason::InvalidRequest, "reader.name"),
            (named(&"a".repeat(64), ""), ErrorReason::InvalidRequest, "reader.name"),
            (named("", "1\n"), ErrorReason::InvalidRequest, "reader.version"),
            (
                NextStateRequest { token: "0".repeat(129), ..NextStateRequest::default() },
                ErrorReason::InvalidRequest,
                "token",
            ),
            (annotations(&["preserve-destination"; 65]), ErrorReason::InvalidRequest, "metadata"),
            (annotations(&["preserve-destination", "x"]), ErrorReason::NotPublished, "metadata.annotation_keys"),
            (labels(&["note"]), ErrorReason::NotPublished, "metadata.label_keys"),
        ];
        for (request, reason, field) in rows {
            let (found, metadata) = selected(&request).unwrap_err();
            assert!(
                found == reason && metadata.iter().any(|value| value == field),
                "{request:?}: {found:?} {metadata:?}"
            );
        }
    }

    #[test]
    fn a_key_that_is_not_published_has_a_remedy() {
        let status = selection(&labels(&["app"]), &Publish::default()).unwrap_err();
        assert_eq!(
            status.message(),
            "the label \"app\" is not published by this brain; start the brain with --publish-label app, or do not request the label"
        );
    }

    /// Readers call after each change.
    #[tokio::test(start_paused = true)]
    async fn one_warning_a_minute_says_that_services_are_withheld() {
        let feed = Feed::with_records(7, Arc::default());
        let state = NextState::new(feed, Arc::default(), Stalls::default(), CancellationToken::new());
        assert!(!state.warns(0), "a reader without withheld Services suppresses no warning");
        assert_eq!([1, 1, 1].map(|withheld| state.clone().warns(withheld)), [true, false, false]);
        tokio::time::advance(LOG_INTERVAL).await;
        assert!(state.warns(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_gets_eight_mib_of_full_states_per_second() {
        let feed = Feed::with_records(7, Arc::default());
        feed.publish(Localized { node: Some(Node::default()), ..Localized::default() });
        let all = NextState::new(feed, Arc::default(), Stalls::default(), CancellationToken::new());
        let read = async |state: &NextState, request: NextStateRequest| {
            let before = Instant::now();
            let messages: Vec<Bytes> = state.clone().answer(request).await.unwrap().try_collect().await.unwrap();
            (before.elapsed(), messages.iter().map(Bytes::len).sum::<usize>())
        };
        let full = NextStateRequest { full: true, ..NextStateRequest::default() };
        // Of another instance of the brain.
        let token = token::token(Revision { instance: 8, rev: 1 }, &Selection::default());
        let lost = NextStateRequest { token, ..NextStateRequest::default() };
        for request in [full, lost] {
            let state = all.clone().of_connection();
            let (waited, bytes) = read(&state, request.clone()).await;
            assert_eq!(waited, Duration::ZERO);
            // As if the state had 16 MiB.
            state.pace.turn().await.sent((16 << 20) - bytes);
            let (first, second) = tokio::join!(read(&state, request.clone()), read(&state, request.clone()));
            // tokio's clock has milliseconds.
            assert!((1990..=2002).contains(&first.0.as_millis()), "{first:?}");
            assert!(second.0 > first.0, "one after the other: {first:?} {second:?}");
            assert_eq!(read(&all.clone().of_connection(), request).await.0, Duration::ZERO, "another connection");
        }
    }

    #[test]
    fn a_stalled_reader_gets_a_reason() {
        let status = stalled(Status::aborted("retry"));
        assert_eq!((status.code(), status.message()), (Code::Aborted, "retry"));
        let expected = ErrorInfo::new(ErrorReason::ReaderStalled).with("seconds", "60");
        assert_eq!(ErrorInfo::of(&status), Some(expected));
        assert_eq!(ErrorInfo::of(&stalled(Status::unavailable("no route"))), None);
    }
}
