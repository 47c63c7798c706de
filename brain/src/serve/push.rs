//! `SourceService.Push`: another program pushes Services.
//!
//! A stream reads one step at a time. After a commit, it reads the next step only once the resulting state is published and its
//! answer has been taken, so a program that commits faster has to merge its changes.

use std::{pin::Pin, sync::Arc};

use localnet_proto::source::{
    PushRequest, PushResponse,
    push_request::Step,
    push_response::Answer,
    source_service_server::{SourceService, SourceServiceServer},
};
use tokio::{sync::mpsc, time};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{next::ending, stall::PATIENCE};
use crate::{
    peer::Peer,
    push::{self, End, Pushers, Stream},
};

/// The path of all methods.
pub(super) const PATH: &str = "/localnet.source.v1alpha1.SourceService/";

/// Maximum size of a message, in bytes. In memory, a message can take 30 times as much.
const LARGEST: usize = 2 << 20;

/// The handler of `Push`.
#[derive(Clone)]
pub(super) struct Push {
    pushers: Pushers,
    stop: CancellationToken,
}

type Answers = mpsc::Sender<Result<PushResponse, Status>>;

impl Push {
    /// The gRPC service.
    pub(super) fn service(pushers: Pushers, stop: CancellationToken) -> SourceServiceServer<Self> {
        SourceServiceServer::new(Self { pushers, stop }).max_decoding_message_size(LARGEST)
    }

    /// Serves a stream until it ends.
    async fn serve(self, mut stream: Stream, mut steps: Streaming<PushRequest>, answers: Answers) {
        let end = tokio::select! {
            ended = self.follow(&mut stream, &mut steps, &answers) => ended.err(),
            () = self.stop.cancelled() => Some(ending()),
            () = answers.closed() => None,
        };
        self.pushers.disconnect(&stream).await;
        if let Some(end) = end {
            // This waits for an earlier answer, and fails if the program has disconnected.
            _ = time::timeout(PATIENCE, answers.send(Err(end))).await;
        }
    }

    async fn follow(
        &self,
        stream: &mut Stream,
        steps: &mut Streaming<PushRequest>,
        answers: &Answers,
    ) -> Result<(), Status> {
        let mut changes = stream.changes();
        loop {
            let message = tokio::select! {
                end = stream.ended() => return Err(ended(end)),
                message = steps.message() => message?,
            };
            let Some(PushRequest { step }) = message else { return Ok(()) };
            match step {
                Some(Step::Set(service)) => changes.set(service).map_err(invalid)?,
                Some(Step::Remove(key)) => changes.remove(push::key(&key)).map_err(invalid)?,
                Some(Step::Clear(_)) => changes.clear(),
                Some(Step::Commit(commit)) => {
                    let Some(committed) = self.pushers.commit(stream, changes, commit.number).await else {
                        return Err(ended(stream.ended().await));
                    };
                    send(answers, Answer::Committed(committed)).await?;
                    changes = stream.changes();
                }
                None => {
                    let problem =
                        "a message has no step that this version knows; set one of set, remove, clear and commit";
                    return Err(Status::invalid_argument(problem));
                }
            }
        }
    }
}

/// Sends an answer, once the program has taken the previous one.
async fn send(answers: &Answers, answer: Answer) -> Result<(), Status> {
    let answer = Ok(PushResponse { answer: Some(answer) });
    match time::timeout(PATIENCE, answers.send(answer)).await {
        Ok(_) => Ok(()),
        Err(_) => Err(Status::aborted("the program has read no answer for too long; call Push again")),
    }
}

fn invalid(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(error.to_string())
}

fn ended(end: End) -> Status {
    match end {
        End::Replaced => Status::aborted("a newer stream of the same grant has replaced this one"),
        End::Changed => Status::aborted("the grant has changed; call Push again"),
        End::Revoked => Status::permission_denied("the grant no longer exists"),
    }
}

#[tonic::async_trait]
impl SourceService for Push {
    type PushStream = Pin<Box<dyn futures::Stream<Item = Result<PushResponse, Status>> + Send>>;

    async fn push(&self, request: Request<Streaming<PushRequest>>) -> Result<Response<Self::PushStream>, Status> {
        let peer = request.extensions().get::<Arc<Peer>>().map_or(&Peer::Anonymous, |peer| peer);
        let Some(stream) = self.pushers.connect(peer).await else {
            let problem = format!("{peer} has no grant; add one to the file of --push-grants");
            return Err(Status::permission_denied(problem));
        };
        let (answers, mut sent) = mpsc::channel(1);
        let hello = PushResponse { answer: Some(Answer::Hello(stream.hello())) };
        // The new channel has room for one answer.
        _ = answers.try_send(Ok(hello));
        tokio::spawn(self.clone().serve(stream, request.into_inner(), answers));
        Ok(Response::new(Box::pin(futures::stream::poll_fn(move |context| sent.poll_recv(context)))))
    }
}
