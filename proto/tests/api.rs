//! Generates `docs/api.md` from `localnetv1.proto` and its comments, and checks that it is up to date.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{collections::BTreeMap, env, fs};

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto, field_descriptor_proto::Label,
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md");

const HEAD: &str = "# The API

This page describes the gRPC API that a brain serves (package `localnetv1`). `make bless` generates this page from the comments in
[proto/localnetv1.proto](../proto/localnetv1.proto). Generate your code from that file. Later versions of localnet may add fields to
messages, but never change or remove existing fields.

Programs that add Services to a node call another package of the brain, which may still change ([pushing Services](pushing-services.md)).

`grpcurl -plaintext -unix /run/localnet/brain.sock describe localnetv1.Endpoint` prints the description of one message (`Endpoint`) from a
running brain.
";

/// Field numbers in paths of `SourceCodeInfo`: see `descriptor.proto`.
const MESSAGE: i32 = 4;
const ENUM: i32 = 5;
const SERVICE: i32 = 6;
/// The field number of a message's fields, an enum's values and a service's methods.
const WITHIN: i32 = 2;

/// Comments by path.
struct Comments(BTreeMap<Vec<i32>, String>);

impl Comments {
    fn new(file: &FileDescriptorProto) -> Self {
        let locations = file.source_code_info.iter().flat_map(|info| &info.location);
        Self(locations.map(|location| (location.path.clone(), location.leading_comments().to_owned())).collect())
    }

    fn lines(&self, path: &[i32]) -> impl Iterator<Item = &str> {
        self.0.get(path).map_or("", String::as_str).lines().map(|line| line.strip_prefix(' ').unwrap_or(line))
    }

    /// The comment with its paragraphs.
    fn text(&self, path: &[i32]) -> String {
        self.lines(path).flat_map(|line| [line, "\n"]).collect()
    }

    /// The comment in one line, for a table.
    fn line(&self, path: &[i32]) -> String {
        self.lines(path).collect::<Vec<_>>().join(" ").replace('|', "\\|")
    }
}

/// The last part of a full name, as a link to its heading on the page.
fn link(name: &str) -> String {
    let name = name.rsplit('.').next().unwrap();
    format!("[{name}](#{})", name.to_lowercase())
}

fn kind(field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
    let entry = message.nested_type.iter().find(|nested| {
        field.type_name().ends_with(&format!(".{}", nested.name()))
            && nested.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry)
    });
    if let Some(entry) = entry {
        return format!("map of {} to {}", kind(&entry.field[0], entry), kind(&entry.field[1], entry));
    }
    let name = match field.type_name() {
        "" => field.r#type().as_str_name().trim_start_matches("TYPE_").to_lowercase(),
        name => link(name),
    };
    let one_of = field.oneof_index.map(|index| format!(" (one of `{}`)", message.oneof_decl[index as usize].name()));
    let many = if field.label() == Label::Repeated { "list of " } else { "" };
    format!("{many}{name}{}", one_of.unwrap_or_default())
}

fn service(number: i32, service: &ServiceDescriptorProto, comments: &Comments) -> String {
    let mut text = format!("\n### {}\n{}", service.name(), comments.text(&[SERVICE, number]));
    for (method, place) in service.method.iter().zip(0..) {
        let streams = if method.server_streaming() { "a stream of " } else { "" };
        text += &format!(
            "\n#### {}/{}\n{} → {streams}{}\n\n{}",
            service.name(),
            method.name(),
            link(method.input_type()),
            link(method.output_type()),
            comments.text(&[SERVICE, number, WITHIN, place])
        );
    }
    text
}

fn message(number: i32, message: &DescriptorProto, comments: &Comments) -> String {
    let mut text = format!("\n### {}\n{}", message.name(), comments.text(&[MESSAGE, number]));
    if message.field.is_empty() {
        return text;
    }
    text += "\n| number | field | type | |\n|---|---|---|---|\n";
    for (field, place) in message.field.iter().zip(0..) {
        let comment = comments.line(&[MESSAGE, number, WITHIN, place]);
        text += &format!("| {} | `{}` | {} | {comment} |\n", field.number(), field.name(), kind(field, message));
    }
    text
}

fn values(number: i32, values: &EnumDescriptorProto, comments: &Comments) -> String {
    let mut text = format!("\n### {}\n{}", values.name(), comments.text(&[ENUM, number]));
    text += "\n| number | value | |\n|---|---|---|\n";
    for (value, place) in values.value.iter().zip(0..) {
        text += &format!(
            "| {} | `{}` | {} |\n",
            value.number(),
            value.name(),
            comments.line(&[ENUM, number, WITHIN, place])
        );
    }
    text
}

fn page() -> String {
    let set = FileDescriptorSet::decode(localnet_proto::DESCRIPTORS).unwrap();
    let file = set.file.iter().find(|file| file.package() == "localnetv1").unwrap();
    let comments = Comments::new(file);
    let services = file.service.iter().zip(0..).map(|(one, number)| service(number, one, &comments));
    let messages = file.message_type.iter().zip(0..).map(|(one, number)| message(number, one, &comments));
    let enums = file.enum_type.iter().zip(0..).map(|(one, number)| values(number, one, &comments));
    let [services, messages, enums] =
        [services.collect::<String>(), messages.collect::<String>(), enums.collect::<String>()];
    format!("{HEAD}\n## Services\n{services}\n## Messages\n{messages}\n## Enums\n{enums}")
}

#[test]
fn the_page_is_up_to_date() {
    let page = page();
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(PAGE, page).unwrap();
        return;
    }
    let there = fs::read_to_string(PAGE).unwrap_or_default();
    let differs = there.lines().zip(page.lines()).find(|(there, page)| there != page);
    assert!(there == page, "docs/api.md is out of date, run `make bless`; the first difference: {differs:?}");
}

#[test]
fn links_lead_to_headings() {
    let page = page();
    let headings: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_lowercase).collect();
    let links: Vec<_> = page.split("](#").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() > 30, "{links:?}");
    let broken: Vec<_> = links.iter().filter(|link| !headings.iter().any(|heading| heading == *link)).collect();
    assert!(broken.is_empty(), "{broken:?}");
}
