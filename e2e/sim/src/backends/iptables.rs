//! The iptables backend, on the fake tools of its unit tests.

use std::{collections::BTreeSet, io, time::Duration};

use localnet_client::{Changes, Counts, served::Served, vips::Config};
use localnet_iptables::{
    IptablesBackend,
    desired::Desired,
    kernel::Kernel as Tools,
    plan::{Dispatch, Table, names::GROUP},
    ruleset::Lines,
    served::Rules,
    testing::Fake,
    tool::Error,
};
use localnet_linux_backend::live::{Live, Verdict, Watch};
use localnet_proto::{Family, Snapshot};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::{
    sync::{mpsc, watch},
    time::{self, Instant},
};

use super::Program;
use crate::{
    flows::Node,
    kernel::{Failure, Kernel},
    subsystem::{Edit, Subsystem},
};

/// The tables of iptables.
#[derive(Clone, Debug)]
pub struct Iptables {
    fake: Fake,
    /// Whether the kernel reports changes, as nf_tables does. Otherwise, as with ip_tables, the backend has to look.
    reports: bool,
    /// Above how many VIPs the backend groups them.
    many_vips: usize,
}

/// Notices changes by other programs, as the watches of both flavours do.
#[derive(Debug)]
pub struct Tables {
    notices: Option<mpsc::UnboundedReceiver<()>>,
    check_at: Instant,
    read_at: Instant,
    next: Table,
}

/// The delays of the backend's checks of ip_tables.
const CHECK: Duration = Duration::from_millis(700);
const READ: Duration = Duration::from_secs(30);
/// The delay after a read that failed.
const AGAIN: Duration = Duration::from_secs(1);

impl Watch<IptablesBackend<Kernel<Iptables>>> for Tables {
    const OBJECTS: &'static str = "the chains of Services";

    async fn changed(&mut self, backend: &mut IptablesBackend<Kernel<Iptables>>) {
        if let Some(notices) = &mut self.notices {
            if notices.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
            return;
        }
        loop {
            time::sleep_until(self.check_at.min(self.read_at)).await;
            if self.read_at <= Instant::now() {
                return;
            }
            let table = self.next;
            self.next = if table == Table::Nat { Table::Filter } else { Table::Nat };
            self.check_at = Instant::now() + CHECK;
            if !backend.is_entered(table) {
                return;
            }
        }
    }

    fn verify(&mut self, backend: &mut IptablesBackend<Kernel<Iptables>>) -> Verdict {
        self.read_at = Instant::now() + READ;
        match backend.needs_repair() {
            Ok(true) => Verdict::Repair,
            Ok(false) => Verdict::Fine,
            Err(_) => Verdict::Later(AGAIN),
        }
    }
}

impl Program for Iptables {
    type Backend = Live<IptablesBackend<Kernel<Self>>, Tables, Node>;

    async fn open(kernel: Kernel<Self>, node: Node) -> anyhow::Result<Self::Backend> {
        let now = Instant::now();
        let (reports, many_vips) = kernel.ask(|iptables| (iptables.reports, iptables.many_vips));
        let notices = reports.then(|| kernel.subscribe());
        let mut backend = IptablesBackend::new(desired(many_vips), kernel);
        backend.kernel_mut().save(Family::V4, &mut |_| {})?;
        let tables = Tables { notices, check_at: now + CHECK, read_at: now + READ, next: Table::Filter };
        Ok(Live::on(node, backend, tables, watch::Sender::<Counts>::default()).await)
    }
}

impl Subsystem for Iptables {
    const NAME: &'static str = "iptables";
    const IS_ATOMIC: bool = false;
    const SHARES_ENDPOINTS: bool = true;
    const REFUSES_WHOLE: bool = true;
    type Notice = ();

    fn new(rng: &mut StdRng) -> Self {
        let section_lines = if rng.random() { rng.random_range(4..60) } else { usize::MAX };
        let many_vips = if rng.random() { rng.random_range(1..20) } else { 1000 };
        Self { fake: Fake { section_lines, ..Fake::default() }, reports: rng.random(), many_vips }
    }

    fn after(self, state: &Snapshot) -> Self {
        let mut backend = IptablesBackend::new(desired(self.many_vips), self.fake);
        _ = backend.apply(state, &Changes::everything());
        Self { fake: backend.kernel().clone(), ..self }
    }

    fn served(&self) -> Served {
        let mut served = Served::default();
        for family in Family::BOTH {
            let mut rules = Rules::new(family);
            self.fake.lines(family).iter().for_each(|line| rules.line(line));
            served.0.append(&mut rules.served().0);
        }
        served
    }

    /// Our chains, and the rules that lead to them. The order of rules counts only in our chains that do not list VIPs.
    fn objects(&self, _: &Snapshot) -> Vec<String> {
        let is_list =
            |chain: &str| chain.starts_with(GROUP) || Dispatch::ALL.iter().any(|dispatch| dispatch.name == chain);
        let mut lines = Vec::new();
        for (family, tables) in self.fake.tables.iter() {
            for (table, (chain, rules)) in
                tables.iter().flat_map(|(table, chains)| chains.iter().map(move |one| (table, one)))
            {
                let is_ours = chain.starts_with("KUBE-");
                if is_ours {
                    lines.push(format!("{family} {table} {chain}"));
                }
                let rules = rules.iter().enumerate().filter(|(_, rule)| is_ours || rule.contains("-j KUBE-"));
                lines.extend(rules.map(|(index, rule)| match is_list(chain) || !is_ours {
                    true => format!("{family} {table} {chain}: {rule}"),
                    false => format!("{family} {table} {chain} {index}: {rule}"),
                }));
            }
        }
        lines.sort_unstable();
        lines
    }

    fn hate(&mut self, rng: &mut StdRng) {
        let network = ["10.1.0.", "10.96.0.", "fd00:1::", "fd00:96::"].choose(rng).unwrap_or(&"10.1.0.");
        let text = format!("{network}{}", rng.random_range(1..20));
        (self.fake.refuses, self.fake.short) = (Some((text, rng.random())), rng.random());
    }

    fn heal(&mut self) {
        (self.fake.refuses, self.fake.short) = (None, false);
    }

    fn edit(&mut self, rng: &mut StdRng, elsewhere: bool, silent: bool) -> Edit<()> {
        let family = *Family::BOTH.choose(rng).unwrap_or(&Family::V4);
        let name = *["filter", "nat"].choose(rng).unwrap_or(&"nat");
        // nf_tables then reports that notifications were lost; only ip_tables is silent.
        let notice = (self.reports || !silent).then_some(());
        let chains = self.fake.tables[family].entry(name.to_owned()).or_default();
        if elsewhere {
            let output = chains.entry("OUTPUT".to_owned()).or_default();
            output.push("-d 192.0.2.9/32 -j DROP".to_owned());
            return Edit { what: "adds a rule of its own".to_owned(), damages: BTreeSet::new(), notice };
        }
        let mut filled: Vec<_> = chains.iter_mut().filter(|(_, rules)| !rules.is_empty()).collect();
        let index = rng.random_range(0..filled.len().max(1));
        let what = match (rng.random_range(0..3_u8), filled.get_mut(index)) {
            (0, Some((chain, rules))) => {
                rules.clear();
                format!("flushes {chain} of {family} {name}")
            }
            (1, Some((chain, rules))) => {
                let rule = rules.remove(rng.random_range(0..rules.len()));
                format!("deletes from {chain} of {family} {name}: {rule}")
            }
            _ => {
                chains.values_mut().for_each(Vec::clear);
                chains.retain(|chain, _| !chain.starts_with("KUBE-"));
                format!("flushes {family} {name}")
            }
        };
        Edit { what, damages: [family].into(), notice }
    }
}

fn desired(many_vips: usize) -> Desired {
    let mut desired = Desired::new(Config::default());
    desired.set_many_vips(many_vips);
    desired
}

fn error(failure: Failure) -> Error {
    let message = match failure {
        Failure::Denied => "Permission denied (you must be root)",
        Failure::Short => return Error::Refused { line: 1, message: "Cannot allocate memory".to_owned() },
        Failure::Unanswered => "was killed",
        Failure::Unreadable => "cannot read the tables",
    };
    Error::Failed { program: "iptables".to_owned(), message: message.to_owned() }
}

/// The kernel commits each section of the input for itself.
impl Tools for Kernel<Iptables> {
    fn save(&mut self, family: Family, line: &mut dyn FnMut(&str)) -> Result<(), Error> {
        self.read(&[family], error, |iptables| iptables.fake.save(family, line))
    }

    fn save_mangle(&mut self, _: Family, _: &mut dyn FnMut(&str)) -> Result<(), Error> {
        Ok(())
    }

    fn section_lines(&self) -> usize {
        self.ask(|iptables| iptables.fake.section_lines)
    }

    fn restore(&mut self, family: Family, input: &dyn Lines) -> Result<(), Error> {
        let (mut sections, mut section, mut count) = (Vec::new(), String::new(), 0);
        input.each(&mut |line| {
            section.extend([line, "\n"]);
            count += 1;
            if line == "COMMIT" {
                sections.push((std::mem::take(&mut section), count));
            }
        });
        let mut before = 0;
        for (section, end) in sections {
            let table = section.lines().next().unwrap_or_default().to_owned();
            let what = format!("{family} {table} in {} lines", end - before);
            let result = self.commit(what, error, |iptables| {
                let result = iptables.fake.restore(family, &section.as_str());
                iptables.fake.inputs.clear();
                iptables.fake.committed.clear();
                result
            });
            result.map_err(|error| match error {
                Error::Refused { line, message } => Error::Refused { line: line + before, message },
                error => error,
            })?;
            before = end;
        }
        Ok(())
    }

    fn test(&mut self, family: Family, text: &str) -> Result<(), Error> {
        self.read(&[], error, |iptables| iptables.fake.test(family, text))
    }

    fn ensure_counters(&mut self) -> io::Result<()> {
        self.ask(|iptables| iptables.fake.ensure_counters())
    }

    fn packets(&self, counter: &str) -> io::Result<u64> {
        self.ask(|iptables| iptables.fake.packets(counter))
    }

    fn has_family(&self, _: Family) -> bool {
        true
    }
}
