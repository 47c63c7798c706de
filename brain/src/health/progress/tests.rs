//! Tests of the health that follows from a sequence of revisions and reports.

use super::*;
use localnet_proto::wire::{FamilyReport, IpFamily};

/// The timeout in kube-proxy's tests.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A brain at a point in time.
struct Story {
    progress: Progress,
    rev: u64,
    start: Moment,
    now: Moment,
}

const V4: Family = Family::V4;
const V6: Family = Family::V6;

impl Story {
    fn new() -> Self {
        let now = Moment { at: Instant::now(), wall: SystemTime::UNIX_EPOCH };
        let mut story = Self { progress: Progress::new(TIMEOUT), rev: 0, start: now, now };
        story.publish();
        story
    }

    fn step(&mut self, seconds: u64) {
        self.advance(Duration::from_secs(seconds));
    }

    fn advance(&mut self, time: Duration) {
        self.now.at += time;
        self.now.wall += time;
    }

    fn publish(&mut self) {
        self.rev += 1;
        self.progress.publish(Revision { instance: 7, rev: self.rev }, self.now.at);
    }

    fn report(&mut self, backend: &str, instance: u64, applied: &[(Family, u64, &str)]) {
        let families = applied.iter().map(|(family, rev, error)| FamilyReport {
            family: IpFamily::from(*family).into(),
            applied_rev: *rev,
            error: (*error).to_owned(),
            ..FamilyReport::default()
        });
        let families = families.collect();
        let report = BackendReport {
            backend: backend.to_owned(),
            instance_id: instance,
            rev: self.rev,
            families,
            ..BackendReport::default()
        };
        self.progress.report(&report, self.now);
    }

    fn applied(&mut self, backend: &str, v4: u64, v6: u64) {
        self.report(backend, 7, &[(V4, v4, ""), (V6, v6, "")]);
    }

    /// Compares the health: family, seconds from the start to its last update, and its late backends.
    #[track_caller]
    fn check(&self, expected: &[(Family, u64, &[&str])]) {
        let health = self.progress.health(self.now.at);
        let families = health.families.iter().map(|(family, health)| {
            let updated = health.last_updated.duration_since(self.start.wall).unwrap();
            (*family, updated.as_secs(), health.late.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let families: Vec<_> = families.collect();
        let expected: Vec<_> = expected.iter().map(|(family, at, late)| (*family, *at, late.to_vec())).collect();
        assert_eq!(families, expected);
        assert_eq!(health.is_healthy(), expected.iter().all(|(_, _, late)| late.is_empty()));
    }
}

/// Follows `testProxyHealthUpdater` of kube-proxy, the first half of `TestHealthzServer` and `TestLivezServer`.
#[test]
fn each_family_is_late_independently() {
    let mut story = Story::new();
    story.check(&[]);
    story.applied("nft", 1, 1);
    story.check(&[(V4, 0, &[]), (V6, 0, &[])]);
    story.step(25);
    story.check(&[(V4, 0, &[]), (V6, 0, &[])]);
    // IPv4 is late.
    story.publish();
    story.applied("nft", 1, 2);
    story.step(25);
    story.check(&[(V4, 25, &["nft"]), (V6, 25, &[])]);
    story.applied("nft", 2, 2);
    story.step(5);
    story.check(&[(V4, 50, &[]), (V6, 50, &[])]);
    // IPv6 is late.
    story.publish();
    story.report("nft", 7, &[(V4, 3, ""), (V6, 2, "no such table")]);
    story.step(25);
    story.check(&[(V4, 55, &[]), (V6, 50, &["nft"])]);
    story.applied("nft", 3, 3);
    story.step(5);
    story.check(&[(V4, 80, &[]), (V6, 80, &[])]);
    // Both are late.
    story.publish();
    story.step(25);
    story.check(&[(V4, 80, &["nft"]), (V6, 80, &["nft"])]);
    // A success in one family does not help the other.
    story.report("nft", 7, &[(V4, 4, ""), (V6, 3, "busy")]);
    story.check(&[(V4, 110, &[]), (V6, 80, &["nft"])]);
    story.applied("nft", 4, 4);
    story.check(&[(V4, 110, &[]), (V6, 110, &[])]);
}

#[test]
fn a_backend_is_late_from_the_timeout_on() {
    let mut story = Story::new();
    story.applied("nft", 1, 1);
    story.publish();
    story.step(9);
    story.check(&[(V4, 0, &[]), (V6, 0, &[])]);
    story.step(1);
    story.check(&[(V4, 0, &["nft"]), (V6, 0, &["nft"])]);
}

#[test]
fn the_oldest_pending_revision_counts() {
    let mut story = Story::new();
    story.applied("nft", 1, 1);
    for _ in 0..5 {
        story.publish();
        story.step(2);
    }
    story.check(&[(V4, 0, &["nft"]), (V6, 0, &["nft"])]);
    // The backend makes progress. The oldest pending revision is now 6 seconds old.
    story.applied("nft", 3, 3);
    story.check(&[(V4, 10, &[]), (V6, 10, &[])]);
    story.step(4);
    story.check(&[(V4, 10, &["nft"]), (V6, 10, &["nft"])]);
}

#[test]
fn a_backend_that_keeps_up_with_a_flood_is_healthy_and_memory_is_bounded() {
    let mut story = Story::new();
    for _ in 0..20_000 {
        story.publish();
        story.advance(Duration::from_millis(100));
        let applied = story.rev.saturating_sub(5);
        story.applied("nft", applied, applied);
    }
    assert!(story.progress.health(story.now.at).is_healthy());
    assert!(
        story.progress.published.0.len() <= 2 + REPLACED.as_secs() as usize,
        "{}",
        story.progress.published.0.len()
    );
}

#[test]
fn only_reported_families_have_health() {
    let mut story = Story::new();
    story.report("nft", 7, &[(V4, 1, "")]);
    story.check(&[(V4, 0, &[])]);
    story.report("nft", 7, &[(V6, 1, "")]);
    story.check(&[(V6, 0, &[])]);
}

#[test]
fn the_slowest_backend_counts() {
    let mut story = Story::new();
    story.applied("ipvs", 1, 1);
    story.step(1);
    story.applied("nft", 1, 1);
    story.check(&[(V4, 0, &[]), (V6, 0, &[])]);
    story.publish();
    story.applied("nft", 2, 2);
    story.step(10);
    story.check(&[(V4, 0, &["ipvs"]), (V6, 0, &["ipvs"])]);
}

#[test]
fn a_silent_backend_counts_as_replaced_if_another_keeps_up() {
    let mut story = Story::new();
    story.applied("ipvs", 1, 1);
    story.applied("nft", 1, 1);
    story.step(3600);
    story.publish();
    story.applied("nft", 2, 2);
    story.step(599);
    story.check(&[(V4, 0, &["ipvs"]), (V6, 0, &["ipvs"])]);
    story.step(1);
    story.check(&[(V4, 3600, &[]), (V6, 3600, &[])]);
    // It reports again.
    story.report("ipvs", 7, &[(V4, 1, "x"), (V6, 1, "x")]);
    story.check(&[(V4, 0, &["ipvs"]), (V6, 0, &["ipvs"])]);
    story.step(599);
    story.check(&[(V4, 0, &["ipvs"]), (V6, 0, &["ipvs"])]);
}

#[test]
fn a_flood_of_revisions_does_not_reset_the_age_of_a_late_backend() {
    let mut story = Story::new();
    story.applied("ipvs", 1, 1);
    for _ in 0..1300 {
        story.publish();
        story.step(1);
        story.report("nft", 7, &[(V4, story.rev, "")]);
    }
    story.check(&[(V4, 1300, &[]), (V6, 0, &["ipvs"])]);
}

#[test]
fn the_only_backend_never_counts_as_replaced() {
    let mut story = Story::new();
    story.applied("nft", 1, 1);
    story.publish();
    story.step(100_000);
    story.check(&[(V4, 0, &["nft"]), (V6, 0, &["nft"])]);
}

#[test]
fn a_new_backend_has_the_whole_timeout() {
    let mut story = Story::new();
    story.step(1000);
    story.report("nft", 7, &[(V4, 0, "no such file")]);
    story.check(&[(V4, 1000, &[])]);
    story.step(9);
    story.report("nft", 7, &[(V4, 0, "no such file")]);
    story.check(&[(V4, 1000, &[])]);
    story.step(1);
    story.check(&[(V4, 1000, &["nft"])]);
}

#[test]
fn a_restarted_backend_has_the_whole_timeout_again() {
    let mut story = Story::new();
    story.applied("nft", 1, 1);
    story.step(1000);
    story.report("nft", 7, &[(V4, 0, "no such file")]);
    story.check(&[(V4, 1000, &[])]);
    story.step(10);
    story.check(&[(V4, 1000, &["nft"])]);
}

#[test]
fn revisions_of_a_former_brain_do_not_count() {
    let mut story = Story::new();
    story.report("nft", 6, &[(V4, 100, "")]);
    story.check(&[(V4, 0, &[])]);
    story.step(5);
    story.report("nft", 6, &[(V4, 101, "")]);
    story.check(&[(V4, 0, &[])]);
    story.step(5);
    story.check(&[(V4, 0, &["nft"])]);
    story.applied("nft", 1, 1);
    story.check(&[(V4, 10, &[]), (V6, 10, &[])]);
}

#[test]
fn a_report_may_arrive_before_its_revision_is_recorded() {
    let mut story = Story::new();
    story.applied("nft", 2, 2);
    story.publish();
    story.step(100);
    story.check(&[(V4, 0, &[]), (V6, 0, &[])]);
}
