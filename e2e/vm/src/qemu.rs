//! The process of a guest. It ends when dropped, and with the process that started it, however that ends.
//!
//! `setpriv --pdeathsig` makes the kernel end it with its parent, and takes the *thread* that forked for the parent: so that is a
//! thread of its own, which does nothing but fork and then wait for the [`Qemu`] to be dropped.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, ensure};

use crate::folder::Folder;
use crate::guest::Options;
use crate::image::{Accelerator, Image};

/// What the guest's kernel is told. Its log goes to the second serial line; the first is for the agent. A kernel that panics
/// ends the guest. The rest makes it boot faster on an emulated processor.
/// `norandmaps`: QEMU translates a program for the addresses that it is at, so one that is always at the same is translated once, and
/// starts four times as fast.
/// `no_timer_check`: on a busy machine the emulated timer is late, and the kernel would give up for it.
const KERNEL_ARGUMENTS: &str =
    "console=ttyS1 panic=-1 mitigations=off random.trust_cpu=on tsc=reliable no_timer_check norandmaps";

#[derive(Debug)]
pub(crate) struct Qemu {
    child: Child,
    _parent: mpsc::Sender<Infallible>,
}

impl Qemu {
    /// Starts the guest; `folder` has the agent in it. Returns the two ends of the serial line to the agent as well.
    pub(crate) fn start(
        image: &Image,
        folder: &Folder,
        accelerator: Accelerator,
        options: &Options,
    ) -> anyhow::Result<(Self, ChildStdin, ChildStdout)> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some(network) = &options.network {
            // It becomes QEMU, as setpriv becomes it.
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

    /// Ends it the hard way: it has nothing to lose. Returns how it ended if it had ended before.
    pub(crate) fn kill(&mut self) -> Option<ExitStatus> {
        let ended = self.child.try_wait().ok().flatten();
        // Both fail only for a child that is gone already.
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
    for card in 0..options.network.as_ref().map_or(0, |network| network.cards) {
        // Without a program to boot from.
        let [wire, card] = [format!("user,id=wire{card}"), format!("virtio-net-pci,netdev=wire{card},romfile=")];
        arguments.extend(["-netdev".into(), wire.into(), "-device".into(), card.into()]);
    }
    let mut log = OsString::from("file:");
    log.push(within_an_option(&folder.join("kernel.log"))?);
    arguments.extend(["-serial".into(), log]);
    for (tag, path, access) in [
        // Files of several file systems have numbers of their own.
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

/// QEMU's options are lists with commas.
fn within_an_option(path: &Path) -> anyhow::Result<&Path> {
    ensure!(!path.as_os_str().as_encoded_bytes().contains(&b','), "{} has a comma in it", path.display());
    Ok(path)
}
