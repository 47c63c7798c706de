//! A stand-in for a kubelet, for a pod of the chart on a node of the lab. It creates the volumes, then starts the containers with
//! the user, capabilities, mounts and environment of their manifest, each in its own root.
//!
//! A container's root has the content of its image: the program and, for iptables, the tools. Programs that are built for tests
//! also need the system's libraries. `seccompProfile` is not applied.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{ConfigMap, ServiceAccount},
};
use kube::{Api, Client, api::PostParams};
use localnet_e2e::{PATIENCE, program};
use localnet_lab::{Namespace, Running};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::TempDir;

/// The interval of polling.
const POLL: Duration = Duration::from_millis(20);
/// Timeout of a probe.
const PROBE: Duration = Duration::from_secs(1);

/// The kubelet of one node. Dropping it ends its containers.
pub(crate) struct Kubelet<'a> {
    pub(crate) node: &'a Namespace,
    pub(crate) name: &'static str,
    pub(crate) ip: IpAddr,
    client: Client,
    namespace: &'static str,
    pod: Vec<Container>,
    /// Contains the host's files, volumes, roots and logs.
    folder: TempDir,
    started: usize,
}

/// A started container.
struct Container {
    name: String,
    running: Running,
}

impl<'a> Kubelet<'a> {
    /// Creates a kubelet without a pod.
    pub(crate) fn new(
        (node, name, ip): (&'a Namespace, &'static str, IpAddr),
        client: Client,
        namespace: &'static str,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        // Containers with other users must reach their volumes.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Self { node, name, ip, client, namespace, pod: Vec::new(), folder, started: 0 })
    }

    /// Ends the current pod, as the rollout of a DaemonSet does, starts one from this template, and waits until it is ready.
    pub(crate) async fn replace(&mut self, template: &Value) -> anyhow::Result<()> {
        self.stop()?;
        self.started += 1;
        let spec = &template["spec"];
        let volumes = self.volumes(spec).await?;
        let group = spec["securityContext"]["fsGroup"].as_u64();
        for container in list(&spec["initContainers"]) {
            let mut started = self.start(container, &volumes, group)?;
            let status = started.running.wait()?;
            ensure!(status.success(), "{}: {} {status}: {}", self.name, started.name, self.log(&started.name));
        }
        for container in list(&spec["containers"]) {
            let started = self.start(container, &volumes, group)?;
            self.pod.push(started);
        }
        for container in list(&spec["containers"]) {
            for probe in ["readinessProbe", "livenessProbe"] {
                self.await_probe(&container[probe]).with_context(|| {
                    format!("{}: {} of {}: {}", self.name, probe, text(&container["name"]), self.logs())
                })?;
            }
        }
        Ok(())
    }

    /// Ends the pod's containers as a kubelet does.
    fn stop(&mut self) -> anyhow::Result<()> {
        for container in &self.pod {
            kill(Pid::from_raw(container.running.id().try_into()?), Signal::SIGTERM).with_context(|| {
                format!("{}: {} has ended: {}", self.name, container.name, self.log(&container.name))
            })?;
        }
        for mut container in std::mem::take(&mut self.pod) {
            let status = container.running.wait()?;
            ensure!(status.success(), "{}: {} {status}: {}", self.name, container.name, self.log(&container.name));
        }
        Ok(())
    }

    /// Where this machine has a file of the host.
    pub(crate) fn host(&self, path: &str) -> PathBuf {
        self.folder.path().join("host").join(path.trim_start_matches('/'))
    }

    /// The path of each volume on the host.
    async fn volumes(&self, spec: &Value) -> anyhow::Result<BTreeMap<String, PathBuf>> {
        let mut places = BTreeMap::new();
        for volume in list(&spec["volumes"]) {
            let name = text(&volume["name"]);
            let place = self.folder.path().join(format!("{}-{name}", self.started));
            let place = if let Some(path) = volume["hostPath"]["path"].as_str() {
                let place = self.host(path);
                if volume["hostPath"]["type"] == "DirectoryOrCreate" {
                    fs::create_dir_all(&place)?;
                } else {
                    fs::create_dir_all(place.parent().context("a file is in a folder")?)?;
                    File::options().create(true).append(true).open(&place)?;
                }
                place
            } else {
                fs::create_dir(&place).with_context(|| format!("creating {}", place.display()))?;
                place
            };
            if volume["configMap"].is_object() {
                self.write_config_map(&volume["configMap"], &place).await?;
            }
            for source in list(&volume["projected"]["sources"]) {
                self.project(spec, source, &place).await?;
            }
            if volume["emptyDir"].is_object() {
                // The volume and all new files in it belong to the pod's group.
                let group = spec["securityContext"]["fsGroup"].as_u64().map(u32::try_from).transpose()?;
                chown(&place, None, group)?;
                fs::set_permissions(&place, fs::Permissions::from_mode(0o2777))?;
            }
            places.insert(name.to_owned(), place);
        }
        Ok(places)
    }

    async fn write_config_map(&self, source: &Value, place: &Path) -> anyhow::Result<()> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.namespace);
        let name = text(&source["name"]);
        let data =
            maps.get(name).await.with_context(|| format!("reading the ConfigMap {name}"))?.data.unwrap_or_default();
        for item in list(&source["items"]) {
            let (key, path) = (text(&item["key"]), text(&item["path"]));
            fs::write(place.join(path), data.get(key).with_context(|| format!("{name} has no {key}"))?)?;
        }
        Ok(())
    }

    async fn project(&self, spec: &Value, source: &Value, place: &Path) -> anyhow::Result<()> {
        if source["configMap"].is_object() {
            self.write_config_map(&source["configMap"], place).await?;
        }
        let token = &source["serviceAccountToken"];
        if token.is_object() {
            let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), self.namespace);
            let seconds = token["expirationSeconds"].as_i64();
            let request = TokenRequestSpec { expiration_seconds: seconds, ..TokenRequestSpec::default() };
            let request = TokenRequest { spec: Some(request), ..TokenRequest::default() };
            let account = text(&spec["serviceAccountName"]);
            let answer = accounts.create_token_request(account, &PostParams::default(), &request).await;
            let answer = answer.with_context(|| format!("asking for a token of {account}"))?;
            let path = place.join(text(&token["path"]));
            fs::write(path, answer.status.and_then(|status| status.token).context("a token request is answered")?)?;
        }
        for item in list(&source["downwardAPI"]["items"]) {
            ensure!(item["fieldRef"]["fieldPath"] == "metadata.namespace", "{item} is not supported by this test");
            fs::write(place.join(text(&item["path"])), self.namespace)?;
        }
        Ok(())
    }

    fn start(
        &self,
        container: &Value,
        volumes: &BTreeMap<String, PathBuf>,
        group: Option<u64>,
    ) -> anyhow::Result<Container> {
        let name = text(&container["name"]).to_owned();
        let log = File::options().create(true).append(true).open(self.log_path(&name))?;
        let output = log.try_clone()?;
        let root = self.folder.path().join(format!("root-{}-{name}", self.started));
        fs::create_dir(&root)?;
        let script = script(container, volumes, group, &root)?;
        let environment = self.environment(container)?;
        let arguments = list(&container["command"]).map(|word| {
            let word = text(word).to_owned();
            environment.iter().fold(word, |word, (name, value)| word.replace(&format!("$({name})"), value))
        });
        let arguments: Vec<String> = arguments.collect();
        let running = self.node.spawn("unshare", |command| {
            command.args(["--mount", "--propagation", "private", "sh", "-euc", &script, "sh"]).args(&arguments);
            command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(environment.iter().cloned());
            command.stdin(Stdio::null()).stdout(output).stderr(log)
        })?;
        Ok(Container { name, running })
    }

    fn environment(&self, container: &Value) -> anyhow::Result<Vec<(String, String)>> {
        let value = |variable: &Value| match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("spec.nodeName") => Ok(self.name.to_owned()),
            Some(other) => anyhow::bail!("{other} is not supported by this test"),
            None => Ok(text(&variable["value"]).to_owned()),
        };
        list(&container["env"]).map(|variable| Ok((text(&variable["name"]).to_owned(), value(variable)?))).collect()
    }

    /// Repeats a probe until it succeeds.
    fn await_probe(&self, probe: &Value) -> anyhow::Result<()> {
        let Some(get) = probe["httpGet"].as_object() else { return Ok(()) };
        let host = get.get("host").and_then(Value::as_str).map_or(Ok(self.ip), str::parse)?;
        let port = u16::try_from(get["port"].as_u64().context("a port is a number")?)?;
        let (at, path) = (SocketAddr::new(host, port), text(&get["path"]));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.node.run(|| Ok(ask(at, path)))?;
            match answer {
                Ok(line) if line.contains(" 200 ") => return Ok(()),
                answer => ensure!(Instant::now() < deadline, "{at}{path}: {answer:?}"),
            }
            std::thread::park_timeout(POLL);
        }
    }

    fn log_path(&self, container: &str) -> PathBuf {
        self.folder.path().join(format!("{container}.log"))
    }

    fn log(&self, container: &str) -> String {
        fs::read_to_string(self.log_path(container)).unwrap_or_default()
    }

    /// The output of all containers.
    pub(crate) fn logs(&self) -> String {
        self.pod.iter().map(|container| format!("\n{}:\n{}", container.name, self.log(&container.name))).collect()
    }
}

/// The first line of an HTTP answer.
fn ask(at: SocketAddr, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, PROBE)?;
    stream.set_read_timeout(Some(PROBE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: node\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

/// A shell script that enters the container. The command follows as its arguments.
fn script(
    container: &Value,
    volumes: &BTreeMap<String, PathBuf>,
    group: Option<u64>,
    root: &Path,
) -> anyhow::Result<String> {
    let may = &container["securityContext"];
    let privileged = may["privileged"] == true;
    let root = root.display();
    let path = text(&container["command"][0]);
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut lines = vec![
        format!("mount -t tmpfs -o mode=755 tmpfs {root}"),
        format!("mkdir -p {root}/usr/bin {root}/usr/lib {root}/proc"),
        format!("ln -s usr/lib {root}/lib"),
        // The dynamic loader of this machine, and the mount of the program.
        format!(
            "if [ -d /usr/lib64 ]; then mkdir {root}/usr/lib64; mount --bind /usr/lib64 {root}/usr/lib64; ln -s usr/lib64 {root}/lib64; fi"
        ),
        format!("mount --bind /usr/lib {root}/usr/lib"),
        format!("mount -o remount,bind,ro {root}/usr/lib"),
        format!("touch {root}/usr/bin/setpriv {root}{path}"),
        format!("mount --bind /usr/bin/setpriv {root}/usr/bin/setpriv"),
        format!("mount --bind {} {root}{path}", program(name)?.display()),
        format!("mount --bind /proc {root}/proc"),
        // Mounts that every container has.
        format!("mkdir {root}/dev"),
        format!(
            "for name in null zero full random urandom; do touch {root}/dev/$name; mount --bind /dev/$name {root}/dev/$name; done"
        ),
    ];
    if name == "localnet-iptables" {
        lines.push(format!("mkdir {root}/usr/sbin"));
        lines.push(format!("mount --bind /usr/sbin {root}/usr/sbin"));
        lines.push(format!("mount -o remount,bind,ro {root}/usr/sbin"));
    }
    if !privileged {
        lines.push(format!("mount --bind {root}/proc/sys {root}/proc/sys"));
        lines.push(format!("mount -o remount,bind,ro {root}/proc/sys"));
    }
    for mount in list(&container["volumeMounts"]) {
        let (name, at) = (text(&mount["name"]), text(&mount["mountPath"]));
        let place = volumes.get(name).with_context(|| format!("there is no volume {name}"))?;
        let make = if place.is_dir() {
            format!("mkdir -p {root}{at}")
        } else {
            format!("mkdir -p {root}{at}; rmdir {root}{at}; touch {root}{at}")
        };
        lines.push(make);
        lines.push(format!("mount --bind {} {root}{at}", place.display()));
        if mount["readOnly"] == true {
            lines.push(format!("mount -o remount,bind,ro {root}{at}"));
        }
    }
    if may["readOnlyRootFilesystem"] == true {
        lines.push(format!("mount -o remount,ro {root}"));
    }
    lines.push(format!("exec chroot {root} /usr/bin/setpriv {} \"$@\"", rights(may, privileged, group)));
    Ok(lines.join("\n"))
}

/// Flags of `setpriv`.
fn rights(may: &Value, privileged: bool, group: Option<u64>) -> String {
    let user = may["runAsUser"].as_u64().unwrap_or_default();
    let main = may["runAsGroup"].as_u64().unwrap_or_default();
    let groups = group.map_or_else(|| "--clear-groups".to_owned(), |group| format!("--groups {group}"));
    // Changing the user clears the parent death signal that the lab sets, so set it again.
    let mut flags = vec![format!("--reuid {user} --regid {main} {groups} --pdeathsig KILL")];
    if !privileged {
        let added = list(&may["capabilities"]["add"]).map(|name| format!(",+{}", text(name).to_lowercase()));
        flags.push(format!("--bounding-set -all{} --inh-caps -all --ambient-caps -all", added.collect::<String>()));
    }
    if may["allowPrivilegeEscalation"] == false {
        flags.push("--no-new-privs".to_owned());
    }
    flags.join(" ")
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
