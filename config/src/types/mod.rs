//! How the values of each type are checked when they are read from a document, and how they are written. kube-proxy's
//! rules of validation are here.
//!
//! Most types of the [table](crate::table) stand for themselves. A type with other rules has a name here.

mod addresses;
mod logging;
mod modes;
mod numbers;

use std::path::PathBuf;

pub(crate) use addresses::{Cidrs, ClusterCidrs};
pub(crate) use logging::{BufferSize, FlushFrequency, SplitStream, Verbosity};
pub(crate) use modes::{Interface, NodeName, RootEndpoint};
pub(crate) use numbers::{Burst, Count, MinSyncPeriod, Period, SyncPeriod};
use serde::Serialize;
use serde_json::Value;

use crate::{check::Check, field::Field, kind::Kind};

/// A type of fields.
pub(crate) trait FieldType {
    /// The type in [`Config`](crate::Config).
    type Value: Serialize;
    /// The type in documents and flags.
    const KIND: Kind;

    /// Reads the value of a field. An invalid value adds a finding, and the result is then some valid value.
    fn read(check: &mut Check<'_>, field: &Field) -> Self::Value;

    /// Returns the value in a document. Null means the zero of its kind.
    fn write(value: &Self::Value) -> Value {
        serde_json::to_value(value).unwrap_or_default()
    }
}

impl FieldType for bool {
    type Value = Self;
    const KIND: Kind = Kind::Bool;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        check.document.get(field.path) == true
    }
}

impl FieldType for String {
    type Value = Self;
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        check.document.text(field.path).to_owned()
    }
}

/// `None` is an empty string.
impl FieldType for Option<String> {
    type Value = Self;
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        Some(check.document.text(field.path).to_owned()).filter(|text| !text.is_empty())
    }
}

/// `None` is an empty string.
impl FieldType for Option<PathBuf> {
    type Value = Self;
    const KIND: Kind = Kind::Path;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        Option::<String>::read(check, field).map(Into::into)
    }
}
