//! Rules about the repository's own code: the dependencies between crates, and text that files must not contain.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod backends;
mod modules;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Our packages, as cargo describes them.
fn packages() -> Vec<Value> {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let metadata: Value = serde_json::from_slice(&cargo.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Our crates, each with its dependencies except those of its tests, and the names of the Linux backends.
fn dependencies() -> (BTreeMap<String, BTreeSet<String>>, Vec<String>) {
    let packages = packages();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let normal = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        all.filter(|dependency| dependency["kind"] != "dev").map(|dependency| text(&dependency["name"])).collect()
    };
    let is_backend = |package: &&Value| {
        let manifest = text(&package["manifest_path"]);
        let folder = Path::new(&manifest).parent().unwrap().strip_prefix(root()).unwrap().to_owned();
        folder.to_str().unwrap().starts_with("backend-") && folder.components().count() == 1
    };
    let backends = packages.iter().filter(is_backend).map(|package| text(&package["name"]));
    let backends = backends.filter(|name| name != "localnet-win").collect();
    (packages.iter().map(|package| (text(&package["name"]), normal(package))).collect(), backends)
}

/// The crates of ours that each crate may use, except for the Linux backends. A crate that is missing here does not exist yet.
/// `localnet-node` may also use each Linux backend.
const MAY_USE: &[(&str, &[&str])] = &[
    ("localnet-core", &[]),
    ("localnet-proto", &["localnet-core"]),
    ("localnet-linux", &["localnet-core", "localnet-config"]),
    ("localnet-linux-backend", &["localnet-core", "localnet-proto", "localnet-client", "localnet-linux"]),
    ("localnet-config", &["localnet-core"]),
    ("localnet-config-file", &["localnet-core", "localnet-config"]),
    ("localnet-client", &["localnet-core", "localnet-proto", "localnet-config", "localnet-config-file"]),
    ("localnet-cluster", &["localnet-core", "localnet-proto"]),
    (
        "localnet-brain",
        &["localnet-core", "localnet-proto", "localnet-config", "localnet-config-file", "localnet-cluster"],
    ),
    (
        "localnet-win",
        &[
            "localnet-core",
            "localnet-proto",
            "localnet-client",
            "localnet-config",
            "localnet-config-file",
            "localnet-hcn",
        ],
    ),
    ("localnet-hcn", &[]),
    ("localnet-bpf", &[]),
    (
        "localnet-node",
        &[
            "localnet",
            "localnet-core",
            "localnet-proto",
            "localnet-client",
            "localnet-brain",
            "localnet-config",
            "localnet-config-file",
            "localnet-win",
        ],
    ),
    ("localnet-packaging", &["localnet", "localnet-brain", "localnet-node"]),
    (
        "localnet",
        &[
            "localnet-core",
            "localnet-proto",
            "localnet-client",
            "localnet-config",
            "localnet-linux",
            "localnet-nft",
            "localnet-iptables",
            "localnet-ipvs",
            "localnet-ebpf",
            "localnet-win",
        ],
    ),
    (
        "localnet-conformance",
        &["localnet-proto", "localnet-cluster", "localnet-brain", "localnet-client", "localnet-lab"],
    ),
    ("localnet-lab", &["localnet-core"]),
    ("localnet-controlplane", &[]),
    ("localnet-vm", &[]),
    ("localnet-fuzz", &[]),
    (
        "localnet-sim",
        &[
            "localnet-sim-entropy",
            "localnet-config",
            "localnet-proto",
            "localnet-cluster",
            "localnet-brain",
            "localnet-client",
            "localnet-linux",
            "localnet-linux-backend",
            "localnet-nft",
            "localnet-iptables",
            "localnet-ipvs",
            "localnet-win",
            "localnet-ebpf",
        ],
    ),
    ("localnet-sim-entropy", &[]),
    ("localnet-dns-example", &["localnet-proto"]),
    ("localnet-demo", &["localnet-lab", "localnet-proto", "localnet-client"]),
    ("localnet-instructions", &["localnet-proto", "localnet-cluster", "localnet-client", "localnet-brain"]),
    ("localnet-bench", &["localnet-lab", "localnet-controlplane", "localnet-vm", "localnet-proto", "localnet-client"]),
    (
        "localnet-e2e",
        &[
            "localnet-lab",
            "localnet-controlplane",
            "localnet-vm",
            "localnet-proto",
            "localnet-client",
            "localnet-cluster",
        ],
    ),
    ("localnet-ship", &[]),
];

/// The crates of ours that each Linux backend may use. Any crate in a folder `backend-*` is a Linux backend, except for
/// `localnet-win`.
const BACKEND_MAY_USE: &[&str] = &[
    "localnet-core",
    "localnet-proto",
    "localnet-client",
    "localnet-config",
    "localnet-linux",
    "localnet-linux-backend",
];

/// Foreign crates that no Linux backend may use.
const BACKEND_NEVER: &[&str] = &["kube", "k8s-openapi", "tonic", "prost", "rtnetlink", "netlink-sys", "nftables"];

/// Foreign crates that some of our crates must not use.
const NEVER: &[(&str, &[&str])] = &[
    // This crate is pure.
    ("localnet-core", &["tokio", "tracing", "anyhow", "kube", "tonic", "prost", "clap"]),
    ("localnet-proto", &["kube", "k8s-openapi", "tokio"]),
    ("localnet-client", &["kube", "k8s-openapi", "tonic-reflection", "tonic-health"]),
    ("localnet-linux", &["kube", "k8s-openapi", "tonic", "prost"]),
    ("localnet-linux-backend", BACKEND_NEVER),
    // This crate is pure.
    ("localnet-config", &["tokio", "notify", "tracing", "kube", "tonic"]),
    ("localnet-win", &["kube", "k8s-openapi", "tonic", "prost", "rtnetlink", "nftables"]),
    ("localnet-brain", &["rtnetlink", "netlink-sys", "nftables"]),
    // This crate is pure.
    ("localnet-cluster", &["tokio", "tracing", "anyhow", "kube", "tonic", "clap"]),
    ("localnet", &["kube", "k8s-openapi", "tonic", "prost", "rtnetlink", "netlink-sys", "nftables"]),
];

#[test]
fn dependencies_point_one_way() {
    let (dependencies, backends) = dependencies();
    assert!(backends.len() >= 3, "{backends:?}");
    let mut may_use: BTreeMap<&str, Vec<&str>> = MAY_USE.iter().map(|(name, used)| (*name, used.to_vec())).collect();
    may_use.get_mut("localnet-node").unwrap().extend(backends.iter().map(String::as_str));
    may_use.extend(backends.iter().map(|name| (name.as_str(), BACKEND_MAY_USE.to_vec())));
    // With `--nft`, the ebpf backend runs the nft backend in its process. Its system call has a crate of its own.
    may_use.get_mut("localnet-ebpf").unwrap().extend(["localnet-nft", "localnet-bpf"]);
    let listed: BTreeSet<_> = may_use.keys().map(|name| (*name).to_owned()).collect();
    let ours: BTreeSet<_> = dependencies.keys().cloned().collect();
    assert_eq!(ours, listed, "the crates of the workspace and the crates listed in this test");
    for (name, allowed) in may_use {
        let allowed: BTreeSet<_> = allowed.into_iter().map(str::to_owned).collect();
        let used: BTreeSet<_> = dependencies[name].intersection(&ours).cloned().collect();
        let wrong: Vec<_> = used.difference(&allowed).collect();
        assert!(wrong.is_empty(), "{name} must not depend on {wrong:?}");
    }
    let of_backends = backends.iter().map(|name| (name.as_str(), BACKEND_NEVER));
    for (name, never) in NEVER.iter().copied().chain(of_backends) {
        let wrong: Vec<_> = never.iter().filter(|other| dependencies[name].contains(**other)).collect();
        assert!(wrong.is_empty(), "{name} must not depend on {wrong:?}");
    }
}

#[test]
fn every_dependency_is_used() {
    // The name in sources of a crate whose name differs, and crates that only the generated code in `proto` uses.
    const OTHER_NAME: (&str, &str) = ("rustls-webpki", "webpki");
    const GENERATED: [&str; 2] = ["tonic", "tonic-prost"];
    let sources = rust_sources();
    let mut unused = Vec::new();
    for package in packages() {
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let words = |parts: &[&str]| -> BTreeSet<&str> {
            let within =
                sources.iter().filter(|(path, _)| parts.iter().any(|part| path.starts_with(folder.join(part))));
            within.flat_map(|(_, text)| text.split(|c: char| !c.is_alphanumeric() && c != '_')).collect()
        };
        let (normal, dev, build) =
            (words(&["src"]), words(&["src", "tests", "benches", "examples"]), words(&["build.rs"]));
        for dependency in package["dependencies"].as_array().unwrap() {
            let name = dependency["name"].as_str().unwrap();
            let words = match dependency["kind"].as_str() {
                None => &normal,
                Some("dev") => &dev,
                Some(_) => &build,
            };
            let in_sources = if name == OTHER_NAME.0 { OTHER_NAME.1.to_owned() } else { name.replace('-', "_") };
            let generated = self::name(folder) == "proto" && GENERATED.contains(&name);
            if !generated && !words.contains(&*in_sources) {
                unused.push(format!("{}: {name}", self::name(folder)));
            }
        }
    }
    assert!(unused.is_empty(), "remove these dependencies, or make those of tests dev-dependencies: {unused:#?}");
}

fn sources() -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let files = String::from_utf8(listed.stdout).unwrap();
    files.lines().map(|line| root().join(line)).filter(|path| path.is_file()).collect()
}

/// All Rust code that people write.
fn rust_sources() -> Vec<(PathBuf, String)> {
    let generated = root().join("proto/src/generated");
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let rust = sources().into_iter().filter(|path| is_rust(path) && !path.starts_with(&generated));
    rust.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

#[test]
fn a_file_is_a_step() {
    const LIMIT: usize = 800;
    let code = |text: &str| text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
    let in_tests = |path: &Path| path.components().any(|part| part.as_os_str() == "tests");
    let long: Vec<_> = rust_sources()
        .into_iter()
        .filter(|(path, text)| !in_tests(path) && code(text) > LIMIT)
        .map(|(path, text)| format!("{} has {} lines", name(&path), code(&text)))
        .collect();
    assert!(long.is_empty(), "more than {LIMIT} lines before its tests: {long:#?}");
}

#[test]
fn every_source_file_is_compiled() {
    let sources = rust_sources();
    let mut lost = Vec::new();
    for (path, _) in &sources {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let folder = path.parent().unwrap();
        let is_root = ["lib", "main", "build"].contains(&stem)
            || ["tests", "benches", "examples", "bin"].iter().any(|kind| folder.ends_with(kind));
        if is_root {
            continue;
        }
        // The parent of `a/b/mod.rs` is a file in `a`. Any other file is declared in the `mod.rs` or `lib.rs` of its folder, or
        // in `a.rs`.
        let (module, home) = match stem {
            "mod" => (folder.file_name().unwrap().to_str().unwrap(), folder.parent().unwrap()),
            _ => (stem, folder),
        };
        let parents = sources
            .iter()
            .filter(|(other, _)| other.parent() == Some(home) && other != path || home.with_extension("rs") == *other);
        let declared = |text: &str| {
            text.lines().any(|line| {
                let line = line.trim().trim_end_matches('{').trim_end_matches(';').trim();
                line.strip_suffix(module).is_some_and(|head| head == "mod " || head.ends_with(" mod "))
            })
        };
        if !parents.into_iter().any(|(_, text)| declared(text)) {
            lost.push(name(path));
        }
    }
    assert!(lost.is_empty(), "no `mod` names these files: {lost:#?}");
}

#[test]
fn no_test_is_disabled_and_no_work_is_left() {
    // Written in two parts, so that this file does not match itself.
    let words = [
        ("TO", "DO"),
        ("FIX", "ME"),
        ("#[ig", "nore"),
        ("#[al", "low("),
        ("#![al", "low("),
        ("should_", "panic"),
        ("std::env::set_", "var"),
    ];
    let mut found = Vec::new();
    for (path, text) in rust_sources() {
        for (number, line) in text.lines().enumerate() {
            for (head, tail) in words {
                if line.contains(&format!("{head}{tail}")) {
                    found.push(format!("{}:{}: {head}{tail}", name(&path), number + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// docs/operations.md names the programs that start others. Their dependencies must not start programs, either.
#[test]
fn only_the_iptables_backend_starts_programs() {
    const FOLDERS: [&str; 7] = ["proto", "config", "client", "linux", "cluster", "brain", "node"];
    let mut found = Vec::new();
    for (path, text) in rust_sources() {
        let name = name(&path);
        let (folder, rest) = name.split_once('/').unwrap();
        let is_quiet = FOLDERS.contains(&folder) || folder.starts_with("backend-") && folder != "backend-iptables";
        let is_shipped = is_quiet && rest.contains("src/") && !rest.ends_with("tests.rs");
        let code = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
        let starts = |line: &&str| {
            ["process::Command", "Command::new(", "tokio::process"].iter().any(|word| line.contains(word))
        };
        found.extend(code.filter(|_| is_shipped).filter(starts).map(|line| format!("{name}: {line}")));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_module_has_a_header() {
    let bare: Vec<_> =
        rust_sources().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| name(&path)).collect();
    assert!(bare.is_empty(), "without a header: {bare:#?}");
}

/// The only crates with their own lints: they may have unsafe code, each in one file.
const UNSAFE: [(&str, &str); 3] = [
    ("backend-ebpf/ffi/Cargo.toml", "backend-ebpf/ffi/src/lib.rs"),
    ("backend-win/ffi/Cargo.toml", "backend-win/ffi/src/dll.rs"),
    ("e2e/sim/entropy/Cargo.toml", "e2e/sim/entropy/src/lib.rs"),
];

/// The eBPF programs, which are no crate of the workspace. The kernel's verifier checks each of their memory accesses.
const UNSAFE_IN_KERNEL: &str = "backend-ebpf/programs/main.rs";

/// The lines of a table of a manifest.
fn table(manifest: &str, name: &str) -> BTreeSet<String> {
    let after = manifest.split_once(&format!("[{name}]\n")).map_or("", |(_, after)| after);
    let lines = after.lines().take_while(|line| !line.starts_with('['));
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn unsafe_code_is_in_one_file_of_each_of_three_crates() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let workspace = read("Cargo.toml");
    for (manifest, _) in UNSAFE {
        let own = read(manifest);
        for lints in ["rust", "clippy"] {
            let general = table(&workspace, &format!("workspace.lints.{lints}"));
            let missing: Vec<_> = general.difference(&table(&own, &format!("lints.{lints}"))).cloned().collect();
            let expected: &[&str] = if lints == "rust" { &["unsafe_code = \"forbid\""] } else { &[] };
            assert_eq!(missing, expected, "{manifest} lacks lints of the workspace");
        }
        assert!(table(&own, "lints.rust").contains("unsafe_code = \"deny\""));
    }
    let (word, expects) = (concat!("unsa", "fe "), concat!("expect(unsafe", "_code"));
    let has = |text: &str| {
        text.lines().any(|line| {
            !line.trim_start().starts_with("//")
                && (line.contains(word) && line.contains('{') || line.contains(expects))
        })
    };
    let found: Vec<_> = rust_sources().into_iter().filter(|(_, text)| has(text)).map(|(path, _)| name(&path)).collect();
    assert_eq!(found, [UNSAFE[0].1, UNSAFE_IN_KERNEL, UNSAFE[1].1, UNSAFE[2].1]);
}

/// `e2e/test.sh` runs the test programs whose names begin with `guest` in parallel with the others. No other name may begin with
/// `gu`.
#[test]
fn only_tests_that_may_need_a_guest_begin_with_guest() {
    let calls = [concat!("on_", "ipvs("), concat!("on_", "ipvs_beside("), concat!("Guest::", "boot(")];
    let mut wrong = Vec::new();
    for (path, text) in rust_sources() {
        let name = name(&path);
        let Some((_, test)) = name.split_once("/tests/") else { continue };
        let test = test.trim_start_matches("tests/");
        let needs = calls.iter().any(|call| text.contains(call));
        if (needs || test.starts_with("gu")) && !test.starts_with("guest") {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Checks licences and sources like `cargo deny`, and from the same list, but in one second.
#[test]
fn deny_toml_allows_all_licences_and_sources() {
    let deny = fs::read_to_string(root().join("deny.toml")).unwrap();
    let list = deny.split("allow = [").nth(1).unwrap().split(']').next().unwrap();
    let allowed: Vec<_> = list.split('"').skip(1).step_by(2).map(|name| Licensee::parse(name).unwrap()).collect();
    let cargo =
        Command::new(env!("CARGO")).args(["metadata", "--format-version=1", "--locked"]).current_dir(root()).output();
    let metadata: Value = serde_json::from_slice(&cargo.unwrap().stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100 && allowed.len() > 5);
    let mut refused = Vec::new();
    // Our own packages have no source.
    for package in packages.iter().filter(|package| !package["source"].is_null()) {
        let (name, source) = (&package["name"], &package["source"]);
        if source != "registry+https://github.com/rust-lang/crates.io-index" {
            refused.push(format!("{name} comes from {source}"));
        }
        let licence = package["license"].as_str().unwrap_or_default();
        let allows =
            |expression: Expression| expression.evaluate(|one| allowed.iter().any(|licensee| licensee.satisfies(one)));
        if !Expression::parse_mode(licence, ParseMode::LAX).is_ok_and(allows) {
            refused.push(format!("{name} has the licence {licence:?}"));
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn every_crate_has_the_workspace_lints() {
    let manifests: Vec<_> = sources().into_iter().filter(|path| path.ends_with("Cargo.toml")).collect();
    let bare: Vec<_> = manifests
        .iter()
        .filter(|path| {
            **path != root().join("Cargo.toml")
                && UNSAFE.iter().all(|(manifest, _)| **path != root().join(manifest))
                && !fs::read_to_string(path).unwrap().contains("[lints]\nworkspace = true")
        })
        .map(|path| name(path))
        .collect();
    assert!(manifests.len() > 5 && bare.is_empty(), "without `[lints] workspace = true`: {bare:?}");
}

#[test]
fn links_between_documents_are_valid() {
    let mut broken = Vec::new();
    for path in sources().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            let outside = file.is_empty() || file.contains("://") || file.contains(char::is_whitespace);
            if !outside && !path.parent().unwrap().join(file).exists() {
                broken.push(format!("{}: {target}", name(&path)));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_invariant_names_a_test_that_exists() {
    let architecture = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let section = architecture.split("## Invariants").nth(1).unwrap().split("\n## ").next().unwrap();
    let sources = rust_sources();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| ") && !line.contains("---")).skip(1).collect();
    assert_eq!(rows.len(), 10, "one row for each invariant");
    for row in rows {
        let tests: Vec<_> = row.split('`').skip(1).step_by(2).filter(|word| word.contains("::")).collect();
        assert!(!tests.is_empty(), "no test is named in: {row}");
        for test in tests {
            let function = format!("fn {}(", test.rsplit("::").next().unwrap());
            let file = test.split("::").next().unwrap();
            let there = sources.iter().any(|(path, text)| name(path).contains(file) && text.contains(&function));
            assert!(there, "{test}, named in docs/ARCHITECTURE.md, does not exist");
        }
    }
}

/// Anyone can check out the commit that a published page measured or tested.
#[test]
fn published_results_name_commits_of_this_branch() {
    let git = |arguments: &[&str]| Command::new("git").args(arguments).current_dir(root()).output().unwrap();
    let read = |page: &str| fs::read_to_string(root().join("docs").join(page)).unwrap();
    let figures: Value = serde_json::from_str(&read("performance.json")).unwrap();
    let conformance = read("conformance.md");
    let rows = conformance.lines().skip_while(|line| !line.starts_with("| proxy |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let mut commits: Vec<_> = rows.map(|row| row.rsplit('|').nth(1).unwrap().trim()).collect();
    assert!(commits.len() >= 5, "{commits:?}");
    commits.push(figures["machine"]["revision"].as_str().unwrap());
    if !git(&["rev-parse", "--is-shallow-repository"]).stdout.starts_with(b"false") {
        println!("there is no history to search");
        return;
    }
    let unknown = |commit: &&&str| !git(&["merge-base", "--is-ancestor", commit, "HEAD"]).status.success();
    let unknown: Vec<_> = commits.iter().filter(unknown).collect();
    assert!(unknown.is_empty(), "commit first, then run `make bench` or `make kubernetes`: {unknown:?}");
}

#[test]
fn the_museum_names_tests_mutants_and_cases_that_exist() {
    let museum = fs::read_to_string(root().join("docs/museum.md")).unwrap();
    let sources = rust_sources();
    let mut missing = Vec::new();
    for row in museum.lines().filter(|line| line.starts_with("| B-") || line.starts_with("| L-")) {
        let parts: Vec<_> = row.split('`').collect();
        for [before, quoted] in parts.chunks(2).filter_map(|pair| <[&str; 2]>::try_from(pair).ok()) {
            let exists = match quoted.split_once("::") {
                _ if before.ends_with("mutant ") => root().join(format!("e2e/sim/mutants/{quoted}.patch")).exists(),
                _ if before.ends_with("Case ") => root().join("e2e/cases").join(quoted).exists(),
                Some((file, function)) => {
                    let function = format!("fn {function}(");
                    sources.iter().any(|(path, text)| name(path) == file && text.contains(&function))
                }
                None => true,
            };
            if !exists {
                missing.push(quoted);
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// `make museum` takes minutes, so `make test` does not include it.
#[test]
fn each_row_of_the_museum_has_a_patch_that_applies_or_a_reason() {
    let museum = fs::read_to_string(root().join("docs/museum.md")).unwrap();
    let (covered, others) = museum.split_once("## Not covered").unwrap();
    let number = |row: &str| row.split(' ').nth(1).unwrap_or_default().to_owned();
    let rows: Vec<_> = covered.lines().filter(|line| line.starts_with("| B-") || line.starts_with("| L-")).collect();
    let named: BTreeSet<_> = rows.iter().map(|row| number(row)).collect();
    assert_eq!(named.len(), rows.len(), "two rows have the same number");
    let mut wrong = Vec::new();
    for row in rows {
        let number = number(row);
        let patch = fs::read_to_string(root().join(format!("e2e/museum/{number}.patch")));
        let runs = row.split('`').skip(1).step_by(2).any(|name| name.contains("::") && !name.starts_with("e2e/"));
        match patch {
            Ok(_) if !runs && !row.contains("Case `") => wrong.push(format!("{number} names no test outside of e2e")),
            Ok(text) if !text.contains(&format!("name == \"{number}\"")) => {
                wrong.push(format!("e2e/museum/{number}.patch is not switched on by MUTANT={number}"));
            }
            Err(_) if !others.contains(&format!("| {number} |")) => {
                wrong.push(format!("{number} has no patch in e2e/museum and no reason in \"Not covered\""));
            }
            Ok(_) | Err(_) => {}
        }
    }
    let patches = fs::read_dir(root().join("e2e/museum")).unwrap().map(|entry| entry.unwrap().path());
    let mut patches: Vec<_> = patches.collect();
    patches.sort();
    let stem = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    wrong.extend(
        patches.iter().filter(|path| !named.contains(&stem(path))).map(|path| format!("{} has no row", name(path))),
    );
    let check = Command::new("git").args(["apply", "--check"]).args(&patches).current_dir(root()).output().unwrap();
    wrong.extend((!check.status.success()).then(|| String::from_utf8_lossy(&check.stderr).into_owned()));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
