//! `--dry-run`: prints the plan of each state.

use std::io::{self, Write as _};

use localnet_config::Mode;
use localnet_core::Diagnostic;
use localnet_proto::{Changes, Snapshot};

use super::BackendProgram;
use crate::backend::{Backend, Synced};

/// Plans states and programs nothing.
pub trait Planner: Send {
    /// The plan of `state`, as text, and the diagnostics for everything that is skipped. `state` differs from the
    /// previous state only in `changes`.
    ///
    /// # Errors
    /// Returns an error if the state cannot be planned.
    fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(String, Vec<Diagnostic>)>;
}

/// Prints the plan of each state.
pub(super) struct DryRun<P: BackendProgram>(pub(super) P::Planner);

impl<P: BackendProgram> Backend for DryRun<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn mode(&self) -> Option<Mode> {
        Some(P::MODE)
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        let (text, skipped) = self.0.plan(state, changes)?;
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(Synced { skipped, ..Synced::default() })
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
