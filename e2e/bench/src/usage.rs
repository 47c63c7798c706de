//! CPU time and memory of processes and of the machine, from `/proc`.

use std::{fs, time::Duration};

use anyhow::Context as _;

/// CPU time of a process, user and system, including its children, both those that it has waited for and those that still run.
pub(crate) fn cpu(process: u32) -> anyhow::Result<Duration> {
    let own = stat(process)?;
    let children = processes()?.into_iter().filter_map(|other| stat(other).ok()).filter(|stat| stat.parent == process);
    let ticks = own.ticks + own.ticks_of_children + children.map(|child| child.ticks).sum::<u64>();
    Ok(duration(ticks))
}

/// CPU time of this program and of the children that it has waited for. Running children are counted by the code that starts
/// them.
pub(crate) fn own() -> anyhow::Result<Duration> {
    let own = stat(std::process::id())?;
    Ok(duration(own.ticks + own.ticks_of_children))
}

/// The process whose children are the kernel's own threads.
const KERNEL_THREADS: u32 = 2;

/// CPU time of the kernel's own threads. In them, the kernel frees the rules that a contestant has replaced.
pub(crate) fn kernel_threads() -> anyhow::Result<Duration> {
    children(KERNEL_THREADS, |_| true)
}

/// Makes this process the parent of each process whose parent is killed. [`orphans`] measures these.
pub(crate) fn adopt_orphans() -> anyhow::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("becoming the parent of orphans")
}

/// CPU time of this program's children, except the `known` ones.
pub(crate) fn orphans(known: &[u32]) -> anyhow::Result<Duration> {
    children(std::process::id(), |process| !known.contains(&process))
}

fn children(parent: u32, counts: impl Fn(u32) -> bool) -> anyhow::Result<Duration> {
    let stats = processes()?.into_iter().filter(|process| counts(*process)).filter_map(|process| stat(process).ok());
    let ticks = stats.filter(|stat| stat.parent == parent).map(|child| child.ticks + child.ticks_of_children).sum();
    Ok(duration(ticks))
}

/// Memory of a process in MiB: the resident memory now, and its peak.
pub(crate) fn memory(process: u32) -> anyhow::Result<(f64, f64)> {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
        kibibytes.map(|kibibytes| kibibytes / 1024.0).with_context(|| format!("{name} is missing in {path}"))
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

/// Time for which the machine's processors were busy since its start.
pub(crate) fn busy() -> anyhow::Result<Duration> {
    let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal. Time that another machine stole was not idle.
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|index| fields.get(*index)).sum();
    Ok(duration(busy))
}

struct Stat {
    parent: u32,
    ticks: u64,
    ticks_of_children: u64,
}

fn stat(process: u32) -> anyhow::Result<Stat> {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    parse(&text).with_context(|| format!("{path} is not as expected"))
}

fn parse(text: &str) -> Option<Stat> {
    // The name may contain any characters, even spaces and parentheses. The field after it is the third one.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        parent: number(4)?.try_into().ok()?,
        ticks: number(14)? + number(15)?,
        ticks_of_children: number(16)? + number(17)?,
    })
}

fn processes() -> anyhow::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").context("reading /proc")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

fn duration(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    #[test]
    fn a_name_may_hold_brackets() {
        let text = "12 (a) b) S 7 12 12 0 -1 0 1 2 3 4 100 20 3 4 20 0 1 0 5 6 7";
        let stat = parse(text).unwrap();
        assert_eq!((stat.parent, stat.ticks, stat.ticks_of_children), (7, 120, 7));
        assert!(parse("12 (a) S").is_none());
    }

    #[test]
    fn the_child_of_a_killed_process_is_an_orphan_of_ours() {
        adopt_orphans().unwrap();
        let script = "while :; do :; done & echo $!; wait";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert_eq!(stat(child).unwrap().parent, std::process::id());
        while orphans(&[]).unwrap() == Duration::ZERO {}
        let child = Pid::from_raw(child.cast_signed()).unwrap();
        kill_process(child, Signal::KILL).unwrap();
        waitpid(Some(child), WaitOptions::empty()).unwrap();
    }

    #[test]
    fn this_process_can_be_measured() {
        let process = std::process::id();
        assert!(memory(process).unwrap().0 > 0.0);
        assert!(own().unwrap() <= cpu(process).unwrap() && cpu(process).unwrap() <= busy().unwrap());
    }
}
