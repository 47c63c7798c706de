//! Describes an error of the YAML parser for the author of the text.

use serde_saphyr::{Error, SnippetMode, budget::BudgetBreach};

use crate::{Code, Diagnostic, Subject};

/// The diagnostic for an error of the parser, with the line of the error. `deepest` is the maximum nesting depth that the
/// parser accepts.
pub fn diagnose(error: &Error, deepest: usize) -> Diagnostic {
    let line = error.location().map_or(0, |place| place.line());
    let (code, problem, remedy) = explain(error, deepest).unwrap_or_else(|| {
        let message = error.render_with_options(serde_saphyr::render_options! { snippets: SnippetMode::Off });
        (Code::YamlInvalid, without_place(&message).to_owned(), "correct the YAML".to_owned())
    });
    Diagnostic::new(code, Subject::text(line), problem).remedy(remedy)
}

/// The code, the problem and the remedy.
type Explanation = (Code, String, String);

const TOO_MUCH: (&str, &str) = ("its aliases (*name) expand to too much", WRITE_OUT);
const WRITE_OUT: &str = "write out the content instead";
const SPLIT: &str = "split it into several documents with lines of ---";
const REMOVE_ONE: &str = "remove one of the two";

/// Explains an error. Returns `None` if the parser's own message is clear enough.
fn explain(error: &Error, deepest: usize) -> Option<Explanation> {
    let explained = |code, (problem, remedy): (&str, &str)| Some((code, problem.to_owned(), remedy.to_owned()));
    let invalid = |problem, remedy| explained(Code::YamlInvalid, (problem, remedy));
    let mistyped = |problem, remedy| explained(Code::FieldMistyped, (problem, remedy));
    let flatten = format!("nest at most {deepest} levels");
    match error.without_snippet() {
        Error::AliasError { error, .. } => explain(error, deepest),
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => invalid("is nested too deeply", &flatten),
        Error::ExternalMessage { msg, .. } if msg.contains("recursion limit") => {
            invalid("is nested too deeply", &flatten)
        }
        Error::Budget { breach, .. } => explained(Code::YamlInvalid, too_large(breach)),
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasReplayCounterOverflow { .. } => explained(Code::YamlInvalid, TOO_MUCH),
        Error::UnknownAnchor { .. } => invalid("an alias (*name) has no anchor", "define &name before the alias"),
        Error::RecursiveReferencesRequireWeakTypes { .. } => invalid("an alias (*name) refers to itself", WRITE_OUT),
        Error::MultipleDocuments { .. } => {
            invalid("another document begins in the middle of this one", "put a line with --- between the documents")
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            explained(Code::FieldTwice, (&format!("the field {key:?} is set twice"), REMOVE_ONE))
        }
        Error::DuplicateMappingKey { .. } => explained(Code::FieldTwice, ("a field is set twice", REMOVE_ONE)),
        Error::NullIntoString { .. } => mistyped("has no value", "write a value or remove the field"),
        Error::Unexpected { expected: "mapping start", .. } => {
            mistyped("is not a map of fields", "write its fields as name: value, indented below it")
        }
        Error::Unexpected { expected: "sequence start", .. } => {
            mistyped("is not a list", "begin each of its items with '- '")
        }
        Error::Unexpected { expected: "string scalar" | "scalar", .. } => {
            mistyped("is not a single value", "write one text or number")
        }
        Error::SerdeMissingField { field, .. } => {
            explained(Code::FieldMissing, (&format!("the field {field:?} is missing"), "add it"))
        }
        Error::SerdeInvalidType { unexpected, expected, .. }
        | Error::SerdeInvalidValue { unexpected, expected, .. } => {
            mistyped(&format!("is {unexpected}, not {expected}"), "correct it")
        }
        Error::TaggedScalarCannotDeserializeIntoString { .. } | Error::BytesNotSupportedMissingBinaryTag { .. } => {
            mistyped("is not a string", "remove the tag (!…)")
        }
        Error::Eof { .. } => invalid("ends too early", "complete it, or remove the incomplete part"),
        _ => None,
    }
}

/// The problem and the remedy for a text that exceeds a limit of the parser.
fn too_large(breach: &BudgetBreach) -> (&'static str, &'static str) {
    match breach {
        BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => ("has too many values", SPLIT),
        BudgetBreach::MergeKeys { .. } => ("has too many merge keys (<<)", WRITE_OUT),
        BudgetBreach::ScalarBytes { .. }
        | BudgetBreach::Aliases { .. }
        | BudgetBreach::Anchors { .. }
        | BudgetBreach::RecordedAnchorEvents { .. }
        | BudgetBreach::RecordedAnchorBytes { .. }
        | BudgetBreach::AliasAnchorRatio { .. } => TOO_MUCH,
        _ => ("is too large", SPLIT),
    }
}

/// The parser's message without the position, because the diagnostic already contains the line.
fn without_place(message: &str) -> &str {
    let message = message.lines().next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let message = match message.strip_prefix("line ").and_then(|rest| rest.split_once(": ")) {
        Some((place, rest)) if place.chars().all(|c| c.is_ascii_digit() || " column".contains(c)) => rest,
        _ => message,
    };
    let end = message.rfind(" at line ").filter(|end| !message[*end..].contains(':'));
    end.map_or(message, |end| &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsers_message_keeps_its_text() {
        for (message, expected) in [
            ("error: line 3 column 7: unclosed bracket\n  |\n", "unclosed bracket"),
            ("unknown anchor at line 3, column 2", "unknown anchor"),
            ("line of text: no place", "line of text: no place"),
            ("", ""),
        ] {
            assert_eq!(without_place(message), expected);
        }
    }
}
