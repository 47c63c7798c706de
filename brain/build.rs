//! Compiles the proto files without a system protoc to their descriptors (with comments), for reflection.

use std::{env, error::Error, fs, path::PathBuf};

const FOLDER: &str = "../proto";
const FILES: [&str; 6] = [
    "localnetv1.proto",
    "localv1.proto",
    "historyv1alpha1.proto",
    "sysdumpv1alpha1.proto",
    "trafficv1alpha1.proto",
    "localnet/source/v1alpha1/source.proto",
];

/// The draft of `localnet.v1`. Its descriptors are separate, because most brains do not serve it.
const DRAFT: [&str; 5] = [
    "localnet/v1/error.proto",
    "localnet/v1/node.proto",
    "localnet/v1/reader.proto",
    "localnet/v1/service.proto",
    "localnet/v1/state.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for (files, name) in [(&FILES[..], "localnetv1.binpb"), (&DRAFT, "localnet.v1.binpb")] {
        for file in files {
            println!("cargo:rerun-if-changed={FOLDER}/{file}");
        }
        let descriptors = protox::Compiler::new([FOLDER])?
            .include_imports(true)
            .include_source_info(true)
            .open_files(files)?
            .encode_file_descriptor_set();
        fs::write(out.join(name), descriptors)?;
    }
    Ok(())
}
