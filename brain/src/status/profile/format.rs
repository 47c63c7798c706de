//! The subset of pprof's `profile.proto` (github.com/google/pprof) that a CPU profile needs. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, SystemTime},
};

/// A profile. Strings are indexes into `string_table`, whose first entry is empty. IDs start at 1.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    pub(super) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub(super) string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(super) duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(super) period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub(super) period: i64,
}

/// The type and the unit of a value.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(super) kind: i64,
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

/// A stack, innermost location first, and its values.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "3")]
    pub(super) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
}

/// A position in the source code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    /// Name of the function.
    pub(super) function: String,
    /// The source file.
    pub(super) file: String,
    /// The line number.
    pub(super) line: u32,
}

/// Encodes `stacks`, which maps each stack (innermost place first) to the number of its samples. `rate` is the number of
/// samples per second of CPU time.
pub(super) fn profile(stacks: &BTreeMap<Vec<Place>, i64>, rate: i64, began: SystemTime, took: Duration) -> Profile {
    let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    let mut profile = Profile {
        string_table: vec![String::new()],
        time_nanos: nanos(began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()),
        duration_nanos: nanos(took),
        period: 1_000_000_000 / rate,
        ..Profile::default()
    };
    let mut strings = HashMap::from([(String::new(), 0)]);
    let mut string = |text: &str, table: &mut Vec<String>| {
        *strings.entry(text.to_owned()).or_insert_with(|| {
            table.push(text.to_owned());
            table.len() as i64 - 1
        })
    };
    let mut kind = |kind: &str, unit: &str, table: &mut Vec<String>| ValueType {
        kind: string(kind, table),
        unit: string(unit, table),
    };
    let cpu = kind("cpu", "nanoseconds", &mut profile.string_table);
    profile.sample_type = vec![kind("samples", "count", &mut profile.string_table), cpu];
    profile.period_type = Some(cpu);
    let (mut functions, mut locations) = (HashMap::new(), HashMap::new());
    for (stack, count) in stacks {
        let mut sample = Sample { location_id: Vec::new(), value: vec![*count, count.saturating_mul(profile.period)] };
        for place in stack {
            let function_id = *functions.entry((&place.function, &place.file)).or_insert_with(|| {
                let id = profile.function.len() as u64 + 1;
                let name = string(&place.function, &mut profile.string_table);
                let filename = string(&place.file, &mut profile.string_table);
                profile.function.push(Function { id, name, system_name: name, filename });
                id
            });
            sample.location_id.push(*locations.entry(place).or_insert_with(|| {
                let id = profile.location.len() as u64 + 1;
                let line = vec![Line { function_id, line: place.line.into() }];
                profile.location.push(Location { id, line });
                id
            }));
        }
        profile.sample.push(sample);
    }
    profile
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_functions_and_strings_are_deduplicated() {
        let place = |function: &str, line| Place { function: function.to_owned(), file: "a.rs".to_owned(), line };
        let stacks = BTreeMap::from([
            (vec![place("inner", 7), place("outer", 1)], 3),
            (vec![place("inner", 9), place("outer", 1)], 1),
        ]);
        let profile = profile(&stacks, 100, SystemTime::UNIX_EPOCH, Duration::from_secs(2));
        let ids: Vec<_> =
            profile.sample.iter().map(|sample| (sample.location_id.clone(), sample.value.clone())).collect();
        assert_eq!(ids, [(vec![1, 2], vec![3, 30_000_000]), (vec![3, 2], vec![1, 10_000_000])]);
        let text = |place: i64| profile.string_table[usize::try_from(place).unwrap()].as_str();
        let functions: Vec<_> =
            profile.function.iter().map(|one| (one.id, text(one.name), text(one.filename))).collect();
        assert_eq!(functions, [(1, "inner", "a.rs"), (2, "outer", "a.rs")]);
        let types: Vec<_> = profile.sample_type.iter().map(|of| (text(of.kind), text(of.unit))).collect();
        assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
        assert_eq!((profile.period, profile.duration_nanos, text(0)), (10_000_000, 2_000_000_000, ""));
    }
}
