//! Replaces names and addresses in a sysdump. It keeps the state, the history and the numbers of the status. It omits reasons, warnings,
//! configurations and the kernel, because their texts and rules contain names and addresses.

use localnet_proto::{
    Digest,
    decode::DecodeError,
    history::{Entry, Past, entry::Event},
    sysdump::Sysdump,
    wire::{BackendReport, BrainStatus, FamilyReport, ReceivedReport, SourceProblem},
};

use super::{Anonymiser, REMOVED};

impl Anonymiser {
    /// Replaces a sysdump.
    ///
    /// # Errors
    /// Returns an error if the sysdump has no valid state.
    pub fn sysdump(&mut self, content: &Sysdump) -> Result<Sysdump, DecodeError> {
        let real = content.state()?;
        let past = Past::from(real.clone());
        let recorded: Vec<&Entry> = content.history.iter().filter(|entry| reaches(entry, real.revision.rev)).collect();
        let known = known(past.clone(), &recorded);
        let mut first = past;
        for change in recorded[known..].iter().rev().filter_map(|entry| change_of(entry)) {
            // `known` has found that these changes fit.
            _ = first.back(change);
        }
        self.state(&first.state);
        let history = recorded[known..].iter().filter_map(|entry| self.entry((*entry).clone()).ok()).collect();
        let state = self.state(&real);
        let digests = (Digest::of(&real).0, Digest::of(&state).0);
        let status = content.status.as_ref().map(|status| numbers_of(status, digests));
        let mut anonymous = Sysdump { time_millis: content.time_millis, status, history, ..Sysdump::default() };
        anonymous.set_state(&state);
        Ok(anonymous)
    }
}

/// Whether an entry belongs to the time before a revision. Full states are not needed, because the sysdump contains the newest one.
fn reaches(entry: &Entry, rev: u64) -> bool {
    match &entry.event {
        Some(Event::Change(change)) => change.rev <= rev,
        Some(Event::State(_)) => false,
        _ => true,
    }
}

fn change_of(entry: &Entry) -> Option<&localnet_proto::history::Change> {
    match &entry.event {
        Some(Event::Change(change)) => Some(change),
        _ => None,
    }
}

/// The index of the first entry from which on the recorded changes lead to this state.
fn known(mut past: Past, entries: &[&Entry]) -> usize {
    let mut breaks = |entry: &Entry| change_of(entry).is_some_and(|change| past.back(change).is_err());
    let fitting = entries.iter().rev().position(|entry| breaks(entry));
    fitting.map_or(0, |fitting| entries.len() - fitting)
}

fn numbers_of(status: &BrainStatus, (real, anonymous): (u64, u64)) -> BrainStatus {
    let digest = |digest: u64| if digest == real { anonymous } else { 0 };
    let removed = |text: &str| if text.is_empty() { String::new() } else { REMOVED.to_owned() };
    let family = |family: &FamilyReport| FamilyReport {
        error: removed(&family.error),
        applied_digest: digest(family.applied_digest),
        ..family.clone()
    };
    let report = |report: &BackendReport| BackendReport {
        families: report.families.iter().map(family).collect(),
        skipped: Vec::new(),
        warnings: Vec::new(),
        configuration: None,
        ..report.clone()
    };
    let backends = status
        .backends
        .iter()
        .map(|received| ReceivedReport { report: received.report.as_ref().map(report), ..received.clone() });
    let problems =
        status.source_problems.iter().map(|of| SourceProblem { problem: removed(&of.problem), ..of.clone() });
    BrainStatus {
        backends: backends.collect(),
        source_problems: problems.collect(),
        digest: digest(status.digest),
        ..status.clone()
    }
}
