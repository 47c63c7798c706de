//! Tests of the systemd units: systemd accepts every setting and rates the units as well confined, and they start installed
//! programs with flags that these programs know.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use clap::{Command as Program, error::ErrorKind};
use localnet_packaging::{COMMAND, programs};

/// The highest exposure that a unit may have. systemd rates it from 0 to 100.
const MOST_EXPOSED: &str = "30";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd")
}

fn units() -> Vec<(String, String)> {
    let mut units: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap()))
        .collect();
    units.sort();
    units
}

/// The root folder of a system that contains the units, and the programs and targets that they refer to.
fn system() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let [programs, services] = ["usr/bin", "usr/lib/systemd/system"].map(|folder| root.path().join(folder));
    fs::create_dir_all(&programs).unwrap();
    fs::create_dir_all(services.parent().unwrap()).unwrap();
    for program in localnet_packaging::programs() {
        fs::copy("/bin/true", programs.join(program.get_name())).unwrap();
    }
    fs::create_dir(&services).unwrap();
    for entry in fs::read_dir("/usr/lib/systemd/system").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "target") {
            // A symbolic link would not do: systemd takes one that leads out of the root for an alias of a unit, and ignores it.
            fs::copy(&path, services.join(path.file_name().unwrap())).unwrap();
        }
    }
    for (name, text) in units() {
        fs::write(services.join(name), text).unwrap();
    }
    root
}

fn analyze(root: &Path, arguments: &[&str]) -> (bool, String) {
    let run = Command::new("systemd-analyze").arg(format!("--root={}", root.display())).args(arguments).output();
    let run = run.expect("systemd-analyze is in Debian's package systemd");
    let output = [run.stdout, run.stderr].map(|output| String::from_utf8_lossy(&output).into_owned());
    (run.status.success(), output.concat())
}

#[test]
fn systemd_analyze_finds_no_problem() {
    let root = system();
    for (name, text) in units() {
        let (good, output) = analyze(root.path(), &["verify", "--man=no", &name]);
        let of_ours: Vec<&str> = output.lines().filter(|line| line.contains("localnet-")).collect();
        assert!(good && of_ours.is_empty(), "{name}: {output}");

        let exposed = ["security", "--offline=true", &format!("--threshold={MOST_EXPOSED}"), &name];
        let (good, output) = analyze(root.path(), &exposed);
        assert!(good, "{name}: {}", output.lines().last().unwrap_or_default());

        let path = root.path().join("usr/lib/systemd/system").join(&name);
        fs::write(&path, text.replace("ProtectHome=", "ProtectHouse=")).unwrap();
        let (_, output) = analyze(root.path(), &["verify", "--man=no", &name]);
        assert!(output.contains("ProtectHouse"), "an unknown key is noticed: {output}");
        fs::write(path, text).unwrap();
    }
}

/// `NAME="words"` of the file that all services read.
fn defaults() -> BTreeMap<String, Vec<String>> {
    let file = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("debian/localnet.default")).unwrap();
    let lines = file.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    lines
        .map(|(name, words)| (name.to_owned(), words.trim_matches('"').split_whitespace().map(str::to_owned).collect()))
        .collect()
}

fn try_parse(program: Program, arguments: &[String]) -> Result<(), clap::Error> {
    program.try_get_matches_from(arguments).map(drop)
}

#[test]
fn programs_accept_the_flags_of_their_services() {
    let programs: BTreeMap<String, Program> =
        programs().into_iter().map(|program| (program.get_name().to_owned(), program)).collect();
    let defaults = defaults();
    let mut used = BTreeSet::new();
    for (name, text) in units() {
        let mut starts = 0;
        for line in text.lines().filter(|line| line.starts_with("ExecStart")) {
            let (_, command) = line.split_once('=').unwrap();
            let mut arguments = Vec::new();
            for word in command.trim_start_matches(['-', '+']).split_whitespace() {
                match word.strip_prefix('$') {
                    Some(variable) => {
                        used.insert(variable.to_owned());
                        arguments.extend(defaults[variable].iter().cloned());
                    }
                    None => arguments.push(word.to_owned()),
                }
            }
            let program = arguments[0].strip_prefix("/usr/bin/").unwrap().to_owned();
            assert_eq!(format!("{program}.service"), name);
            let parsed = try_parse(programs[&program].clone(), &arguments);
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            arguments.push("--no-such-flag".to_owned());
            let wrong = try_parse(programs[&program].clone(), &arguments).unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::UnknownArgument);
            starts += 1;
        }
        assert!(starts > 0, "{name}");
    }
    assert_eq!(used, defaults.into_keys().collect(), "the variables that services read and those that are documented");
}

#[test]
fn each_program_has_its_service() {
    let services: BTreeSet<_> = units().into_iter().map(|(name, _)| name).collect();
    let programs = programs();
    let names = programs.iter().map(Program::get_name).filter(|name| *name != COMMAND);
    let expected: BTreeSet<_> = names.map(|name| format!("{name}.service")).collect();
    assert_eq!(services, expected);
}
