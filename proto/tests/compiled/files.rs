//! The proto files, for these tests and for `brain/build.rs`.

/// The files of the packages that brains always serve.
pub(crate) const FILES: [&str; 6] = [
    "localnetv1.proto",
    "localv1.proto",
    "historyv1alpha1.proto",
    "sysdumpv1alpha1.proto",
    "trafficv1alpha1.proto",
    "localnet/source/v1alpha1/source.proto",
];

/// The files of the draft of `localnet.v1`, and of the alpha packages that refer to it.
pub(crate) const DRAFT: [&str; 7] = [
    "localnet/reasons/v1alpha1/reasons.proto",
    "localnet/v1/backend.proto",
    "localnet/v1/error.proto",
    "localnet/v1/node.proto",
    "localnet/v1/reader.proto",
    "localnet/v1/service.proto",
    "localnet/v1/state.proto",
];
