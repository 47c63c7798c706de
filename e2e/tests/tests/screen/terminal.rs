//! A program in a pseudo-terminal, and what it shows there.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    num::NonZero,
    os::fd::OwnedFd,
    process::{Child, Command, ExitStatus},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_e2e::PATIENCE;
use localnet_lab::Namespace;
use rustix::{
    fs::{Mode, OFlags, open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

const ROWS: u16 = 30;

/// A program in a pseudo-terminal. Dropping it ends the program.
pub(crate) struct Terminal {
    child: Child,
    input: File,
    output: mpsc::Receiver<Vec<u8>>,
    /// All bytes so far.
    pub(crate) bytes: Vec<u8>,
    screen: vt100::Parser,
}

impl Terminal {
    /// Starts a program in a namespace and in a terminal with this many columns.
    pub(crate) fn start(namespace: &Namespace, command: &mut Command, columns: u16) -> anyhow::Result<Self> {
        let (master, slave) = pair(columns).context("opening a pseudo-terminal")?;
        command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        let child = namespace.run(|| command.spawn().with_context(|| format!("starting {command:?}")))?;
        // The command's copies of the slave would keep the terminal open after the program's end.
        command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let mut reader = File::from(master.try_clone()?);
        let (sender, output) = mpsc::channel();
        thread::spawn(move || {
            let mut part = [0; 4096];
            // Once no program has the terminal open, reading it fails.
            while let Ok(count @ 1..) = reader.read(&mut part) {
                if sender.send(part[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let size = |cells| NonZero::new(cells).context("a terminal without cells");
        let screen = vt100::Parser::new(size(ROWS)?, size(columns)?, 0);
        Ok(Self { child, input: File::from(master), output, bytes: Vec::new(), screen })
    }

    /// Types text.
    pub(crate) fn press(&mut self, keys: &str) -> anyhow::Result<()> {
        self.input.write_all(keys.as_bytes()).context("writing to the terminal")
    }

    /// The screen as text.
    pub(crate) fn text(&self) -> String {
        self.screen.screen().contents()
    }

    /// The screen with its colours.
    pub(crate) fn screen(&self) -> &vt100::Screen {
        self.screen.screen()
    }

    /// Reads what the program has written.
    fn read(&mut self, wait: Duration) -> Result<(), mpsc::RecvTimeoutError> {
        let part = self.output.recv_timeout(wait)?;
        self.screen.process(&part);
        self.bytes.extend(part);
        Ok(())
    }

    /// Waits until the screen shows something. Meanwhile, calls `work` about ten times per second.
    #[track_caller]
    pub(crate) fn await_text(&mut self, what: &str, mut work: impl FnMut(), shows: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !shows(&self.text()) {
            assert!(Instant::now() < deadline, "waited for {what}; the screen:\n{}", self.text());
            work();
            let ended = self.read(Duration::from_millis(100)) == Err(mpsc::RecvTimeoutError::Disconnected);
            assert!(!ended || shows(&self.text()), "the program has ended before {what}:\n{}", self.text());
        }
    }

    /// Waits until the program has exited.
    pub(crate) fn exited(&mut self) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        while self.read(Duration::from_millis(100)) != Err(mpsc::RecvTimeoutError::Disconnected) {
            anyhow::ensure!(Instant::now() < deadline, "the program does not exit:\n{}", self.text());
        }
        Ok(self.child.wait()?)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only if the program has exited and was waited for.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn pair(columns: u16) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = open(ptsname(&master, Vec::new())?, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    tcsetwinsize(&slave, Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    Ok((master, slave))
}
