//! Applies flags to a [`Config`](crate::Config), with or without a configuration file.

use localnet_core::{Code, Diagnostic, Subject};
use serde_json::{Value, json};

use super::{Given, KubeProxyFlags, Sets, value};
use crate::{
    address,
    check::Reader,
    convert::{convert, list},
    document::{Document, Version},
    field::Formerly,
    model::Platform,
    problem::{Findings, Invalid},
    read::{Reading, resolve},
    table::Config,
};

impl KubeProxyFlags {
    /// Returns the configuration that the flags define. If `--config` is given, returns the configuration in `text`, the
    /// content of the file. Then only a few flags apply, and a warning names each of the other flags.
    ///
    /// # Errors
    /// Returns a diagnostic for each flag that belongs to another operating system. If there is no such flag, returns
    /// every problem of the text. If the text has no problems either, returns every problem of the flags.
    pub fn read(&self, reader: Reader, text: Option<&str>) -> Result<Reading, Invalid> {
        let foreign: Vec<_> = self.given.iter().filter_map(|given| foreign(given, reader.platform)).collect();
        if !foreign.is_empty() {
            return Err(Invalid(foreign));
        }
        match text {
            Some(text) => self.beside(reader, reader.read(text)?),
            None => self.alone(reader),
        }
    }

    /// Applies the flags that take precedence over a file. The patterns of `--vmodule` are placed before
    /// the patterns of the file.
    fn beside(&self, reader: Reader, mut reading: Reading) -> Result<Reading, Invalid> {
        let (flags, ignored): (Vec<_>, Vec<_>) = self.given.iter().partition(|given| given.flag.beside_config);
        let ignored = ignored.into_iter().map(|given| {
            let problem = "is ignored: --config is given".to_owned();
            value::about(Code::FlagIgnored, given, problem, "set it in the configuration file")
        });
        let mut document = Document::from(&reading.config);
        let of_file = document.get(VMODULE).as_array().cloned().unwrap_or_default();
        self.set(&flags, &mut document)?;
        if flags.iter().any(|given| given.flag.name == "vmodule") {
            let all = document.get(VMODULE).as_array().into_iter().flatten().cloned().chain(of_file).collect();
            document.set(VMODULE, Value::Array(all));
        }
        // The warnings about the file were already collected, each with its line.
        let (config, _) = resolved(document, reader, &flags, reading.config.explicit.min_sync_period)?;
        reading.config = config;
        reading.warnings.extend(ignored.chain(without_effect(&flags)));
        Ok(reading)
    }

    fn alone(&self, reader: Reader) -> Result<Reading, Invalid> {
        let (mut document, _) = convert(&Document::new(Version::V1alpha1).complete());
        let (flags, mode) = (self.given.iter().collect::<Vec<_>>(), self.text("proxy-mode").unwrap_or_default());
        // Without a file, kube-proxy's default is 1 s in every mode. With a file, the default is zero in the mode ipvs.
        document.set(MIN_SYNC_PERIOD, json!("1s"));
        // This field opens the node's loopback addresses to its neighbours. It is set only if the command line explicitly
        // selects kube-proxy's mode iptables, as k3s does. A user who only tries a backend does not select the mode.
        document.set("iptables.localhostNodePorts", json!(mode == "iptables"));
        self.set(&flags, &mut document)?;
        let mut set = flags.iter().flat_map(|given| given.flag.fields(mode));
        let min_sync_period = set.any(|field| field.path == MIN_SYNC_PERIOD);
        let (mut config, mut warnings) = resolved(document, reader, &flags, min_sync_period)?;
        warnings.extend(without_effect(&flags));
        // In kube-proxy, an empty address means the default. A user who gives an empty address is unlikely to want the
        // default, so in localnet an empty address disables the server, as port 0 does.
        let nowhere = |given: &Given| match given.flag.name {
            "healthz-port" => given.last().parse() == Ok(0),
            "healthz-bind-address" => given.last().is_empty(),
            _ => false,
        };
        if self.given.iter().any(nowhere) {
            config.healthz_bind_address = None;
        }
        Ok(Reading { config, version: Version::V1alpha1, warnings, lost: Vec::new() })
    }

    /// Applies the flags to a document.
    fn set(&self, flags: &[&Given], document: &mut Document) -> Result<(), Invalid> {
        let mode = self.text("proxy-mode").unwrap_or_default();
        let problems: Vec<_> = flags.iter().filter_map(|given| set(given, mode, document).err()).collect();
        if problems.is_empty() { Ok(()) } else { Err(Invalid(problems)) }
    }
}

const VMODULE: &str = "logging.vmodule";
const MIN_SYNC_PERIOD: &str = "minSyncPeriod";

/// Checks a document to which flags were applied, and returns the warnings. If a flag has set a field that is invalid,
/// the problem is about the flag instead of the field.
fn resolved(
    mut document: Document,
    reader: Reader,
    flags: &[&Given],
    min_sync_period: bool,
) -> Result<(Config, Vec<Diagnostic>), Invalid> {
    let mut findings = Findings::default();
    // Only addresses are completed, because a default must not replace a zero that a flag has set.
    document.complete_addresses();
    let config = resolve(&document, reader, min_sync_period, &mut findings);
    for found in findings.iter_mut() {
        if let Some(given) = flags.iter().find(|given| sets(given, document.text("mode"), &found.field)) {
            (found.subject, found.field) = (Subject::Flag(given.flag.name), String::new());
        }
    }
    Ok((config, findings.finish()?))
}

fn without_effect(flags: &[&Given]) -> impl Iterator<Item = Diagnostic> {
    flags.iter().filter_map(|given| {
        let why = given.flag.no_effect?;
        Some(value::about(Code::FlagIgnored, given, format!("has no effect: {why}"), "remove it"))
    })
}

fn foreign(given: &Given, platform: Platform) -> Option<Diagnostic> {
    let other = given.flag.platform.filter(|other| *other != platform)?;
    Some(value::about(Code::FlagOfOtherSystem, given, format!("is a flag of {other:?}"), "remove it"))
}

/// Sets the fields of a flag.
fn set(given: &Given, mode: &str, document: &mut Document) -> Result<(), Diagnostic> {
    let Some(value) = value::json(given)? else { return Ok(()) };
    if let Sets::Port(path) = given.flag.sets {
        return port(given, &value, path, document);
    }
    for field in given.flag.fields(mode) {
        let value = match field.formerly {
            Formerly::Text(_, kind) => list(value.as_str().unwrap_or_default(), kind),
            _ => value.clone(),
        };
        document.set(field.path, value);
    }
    Ok(())
}

/// Adds the port from a deprecated flag to the address at `path`, unless the address already has a port.
fn port(given: &Given, value: &Value, path: &'static str, document: &mut Document) -> Result<(), Diagnostic> {
    let number = value.as_i64().unwrap_or_default();
    if number == 0 && path == "metricsBindAddress" {
        let remedy = "bind metrics to a loopback address with --metrics-bind-address";
        return Err(value::problem(given, "metrics cannot be switched off".to_owned(), remedy));
    }
    let Ok(port) = u16::try_from(number) else {
        return Err(value::problem(given, format!("{number} is not a port"), "use a number from 1 to 65535"));
    };
    if port > 0 {
        document.set(path, json!(address::with_port(document.text(path), port)));
    }
    Ok(())
}

/// Whether a flag has set the field at `path`, which may end with an index.
fn sets(given: &Given, mode: &str, path: &str) -> bool {
    let port = match given.flag.sets {
        Sets::Port(path) => Some(path),
        _ => None,
    };
    let mut set = given.flag.fields(mode).map(|field| field.path).chain(port);
    set.any(|field| path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['[', '.'])))
}
