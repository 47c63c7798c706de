//! The `Backends` service: records the reports of backends.

use localnet_proto::wire::{BackendReport, BackendReportReply, backends_server::Backends};
use tonic::{Request, Response, Status};

use crate::reports::{BadReport, Reports};

#[tonic::async_trait]
impl Backends for Reports {
    async fn report(&self, request: Request<BackendReport>) -> Result<Response<BackendReportReply>, Status> {
        match self.record(request.into_inner()) {
            Ok(()) => Ok(Response::new(BackendReportReply {})),
            Err(bad @ BadReport::Name) => Err(Status::invalid_argument(bad.to_string())),
        }
    }
}
