//! Cluster objects in, the state of one node out, served as a long poll.
