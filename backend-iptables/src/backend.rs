//! [`IptablesBackend`]: applies the diff of each state with `iptables-restore`. It reads tables whose content is unknown, and skips
//! Services that the kernel refuses.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use anyhow::Context as _;
use localnet_client::{
    Backend, Counts, Mode, Synced,
    vips::{self, Effective},
};
use localnet_linux::{
    conntrack::{Commit, Frontend},
    shortage::message_is_shortage,
};
use localnet_linux_backend::{blocking, elements::frontend, live::LinuxBackend, traffic::TrafficCounter};
use localnet_proto::{
    ByFamily, Changes, Family, ServiceKey, Snapshot,
    wire::{PacketCounts, RuleCount},
};
use tracing::{debug, info, warn};

use crate::{
    cleanup,
    desired::Desired,
    kernel::Kernel,
    plan::{Table, names},
    ruleset::{Lines, Ruleset, Subject},
    save::Reader,
    tool::Error,
};

/// Programs iptables through a `Kernel`.
#[derive(Debug)]
pub struct IptablesBackend<K> {
    kernel: K,
    desired: Desired,
    /// Counts the traffic of Services, if the operator wants that.
    traffic: Option<TrafficCounter>,
    /// Whether nothing has been applied yet.
    first: bool,
    /// The VIPs that the tables contained when they were last read.
    found: ByFamily<Vec<Frontend>>,
    /// The number of rules that the last sync wrote, by family and table (filter, nat).
    written: ByFamily<[u64; 2]>,
    /// The families whose tables the last sync read.
    read: BTreeSet<Family>,
}

/// How many refused Services one sync may skip. If the kernel refuses more, the cause is probably not in the Services, and the
/// sync fails.
const MAX_REFUSED: usize = 16;
/// How many chains one sync may keep because rules of other programs refer to them.
const MAX_KEPT: usize = 64;

impl<K: Kernel> IptablesBackend<K> {
    /// A backend that has neither read nor written anything yet.
    pub fn new(mut desired: Desired, kernel: K) -> Self {
        desired.limit_sections(kernel.section_lines());
        Self {
            kernel,
            desired,
            traffic: None,
            first: true,
            found: Default::default(),
            written: Default::default(),
            read: BTreeSet::new(),
        }
    }

    /// The backend with a counter of the Services' traffic.
    #[must_use]
    pub fn counting(mut self, traffic: Option<TrafficCounter>) -> Self {
        if traffic.is_some() {
            self.desired.moved().count();
        }
        Self { traffic, ..self }
    }

    /// The kernel that the backend programs.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// The kernel that the backend programs.
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// The desired state of a family's tables, as of the last sync.
    pub fn plan(&self, family: Family) -> &Ruleset {
        self.desired.ruleset(family)
    }

    /// Reads the tables and returns whether they differ from the desired state.
    ///
    /// # Errors
    /// Returns an error if the tables cannot be read.
    pub fn needs_repair(&mut self) -> Result<bool, Error> {
        self.forget();
        let mut wrong = false;
        for family in self.families() {
            self.read_unknown(family)?;
            wrong |= !self.desired.input(family, None).is_empty();
        }
        Ok(wrong)
    }

    /// Whether the kernel's own chains of a table still jump to our chains. This check is much cheaper than
    /// [`Self::needs_repair`]. It detects that another program has flushed the table, but not that the chain of one Service has
    /// changed.
    pub fn is_entered(&mut self, table: Table) -> bool {
        let text = cleanup::check(table);
        self.families().into_iter().all(|family| self.kernel.test(family, &text).is_ok())
    }

    fn families(&self) -> Vec<Family> {
        Family::BOTH.into_iter().filter(|family| self.kernel.has_family(*family)).collect()
    }

    /// Applies `state`. `changes` contains everything that differs from the previous state. If one family
    /// fails, the other one is still programmed.
    ///
    /// # Errors
    /// Returns an error if every family fails: the tools cannot be run, or the kernel refuses something that belongs to
    /// no single Service.
    pub fn apply(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        if std::mem::take(&mut self.first) {
            if !self.kernel.has_family(Family::V6) {
                info!("this host has no IPv6; programming only IPv4");
            }
            match self.kernel.ensure_counters() {
                Ok(()) => self.desired.count_packets(),
                Err(error) => {
                    info!(%error, "rules cannot count packets, so two metrics are absent: load the modules nfnetlink_acct and xt_nfacct");
                }
            }
        }
        for notice in self.desired.update(state, changes) {
            warn!("{notice}");
        }
        let mut refused = 0;
        self.written = Default::default();
        self.read.clear();
        let failed = loop {
            let before = refused;
            let mut failed = Vec::new();
            for family in self.families() {
                let result = self.write(family, &mut refused).context("cannot program iptables");
                failed.extend(result.err().map(|error| (family, error)));
            }
            // After a refusal, write both families again: the refused Service is skipped in both. If the applied state of a
            // family is unknown, read and write it again, unless a family failed: an immediate retry would fail again.
            let forgotten = |family: Family| !self.desired.ruleset(family).is_known();
            if refused == before && (!failed.is_empty() || !self.families().into_iter().any(forgotten)) {
                break failed;
            }
        };
        if failed.len() == self.families().len() {
            let first = failed.into_iter().next().map(|(_, error)| error);
            return Err(first.unwrap_or_else(|| anyhow::anyhow!("this host has neither IPv4 nor IPv6")));
        }
        let full = self.read.iter().copied().collect();
        Ok(Synced { failed, skipped: self.desired.vips.skipped(), refused: self.desired.vips.refused(), full })
    }

    fn write(&mut self, family: Family, refused: &mut usize) -> anyhow::Result<()> {
        // Whether this call has read the tables. Until then, a refusal may be due to changes by another program.
        let mut fresh = false;
        let mut kept = 0;
        let mut suspects = BTreeSet::new();
        loop {
            fresh |= self.read_unknown(family)?;
            let Err(error) = self.restore(family) else {
                self.desired.commit(family);
                return Ok(());
            };
            let refusal = match &error {
                // A shortage of memory can hit any line, so that line is not the cause.
                Error::Refused { line, message } if fresh && !message_is_shortage(message) => {
                    Some((self.refusal(family, *line), message))
                }
                _ => None,
            };
            // The kernel may have applied earlier sections.
            self.desired.forget(family);
            let Some((Refusal { subject, rule, subjects }, message)) = refusal else {
                if fresh || !matches!(error, Error::Refused { .. }) {
                    return Err(error.into());
                }
                info!("the tables differ from the applied state; reading them ({error})");
                self.forget();
                continue;
            };
            // Another program may have changed the tables after they were read. So the kernel must refuse the line twice.
            let confirmed = matches!(subject, Subject::Removal(_)) || suspects.contains(&subject);
            if !confirmed && suspects.len() < MAX_REFUSED {
                suspects.insert(subject);
                continue;
            }
            let owner = match subject {
                Subject::Removal(chain) if kept < MAX_KEPT => {
                    kept += 1;
                    warn!(chain = &*chain.name, table = %chain.table, "another program's rule jumps to a chain that should be deleted; emptying the chain and keeping it");
                    self.desired.keep(family, chain);
                    continue;
                }
                Subject::Commit => self.search(family, &subjects)?,
                subject => {
                    let owner = self.desired.owners(family).remove(&subject);
                    owner.map(|service| (service, format!("rule {rule:?}: {message}")))
                }
            };
            let Some((service, why)) = owner.filter(|_| *refused < MAX_REFUSED) else {
                return Err(anyhow::Error::from(error.clone()).context(format!("rule {rule:?}")));
            };
            *refused += 1;
            let text = format!("the kernel refuses it; retrying later: {why}");
            if self.desired.refuse(&service, text.clone()) {
                warn!("{}", vips::refused(&service, text));
            } else {
                debug!(%service, text, "still refused");
            }
        }
    }

    /// Writes the diff, unless it is empty.
    fn restore(&mut self, family: Family) -> Result<(), Error> {
        let input = self.desired.input(family, None);
        if input.is_empty() {
            return Ok(());
        }
        let counted = Counted { input: &input, rules: Cell::default() };
        self.kernel.restore(family, &counted)?;
        let rules = counted.rules.get();
        debug!(%family, filter = rules[0], nat = rules[1], "rules written");
        self.written[family] = rules;
        Ok(())
    }

    /// The refused line of the input, and the Service or chain that it belongs to.
    fn refusal(&self, family: Family, line: usize) -> Refusal {
        let input = self.desired.input(family, None);
        let (subject, rule) = input.line(line).unwrap_or((Subject::Commit, String::new()));
        let subjects = if subject == Subject::Commit { input.subjects() } else { BTreeSet::new() };
        Refusal { subject, rule, subjects }
    }

    /// Finds the first Service that makes the kernel refuse a table. If the kernel refuses the table at the commit, its
    /// message does not identify the rule.
    fn search(&mut self, family: Family, subjects: &BTreeSet<Subject>) -> anyhow::Result<Option<(ServiceKey, String)>> {
        let owners = self.desired.owners(family);
        let concerned: BTreeSet<&ServiceKey> = subjects.iter().filter_map(|subject| owners.get(subject)).collect();
        let all: Vec<&ServiceKey> = concerned.into_iter().collect();
        if let Some(message) = self.attempt(family, &owners, &[])? {
            debug!(message, "the kernel refuses the table even without Services");
            return Ok(None);
        }
        let (mut good, mut bad) = (0, all.len());
        let mut why = None;
        // The kernel accepts all Services before index `good`. It refuses at least one of the Services before index `bad`.
        while bad > good {
            let middle = good + (bad - good).div_ceil(2);
            match self.attempt(family, &owners, &all[good..middle])? {
                None => good = middle,
                Some(message) if middle - good == 1 => {
                    why = Some((all[good].clone(), message));
                    break;
                }
                Some(_) => bad = middle,
            }
        }
        Ok(why)
    }

    /// Writes the diff of these Services only. If the kernel refuses the diff, returns the kernel's message.
    fn attempt(
        &mut self,
        family: Family,
        owners: &BTreeMap<Subject, ServiceKey>,
        services: &[&ServiceKey],
    ) -> anyhow::Result<Option<String>> {
        self.read_unknown(family)?;
        let wanted = |subject: &Subject| owners.get(subject).is_none_or(|owner| services.contains(&owner));
        let result = {
            let input = self.desired.input(family, Some(&wanted));
            if input.is_empty() {
                return Ok(None);
            }
            self.kernel.restore(family, &input)
        };
        self.desired.forget(family);
        match result {
            Ok(()) => Ok(None),
            Err(Error::Refused { message, .. }) if !message_is_shortage(&message) => Ok(Some(message)),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the tables if their content is unknown. Returns whether it read them.
    fn read_unknown(&mut self, family: Family) -> Result<bool, Error> {
        if self.desired.ruleset(family).is_known() {
            return Ok(false);
        }
        self.read.insert(family);
        if self.desired.counts_packets() {
            // A program that deleted the rules may also have deleted the counters; the kernel keeps the counters of existing rules.
            // Without the counters, the sync fails.
            _ = self.kernel.ensure_counters();
        }
        let mut reader = Reader::default();
        self.kernel.save(family, &mut |line| reader.line(line))?;
        let found = reader.found();
        self.found[family] = found.vips.iter().map(frontend).collect();
        self.desired.adopt(family, found);
        Ok(true)
    }

    /// The packets that rules have counted; `None` if they count none.
    fn packets(&self) -> Option<PacketCounts> {
        let packets = |counter| self.desired.counts_packets().then(|| self.kernel.packets(counter).ok())?;
        let invalid_dropped = packets(names::INVALID_DROPPED)?;
        Some(PacketCounts { invalid_dropped, localhost_node_ports_accepted: packets(names::LOCALHOST_ACCEPTED)? })
    }

    /// Removes everything that this backend, or a kube-proxy in iptables mode, has written.
    ///
    /// # Errors
    /// Returns an error if a tool cannot be run, or if rules of other programs refer to a chain that is to be removed.
    pub fn remove_all(&mut self) -> anyhow::Result<()> {
        self.forget();
        for family in self.families() {
            let mut saved = String::new();
            let mut line = |line: &str| saved.extend([line, "\n"]);
            self.kernel.save(family, &mut line)?;
            self.kernel.save_mangle(family, &mut line)?;
            let text = cleanup::removal(&saved);
            if !text.is_empty() {
                self.kernel
                    .restore(family, &text.as_str())
                    .with_context(|| format!("failed to remove the chains of {family}"))?;
            }
        }
        Ok(())
    }
}

impl<K: Kernel> LinuxBackend for IptablesBackend<K> {
    fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.desired.vips.set_local_addresses(addresses)
    }

    fn forget(&mut self) {
        Family::BOTH.into_iter().for_each(|family| self.desired.forget(family));
    }

    fn take_commit(&mut self, failed: &[Family]) -> Commit {
        let remembered = std::mem::take(&mut self.found).values().concat();
        Commit { remembered, ..self.desired.moved().take(failed, self.traffic.as_ref()) }
    }

    fn count(&self, counts: &mut Counts) {
        let of_family = |family| {
            let count = |(table, last): (Table, u64)| {
                let total = self.desired.ruleset(family).rules(table);
                RuleCount { table: table.as_str().to_owned(), total: total.try_into().unwrap_or(u64::MAX), last }
            };
            match self.kernel.has_family(family) {
                true => Table::ALL.into_iter().zip(self.written[family]).map(count).collect(),
                false => Vec::new(),
            }
        };
        counts.rules = ByFamily::from_fn(of_family);
        counts.packets = self.packets();
        counts.traffic = self.traffic.as_ref().and_then(TrafficCounter::counted);
    }
}

impl<K: Kernel> Backend for IptablesBackend<K> {
    fn name(&self) -> &'static str {
        "iptables"
    }

    fn mode(&self) -> Option<Mode> {
        Some(Mode::Iptables)
    }

    fn configuration(&self) -> Option<Effective> {
        self.desired.vips.effective()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        blocking(|| self.apply(state, changes))
    }

    fn retry_refused(&mut self) {
        self.desired.vips.retry_refused();
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        blocking(|| self.remove_all())
    }
}

struct Refusal {
    subject: Subject,
    rule: String,
    /// The origins of all lines of the input, if the kernel refused a whole table; otherwise empty.
    subjects: BTreeSet<Subject>,
}

/// Wraps the lines of an input, and counts the rules that are written to each table.
struct Counted<'a> {
    input: &'a dyn Lines,
    rules: Cell<[u64; 2]>,
}

impl Lines for Counted<'_> {
    fn each(&self, line: &mut dyn FnMut(&str)) {
        let (mut rules, mut place) = ([0; 2], 0);
        self.input.each(&mut |text| {
            if let Some(table) = text.strip_prefix('*') {
                place = usize::from(table == Table::Nat.as_str());
            } else if text.starts_with("-A ") || text.starts_with("-I ") {
                rules[place] += 1;
            }
            line(text);
        });
        self.rules.set(rules);
    }
}

#[cfg(test)]
mod tests;
