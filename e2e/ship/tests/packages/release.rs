//! The scripts of `packaging/release`, from a new version to what users download.

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::{arch, cache, folder, output, put_script, put_stand_ins, root, script};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn git(repository: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main"];
    output(Command::new("git").current_dir(repository).args(identity).args(arguments))
}

/// A repository whose only commit contains the files of this one.
fn copy() -> anyhow::Result<TempDir> {
    let copy = folder()?;
    let lines = "git ls-files -z --cached --others --exclude-standard | tar --null --files-from - --create | tar --extract --directory \"$1\"";
    output(Command::new("sh").args(["-euc", lines, "sh"]).arg(copy.path()).current_dir(root()))?;
    git(copy.path(), &["init", "--quiet"])?;
    git(copy.path(), &["config", "user.name", "test"])?;
    git(copy.path(), &["config", "user.email", "test@example.com"])?;
    git(copy.path(), &["add", "--all"])?;
    git(copy.path(), &["commit", "--quiet", "--message", "all"])?;
    Ok(copy)
}

#[test]
fn all_files_name_the_same_version() -> anyhow::Result<()> {
    assert_eq!(output(&mut script("release/version.sh"))?.trim(), VERSION);
    Ok(())
}

#[test]
fn one_command_sets_the_version_and_the_tags() -> anyhow::Result<()> {
    let copy = copy()?;
    let version = |arguments: &[&str]| {
        output(
            Command::new(copy.path().join("packaging/release/version.sh"))
                .args(arguments)
                .env("HOME", copy.path())
                .env("LOCALNET_CACHE", cache()),
        )
    };
    fs::create_dir_all(copy.path().join("go"))?;
    fs::write(copy.path().join("go/go.mod"), "module example.com/go\n")?;
    let changed = version(&["9.8.7"]).expect_err("a change is not committed").to_string();
    assert!(changed.contains("commit your changes first"), "{changed}");
    git(copy.path(), &["add", "--all"])?;
    git(copy.path(), &["commit", "--quiet", "--allow-empty", "--message", "a Go module"])?;

    version(&["9.8.7"])?;
    assert_eq!(version(&[])?.trim(), "9.8.7");
    assert_eq!(git(copy.path(), &["tag", "--points-at", "HEAD"])?, "go/v9.8.7\nv9.8.7\n");
    assert_eq!(git(copy.path(), &["log", "-1", "--format=%s"])?, "release: 9.8.7\n");
    assert!(version(&["notes"])?.contains("### Added"));
    let names_old = |line: &&str| {
        line.contains(&format!("localnet-nft:{VERSION}")) || line.contains(&format!("localnet-{VERSION}"))
    };
    let chart = fs::read_to_string(copy.path().join("charts/localnet/tests/golden/nft.yaml"))?;
    assert_eq!(chart.lines().find(names_old), None);
    // Cargo accepts the lock file as it is.
    let cargo = ["metadata", "--locked", "--offline", "--format-version=1"];
    output(Command::new(env!("CARGO")).args(cargo).current_dir(copy.path()))?;

    let again = version(&["9.8.7"]).expect_err("the version exists").to_string();
    assert!(again.contains("the tag v9.8.7 exists"), "{again}");
    let forgotten = copy.path().join("docs/operations/packages.md");
    fs::write(&forgotten, fs::read_to_string(&forgotten)?.replace("localnet_9.8.7", "localnet_9.8.6"))?;
    let differs = version(&[]).expect_err("a page names another version").to_string();
    assert!(differs.contains("Cargo.toml has 9.8.7, other files have 9.8.6"), "{differs}");
    Ok(())
}

#[test]
fn the_first_release_has_the_version_that_all_files_name_already() -> anyhow::Result<()> {
    let copy = copy()?;
    let version = |argument| {
        output(
            Command::new(copy.path().join("packaging/release/version.sh"))
                .arg(argument)
                .env("HOME", copy.path())
                .env("LOCALNET_CACHE", cache()),
        )
    };
    version(VERSION)?;
    assert_eq!(git(copy.path(), &["tag", "--points-at", "HEAD"])?, format!("go/v{VERSION}\nv{VERSION}\n"));
    assert!(version("notes")?.contains("### Added"));
    Ok(())
}

/// An image registry, which ends when this is dropped, because that closes its standard input.
fn registry() -> anyhow::Result<(Child, String)> {
    let mut registry = Command::new(cache().join("helm/bin/registry"));
    let mut running = registry.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("run `make helm`")?;
    let mut address = String::new();
    BufReader::new(running.stdout.take().context("its output")?).read_line(&mut address)?;
    Ok((running, address.trim().to_owned()))
}

/// Stand-ins for programs that need credentials or minutes. Each appends its command line to the file `calls`.
fn put_tools(folder: &Path) -> anyhow::Result<()> {
    let record = format!("#!/bin/sh\necho \"$(basename \"$0\") $*\" >>{}\n", folder.join("calls").display());
    let none_exists = "case $* in *\"release view\"*|info*) exit 1 ;; esac\n";
    let metadata = r#"case $1 in metadata) echo '{"packages":[{"name":"localnet-client","publish":null},{"name":"localnet-nft","publish":[]}]}' ;; esac"#;
    put_script(&folder.join("bin/cosign"), &record)?;
    put_script(&folder.join("bin/twine"), &record)?;
    put_script(&folder.join("bin/gh"), &format!("{record}{none_exists}"))?;
    put_script(&folder.join("bin/cargo"), &format!("{record}{none_exists}{metadata}\n"))?;
    put_script(&folder.join("cache/cargo-sbom/bin/cargo-sbom"), "#!/bin/sh\necho '{\"bomFormat\": \"CycloneDX\"}'\n")?;
    for tools in ["helm", "python"] {
        symlink(cache().join(tools), folder.join("cache").join(tools))?;
    }
    Ok(())
}

/// From a version to the files, images and the chart that users get. Only signatures, GitHub, crates.io and PyPI have stand-ins.
#[test]
fn users_get_what_a_release_publishes() -> anyhow::Result<()> {
    let (copy, made, arch) = (copy()?, folder()?, arch()?);
    let programs = made.path().join("programs");
    put_stand_ins(&["localnet", "localnet-brain", "localnet-nft"], &programs.join(&arch).join("bin"))?;
    output(script("kit.sh").arg("/bin/true").arg(programs.join(&arch).join("kit")))?;
    output(Command::new(localnet_e2e::program("localnet-manual")?).arg(programs.join("manual")))?;
    put_stand_ins(&["localnet-brain.exe", "localnet-win.exe"], &programs.join("windows-amd64/bin"))?;
    fs::write(programs.join("NOTICES.gz"), "licences")?;
    put_tools(made.path())?;
    let (_registry, address) = registry()?;
    let release = |script: &str, arguments: &[&str]| {
        let mut command = Command::new(copy.path().join("packaging/release").join(script));
        let path = format!("{}:{}", made.path().join("bin").display(), env::var("PATH").unwrap_or_default());
        command.args(arguments).env("PATH", path).env("LOCALNET_CACHE", made.path().join("cache"));
        command.envs([("REGISTRY", &*address), ("PLAIN_HTTP", "1"), ("COMPRESSION", "none"), ("TAG", "v9.8.7")]);
        command.envs([
            ("GITHUB_SHA", "0a1b"),
            ("GITHUB_SERVER_URL", "https://git.example"),
            ("GITHUB_REPOSITORY", "a/b"),
        ]);
        output(command.env("HOME", made.path()))
    };
    let programs = programs.display().to_string();
    let early = release("build.sh", &["of", &programs]).expect_err("the version is another").to_string();
    assert!(early.contains("the tag is v9.8.7"), "{early}");
    release("version.sh", &["9.8.7"])?;
    release("build.sh", &["of", &programs])?;
    release("publish.sh", &[])?;

    // The published chart installs images that the registry has, by digest.
    let helm = |arguments: &[&str]| {
        output(Command::new(cache().join("helm/bin/helm")).args(arguments).env("HOME", made.path()))
    };
    let chart = format!("oci://{address}/charts/localnet");
    let windows = ["--set", "windows.enabled=true"];
    let rendered =
        helm(&[&["template", "localnet", &chart, "--version", "9.8.7", "--plain-http"][..], &windows].concat())?;
    let images: BTreeSet<_> = rendered.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
    assert_eq!(images.len(), 3, "{images:?}");
    let (dist, calls) = (copy.path().join("target/dist"), fs::read_to_string(made.path().join("calls"))?);
    let wheel = dist.join("files/localnet_client-9.8.7-py3-none-any.whl").display().to_string();
    let called = |call: &str| calls.lines().any(|line| line.starts_with(call));
    for image in images {
        let (name, digest) = image.split_once(":9.8.7@").with_context(|| format!("{image} has a digest"))?;
        assert!(name.starts_with(&format!("{address}/localnet-")), "{image}");
        let image = format!("{name}@{digest}");
        let mut inspect = Command::new("skopeo");
        inspect.args(["inspect", "--tls-verify=false", "--raw", &format!("docker://{image}")]);
        assert!(output(&mut inspect)?.contains("manifests"), "{image} has all architectures");
        assert!(called(&format!("cosign sign --yes --recursive {image}")), "{calls}");
        let attestations =
            calls.lines().filter(|line| line.starts_with("cosign attest ") && line.ends_with(&image)).count();
        assert_eq!(attestations, 2, "materials and provenance: {calls}");
    }
    for call in [
        &format!("cosign sign --yes {address}/charts/localnet@sha256:"),
        "cosign sign-blob --yes",
        "gh release create v9.8.7",
        "cargo publish --dry-run --locked --package localnet-client",
        "cargo publish --no-verify --locked --package localnet-client",
        "gh api --silent repos/a/b/git/ref/tags/go/v9.8.7",
        &format!("twine check --strict {wheel}"),
        &format!("twine upload --non-interactive --skip-existing {wheel}"),
    ] {
        assert!(called(call), "{call} is not in {calls}");
    }
    assert!(!calls.contains("--package localnet-nft"), "a crate that must not be published: {calls}");

    let files = dist.join("files");
    output(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&files))?;
    let kit = format!("localnet-conformance_9.8.7_linux_{arch}.tar.gz");
    let listing = output(Command::new("tar").arg("-tzf").arg(files.join(&kit)))?;
    assert!(
        listing.contains("./bin/localnet-conformance\n") && listing.contains("cases/cluster-ip/flows.yaml"),
        "{listing}"
    );
    let windows = "localnet_9.8.7_windows_amd64.tar.gz";
    let listing = output(Command::new("tar").arg("-tzf").arg(files.join(windows)))?;
    for file in ["./localnet-brain.exe", "./localnet-win.exe", "LICENSE", "NOTICES.gz"] {
        assert!(listing.lines().any(|line| line == file), "{file} is not in {listing}");
    }
    let sums = fs::read_to_string(files.join("SHA256SUMS"))?;
    let module = "localnet-go_9.8.7.tar.gz";
    let deb = format!("localnet_9.8.7_{arch}.deb");
    let materials = ["localnet-nft.cdx.json", "localnet-win.cdx.json"];
    for path in [&*kit, &*deb, "localnet-9.8.7.tgz", windows, module, &*wheel].into_iter().chain(materials) {
        let file = path.rsplit('/').next().unwrap();
        assert!(sums.contains(&format!("  {file}\n")), "{file} is not in {sums}");
    }
    // The wheel needs nothing else from this repository.
    let mut python = Command::new(cache().join("python/venv/bin/python"));
    let imports = "import importlib.metadata, sys; sys.path.insert(0, sys.argv[1]); import localnet_client; \
         print(localnet_client.__file__, importlib.metadata.metadata('localnet-client').get_payload())";
    let imported = output(python.args(["-Ic", imports]).arg(&wheel))?;
    assert!(imported.contains(&wheel), "{imported}");
    assert!(imported.contains("/blob/v9.8.7/docs/writing-a-backend.md"), "links in the README: {imported}");
    let provenance: serde_json::Value = serde_json::from_str(&fs::read_to_string(dist.join("provenance.json"))?)?;
    assert_eq!(provenance["buildDefinition"]["resolvedDependencies"][0]["digest"]["gitCommit"], "0a1b");
    Ok(())
}

/// A chart that is not released must not name a registry that someone else may own.
#[test]
fn only_one_file_names_the_registry_of_releases() -> anyhow::Result<()> {
    let registry = fs::read_to_string(root().join("packaging/release/registry"))?;
    let found = git(&root(), &["grep", "--files-with-matches", "--fixed-strings", registry.trim()])?;
    assert_eq!(found.lines().collect::<Vec<_>>(), ["packaging/release/registry"]);
    Ok(())
}

/// Stand-ins for what changes the runner: they record their command lines, and `skopeo` its standard input.
#[test]
fn the_runner_gets_pinned_tools_and_the_token_stays_off_command_lines() -> anyhow::Result<()> {
    let (copy, made) = (copy()?, folder()?);
    let record = format!("#!/bin/sh\necho \"$(basename \"$0\") $*\" >>{}\n", made.path().join("calls").display());
    for name in ["sudo", "pipx"] {
        put_script(&made.path().join("bin").join(name), &record)?;
    }
    put_script(&made.path().join("bin/go"), &format!("{record}case $1 in env) echo /go ;; esac\n"))?;
    put_script(&made.path().join("bin/skopeo"), &format!("{record}cat >{}\n", made.path().join("input").display()))?;
    // `make helm` has built the tools of go.mod, so another test runs this script.
    put_script(&copy.path().join("e2e/helm/build.sh"), &record)?;
    let mut tools = Command::new(copy.path().join("packaging/release/tools.sh"));
    let path = format!("{}:{}", made.path().join("bin").display(), env::var("PATH").unwrap_or_default());
    tools.env("PATH", path).env("HOME", made.path()).env("GITHUB_PATH", made.path().join("path"));
    output(tools.envs([("GITHUB_ACTOR", "somebody"), ("GH_TOKEN", "a secret")]))?;

    let calls = fs::read_to_string(made.path().join("calls"))?;
    let version = |call: &str| {
        let found = calls.lines().find_map(|line| line.strip_prefix(call));
        found.with_context(|| format!("{call} is not in {calls}")).map(|version| version.split('.').collect::<Vec<_>>())
    };
    for call in ["go install github.com/sigstore/cosign/v3/cmd/cosign@v", "pipx install --quiet twine=="] {
        let parts = version(call)?;
        assert!(parts.len() == 3 && parts.iter().all(|part| part.parse::<u32>().is_ok()), "{call}: {parts:?}");
    }
    let registry = fs::read_to_string(root().join("packaging/release/registry"))?;
    let host = registry.split('/').next().context("a host")?;
    let login = calls.lines().find(|line| line.starts_with("skopeo login ")).context("it signs in")?;
    assert!(login.ends_with(&format!("--username somebody --password-stdin {host}")), "{login}");
    assert_eq!(fs::read_to_string(made.path().join("input"))?, "a secret\n");
    assert!(!calls.contains("a secret"), "{calls}");
    let later = fs::read_to_string(made.path().join("path"))?;
    assert_eq!(later.lines().collect::<Vec<_>>(), ["/go/bin", &format!("{}/.local/bin", made.path().display())]);
    Ok(())
}

/// A tag of an action can be moved to other code; a commit cannot.
#[test]
fn the_workflows_pin_actions_by_commit() -> anyhow::Result<()> {
    let mut pinned = 0;
    for entry in fs::read_dir(root().join(".github/workflows"))? {
        for line in fs::read_to_string(entry?.path())?.lines() {
            let Some(action) = line.trim_start_matches([' ', '-']).strip_prefix("uses: ") else { continue };
            let commit = action.split(' ').next().and_then(|action| action.split_once('@')).map(|(_, commit)| commit);
            let is_commit = |text: &str| text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(action.starts_with("./") || commit.is_some_and(is_commit), "{line}");
            pinned += usize::from(commit.is_some());
        }
    }
    assert!(pinned > 0);
    Ok(())
}

#[test]
fn the_workflows_are_valid() -> anyhow::Result<()> {
    output(Command::new(cache().join("helm/bin/actionlint")).current_dir(root()))?;
    Ok(())
}

#[test]
fn shellcheck_finds_no_problem_in_any_script() -> anyhow::Result<()> {
    let lines = r"git grep --cached -lzE '^#!/(bin/sh|bin/bash|usr/bin/env bash)$' |
        xargs -0 shellcheck --external-sources --source-path=SCRIPTDIR --severity=warning";
    output(Command::new("sh").args(["-euc", lines]).current_dir(root()))?;
    Ok(())
}
