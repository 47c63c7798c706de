//! Converts the values of flags to the values of documents.

use localnet_core::{Code, Diagnostic, Subject};
use serde_json::{Map, Number, Value, json};

use super::Given;
use crate::{address, kind::Kind};

/// The placeholder for a value in the help.
pub(super) fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "BOOL",
        Kind::Int | Kind::Unsigned | Kind::Float => "N",
        Kind::Text => "TEXT",
        Kind::Path => "FILE",
        Kind::Duration => "DURATION",
        Kind::List => "TEXT,…",
        Kind::Ip => "IP",
        Kind::IpPort => "IP[:PORT]",
        Kind::Gates => "NAME=BOOL,…",
        Kind::VModule => "PATTERN=N,…",
        Kind::Size => "SIZE",
    }
}

pub(super) fn about(code: Code, given: &Given, problem: String, remedy: &str) -> Diagnostic {
    Diagnostic::new(code, Subject::Flag(given.flag.name), problem).remedy(remedy)
}

/// Creates the diagnostic for an invalid value.
pub(super) fn problem(given: &Given, problem: String, remedy: &str) -> Diagnostic {
    about(Code::ValueInvalid, given, problem, remedy)
}

/// Returns the value of a boolean flag.
pub(super) fn boolean(given: &Given) -> Result<bool, Diagnostic> {
    truth(given.last()).ok_or_else(|| {
        problem(given, format!("{:?} is neither true nor false", given.last()), "write true or false, or only the flag")
    })
}

/// Parses a boolean as Go does.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Returns the value as JSON; `None` if the flag keeps the default.
pub(super) fn json(given: &Given) -> Result<Option<Value>, Diagnostic> {
    let text = given.last();
    let wrong = |is: &str, remedy| problem(given, format!("{text:?} is {is}"), remedy);
    let value = match given.flag.kind {
        Kind::Bool => json!(boolean(given)?),
        Kind::Int | Kind::Unsigned => {
            json!(text.parse::<i64>().map_err(|_| wrong("not a whole number", "write it in digits"))?)
        }
        Kind::Float => {
            let number: Option<f64> = text.parse().ok();
            let number =
                number.and_then(Number::from_f64).ok_or_else(|| wrong("not a number", "write it in digits"))?;
            Value::Number(number)
        }
        Kind::Text | Kind::Path | Kind::Duration | Kind::Size => json!(text),
        Kind::List => json!(given.values.iter().flat_map(|text| commas(text)).collect::<Vec<_>>()),
        Kind::Ip | Kind::IpPort if text.is_empty() => return Ok(None),
        Kind::Ip => {
            let good = address::ip(text).is_some();
            good.then(|| json!(text)).ok_or_else(|| wrong("not a valid IP address", "write it like 10.0.0.1"))?
        }
        Kind::IpPort => {
            let remedy = "write it like 10.0.0.1, 10.0.0.1:80 or [fd00::1]:80";
            match (address::ip(text), address::socket(text)) {
                (Some(_), _) | (_, Ok(_)) => json!(text),
                (None, Err(bad)) if bad.why == address::NO_PORT => {
                    let why = format!("{:?} in {text:?} is not a port", bad.value);
                    return Err(problem(given, why, "use a port from 1 to 65535"));
                }
                (None, Err(_)) => return Err(wrong("neither IP nor IP:port", remedy)),
            }
        }
        Kind::Gates => gates(given)?,
        Kind::VModule => vmodule(given)?,
    };
    given.flag.kind.normal(&value).map(Some).map_err(|(_, why, remedy)| problem(given, why, remedy))
}

/// Splits a string at commas. An empty string has no parts.
fn commas(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(move |_| !text.is_empty())
}

fn gates(given: &Given) -> Result<Value, Diagnostic> {
    let mut gates = Map::new();
    for pair in given.values.iter().flat_map(|text| commas(text)).filter(|pair| !pair.is_empty()) {
        let gate = pair.split_once('=').and_then(|(name, on)| Some((name.trim(), truth(on.trim())?)));
        let (name, on) = gate.ok_or_else(|| {
            problem(given, format!("{pair:?} is not a feature gate"), "write name=true or name=false")
        })?;
        gates.insert(name.to_owned(), json!(on));
    }
    Ok(Value::Object(gates))
}

fn vmodule(given: &Given) -> Result<Value, Diagnostic> {
    let mut items = Vec::new();
    for pair in given.values.iter().flat_map(|text| commas(text)).filter(|pair| !pair.is_empty()) {
        let item = pair.split_once('=').and_then(|(pattern, level)| {
            let level = level.parse::<u32>().ok().filter(|level| i32::try_from(*level).is_ok())?;
            Some((pattern, level)).filter(|(pattern, _)| !pattern.is_empty())
        });
        let (pattern, level) = item
            .ok_or_else(|| problem(given, format!("{pair:?} does not have the pattern=N format"), "write pattern=N"))?;
        items.push(json!({"filePattern": pattern, "verbosity": level}));
    }
    Ok(Value::Array(items))
}
