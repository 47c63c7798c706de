//! Compiles the proto files without a system protoc, and keeps the descriptors (with comments) for reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 6] = [
    "localnetv1.proto",
    "localv1.proto",
    "historyv1alpha1.proto",
    "sysdumpv1alpha1.proto",
    "trafficv1alpha1.proto",
    "localnet/source/v1alpha1/source.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::Compiler::new(["."])?
        .include_imports(true)
        .include_source_info(true)
        .open_files(FILES)?
        .file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("localnetv1.binpb"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".historyv1alpha1")
        .bytes(".sysdumpv1alpha1")
        .compile_fds(descriptors)?;
    Ok(())
}
