//! The `Backends` service: records the reports of backends.

use localnet_proto::wire::{BackendReport, BackendReportReply, backends_server::Backends};
use tonic::{Request, Response, Status};

use crate::reports::Reports;

#[tonic::async_trait]
impl Backends for Reports {
    async fn report(&self, request: Request<BackendReport>) -> Result<Response<BackendReportReply>, Status> {
        self.record(request.into_inner()).map_err(|bad| Status::invalid_argument(bad.to_string()))?;
        Ok(Response::new(BackendReportReply {}))
    }
}
