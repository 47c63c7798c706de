//! Tests that need several of the crates, or the programs as they are shipped: see the `tests` folder of this crate.
