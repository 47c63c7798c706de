//! Rewrites messages of the parser for the author of the file.

use localnet_core::Code;
use serde_saphyr::{Error, budget::BudgetBreach};

/// The code, the problem and the remedy.
pub(super) type Explanation = (Code, String, &'static str);

/// The code, problem and remedy for a parser error. `None` if the parser's own message is clear enough.
pub(super) fn explain(error: &Error) -> Option<Explanation> {
    let invalid = |problem: &str, remedy| Some((Code::YamlInvalid, problem.to_owned(), remedy));
    let mistyped = |problem: &str, remedy| Some((Code::FieldMistyped, problem.to_owned(), remedy));
    match error.without_snippet() {
        Error::AliasError { error, .. } => explain(error),
        Error::Budget { breach, .. } => breached(breach),
        Error::ExternalMessage { msg, .. } if msg.contains("recursion limit") => invalid(TOO_DEEP, FLATTEN),
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasReplayCounterOverflow { .. } => invalid(TOO_MUCH, WRITE_OUT),
        Error::UnknownAnchor { .. } => invalid("an alias (*name) has no anchor", "define it before with &name"),
        Error::RecursiveReferencesRequireWeakTypes { .. } => invalid("an alias (*name) refers to itself", WRITE_OUT),
        Error::MultipleDocuments { .. } => {
            invalid("another document begins in the middle of this one", "put a line with --- before it")
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            Some((Code::FieldTwice, format!("the field {key:?} is set twice"), "remove one of them"))
        }
        Error::DuplicateMappingKey { .. } => {
            Some((Code::FieldTwice, "a field is set twice".to_owned(), "remove one of them"))
        }
        Error::NullIntoString { .. } => mistyped("has no value", "write a value or remove the field"),
        Error::Unexpected { expected, .. } => unexpected(expected),
        Error::SerdeMissingField { field, .. } => {
            Some((Code::FieldMissing, format!("the field {field:?} is missing"), "add it"))
        }
        Error::SerdeInvalidType { unexpected, expected, .. }
        | Error::SerdeInvalidValue { unexpected, expected, .. } => {
            mistyped(&format!("is {unexpected}, not {expected}"), "correct it")
        }
        Error::TaggedScalarCannotDeserializeIntoString { .. } | Error::BytesNotSupportedMissingBinaryTag { .. } => {
            mistyped("is not a text", "remove the tag (!…)")
        }
        Error::Eof { .. } => invalid("ends too early", "complete it, or remove the incomplete part"),
        _ => None,
    }
}

const TOO_DEEP: &str = "is nested too deeply";
const FLATTEN: &str = "nest at most 128 levels";
const TOO_MUCH: &str = "its aliases (*name) expand to too much";
const WRITE_OUT: &str = "write their content in place";

fn breached(breach: &BudgetBreach) -> Option<Explanation> {
    let (problem, remedy) = match breach {
        BudgetBreach::Depth { .. } => (TOO_DEEP, FLATTEN),
        BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => {
            ("has too many values", "split it into several documents with lines of ---")
        }
        BudgetBreach::MergeKeys { .. } => ("has too many merge keys (<<)", WRITE_OUT),
        BudgetBreach::ScalarBytes { .. }
        | BudgetBreach::Aliases { .. }
        | BudgetBreach::Anchors { .. }
        | BudgetBreach::RecordedAnchorEvents { .. }
        | BudgetBreach::RecordedAnchorBytes { .. }
        | BudgetBreach::AliasAnchorRatio { .. } => (TOO_MUCH, WRITE_OUT),
        _ => ("is too large", "split it into several documents with lines of ---"),
    };
    Some((Code::YamlInvalid, problem.to_owned(), remedy))
}

fn unexpected(expected: &str) -> Option<Explanation> {
    let (problem, remedy) = match expected {
        "mapping start" => ("is not a map of fields", "write its fields as name: value, indented below it"),
        "sequence start" => ("is not a list", "begin each of its items with '- '"),
        "string scalar" | "scalar" => ("is not a single value", "write one text or number"),
        _ => return None,
    };
    Some((Code::FieldMistyped, problem.to_owned(), remedy))
}
