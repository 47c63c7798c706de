//! A reader of an older `localnet.v1` knows whether it may ignore what it does not know: the comment of each field and enum value that
//! the last release did not have says so (docs/decisions/0027-localnet-v1.md).

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod compiled;

use std::{collections::BTreeMap, fs};

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet, MessageOptions};

/// What a comment says: readers may ignore the addition, or the brain only sends it to readers with a capability.
const WORDS: [&str; 2] = ["Readers may ignore it", "Needs CAPABILITY_"];

/// The fields and enum values of `localnet.v1` that readers read, with their comments.
fn items(set: &FileDescriptorSet) -> BTreeMap<String, String> {
    set.file.iter().filter(|file| file.package() == "localnet.v1").flat_map(items_of).collect()
}

/// Whether a message is the entry of a map, which the compiler adds.
fn is_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(MessageOptions::map_entry)
}

fn items_of(file: &FileDescriptorProto) -> Vec<(String, String)> {
    let comment = |path: &[i32]| {
        let mut locations = file.source_code_info.iter().flat_map(|info| &info.location);
        locations.find(|location| location.path == path).map_or("", |location| location.leading_comments()).to_owned()
    };
    let mut items = Vec::new();
    for (index, message) in (0..).zip(&file.message_type) {
        assert!(
            message.enum_type.is_empty() && message.nested_type.iter().all(is_entry),
            "{}: nested types",
            message.name()
        );
        if FOR_THE_BRAIN.contains(&message.name()) {
            continue;
        }
        for (number, field) in (0..).zip(&message.field) {
            items.push((format!("{}.{}", message.name(), field.name()), comment(&[4, index, 2, number])));
        }
    }
    for (index, values) in (0..).zip(&file.enum_type) {
        if FOR_THE_BRAIN.contains(&values.name()) {
            continue;
        }
        for (number, value) in (0..).zip(&values.value) {
            items.push((value.name().to_owned(), comment(&[5, index, 2, number])));
        }
    }
    items
}

/// Messages and enums that readers send, so that the brain reads them.
const FOR_THE_BRAIN: [&str; 13] = [
    "Capability",
    "Diagnostic",
    "FamilyStatus",
    "IpFamily",
    "MetadataSelector",
    "NextStateRequest",
    "Reader",
    "ReaderRole",
    "ReportStatusRequest",
    "Severity",
    "SkippedPart",
    "SkippedParts",
    "View",
];

/// The items that `released` lacks, and whose comments do not say what a reader may do.
fn silent(released: &FileDescriptorSet, now: &FileDescriptorSet) -> Vec<String> {
    let released = items(released);
    let mut new: Vec<_> = items(now).into_iter().filter(|(name, _)| !released.contains_key(name)).collect();
    new.retain(|(_, comment)| !WORDS.iter().any(|words| comment.contains(words)));
    new.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn the_comment_of_each_addition_says_what_readers_may_ignore() {
    let released = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/released.binpb")).unwrap();
    let released = FileDescriptorSet::decode(&*released).unwrap();
    let now = compiled::descriptors(&[&compiled::FILES[..], &compiled::DRAFT].concat());
    assert_eq!(silent(&released, &now), Vec::<String>::new(), "add to the comments: {WORDS:?}");
    let mut older = released.clone();
    older
        .file
        .iter_mut()
        .flat_map(|file| &mut file.message_type)
        .for_each(|of| of.field.retain(|field| field.name() != "weight"));
    assert_eq!(silent(&older, &now), ["Endpoint.weight"]);
}
