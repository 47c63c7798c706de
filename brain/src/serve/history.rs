//! `History.Read`: sends the recorded entries, or the entries to come, which are already serialized. It changes nothing.

use std::{pin::Pin, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt as _, future::BoxFuture, stream};
use localnet_proto::history::HistoryRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, body::Body, server::ServerStreamingService};

use super::{stall::Stalls, verbatim};
use crate::feed::{Cursor, History};

/// Maximum number of answers in progress. Each of them holds decompressed entries, so without the limit, clients could occupy a
/// large amount of memory.
const MOST: usize = 4;

type Entries = Pin<Box<dyn futures::Stream<Item = Result<Bytes, Status>> + Send>>;

/// The entries after a position.
fn follow(
    history: History,
    cursor: Cursor,
    permit: OwnedSemaphorePermit,
) -> impl futures::Stream<Item = Result<Bytes, Status>> {
    let batches = stream::unfold(Some((history, cursor, permit)), |state| async move {
        let (history, mut cursor, permit) = state?;
        match history.after(&mut cursor).await {
            Some(entries) => Some((entries.into_iter().map(Ok).collect(), Some((history, cursor, permit)))),
            None => {
                let slow =
                    Status::out_of_range("the history has dropped the next entry because the client reads too slowly");
                Some((vec![Err(slow)], None))
            }
        }
    });
    batches.flat_map(stream::iter)
}

/// The handler of `Read`.
#[derive(Clone)]
pub(super) struct Read {
    history: History,
    stalls: Stalls,
    permits: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Read {
    pub(super) fn new(history: History, stalls: Stalls, stop: CancellationToken) -> Self {
        Self { history, stalls, permits: Arc::new(Semaphore::new(MOST)), stop }
    }

    pub(super) async fn handle(self, request: http::Request<Body>) -> http::Response<Body> {
        verbatim::grpc().server_streaming(self, request).await
    }
}

impl ServerStreamingService<HistoryRequest> for Read {
    type Response = Bytes;
    type ResponseStream = Entries;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<HistoryRequest>) -> Self::Future {
        let Self { history, stalls, permits, stop } = self.clone();
        Box::pin(async move {
            let permit = permits
                .try_acquire_owned()
                .map_err(|_| Status::resource_exhausted("other clients are reading the history; retry the call"))?;
            if request.get_ref().follow {
                let cursor = history.end();
                let entries = follow(history, cursor, permit).take_until(stop.cancelled_owned());
                return Ok(Response::new(Box::pin(entries) as Entries));
            }
            let entries = history.recorded().await.inspect(move |_| _ = &permit);
            Ok(Response::new(Box::pin(stalls.pace(Box::new(entries))) as Entries))
        })
    }
}
