//! Reads the values of each type from a document, checks them by kube-proxy's rules, and writes them.
//!
//! In most rows of the [table](crate::table), the type of the value also selects the rules. If a value has other rules,
//! the row names one of the types in this module, which exist only to select rules.

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

/// The rules for the values of a field. `T` is the type of the value in [`Config`](crate::Config).
pub(crate) trait FieldType<T: Serialize = Self> {
    /// The type of the value in documents and flags.
    const KIND: Kind;

    /// Reads the value of a field. For an invalid value, adds a finding and returns some valid value.
    fn read(check: &mut Check<'_>, field: &Field) -> T;

    /// Returns the value in the form that documents use. If this is null, documents contain the zero value of [`Self::KIND`].
    fn write(value: &T) -> Value {
        serde_json::to_value(value).unwrap_or_default()
    }
}

impl FieldType for bool {
    const KIND: Kind = Kind::Bool;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        check.document.get(field.path) == true
    }
}

impl FieldType for String {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        check.document.text(field.path).to_owned()
    }
}

/// In documents, `None` is an empty string.
impl FieldType for Option<String> {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        Some(check.document.text(field.path).to_owned()).filter(|text| !text.is_empty())
    }
}

/// In documents, `None` is an empty string.
impl FieldType for Option<PathBuf> {
    const KIND: Kind = Kind::Path;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        Option::<String>::read(check, field).map(Into::into)
    }
}
