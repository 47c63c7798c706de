//! The process of a guest. It ends when dropped, and when the process that started it ends for any reason.
//!
//! `setpriv --pdeathsig` makes the kernel kill it with its parent. For the kernel the parent is the *thread* that forked. So a
//! thread of its own forks, and then waits until the [`Qemu`] is dropped.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, ensure};

use crate::folder::Folder;
use crate::image::{Accelerator, Image};
use crate::options::Options;

/// The kernel's command line. The log goes to the second serial line; the first is for the agent. A panic stops the guest. The
/// other arguments make it boot faster on an emulated processor.
/// `norandmaps`: QEMU translates a program for its addresses, so a program that always has the same addresses is translated only
/// once and starts four times as fast.
/// `no_timer_check`: on a busy machine the emulated timer is late, and the kernel would panic.
const KERNEL_ARGUMENTS: &str =
    "console=ttyS1 panic=-1 mitigations=off random.trust_cpu=on tsc=reliable no_timer_check norandmaps";

#[derive(Debug)]
pub(crate) struct Qemu {
    child: Child,
    _parent: mpsc::Sender<Infallible>,
}

impl Qemu {
    /// Starts the guest; `folder` contains the agent. Also returns both ends of the serial line to the agent.
    pub(crate) fn start(
        image: &Image,
        folder: &Folder,
        accelerator: Accelerator,
        options: &Options,
    ) -> anyhow::Result<(Self, ChildStdin, ChildStdout)> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some(network) = &options.network {
            // nsenter replaces itself by QEMU, as setpriv replaces itself by nsenter.
            let mut namespace = OsString::from("--net=");
            namespace.push(&network.namespace);
            command.arg("nsenter").arg(namespace);
        }
        command.arg("qemu-system-x86_64");
        command.args(arguments(image, folder.path(), accelerator, options)?);
        let log = folder.join("qemu.log");
        let errors = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);

        let (parent, dropped) = mpsc::channel::<Infallible>();
        let (spawned, child) = mpsc::channel();
        thread::Builder::new().name("parent of the guest".to_owned()).spawn(move || {
            if spawned.send(command.spawn()).is_ok() {
                let Err(mpsc::RecvError) = dropped.recv();
            }
        })?;
        let starting = "starting the guest (setpriv is in util-linux: run e2e/deps.sh)";
        let mut child = child.recv().context(starting)?.context(starting)?;
        let ends = child.stdin.take().zip(child.stdout.take()).context("the guest has no serial line")?;
        Ok((Self { child, _parent: parent }, ends.0, ends.1))
    }

    /// Kills the guest. Returns its exit status if it had ended before.
    pub(crate) fn kill(&mut self) -> Option<ExitStatus> {
        let ended = self.child.try_wait().ok().flatten();
        // Both fail only if the child has ended and was waited for.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
        ended
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}

fn arguments(
    image: &Image,
    folder: &Path,
    accelerator: Accelerator,
    options: &Options,
) -> anyhow::Result<Vec<OsString>> {
    let (cpus, memory) = (options.cpus.to_string(), options.memory_mib.to_string());
    let plain = [
        ["-machine", "pc"],
        ["-accel", accelerator.as_str()],
        ["-cpu", accelerator.processor()],
        ["-smp", &cpus],
        ["-m", &memory],
        ["-display", "none"],
        ["-chardev", "stdio,id=agent,signal=off"],
        ["-serial", "chardev:agent"],
        ["-append", KERNEL_ARGUMENTS],
    ];
    let mut arguments: Vec<OsString> = ["-nodefaults", "-no-user-config", "-no-reboot"].map(OsString::from).into();
    arguments.extend(plain.into_iter().flatten().map(OsString::from));
    for (option, path) in [("-kernel", &image.kernel), ("-initrd", &image.initramfs)] {
        arguments.extend([option.into(), path.into()]);
    }
    for nic in 0..options.network.as_ref().map_or(0, |network| network.nics) {
        // An empty `romfile`, because the guest does not boot from the network.
        let [wire, device] = [format!("user,id=wire{nic}"), format!("virtio-net-pci,netdev=wire{nic},romfile=")];
        arguments.extend(["-netdev".into(), wire.into(), "-device".into(), device.into()]);
    }
    let mut log = OsString::from("file:");
    log.push(within_an_option(&folder.join("kernel.log"))?);
    arguments.extend(["-serial".into(), log]);
    for (tag, path, access) in [
        // The files come from several file systems, so their inode numbers must be remapped.
        ("root", Path::new("/"), ",readonly=on,multidevs=remap"),
        ("modules", &image.modules, ",readonly=on"),
        ("control", folder, ""),
    ] {
        let mut share = OsString::from(format!("local,mount_tag={tag},security_model=none{access},path="));
        share.push(within_an_option(path)?);
        arguments.extend(["-virtfs".into(), share]);
    }
    Ok(arguments)
}

/// Checks that a path contains no comma, which separates QEMU's suboptions.
fn within_an_option(path: &Path) -> anyhow::Result<&Path> {
    ensure!(!path.as_os_str().as_encoded_bytes().contains(&b','), "{} contains a comma", path.display());
    Ok(path)
}
