//! The wire format only grows (invariant 7): every message, field, number, type and method in `localnetv1.golden.txt` still exists.
//! Alpha packages may change.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{collections::BTreeSet, env, fs};

use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

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
    let set = FileDescriptorSet::decode(localnet_proto::DESCRIPTORS).unwrap();
    for (package, fewest) in [("localnetv1", 80), ("localnet.source.v1alpha1", 60)] {
        let file = set.file.iter().find(|file| file.package() == package).unwrap();
        let paths = paths(file);
        let documented = documented(file);
        let bare: Vec<_> = paths.iter().filter(|(_, path)| !documented.contains(path)).map(|(name, _)| name).collect();
        assert!(
            paths.len() > fewest && bare.is_empty(),
            "{package}: {} paths; without a comment: {bare:?}",
            paths.len()
        );
    }
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
    let set = FileDescriptorSet::decode(localnet_proto::DESCRIPTORS).unwrap();
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
