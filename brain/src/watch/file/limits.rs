//! Limits for the content of files. The files belong to the operator, but they may be broken or come from any source.

/// Maximum depth of nesting. The stack of the reading thread is large enough for this depth.
pub(super) const DEEPEST: usize = 128;
/// Maximum number of maps, lists and scalars in a document. A list of 10,000 Services with three endpoints each contains
/// a third of this number. The parser keeps the keys of a map until the map ends, so this limit bounds the parser's
/// memory.
const NODES: usize = 3_000_000;
/// Maximum number of nodes that come from aliases.
const FROM_ALIASES: usize = 50_000;
/// Maximum number of bytes of text that come from aliases.
const BYTES_FROM_ALIASES: usize = 8 << 20;

/// The parser options for a text of a given length in bytes.
pub(super) fn options(length: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEEPEST,
            // Higher than `max_depth`, so that `max_depth` takes effect first: only its error contains the line.
            flow_nesting_limit: 2 * DEEPEST,
            max_events: usize::MAX,
            max_nodes: NODES,
            // An escape of two characters expands to at most three bytes.
            max_total_scalar_bytes: 2 * length + BYTES_FROM_ALIASES,
            max_recorded_anchor_events: 4 * FROM_ALIASES,
            max_recorded_anchor_bytes: BYTES_FROM_ALIASES,
            // An anchor may have many small aliases, because another limit applies to the nodes that they expand to.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: FROM_ALIASES },
        with_snippet: false,
    }
}
