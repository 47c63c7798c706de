//! The replay of a brain's history: it must lead to the states that the brain has published.

use localnet_brain::feed::Feed;
use localnet_proto::{
    Snapshot,
    history::{Entry, Past, entry::Event},
};
use prost::Message as _;

/// Replays the changes that the history contains after the state `first`.
///
/// # Errors
/// Returns a description of the first change that does not fit, or of the difference from the newest state.
pub fn replay(first: Snapshot, feed: &Feed) -> Result<(), String> {
    let mut past = Past::from(first);
    for entry in feed.history().entries() {
        let entry = Entry::decode(entry).map_err(|error| error.to_string())?;
        let Some(Event::Change(change)) = entry.event else { continue };
        let before = past.state.revision.rev;
        if change.rev <= before {
            continue;
        }
        if change.rev != before + 1 {
            return Err(format!("in the history, revision {} follows {before}", change.rev));
        }
        past.forward(&change).map_err(|error| error.to_string())?;
    }
    let (replayed, newest) = ((past.state.revision, past.digest), (feed.state().revision(), feed.state().digest()));
    if replayed == newest { Ok(()) } else { Err(format!("the history leads to {replayed:?}, and not to {newest:?}")) }
}
