//! Tests that each program and each of its commands has a manual page and completions, with all flags.

use std::{fs, path::Path, process::Command as Process};

use clap::Command;
use localnet_packaging::{programs, write};

fn read(folder: &Path, path: &str) -> String {
    let path = folder.join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The long flags in the output of `--help`.
fn flags(command: &Command) -> Vec<String> {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    arguments.filter_map(|argument| argument.get_long().map(str::to_owned)).collect()
}

fn has_page(folder: &Path, name: &str, command: &Command) {
    let page = read(folder, &format!("man/man8/{name}.8"));
    for flag in flags(command) {
        assert!(page.contains(&format!("\\-\\-{}", flag.replace('-', "\\-"))), "{name}: --{flag} is missing");
    }
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        has_page(folder, &format!("{name}-{}", subcommand.get_name()), subcommand);
    }
}

#[test]
fn every_command_has_a_page_with_all_its_flags() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path()).unwrap();
    for mut program in programs() {
        program.build();
        has_page(folder.path(), program.get_name(), &program);
    }
}

#[test]
fn shells_take_the_completions() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path()).unwrap();
    for program in programs() {
        let name = program.get_name();
        let script = folder.path().join("completions/bash").join(name);
        // The script completes a flag from its beginning.
        let flag = flags(&program).into_iter().find(|flag| flag.len() > 4).unwrap();
        let script = format!(
            "source {}; COMP_WORDS=({name} --{flag}); COMP_CWORD=1; _{name} {name} --{flag} {name}; echo ${{COMPREPLY[@]}}",
            script.display()
        );
        let script = script.replace(&format!("_{name} "), &format!("_{} ", name.replace('-', "__")));
        let run = Process::new("bash").args(["-c", &script]).output().unwrap();
        let output = [run.stdout, run.stderr].map(|output| String::from_utf8_lossy(&output).into_owned());
        assert!(output[0].split_whitespace().any(|word| word == format!("--{flag}")), "{name}: {output:?}");
        for (shell, file) in [("zsh", format!("_{name}")), ("fish", format!("{name}.fish"))] {
            let script = read(folder.path(), &format!("completions/{shell}/{file}"));
            assert!(script.contains(&flag), "{shell}: {name}");
        }
    }
}

#[test]
fn made_twice_they_are_the_same() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for folder in &folders {
        write(folder.path()).unwrap();
    }
    let run = Process::new("diff").arg("-r").args(folders.iter().map(tempfile::TempDir::path)).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}
