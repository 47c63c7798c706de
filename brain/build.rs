//! Compiles the proto files without a system protoc to their descriptors (with comments), for reflection.

#[path = "../proto/tests/compiled/files.rs"]
mod files;

use std::{env, error::Error, fs, path::PathBuf};

use files::{DRAFT, FILES};

const FOLDER: &str = "../proto";

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
