//! A running guest.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};

use crate::folder::Folder;
use crate::image::{self, Accelerator, Image};
use crate::options::Options;
use crate::qemu::Qemu;
use crate::script::script;

/// The environment variable that is set for every program in a guest.
pub const MARKER: &str = "LOCALNET_GUEST";
/// The script that runs commands in the guest.
const AGENT: &str = include_str!("../guest/agent");
/// The maximum memory of a guest, in MiB.
const MOST_MEMORY: u32 = 2048;
/// The maximum number of a guest's processors.
const MOST_CPUS: u32 = 4;
/// The time limit of a boot. It takes some seconds, and longer while the machine builds something.
const BOOTED_WITHIN: Duration = Duration::from_secs(300);
/// The time limit of a boot with KVM. It is short, so that a processor that cannot be shared is detected soon.
const BOOTED_WITHIN_KVM: Duration = Duration::from_secs(30);
/// The guest enforces time limits of programs itself. This is how long to wait for that before giving up on the guest.
const GRACE: Duration = Duration::from_secs(60);
/// The exit codes of coreutils' `timeout`: for a program that ended on SIGTERM, and for one that it had to kill.
const TIMED_OUT: [i32; 2] = [124, 137];
/// The id of the agent's first answer, which reports its start.
const START: u64 = 0;

/// A running guest. It stops when dropped, and when this process ends.
#[derive(Debug)]
pub struct Guest {
    qemu: Mutex<Qemu>,
    accelerator: Accelerator,
    agent: Mutex<ChildStdin>,
    answers: Arc<Mutex<Answers>>,
    next: AtomicU64,
    booted_in: Duration,
    // Last, so that it is removed after the programs that write to it have ended.
    folder: Folder,
}

impl Guest {
    /// Boots a guest, and returns when it accepts commands.
    ///
    /// # Errors
    /// Returns an error if the options are out of range, the guest is not built, or it does not boot.
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
                    eprintln!(
                        "failed to boot a guest with {} ({error:#}); trying the next accelerator",
                        accelerator.as_str()
                    );
                }
                result => return result.with_context(|| format!("booting a guest with {}", accelerator.as_str())),
            }
        }
        bail!("this machine has no accelerator for a guest")
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

    /// The accelerator: `kvm` or `tcg`.
    pub fn accelerator(&self) -> &'static str {
        self.accelerator.as_str()
    }

    /// Runs a command as root in the guest, for at most `limit`, and returns its output. By default it has this process's environment
    /// and working directory. It sees this machine's files, but only the guest sees its changes. Its standard input is empty. Several
    /// commands may run at once.
    ///
    /// The exit code of a program that was killed by a signal is 128 plus the signal's number.
    ///
    /// # Errors
    /// Returns an error if the program does not end in time, or the guest stops.
    pub fn run(&self, command: &Command, limit: Duration) -> anyhow::Result<Output> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = env::current_dir().context("finding the current folder")?;
        // The shell sets these itself.
        let own = |name: &str| ["PWD", "OLDPWD", "SHLVL", "_"].contains(&name);
        let environment = env::vars_os().filter(|(name, _)| !name.to_str().is_some_and(own));
        let file = |extension| self.folder.join(format!("{id}.{extension}"));
        fs::write(file("sh"), script(command, &folder, environment, MARKER)).context("writing the guest's script")?;
        let began = Instant::now();
        let code = self.execute(id, limit);
        let over = began.elapsed() >= limit;
        let [stdout, stderr] = ["out", "err"].map(|extension| fs::read(file(extension)).unwrap_or_default());
        for extension in ["sh", "out", "err"] {
            // A failure does no harm: the whole folder is removed later.
            fs::remove_file(file(extension)).unwrap_or_default();
        }
        let output = || {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
            format!("{command:?} in the guest printed:\n{}\n{}", text(&stdout), text(&stderr))
        };
        match code.with_context(output)? {
            code if over && TIMED_OUT.contains(&code) => Err(anyhow!("not ended within {limit:?}").context(output())),
            code => Ok(Output { status: ExitStatus::from_raw((code & 0xff) << 8), stdout, stderr }),
        }
    }

    fn execute(&self, id: u64, limit: Duration) -> anyhow::Result<i32> {
        let answer = lock(&self.answers).expect(id).map_err(|error| self.ended(error))?;
        let seconds = limit.as_secs().max(1);
        writeln!(lock(&self.agent), "{id} {seconds}").map_err(|error| self.ended(error.into()))?;
        self.wait(&answer, Duration::from_secs(seconds) + GRACE)
    }

    fn wait(&self, answer: &mpsc::Receiver<i32>, limit: Duration) -> anyhow::Result<i32> {
        answer.recv_timeout(limit).map_err(|error| {
            self.ended(match error {
                mpsc::RecvTimeoutError::Timeout => anyhow!("the guest gave no answer within {limit:?}"),
                mpsc::RecvTimeoutError::Disconnected => anyhow!("the guest has stopped"),
            })
        })
    }

    /// Kills the guest, which cannot be used after an error, and adds the end of its logs to the error.
    fn ended(&self, error: anyhow::Error) -> anyhow::Error {
        let status = match lock(&self.qemu).kill() {
            Some(status) => format!("qemu ended ({status})"),
            None => "qemu was running".to_owned(),
        };
        let (log, kernel) = (self.folder.tail("qemu.log"), self.folder.tail("kernel.log"));
        error.context(format!("{status}; its log ended with:\n{log}\nThe kernel's log ended with:\n{kernel}"))
    }
}

/// The commands that wait for an answer, by id; `None` after the guest has stopped.
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
            // The caller may have stopped waiting.
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

/// Locks a mutex. Poisoning does no harm, because no critical section can panic halfway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_consist_of_an_id_and_a_code() {
        assert_eq!(parse_answer("12 0"), Some((12, 0)));
        assert_eq!(parse_answer("12 137\r"), Some((12, 137)));
        assert_eq!(parse_answer("12"), None);
        assert_eq!(parse_answer("x 0"), None);
        assert_eq!(parse_answer(""), None);
    }

    #[test]
    fn memory_and_processors_are_limited() {
        for (memory_mib, cpus) in [(2049, 2), (512, 5)] {
            let error = Guest::boot(&Options { memory_mib, cpus, network: None }).unwrap_err().to_string();
            assert!(error.contains("at most 2048 MiB and 4 processors"), "{error}");
        }
    }
}
