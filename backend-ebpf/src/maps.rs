//! [`Maps`]: the eBPF maps that the backend reads and writes.

use std::{fmt::Write as _, mem};

use anyhow::{Context as _, anyhow, bail};
use aya::maps::{HashMap, Map, MapData, MapError};

use crate::{
    decide::UDP,
    kernel::{Change, Content, Full},
    layout::{OriginKey, Socket},
    words::{self, Words},
};

/// How many elements are written with one system call. More would save little.
const BATCH: usize = 4096;
/// `E2BIG`, the kernel's error for an element that exceeds the size of its map.
const FULL: i32 = 7;
/// `ENOENT`, the kernel's error for a deletion of a missing element.
const MISSING: i32 = 2;

/// The maps.
#[derive(Debug)]
pub(crate) struct Maps {
    vips: Table<6, 8>,
    endpoints: Table<6, 20>,
    members: Table<10, 1>,
    origins: Table<8, 5>,
}

/// A hash map with keys of `K` words and values of `V` words.
#[derive(Debug)]
struct Table<const K: usize, const V: usize> {
    name: &'static str,
    map: Map,
    /// The elements to set with the next system call.
    keys: Vec<[u32; K]>,
    values: Vec<[u32; V]>,
}

impl Maps {
    /// Opens the maps that `map` returns for their names.
    pub(crate) fn of(mut map: impl FnMut(&str) -> anyhow::Result<Map>) -> anyhow::Result<Self> {
        Ok(Self {
            vips: Table::of("vips", &mut map)?,
            endpoints: Table::of("endpoints", &mut map)?,
            members: Table::of("members", &mut map)?,
            origins: Table::of("origins", &mut map)?,
        })
    }

    /// Reads the content.
    pub(crate) fn read(&self) -> anyhow::Result<Content> {
        let (vips, endpoints, members) = (self.vips.live()?, self.endpoints.live()?, self.members.live()?);
        Ok(Content {
            vips: vips.iter().map(|entry| words::decoded(entry?)).collect::<Result<_, MapError>>()?,
            endpoints: endpoints.iter().map(|entry| words::decoded(entry?)).collect::<Result<_, MapError>>()?,
            members: members.keys().map(|key| Ok(Words::from_words(key?))).collect::<Result<_, MapError>>()?,
        })
    }

    /// The keys of UDP sockets that are stale.
    pub(crate) fn stale(&self, is_stale: &dyn Fn(&Socket, &Socket) -> bool) -> anyhow::Result<Vec<OriginKey>> {
        let mut stale = Vec::new();
        let origins = self.origins.live()?;
        for key in origins.keys() {
            let key = OriginKey::from_words(key.map_err(one_line)?);
            // The kernel may have deleted the element in the meantime.
            let vip = || origins.get(&key.words(), 0).ok().map(Socket::from_words);
            if key.protocol == UDP && vip().is_some_and(|vip| is_stale(&vip, &key.endpoint)) {
                stale.push(key);
            }
        }
        Ok(stale)
    }

    /// Applies the changes in their order. Successive elements of one map are set with one system call.
    pub(crate) fn apply(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        for of_one_map in changes.chunk_by(|a, b| mem::discriminant(a) == mem::discriminant(b)) {
            of_one_map.iter().try_for_each(|change| self.change(change))?;
            self.vips.flush()?;
            self.endpoints.flush()?;
            self.members.flush()?;
        }
        Ok(())
    }

    fn change(&mut self, change: &Change) -> anyhow::Result<()> {
        match change {
            Change::Vip(key, Some(value)) => self.vips.set(key, value.words()),
            Change::Vip(key, None) => self.vips.remove(key),
            Change::Endpoints(key, Some(value)) => self.endpoints.set(key, value.words()),
            Change::Endpoints(key, None) => self.endpoints.remove(key),
            Change::Member(key, true) => self.members.set(key, [1]),
            Change::Member(key, false) => self.members.remove(key),
        }
    }

    /// Removes the element of a socket.
    pub(crate) fn remove_origin(&mut self, key: &OriginKey) -> anyhow::Result<()> {
        self.origins.remove(key)
    }
}

impl<const K: usize, const V: usize> Table<K, V> {
    fn of(name: &'static str, map: &mut impl FnMut(&str) -> anyhow::Result<Map>) -> anyhow::Result<Self> {
        let table = Self { name, map: map(name)?, keys: Vec::new(), values: Vec::new() };
        table.live()?;
        Ok(table)
    }

    /// The content in the kernel.
    fn live(&self) -> Result<HashMap<&MapData, [u32; K], [u32; V]>, MapError> {
        HashMap::try_from(&self.map)
    }

    fn set(&mut self, key: &impl Words<K>, value: [u32; V]) -> anyhow::Result<()> {
        self.keys.push(key.words());
        self.values.push(value);
        if self.keys.len() < BATCH { Ok(()) } else { self.flush() }
    }

    /// Deleting a missing element is no error.
    fn remove(&mut self, key: &impl Words<K>) -> anyhow::Result<()> {
        self.flush()?;
        let mut map: HashMap<&mut MapData, [u32; K], [u32; V]> = HashMap::try_from(&mut self.map)?;
        match map.remove(&key.words()) {
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(MISSING) => Ok(()),
            removed => removed.map_err(one_line).with_context(|| self.refusal()),
        }
    }

    /// Sets the elements that wait.
    fn flush(&mut self) -> anyhow::Result<()> {
        let (keys, values) = (mem::take(&mut self.keys), mem::take(&mut self.values));
        if keys.is_empty() {
            return Ok(());
        }
        let Map::HashMap(map) = &self.map else { bail!(self.refusal()) };
        match localnet_bpf::set(map, &keys, &values) {
            Err(error) if error.raw_os_error() == Some(FULL) => Err(Full(self.name).into()),
            set => set.with_context(|| self.refusal()),
        }
    }

    fn refusal(&self) -> String {
        format!("cannot change the map {}", self.name)
    }
}

/// An error of aya and its causes, without repetitions and without the verifier's log, which has many lines.
pub(crate) fn one_line(error: impl std::error::Error) -> anyhow::Error {
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = cause {
        let line = error.to_string();
        let line = line.lines().next().unwrap_or_default().trim_end_matches(':');
        if !text.ends_with(line) {
            let separator = if text.is_empty() { "" } else { ": " };
            _ = write!(text, "{separator}{line}");
        }
        cause = error.source();
    }
    anyhow!(text)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn an_error_has_one_line_and_its_causes() {
        let cause = io::Error::from_raw_os_error(1);
        let error = MapError::SyscallError(aya::sys::SyscallError { call: "bpf_map_update_elem", io_error: cause });
        let text = one_line(error).to_string();
        assert!(text.contains("bpf_map_update_elem") && text.contains("Operation not permitted"), "{text}");
        assert!(!text.contains('\n'));
    }
}
