//! The files in `src/generated` are what tonic generates from the proto files. They are in the repository so that the crate
//! needs no build script. UPDATE_EXPECT=1 rewrites them.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod compiled;

use std::{collections::BTreeMap, env, fs, path::Path};

const GENERATED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/generated");

/// The files in a folder, by name.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let file =
        |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap());
    entries.map(file).collect()
}

#[test]
fn the_code_is_generated_from_the_proto_files() {
    let out = tempfile::tempdir().unwrap();
    let (draft, alpha): (Vec<_>, Vec<_>) = compiled::DRAFT.iter().partition(|file| file.starts_with("localnet/v1/"));
    // The alpha packages refer to the module of `localnet.v1`. Its file, which they leave empty, is written last.
    for files in [&alpha[..], &compiled::FILES, &draft] {
        let mut generator = tonic_prost_build::configure();
        if files == alpha {
            generator = generator.extern_path(".localnet.v1", "crate::v1::wire");
        }
        generator
            .build_transport(false)
            .bytes(".historyv1alpha1")
            .bytes(".sysdumpv1alpha1")
            .btree_map(".localnet.v1")
            .out_dir(out.path())
            .compile_fds(compiled::descriptors(files))
            .unwrap();
    }
    let (expected, present) = (files(out.path()), files(Path::new(GENERATED)));
    if env::var_os("UPDATE_EXPECT").is_some() {
        for name in present.keys() {
            fs::remove_file(Path::new(GENERATED).join(name)).unwrap();
        }
        for (name, text) in &expected {
            fs::write(Path::new(GENERATED).join(name), text).unwrap();
        }
        return;
    }
    assert_eq!(expected.keys().collect::<Vec<_>>(), present.keys().collect::<Vec<_>>(), "run `make bless`");
    for (name, text) in expected {
        assert!(present[&name] == text, "{GENERATED}/{name} is not up to date: run `make bless`");
    }
}
