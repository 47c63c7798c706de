//! The tokens of `localnet.v1`: the revision of a state, and what the reader got of it. Pure.
//!
//! What the reader got is a hash of its options, so that a token has the same length whatever a reader has selected.
//!
//! A token that this version does not understand is like one of another instance: its reader gets a full state.

use localnet_proto::{Digest, Revision};

use crate::feed::Selection;

/// The token of a state for a reader.
pub fn token(revision: Revision, selection: &Selection) -> String {
    format!("{:016x}.{}.{:016x}", revision.instance, revision.rev, hash(selection).0)
}

/// The revision in a token. `None` if the token is not for this selection, or not from this version.
pub fn revision(token: &str, selection: &Selection) -> Option<Revision> {
    let mut parts = token.split('.');
    let instance = u64::from_str_radix(parts.next()?, 16).ok()?;
    let revision = Revision { instance, rev: parts.next()?.parse().ok()? };
    // No other text is the token of this revision, such as one with a sign or in upper case.
    (self::token(revision, selection) == token).then_some(revision)
}

/// The hash of the options.
fn hash(Selection { observes, source_filters, metadata, details }: &Selection) -> Digest {
    let options = format!("{observes} {source_filters} {details}");
    // Keys contain no white space.
    let keys = metadata.iter().map(|(kind, key)| format!(" {kind:?} {key}"));
    Digest::of_items(std::iter::once(options).chain(keys))
}

#[cfg(test)]
mod tests {
    use localnet_proto::v1::Metadata;

    use super::*;

    #[test]
    fn a_token_identifies_the_revision_and_the_selection() {
        let keys = [(Metadata::Label, "a"), (Metadata::Annotation, "a"), (Metadata::Annotation, "b")];
        let of = |bits: u8| {
            let keys = keys.iter().enumerate().filter(|(at, _)| bits >> at & 1 > 0);
            Selection {
                observes: bits & 8 > 0,
                source_filters: bits & 16 > 0,
                details: bits & 32 > 0,
                metadata: keys.map(|(_, (kind, key))| (*kind, (*key).into())).collect(),
            }
        };
        let held = Revision { instance: 7, rev: 12 };
        for one in 0..64 {
            let text = token(held, &of(one));
            assert!(text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            for other in 0..64 {
                assert_eq!(revision(&text, &of(other)), (one == other).then_some(held), "{text}");
            }
        }
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let selection = Selection::default();
        let held = Revision { instance: 7, rev: 1 };
        let good = token(held, &selection);
        assert_eq!(revision(&good, &selection), Some(held));
        let hash = good.strip_prefix("0000000000000007.1.").unwrap();
        let prefixes = ["", "7.1.", "0000000000000007.+1.", "0000000000000007.", "x.1.", "0000000000000007.1.0"];
        let others = prefixes.map(|prefix| format!("{prefix}{hash}"));
        for text in others.iter().map(String::as_str).chain(["", ".", "0000000000000007.1", "0000000000000007.1."]) {
            assert_eq!(revision(text, &selection), None, "{text:?}");
        }
    }
}
