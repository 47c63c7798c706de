//! Where the objects come from. Each source sends batches of [`Event`](crate::cluster::Event)s; one batch takes effect at once.

pub mod file;
pub mod kube;
