//! Applies flags to a [`Config`](crate::Config), with or without a configuration file.

use localnet_core::{Code, Diagnostic, Subject};
use serde_json::{Value, json};

use super::{Given, KubeProxyFlags, Sets, value};
use crate::{
    address,
    config::Platform,
    convert::convert,
    problem::{Findings, Invalid},
    read::{Reading, Version},
    resolve::{Reader, resolve},
    v1alpha1,
    v1alpha2::{self, Document},
};

impl KubeProxyFlags {
    /// Returns the configuration of the flags, or of `text`, the file of `--config`. With a file only a few flags apply; a
    /// warning names each of the others.
    ///
    /// # Errors
    /// Returns every problem of the text, or every problem of the flags.
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

    /// Applies the flags that take precedence over a file. The patterns of `--vmodule` are placed before the file's.
    fn beside(&self, reader: Reader, mut reading: Reading) -> Result<Reading, Invalid> {
        let mut document = json_of(&Document::from(&reading.config));
        let vmodule = document["logging"]["vmodule"].clone();
        let mut warnings = Vec::new();
        for given in &self.given {
            if !given.flag.beside_config {
                let (ignored, remedy) = ("is ignored: --config is given".to_owned(), "set it in that file");
                warnings.push(value::about(Code::FlagIgnored, given, ignored, remedy));
            }
        }
        let counting: Vec<_> = self.given.iter().filter(|given| given.flag.beside_config).collect();
        let with_vmodule = self.set(&counting, &mut document)?;
        if let (true, Value::Array(items), Value::Array(more)) =
            (with_vmodule, &mut document["logging"]["vmodule"], vmodule)
        {
            items.extend(more);
        }
        let again = self.resolved(reader, document, &counting)?;
        let min_sync_period = reading.config.explicit.min_sync_period;
        reading.config = again.config;
        reading.config.explicit.min_sync_period = min_sync_period;
        reading.warnings.extend(warnings);
        reading.warnings.extend(without_effect(&counting));
        Ok(reading)
    }

    fn alone(&self, reader: Reader) -> Result<Reading, Invalid> {
        let (defaults, _) = convert(&v1alpha1::Document::default().complete());
        let mut document = json_of(&defaults);
        // With flags, kube-proxy's default is 1 s in every mode. With a file it is zero in the mode ipvs.
        document["minSyncPeriod"] = json!("1s");
        // This opens the node's loopback addresses to its neighbours. A command line for kube-proxy's mode iptables requests it
        // (that of k3s does); one that only tries the program out does not.
        document["iptables"]["localhostNodePorts"] = json!(self.text("proxy-mode") == Some("iptables"));
        let given: Vec<_> = self.given.iter().collect();
        self.set(&given, &mut document)?;
        let mut reading = self.resolved(reader, document, &given)?;
        reading.config.explicit.min_sync_period = given.iter().any(|given| {
            field_in_mode(given.flag.sets, self.text("proxy-mode").unwrap_or_default()) == Some("minSyncPeriod")
        });
        // In kube-proxy an empty address means the default, which is hardly intended. Here it disables the server, as port 0 does.
        let nowhere = |given: &&Given| match given.flag.name {
            "healthz-port" => given.last().parse() == Ok(0),
            "healthz-bind-address" => given.last().is_empty(),
            _ => false,
        };
        if given.iter().copied().any(|given| nowhere(&given)) {
            reading.config.healthz_bind_address = None;
        }
        reading.warnings.extend(without_effect(&given));
        Ok(reading)
    }

    /// Applies the flags to the document. Returns whether `--vmodule` was among them.
    fn set(&self, flags: &[&Given], document: &mut Value) -> Result<bool, Invalid> {
        let mut problems = Vec::new();
        let mode = self.text("proxy-mode").unwrap_or_default();
        for given in flags {
            match value::json(given) {
                Ok(Some(value)) => {
                    if let Err(problem) = set(given, &value, mode, document) {
                        problems.push(problem);
                    }
                }
                Ok(None) => {}
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            return Err(Invalid(problems));
        }
        Ok(flags.iter().any(|given| given.flag.name == "vmodule"))
    }

    fn resolved(&self, reader: Reader, document: Value, flags: &[&Given]) -> Result<Reading, Invalid> {
        let mut document: v1alpha2::Document = serde_json::from_value(document)
            .map_err(|error| Diagnostic::new(Code::ValueInvalid, Subject::text(0), error.to_string()))?;
        let mut findings = Findings::default();
        // In a flag, zero is a value and is not replaced by the default.
        document.complete_addresses();
        let config = resolve(&document, reader, &mut findings);
        for found in findings.iter_mut() {
            if let Some(given) = flags.iter().find(|given| sets(given, &found.field)) {
                (found.subject, found.field) = (Subject::Flag(given.flag.name), String::new());
            }
        }
        let (version, lost) = (Version::V1alpha1, Vec::new());
        Ok(Reading { config, version, warnings: findings.finish()?, lost })
    }
}

fn json_of(document: &Document) -> Value {
    serde_json::to_value(document).unwrap_or_default()
}

fn foreign(given: &Given, platform: Platform) -> Option<Diagnostic> {
    let other = given.flag.platform.filter(|other| *other != platform)?;
    Some(value::about(Code::FlagOfOtherSystem, given, format!("is a flag of {other:?}"), "remove it"))
}

fn without_effect<'a>(flags: &'a [&Given]) -> impl Iterator<Item = Diagnostic> + 'a {
    flags.iter().filter_map(|given| {
        let why = given.flag.no_effect?;
        Some(value::about(Code::FlagIgnored, given, format!("has no effect: {why}"), "remove it"))
    })
}

fn set(given: &Given, value: &Value, mode: &str, document: &mut Value) -> Result<(), Diagnostic> {
    let path = match given.flag.sets {
        Sets::Program | Sets::Nothing => return Ok(()),
        sets @ (Sets::InIpvs(_) | Sets::ButIpvs(_) | Sets::Field(_)) => match field_in_mode(sets, mode) {
            Some(path) => path,
            None => return Ok(()),
        },
        Sets::MasqueradeBit => {
            put(document, "ipvs.masqueradeBit", value.clone());
            "iptables.masqueradeBit"
        }
        Sets::BindAddress => {
            let ip = value.as_str().and_then(address::ip);
            if ip.is_none_or(|ip| !ip.is_unspecified()) {
                put(document, "nodeIPOverride", json!([value]));
            }
            return Ok(());
        }
        Sets::ClusterCidr => {
            let cidrs = value.as_str().unwrap_or_default();
            let cidrs: Vec<_> = cidrs.split(',').filter(|_| !cidrs.is_empty()).collect();
            put(document, "detectLocal.clusterCIDRs", json!(cidrs));
            return Ok(());
        }
        Sets::Port(path) => return port(given, value, path, document),
    };
    put(document, path, value.clone());
    Ok(())
}

/// Returns the field that a flag sets in a mode.
fn field_in_mode(sets: Sets, mode: &str) -> Option<&'static str> {
    match sets {
        Sets::Field(path) => Some(path),
        Sets::InIpvs(path) => (mode == "ipvs").then_some(path),
        Sets::ButIpvs(path) => (mode != "ipvs").then_some(path),
        _ => None,
    }
}

/// Sets the port of an address that has none.
fn port(given: &Given, value: &Value, path: &str, document: &mut Value) -> Result<(), Diagnostic> {
    let number = value.as_i64().unwrap_or_default();
    if number == 0 && path == "metricsBindAddress" {
        let remedy = "bind metrics to a loopback address with --metrics-bind-address";
        return Err(value::problem(given, "metrics cannot be switched off".to_owned(), remedy));
    }
    let Ok(port) = u16::try_from(number) else {
        return Err(value::problem(given, format!("{number} is not a port"), "use a number from 1 to 65535"));
    };
    if port > 0 {
        let with_port = address::with_port(document[path].as_str().unwrap_or_default(), port);
        put(document, path, json!(with_port));
    }
    Ok(())
}

fn put(document: &mut Value, path: &str, value: Value) {
    let mut at = document;
    for step in path.split('.') {
        at = &mut at[step];
    }
    *at = value;
}

/// Whether a flag has set a field, whose path may end with an index.
fn sets(given: &Given, field: &str) -> bool {
    let path = match given.flag.sets {
        Sets::Field(path) | Sets::InIpvs(path) | Sets::ButIpvs(path) | Sets::Port(path) => path,
        Sets::MasqueradeBit => return ["iptables.masqueradeBit", "ipvs.masqueradeBit"].contains(&field),
        Sets::BindAddress => "nodeIPOverride",
        Sets::ClusterCidr => "detectLocal.clusterCIDRs",
        Sets::Program | Sets::Nothing => return false,
    };
    field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['[', '.']))
}
