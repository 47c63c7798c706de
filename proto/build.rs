//! Compiles the proto files without a system protoc, and keeps the descriptors (with comments) for reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=localnetv1.proto");
    println!("cargo:rerun-if-changed=localv1.proto");
    println!("cargo:rerun-if-changed=historyv1alpha1.proto");
    println!("cargo:rerun-if-changed=sysdumpv1alpha1.proto");
    println!("cargo:rerun-if-changed=trafficv1alpha1.proto");
    let descriptors = protox::Compiler::new(["."])?
        .include_imports(true)
        .include_source_info(true)
        .open_files([
            "localnetv1.proto",
            "localv1.proto",
            "historyv1alpha1.proto",
            "sysdumpv1alpha1.proto",
            "trafficv1alpha1.proto",
        ])?
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
