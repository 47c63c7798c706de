//! `BackendService` of the draft `localnet.v1`: records the reports of backends, in the form of those of `localnetv1`.

use localnet_proto::v1::{
    ErrorInfo,
    report::BackendStatus,
    wire::{ErrorReason, ReportStatusRequest, ReportStatusResponse, backend_service_server::BackendService},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::{feed::Feed, reports::Reports};

/// The handler of `ReportStatus`.
#[derive(Clone, Debug)]
pub(super) struct Backends {
    feed: Feed,
    reports: Reports,
    stop: CancellationToken,
}

impl Backends {
    /// Records into `reports`. `feed` is the feed of the brain's own node.
    pub(super) fn new(feed: Feed, reports: Reports, stop: CancellationToken) -> Self {
        Self { feed, reports, stop }
    }
}

#[tonic::async_trait]
impl BackendService for Backends {
    async fn report_status(
        &self,
        request: Request<ReportStatusRequest>,
    ) -> Result<Response<ReportStatusResponse>, Status> {
        if self.stop.is_cancelled() {
            return Err(ErrorInfo::new(ErrorReason::ShuttingDown).status("the brain is shutting down; retry the call"));
        }
        let is_complete = self.feed.known(|known| {
            let status = BackendStatus::checked(request.into_inner(), known.newest)?;
            Ok::<_, Status>(self.reports.record_status(status, known))
        });
        Ok(Response::new(ReportStatusResponse { complete_report_wanted: !is_complete? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_report_during_the_shutdown_has_a_reason() {
        let (feed, stop) = (Feed::with_records(7, std::sync::Arc::default()), CancellationToken::new());
        let backends = Backends::new(feed, Reports::default(), stop.clone());
        let report = || ReportStatusRequest { reader_name: "nft".to_owned(), ..ReportStatusRequest::default() };
        assert!(backends.report_status(Request::new(report())).await.unwrap().into_inner().complete_report_wanted);
        stop.cancel();
        let status = backends.report_status(Request::new(report())).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert_eq!(ErrorInfo::of(&status), Some(ErrorInfo::new(ErrorReason::ShuttingDown)));
    }
}
