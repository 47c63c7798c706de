//! Reads the state in the draft of `localnet.v1`: the brain sends only the endpoints that change.

use std::sync::Arc;

use localnet_proto::{
    Revision, Update,
    v1::{
        self, Answer, PUBLISHED, Rejected,
        wire::{
            Capability, MetadataSelector, NextStateRequest, Reader, ReaderRole,
            state_service_client::StateServiceClient,
        },
    },
};
use tokio::sync::Mutex;
use tonic::{Code, Status};

use super::{Channel, MAX_MESSAGE, failed};
use crate::source::SourceError;

/// A reader of `localnet.v1`. Clones share what it keeps.
#[derive(Clone, Debug)]
pub(super) struct V1 {
    /// Who reads.
    reader: Reader,
    /// What the reader keeps, and the revision of that state.
    kept: Arc<Mutex<(Revision, v1::Reader)>>,
}

impl V1 {
    pub(super) fn new(name: String) -> Self {
        let reader = Reader {
            name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: ReaderRole::Backend.into(),
            capabilities: vec![Capability::SourceFilters.into()],
        };
        Self { reader, kept: Arc::default() }
    }

    /// See [`Source::next`](crate::Source::next).
    pub(super) async fn next(&self, channel: Channel, have: Revision, fold: bool) -> Result<Update, SourceError> {
        let mut kept = self.kept.lock().await;
        let (revision, reader) = &mut *kept;
        if !fold || *revision != have {
            *reader = v1::Reader::default();
        }
        let update = self.answer(&channel, reader).await?;
        *revision = update.revision();
        if fold || *revision != have {
            return Ok(update);
        }
        // The brain does not know that the caller has this state, because the caller has no token. So wait for another one.
        let Update::Full(mut state) = update else {
            return Err(SourceError::Invalid("changes instead of the requested full state".to_owned()));
        };
        state.apply(self.answer(&channel, reader).await?);
        *revision = state.revision;
        Ok(Update::Full(state))
    }

    /// The next answer to a reader.
    async fn answer(&self, channel: &Channel, reader: &mut v1::Reader) -> Result<Update, SourceError> {
        let metadata =
            MetadataSelector { annotation_keys: PUBLISHED.map(str::to_owned).to_vec(), ..MetadataSelector::default() };
        let request = NextStateRequest {
            reader: Some(self.reader.clone()),
            token: reader.token().to_owned(),
            metadata: Some(metadata),
            ..NextStateRequest::default()
        };
        let mut client = StateServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let mut stream = client.next_state(request).await.map_err(|status| not_served(&status))?.into_inner();
        let mut answer = Answer::default();
        while let Some(message) = stream.message().await.map_err(|status| failed(&status))? {
            answer.push(message);
        }
        let update = reader.accept(answer).map_err(|rejected| match rejected {
            Rejected::Invalid(error) => SourceError::Invalid(error.to_string()),
            Rejected::Lost(what) => SourceError::Invalid(format!("{what}; reading the full state")),
        })?;
        update.ok_or_else(|| SourceError::Broken("the answer has no commit".to_owned()))
    }
}

/// The error for a call that failed.
fn not_served(status: &Status) -> SourceError {
    match status.code() {
        Code::Unimplemented => SourceError::Refused(
            "it does not serve localnet.v1: start it with --draft-v1, or remove --draft-v1 from this program"
                .to_owned(),
        ),
        _ => failed(status),
    }
}
