//! The tokens of `localnet.v1`: the revision of a state, and what the reader got of it. Pure.
//!
//! A token that this version does not understand is like one of another instance: its reader gets a full state.

use localnet_proto::Revision;

use crate::feed::Selection;

/// The token of a state for a reader.
pub(super) fn token(revision: Revision, selection: &Selection) -> String {
    format!("{:016x}.{}.{:x}", revision.instance, revision.rev, bits(selection))
}

/// The revision in a token. `None` if the token is not for this selection, or not from this version.
pub(super) fn revision(token: &str, selection: &Selection) -> Option<Revision> {
    let mut parts = token.split('.');
    let instance = u64::from_str_radix(parts.next()?, 16).ok()?;
    let revision = Revision { instance, rev: parts.next()?.parse().ok()? };
    // No other text is the token of this revision, such as one with a sign or in upper case.
    (self::token(revision, selection) == token).then_some(revision)
}

/// The selection as bits.
fn bits(Selection { observes, source_filters, annotations }: &Selection) -> u32 {
    [*observes, *source_filters].iter().chain(annotations).fold(1, |bits, bit| bits << 1 | u32::from(*bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_identifies_the_revision_and_the_selection() {
        let of = |bits: u8| Selection {
            observes: bits & 1 > 0,
            source_filters: bits & 2 > 0,
            annotations: [bits & 4 > 0, bits & 8 > 0],
        };
        let held = Revision { instance: 7, rev: 12 };
        for one in 0..16 {
            let text = token(held, &of(one));
            assert!(text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            for other in 0..16 {
                assert_eq!(revision(&text, &of(other)), (one == other).then_some(held), "{text}");
            }
        }
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let selection = Selection::default();
        let good = token(Revision { instance: 7, rev: 1 }, &selection);
        assert_eq!(good, "0000000000000007.1.10");
        for text in
            ["", ".", "7.1.10", "0000000000000007.+1.10", "0000000000000007.1.10.", "0000000000000007.1", "x.1.10"]
        {
            assert_eq!(revision(text, &selection), None, "{text:?}");
        }
    }
}
