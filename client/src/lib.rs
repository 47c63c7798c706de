//! What a backend author needs: source, loop, full-state and incremental models, DiffStore.
