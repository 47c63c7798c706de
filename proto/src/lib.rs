//! The localnetv1 contract: wire types and the typed model of one node's state.
