//! The wire format only grows (invariant 7): every message, field, number, type and method in `localnetv1.golden.txt` still exists.
//! Alpha packages and the draft `localnet.v1` may change. The draft follows the naming rules of buf's category STANDARD.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod compiled;

use std::{collections::BTreeSet, env, fs};

use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/localnetv1.golden.txt");

#[test]
fn the_wire_format_only_grows() {
    let current = descriptor_lines();
    let golden = fs::read_to_string(GOLDEN).unwrap_or_default();
    let golden: BTreeSet<String> = golden.lines().map(str::to_owned).collect();
    let lost: Vec<_> = golden.difference(&current).collect();
    assert!(lost.is_empty(), "localnetv1 may only grow, but these were removed or changed: {lost:#?}");
    let new: Vec<_> = current.difference(&golden).collect();
    if new.is_empty() {
        return;
    }
    assert!(
        env::var_os("UPDATE_EXPECT").is_some(),
        "localnetv1 has grown; if that is meant, run `make bless` to record {new:#?}"
    );
    let text: String = current.iter().map(|line| format!("{line}\n")).collect();
    fs::write(GOLDEN, text).unwrap();
}

#[test]
fn every_message_field_and_value_is_documented() {
    let set = compiled::descriptors(&compiled::FILES);
    let draft = compiled::descriptors(&compiled::DRAFT);
    for (package, fewest) in [("localnetv1", 80), ("localnet.source.v1alpha1", 60), ("localnet.v1", 120)] {
        let (mut count, mut bare) = (0, Vec::new());
        for file in set.file.iter().chain(&draft.file).filter(|file| file.package() == package) {
            let documented = documented(file);
            let paths = paths(file);
            count += paths.len();
            bare.extend(paths.into_iter().filter(|(_, path)| !documented.contains(path)).map(|(name, _)| name));
        }
        assert!(count > fewest && bare.is_empty(), "{package}: {count} paths; without a comment: {bare:?}");
    }
}

/// The violations of the rules of buf's category STANDARD that a file can break, by the names of the rules. The category's other
/// rules concern the options of languages, which the files do not set, and imports, which protox checks.
fn violations(file: &FileDescriptorProto) -> Vec<String> {
    let package = file.package();
    let mut found = Vec::new();
    let mut check = |good: bool, rule: &str, name: &str| {
        if !good {
            found.push(format!("{rule}: {name}"));
        }
    };
    let in_folder = file.name().rsplit_once('/').is_some_and(|(folder, _)| folder.replace('/', ".") == package);
    check(in_folder, "PACKAGE_DIRECTORY_MATCH", file.name());
    let stem = file.name().rsplit('/').next().and_then(|name| name.strip_suffix(".proto")).unwrap_or_default();
    check(is_lower_snake(stem), "FILE_LOWER_SNAKE_CASE", file.name());
    let parts: Vec<&str> = package.split('.').collect();
    check(parts.iter().all(|part| is_lower_snake(part)), "PACKAGE_LOWER_SNAKE_CASE", package);
    let version = parts.last().and_then(|last| last.strip_prefix('v')).unwrap_or_default();
    check(version.starts_with(|first: char| first.is_ascii_digit()), "PACKAGE_VERSION_SUFFIX", package);
    check(file.syntax() == "proto3", "SYNTAX_SPECIFIED", file.name());
    for message in &file.message_type {
        check(is_pascal(message.name()), "MESSAGE_PASCAL_CASE", message.name());
        // The entries of maps are the only nested messages, and the compiler names them.
        for field in &message.field {
            check(
                is_lower_snake(field.name()),
                "FIELD_LOWER_SNAKE_CASE",
                &format!("{}.{}", message.name(), field.name()),
            );
        }
        // The compiler makes one for each optional field, and calls it by the field's name and an underscore.
        let written = message.oneof_decl.iter().filter(|one| !one.name().starts_with('_'));
        written.for_each(|one| check(is_lower_snake(one.name()), "ONEOF_LOWER_SNAKE_CASE", one.name()));
    }
    for values in &file.enum_type {
        check(is_pascal(values.name()), "ENUM_PASCAL_CASE", values.name());
        let prefix = upper_snake(values.name());
        for value in &values.value {
            let name = value.name();
            check(
                is_lower_snake(&name.to_lowercase()) && name == name.to_uppercase(),
                "ENUM_VALUE_UPPER_SNAKE_CASE",
                name,
            );
            check(name.starts_with(&format!("{prefix}_")), "ENUM_VALUE_PREFIX", name);
            check((value.number() == 0) == (name == format!("{prefix}_UNSPECIFIED")), "ENUM_ZERO_VALUE_SUFFIX", name);
        }
        let mut numbers: Vec<_> = values.value.iter().map(prost_types::EnumValueDescriptorProto::number).collect();
        numbers.sort_unstable();
        check(numbers.windows(2).all(|pair| pair[0] != pair[1]), "ENUM_NO_ALLOW_ALIAS", values.name());
        check(values.value.first().is_some_and(|first| first.number() == 0), "ENUM_FIRST_VALUE_ZERO", values.name());
    }
    for service in &file.service {
        check(is_pascal(service.name()), "SERVICE_PASCAL_CASE", service.name());
        check(service.name().ends_with("Service"), "SERVICE_SUFFIX", service.name());
        for method in &service.method {
            let name = method.name();
            check(is_pascal(name), "RPC_PASCAL_CASE", name);
            let named = |of: &str, suffix: &str| of == format!(".{package}.{name}{suffix}");
            check(named(method.input_type(), "Request"), "RPC_REQUEST_STANDARD_NAME", name);
            check(named(method.output_type(), "Response"), "RPC_RESPONSE_STANDARD_NAME", name);
        }
    }
    found
}

fn is_lower_snake(name: &str) -> bool {
    let words = name.split('_').collect::<Vec<_>>();
    let is_word =
        |word: &&str| word.chars().all(|of| of.is_ascii_lowercase() || of.is_ascii_digit()) && !word.is_empty();
    words.iter().all(is_word) && name.starts_with(|first: char| first.is_ascii_lowercase())
}

/// As buf: letters and digits, first an upper-case letter, and no two upper-case letters in a row that would hide a word's end.
fn is_pascal(name: &str) -> bool {
    let letters: Vec<char> = name.chars().collect();
    letters.first().is_some_and(char::is_ascii_uppercase)
        && letters.iter().all(char::is_ascii_alphanumeric)
        && letters.windows(2).all(|pair| !(pair[0].is_ascii_uppercase() && pair[1].is_ascii_uppercase()))
}

/// The name of an enum as the prefix of its values.
fn upper_snake(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_uppercase());
    }
    text
}

#[test]
fn the_draft_follows_the_standard_names() {
    let draft = compiled::descriptors(&compiled::DRAFT);
    assert_eq!(draft.file.len(), 6);
    for file in &draft.file {
        assert_eq!(violations(file), Vec::<String>::new(), "{}", file.name());
    }
    let older = compiled::descriptors(&compiled::FILES);
    let older = older.file.iter().find(|file| file.package() == "localnetv1").unwrap();
    let rules: BTreeSet<String> =
        violations(older).iter().filter_map(|found| Some(found.split_once(':')?.0.to_owned())).collect();
    let known = [
        "ENUM_VALUE_PREFIX",
        "ENUM_VALUE_UPPER_SNAKE_CASE",
        "ENUM_ZERO_VALUE_SUFFIX",
        "FIELD_LOWER_SNAKE_CASE",
        "MESSAGE_PASCAL_CASE",
        "PACKAGE_DIRECTORY_MATCH",
        "PACKAGE_VERSION_SUFFIX",
        "RPC_REQUEST_STANDARD_NAME",
        "RPC_RESPONSE_STANDARD_NAME",
        "SERVICE_SUFFIX",
    ];
    assert!(known.iter().all(|rule| rules.contains(*rule)), "the check finds what buf finds in localnetv1: {rules:?}");
}

/// The paths of the items that have a comment.
fn documented(file: &FileDescriptorProto) -> BTreeSet<Vec<i32>> {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    let documented = locations.filter(|location| !location.leading_comments().trim().is_empty());
    documented.map(|location| location.path.clone()).collect()
}

/// The messages, fields, enums, values, services and methods, each with its path.
fn paths(file: &FileDescriptorProto) -> Vec<(String, Vec<i32>)> {
    let mut paths = Vec::new();
    for (index, message) in (0..).zip(&file.message_type) {
        paths.push((message.name().to_owned(), vec![4, index]));
        for (number, field) in (0..).zip(&message.field) {
            paths.push((format!("{}.{}", message.name(), field.name()), vec![4, index, 2, number]));
        }
    }
    for (index, values) in (0..).zip(&file.enum_type) {
        paths.push((values.name().to_owned(), vec![5, index]));
        for (number, value) in (0..).zip(&values.value) {
            paths.push((format!("{}.{}", values.name(), value.name()), vec![5, index, 2, number]));
        }
    }
    for (index, service) in (0..).zip(&file.service) {
        paths.push((service.name().to_owned(), vec![6, index]));
        for (number, method) in (0..).zip(&service.method) {
            paths.push((format!("{}.{}", service.name(), method.name()), vec![6, index, 2, number]));
        }
    }
    paths
}

/// One line for each property that a reader of the wire format depends on.
fn descriptor_lines() -> BTreeSet<String> {
    let set = compiled::descriptors(&compiled::FILES);
    let mut lines = BTreeSet::new();
    for file in set.file.iter().filter(|file| !file.package().contains("alpha")) {
        let package = file.package();
        for message in &file.message_type {
            message_lines(&format!("{package}.{}", message.name()), message, &mut lines);
        }
        for values in &file.enum_type {
            enum_lines(&format!("{package}.{}", values.name()), values, &mut lines);
        }
        for service in &file.service {
            for method in &service.method {
                let streams = |on: bool| if on { "stream " } else { "" };
                lines.insert(format!(
                    "rpc {package}.{}/{} ({}{}) returns ({}{})",
                    service.name(),
                    method.name(),
                    streams(method.client_streaming()),
                    method.input_type(),
                    streams(method.server_streaming()),
                    method.output_type(),
                ));
            }
        }
    }
    lines
}

fn message_lines(name: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    lines.insert(format!("message {name}"));
    for field in &message.field {
        lines.insert(format!("{name} {}", field_line(field)));
    }
    for range in &message.reserved_range {
        lines.insert(format!("{name} reserved {}-{}", range.start(), range.end() - 1));
    }
    for nested in &message.nested_type {
        message_lines(&format!("{name}.{}", nested.name()), nested, lines);
    }
}

fn field_line(field: &FieldDescriptorProto) -> String {
    let oneof = field.oneof_index.map_or(String::new(), |index| format!(" oneof {index}"));
    format!("{} {} {:?} {:?} {}{oneof}", field.number(), field.name(), field.label(), field.r#type(), field.type_name())
}

fn enum_lines(name: &str, values: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &values.value {
        lines.insert(format!("enum {name} {} {}", value.number(), value.name()));
    }
}
