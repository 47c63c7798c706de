//! Reads the results of `cargo bench -p localnet-bench --bench steps`: criterion's estimates for each step.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde::Deserialize;

/// The part of `benchmark.json` with the name of the benchmark.
#[derive(Deserialize)]
struct Benchmark {
    title: String,
}

/// The part of `estimates.json` with the median.
#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

/// Name → median in nanoseconds, from the newest run.
pub(crate) fn read(folder: &Path) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut steps = BTreeMap::new();
    for new in folders(folder, 2)?.into_iter().filter(|folder| folder.ends_with("new")) {
        let benchmark: Benchmark = crate::read(&new.join("benchmark.json"))?;
        let estimates: Estimates = crate::read(&new.join("estimates.json"))?;
        steps.insert(benchmark.title, estimates.median.point_estimate);
    }
    Ok(steps)
}

/// The subfolders, down to a depth.
fn folders(folder: &Path, depth: usize) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            if depth > 0 {
                all.extend(folders(&path, depth - 1)?);
            }
            all.push(path);
        }
    }
    Ok(all)
}
