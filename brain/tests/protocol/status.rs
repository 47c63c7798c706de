//! Tests of `BackendService.ReportStatus` of the draft `localnet.v1`: what it refuses, and what it keeps.

use localnet_proto::{
    Revision,
    v1::{
        ErrorInfo,
        wire::{self, ErrorReason, ReportStatusRequest, SkippedParts, backend_service_client::BackendServiceClient},
    },
    wire::{BackendReport, backends_client::BackendsClient},
};
use tonic::{Code, Status, transport::Channel};

use crate::server::{Server, applied, at, service, soon};

fn report(rev: u64) -> ReportStatusRequest {
    ReportStatusRequest { reader_name: "nft".to_owned(), received: Some(at(rev).into()), ..Default::default() }
}

/// A report that nothing, or one part, is skipped.
fn skipping(count: u32) -> ReportStatusRequest {
    ReportStatusRequest { skipped: Some(SkippedParts { parts: Vec::new(), count }), ..report(1) }
}

/// Whether the brain wants a complete report.
async fn wanted(client: &mut BackendServiceClient<Channel>, report: ReportStatusRequest) -> Result<bool, Status> {
    Ok(soon(client.report_status(report)).await?.into_inner().complete_report_wanted)
}

#[tokio::test]
async fn an_unset_field_is_unchanged_since_the_last_report() {
    let server = Server::draft().await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let mut client = BackendServiceClient::new(server.channel().await);
    let skipped = || server.reports.last("nft").unwrap().report.skipped_count;
    assert!(wanted(&mut client, report(1)).await.unwrap(), "the brain is new");
    assert!(wanted(&mut client, report(1)).await.unwrap(), "and still does not know");
    assert!(!wanted(&mut client, skipping(1)).await.unwrap());
    assert!(!wanted(&mut client, report(1)).await.unwrap());
    assert_eq!(skipped(), 1);
    assert!(!wanted(&mut client, skipping(0)).await.unwrap());
    assert_eq!(skipped(), 0);
    let traffic = Some(wire::TrafficSettings { masquerade_mark_bit: Some(3), ..Default::default() });
    let bit = || server.reports.last("nft").unwrap().report.configuration.map(|of| of.masquerade_bit);
    assert_eq!(bit(), None, "the node has no settings");
    for traffic in [traffic, None] {
        wanted(&mut client, ReportStatusRequest { traffic, ..report(1) }).await.unwrap();
        assert_eq!(bit(), Some(3));
    }

    // A backend of this name that reports to localnetv1 is another version.
    let older = BackendReport { backend: "nft".to_owned(), ..BackendReport::default() };
    soon(BackendsClient::new(server.channel().await).report(older)).await.unwrap();
    assert!(wanted(&mut client, report(1)).await.unwrap());
    assert_eq!(bit(), None);
    server.shutdown().await;
}

#[tokio::test]
async fn a_refused_report_has_a_reason_and_changes_nothing() {
    let server = Server::draft().await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let mut client = BackendServiceClient::new(server.channel().await);
    wanted(&mut client, report(1)).await.unwrap();
    let before = server.reports.last("nft");
    let invalid = ErrorInfo::new(ErrorReason::InvalidRequest).with("field", "kube_proxy_mode");
    let unknown = ErrorInfo::new(ErrorReason::RevisionUnknown);
    let unknown = unknown.with("revision", "0000000000000007:2").with("newest", "0000000000000007:1");
    let mode = ReportStatusRequest { kube_proxy_mode: "userspace".to_owned(), ..report(1) };
    for (request, code, expected) in [(mode, Code::InvalidArgument, invalid), (report(2), Code::OutOfRange, unknown)] {
        let status = wanted(&mut client, request).await.unwrap_err();
        let mut info = ErrorInfo::of(&status).unwrap();
        info.metadata.remove("problem");
        assert_eq!((status.code(), info), (code, expected));
        assert_eq!(server.reports.last("nft"), before);
    }
    // A revision of a former brain may have any number.
    let former = Some(Revision { instance: 8, rev: 70 }.into());
    wanted(&mut client, ReportStatusRequest { received: former, ..report(1) }).await.unwrap();
    assert_eq!(server.reports.last("nft").unwrap().report.instance_id, 8);
    server.shutdown().await;
}

#[tokio::test]
async fn without_the_flag_no_report_of_the_draft_is_accepted() {
    let server = Server::unix().await;
    let mut client = BackendServiceClient::new(server.channel().await);
    assert_eq!(wanted(&mut client, report(0)).await.unwrap_err().code(), Code::Unimplemented);
    server.shutdown().await;
}
