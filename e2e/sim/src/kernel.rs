//! The kernel of a run: a fake kernel, its faults and its flows. The backend may crash; the kernel stays.

use std::{
    fmt::{self, Display},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use localnet_proto::Family;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    flows::Flows,
    ledger::Ledger,
    subsystem::{Edit, Subsystem},
    trace::Trace,
};

/// The most commits without any time in between. Some kernels commit each endpoint of each VIP for itself.
const MOST_AT_ONCE: u32 = 20_000;

/// What happens to the next commits of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// The kernel refuses the commit for lack of memory or space.
    Short,
    /// The commit is lost, and so is the answer.
    Unanswered,
    /// The kernel commits, but the answer is lost.
    AnswerLost,
    /// The backend crashes before the commit.
    CrashBefore,
    /// The backend crashes after the commit.
    CrashAfter,
    /// Another program changes the backend's objects immediately before the commit.
    EditBefore,
    /// Another program changes the backend's objects immediately after the commit.
    EditAfter,
}

/// Why the kernel does not do what the backend asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The backend lacks its privileges.
    Denied,
    /// The kernel is short of memory or space.
    Short,
    /// The answer is lost.
    Unanswered,
    /// A read fails.
    Unreadable,
}

/// The kernel. Clones share it.
pub struct Kernel<S: Subsystem>(Arc<Mutex<State<S>>>);

impl<S: Subsystem> Clone for Kernel<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Subsystem> fmt::Debug for Kernel<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kernel")
    }
}

struct State<S: Subsystem> {
    fake: S,
    flows: Flows,
    faults: Vec<CommitFault>,
    /// How many commits precede those that fail.
    spared: u32,
    /// Whether some commits lack memory.
    is_short: bool,
    /// Whether a fault or another program has disturbed the sync since it started.
    is_troubled: bool,
    /// Whether the kernel has refused a change since the last sync started, because it refuses some objects, or because of another program.
    has_refused: bool,
    /// Whether a sync runs, and whether nothing has disturbed the one before.
    syncs: bool,
    was_calm: bool,
    /// When the last commit was tried, and how many were at this time.
    last: (Instant, u32),
    is_denied: bool,
    is_unreadable: bool,
    rng: StdRng,
    commits: usize,
    subscriber: Option<mpsc::UnboundedSender<S::Notice>>,
    ledger: Ledger,
    trace: Trace,
}

impl<S: Subsystem> Kernel<S> {
    /// A kernel with this subsystem, whose faults follow from `seed`. It reports its commits to `ledger`.
    pub fn new(fake: S, seed: u64, ledger: Ledger, trace: Trace) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let flows = Flows::new(rng.random(), ledger.clone(), trace.clone());
        let (faults, is_denied, is_unreadable) = (Vec::new(), false, false);
        let (commits, subscriber) = (0, None);
        Self(Arc::new(Mutex::new(State {
            fake,
            flows,
            faults,
            spared: 0,
            is_short: false,
            is_troubled: false,
            has_refused: false,
            syncs: false,
            was_calm: false,
            last: (Instant::now(), 0),
            is_denied,
            is_unreadable,
            rng,
            commits,
            subscriber,
            ledger,
            trace,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tracked flows.
    pub fn flows(&self) -> Flows {
        self.lock().flows.clone()
    }

    /// A copy of the subsystem.
    pub fn contents(&self) -> S {
        self.lock().fake.clone()
    }

    /// The number of commits of the backend so far.
    pub fn commits(&self) -> usize {
        self.lock().commits
    }

    /// Lets commits fail after the next `spared` ones, as in the middle of a large change.
    pub fn fail_after(&self, spared: u32, faults: Vec<CommitFault>) {
        let state = &mut *self.lock();
        (state.spared, state.faults) = (spared, faults);
    }

    /// Takes the backend's privileges.
    pub fn deny(&self) {
        self.lock().is_denied = true;
    }

    /// Lets reads fail.
    pub fn hide(&self) {
        self.lock().is_unreadable = true;
    }

    /// Lets some commits lack memory.
    pub fn set_short(&self) {
        self.lock().is_short = true;
    }

    /// A sync starts.
    pub fn sync_starts(&self) {
        let state = &mut *self.lock();
        (state.is_troubled, state.has_refused, state.syncs) = (false, false, true);
    }

    /// A sync has ended. `is_complete`: whether it has succeeded for all families and Services.
    pub fn sync_ends(&self, is_complete: bool) {
        let state = &mut *self.lock();
        (state.syncs, state.was_calm) = (false, is_complete && !state.is_troubled && !state.has_refused);
        // Another program may have removed what leads to a chain, and the backend may not have seen it yet.
        if state.was_calm
            && !state.ledger.is_damaged()
            && let Some(waste) = state.fake.waste()
        {
            state.ledger.violated("no-waste", waste);
        }
    }

    /// Whether a fault or another program has disturbed the sync since it started.
    pub fn is_troubled(&self) -> bool {
        self.lock().is_troubled
    }

    /// Ends all faults.
    pub fn heal(&self) {
        let State { flows, fake, faults, ledger, is_short, is_denied, is_unreadable, .. } = &mut *self.lock();
        flows.set_failing(false);
        flows.set_busy(false);
        flows.set_late(0);
        ledger.hates(false);
        faults.clear();
        (*is_short, *is_denied, *is_unreadable) = (false, false, false);
        fake.heal();
        ledger.healed(fake);
    }

    /// Lets the kernel refuse some of its objects if they are written again.
    pub fn hate(&self) {
        let State { fake, rng, ledger, .. } = &mut *self.lock();
        ledger.hates(true);
        fake.hate(rng);
    }

    /// Another program changes objects of the backend, or, if `elsewhere` is set, objects of its own. If `silent` is set, the backend
    /// gets no notice of it.
    pub fn edit(&self, elsewhere: bool, silent: bool) {
        self.lock().edit(elsewhere, silent);
    }

    /// The notices from now on.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<S::Notice> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let state = &mut *self.lock();
        // The former backend may have crashed during a sync.
        (state.subscriber, state.syncs) = (Some(sender), false);
        receiver
    }

    /// Asks the kernel something that always has an answer.
    pub fn ask<T>(&self, question: impl FnOnce(&mut S) -> T) -> T {
        question(&mut self.lock().fake)
    }

    /// Reads something. `whole`: the families of which the backend thereby sees everything.
    ///
    /// # Errors
    /// Returns what `error` makes of a failure.
    pub fn read<T, E>(
        &self,
        whole: &[Family],
        error: impl FnOnce(Failure) -> E,
        read: impl FnOnce(&mut S) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut state = self.lock();
        if state.is_denied || state.is_unreadable {
            state.is_troubled = true;
            return Err(error(if state.is_denied { Failure::Denied } else { Failure::Unreadable }));
        }
        let answer = read(&mut state.fake)?;
        whole.iter().for_each(|family| state.ledger.read(*family));
        Ok(answer)
    }

    /// Commits a change, with the next fault.
    ///
    /// # Errors
    /// Returns what `error` makes of a failure, or the error of the change.
    pub fn commit<T, E: Display>(
        &self,
        what: impl Display,
        error: impl Fn(Failure) -> E,
        change: impl FnOnce(&mut S) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut state = self.lock();
        if state.is_denied {
            state.is_troubled = true;
            return Err(error(Failure::Denied));
        }
        let now = Instant::now();
        state.last = if state.last.0 == now { (now, state.last.1 + 1) } else { (now, 1) };
        let mut fault = if state.spared == 0 { state.faults.pop() } else { None };
        state.spared = state.spared.saturating_sub(1);
        if state.is_short && state.rng.random() {
            fault = Some(CommitFault::Short);
        }
        if state.last.1 > MOST_AT_ONCE {
            state.ledger.violated("no-hang", "the backend commits again and again without a pause");
            fault = Some(CommitFault::CrashBefore);
        }
        if let Some(fault) = fault {
            state.is_troubled = true;
            state.trace.add(format_args!("fault in a commit: {fault:?}"));
        }
        match fault {
            None => return state.commit(what, change),
            Some(CommitFault::Short) => return Err(error(Failure::Short)),
            Some(CommitFault::Unanswered) => return Err(error(Failure::Unanswered)),
            Some(CommitFault::AnswerLost) => return state.commit(what, change).and(Err(error(Failure::Unanswered))),
            Some(CommitFault::EditBefore) => {
                state.edit(false, false);
                return state.commit(what, change);
            }
            Some(CommitFault::EditAfter) => {
                let result = state.commit(what, change);
                state.edit(false, false);
                return result;
            }
            Some(CommitFault::CrashBefore) => {}
            Some(CommitFault::CrashAfter) => _ = state.commit(what, change),
        }
        drop(state);
        std::panic::resume_unwind(Box::new(Crash))
    }
}

impl<S: Subsystem> State<S> {
    fn edit(&mut self, elsewhere: bool, silent: bool) {
        self.is_troubled = true;
        let Edit { what, damages, notice } = self.fake.edit(&mut self.rng, elsewhere, silent);
        if !damages.is_empty() {
            self.ledger.damaged(&damages, &self.fake);
            if !S::SEES_ALL_FLOWS {
                self.flows.lose();
            }
            self.flows.send();
        }
        self.trace.add(format_args!("another program {what}"));
        if let (Some(subscriber), Some(notice)) = (&self.subscriber, notice) {
            // This fails while the backend does not run.
            _ = subscriber.send(notice);
        }
    }

    fn commit<T, E: Display>(
        &mut self,
        what: impl Display,
        change: impl FnOnce(&mut S) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = change(&mut self.fake);
        match &result {
            Ok(_) => {
                self.commits += 1;
                self.trace.add(format_args!("commit of {what}"));
                self.ledger.committed(&self.fake);
            }
            Err(error) => {
                let may_refuse = self.ledger.may_refuse();
                self.has_refused |= may_refuse;
                if S::IS_KNOWN && self.syncs && self.was_calm && !may_refuse && !self.is_troubled {
                    self.ledger.violated("no-vain-commits", format!("the kernel refuses a commit: {error}"));
                }
                self.trace.add(format_args!("the kernel refuses a commit: {error}"));
            }
        }
        result
    }
}

/// What a simulated crash unwinds with. It differs from a panic in that no hook reports it.
#[derive(Debug)]
pub struct Crash;
