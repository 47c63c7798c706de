//! Reads the kernel: the nft backend's rules, the rules of other programs, routes, flows and settings. The rules of other backends
//! are read by [`crate::inspect`].
//!
//! If the process lacks a privilege or the kernel lacks nf_tables, the answer contains the reason as text. It still contains
//! everything that follows from the state.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    panic::resume_unwind,
    sync::Arc,
    thread,
};

use localnet_client::vips::Config;
use localnet_core::{Code, Diagnostic, Subject};
use localnet_linux::{
    addresses::NodeAddresses,
    conntrack::{self, Counters, Flow},
    dummy::Dummy,
    ipvs::{self, ServerState},
    nft::{self, Chain, ChainDump, Element, ElementData, SetDump, Socket, Table, TableDump, foreign},
    routes::{Route, Routes},
    sysctl::Settings,
};
use localnet_nft::{
    NftBackend,
    plan::{
        self,
        sets::{SetId, Sets as _},
    },
};
use localnet_proto::{ByFamily, Family, sysdump};

use crate::path::{self, Step, Thing};

/// The kernel of this network namespace.
#[derive(Debug)]
pub struct Kernel {
    socket: Socket,
    /// Whether the kernel forwards packets between interfaces; `None` if the setting does not exist.
    pub forwards: ByFamily<Option<bool>>,
    /// The number of tracked flows and the kernel's maximum; `None` if unknown.
    pub tracked: Option<(i64, i64)>,
    /// Whether the rules of the nft backend count refused packets (`--traffic`).
    pub counts_refused: bool,
    chains: HashMap<Family, Option<Vec<ChainDump>>>,
    foreign: Option<foreign::ForeignRules>,
}

/// Whether the kernel forwards packets, and how many flows it tracks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    /// Whether the kernel forwards packets between interfaces; `None` if the setting does not exist.
    pub forwards: ByFamily<Option<bool>>,
    /// The number of tracked flows and the kernel's maximum; `None` if unknown.
    pub tracked: Option<(i64, i64)>,
}

impl Observed {
    /// Reads this machine's kernel.
    pub fn now() -> Self {
        Self { forwards: ByFamily::from_fn(forwards), tracked: tracked() }
    }

    /// Returns what a sysdump contains.
    pub fn of_sysdump(of: &sysdump::Kernel) -> Self {
        Self {
            forwards: ByFamily::new(of.forwards_i_pv4, of.forwards_i_pv6),
            tracked: (of.max_tracked_flows > 0).then_some((of.tracked_flows, of.max_tracked_flows)),
        }
    }
}

/// Returns a diagnostic which states that the kernel was not read, and why.
pub fn unread(why: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::KernelNotRead, Subject::Program, why)
}

/// Returns whether the kernel has all features that localnet-nft needs, or else what it lacks; `None` if it cannot be asked.
pub fn features() -> Option<Result<(), String>> {
    match NftBackend::new(Config::default(), nft::Netlink::open().ok()?).check() {
        Ok(()) => Some(Ok(())),
        Err(nft::Error::Lacking { refused }) => {
            Some(Err(format!("this kernel lacks a feature of nf_tables: {refused}")))
        }
        Err(_) => None,
    }
}

/// Whether the kernel holds an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The kernel holds the object. The value is the handle of the rule, or of the chain's first rule; `None` for an element.
    Yes(Option<u64>),
    /// The kernel does not hold the object.
    No,
    /// The kernel holds another object instead, which the text describes.
    Other(String),
}

impl Kernel {
    /// Opens a connection to nf_tables.
    ///
    /// # Errors
    /// Returns a diagnostic if the kernel has no nf_tables or the process lacks the privilege.
    pub fn open() -> Result<Self, Diagnostic> {
        let opened = Socket::open().and_then(|socket| {
            let mut kernel = Self::new(socket, Observed::now());
            // A missing privilege shows only at the first request.
            kernel.chains(Family::V4)?;
            kernel.find_counting();
            Ok(kernel)
        });
        opened.map_err(|error| match error {
            nft::Error::NotPermitted => Diagnostic::new(Code::KernelDenied, Subject::Program, error.to_string()),
            error => unread(error.to_string()),
        })
    }

    /// Returns the kernel that a sysdump contains.
    ///
    /// # Errors
    /// Returns a diagnostic if this machine has no netlink.
    pub fn of_sysdump(of: &sysdump::Kernel) -> Result<Self, Diagnostic> {
        let mut socket = Socket::open().map_err(|error| unread(error.to_string()))?;
        socket.replay(of.answers.iter().map(answer).collect());
        let mut kernel = Self::new(socket, Observed::of_sysdump(of));
        kernel.find_counting();
        Ok(kernel)
    }

    fn new(socket: Socket, Observed { forwards, tracked }: Observed) -> Self {
        Self { socket, forwards, tracked, counts_refused: false, chains: HashMap::new(), foreign: None }
    }

    /// Whether the backend counts is not part of the state, so the kernel's chains tell.
    fn find_counting(&mut self) {
        let counts = |chain: &ChainDump| *chain.name == *plan::names::DROP_SOURCE;
        self.counts_refused = Family::BOTH
            .into_iter()
            .any(|family| matches!(self.chains(family), Ok(Some(chains)) if chains.iter().any(counts)));
    }

    /// Reads our tables with all elements.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a request, or other programs change the tables all the time.
    pub fn live(&mut self) -> Result<Live, nft::Error> {
        if !self.socket.replays() {
            return Live::read();
        }
        let generation = self.socket.generation()?;
        let mut table = |family| self.socket.table(&plan::table(family));
        let tables = ByFamily::new(table(Family::V4)?, table(Family::V6)?);
        Ok(Live { tables, generation, has: ByFamily::from_fn(|family| self.forwards[family].is_some()) })
    }

    /// Returns the chains of our table; `None` if there is no table. Only the first call for a family reads them from the kernel.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    pub fn chains(&mut self, family: Family) -> Result<Option<&[ChainDump]>, nft::Error> {
        if !self.chains.contains_key(&family) {
            let found = self.socket.chains(&plan::table(family))?;
            self.chains.insert(family, found);
        }
        Ok(self.chains.get(&family).and_then(Option::as_deref))
    }

    /// Returns the ruleset's generation, which every commit of any program increments.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    pub fn generation(&mut self) -> Result<u32, nft::Error> {
        self.socket.generation()
    }

    /// Returns whether the kernel holds the object of a step.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    pub fn holds(&mut self, family: Family, step: &Step) -> Result<Held, nft::Error> {
        match &step.thing {
            Thing::Rule(chain, index) => {
                let Some(found) = self.chain(family, chain)? else { return Ok(Held::No) };
                let wanted = &chain.rules[*index];
                let rule = found.rules.iter().find(|rule| rule.is(family, wanted));
                Ok(rule.map_or(Held::No, |rule| Held::Yes(Some(rule.handle))))
            }
            Thing::Chain(chain) => Ok(match self.chain(family, chain)? {
                None => Held::No,
                Some(found) if found.is(family, chain) => Held::Yes(found.rules.first().map(|rule| rule.handle)),
                Some(found) => Held::Other(format!(
                    "{} rules, of which {} match the plan",
                    found.rules.len(),
                    alike(family, found, chain)
                )),
            }),
            Thing::Element(set, element) => self.element(family, *set, element),
        }
    }

    fn chain(&mut self, family: Family, chain: &Chain) -> Result<Option<&ChainDump>, nft::Error> {
        Ok(self.chains(family)?.and_then(|chains| chains.iter().find(|found| found.name == chain.name)))
    }

    fn element(&mut self, family: Family, set: SetId, wanted: &Element) -> Result<Held, nft::Error> {
        let declared = set.declaration(family, 1);
        let found = self.socket.element(&plan::table(family), &declared, wanted.key.start());
        let found = match found {
            Ok(found) => found,
            // The kernel has a set of another kind under this name.
            Err(nft::Error::Unsupported | nft::Error::TransactionRefused { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(match found {
            None => Held::No,
            Some(found) if found.data == wanted.data || matches!(wanted.data, ElementData::None) => Held::Yes(None),
            Some(found) => Held::Other(path::leads_to(&found)),
        })
    }

    /// Reads the affinity slots with these keys from the kernel, and returns the endpoint in each slot.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    pub fn affinity(
        &mut self,
        family: Family,
        keys: impl Iterator<Item = nft::Tuple>,
    ) -> Result<Vec<String>, nft::Error> {
        let set = SetId::AffinityEndpoints.declaration(family, 1);
        let mut endpoints = Vec::new();
        for key in keys {
            endpoints.extend(self.socket.element(&plan::table(family), &set, &key)?.as_ref().map(path::leads_to));
        }
        Ok(endpoints)
    }

    /// Returns the names of the `wanted` chains that the kernel lacks or holds in another form.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    pub fn damaged(&mut self, family: Family, wanted: &[Arc<Chain>]) -> Result<Vec<String>, nft::Error> {
        let Some(found) = self.chains(family)? else {
            return Ok(wanted.iter().map(|chain| chain.name.to_string()).collect());
        };
        let is_there = |chain: &Chain| found.iter().any(|dump| dump.is(family, chain));
        Ok(wanted.iter().filter(|chain| !is_there(chain)).map(|chain| chain.name.to_string()).collect())
    }

    /// Returns the rules with which other programs stop `packet`.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    pub fn stops(&mut self, packet: &foreign::Packet) -> Result<Vec<foreign::Stop>, nft::Error> {
        if self.foreign.is_none() {
            self.foreign = Some(self.socket.foreign_rules(OURS)?);
        }
        let foreign = self.foreign.as_ref().map_or_else(Default::default, Clone::clone);
        Ok(self.socket.stops(&foreign, packet))
    }

    /// Returns the tables of other programs.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    pub fn other_tables(&mut self) -> Result<Vec<String>, nft::Error> {
        Ok(self.socket.foreign_rules(OURS)?.tables())
    }
}

/// Our tables, with the elements of the sets that the plan fills.
#[derive(Debug)]
pub struct Live {
    /// The table of each family; `None` if it does not exist.
    pub tables: ByFamily<Option<TableDump>>,
    /// The ruleset's generation before the tables were read.
    pub generation: u32,
    /// Whether the node has the family.
    pub has: ByFamily<bool>,
}

/// Reads everything about the kernel that a sysdump contains; `None` if the kernel cannot be read.
pub async fn record() -> Option<sysdump::Kernel> {
    let answers = || -> Result<nft::Answers, nft::Error> {
        let mut socket = Socket::open()?;
        socket.record();
        for family in Family::BOTH {
            socket.table(&plan::table(family))?;
        }
        socket.foreign_rules(OURS)?;
        socket.generation()?;
        Ok(socket.recorded())
    };
    let (tracked_flows, max_tracked_flows) = tracked().unwrap_or_default();
    let answers = answers().ok()?.into_iter().map(|(request, answer)| sysdump::Answer {
        request: request.into(),
        messages: answer.messages.into_iter().map(Into::into).collect(),
        exists: answer.exists,
    });
    Some(sysdump::Kernel {
        answers: answers.collect(),
        addresses: addresses().await.unwrap_or_default().iter().map(ToString::to_string).collect(),
        forwards_i_pv4: forwards(Family::V4),
        forwards_i_pv6: forwards(Family::V6),
        tracked_flows,
        max_tracked_flows,
    })
}

fn answer(of: &sysdump::Answer) -> (Vec<u8>, nft::RecordedAnswer) {
    let messages = of.messages.iter().map(|message| message.to_vec()).collect();
    (of.request.to_vec(), nft::RecordedAnswer { messages, exists: of.exists })
}

impl Live {
    /// Reads the tables. This takes long if they are large.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a request, or other programs change the tables all the time.
    pub fn read() -> Result<Self, nft::Error> {
        let mut socket = Socket::open()?;
        let generation = socket.generation()?;
        let mut table = |family| read_table(&mut socket, &plan::table(family));
        let has = ByFamily::from_fn(|family| forwards(family).is_some());
        Ok(Self { tables: ByFamily::new(table(Family::V4)?, table(Family::V6)?), generation, has })
    }
}

/// The maximum number of attempts to read a table that changes during the read.
const ATTEMPTS: usize = 50;

/// Reads a table; `None` if it does not exist. All sets of the table are read in parallel.
fn read_table(socket: &mut Socket, table: &Table) -> Result<Option<TableDump>, nft::Error> {
    for _ in 0..ATTEMPTS {
        let Some(mut dump) = socket.outline(table)? else { return Ok(None) };
        thread::scope(|scope| {
            let sets = dump.sets.iter_mut();
            let reading: Vec<_> = sets.map(|of| scope.spawn(move || read_elements(table, of))).collect();
            reading.into_iter().try_for_each(|read| read.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })?;
        if socket.generation()? == dump.generation {
            return Ok(Some(dump));
        }
    }
    Err(nft::Error::Changing)
}

/// Reads and sorts the elements of a set if the plan fills the set. Packets fill the other sets, which contain clients.
fn read_elements(table: &Table, of: &mut SetDump) -> Result<(), nft::Error> {
    if let Some(set) = of.set.as_ref().filter(|set| SetId::of_name(&set.name).is_some()) {
        of.elements = Socket::open()?.elements(table, set)?.unwrap_or_default();
        of.elements.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    }
    Ok(())
}

/// Returns how many rules of a chain equal the planned rules at the same index.
fn alike(family: Family, found: &ChainDump, wanted: &Chain) -> usize {
    found.rules.iter().zip(&wanted.rules).filter(|(found, wanted)| found.is(family, wanted)).count()
}

/// The tables of localnet's backends, in which no other program may have rules.
const OURS: &[&str] = &[plan::TABLE, plan::SUBSTITUTE, localnet_ipvs::plan::TABLE];

/// The interface with the addresses of VIPs, in mode ipvs.
const IPVS_INTERFACE: &str = "kube-ipvs0";

/// Returns the addresses of the node's interfaces, without those of kube-ipvs0, where no NodePort answers.
///
/// # Errors
/// Returns an error if rtnetlink does not answer.
pub async fn addresses() -> anyhow::Result<Vec<IpAddr>> {
    Ok(NodeAddresses::except(IPVS_INTERFACE).list().await?)
}

/// Returns the addresses of kube-ipvs0; empty if there is no such interface.
///
/// # Errors
/// Returns an error if rtnetlink does not answer, or if this is no dummy interface.
pub async fn ipvs_addresses() -> anyhow::Result<BTreeSet<IpAddr>> {
    match Dummy::find(IPVS_INTERFACE).await? {
        Some(interface) => Ok(interface.addresses().await?),
        None => Ok(BTreeSet::new()),
    }
}

/// Returns the virtual servers of IPVS with their destinations.
///
/// # Errors
/// Returns an error if the kernel has no IPVS, or if the process lacks the privilege.
pub fn virtual_servers() -> Result<Vec<ServerState>, ipvs::Error> {
    ipvs::Socket::open()?.list()
}

/// Returns the route to each address.
///
/// # Errors
/// Returns an error if rtnetlink does not answer.
pub async fn routes(to: impl IntoIterator<Item = IpAddr>) -> anyhow::Result<Vec<(IpAddr, Route)>> {
    let routes = Routes::open()?;
    let mut ways = Vec::new();
    for address in to {
        ways.push((address, routes.to(address).await?));
    }
    Ok(ways)
}

/// Returns the flows of a family that `wanted` accepts.
///
/// # Errors
/// Returns an error if connection tracking cannot be read.
pub fn flows(family: Family, wanted: impl Fn(&Flow) -> bool) -> Result<Vec<Flow>, conntrack::Error> {
    let mut flows: HashMap<(SocketAddr, SocketAddr, u32), Flow> = HashMap::new();
    let mut see = |flow: &Flow| {
        if wanted(flow) {
            flows.insert((flow.original.source, flow.original.destination, flow.id), *flow);
        }
    };
    conntrack::Kernel::open()?.all(family, &mut see)?;
    let mut flows: Vec<Flow> = flows.into_values().collect();
    flows.sort_by_key(|flow| (flow.original.source, flow.original.destination));
    Ok(flows)
}

/// Returns all flows of both families, with their packets and bytes if the kernel counts them.
///
/// # Errors
/// Returns an error if connection tracking cannot be read.
pub fn counted_flows() -> Result<Vec<(Flow, Option<Counters>)>, conntrack::Error> {
    let mut flows = HashMap::new();
    for family in Family::BOTH {
        let mut see = |flow: &Flow, counters: Option<Counters>| {
            flows.insert((flow.protocol, flow.original, flow.id), (*flow, counters));
        };
        conntrack::Kernel::open()?.counted(family, &mut see)?;
    }
    Ok(flows.into_values().collect())
}

/// Whether the kernel counts the packets and bytes of new flows.
pub fn counts_bytes() -> bool {
    setting("proc/sys/net/netfilter/nf_conntrack_acct").is_some_and(|value| value != 0)
}

/// Returns a kernel setting; `None` if it does not exist.
pub fn setting(name: &str) -> Option<i64> {
    Settings::default().get(name).ok()
}

/// Returns the number of tracked flows and the kernel's maximum; `None` if connection tracking is not loaded.
pub fn tracked() -> Option<(i64, i64)> {
    let of = |name: &str| setting(&format!("proc/sys/net/netfilter/nf_conntrack_{name}"));
    of("count").zip(of("max"))
}

/// Returns whether the kernel forwards packets between interfaces; `None` if the setting does not exist.
pub fn forwards(family: Family) -> Option<bool> {
    setting(&format!("proc/sys/{}", forwarding(family).replace('.', "/"))).map(|value| value != 0)
}

/// Returns the name of the setting with which the kernel forwards packets between interfaces.
pub fn forwarding(family: Family) -> &'static str {
    match family {
        Family::V4 => "net.ipv4.ip_forward",
        Family::V6 => "net.ipv6.conf.all.forwarding",
    }
}
