//! Reads tables back: at the start to adopt them, and later to find changes by other programs.
//!
//! A normal sync reads nothing. Each result is a consistent state of the table: a read that raced with a change is repeated.

use std::collections::HashMap;
use std::sync::Arc;

use localnet_core::Family;

use super::answer::Error;
use super::encode::{name_set, write_key};
use super::parse::{ChainDump, Elements, parse_chain, parse_packets, parse_rule, parse_set};
use super::socket::Socket;
use super::uapi::{self, chain, element, generation, msg, rule, set, table};
use super::wire::{self, Head, Message, Writer};
use super::{Element, Name, Set, Table, Tuple};

/// The live state of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDump {
    /// The chains with their rules.
    pub chains: Vec<ChainDump>,
    /// The sets and maps with their elements.
    pub sets: Vec<SetDump>,
    /// The generation of the ruleset that was read.
    pub generation: u32,
}

impl TableDump {
    /// The chain with that name.
    pub fn chain(&self, name: &str) -> Option<&ChainDump> {
        self.chains.iter().find(|chain| &*chain.name == name)
    }

    /// The set with that name.
    pub fn set(&self, name: &str) -> Option<&SetDump> {
        self.sets.iter().find(|set| &*set.name == name)
    }
}

/// The live state of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetDump {
    /// The name.
    pub name: Name,
    /// The declaration; `None` if it has a type or flag that [`Set`] cannot represent. No set of ours has such a type or flag.
    pub set: Option<Arc<Set>>,
    /// The elements, in the kernel's order. Empty if there is no declaration.
    pub elements: Vec<Element>,
}

/// Whether a table exists and is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Absent,
    Active,
    /// The table has `flags dormant`: it exists, but packets enter none of its chains.
    Dormant,
}

impl Standing {
    fn of(self, chain: ChainDump) -> ChainDump {
        let hook = chain.hook.filter(|_| self == Self::Active);
        ChainDump { hook, ..chain }
    }
}

/// How many times a read that raced with changes is repeated.
const ATTEMPTS: usize = 50;

impl Socket {
    /// Reads a table with all of its content; `None` if there is no such table.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, or if the table changed during every attempt.
    pub fn table(&mut self, table: &Table) -> Result<Option<TableDump>, Error> {
        self.in_one_generation(|socket, generation| socket.read_table(table, generation))
    }

    /// Reads a table without the elements of its sets; `None` if there is no such table.
    ///
    /// # Errors
    /// Returns the errors of [`Self::table`].
    pub fn outline(&mut self, table: &Table) -> Result<Option<TableDump>, Error> {
        self.in_one_generation(|socket, generation| socket.read_outline(table, generation))
    }

    /// Reads in one generation of the ruleset, without a commit in progress.
    fn in_one_generation<T>(
        &mut self,
        read: impl Fn(&mut Self, u32) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        self.repeated(|socket| {
            // When the wait returns, every commit announced before this line has ended. A later commit changes the generation.
            let generation = socket.generation()?;
            socket.await_commits()?;
            let found = read(socket, generation)?;
            let changed = found.is_some() && socket.generation()? != generation;
            if changed { Err(Error::Changing) } else { Ok(found) }
        })
    }

    /// Repeats a read of several lists while one of them changes. A commit may change the ruleset between two lists.
    pub(super) fn undisturbed<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.repeated(|socket| {
            socket.await_commits()?;
            read(socket)
        })
    }

    /// Repeats a read while it returns [`Error::Changing`].
    fn repeated<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        let mut reads = (0..ATTEMPTS).map(|_| read(self));
        reads.find(|read| !matches!(read, Err(Error::Changing))).unwrap_or(Err(Error::Changing))
    }

    /// Whether the table exists.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, or if the socket fails.
    pub fn has_table(&mut self, table: &Table) -> Result<bool, Error> {
        Ok(self.standing(table)? != Standing::Absent)
    }

    fn standing(&mut self, table: &Table) -> Result<Standing, Error> {
        let mut flags = 0;
        let fill = |w: &mut Writer| w.string(table::NAME, &table.name);
        let exists = self.request(table.family, msg::GET_TABLE, wire::ACK, fill, |message| {
            flags = message.attributes().u32(table::FLAGS).unwrap_or_default();
        })?;
        Ok(match exists {
            true if flags & table::FLAG_DORMANT != 0 => Standing::Dormant,
            true => Standing::Active,
            false => Standing::Absent,
        })
    }

    /// Reads the elements of a set; `None` if there is no such set.
    ///
    /// # Errors
    /// Returns the errors of [`Self::table`].
    pub fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error> {
        self.in_one_generation(|socket, _| socket.read_elements(table, set))
    }

    /// Reads how many packets each element of a set has counted; `None` if there is no such set. While packets add elements, an
    /// element may be missing or occur twice.
    ///
    /// # Errors
    /// Returns the errors of [`Self::table`].
    pub fn packets(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<(Tuple, u64)>>, Error> {
        self.repeated(|socket| {
            let mut counted = Vec::new();
            let fill = |w: &mut Writer| name_set(w, table, set);
            let exists = socket.request(table.family, msg::GET_ELEMENTS, wire::DUMP, fill, |message| {
                counted.extend(parse_packets(message.attributes()));
            })?;
            Ok(exists.then_some(counted))
        })
    }

    /// Reads the element with this key from a set. In an interval set, this is the element whose range contains the key. `None`
    /// if there is no such element. The cost does not depend on the size of the set.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, or if the socket fails.
    pub fn element(&mut self, table: &Table, set: &Set, key: &Tuple) -> Result<Option<Element>, Error> {
        if self.replays() {
            // A recording contains complete sets only, and no set of a table that does not exist.
            let holds = |element: &Element| match element.key.end() {
                None => element.key.start() == key,
                Some(end) => (element.key.start()..=end).contains(&key),
            };
            return match self.read_elements(table, set) {
                Err(Error::Unrecorded) => Ok(None),
                elements => Ok(elements?.into_iter().flatten().find(holds)),
            };
        }
        let mut elements = Elements::new(set);
        let fill = |w: &mut Writer| {
            name_set(w, table, set);
            w.nest(element::LIST_ELEMENTS, |w| {
                w.nest(element::LIST_ITEM, |w| write_key(w, element::KEY, key, set));
            });
        };
        let exists = self.request(table.family, msg::GET_ELEMENTS, wire::ACK, fill, |message| {
            elements.message(message.attributes());
        })?;
        Ok(if exists { elements.first() } else { None })
    }

    /// Reads the chains of a table with their rules, but no sets; `None` if there is no such table.
    ///
    /// # Errors
    /// Returns the errors of [`Self::table`].
    pub fn chains(&mut self, table: &Table) -> Result<Option<Vec<ChainDump>>, Error> {
        self.undisturbed(|socket| socket.read_chains(table))
    }

    /// The generation of the ruleset. Every commit of any process increases it.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, or if the socket fails.
    pub fn generation(&mut self) -> Result<u32, Error> {
        let mut current = None;
        self.request(
            Family::V4,
            msg::GET_GENERATION,
            wire::ACK,
            |_| (),
            |message| {
                current = message.attributes().u32(generation::ID);
            },
        )?;
        current.ok_or(Error::Unanswered)
    }

    fn read_table(&mut self, table: &Table, generation: u32) -> Result<Option<TableDump>, Error> {
        let Some(mut dump) = self.read_outline(table, generation)? else { return Ok(None) };
        for dumped in &mut dump.sets {
            let Some(set) = &dumped.set else { continue };
            dumped.elements = self.read_elements(table, set)?.ok_or(Error::Changing)?;
        }
        Ok(Some(dump))
    }

    fn read_outline(&mut self, table: &Table, generation: u32) -> Result<Option<TableDump>, Error> {
        let Some(chains) = self.read_chains(table)? else { return Ok(None) };
        let mut sets = Vec::new();
        let set_table = |w: &mut Writer| w.string(set::TABLE, &table.name);
        exists(self.request(table.family, msg::GET_SET, wire::DUMP, set_table, |message| {
            let parsed = parse_set(message.attributes(), &table.name);
            sets.extend(parsed.map(|(name, set)| SetDump { name, set: set.map(Arc::new), elements: Vec::new() }));
        })?)?;
        Ok(Some(TableDump { chains, sets, generation }))
    }

    fn read_chains(&mut self, table: &Table) -> Result<Option<Vec<ChainDump>>, Error> {
        let standing = self.standing(table)?;
        if standing == Standing::Absent {
            return Ok(None);
        }
        let mut chains = Vec::new();
        let fill = |w: &mut Writer| w.string(chain::TABLE, &table.name);
        exists(self.request(table.family, msg::GET_CHAIN, wire::DUMP, fill, |message| {
            chains.extend(parse_chain(message.attributes(), &table.name).map(|chain| standing.of(chain)));
        })?)?;
        self.read_rules(table, &mut chains)?;
        Ok(Some(chains))
    }

    fn read_rules(&mut self, table: &Table, chains: &mut [ChainDump]) -> Result<(), Error> {
        let place: HashMap<Name, usize> =
            chains.iter().enumerate().map(|(index, chain)| (chain.name.clone(), index)).collect();
        let fill = |w: &mut Writer| w.string(rule::TABLE, &table.name);
        exists(self.request(table.family, msg::GET_RULE, wire::DUMP, fill, |message| {
            if let Some((chain, rule)) = parse_rule(message.attributes(), &table.name) {
                let chain = place.get(chain).and_then(|index| chains.get_mut(*index));
                chain.into_iter().for_each(|chain| chain.rules.push(rule.clone()));
            }
        })?)
    }

    fn read_elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error> {
        let mut elements = Elements::new(set);
        let fill = |w: &mut Writer| name_set(w, table, set);
        let exists = self.request(table.family, msg::GET_ELEMENTS, wire::DUMP, fill, |message| {
            elements.message(message.attributes());
        })?;
        Ok(exists.then(|| elements.finish()))
    }

    fn request(
        &mut self,
        family: Family,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut Writer),
        each: impl FnMut(&Message<'_>),
    ) -> Result<bool, Error> {
        self.request_of(wire::family_number(family), kind, flags, fill, each)
    }

    /// Like `request`, but for any netfilter family: `family` is its number.
    pub(super) fn request_of(
        &mut self,
        family: u8,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut Writer),
        each: impl FnMut(&Message<'_>),
    ) -> Result<bool, Error> {
        let sequence = self.next_sequence();
        let head =
            Head { kind: uapi::SUBSYSTEM << 8 | kind, flags: wire::REQUEST | flags, sequence, family, resource: 0 };
        let mut writer = Writer::default();
        writer.message(head, fill);
        self.dump(&writer.bytes, sequence, each)
    }
}

/// The rest of a table that existed a moment ago must exist, too. If it does not, the table has changed.
fn exists(exists: bool) -> Result<(), Error> {
    exists.then_some(()).ok_or(Error::Changing)
}
