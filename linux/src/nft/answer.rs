//! The kernel's answer to a batch: which change it refused, and why.

use std::io;

use localnet_core::Code;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

use super::encode::Batch;
use super::text::{head, key_text};
use super::uapi::element;
use super::wire::{self, Attributes, Message};
use super::{Change, Transaction};
use crate::shortage::is_shortage;

/// Why a transaction was not applied, or a read failed. A transaction that fails changes nothing, unless its outcome is unknown
/// ([`Error::hides_outcome`]).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused one change, and with it the whole transaction.
    #[error("the kernel refused change {change} ({what}): {}{}", errno_text(*errno), note(message))]
    Refused {
        /// The index into the transaction's changes.
        change: usize,
        /// The index into the change's elements, if the kernel named one.
        element: Option<usize>,
        /// A description of the change.
        what: String,
        /// The kernel's error number.
        errno: i32,
        /// The kernel's own explanation, if it gave one.
        message: Option<String>,
    },
    /// The kernel refused the batch without naming a change.
    #[error("the kernel refused the transaction: {}{}", errno_text(*errno), note(message))]
    TransactionRefused {
        /// The kernel's error number.
        errno: i32,
        /// The kernel's own explanation, if it gave one.
        message: Option<String>,
    },
    /// The process lacks `CAP_NET_ADMIN`.
    #[error("not permitted: nf_tables needs CAP_NET_ADMIN; run as root or grant the capability")]
    NotPermitted,
    /// Another process owns the table (`flags owner`). Only the owner may change the table.
    #[error(
        "another process owns the table, and only that process may change it: end that process (nft list tables shows \"flags owner\")"
    )]
    Owned,
    /// The kernel has no nf_tables.
    #[error("this kernel has no nf_tables: load the module nf_tables or use another backend")]
    Unsupported,
    /// The kernel lacks a feature of nf_tables.
    #[error("this kernel lacks a feature of nf_tables: {refused}; {}", Code::KernelLacks.remedy())]
    Lacking {
        /// The error of the change that needs the feature.
        refused: String,
    },
    /// The kernel did not answer the transaction, so its outcome is unknown.
    #[error("the kernel did not answer the transaction, so its outcome is unknown")]
    Unanswered,
    /// The recording that replaces the kernel does not contain the answer.
    #[error("the recording does not contain the kernel's answer")]
    Unrecorded,
    /// The kernel's answer to a read was lost.
    #[error("the kernel's answer about nf_tables was lost for lack of memory: try again later")]
    Lost,
    /// Changes interrupted every attempt to read.
    #[error("other programs changed the tables during every attempt to read them: try again later")]
    Changing,
    /// The netlink socket failed.
    #[error("the netlink socket failed: {0}")]
    Io(#[from] io::Error),
}

impl Error {
    /// The index of the refused change, if the kernel named one.
    pub fn change(&self) -> Option<usize> {
        match self {
            Error::Refused { change, .. } => Some(*change),
            _ => None,
        }
    }

    /// Whether the kernel was short of a resource, so that a retry can succeed.
    pub fn is_shortage(&self) -> bool {
        self.errno().is_some_and(is_shortage)
    }

    /// Whether the transaction may have been applied nevertheless.
    pub fn hides_outcome(&self) -> bool {
        matches!(self, Error::Unanswered | Error::Io(_))
    }

    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Refused { errno, .. } | Error::TransactionRefused { errno, .. } => Some(*errno),
            Error::NotPermitted | Error::Owned => Some(Errno::PERM.raw_os_error()),
            Error::Io(error) => error.raw_os_error(),
            Error::Unsupported
            | Error::Lacking { .. }
            | Error::Unanswered
            | Error::Unrecorded
            | Error::Lost
            | Error::Changing => None,
        }
    }
}

/// The error that `EPERM` stands for. The kernel returns `EPERM` if the process lacks `CAP_NET_ADMIN`, and also if
/// another process owns the table.
fn not_permitted() -> Error {
    let has = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
    if has { Error::Owned } else { Error::NotPermitted }
}

fn errno_text(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn note(message: &Option<String>) -> String {
    message.as_ref().map(|message| format!(" ({message})")).unwrap_or_default()
}

/// An error message or acknowledgement of the kernel.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) errno: i32,
    message: Option<String>,
    /// The offset of the attribute that caused the error, from the start of the request.
    offset: Option<usize>,
}

impl Answer {
    pub(super) fn of(message: &Message<'_>) -> Self {
        // NLMSGERR_ATTR_MSG, NLMSGERR_ATTR_OFFS
        const TEXT: u16 = 1;
        const OFFSET: u16 = 2;
        let errno = wire::array(message.payload).map(i32::from_ne_bytes).map_or(0, i32::wrapping_neg);
        let with_text = message.flags & wire::ACK_TLVS != 0;
        // The request follows. If the kernel capped it, only its header follows.
        let sent = wire::array(message.payload.get(4..).unwrap_or_default()).map_or(0, u32::from_ne_bytes) as usize;
        let skip = if message.flags & wire::CAPPED != 0 { wire::HEADER } else { sent.max(wire::HEADER) };
        let attributes = message.payload.get(skip.saturating_add(4)..).filter(|_| with_text).unwrap_or_default();
        let attributes = Attributes(attributes);
        Self {
            errno,
            message: attributes.string(TEXT).map(str::to_owned),
            offset: attributes.find(OFFSET).and_then(wire::array).map(|offset| u32::from_ne_bytes(offset) as usize),
        }
    }

    /// The error with its change and element. `at` is the index of the message in the batch; the begin message has the
    /// index 0.
    pub(super) fn error(self, at: u32, batch: &Batch, transaction: &Transaction) -> Error {
        let (errno, message) = (self.errno, self.message);
        if errno == Errno::PERM.raw_os_error() {
            return not_permitted();
        }
        let origin = (at as usize).checked_sub(1).and_then(|index| batch.messages.get(index));
        let Some(origin) = origin else {
            // The kernel refuses the begin and end messages if it has nfnetlink, but not nf_tables.
            let missing = [Errno::OPNOTSUPP, Errno::PROTONOSUPPORT].map(Errno::raw_os_error);
            return if missing.contains(&errno) {
                Error::Unsupported
            } else {
                Error::TransactionRefused { errno, message }
            };
        };
        let change = &transaction.changes()[origin.change];
        let element = self.offset.and_then(|offset| blamed_element(batch, origin.start, offset, change));
        Error::Refused { change: origin.change, element, what: describe(change, element), errno, message }
    }
}

/// The element whose attribute caused the error. The key at the `offset` of the error identifies it.
fn blamed_element(batch: &Batch, start: usize, offset: usize, change: &Change) -> Option<usize> {
    let (Change::AddElements(_, _, elements) | Change::DeleteElements(_, _, elements)) = change else {
        return None;
    };
    let item = Attributes(batch.bytes.get(start.checked_add(offset)?..)?).next()?;
    let key = Attributes(item.1).nested(element::KEY).next()?.1;
    elements.iter().position(|element| {
        let bytes = element.key.start().as_bytes();
        bytes.get(..key.len()) == Some(key) && bytes.len() <= key.len().next_multiple_of(4)
    })
}

/// A description of the change for an error message.
fn describe(change: &Change, element: Option<usize>) -> String {
    let head = head(change);
    let (Change::AddElements(_, set, elements) | Change::DeleteElements(_, set, elements)) = change else {
        return head;
    };
    let Some(element) = element.and_then(|index| elements.get(index)) else {
        return format!("{head}, {} elements", elements.len());
    };
    let comment = element.comment.as_ref().map(|comment| format!(", {comment}")).unwrap_or_default();
    format!("{head} {}{comment}", key_text(set, &element.key))
}
