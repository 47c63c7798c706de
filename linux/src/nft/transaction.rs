//! A list of changes that the kernel applies atomically.

use std::sync::Arc;

use super::{Chain, Element, Name, Rule, Set, Table, TableContent};

/// A change to the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates a table; nothing happens if it exists.
    AddTable(Table),
    /// Deletes a table with its content; an error if there is none.
    DeleteTable(Table),
    /// Creates a chain without its rules; nothing happens if it exists with the same hook.
    AddChain(Table, Arc<Chain>),
    /// Deletes the rules of a chain.
    FlushChain(Table, Name),
    /// Deletes a chain that no rule or element refers to.
    DeleteChain(Table, Name),
    /// Appends a rule to a chain.
    AddRule(Table, Name, Rule),
    /// Creates a set or map; nothing happens if it exists with the same declaration.
    AddSet(Table, Arc<Set>),
    /// Deletes the elements of a set.
    FlushSet(Table, Arc<Set>),
    /// Deletes a set that no rule refers to.
    DeleteSet(Table, Name),
    /// Adds elements; an element that already exists with other data is an error.
    AddElements(Table, Arc<Set>, Vec<Element>),
    /// Deletes elements; an element that does not exist is an error.
    DeleteElements(Table, Arc<Set>, Vec<Element>),
}

/// Changes, in the order in which the kernel applies them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    changes: Vec<Change>,
}

impl From<Vec<Change>> for Transaction {
    fn from(changes: Vec<Change>) -> Self {
        Self { changes }
    }
}

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Self {
        Self::default()
    }

    /// The changes, in order. The errors of the kernel refer to a change by its index here.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The changes in order.
    pub fn into_changes(self) -> Vec<Change> {
        self.changes
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Appends a change.
    pub fn push(&mut self, change: Change) -> &mut Self {
        self.changes.push(change);
        self
    }

    /// Creates a table unless it exists.
    pub fn add_table(&mut self, table: &Table) -> &mut Self {
        self.push(Change::AddTable(table.clone()))
    }

    /// Deletes a table with its content. Add it first if it may be missing.
    pub fn delete_table(&mut self, table: &Table) -> &mut Self {
        self.push(Change::DeleteTable(table.clone()))
    }

    /// Creates a chain unless it exists, and appends its rules. Chains that the rules refer to must exist: see
    /// [`Self::declare_chain`].
    pub fn add_chain(&mut self, table: &Table, chain: &Arc<Chain>) -> &mut Self {
        self.declare_chain(table, chain).add_rules(table, chain)
    }

    /// Creates a chain without its rules unless it exists.
    pub fn declare_chain(&mut self, table: &Table, chain: &Arc<Chain>) -> &mut Self {
        self.push(Change::AddChain(table.clone(), chain.clone()))
    }

    /// Appends the rules of `chain` to the existing chain of that name.
    pub fn add_rules(&mut self, table: &Table, chain: &Chain) -> &mut Self {
        for rule in &chain.rules {
            self.add_rule(table, &chain.name, rule);
        }
        self
    }

    /// Appends a rule to a chain.
    pub fn add_rule(&mut self, table: &Table, chain: &Name, rule: &Rule) -> &mut Self {
        self.push(Change::AddRule(table.clone(), chain.clone(), rule.clone()))
    }

    /// Deletes the rules of a chain.
    pub fn flush_chain(&mut self, table: &Table, chain: &Name) -> &mut Self {
        self.push(Change::FlushChain(table.clone(), chain.clone()))
    }

    /// Deletes a chain that no rule or element refers to.
    pub fn delete_chain(&mut self, table: &Table, chain: &Name) -> &mut Self {
        self.push(Change::DeleteChain(table.clone(), chain.clone()))
    }

    /// Creates a set or map unless it exists.
    pub fn add_set(&mut self, table: &Table, set: &Arc<Set>) -> &mut Self {
        self.push(Change::AddSet(table.clone(), set.clone()))
    }

    /// Deletes the elements of a set.
    pub fn flush_set(&mut self, table: &Table, set: &Arc<Set>) -> &mut Self {
        self.push(Change::FlushSet(table.clone(), set.clone()))
    }

    /// Deletes a set that no rule refers to.
    pub fn delete_set(&mut self, table: &Table, set: &Name) -> &mut Self {
        self.push(Change::DeleteSet(table.clone(), set.clone()))
    }

    /// Adds elements to a set. Without elements it adds no change.
    pub fn add_elements(&mut self, table: &Table, set: &Arc<Set>, elements: Vec<Element>) -> &mut Self {
        if elements.is_empty() {
            return self;
        }
        self.push(Change::AddElements(table.clone(), set.clone(), elements))
    }

    /// Deletes elements from a set, by their keys. Without elements it adds no change.
    pub fn delete_elements(&mut self, table: &Table, set: &Arc<Set>, elements: Vec<Element>) -> &mut Self {
        if elements.is_empty() {
            return self;
        }
        self.push(Change::DeleteElements(table.clone(), set.clone(), elements))
    }

    /// Creates a whole table: its chains, then its sets with their elements, then the rules.
    pub fn add_content(&mut self, content: TableContent) -> &mut Self {
        self.add_table(&content.table);
        for chain in &content.chains {
            self.declare_chain(&content.table, &Arc::new(Chain { rules: Vec::new(), ..chain.clone() }));
        }
        for (set, elements) in content.sets {
            self.add_set(&content.table, &set);
            self.add_elements(&content.table, &set, elements);
        }
        for chain in &content.chains {
            self.add_rules(&content.table, chain);
        }
        self
    }
}
