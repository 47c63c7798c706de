//! Renders the figures for the page of the ipvs backend. Pure.

use anyhow::Context as _;

use super::inside::{Figures, START};
use crate::{
    cluster::Size,
    machine::Machine,
    number_text::{ratio, time},
    statistics::millis,
};

/// The lines of the page that enclose the figures.
const BEGIN: &str = "<!-- figures: make bench-ipvs -->";
const END: &str = "<!-- end of figures -->";

/// The figures and how they were measured. `place` describes the kernel. The first of the runs is ours.
pub(super) fn text(size: Size, runs: &[(&str, Figures)], machine: &Machine, place: &str) -> String {
    let version = machine.versions.iter().find(|(name, _)| name == "kube-proxy").map_or("", |(_, version)| version);
    let mut text = format!(
        "{} virtual servers of {} destinations each, in {place} on {} × {}; {}, {}; {version}. Written by `make bench-ipvs`.\n\n\
         | contestant | all answered | | first sync ended | | one endpoint changed: p50 / max (n) | |\n|{}\n",
        size.services,
        size.endpoints,
        machine.processors,
        machine.processor,
        machine.date,
        machine.revision,
        "---|".repeat(7),
    );
    let ours = runs.first().map(|(_, figures)| figures);
    for (name, figures) in runs {
        let Figures { answered, ended, change } = figures;
        let against = |of: fn(&Figures) -> Option<f64>| {
            let both = ours.and_then(|ours| Some((of(figures)?, of(ours)?)));
            both.map_or_else(String::new, |(theirs, ours)| ratio(theirs, ours))
        };
        let change = change.as_ref();
        let cells = [
            (*name).to_owned(),
            time(*answered),
            against(|figures| Some(figures.answered)),
            ended.map_or_else(|| format!("not within {}", time(millis(START))), time),
            against(|figures| figures.ended),
            change.map_or_else(
                || "not measured: the first sync goes on".to_owned(),
                |change| format!("{} / {} ({})", time(change.p50), time(change.max), change.n),
            ),
            against(|figures| figures.change.as_ref().map(|change| change.p50)),
        ];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

/// The page with this text between the two lines.
pub(super) fn put(page: &str, text: &str) -> anyhow::Result<String> {
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("there is no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("there is no line {END}"))?;
    Ok(format!("{before}{BEGIN}\n{text}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Times;

    #[test]
    fn figures_are_compared_with_the_first_ones() {
        let figures = |factor: f64| Figures {
            answered: 1_500.0 * factor,
            ended: Some(2_000.0 * factor),
            change: Some(Times { n: 5, p50: 20.0 * factor, p99: 30.0 * factor, max: 30.0 * factor }),
        };
        let machine = Machine {
            date: "today".to_owned(),
            revision: "abc".to_owned(),
            processors: 2,
            processor: "P".to_owned(),
            memory_gib: 1.0,
            kernel: "6".to_owned(),
            versions: vec![("kube-proxy".to_owned(), "Kubernetes v1".to_owned())],
        };
        let size = Size::new(10, 3);
        let endless = Figures { ended: None, change: None, ..figures(100.0) };
        let runs = [("localnet-ipvs", figures(1.0)), ("kube-proxy ipvs", figures(10.0)), ("endless", endless)];
        let text = text(size, &runs, &machine, "a guest");
        assert_eq!(
            text,
            "10 virtual servers of 3 destinations each, in a guest on 2 × P; today, abc; Kubernetes v1. Written by `make bench-ipvs`.\n\n\
             | contestant | all answered | | first sync ended | | one endpoint changed: p50 / max (n) | |\n|---|---|---|---|---|---|---|\n\
             | localnet-ipvs | 1.50 s | × 1.0 | 2.00 s | × 1.0 | 20.0 ms / 30.0 ms (5) | × 1.0 |\n\
             | kube-proxy ipvs | 15.00 s | × 10 | 20.00 s | × 10 | 200 ms / 300 ms (5) | × 10 |\n\
             | endless | 150 s | × 100 | not within 3600 s |  | not measured: the first sync goes on |  |\n"
        );
        let page = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(put(&page, "new\n").unwrap(), format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert!(put("a", "new").is_err());
    }
}
