//! The services `Backends` and `Traffic`: record the reports of backends, and return the traffic that backends have counted.

use localnet_proto::{
    traffic::{NodeTraffic, TrafficReport, TrafficReportReply, TrafficRequest, traffic_server::Traffic},
    wire::{BackendReport, BackendReportReply, backends_server::Backends},
};
use tonic::{Request, Response, Status};

use crate::reports::Reports;

#[tonic::async_trait]
impl Backends for Reports {
    async fn report(&self, request: Request<BackendReport>) -> Result<Response<BackendReportReply>, Status> {
        self.record(request.into_inner()).map_err(|bad| Status::invalid_argument(bad.to_string()))?;
        Ok(Response::new(BackendReportReply {}))
    }
}

#[tonic::async_trait]
impl Traffic for Reports {
    async fn report(&self, request: Request<TrafficReport>) -> Result<Response<TrafficReportReply>, Status> {
        self.record_traffic(request.into_inner());
        Ok(Response::new(TrafficReportReply {}))
    }

    async fn read(&self, _: Request<TrafficRequest>) -> Result<Response<NodeTraffic>, Status> {
        let backends = self.all().values().filter_map(|received| received.traffic().cloned()).collect();
        Ok(Response::new(NodeTraffic { backends }))
    }
}
