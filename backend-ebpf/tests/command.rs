//! Tests the command line: what is missing is reported in one line, with the remedy. These tests need no privileges.

use std::process::Command;

#[test]
fn what_is_missing_is_reported_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for (arguments, expected) in [
        (&["--bpffs", folder][..], "is not a BPF file system: mount one with `mount -t bpf bpf"),
        (&["dump", "--bpffs", folder], "is not a BPF file system"),
        (&["cleanup", "--bpffs", folder], "is not a BPF file system"),
        (&["--bpffs", "/none"], "--bpffs /none: No such file or directory"),
        (&["dump", "--bpffs", "/none"], "--bpffs /none: No such file or directory"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_localnet-ebpf")).args(arguments).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let errors: Vec<&str> =
            errors.lines().filter(|line| line.contains("rror") || line.contains("--bpffs")).collect();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors:?}");
        assert!(errors.len() == 1 && errors[0].contains(expected), "{arguments:?}: {errors:?}");
    }
}
