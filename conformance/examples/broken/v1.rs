//! Reads the draft of `localnet.v1`: correctly, or with one of the faults whose names begin with `v1-`.

use std::collections::HashMap;

use localnet_proto::{
    Revision, Update,
    v1::{
        Answer, Reader,
        wire::{
            self, Capability, Commit, EndpointKey, FamilyStatus, IpFamily, NextStateRequest, NextStateResponse,
            Reader as Identity, ReportStatusRequest, ServiceKey, backend_service_client::BackendServiceClient,
            state_service_client::StateServiceClient,
        },
    },
};
use tonic::transport::Channel;

/// The key of a Service, or of one of its endpoints.
type Key = (String, String, Option<(String, u32)>);

/// A reader of `localnet.v1`.
#[derive(Default)]
pub(crate) struct V1 {
    reader: Reader,
    /// The digests of all records, which a reader with a fault needs to accept what it should reject. The node has no key.
    digests: HashMap<Option<Key>, u64>,
}

impl V1 {
    /// Reads an answer.
    pub(crate) async fn next(&mut self, channel: Channel, fault: &str) -> anyhow::Result<Update> {
        let token = if fault == "v1-forgets-the-token" { "" } else { self.reader.token() };
        let request = NextStateRequest {
            reader: Some(Identity {
                name: "broken".to_owned(),
                capabilities: vec![Capability::SourceFilters.into()],
                ..Identity::default()
            }),
            token: token.to_owned(),
            ..NextStateRequest::default()
        };
        let mut stream = StateServiceClient::new(channel).next_state(request).await?.into_inner();
        let mut messages = Vec::new();
        loop {
            match stream.message().await {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) if fault == "v1-applies-cut" && messages.len() > 2 => break,
                Err(status) => return Err(status.into()),
            }
        }
        let has_removed =
            messages.iter().flat_map(|message| &message.services).any(|of| !of.removed_endpoints.is_empty());
        if fault == "v1-counts-removed-endpoints" && has_removed {
            self.reader = Reader::default();
            anyhow::bail!("the sum of the digests differs");
        }
        self.spoil(&mut messages, fault);
        let mut answer = Answer::default();
        messages.into_iter().for_each(|message| answer.push(message));
        self.reader.accept(answer)?.ok_or_else(|| anyhow::anyhow!("the answer has no commit"))
    }

    /// Makes an answer acceptable that a reader without the fault would reject.
    fn spoil(&mut self, messages: &mut [NextStateResponse], fault: &str) {
        if fault == "v1-ignores-replace" {
            messages.iter_mut().flat_map(|message| &mut message.services).for_each(|update| update.replace = false);
        }
        if fault == "v1-ignores-the-base"
            && let Some(begin) = messages.iter_mut().filter_map(|message| message.begin.as_mut()).next()
            && !begin.base.is_empty()
        {
            self.reader.token().clone_into(&mut begin.base);
        }
        let sum = self.sum(messages);
        let Some(last) = messages.last_mut() else { return };
        match &mut last.commit {
            Some(commit) if ["v1-ignores-the-sum", "v1-ignores-replace"].contains(&fault) => commit.digest = sum,
            None if ["v1-needs-no-commit", "v1-applies-cut"].contains(&fault) => {
                last.commit = Some(Commit { token: "none".to_owned(), digest: sum });
            }
            _ => {}
        }
    }

    /// The sum of the digests after an answer.
    fn sum(&mut self, messages: &[NextStateResponse]) -> u64 {
        if messages.iter().filter_map(|message| message.begin.as_ref()).any(|begin| begin.base.is_empty()) {
            self.digests.clear();
        }
        for message in messages {
            if let Some(node) = &message.node {
                self.digests.insert(None, node.digest);
            }
            for update in &message.services {
                let ServiceKey { namespace, name } = update.key.clone().unwrap_or_default();
                let endpoint = |address: &str, ordinal| {
                    Some((namespace.clone(), name.clone(), Some((address.to_owned(), ordinal))))
                };
                if update.removed || update.replace {
                    self.digests
                        .retain(|key, _| !matches!(key, Some((of, also, _)) if (of, also) == (&namespace, &name)));
                }
                if let Some(service) = &update.service {
                    self.digests.insert(Some((namespace.clone(), name.clone(), None)), service.digest);
                }
                for EndpointKey { address, ordinal } in &update.removed_endpoints {
                    self.digests.remove(&endpoint(address, *ordinal));
                }
                for record in &update.endpoints {
                    self.digests.insert(endpoint(&record.address, record.ordinal), record.digest);
                }
            }
        }
        self.digests.values().fold(0, |sum, digest| sum.wrapping_add(*digest))
    }
}

/// Reports a state as applied.
pub(crate) async fn report(channel: Channel, revision: Revision) -> anyhow::Result<()> {
    let applied = wire::Revision { instance: format!("{:016x}", revision.instance), number: revision.rev };
    let family = |family: IpFamily| FamilyStatus {
        family: family.into(),
        applied: Some(applied.clone()),
        ..FamilyStatus::default()
    };
    let report = ReportStatusRequest {
        reader_name: "broken".to_owned(),
        received: Some(applied.clone()),
        families: vec![family(IpFamily::Ipv4), family(IpFamily::Ipv6)],
        ..ReportStatusRequest::default()
    };
    BackendServiceClient::new(channel).report_status(report).await?;
    Ok(())
}
