//! The connection between the brain and the backend, with faults, and the wall clock of the node.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use localnet_brain::health::progress::Moment;
use localnet_client::SourceError;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;

/// The connection. Clones share it.
#[derive(Clone, Debug)]
pub struct Link(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rng: StdRng,
    /// How long the backend waits before it requests a state, as on an overloaded node.
    pause: Duration,
    /// Whether calls break off.
    breaks: bool,
    /// When calls last broke off, or when time last passed without any task.
    disturbed: Instant,
    /// Whether the brain is of an older version, and whether the next one is.
    old: bool,
    next_old: bool,
    /// Whether the brain serves `localnet.v1`, and the backend reads it, unless the brain is of an older version.
    draft: bool,
    /// The wall clock at the start of the run.
    wall: SystemTime,
    start: Instant,
}

/// How a call breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// After this many polls.
    After(u32),
    /// When the answer is complete, but its end is not.
    AtEnd,
}

impl Link {
    /// A connection without faults. `draft` is whether the backend reads `localnet.v1`.
    pub fn new(seed: u64, draft: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            rng: StdRng::seed_from_u64(seed),
            pause: Duration::ZERO,
            breaks: false,
            disturbed: Instant::now(),
            old: false,
            next_old: false,
            draft,
            wall: SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30),
            start: Instant::now(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the backend waits before it requests a state.
    pub fn pause(&self) -> Duration {
        self.lock().pause
    }

    /// Sets how long the backend waits before it requests a state.
    pub fn set_pause(&self, pause: Duration) {
        self.lock().pause = pause;
    }

    /// Lets calls break off.
    pub fn break_calls(&self) {
        self.lock().breaks = true;
    }

    /// Makes a call, which may break off.
    ///
    /// # Errors
    /// Returns the error of the call, or that of the connection.
    pub async fn call<T>(&self, call: impl Future<Output = Result<T, SourceError>>) -> Result<T, SourceError> {
        let error = || SourceError::Broken("the simulation has cut the connection".to_owned());
        match self.cut() {
            None => call.await,
            Some(Cut::AtEnd) => call.await.and(Err(error())),
            Some(Cut::After(polls)) => {
                let cut = async {
                    for _ in 0..polls {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::select! {
                    biased;
                    result = call => result,
                    () = cut => Err(error()),
                }
            }
        }
    }

    /// How the next call breaks off, if it does.
    fn cut(&self) -> Option<Cut> {
        let State { rng, breaks, .. } = &mut *self.lock();
        let cut = if rng.random() { Cut::AtEnd } else { Cut::After(rng.random_range(0..30)) };
        (*breaks && rng.random()).then_some(cut)
    }

    /// Ends all faults of calls. The brain keeps its version.
    pub fn heal(&self) {
        let state = &mut *self.lock();
        if state.breaks || !state.pause.is_zero() {
            state.disturbed = Instant::now();
        }
        (state.breaks, state.pause) = (false, Duration::ZERO);
    }

    /// Time has passed, and no task has run.
    pub fn stood_still(&self) {
        self.lock().disturbed = Instant::now();
    }

    /// Since when calls have worked.
    pub fn calm_since(&self) -> Instant {
        let state = self.lock();
        if state.breaks { Instant::now() } else { state.disturbed }
    }

    /// The next brain is of an older version: it sends no deltas, and knows neither reports nor `localnet.v1`.
    pub fn downgrade_next(&self) {
        self.lock().next_old = true;
    }

    /// A brain starts.
    pub fn brain_starts(&self) {
        let state = &mut *self.lock();
        state.old = std::mem::take(&mut state.next_old);
    }

    /// Whether the brain is of an older version.
    pub fn is_old(&self) -> bool {
        self.lock().old
    }

    /// Whether the brain serves `localnet.v1`, which older versions do not know.
    pub fn has_draft(&self) -> bool {
        let state = self.lock();
        state.draft && !state.old
    }

    /// The wall clock jumps.
    pub fn jump(&self, forward: bool, by: Duration) {
        let state = &mut *self.lock();
        state.wall = if forward { state.wall + by } else { state.wall - by };
    }

    /// The time on both clocks of the node.
    pub fn now(&self) -> Moment {
        let state = self.lock();
        Moment { at: Instant::now().into_std(), wall: state.wall + state.start.elapsed() }
    }
}
