//! The sources of objects. Each sends batches of [`Event`](localnet_cluster::objects::Event)s. A batch takes effect as a
//! whole.

pub mod file;
pub mod kube;
