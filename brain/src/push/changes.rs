//! The steps that a program has sent since its last commit. Their memory is bounded by the grant. Pure.

use std::{collections::BTreeMap, sync::Arc};

use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::{ServiceKey, source::PushedService};

use super::{bounds, grants::Grant};

/// Maximum number of problems that are kept.
pub(super) const PROBLEMS: usize = 1000;

/// The steps of a list or a change.
#[derive(Debug)]
pub(crate) struct Changes {
    grant: Arc<Grant>,
    /// Whether Services without a step are removed.
    pub(super) is_complete: bool,
    /// Whether the program has removed all Services explicitly.
    pub(super) is_cleared: bool,
    /// The new version of each Service. `None` if it was removed.
    pub(super) steps: BTreeMap<ServiceKey, Option<Arc<PushedService>>>,
    /// The Services that cannot be used at all.
    pub(super) refused: BTreeMap<ServiceKey, Diagnostic>,
    services: usize,
    endpoints: usize,
}

/// The error for a change that removes too many Services.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "a change may remove at most {0} Services, also with a set that the grant does not allow; send commit more often, or clear"
)]
pub(crate) struct TooManyRemovals(usize);

impl Changes {
    /// The start of a list.
    pub(super) fn list(grant: &Arc<Grant>) -> Self {
        Self { is_complete: true, ..Self::change(grant) }
    }

    /// The start of a change.
    pub(super) fn change(grant: &Arc<Grant>) -> Self {
        Self {
            grant: Arc::clone(grant),
            is_complete: false,
            is_cleared: false,
            steps: BTreeMap::new(),
            refused: BTreeMap::new(),
            services: 0,
            endpoints: 0,
        }
    }

    /// Removes all Services.
    pub(crate) fn clear(&mut self) {
        *self = Self { is_cleared: true, ..Self::list(&self.grant) };
    }

    /// Adds or replaces a Service. Removes it if the grant does not allow it.
    ///
    /// # Errors
    /// Returns an error if a change removes too many Services.
    pub(crate) fn set(&mut self, pushed: PushedService) -> Result<(), TooManyRemovals> {
        let key = bounds::key(&pushed);
        if let Err(problem) = bounds::check(&self.grant, &pushed) {
            // An invalid key belongs to no Service.
            if problem.code != Code::NameInvalid {
                self.take(&key);
                self.put(key.clone(), None);
            }
            self.refuse(key, problem);
            return self.check();
        }
        self.take(&key);
        self.services += 1;
        self.endpoints += bounds::count_endpoints(&pushed);
        self.put(key, Some(Arc::new(pushed)));
        // The Services with the last names go beyond the limits, whatever the other steps are.
        while let Some(problem) = beyond(&self.grant, self.services, self.endpoints)
            && let Some(last) = self.steps.iter().rev().find(|(_, step)| step.is_some()).map(|(key, _)| key.clone())
        {
            self.take(&last);
            self.put(last.clone(), None);
            self.refuse(last.clone(), problem(&last));
        }
        self.check()
    }

    /// Removes a Service.
    ///
    /// # Errors
    /// Returns an error if a change removes too many Services.
    pub(crate) fn remove(&mut self, key: ServiceKey) -> Result<(), TooManyRemovals> {
        self.take(&key);
        self.put(key, None);
        self.check()
    }

    /// Checks the number of removals, which take memory.
    fn check(&self) -> Result<(), TooManyRemovals> {
        let most = 2 * self.grant.max_services as usize;
        if self.steps.len() - self.services > most { Err(TooManyRemovals(most)) } else { Ok(()) }
    }

    /// Removes the step for a Service.
    fn take(&mut self, key: &ServiceKey) {
        self.refused.remove(key);
        if let Some(Some(pushed)) = self.steps.remove(key) {
            self.services -= 1;
            self.endpoints -= bounds::count_endpoints(&pushed);
        }
    }

    fn put(&mut self, key: ServiceKey, step: Option<Arc<PushedService>>) {
        // In a list, a missing step is a removal.
        if step.is_some() || !self.is_complete {
            self.steps.insert(key, step);
        }
    }

    fn refuse(&mut self, key: ServiceKey, problem: Diagnostic) {
        if self.refused.len() < PROBLEMS {
            self.refused.insert(key, problem);
        }
    }
}

/// The problem of a Service that goes beyond the limits of a grant, with which all Services together have these numbers.
pub(super) fn beyond(
    grant: &Grant,
    services: usize,
    endpoints: usize,
) -> Option<impl Fn(&ServiceKey) -> Diagnostic + use<>> {
    let (problem, field) = if services > grant.max_services as usize {
        (
            format!("is beyond the {} Services that the grant {:?} allows", grant.max_services, grant.name.0),
            "maxServices",
        )
    } else if endpoints > grant.max_endpoints as usize {
        (
            format!("is beyond the {} endpoints that the grant {:?} allows", grant.max_endpoints, grant.name.0),
            "maxEndpoints",
        )
    } else {
        return None;
    };
    let remedy = format!("remove other Services or raise {field} of the grant, and push it again");
    Some(move |key: &ServiceKey| {
        let subject = Subject::service(key);
        Diagnostic::new(Code::PushNotGranted, subject, problem.clone()).remedy(remedy.clone())
    })
}
