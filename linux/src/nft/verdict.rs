//! Verdicts: what happens after a rule matches, as text and as netlink attributes.

use std::fmt;

use super::Name;
use super::uapi::data;
use super::wire::{Attributes, Writer};

/// How the evaluation continues or ends after a rule matches, or after a lookup finds an element of a verdict map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The base chain accepts the packet.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The evaluation returns to the rule after the last jump.
    Return,
    /// The evaluation continues in that chain and returns at its end.
    Jump(Name),
    /// The evaluation continues in that chain and does not return.
    Goto(Name),
}

impl Verdict {
    /// The verdict with that number and chain; `None` if they do not form a verdict of this type.
    pub(super) fn of(code: i32, chain: Option<Name>) -> Option<Self> {
        match (code, chain) {
            (data::ACCEPT, None) => Some(Self::Accept),
            (data::DROP, None) => Some(Self::Drop),
            (data::RETURN, None) => Some(Self::Return),
            (data::JUMP, Some(chain)) => Some(Self::Jump(chain)),
            (data::GOTO, Some(chain)) => Some(Self::Goto(chain)),
            _ => None,
        }
    }

    /// Reads the value of `NFTA_DATA_VERDICT`; `name` returns the name of the chain.
    pub(super) fn read(attributes: Attributes<'_>, name: impl FnOnce(&str) -> Name) -> Option<Self> {
        let code = attributes.u32(data::VERDICT_CODE)?.cast_signed();
        Self::of(code, attributes.string(data::VERDICT_CHAIN).map(name))
    }

    /// Writes the verdict, as the value of an immediate or of an element.
    pub(super) fn write(&self, writer: &mut Writer) {
        let (code, chain) = match self {
            Verdict::Accept => (data::ACCEPT, None),
            Verdict::Drop => (data::DROP, None),
            Verdict::Return => (data::RETURN, None),
            Verdict::Jump(chain) => (data::JUMP, Some(chain)),
            Verdict::Goto(chain) => (data::GOTO, Some(chain)),
        };
        let nest = writer.open(data::VERDICT);
        writer.u32(data::VERDICT_CODE, code.cast_unsigned());
        if let Some(chain) = chain {
            writer.string(data::VERDICT_CHAIN, chain);
        }
        writer.close(nest);
    }
}

/// `goto lb`
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}
