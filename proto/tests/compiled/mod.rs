//! Compiles the proto files, for tests of the API and of the generated code.

use prost_types::FileDescriptorSet;

/// The files of the packages that brains always serve.
pub(crate) const FILES: [&str; 6] = [
    "localnetv1.proto",
    "localv1.proto",
    "historyv1alpha1.proto",
    "sysdumpv1alpha1.proto",
    "trafficv1alpha1.proto",
    "localnet/source/v1alpha1/source.proto",
];

/// The files of the draft of `localnet.v1`.
pub(crate) const DRAFT: [&str; 5] = [
    "localnet/v1/error.proto",
    "localnet/v1/node.proto",
    "localnet/v1/reader.proto",
    "localnet/v1/service.proto",
    "localnet/v1/state.proto",
];

/// The descriptors of proto files and of those that they import, comments included.
pub(crate) fn descriptors(files: &[&str]) -> FileDescriptorSet {
    let mut compiler = protox::Compiler::new([env!("CARGO_MANIFEST_DIR")]).unwrap();
    compiler.include_imports(true).include_source_info(true).open_files(files).unwrap().file_descriptor_set()
}
