//! `localnet watch`: prints the changes of the state as they arrive.

use std::{collections::BTreeMap, io, sync::Arc};

use jiff::Timestamp;
use localnet_client::{Snapshot, Source as _, SourceError, grpc::Brain};
use localnet_proto::{Revision, Service, ServiceKey};
use serde::Serialize;

use crate::{
    failure::Failure,
    get::{Filter, SERVICE_HEADINGS, service_row},
    output::{self, Format, utc},
    source::Global,
    style::{Style, Tone},
    table::Table,
};

/// Options of the command.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which Services are printed.
    pub filter: Filter,
    /// The output format.
    pub format: Format,
    /// The style of tables.
    pub style: Style,
    /// Exit after this many states; `None` means never.
    pub count: Option<u64>,
}

/// The kind of a change to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum What {
    /// The Service is new.
    Added,
    /// The Service has changed.
    Changed,
    /// The Service was deleted.
    Removed,
}

/// One change as a line of JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    time: &'a str,
    revision: u64,
    #[serde(rename = "type")]
    what: What,
    service: &'a Service,
}

/// Returns the Services that differ between two states.
pub fn differences<'a>(
    before: &'a BTreeMap<ServiceKey, Arc<Service>>,
    after: &'a BTreeMap<ServiceKey, Arc<Service>>,
) -> Vec<(What, &'a Service)> {
    let mut found = Vec::new();
    for (key, service) in after {
        match before.get(key) {
            None => found.push((What::Added, &**service)),
            // Both states share the Services that did not change.
            Some(old) if Arc::ptr_eq(old, service) || old == service => {}
            Some(_) => found.push((What::Changed, &**service)),
        }
    }
    let gone = before.iter().filter(|(key, _)| !after.contains_key(*key));
    found.extend(gone.map(|(_, service)| (What::Removed, &**service)));
    found
}

/// Prints changes until the limit is reached or the brain becomes unavailable.
///
/// # Errors
/// Returns an error if the brain is unavailable or standard output cannot be written.
pub async fn run(global: &Global, brain: &Brain, options: &Options) -> Result<(), Failure> {
    let mut state = Snapshot::default();
    let mut seen = 0;
    while options.count.is_none_or(|count| seen < count) {
        let answer = brain.next(state.revision, state.revision != Revision::default());
        let update = match seen {
            0 => global.in_time(answer).await?,
            _ => answer.await.map_err(|error| match error {
                SourceError::Unreachable(_) => {
                    Failure::Unreadable(anyhow::anyhow!("cannot get further changes: {error}"))
                }
                _ => Failure::Unreadable(anyhow::anyhow!("{}: {error}", brain.describe())),
            })?,
        };
        let before = state.services.clone();
        state.apply(update);
        let shown: Vec<_> = differences(&before, &state.services)
            .into_iter()
            .filter(|(_, of)| options.filter.admits(&of.key))
            .collect();
        let at = At { revision: state.revision.rev, time: Timestamp::now() };
        output::print(|out| lines(&shown, at, options, seen == 0, out))?;
        seen += 1;
    }
    Ok(())
}

/// The revision of a state, and when it arrived.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The sequence number of the revision.
    pub revision: u64,
    /// When the state arrived.
    pub time: Timestamp,
}

/// Writes the changes. The first call also writes the headings.
///
/// # Errors
/// Returns an error if `out` cannot be written or a Service cannot be serialized.
pub fn lines(
    changes: &[(What, &Service)],
    at: At,
    options: &Options,
    first: bool,
    out: &mut impl io::Write,
) -> anyhow::Result<()> {
    let At { revision, time } = at;
    let time = &*utc(time);
    let mut lines = changes.iter().map(|(what, service)| Line { time, revision, what: *what, service });
    match options.format {
        Format::Json => lines.try_for_each(|line| {
            serde_json::to_writer(&mut *out, &line)?;
            anyhow::Ok(writeln!(out)?)
        })?,
        Format::Yaml => {
            let document = |line: &Line<'_>| Ok(format!("---\n{}", serde_saphyr::to_string(line)?));
            let documents = |part: &[Line<'_>]| part.iter().map(document).collect();
            output::in_threads(&lines.collect::<Vec<_>>(), documents, out)?;
        }
        Format::Name => lines.try_for_each(|line| writeln!(out, "{}", line.service.key))?,
        Format::Table | Format::Wide => {
            let headings = ["TIME", "REVISION", "WHAT"].into_iter().chain(SERVICE_HEADINGS);
            let mut table = if first { Table::new(headings) } else { Table::bare() };
            for Line { what, service, .. } in lines {
                let (word, tone) = match what {
                    What::Added => ("added", Tone::Good),
                    What::Changed => ("changed", Tone::Odd),
                    What::Removed => ("removed", Tone::Bad),
                };
                table.add(|row| service_row(row.cell(time).cell(revision).toned(word, Some(tone)), service));
            }
            out.write_all(table.text(options.style, 0).as_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn services(ports: &[(&str, u16)]) -> BTreeMap<ServiceKey, Arc<Service>> {
        let one = |(name, seconds): &(&str, u16)| {
            let key = ServiceKey::new("shop", *name);
            let mut service = Service::new(key.clone(), vec!["10.96.0.1".parse().unwrap()]);
            service.client_ip_affinity = Some(u32::from(*seconds).into());
            (key, Arc::new(service))
        };
        ports.iter().map(one).collect()
    }

    fn options(format: Format) -> Options {
        Options { filter: Filter::default(), format, style: Style::default(), count: None }
    }

    fn lines(changes: &[(What, &Service)], revision: u64, options: &Options, first: bool) -> String {
        let mut out = Vec::new();
        let time = "2026-11-23T13:30:00.5Z".parse().unwrap();
        super::lines(changes, At { revision, time }, options, first, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn changes_are_printed_once() {
        let (before, after) = (services(&[("a", 1), ("b", 1), ("c", 1)]), services(&[("b", 1), ("c", 2), ("d", 1)]));
        let found = differences(&before, &after);
        let changes: Vec<_> = found.iter().map(|(what, service)| (*what, &*service.key.name)).collect();
        assert_eq!(changes, [(What::Changed, "c"), (What::Added, "d"), (What::Removed, "a")]);
        let json = lines(&found, 7, &options(Format::Json), true);
        let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&first["revision"], &first["type"], &first["service"]["service"]),
            (&7.into(), &"CHANGED".into(), &"shop/c".into())
        );
        assert_eq!(lines(&found, 7, &options(Format::Name), true), "shop/c\nshop/d\nshop/a\n");
        let table = lines(&found, 7, &options(Format::Table), true);
        assert!(table.starts_with("TIME                  REVISION  WHAT     NAMESPACE"), "{table}");
        assert!(table.contains("2026-11-23T13:30:00Z  7         removed  shop"), "{table}");
        assert_eq!(first["time"], "2026-11-23T13:30:00Z");
        assert_eq!(lines(&[], 8, &options(Format::Table), false), "");
    }
}
