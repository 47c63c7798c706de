//! `History.Read`: sends the recorded entries, which are already serialized. It changes nothing.

use std::{pin::Pin, sync::Arc};

use bytes::Bytes;
use futures::future::BoxFuture;
use localnet_proto::history::HistoryRequest;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status, body::Body, server::ServerStreamingService};

use super::{
    stall::{Paced, Stalls},
    verbatim,
};
use crate::feed::History;

/// Maximum number of answers in progress. Each of them holds decompressed entries, so without the limit, clients could occupy a
/// large amount of memory.
const MOST: usize = 4;

/// The handler of `Read`.
#[derive(Clone)]
pub(super) struct Read {
    history: History,
    stalls: Stalls,
    permits: Arc<Semaphore>,
}

impl Read {
    pub(super) fn new(history: History, stalls: Stalls) -> Self {
        Self { history, stalls, permits: Arc::new(Semaphore::new(MOST)) }
    }

    pub(super) async fn handle(self, request: http::Request<Body>) -> http::Response<Body> {
        verbatim::grpc().server_streaming(self, request).await
    }
}

impl ServerStreamingService<HistoryRequest> for Read {
    type Response = Bytes;
    type ResponseStream = Pin<Box<Paced>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: Request<HistoryRequest>) -> Self::Future {
        let Self { history, stalls, permits } = self.clone();
        Box::pin(async move {
            let permit = permits
                .try_acquire_owned()
                .map_err(|_| Status::resource_exhausted("other clients are reading the history; retry the call"))?;
            let entries = history.recorded().await.inspect(move |_| _ = &permit);
            Ok(Response::new(Box::pin(stalls.pace(Box::new(entries)))))
        })
    }
}
