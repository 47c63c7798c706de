//! Compiles the proto files, for tests of the API and of the generated code.

mod files;

use prost_types::FileDescriptorSet;

pub(crate) use self::files::{DRAFT, FILES};

/// The descriptors of proto files and of those that they import, comments included.
pub(crate) fn descriptors(files: &[&str]) -> FileDescriptorSet {
    let mut compiler = protox::Compiler::new([env!("CARGO_MANIFEST_DIR")]).unwrap();
    compiler.include_imports(true).include_source_info(true).open_files(files).unwrap().file_descriptor_set()
}
