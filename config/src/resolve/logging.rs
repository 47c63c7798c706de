//! Validates `logging` as the logging library of Kubernetes does.

use localnet_core::Code;

use super::Check;
use crate::{
    config::{LogFormat, Logging, OutputRouting, VModule},
    gates::{FeatureGates, LOGGING_ALPHA_OPTIONS},
    sections,
};

impl Check<'_> {
    pub(super) fn logging(&mut self, given: &sections::Logging, gates: &FeatureGates) -> Logging {
        let flush_frequency = given.flush_frequency.positive().filter(|frequency| !frequency.is_zero());
        if flush_frequency.is_none() {
            let value = format!("\"{}\"", given.flush_frequency);
            self.findings.invalid("logging.flushFrequency", value, "Must be greater than zero", "write it like 5s");
        }
        let format = self.log_format(&given.format, gates);
        if format == LogFormat::Json && !given.vmodule.is_empty() {
            let problem = "Forbidden: Only supported for text log format".to_owned();
            self.findings.add(Code::ValueInvalid, "logging.vmodule", problem, "remove it, or use format text");
        }
        Logging {
            format,
            flush_frequency: flush_frequency.unwrap_or_default(),
            verbosity: self.verbosity("logging.verbosity", given.verbosity),
            vmodule: given.vmodule.iter().enumerate().map(|(position, item)| self.vmodule(position, item)).collect(),
            text: self.routing("logging.options.text", &given.options.text, gates),
            json: self.routing("logging.options.json", &given.options.json, gates),
        }
    }

    fn log_format(&mut self, given: &str, gates: &FeatureGates) -> LogFormat {
        let field = "logging.format";
        match given {
            "text" => LogFormat::Text,
            "json" => {
                // The logging library has one gate per stage. The format json is in the stage beta.
                let gate = "LoggingBetaOptions";
                if !gates.enabled(gate) {
                    let problem = format!("Forbidden: Log format json is disabled, see {gate} feature");
                    self.findings.add(Code::GateDisabled, field, problem, "turn on that feature gate, or use text");
                }
                LogFormat::Json
            }
            _ => {
                self.findings.invalid(field, format_args!("{given:?}"), "Unsupported log format", "use text or json");
                LogFormat::Text
            }
        }
    }

    fn verbosity(&mut self, field: &str, given: u32) -> u32 {
        if i32::try_from(given).is_err() {
            self.findings.invalid(field, given, &format!("Must be <= {}", i32::MAX), "use a smaller number");
        }
        given
    }

    fn vmodule(&mut self, position: usize, given: &sections::VModule) -> VModule {
        let field = format!("logging.vmodule[{position}]");
        let pattern = &given.file_pattern;
        if pattern.is_empty() {
            let problem = "Required value: File pattern must not be empty".to_owned();
            self.findings.add(Code::ValueInvalid, &field, problem, "name a source file");
        }
        if pattern.contains(['=', ',']) {
            let why = "File pattern must not contain equal sign or comma";
            self.findings.invalid(&field, format_args!("{pattern:?}"), why, "write several items");
        }
        VModule { file_pattern: pattern.clone(), verbosity: self.verbosity(&field, given.verbosity) }
    }

    fn routing(&mut self, field: &str, given: &sections::OutputRouting, gates: &FeatureGates) -> OutputRouting {
        let disabled = !gates.enabled(LOGGING_ALPHA_OPTIONS);
        let is_set = [("splitStream", given.split_stream), ("infoBufferSize", given.info_buffer_size.0 != 0)];
        for (name, _) in is_set.iter().filter(|(_, is_set)| disabled && *is_set) {
            let problem = format!("Forbidden: Feature {LOGGING_ALPHA_OPTIONS} is disabled");
            self.findings.add(
                Code::GateDisabled,
                &format!("{field}.{name}"),
                problem,
                "turn on that feature gate, or remove it",
            );
        }
        OutputRouting {
            split_stream: given.split_stream,
            // A negative size means no buffer.
            info_buffer_size: u64::try_from(given.info_buffer_size.0).unwrap_or_default(),
        }
    }
}
