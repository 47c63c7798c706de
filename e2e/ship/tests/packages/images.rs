//! The OCI layout of `packaging/images.sh`, read as a container engine does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context as _;
use localnet_lab::{Namespace, Running, cases, check_case, topology::CLUSTER_CIDRS};
use serde_json::{Value, json};

use crate::{arch, folder, output, put_programs, put_stand_ins, script};

/// The user of the brain, and the group of the socket.
const BRAIN_USER: &str = "65532:65532";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// An image of a layout.
struct Image {
    config: Value,
    /// From the lowest to the highest.
    layers: Vec<PathBuf>,
}

fn blob(layout: &Path, digest: &Value) -> anyhow::Result<PathBuf> {
    let (kind, digest) = digest.as_str().and_then(|digest| digest.split_once(':')).context("a digest")?;
    let path = layout.join("blobs").join(kind).join(digest);
    let seen = output(Command::new("sha256sum").arg(&path))?;
    anyhow::ensure!(seen.starts_with(digest), "{}: {seen}", path.display());
    Ok(path)
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// The images, by name and platform, such as `linux/amd64`.
fn images(layout: &Path) -> anyhow::Result<BTreeMap<(String, String), Image>> {
    let mut images = BTreeMap::new();
    for index in read(&layout.join("index.json"))?["manifests"].as_array().context("an index lists")? {
        let name = index["annotations"]["org.opencontainers.image.ref.name"].as_str().context("a name")?;
        assert_eq!(index["mediaType"], "application/vnd.oci.image.index.v1+json", "{name}");
        let index = read(&blob(layout, &index["digest"])?)?;
        for manifest in index["manifests"].as_array().context("a list of processors")? {
            let platform = &manifest["platform"];
            let [os, arch] = ["os", "architecture"].map(|field| platform[field].as_str().unwrap_or_default());
            // With the field `os.version`, containerd would run an image on one version of Windows alone.
            assert_eq!(platform, &json!({ "os": os, "architecture": arch }), "{name}");
            let manifest = read(&blob(layout, &manifest["digest"])?)?;
            let config = read(&blob(layout, &manifest["config"]["digest"])?)?;
            assert_eq!((&config["architecture"], &config["os"]), (&json!(arch), &json!(os)), "{name}");
            let layers = manifest["layers"].as_array().context("layers")?;
            let layers: anyhow::Result<_> = layers.iter().map(|layer| blob(layout, &layer["digest"])).collect();
            images.insert((name.to_owned(), format!("{os}/{arch}")), Image { config, layers: layers? });
        }
    }
    Ok(images)
}

impl Image {
    /// Owner, mode and name of everything in the image except folders.
    fn files(&self) -> anyhow::Result<Vec<String>> {
        let mut files = Vec::new();
        for layer in &self.layers {
            let listing = output(Command::new("tar").args(["--numeric-owner", "-tvzf"]).arg(layer))?;
            let lines = listing.lines().filter(|line| !line.ends_with('/'));
            files.extend(lines.map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                format!("{} {} {}", words[1], words[0], words.last().unwrap())
            }));
        }
        Ok(files)
    }

    fn unpack(&self, root: &Path) -> anyhow::Result<()> {
        fs::create_dir(root)?;
        for layer in &self.layers {
            output(Command::new("tar").arg("-xzf").arg(layer).arg("-C").arg(root))?;
        }
        Ok(())
    }

    /// Starts the entrypoint as the image's user in a namespace. The root is created in a folder. Its `run` and `etc` contain the
    /// files that all containers of a pod share. Programs that are built for tests also need this machine's libraries.
    fn start(&self, pod: &Pod<'_>, program: &str, arguments: &[&str]) -> anyhow::Result<Running> {
        let root = pod.folder.join(program.trim_start_matches('/').replace('/', "-"));
        if !root.exists() {
            self.unpack(&root)?;
        }
        let user = match self.config["config"]["User"].as_str().context("a user")? {
            "0" => "0:0",
            user => user,
        };
        let log = File::options().create(true).append(true).open(pod.log(program))?;
        let errors = log.try_clone()?;
        let (folder, root) = (pod.folder.display(), root.display());
        let lines = format!(
            "mkdir -p {root}/run/localnet {root}/etc/localnet {root}/proc
            mount --bind {folder}/run {root}/run/localnet
            mount --bind {folder}/etc {root}/etc/localnet
            mount --bind /proc {root}/proc
            for name in lib lib64; do
                [ -d /usr/$name ] || continue
                mkdir -p {root}/usr/$name {root}/$name
                mount --bind /usr/$name {root}/usr/$name
                mount --bind /usr/$name {root}/$name
            done
            exec chroot --userspec={user} {root} {program} \"$@\""
        );
        pod.node.spawn("unshare", |command| {
            command.args(["--mount", "--propagation", "private", "sh", "-euc", &lines, "sh"]).args(arguments);
            command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
            command.stdin(Stdio::null()).stdout(log).stderr(errors)
        })
    }

    fn entrypoint(&self) -> anyhow::Result<&str> {
        self.config["config"]["Entrypoint"][0].as_str().context("an entrypoint")
    }
}

/// The common environment of a pod's containers.
struct Pod<'a> {
    node: &'a Namespace,
    folder: &'a Path,
}

impl Pod<'_> {
    fn log(&self, program: &str) -> PathBuf {
        self.folder.join(format!("{}.log", program.rsplit('/').next().unwrap()))
    }

    fn output(&self, program: &str) -> String {
        fs::read_to_string(self.log(program)).unwrap_or_default()
    }

    /// Runs a program of an image to its end. Returns its output.
    fn run(&self, image: &Image, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
        let status = image.start(self, program, arguments)?.wait()?;
        anyhow::ensure!(status.success(), "{program} {arguments:?}: {status}: {}", self.output(program));
        Ok(self.output(program))
    }
}

#[test]
fn images_are_reproducible() -> anyhow::Result<()> {
    let names = ["localnet", "localnet-brain", "localnet-ipvs", "localnet-nft"];
    let mut seen = Vec::new();
    for umask in ["022", "077"] {
        let made = folder()?;
        // The images are not run, so stand-ins work for any processor.
        for arch in ["amd64", "arm64"] {
            let folder = made.path().join("programs").join(arch);
            put_stand_ins(&names, &folder.join("bin"))?;
            output(script("kit.sh").arg("/bin/true").arg(folder.join("kit")))?;
        }
        put_stand_ins(&["localnet-brain.exe", "localnet-win.exe"], &made.path().join("programs/windows-amd64/bin"))?;
        fs::write(made.path().join("programs/NOTICES.gz"), "licences")?;
        let (programs, layout) = (made.path().join("programs"), made.path().join("layout"));
        let lines = format!("umask {umask}; exec packaging/images.sh of \"$@\"");
        let mut shell = Command::new("sh");
        output(shell.args(["-euc", &lines, "sh"]).args([&programs, &layout]).current_dir(crate::root()))?;
        let images = images(&layout)?;
        let expected = names
            .iter()
            .chain([&"localnet-conformance"])
            .flat_map(|name| ["linux/amd64", "linux/arm64"].map(|platform| (*name, platform)))
            .chain(["localnet-brain", "localnet-win"].map(|name| (name, "windows/amd64")));
        let expected: BTreeSet<_> =
            expected.map(|(name, platform)| (format!("{name}-{VERSION}"), platform.to_owned())).collect();
        assert_eq!(images.keys().cloned().collect::<BTreeSet<_>>(), expected);
        check_windows(&images[&(format!("localnet-win-{VERSION}"), "windows/amd64".to_owned())])?;
        let kit = images[&(format!("localnet-conformance-{VERSION}"), "linux/arm64".to_owned())].files()?;
        for file in [
            "usr/bin/localnet-conformance",
            "usr/share/localnet/cases/cluster-ip/flows.yaml",
            "usr/share/localnet/proto/localnetv1.proto",
        ] {
            assert!(
                kit.iter().any(|line| line.starts_with("0/0 ") && line.ends_with(file)),
                "{file} is not in {kit:?}"
            );
        }
        seen.push(fs::read_to_string(layout.join("index.json"))?);
    }
    assert_eq!(seen[0], seen[1]);
    Ok(())
}

/// An image for HostProcess containers has one layer, with the files that Windows requires of a lowest layer.
fn check_windows(image: &Image) -> anyhow::Result<()> {
    let labels = json!({
        "org.opencontainers.image.title": "localnet-win",
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.licenses": "Apache-2.0",
    });
    assert_eq!(image.config["config"], json!({ "Entrypoint": ["localnet-win.exe"], "Labels": labels }));
    assert_eq!(image.layers.len(), 1);
    let made = folder()?;
    let (root, mut files) = (made.path().join("root"), image.files()?);
    image.unpack(&root)?;
    files.sort();
    let hives = ["DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"];
    let of_hive = |hive: &str| format!("0/0 -rw-r--r-- Files/Windows/System32/config/{hive}");
    let mut expected: Vec<String> = vec!["0/0 -rw-r--r-- Files/NOTICES.gz".to_owned()];
    expected.extend(hives.map(of_hive));
    expected.push("0/0 -rwxr-xr-x Files/localnet-win.exe".to_owned());
    assert_eq!(files, expected);
    for hive in hives {
        let path = root.join("Files/Windows/System32/config").join(hive);
        let content = output(Command::new("hivexml").arg(&path))?;
        assert!(content.contains(&format!("<node name=\"{hive}\" root=\"1\"")), "{content}");
        // A change of any byte of the header makes it invalid.
        let mut broken = fs::read(&path)?;
        broken[13] ^= 1;
        fs::write(&path, broken)?;
        assert!(output(Command::new("hivexml").arg(&path)).is_err(), "{hive} has no checksum");
    }
    Ok(())
}

/// `packaging/programs.sh` checks with this script what it has built.
#[test]
fn a_program_that_needs_files_of_the_node_is_refused() -> anyhow::Result<()> {
    let made = folder()?;
    let source = made.path().join("program.c");
    fs::write(&source, "int main(void) { return 0; }\n")?;
    for (flag, refusal) in
        [("-static", None), ("-static-pie", None), ("-no-pie", Some("not static")), ("-pie", Some("not static"))]
    {
        let program = made.path().join(format!("program{flag}"));
        output(Command::new("cc").arg(flag).arg("-o").args([&program, &source]))?;
        let checked = output(script("static.sh").arg(&program));
        match refusal {
            None => drop(checked.context(flag)?),
            Some(why) => assert!(checked.expect_err(flag).to_string().contains(why), "{flag}"),
        }
    }
    let text = output(script("static.sh").arg(&source)).expect_err("a text is no program").to_string();
    assert!(text.contains("it is no ELF file"), "{text}");
    Ok(())
}

#[test]
fn a_service_answers_with_the_programs_in_the_images() -> anyhow::Result<()> {
    let made = folder()?;
    let arch = arch()?;
    let programs = made.path().join("programs");
    put_programs(&["localnet", "localnet-brain", "localnet-nft"], &programs.join(&arch).join("bin"))?;
    let layout = made.path().join("layout");
    output(script("images.sh").arg("of").args([&programs, &layout]))?;
    let images = images(&layout)?;
    let image = |name: &str| {
        images.get(&(format!("{name}-{VERSION}"), format!("linux/{arch}"))).context("an image of this name")
    };

    for (name, user) in [("localnet", "0"), ("localnet-brain", BRAIN_USER), ("localnet-nft", "0")] {
        let image = image(name)?;
        let expected = json!({
            "User": user,
            "Env": ["PATH=/usr/sbin:/usr/bin"],
            "Entrypoint": [format!("/usr/bin/{name}")],
            "Labels": {
                "org.opencontainers.image.title": name,
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        });
        assert_eq!(image.config["config"], expected);
        let mut files = vec!["0/0 -rwxr-xr-x usr/bin/localnet".to_owned()];
        if name != "localnet" {
            files.push(format!("0/0 -rwxr-xr-x usr/bin/{name}"));
        }
        assert_eq!(image.files()?, files, "{name}: nothing but programs");
    }

    let case = cases().into_iter().find(|case| case.name == "cluster-ip").context("a Case")?;
    check_case(&case, |network| {
        let shared = folder()?;
        let pod = Pod { node: network.node(), folder: shared.path() };
        for name in ["run", "etc"] {
            fs::create_dir(shared.path().join(name))?;
        }
        std::os::unix::fs::chown(shared.path().join("run"), Some(65532), Some(65532))?;
        fs::copy(case.cluster(), shared.path().join("etc/cluster.yaml"))?;
        let (brain, nft) = (image("localnet-brain")?, image("localnet-nft")?);
        let source = ["--source=file:/etc/localnet", "--node-name=node-a"];
        let running = brain.start(&pod, brain.entrypoint()?, &source)?;
        let socket = shared.path().join("run/brain.sock");
        localnet_e2e::await_condition("the brain's socket", || socket.exists())
            .with_context(|| pod.output("localnet-brain"))?;
        let cluster = format!("--cluster-cidr={}", CLUSTER_CIDRS.join(","));
        pod.run(nft, nft.entrypoint()?, &["--once", &cluster])?;
        // `kubectl exec` starts it like this in the backend's container.
        let services = pod.run(nft, "/usr/bin/localnet", &["get", "services"])?;
        anyhow::ensure!(services.contains("172.30.0.41"), "{services}");
        pod.run(nft, "/usr/bin/localnet", &["diff", &cluster])?;
        Ok((running, shared))
    })
}
