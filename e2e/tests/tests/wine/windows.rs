//! A separate Windows for each test, with its own Wine prefix, server and HNS. Only the read-only files of the system are shared.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::OnceLock,
};

use anyhow::{Context as _, bail, ensure};
use localnet_e2e::await_condition;
use localnet_lab::{Namespace, Running};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn cache() -> PathBuf {
    env::var_os("LOCALNET_CACHE").map_or_else(|| repository().join(".cache"), PathBuf::from).join("wine")
}

/// Whether this machine can run Windows programs. If it cannot, this prints a visible message, and fails in CI.
pub(crate) fn is_possible() -> bool {
    let possible = cfg!(target_arch = "x86_64");
    if !possible {
        // Bypass the output capture of the test harness.
        _ = io::stderr()
            .write_all(b"SKIPPED: LOCALNET-WIN IS NOT TESTED AS A WINDOWS PROGRAM, THIS MACHINE IS NO X86_64\n");
        assert!(env::var_os("CI").is_none(), "CI has to test localnet-win as a Windows program");
    }
    possible
}

/// The backend.
pub(crate) const BACKEND: &str = "localnet-win";
/// The brain.
pub(crate) const BRAIN: &str = "localnet-brain";
/// Both in one program.
pub(crate) const NODE: &str = "localnet-node";

/// The backend, built from the current sources.
pub(crate) fn program() -> PathBuf {
    built(BACKEND)
}

/// A program, built from the current sources.
fn built(name: &str) -> PathBuf {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    folder.as_deref().unwrap().join(name).with_extension("exe")
}

fn build() -> anyhow::Result<PathBuf> {
    let ready = cache().join("prefix/stamp");
    ensure!(ready.exists(), "Wine is not set up ({} is missing): run `make wine`", ready.display());
    let mut cargo = Command::new(repository().join("e2e/wine/cargo"));
    let built =
        cargo.args(["build", "--locked", "-p", BACKEND, "-p", BRAIN, "-p", NODE]).current_dir(repository()).output()?;
    // No other compilation sees the code that is only for Windows, so its warnings count here.
    let stderr = String::from_utf8_lossy(&built.stderr);
    ensure!(
        built.status.success() && !stderr.contains("warning: "),
        "the programs do not build without warnings: {stderr}"
    );
    // target/PROFILE/deps/TEST-HASH
    let test = env::current_exe()?;
    let target = test.ancestors().nth(3).context("finding the folder of programs")?;
    Ok(target.join("wine/x86_64-pc-windows-gnu/debug"))
}

/// The name of a Linux file in Windows.
pub(crate) fn windows_path(path: &Path) -> String {
    format!("Z:{}", path.display()).replace('/', "\\")
}

/// A Windows with an HNS.
#[derive(Debug)]
pub(crate) struct Windows {
    folder: TempDir,
    version: String,
}

/// An object of the HNS: its kind and its identifier.
pub(crate) type Object = (String, String);

impl Windows {
    /// Creates a Windows whose HNS has this version, a network `pods`, and endpoints of pods with these addresses.
    pub(crate) fn new(version: &str, network_type: &str, pods: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let windows = Self { folder, version: version.to_owned() };
        let prefix = windows.path("prefix");
        let made = Command::new(repository().join("e2e/wine/prefix")).arg(&prefix).status()?;
        ensure!(made.success(), "e2e/wine/prefix has ended with {made}");
        // A service has the environment of the system, which is read when Windows starts. It does not inherit the environment of
        // the program that starts it.
        let key = r"[System\\CurrentControlSet\\Control\\Session Manager\\Environment]";
        let values = windows.environment().map(|(name, value)| format!("{name:?}={value:?}\n"));
        let mut registry = fs::File::options().append(true).open(prefix.join("system.reg"))?;
        write!(registry, "\n{key}\n{}", values.concat())?;
        let network = format!(
            "{{\"ID\":\"{NETWORK}\",\"Name\":\"pods\",\"Type\":\"{network_type}\",\"Policies\":[{{\"Type\":\"RemoteSubnetRoute\",\
             \"Settings\":{{\"DestinationPrefix\":\"10.180.1.0/24\",\"IsolationId\":4096,\"ProviderAddress\":\"192.168.0.3\"}}}}]}}"
        );
        let mut objects = BTreeMap::from([(("network".to_owned(), NETWORK.to_owned()), network)]);
        for (number, pod) in pods.iter().enumerate() {
            let id = format!("00000000-0000-0000-0000-{number:012}");
            let document = format!(
                "{{\"ID\":\"{id}\",\"Name\":\"Ethern\u{e9}t {number}\",\"HostComputeNetwork\":\"{NETWORK}\",\
                 \"IpConfigurations\":[{{\"IpAddress\":\"{pod}\",\"PrefixLength\":24}}]}}"
            );
            objects.insert(("endpoint".to_owned(), id), document);
        }
        windows.set_objects(&objects)?;
        Ok(windows)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The objects of the HNS, as they were written.
    pub(crate) fn objects(&self) -> BTreeMap<Object, String> {
        let text = fs::read_to_string(self.path("hns")).unwrap_or_default();
        let object = |line: &str| {
            let mut fields = line.splitn(3, '\t').map(str::to_owned);
            Some(((fields.next()?, fields.next()?), fields.next()?))
        };
        text.lines().filter_map(object).collect()
    }

    /// Replaces the objects of the HNS without notifying its users.
    pub(crate) fn set_objects(&self, objects: &BTreeMap<Object, String>) -> anyhow::Result<()> {
        let lines: Vec<String> = objects.iter().map(|((kind, id), json)| format!("{kind}\t{id}\t{json}\n")).collect();
        fs::write(self.path("hns.test"), lines.concat())?;
        Ok(fs::rename(self.path("hns.test"), self.path("hns"))?)
    }

    /// The load balancers: address and port, and the last digits of the identifiers of their endpoints.
    pub(crate) fn balancers(&self) -> BTreeMap<String, Vec<String>> {
        let of = |json: &String| {
            let document: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"));
            let address = document["FrontendVIPs"][0].as_str().unwrap_or("node").to_owned();
            let port = &document["PortMappings"][0]["ExternalPort"];
            let endpoints = document["HostComputeEndpoints"].as_array().unwrap();
            let last =
                |id: &Value| id.as_str().unwrap().chars().rev().take(8).collect::<Vec<_>>().iter().rev().collect();
            let mut endpoints: Vec<String> = endpoints.iter().map(last).collect();
            endpoints.sort();
            (format!("{address}:{port}"), endpoints)
        };
        self.objects().iter().filter(|((kind, _), _)| kind == "balancer").map(|(_, json)| of(json)).collect()
    }

    /// Waits for exactly these load balancers.
    pub(crate) fn await_balancers(&self, expected: &[(&str, &[&str])]) -> anyhow::Result<()> {
        let owned = |(name, endpoints): &(&str, &[&str])| {
            ((*name).to_owned(), endpoints.iter().map(|&id| id.to_owned()).collect::<Vec<_>>())
        };
        let expected: BTreeMap<String, Vec<String>> = expected.iter().map(owned).collect();
        await_condition("load balancers", || self.balancers() == expected)
            .with_context(|| format!("expected {expected:?}, there are {:?}; {}", self.balancers(), self.output()))
    }

    /// The environment variables that configure the stand-in for HNS.
    fn environment(&self) -> [(&'static str, String); 3] {
        [
            ("LOCALNET_HNS", windows_path(&self.path("hns"))),
            ("LOCALNET_HNS_LOG", windows_path(&self.path("log"))),
            ("LOCALNET_HNS_VERSION", self.version.clone()),
        ]
    }

    /// Starts the brain.
    pub(crate) fn start_brain(&self, namespace: &Namespace, arguments: &[&str]) -> anyhow::Result<Running> {
        self.start_other(namespace, built(BRAIN).as_os_str(), arguments)
    }

    /// The drive `C:`.
    pub(crate) fn drive(&self) -> PathBuf {
        self.path("prefix").join("drive_c")
    }

    /// Starts a program of a HostProcess container, in the folder where containerd puts the files of its image. Wine looks for a path that
    /// begins with a slash outside its drive, so the folder of secrets is also mounted there, where only these processes see it.
    pub(crate) fn start_in_image(
        &self,
        namespace: &Namespace,
        program: &str,
        arguments: &[String],
        environment: &[(String, String)],
    ) -> anyhow::Result<Running> {
        let image = self.drive().join("hpc");
        fs::create_dir_all(&image)?;
        fs::copy(built(program.trim_end_matches(".exe")), image.join(program))?;
        let secrets = self.drive().join("var/run/secrets");
        fs::create_dir_all(&secrets)?;
        let mount = format!(
            "mount -t tmpfs none /run\nmkdir /run/secrets\nmount --bind {} /run/secrets\nexec \"$@\"",
            secrets.display()
        );
        self.start_with(namespace, "unshare".as_ref(), |command| {
            command.args(["--mount", "--propagation", "private", "sh", "-euc", &mount, "sh"]);
            command.arg(repository().join("e2e/wine/run")).arg(image.join(program)).args(arguments);
            command.current_dir(&image).envs(environment.iter().cloned());
        })
    }

    /// Starts the program.
    pub(crate) fn start(&self, namespace: &Namespace, arguments: &[&str]) -> anyhow::Result<Running> {
        self.start_other(namespace, program().as_os_str(), arguments)
    }

    fn start_other(&self, namespace: &Namespace, program: &OsStr, arguments: &[&str]) -> anyhow::Result<Running> {
        self.start_with(namespace, repository().join("e2e/wine/run").as_os_str(), |command| {
            command.arg(program).args(arguments);
            command.current_dir(self.folder.path()).env("RUST_LOG", "info,localnet=debug");
        })
    }

    fn start_with(
        &self,
        namespace: &Namespace,
        program: &OsStr,
        set_up: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Running> {
        // Other processes of Wine inherit the output and outlive the program, so a pipe would not end with the program.
        let output = fs::File::options().create(true).append(true).open(self.path("output"))?;
        let other = output.try_clone()?;
        namespace.spawn(program, |command| {
            set_up(command);
            let command = command.env("LOCALNET_WINEPREFIX", self.path("prefix")).envs(self.environment());
            command.stdout(output).stderr(other)
        })
    }

    /// Starts a server on a named pipe that forwards to a TCP port of the namespace, and waits until it runs.
    pub(crate) fn start_pipe(&self, namespace: &Namespace, name: &str, port: u16) -> anyhow::Result<Running> {
        let running = self.start_other(namespace, cache().join("pipe.exe").as_os_str(), &[name, &port.to_string()])?;
        await_condition("the named pipe", || self.output().contains("listening"))?;
        Ok(running)
    }

    /// Starts the incremental example in Go.
    pub(crate) fn start_go(&self, namespace: &Namespace, arguments: &[&str]) -> anyhow::Result<Running> {
        let program = cache().with_file_name("examples").join("bin/go-incremental.exe");
        ensure!(program.exists(), "{} is not built: run `make examples`", program.display());
        self.start_other(namespace, program.as_os_str(), arguments)
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, namespace: &Namespace, arguments: &[&str]) -> anyhow::Result<()> {
        let running = self.start(namespace, arguments)?;
        self.succeeded(running, arguments)
    }

    /// Runs a tool of Windows to its end. Its output is appended to that of the program.
    pub(crate) fn tool(&self, namespace: &Namespace, tool: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let running = self.start_tool(namespace, tool, arguments)?;
        self.succeeded(running, arguments).context(tool.to_owned())
    }

    /// Starts a tool of Windows.
    pub(crate) fn start_tool(&self, namespace: &Namespace, tool: &str, arguments: &[&str]) -> anyhow::Result<Running> {
        self.start_other(namespace, OsStr::new(tool), arguments)
    }

    fn succeeded(&self, mut running: Running, arguments: &[&str]) -> anyhow::Result<()> {
        let ended = self.ended(&mut running)?;
        ensure!(ended.success(), "{arguments:?}: {ended}; {}", self.output());
        Ok(())
    }

    /// Installs a program as a service of the same name, with these arguments.
    pub(crate) fn install(&self, namespace: &Namespace, name: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let command = format!("{} {}", windows_path(&built(name)), arguments.join(" "));
        self.tool(namespace, "sc", &["create", name, "binpath=", &command])
    }

    /// Stops a service and waits until it has stopped without an error.
    pub(crate) fn stop(&self, namespace: &Namespace, name: &str) -> anyhow::Result<()> {
        self.tool(namespace, "sc", &["stop", name])?;
        let mut state = String::new();
        await_condition("the end of the service", || {
            let before = self.output().len();
            let queried = self.tool(namespace, "sc", &["query", name]);
            state = self.output().split_off(before);
            queried.is_ok() && state.contains("STOPPED")
        })?;
        ensure!(state.contains("WIN32_EXIT_CODE    : 0 "), "{state}");
        Ok(())
    }

    /// Waits until the program exits.
    pub(crate) fn ended(&self, running: &mut Running) -> anyhow::Result<ExitStatus> {
        let mut status = None;
        await_condition("the end of the program", || {
            status = running.try_wait().unwrap();
            status.is_some()
        })
        .with_context(|| self.output())?;
        status.context("no status")
    }

    /// The output of the program.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.path("output")).unwrap_or_default()
    }

    /// The changes that were requested from the HNS, and its refusals.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Fails if a process has exited with an open handle or a string that was not freed.
    pub(crate) fn leaks_nothing(&self) -> anyhow::Result<()> {
        let log = self.log();
        let ends: Vec<&str> = log.lines().filter(|line| line.starts_with("unloaded")).collect();
        let starts = log.lines().filter(|line| *line == "loaded").count();
        ensure!(
            !ends.is_empty() && ends.len() == starts,
            "{} ends of {starts} processes are noted:\n{log}",
            ends.len()
        );
        let clean = "unloaded: 0 handles are open, 0 strings are not freed";
        if let Some(leak) = ends.iter().find(|line| **line != clean) {
            bail!("{leak}:\n{log}");
        }
        Ok(())
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        // Ends only the processes that Wine has started for this prefix.
        let mut server = Command::new("/usr/lib/wine/wineserver64");
        _ = server.arg("-k").env("WINEPREFIX", self.path("prefix")).env("TMPDIR", self.path("prefix")).status();
    }
}

/// The network `pods`.
const NETWORK: &str = "11111111-2222-3333-4444-555555555555";
