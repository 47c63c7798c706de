//! A running guest.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};

use crate::folder::Folder;
use crate::image::{self, Accelerator, Image};
use crate::qemu::Qemu;
use crate::script::script;

/// Set in the environment of whatever runs in a guest.
pub const MARKER: &str = "LOCALNET_GUEST";
/// Runs in the guest as its first process.
const AGENT: &str = include_str!("../guest/agent");
/// Most memory that a guest may have, in MiB.
const MOST_MEMORY: u32 = 2048;
/// Most processors that a guest may have.
const MOST_CPUS: u32 = 4;
/// How long a boot may take. It takes some seconds; a machine that builds at the same time is slow.
const BOOTED_WITHIN: Duration = Duration::from_secs(300);
/// The same where the processor is shared, so that one that cannot be is found out soon.
const BOOTED_WITHIN_KVM: Duration = Duration::from_secs(30);
/// The guest ends programs itself when their time is over; one that does not even do that is lost.
const GRACE: Duration = Duration::from_secs(60);
/// What `timeout` of coreutils answers: when the program obeyed, and when it had to be killed.
const TIMED_OUT: [i32; 2] = [124, 137];
/// What the agent answers first is its own start.
const START: u64 = 0;

/// What a test may choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// Memory in MiB, 2048 at most; what the guest writes to files is in it as well.
    pub memory_mib: u32,
    /// Processors, 4 at most.
    pub cpus: u32,
    /// What it may reach. Nothing, without.
    pub network: Option<Network>,
}

/// The way from the guest to a network namespace of this machine: what connects to an IPv4 address by a card of the guest
/// ([`crate::card`]) connects to it from that namespace. Nothing comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The namespace, as a path (`/run/netns/NAME`).
    pub namespace: PathBuf,
    /// The guest's cards, `eth0` and so on, each on a wire of its own: so that several namespaces of the guest may have one.
    pub cards: usize,
}

impl Default for Options {
    /// 1 GiB, one processor and no network. Of two emulated ones, one may go on executing what the other has replaced: the kernel patches
    /// itself when hooks come and go, and such a processor is then stuck for good.
    fn default() -> Self {
        Self { memory_mib: 1024, cpus: 1, network: None }
    }
}

/// A running guest. It ends when dropped, and with this process.
#[derive(Debug)]
pub struct Guest {
    qemu: Mutex<Qemu>,
    accelerator: Accelerator,
    agent: Mutex<ChildStdin>,
    answers: Arc<Mutex<Answers>>,
    next: AtomicU64,
    booted_in: Duration,
    // Last, so that it goes when nobody writes to it any more.
    folder: Folder,
}

impl Guest {
    /// Boots a guest and returns when it takes commands.
    pub fn boot(options: &Options) -> anyhow::Result<Self> {
        ensure!(
            (1..=MOST_MEMORY).contains(&options.memory_mib) && (1..=MOST_CPUS).contains(&options.cpus),
            "a guest has at most {MOST_MEMORY} MiB and {MOST_CPUS} processors: {options:?}"
        );
        let image = Image::find()?;
        let candidates = Accelerator::candidates()?;
        for (index, accelerator) in candidates.iter().enumerate() {
            match Self::boot_with(&image, *accelerator, options) {
                Err(error) if index + 1 < candidates.len() => {
                    eprintln!("no guest with {} ({error:#}): trying the next", accelerator.as_str());
                }
                result => return result.with_context(|| format!("booting a guest with {}", accelerator.as_str())),
            }
        }
        bail!("no way to run a guest")
    }

    fn boot_with(image: &Image, accelerator: Accelerator, options: &Options) -> anyhow::Result<Self> {
        let began = Instant::now();
        let folder = Folder::create(&image::cache()?)?;
        let agent = folder.join("agent");
        fs::write(&agent, AGENT).with_context(|| format!("writing {}", agent.display()))?;
        let answers = Arc::new(Mutex::new(Answers::default()));
        let started = lock(&answers).expect(START)?;
        let (qemu, input, output) = Qemu::start(image, &folder, accelerator, options)?;
        let reader = answers.clone();
        thread::Builder::new().name("answers of the guest".to_owned()).spawn(move || read_answers(output, &reader))?;
        let mut guest = Self {
            qemu: Mutex::new(qemu),
            accelerator,
            agent: Mutex::new(input),
            answers,
            next: AtomicU64::new(START + 1),
            booted_in: Duration::ZERO,
            folder,
        };
        let limit = if accelerator == Accelerator::Kvm { BOOTED_WITHIN_KVM } else { BOOTED_WITHIN };
        guest.wait(&started, limit)?;
        guest.booted_in = began.elapsed();
        Ok(guest)
    }

    /// How long the boot took.
    pub fn booted_in(&self) -> Duration {
        self.booted_in
    }

    /// What makes its processor: `kvm` or `tcg`.
    pub fn accelerator(&self) -> &'static str {
        self.accelerator.as_str()
    }

    /// Runs a command as root in the guest, for at most `limit`, and returns what came of it. It has this process's environment
    /// and folder unless it says otherwise, and sees this machine's files; what it writes to them, only the guest sees. Its
    /// standard input is empty. Several may run at once.
    ///
    /// The exit code of a program that a signal ended is 128 and the signal's number. An error means that the program
    /// did not end in time, or that the guest ended under it.
    pub fn run(&self, command: &Command, limit: Duration) -> anyhow::Result<Output> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = env::current_dir().context("finding the current folder")?;
        // A shell sets these for itself.
        let own = |name: &str| ["PWD", "OLDPWD", "SHLVL", "_"].contains(&name);
        let environment = env::vars_os().filter(|(name, _)| !name.to_str().is_some_and(own));
        let file = |extension| self.folder.join(format!("{id}.{extension}"));
        fs::write(file("sh"), script(command, &folder, environment, MARKER)).context("writing the guest's script")?;
        let began = Instant::now();
        let code = self.ask(id, limit);
        let over = began.elapsed() >= limit;
        let [stdout, stderr] = ["out", "err"].map(|extension| fs::read(file(extension)).unwrap_or_default());
        for extension in ["sh", "out", "err"] {
            // The folder goes as a whole later on.
            fs::remove_file(file(extension)).unwrap_or_default();
        }
        let said = || {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
            format!("{command:?} in the guest said:\n{}\n{}", text(&stdout), text(&stderr))
        };
        match code.with_context(said)? {
            code if over && TIMED_OUT.contains(&code) => Err(anyhow!("not ended within {limit:?}").context(said())),
            code => Ok(Output { status: ExitStatus::from_raw((code & 0xff) << 8), stdout, stderr }),
        }
    }

    fn ask(&self, id: u64, limit: Duration) -> anyhow::Result<i32> {
        let answer = lock(&self.answers).expect(id).map_err(|error| self.ended(error))?;
        let seconds = limit.as_secs().max(1);
        writeln!(lock(&self.agent), "{id} {seconds}").map_err(|error| self.ended(error.into()))?;
        self.wait(&answer, Duration::from_secs(seconds) + GRACE)
    }

    fn wait(&self, answer: &mpsc::Receiver<i32>, limit: Duration) -> anyhow::Result<i32> {
        answer.recv_timeout(limit).map_err(|error| {
            self.ended(match error {
                mpsc::RecvTimeoutError::Timeout => anyhow!("the guest gave no answer within {limit:?}"),
                mpsc::RecvTimeoutError::Disconnected => anyhow!("the guest is gone"),
            })
        })
    }

    /// A guest that does not answer is of no more use. Adds what is known of its end.
    fn ended(&self, error: anyhow::Error) -> anyhow::Error {
        let status = match lock(&self.qemu).kill() {
            Some(status) => format!("qemu ended ({status})"),
            None => "qemu was running".to_owned(),
        };
        let (log, kernel) = (self.folder.tail("qemu.log"), self.folder.tail("kernel.log"));
        error.context(format!("{status}, and had said:\n{log}\nThe kernel's log ended with:\n{kernel}"))
    }
}

/// Who waits for which command; none when the guest has ended.
#[derive(Debug)]
struct Answers(Option<HashMap<u64, mpsc::Sender<i32>>>);

impl Default for Answers {
    fn default() -> Self {
        Self(Some(HashMap::new()))
    }
}

impl Answers {
    fn expect(&mut self, id: u64) -> anyhow::Result<mpsc::Receiver<i32>> {
        let (sender, receiver) = mpsc::channel();
        self.0.as_mut().context("the guest has ended")?.insert(id, sender);
        Ok(receiver)
    }
}

fn read_answers(output: ChildStdout, answers: &Mutex<Answers>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let Some((id, code)) = parse_answer(&line) else { continue };
        let sender = lock(answers).0.as_mut().and_then(|waiting| waiting.remove(&id));
        if let Some(sender) = sender {
            // Nobody may be waiting any more.
            sender.send(code).unwrap_or_default();
        }
    }
    lock(answers).0 = None;
}

/// `ID CODE`
fn parse_answer(line: &str) -> Option<(u64, i32)> {
    let (id, code) = line.trim().split_once(' ')?;
    Some((id.parse().ok()?, code.parse().ok()?))
}

/// What is behind these locks is whole whenever they are free.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_an_id_and_a_code() {
        assert_eq!(parse_answer("12 0"), Some((12, 0)));
        assert_eq!(parse_answer("12 137\r"), Some((12, 137)));
        assert_eq!(parse_answer("12"), None);
        assert_eq!(parse_answer("x 0"), None);
        assert_eq!(parse_answer(""), None);
    }

    #[test]
    fn a_guest_has_bounds() {
        for (memory_mib, cpus) in [(2049, 2), (512, 5)] {
            let error = Guest::boot(&Options { memory_mib, cpus, network: None }).unwrap_err().to_string();
            assert!(error.contains("at most 2048 MiB and 4 processors"), "{error}");
        }
    }
}
