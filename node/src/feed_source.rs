//! `FeedSource`: the feed of a brain in the same process, as a [`Source`].

use localnet_brain::{feed::Feed, reports::Reports};
use localnet_client::{Report, Revision, Source, SourceError};
use localnet_proto::{Update, traffic::TrafficReport};

/// A [`Source`] that reads states from a feed, and records the backend's reports together with those of other backends.
#[derive(Clone, Debug)]
pub struct FeedSource {
    feed: Feed,
    reports: Reports,
}

impl FeedSource {
    /// A source that reads states from `feed`, and records reports in `reports`.
    pub fn new(feed: Feed, reports: Reports) -> Self {
        Self { feed, reports }
    }
}

impl Source for FeedSource {
    async fn next(&self, have: Revision, fold: bool) -> Result<Update, SourceError> {
        let _reader = self.feed.metrics().reader();
        let update = self.feed.differing(have).await.update(have, fold);
        update.map_err(|error| SourceError::Invalid(error.to_string()))
    }

    async fn report(&self, report: &Report) -> Result<(), SourceError> {
        self.reports.record(report.into()).map_err(|error| SourceError::Invalid(error.to_string()))
    }

    async fn report_traffic(&self, traffic: &TrafficReport) -> Result<(), SourceError> {
        self.reports.record_traffic(traffic.clone());
        Ok(())
    }

    fn describe(&self) -> String {
        "the brain of this process".to_owned()
    }
}
