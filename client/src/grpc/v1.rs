//! Reads the state in the draft of `localnet.v1`: the brain sends only the endpoints that change.

use std::sync::Arc;

use localnet_proto::{
    Revision, Update,
    v1::{
        self, Answer, PUBLISHED,
        wire::{
            Capability, MetadataSelector, NextStateRequest, Reader, ReaderRole,
            state_service_client::StateServiceClient,
        },
    },
};
use tokio::sync::Mutex;

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
        let metadata =
            MetadataSelector { annotation_keys: PUBLISHED.map(str::to_owned).to_vec(), ..MetadataSelector::default() };
        let request = NextStateRequest {
            reader: Some(self.reader.clone()),
            token: reader.token().to_owned(),
            metadata: Some(metadata),
            ..NextStateRequest::default()
        };
        let mut client = StateServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let mut stream = client.next_state(request).await.map_err(|status| failed(&status))?.into_inner();
        let mut answer = Answer::default();
        while let Some(message) = stream.message().await.map_err(|status| failed(&status))? {
            answer.push(message);
        }
        let update = reader.accept(answer).map_err(|rejected| SourceError::Invalid(rejected.to_string()))?;
        let update = update.ok_or_else(|| SourceError::Broken("the answer has no end".to_owned()))?;
        *revision = update.revision();
        Ok(update)
    }
}
