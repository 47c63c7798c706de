//! `logging`: the rules of Kubernetes' logging library.

use std::time::Duration;

use localnet_core::Code;
use serde_json::{Value, json};

use super::{FieldType, Period, numbers::more_than_zero};
use crate::{
    check::Check,
    field::Field,
    gates::LOGGING_ALPHA_OPTIONS,
    kind::Kind,
    model::{LogFormat, VModule},
};

impl FieldType for LogFormat {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let given = check.document.text(field.path);
        let Some(format) = Self::named(given) else {
            check.invalid(field, format_args!("{given:?}"), "Unsupported log format", "use text or json");
            return Self::Text;
        };
        // The logging library has one gate for each stage. The format `json` is a beta feature.
        let gate = "LoggingBetaOptions";
        if format == Self::Json && !check.gate(gate) {
            let problem = format!("Forbidden: Log format json is disabled, see {gate} feature");
            check.findings.add(Code::GateDisabled, field.path, problem, "turn on that gate, or use format text");
        }
        format
    }
}

/// `logging.flushFrequency`: a duration of more than zero. The error has the wording of the logging library.
pub(crate) enum FlushFrequency {}

impl FieldType<Duration> for FlushFrequency {
    const KIND: Kind = Kind::Duration;

    fn read(check: &mut Check<'_>, field: &Field) -> Duration {
        more_than_zero(check, field, "Must be greater than zero", "write it like 5s")
    }

    fn write(value: &Duration) -> Value {
        Period::write(value)
    }
}

/// A verbosity: at most `i32::MAX`.
pub(crate) enum Verbosity {}

impl FieldType<u32> for Verbosity {
    const KIND: Kind = Kind::Unsigned;

    fn read(check: &mut Check<'_>, field: &Field) -> u32 {
        verbosity(check, field.path, check.document.get(field.path))
    }
}

fn verbosity(check: &mut Check<'_>, path: &str, given: &Value) -> u32 {
    let given = given.as_u64().and_then(|verbosity| u32::try_from(verbosity).ok()).unwrap_or_default();
    if i32::try_from(given).is_err() {
        check.findings.invalid(path, given, &format!("Must be <= {}", i32::MAX), "use a smaller number");
    }
    given
}

impl FieldType for Vec<VModule> {
    const KIND: Kind = Kind::VModule;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let items = check.document.get(field.path).as_array().map_or(&[][..], Vec::as_slice);
        if !items.is_empty() && check.document.text("logging.format") == LogFormat::Json.as_str() {
            let problem = "Forbidden: Only supported for text log format".to_owned();
            check.findings.add(Code::ValueInvalid, field.path, problem, "remove it, or use format text");
        }
        items
            .iter()
            .enumerate()
            .map(|(position, item)| read_item(check, &format!("{}[{position}]", field.path), item))
            .collect()
    }
}

fn read_item(check: &mut Check<'_>, path: &str, item: &Value) -> VModule {
    let file_pattern = item["filePattern"].as_str().unwrap_or_default().to_owned();
    if file_pattern.is_empty() {
        let problem = "Required value: File pattern must not be empty".to_owned();
        check.findings.add(Code::ValueInvalid, path, problem, "write the name of a source file");
    }
    if file_pattern.contains(['=', ',']) {
        let why = "File pattern must not contain equal sign or comma";
        check.findings.invalid(path, format_args!("{file_pattern:?}"), why, "write one item for each pattern");
    }
    VModule { file_pattern, verbosity: verbosity(check, path, &item["verbosity"]) }
}

/// Adds an error if a field of `logging.options` is set and its feature gate is off.
fn needs_gate(check: &mut Check<'_>, field: &Field, is_set: bool) {
    if is_set && !check.gate(LOGGING_ALPHA_OPTIONS) {
        let problem = format!("Forbidden: Feature {LOGGING_ALPHA_OPTIONS} is disabled");
        check.findings.add(Code::GateDisabled, field.path, problem, "turn on that feature gate, or remove the field");
    }
}

/// `splitStream`, which needs a feature gate.
pub(crate) enum SplitStream {}

impl FieldType<bool> for SplitStream {
    const KIND: Kind = Kind::Bool;

    fn read(check: &mut Check<'_>, field: &Field) -> bool {
        let given = bool::read(check, field);
        needs_gate(check, field, given);
        given
    }
}

/// `infoBufferSize`, a number of bytes, which needs a feature gate. A negative number means no buffer.
pub(crate) enum BufferSize {}

impl FieldType<u64> for BufferSize {
    const KIND: Kind = Kind::Size;

    fn read(check: &mut Check<'_>, field: &Field) -> u64 {
        let given: i64 = check.document.text(field.path).parse().unwrap_or_default();
        needs_gate(check, field, given != 0);
        given.try_into().unwrap_or_default()
    }

    fn write(value: &u64) -> Value {
        json!(value.to_string())
    }
}
