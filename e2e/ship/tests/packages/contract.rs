//! `proto/buf.sh` accepts the proto files, and refuses changes that break clients of the last release.

use std::{fs, process::Command};

use crate::{cache, folder, output, root};

/// Pairs of old and new text.
type Replacements = &'static [(&'static str, &'static str)];

/// Replacements in a file, and a part of the message with which buf refuses the result.
const REFUSED: &[(&str, Replacements, &str)] = &[
    ("localnetv1.proto", &[("string Namespace = 1;", "string Namespace = 9;")], "Previously present field \"1\""),
    ("localnetv1.proto", &[("rpc Report(", "rpc Told(")], "Previously present RPC \"Report\""),
    (
        "localnet/v1/state.proto",
        &[("string token = 3;", "bytes token = 3;")],
        "changed type from \"string\" to \"bytes\"",
    ),
    ("localnet/v1/state.proto", &[("fixed64 digest = 2;", "uint64 digest = 2;")], "changed type from"),
    ("localnet/v1/service.proto", &[("SCOPE_ESTABLISHED = 4;", "")], "Previously present enum value"),
    ("localnet/v1/node.proto", &[("string zone = ", "string Zone = ")], "should be lower_snake_case"),
    (
        "localnet/v1/reader.proto",
        &[("message Reader {", "message Reader {\n  string undocumented = 99;")],
        "non-empty comment",
    ),
];

/// Replacements that buf accepts.
const ACCEPTED: &[(&str, Replacements)] = &[
    ("localnetv1.proto", &[("message NextFilter {", "message NextFilter {\n  // New.\n  bool New = 99;")]),
    (
        "localnet/v1/reader.proto",
        &[("message Reader {", "message Reader {\n  // New. Readers may ignore it.\n  bool new = 99;")],
    ),
    ("trafficv1alpha1.proto", &[("uint64 Packets = 1;", "uint64 Frames = 7;")]),
];

/// Checks the proto files with replacements in one of them.
fn checked(file: &str, replacements: &[(&str, &str)]) -> anyhow::Result<String> {
    let copy = folder()?;
    output(Command::new("cp").arg("-r").arg(root().join("proto/.")).arg(copy.path()))?;
    let path = copy.path().join(file);
    let mut text = fs::read_to_string(&path)?;
    for (old, new) in replacements {
        anyhow::ensure!(text.contains(old), "{file} has no {old:?}");
        text = text.replacen(old, new, 1);
    }
    fs::write(path, text)?;
    output(Command::new(root().join("proto/buf.sh")).arg(copy.path()).env("LOCALNET_CACHE", cache()))
}

#[test]
fn breaking_changes_and_other_names_are_refused() -> anyhow::Result<()> {
    for (file, replacements, message) in REFUSED {
        let refused = checked(file, replacements).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|text| text.contains(message)), "{file} {replacements:?}: {refused:?}");
    }
    Ok(())
}

#[test]
fn additions_and_changes_of_alpha_packages_are_accepted() -> anyhow::Result<()> {
    checked("localnetv1.proto", &[])?;
    ACCEPTED.iter().try_for_each(|(file, replacements)| checked(file, replacements).map(drop))
}
