//! Brain and one backend in one process, no gRPC between them.
