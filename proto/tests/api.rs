//! Generates `docs/api.md` and `docs/api-v1.md` from the proto files and their comments, and checks that they are up to date.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod compiled;

use std::{collections::BTreeMap, env, fs};

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, ServiceDescriptorProto,
    field_descriptor_proto::Label,
};

/// A page that describes a package.
struct Page {
    /// The file in `docs`.
    name: &'static str,
    package: &'static str,
    files: &'static [&'static str],
    head: &'static str,
}

const PAGES: [Page; 2] = [
    Page { name: "api.md", package: "localnetv1", files: &compiled::FILES, head: HEAD },
    Page { name: "api-v1.md", package: "localnet.v1", files: &compiled::DRAFT, head: DRAFT_HEAD },
];

const HEAD: &str = "# The API

This page describes the gRPC API that a brain serves (package `localnetv1`). `make bless` generates this page from the comments in
[proto/localnetv1.proto](../proto/localnetv1.proto). Generate your code from that file. Later versions of localnet may add fields to
messages, but never change or remove existing fields.

Programs that add Services to a node call another package of the brain, which may still change ([pushing Services](pushing-services.md)).

`grpcurl -plaintext -unix /run/localnet/brain.sock describe localnetv1.Endpoint` prints the description of one message (`Endpoint`) from a
running brain.
";

const DRAFT_HEAD: &str = "# The draft of localnet.v1

This page describes the draft of the API that will follow [localnetv1](api.md). **It may change in any release**, and a brain serves it only
with `--draft-v1`. [Reading localnet.v1](reading-v1.md) shows how to read it, and lists what is open. `make bless` generates this page from the
comments in [proto/localnet/v1](../proto/localnet/v1).
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
    // The compiler makes a oneof for each optional field.
    let one_of = field.oneof_index.map(|index| match field.proto3_optional() {
        true => " (optional)".to_owned(),
        false => format!(" (one of `{}`)", message.oneof_decl[index as usize].name()),
    });
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

impl Page {
    fn text(&self) -> String {
        let set = compiled::descriptors(self.files);
        let [mut services, mut messages, mut enums] = [String::new(), String::new(), String::new()];
        // The files that others import come first, but the most important one is the last.
        for file in set.file.iter().rev().filter(|file| file.package() == self.package) {
            let comments = Comments::new(file);
            services.extend(file.service.iter().zip(0..).map(|(one, number)| service(number, one, &comments)));
            messages.extend(file.message_type.iter().zip(0..).map(|(one, number)| message(number, one, &comments)));
            enums.extend(file.enum_type.iter().zip(0..).map(|(one, number)| values(number, one, &comments)));
        }
        format!("{}\n## Services\n{services}\n## Messages\n{messages}\n## Enums\n{enums}", self.head)
    }
}

#[test]
fn the_pages_are_up_to_date() {
    for page in PAGES {
        let (text, name) = (page.text(), page.name);
        let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
        if env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(path, text).unwrap();
            continue;
        }
        let there = fs::read_to_string(path).unwrap_or_default();
        let differs = there.lines().zip(text.lines()).find(|(there, text)| there != text);
        assert!(there == text, "docs/{name} is out of date, run `make bless`; the first difference: {differs:?}");
    }
}

#[test]
fn links_lead_to_headings() {
    for page in PAGES {
        let text = page.text();
        let headings = text.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_lowercase);
        let headings: Vec<_> = headings.collect();
        let links: Vec<_> = text.split("](#").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        assert!(links.len() > 30, "{links:?}");
        let broken: Vec<_> = links.iter().filter(|link| !headings.iter().any(|heading| heading == *link)).collect();
        assert!(broken.is_empty(), "{}: {broken:?}", page.name);
    }
}
