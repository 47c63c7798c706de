//! Renders the report for people: tables on the terminal, a page and plots, only from [`crate::figures::Figures`].

mod chart;
pub(crate) mod page;
mod plots;
pub(crate) mod tables;

use std::{fs, path::Path};

use anyhow::Context as _;

use crate::{figures::Figures, goals};

/// The folder of the plots, next to the page.
const PLOTS: &str = "performance";

/// Formats the tables for a terminal.
pub(crate) fn print(figures: &Figures) -> String {
    let goals = goals::judge(figures);
    let tables = tables::all(figures).into_iter().chain([tables::goals(&goals)]);
    tables.map(|table| table.plain()).collect::<Vec<_>>().join("\n")
}

/// Writes the page, the plots and the figures into a folder.
pub(crate) fn write(figures: &Figures, folder: &Path) -> anyhow::Result<()> {
    let plots = folder.join(PLOTS);
    fs::create_dir_all(&plots).with_context(|| format!("creating {}", plots.display()))?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    };
    let charts = plots::all(figures);
    for (name, chart) in &charts {
        write(&format!("{PLOTS}/{name}.svg"), chart.svg())?;
    }
    let names: Vec<&str> = charts.iter().map(|(name, _)| *name).collect();
    write("PERFORMANCE.md", page::page(figures, &goals::judge(figures), &names))?;
    write("performance.json", serde_json::to_string_pretty(figures).context("writing figures as JSON")? + "\n")
}
