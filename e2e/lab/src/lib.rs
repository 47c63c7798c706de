//! Small networks of namespaces, probes, and the Cases that every test layer reads.
