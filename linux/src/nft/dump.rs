//! Reads tables back: at the start, to adopt what is there, and to notice what others changed.
//!
//! Never part of a normal sync. Each answer is one state of the table: a read that raced with a change is repeated.

use std::collections::HashMap;
use std::sync::Arc;

use super::answer::Error;
use super::encode::write_key;
use super::expression::number;
use super::kernel::{self, chain, element, generation, msg, rule, set, table};
use super::parse::{ChainDump, Elements, parse_chain, parse_rule, parse_set};
use super::socket::{Dumped, Socket};
use super::wire::{self, Head, Message, Writer};
use super::{Element, Family, Name, Set, Table, Tuple};

/// A table as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDump {
    /// Its chains with their rules.
    pub chains: Vec<ChainDump>,
    /// Its sets and maps with their elements.
    pub sets: Vec<SetDump>,
    /// The number of the ruleset's generation that was read.
    pub generation: u32,
}

impl TableDump {
    /// The chain of that name.
    pub fn chain(&self, name: &str) -> Option<&ChainDump> {
        self.chains.iter().find(|chain| &*chain.name == name)
    }

    /// The set of that name.
    pub fn set(&self, name: &str) -> Option<&SetDump> {
        self.sets.iter().find(|set| &*set.name == name)
    }
}

/// A set or map as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetDump {
    /// Its name.
    pub name: Name,
    /// Its declaration; none if it has a type or flag that the plain values cannot say: none of ours.
    pub set: Option<Arc<Set>>,
    /// Its elements, in the kernel's order; none are read of a set that cannot be said.
    pub elements: Vec<Element>,
}

/// What the kernel does with a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Absent,
    Active,
    /// Somebody has set `flags dormant`: it is there, and nothing enters its chains.
    Dormant,
}

impl Standing {
    fn of(self, chain: ChainDump) -> ChainDump {
        let hook = chain.hook.filter(|_| self == Self::Active);
        ChainDump { hook, ..chain }
    }
}

/// How often a read that raced with changes is repeated.
const ATTEMPTS: usize = 50;

impl Socket {
    /// The table with all that is in it, if it exists.
    pub fn table(&mut self, table: &Table) -> Result<Option<TableDump>, Error> {
        self.in_one_generation(|socket, generation| socket.read_table(table, generation))
    }

    /// The table with all that is in it but the elements of its sets, if it exists.
    pub fn outline(&mut self, table: &Table) -> Result<Option<TableDump>, Error> {
        self.in_one_generation(|socket, generation| socket.read_outline(table, generation))
    }

    fn in_one_generation<T>(
        &mut self,
        read: impl Fn(&mut Self, u32) -> Result<Read<T>, Error>,
    ) -> Result<Option<T>, Error> {
        for _ in 0..ATTEMPTS {
            let generation = self.generation()?;
            match read(self, generation)? {
                Read::Absent => return Ok(None),
                Read::Found(dump) if self.generation()? == generation => return Ok(Some(dump)),
                Read::Found(_) | Read::Interrupted => {}
            }
        }
        Err(Error::Changing)
    }

    /// Whether the table exists.
    pub fn has_table(&mut self, table: &Table) -> Result<bool, Error> {
        Ok(self.standing(table)? != Standing::Absent)
    }

    fn standing(&mut self, table: &Table) -> Result<Standing, Error> {
        let mut flags = 0;
        let fill = |w: &mut Writer| w.string(table::NAME, &table.name);
        let read = self.request(table.family, msg::GET_TABLE, wire::ACK, fill, |message| {
            flags = message.attributes().u32(table::FLAGS).unwrap_or_default();
        })?;
        Ok(match read {
            Dumped::Complete if flags & table::FLAG_DORMANT != 0 => Standing::Dormant,
            Dumped::Complete => Standing::Active,
            _ => Standing::Absent,
        })
    }

    /// The elements of a set, if it exists.
    pub fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error> {
        for _ in 0..ATTEMPTS {
            match self.read_elements(table, set)? {
                Read::Absent => return Ok(None),
                Read::Found(elements) => return Ok(Some(elements)),
                Read::Interrupted => {}
            }
        }
        Err(Error::Changing)
    }

    /// One element of a set, if it is there: the one with that key, or in a set of ranges the one around it. Costs the same
    /// however many elements there are.
    pub fn element(&mut self, table: &Table, set: &Set, key: &Tuple) -> Result<Option<Element>, Error> {
        let mut elements = Elements::new(set);
        let fill = |w: &mut Writer| {
            w.string(element::LIST_TABLE, &table.name);
            w.string(element::LIST_SET, &set.name);
            w.nest(element::LIST_ELEMENTS, |w| {
                w.nest(element::LIST_ITEM, |w| write_key(w, element::KEY, key, set));
            });
        };
        let read = self.request(table.family, msg::GET_ELEMENTS, wire::ACK, fill, |message| {
            elements.message(message.attributes());
        })?;
        Ok(if read == Dumped::Complete { elements.first() } else { None })
    }

    /// The chains of a table with their rules, without its sets; none if there is no such table.
    pub fn chains(&mut self, table: &Table) -> Result<Option<Vec<ChainDump>>, Error> {
        for _ in 0..ATTEMPTS {
            let standing = self.standing(table)?;
            if standing == Standing::Absent {
                return Ok(None);
            }
            let mut chains = Vec::new();
            let fill = |w: &mut Writer| w.string(chain::TABLE, &table.name);
            let read = self.request(table.family, msg::GET_CHAIN, wire::DUMP, fill, |message| {
                chains.extend(parse_chain(message.attributes(), &table.name).map(|chain| standing.of(chain)));
            })?;
            if read == Dumped::Complete && self.read_rules(table, &mut chains)? {
                return Ok(Some(chains));
            }
        }
        Err(Error::Changing)
    }

    /// The number of the ruleset's generation; each commit of anyone makes a new one.
    pub fn generation(&mut self) -> Result<u32, Error> {
        let mut found = None;
        self.request(
            Family::V4,
            msg::GET_GENERATION,
            wire::ACK,
            |_| (),
            |message| {
                found = message.attributes().u32(generation::ID);
            },
        )?;
        found.ok_or(Error::Unanswered)
    }

    fn read_table(&mut self, table: &Table, generation: u32) -> Result<Read<TableDump>, Error> {
        let mut dump = match self.read_outline(table, generation)? {
            Read::Found(outline) => outline,
            other => return Ok(other),
        };
        for found in &mut dump.sets {
            let Some(set) = &found.set else { continue };
            let Read::Found(elements) = self.read_elements(table, set)? else { return Ok(Read::Interrupted) };
            found.elements = elements;
        }
        Ok(Read::Found(dump))
    }

    fn read_outline(&mut self, table: &Table, generation: u32) -> Result<Read<TableDump>, Error> {
        let standing = self.standing(table)?;
        if standing == Standing::Absent {
            return Ok(Read::Absent);
        }
        let mut chains = Vec::new();
        let chain_table = |w: &mut Writer| w.string(chain::TABLE, &table.name);
        let read = self.request(table.family, msg::GET_CHAIN, wire::DUMP, chain_table, |message| {
            chains.extend(parse_chain(message.attributes(), &table.name).map(|chain| standing.of(chain)));
        })?;
        if read != Dumped::Complete {
            return Ok(Read::Interrupted);
        }
        let mut sets = Vec::new();
        let set_table = |w: &mut Writer| w.string(set::TABLE, &table.name);
        let read = self.request(table.family, msg::GET_SET, wire::DUMP, set_table, |message| {
            let found = parse_set(message.attributes(), &table.name);
            sets.extend(found.map(|(name, set)| SetDump { name, set: set.map(Arc::new), elements: Vec::new() }));
        })?;
        if read != Dumped::Complete || !self.read_rules(table, &mut chains)? {
            return Ok(Read::Interrupted);
        }
        Ok(Read::Found(TableDump { chains, sets, generation }))
    }

    fn read_rules(&mut self, table: &Table, chains: &mut [ChainDump]) -> Result<bool, Error> {
        let place: HashMap<Name, usize> =
            chains.iter().enumerate().map(|(index, chain)| (chain.name.clone(), index)).collect();
        let fill = |w: &mut Writer| w.string(rule::TABLE, &table.name);
        let read = self.request(table.family, msg::GET_RULE, wire::DUMP, fill, |message| {
            if let Some((chain, rule)) = parse_rule(message.attributes(), &table.name) {
                let chain = place.get(chain).and_then(|index| chains.get_mut(*index));
                chain.into_iter().for_each(|chain| chain.rules.push(rule.clone()));
            }
        })?;
        Ok(read == Dumped::Complete)
    }

    fn read_elements(&mut self, table: &Table, set: &Set) -> Result<Read<Vec<Element>>, Error> {
        let mut elements = Elements::new(set);
        let fill = |w: &mut Writer| {
            w.string(element::LIST_TABLE, &table.name);
            w.string(element::LIST_SET, &set.name);
        };
        let read = self.request(table.family, msg::GET_ELEMENTS, wire::DUMP, fill, |message| {
            elements.message(message.attributes());
        })?;
        Ok(match read {
            Dumped::Complete => Read::Found(elements.finish()),
            Dumped::Absent => Read::Absent,
            Dumped::Interrupted => Read::Interrupted,
        })
    }

    fn request(
        &mut self,
        family: Family,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut Writer),
        each: impl FnMut(&Message<'_>),
    ) -> Result<Dumped, Error> {
        self.request_of(number(family), kind, flags, fill, each)
    }

    /// The same for any family of netfilter's, by its number.
    pub(super) fn request_of(
        &mut self,
        family: u8,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut Writer),
        each: impl FnMut(&Message<'_>),
    ) -> Result<Dumped, Error> {
        let sequence = self.next_sequence();
        let head =
            Head { kind: kernel::SUBSYSTEM << 8 | kind, flags: wire::REQUEST | flags, sequence, family, resource: 0 };
        let mut writer = Writer::default();
        writer.message(head, fill);
        self.dump(&writer.bytes, sequence, each)
    }
}

enum Read<T> {
    Found(T),
    Absent,
    Interrupted,
}
