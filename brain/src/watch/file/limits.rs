//! How much a file may ask for: what is read is the operator's own, and may still be broken or copied from anywhere.

/// So many levels may be nested. The thread that reads has the stack for it.
pub(super) const DEEPEST: usize = 128;
/// A document may have so many maps, lists and scalars. A list of 10,000 Services with three endpoints each has a third of
/// them. The parser keeps the keys of a map until the map ends, so this is what bounds its memory.
const NODES: usize = 3_000_000;
/// So many of them may come from aliases.
const FROM_ALIASES: usize = 50_000;
/// So many bytes of text may come from aliases.
const BYTES_FROM_ALIASES: usize = 8 << 20;

/// How a text of a size is read.
pub(super) fn options(length: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEEPEST,
            // The other limit speaks first, and says where.
            flow_nesting_limit: 2 * DEEPEST,
            max_events: usize::MAX,
            max_nodes: NODES,
            // An escape of two characters is three bytes at most.
            max_total_scalar_bytes: 2 * length + BYTES_FROM_ALIASES,
            max_recorded_anchor_events: 4 * FROM_ALIASES,
            max_recorded_anchor_bytes: BYTES_FROM_ALIASES,
            // One anchor may have many aliases, if they are small: what they stand for is counted.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: FROM_ALIASES },
        with_snippet: false,
    }
}
