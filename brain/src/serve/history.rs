//! `History.Read`: sends the recorded entries, which are already serialized. It changes nothing.

use std::{
    future::{Ready, ready},
    pin::Pin,
    sync::Arc,
};

use bytes::Bytes;
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
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: Request<HistoryRequest>) -> Self::Future {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return ready(Err(Status::resource_exhausted("other clients are reading the history; retry the call")));
        };
        let entries = self.history.entries().inspect(move |_| _ = &permit);
        ready(Ok(Response::new(Box::pin(self.stalls.pace(Box::new(entries))))))
    }
}
