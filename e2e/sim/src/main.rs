//! The program `localnet-sim`: runs one seed, or many seeds in processes of their own.
//!
//! Each seed has its own process, because tokio counts its runtimes and derives random numbers from the count.

use std::{
    process::{Command, ExitCode},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum as _};
use localnet_sim::{
    backends::Name,
    run::{Outcome, run, schedule},
};
use tokio::runtime;
use tracing_subscriber::{EnvFilter, fmt};

/// A fifth of the time is for memory. jemalloc needs less of it than glibc.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Simulate a whole node: brain, client and a backend
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run one seed
    Run {
        /// The seed
        seed: u64,
        /// The backend [default: the seed selects it]
        #[arg(long)]
        backend: Option<Name>,
        /// Leave out the steps with these indexes
        #[arg(long, value_delimiter = ',')]
        without: Vec<usize>,
        /// Print the trace and the log (RUST_LOG)
        #[arg(long)]
        trace: bool,
    },
    /// Run many seeds, and reduce those that violate an invariant
    Search {
        /// The number of seeds
        #[arg(long, default_value_t = 500)]
        seeds: u64,
        /// The first seed [default: from the clock]
        #[arg(long)]
        first: Option<u64>,
        /// The backend [default: each seed selects one]
        #[arg(long)]
        backend: Option<Name>,
        /// Do not reduce the steps of a seed that violates an invariant
        #[arg(long)]
        no_shrink: bool,
        /// Stop after a seed that violates an invariant
        #[arg(long)]
        fail_fast: bool,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Action::Run { seed, backend, without, trace } => {
            run_one(seed, backend.unwrap_or_else(|| Name::of_seed(seed)), &without, trace)
        }
        Action::Search { seeds, first, backend, no_shrink, fail_fast } => {
            search(seeds, first, backend, !no_shrink, fail_fast)
        }
    }
}

/// The longest run, in the processor's time. On a busy machine, a run may wait for a processor.
const LONGEST: Duration = Duration::from_secs(120);
/// The longest run, in real time.
const LATEST: Duration = Duration::from_secs(3600);

fn run_one(seed: u64, backend: Name, without: &[usize], trace: bool) -> anyhow::Result<ExitCode> {
    // A task that never waits would keep the simulated clock from advancing.
    let start = Instant::now();
    thread::spawn(move || {
        while processor_time() < LONGEST && start.elapsed() < LATEST {
            thread::sleep(Duration::from_secs(1));
        }
        println!("seed {seed} violates no-hang: the run takes longer than {} s", LONGEST.as_secs());
        std::process::exit(1);
    });
    if trace {
        fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(std::io::stderr).init();
    }
    let without = without.to_vec();
    // Hash maps take their random numbers from a sequence of the thread. In a new thread, it does not depend on what the main
    // thread has done, such as to set up the log.
    let simulation = thread::spawn(move || {
        localnet_sim_entropy::seed(seed);
        let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
        let outcome = runtime.block_on(run(seed, backend, &without, trace))?;
        // The process ends soon. Nothing needs to be dropped before.
        std::mem::forget(runtime);
        anyhow::Ok(outcome)
    });
    let outcome = simulation.join().map_err(|_| anyhow::anyhow!("the simulation has panicked"))??;
    let Outcome { digest, changes, time, violation } = outcome;
    println!("digest {digest:016x} changes {changes} ms {} backend {backend:?}", time.as_millis());
    Ok(match violation {
        Some(violation) => {
            println!("seed {seed} violates {violation}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    })
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.try_into().unwrap_or_default()
}

/// The result of a seed in a process of its own: its standard output, its standard error, and whether it has succeeded.
fn child(seed: u64, options: &[String]) -> anyhow::Result<(String, String, bool)> {
    let mut command = Command::new(std::env::current_exe()?);
    // The process uses one arena, in large pages, and ends before it could return memory to the kernel.
    command.env("_RJEM_MALLOC_CONF", "narenas:1,dirty_decay_ms:-1,metadata_thp:always,thp:always");
    let output =
        command.args(["run", &seed.to_string()]).args(options).output().context("failed to start a process")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr), output.status.success()))
}

/// The options of a run with this backend that leaves out these steps.
fn options(backend: Option<Name>, without: &[usize]) -> Vec<String> {
    let name = backend.and_then(|backend| backend.to_possible_value()).map(|value| value.get_name().to_owned());
    let mut options: Vec<_> = name.into_iter().flat_map(|name| ["--backend".to_owned(), name]).collect();
    let indexes: Vec<_> = without.iter().map(ToString::to_string).collect();
    if !indexes.is_empty() {
        options.extend(["--without".to_owned(), indexes.join(",")]);
    }
    options
}

/// The name of the invariant that a run has violated, or the whole output if the program has failed.
fn violated(output: &str) -> &str {
    output.split_once(" violates ").and_then(|(_, text)| text.split_once(':')).map_or(output, |(name, _)| name)
}

/// A number of the first line of a child's output.
fn number(output: &str, name: &str) -> u64 {
    let mut words = output.split_whitespace().skip_while(|word| *word != name);
    words.nth(1).and_then(|word| word.parse().ok()).unwrap_or_default()
}

fn search(
    seeds: u64,
    first: Option<u64>,
    backend: Option<Name>,
    shrinks: bool,
    fail_fast: bool,
) -> anyhow::Result<ExitCode> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let first = first.unwrap_or(clock * 1000);
    println!("seeds {first} to {}", first + seeds.saturating_sub(1));
    let (next, changes, millis, failures) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    let work = || -> anyhow::Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= seeds {
                return Ok(());
            }
            let (output, errors, passes) = child(first + index, &options(backend, &[]))?;
            changes.fetch_add(number(&output, "changes"), Ordering::Relaxed);
            millis.fetch_add(number(&output, "ms"), Ordering::Relaxed);
            if !passes {
                failures.fetch_add(1, Ordering::Relaxed);
                report(first + index, backend, &(output + &errors), shrinks)?;
                if fail_fast {
                    next.store(seeds, Ordering::Relaxed);
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| anyhow::bail!("a thread has panicked")))
    })?;
    let took = start.elapsed().as_secs_f64();
    let failed = failures.into_inner();
    println!(
        "{seeds} seeds in {took:.0} s ({:.1} seeds/s), {:.0} changes per minute, {:.0} simulated hours: {failed} violate an invariant",
        seeds as f64 / took,
        changes.into_inner() as f64 * 60.0 / took,
        millis.into_inner() as f64 / 3_600_000.0,
    );
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reports a seed, with the smallest set of steps that still violates the same invariant.
fn report(seed: u64, backend: Option<Name>, output: &str, shrinks: bool) -> anyhow::Result<()> {
    let all = schedule(seed).len();
    let mut without = Vec::new();
    if shrinks {
        // Large parts first, then single steps.
        let mut size = all.div_ceil(2);
        while size > 0 {
            for first in (0..all).step_by(size) {
                let mut more = without.clone();
                more.extend((first..(first + size).min(all)).filter(|index| !without.contains(index)));
                if more.len() == without.len() {
                    continue;
                }
                if violated(&child(seed, &options(backend, &more))?.0) == violated(output) {
                    without = more;
                }
            }
            size /= 2;
        }
    }
    without.sort_unstable();
    let mut options = options(backend, &without);
    options.push("--trace".to_owned());
    let (result, trace, _) = child(seed, &options)?;
    if violated(&result) != violated(output) {
        println!("seed {seed} gives another result with the same steps: {output}");
    }
    let of_run = backend.unwrap_or_else(|| Name::of_seed(seed)).to_possible_value();
    let of_run = of_run.as_ref().map_or("", |value| value.get_name());
    let corpus = format!("{seed} {of_run} {}", violated(output));
    let steps: String =
        trace.lines().filter(|line| line.contains("  step: ")).map(|line| format!("{line}\n")).collect();
    println!(
        "{result}{} of {all} steps remain:\n{steps}to repeat it:\n  {} run {seed} {}\nto keep it, a line for e2e/sim/tests/corpus.txt:\n  {}",
        all - without.len(),
        std::env::args().next().unwrap_or_default(),
        options.join(" "),
        corpus,
    );
    Ok(())
}
