//! Executes each step of the pages for authors of backends, with only the files of a release.
//!
//! The scripts of `packaging/` make these files from the programs that are built for tests. The commands run in a temporary folder, in
//! namespaces of their own: there is no network, and the folder of the repository is empty. Other libraries come from the caches that
//! `make examples` and `make python` fill.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::Path,
    process::Command,
};

use anyhow::Context as _;

use crate::{arch, cache, folder, output, put_programs, root, script};

/// The checks that the kit runs where a page runs all of them. `conformance::examples` runs more.
const CHECKS: &str = "wire/service-removed,wire/unknown-,state/policy-internal,packets/cluster-ip,packets/dual-stack,\
    packets/policy-internal-local,packets/no-endpoints-reject,life/exits-on-signal,life/killed-and-restarted";

/// Hides the repository, except for the caches of npm and pip. Limits the kit to [`CHECKS`], unless the page names checks. Backends get a
/// minute for each step, because other tests use the processors, too.
const BEFORE: &str = r#"
mount -t tmpfs tmpfs /run
mkdir /run/npm /run/wheels
mount --bind "$CACHE/examples/npm" /run/npm
mount --bind "$CACHE/python/wheels" /run/wheels
mount -t tmpfs tmpfs "$ROOT"
localnet-conformance() {
    case " $* " in
        *" --only "*) ;;
        *) set -- "$@" --only "$CHECKS" ;;
    esac
    command localnet-conformance "$@" --patience 60
}
"#;

/// Makes files of a release in a folder: the Debian package, the kit, and what a further script makes.
fn release(files: &Path, library: Option<&str>) -> anyhow::Result<()> {
    let (made, arch) = (folder()?, arch()?);
    let [programs, kit, manual] = ["programs", "kit", "manual"].map(|name| made.path().join(name));
    put_programs(&["localnet", "localnet-brain"], &programs)?;
    output(Command::new(localnet_e2e::program("localnet-manual")?).arg(&manual))?;
    let of = [&programs, &manual, Path::new(&arch), files].map(Path::as_os_str);
    output(script("deb.sh").arg("of").args(of).env("COMPRESSION", "none"))?;
    put_programs(&["localnet-conformance"], made.path())?;
    output(script("kit.sh").arg(made.path().join("localnet-conformance")).arg(&kit))?;
    output(script("kit.sh").arg("pack").arg(&kit).arg(&arch).arg(files).env("COMPRESSION", "none"))?;
    if let Some(name) = library {
        output(script(name).arg(files))?;
    }
    Ok(())
}

/// A page as a script: its commands, and the parts of its program, which the reader writes into a file.
fn steps(page: &str, language: &str, file: &str) -> String {
    let mut steps = String::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        match block.split_once('\n') {
            Some(("sh run", commands)) => steps += &format!("{commands}\n"),
            Some((kind, part)) if kind == language => {
                steps +=
                    &format!("[ ! -e {file} ] || echo >>{file}\ncat >>{file} <<'END OF PART'\n{part}\nEND OF PART\n");
            }
            _ => {}
        }
    }
    steps
}

/// Does what a page says. `library` is the script that makes the library of the page.
fn follow(page: &str, language: &str, program: &str, library: Option<&str>) -> anyhow::Result<()> {
    let (home, arch) = (folder()?, arch()?);
    let folder = home.path().join("downloads");
    fs::create_dir(&folder)?;
    release(&folder, library)?;
    let text = fs::read_to_string(root().join(page)).with_context(|| format!("reading {page}"))?;
    let steps = steps(&text, language, program).replace("X.Y.Z", env!("CARGO_PKG_VERSION")).replace("ARCH", &arch);
    let (script, log) = (home.path().join("script"), home.path().join("log"));
    fs::write(&script, format!("set -eux\n{BEFORE}{steps}"))?;
    let go = |name| Ok::<_, anyhow::Error>(output(Command::new("go").args(["env", name]))?.trim().to_owned());
    let written = File::create(&log)?;
    let status = Command::new("timeout")
        .args("--kill-after=1 480 unshare --net --mount --pid --fork --kill-child --mount-proc bash".split(' '))
        .arg(&script)
        .current_dir(&folder)
        .env("HOME", home.path())
        .envs([("ROOT", root()), ("CACHE", cache().canonicalize().context("run `make examples python`")?)])
        .env("CHECKS", CHECKS)
        // The modules that other builds have downloaded. The checksum database is only on the network.
        .env("GOPROXY", format!("file://{}/cache/download", go("GOMODCACHE")?))
        .env("GOSUMDB", "off")
        .env("GOMODCACHE", home.path().join("modules"))
        .env("GOCACHE", go("GOCACHE")?)
        .envs([("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", "/run/wheels")])
        .envs([("npm_config_cache", "/run/npm"), ("npm_config_prefer_offline", "true"), ("npm_config_audit", "false")])
        .stdout(written.try_clone()?)
        .stderr(written)
        .status()
        .context("starting a shell in namespaces of its own")?;
    anyhow::ensure!(status.success(), "{page}: {status}:\n{}", fs::read_to_string(&log)?);
    Ok(())
}

#[test]
fn an_author_in_go_needs_only_a_release() -> anyhow::Result<()> {
    follow("docs/first-backend-go.md", "go", "main.go", Some("module.sh"))
}

#[test]
fn an_author_in_python_needs_only_a_release() -> anyhow::Result<()> {
    follow("docs/first-backend-python.md", "python", "backend.py", Some("wheel.sh"))
}

#[test]
fn an_author_in_node_js_needs_only_a_release() -> anyhow::Result<()> {
    follow("docs/first-backend.md", "js", "backend.js", None)
}

/// The numbers in each row of results that the pages show add up to the checks of the kit: a Case is one check of `state` and one of
/// `packets`. How many of them pass, an author sees in a whole run.
#[test]
fn the_pages_show_as_many_checks_as_the_kit_has() -> anyhow::Result<()> {
    let cases =
        fs::read_dir(root().join("e2e/cases"))?.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir()));
    let cases = cases.count();
    let mut totals = BTreeMap::from([
        ("state".to_owned(), BTreeSet::from([cases])),
        ("packets".to_owned(), BTreeSet::from([cases])),
    ]);
    for page in ["docs/first-backend.md", "docs/first-backend-go.md", "docs/first-backend-python.md"] {
        for line in fs::read_to_string(root().join(page))?.lines() {
            let (level, numbers) = line.split_once(' ').unwrap_or_default();
            let numbers: Vec<usize> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
            if ["wire", "state", "packets", "life"].contains(&level) && numbers.len() == 3 {
                totals.entry(level.to_owned()).or_default().insert(numbers.iter().sum());
            }
        }
    }
    assert_eq!(totals.len(), 4, "all levels: {totals:?}");
    assert!(totals.values().all(|counts| counts.len() == 1), "{totals:?}");
    Ok(())
}
