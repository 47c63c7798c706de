//! kube-proxy's iptables mode and localnet-iptables write the same rules for the Cases. `docs/backends/iptables.md` numbers what
//! differs: any other difference fails the test, and so does an entry that no longer differs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    net::IpAddr,
    os::unix::fs::MetadataExt as _,
    process::Command,
};

use anyhow::Context as _;
use ipnet::IpNet;
use localnet_e2e::{
    Programs, await_condition,
    kube_proxy::{self, KUBE_PROXY, Mode},
    writer::{self, NODE_NAME, Writer},
};
use localnet_lab::{Case, DetectLocal, Namespace, Network, NodeOptions, Running, Topology};

/// The flavour of the iptables tools.
const FLAVOUR: &str = "nft";
const SAVES: [&str; 2] = ["iptables-nft-save", "ip6tables-nft-save"];

/// The Cases of whose objects the API server refuses one, so kube-proxy never sees them.
const REFUSED: [&str; 15] = [
    "addresses-inside-service-cidr",
    "addresses-leading-zeros",
    "addresses-v4-mapped",
    "endpoint-addresses",
    "endpoints-refused",
    "health-check-node-port",
    "node-port-localhost",
    "policy-external-local-by-type",
    "policy-local-needs-node-name",
    "proxied-by-address-not-type",
    "source-ranges-as-written",
    "source-ranges-without-type",
    "topology-hint-without-name",
    "vip-claims-that-do-not-count",
    "vips-refused",
];

/// The program that has a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    KubeProxy,
    Localnet,
}
use Side::{KubeProxy, Localnet};

/// Cases in which kube-proxy's choice is random: which of several Services gets an address, and which of two slices counts.
const RANDOM: [&str; 2] = ["vip-conflict-", "duplicates"];

/// Rules that only one of the two has: the entry of `docs/backends/iptables.md`, whose rules they are, the start of the Case's name,
/// the start of the chain's name, and a part of the rule.
type Entry = (usize, Side, &'static str, &'static str, &'static str);

/// The first entry that matches a rule explains it. Each must explain one.
const ENTRIES: [Entry; 31] = [
    (2, Localnet, "", "KUBE-SERVICES", "-j KUBE-EXTERNAL-SERVICES"),
    (3, Localnet, "", "KUBE-CLUSTER-IPS", ""),
    (3, Localnet, "", "KUBE-SERVICES", "unused ports of cluster IPs"),
    (3, Localnet, "", "KUBE-SERVICES", "unallocated cluster IPs"),
    (4, KubeProxy, "", "KUBE-EXTERNAL-SERVICES", "--dst-type LOCAL"),
    (4, Localnet, "", "KUBE-EXTERNAL-SERVICES", "--dport 30"),
    (5, KubeProxy, "", "KUBE-EXTERNAL-SERVICES", "has no local endpoints"),
    (5, Localnet, "", "KUBE-EXTERNAL-SERVICES", "! --src-type LOCAL -j DROP"),
    (6, KubeProxy, "", "KUBE-NODEPORTS", "health check node port"),
    (6, Localnet, "", "KUBE-NODEPORTS", "health check node port"),
    (7, KubeProxy, "source-ranges-several", "KUBE-FW-", ""),
    (8, KubeProxy, "source-ranges-no-endpoints", "KUBE-EXTERNAL-SERVICES", "has no endpoints"),
    (8, Localnet, "source-ranges-no-endpoints", "KUBE-FW-", ""),
    (8, Localnet, "source-ranges-no-endpoints", "KUBE-PROXY-FIREWALL", "-j KUBE-FW-"),
    (9, Localnet, "topology-endpoint-without-hint", "KUBE-S", "demo/empty:http"),
    (10, KubeProxy, "", "KUBE-SERVICES", "--dst-type LOCAL -j KUBE-NODEPORTS"),
    (10, Localnet, "node-port", "KUBE-SERVICES", "-j KUBE-NODEPORTS"),
    (11, KubeProxy, "node-port-nowhere", "KUBE-NODEPORTS", ""),
    (11, KubeProxy, "node-port-nowhere", "KUBE-EXT-", ""),
    (11, KubeProxy, "node-port-nowhere", "KUBE-SVL-", ""),
    (11, KubeProxy, "vip-of-the-node-and-node-port", "KUBE-NODEPORTS", "demo/a-node-port:http"),
    (11, KubeProxy, "vip-of-the-node-and-node-port", "KUBE-EXT-", ""),
    (12, KubeProxy, "weights", "KUBE-SVC-", " -> "),
    (12, KubeProxy, "weights", "KUBE-SEP-", ""),
    (13, KubeProxy, "endpoint-at-its-own-vip-with-source-ranges", "KUBE-PROXY-FIREWALL", "-j DROP"),
    (13, Localnet, "endpoint-at-its-own-vip-with-source-ranges", "KUBE-PROXY-FIREWALL", "-j KUBE-FW-"),
    (13, Localnet, "endpoint-at-its-own-vip-with-source-ranges", "KUBE-FW-", ""),
    (14, KubeProxy, "", "KUBE-FIREWALL", "! -s 127.0.0.0/8 -d 127.0.0.0/8"),
    (14, Localnet, "", "KUBE-NODEPORTS", "! -s 127.0.0.0/8 -d 127.0.0.0/8"),
    (15, KubeProxy, "node-port", "KUBE-NODEPORTS", "-d 127.0.0.0/8 -p"),
    (15, Localnet, "node-port", "KUBE-EXT-", "count localhost traffic"),
];
/// Entry 1: only localnet checks whether a packet was translated. The rules are compared without this part.
const UNTRANSLATED: &str = " -m conntrack ! --ctstate DNAT";

/// A rule: its family, table and chain, and the rest of the line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    family: &'static str,
    table: String,
    chain: String,
    rest: String,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.family, self.table, self.chain, self.rest)
    }
}

/// The rules of both families, in order, without those of the kubelet. The last endpoint of a chain needs no probability, and the
/// order of endpoints follows from no rule, so probabilities are left out.
fn rules(namespace: &Namespace) -> anyhow::Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for (save, family) in SAVES.into_iter().zip(["IPv4", "IPv6"]) {
        let mut table = String::new();
        for line in namespace.output(&mut Command::new(save))?.lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            }
            let Some((chain, rest)) = line.strip_prefix("-A ").and_then(|line| line.split_once(' ')) else { continue };
            let rest = match rest.split_once(" -m statistic --mode random --probability ") {
                Some((before, after)) => format!("{before} {}", after.split_once(' ').map_or("", |(_, end)| end)),
                None => rest.to_owned(),
            };
            if rest != "-j KUBE-FIREWALL" {
                rules.push(Rule { family, table: table.clone(), chain: chain.to_owned(), rest });
            }
        }
    }
    Ok(rules)
}

/// What differs in a Case, without what an entry explains. Adds these entries to `met`.
fn unexplained(case: &str, [theirs, ours]: [Vec<Rule>; 2], met: &mut BTreeSet<Entry>) -> Vec<String> {
    let [theirs, mut ours] = [theirs, ours].map(|mut rules| {
        // The sentinel changes while the rules are read.
        rules.retain(|rule| !rule.rest.contains("sentinel/sentinel"));
        rules
    });
    ours.iter_mut().for_each(|rule| rule.rest = rule.rest.replace(UNTRANSLATED, ""));
    let mut count: BTreeMap<&Rule, isize> = BTreeMap::new();
    theirs.iter().for_each(|rule| *count.entry(rule).or_default() += 1);
    ours.iter().for_each(|rule| *count.entry(rule).or_default() -= 1);
    let mut unexplained = Vec::new();
    for (rule, count) in count.into_iter().filter(|(_, count)| *count != 0) {
        let side = if count > 0 { KubeProxy } else { Localnet };
        let explains = |(_, of, cases, chain, part): &&Entry| {
            *of == side && case.starts_with(cases) && rule.chain.starts_with(chain) && rule.rest.contains(part)
        };
        match ENTRIES.iter().find(explains) {
            Some(entry) => _ = met.insert(*entry),
            None => unexplained.push(format!("only {side:?} has {rule}")),
        }
    }
    if unexplained.is_empty() {
        unexplained.extend(orders(&theirs, &ours));
    }
    unexplained
}

/// The chains of a Service port in which the rules that both have are in another order. The order of endpoints is left out, and
/// that of source ranges.
fn orders(theirs: &[Rule], ours: &[Rule]) -> Vec<String> {
    let of = |rules: &[Rule], others: &[Rule]| {
        let mut chains: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for rule in rules.iter().filter(|rule| others.contains(rule) && !rule.rest.contains(" -> ")) {
            chains.entry((rule.family, rule.table.clone(), rule.chain.clone())).or_default().push(rule.rest.clone());
        }
        chains.retain(|(.., chain), _| {
            ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-SEP-"].iter().any(|one| chain.starts_with(one))
        });
        chains
    };
    let (theirs, ours) = (of(theirs, ours), of(ours, theirs));
    let differ = theirs.into_iter().filter(|(chain, rules)| ours.get(chain).is_some_and(|ours| ours != rules));
    differ
        .map(|(chain, rules)| format!("the order of {chain:?} differs: {rules:#?}\n{:#?}", ours.get(&chain)))
        .collect()
}

/// Cases that are compared with the same options of both programs.
struct Group {
    options: NodeOptions,
    masquerade_bit: u8,
    /// Whether the kernel ignores the windows of TCP connections. Then neither program drops invalid packets.
    is_liberal: bool,
    cases: Vec<Case>,
}

/// All Cases by the options of the node, and one Case with each option that no Case has.
fn groups() -> anyhow::Result<Vec<Group>> {
    let group = |options: NodeOptions| Group { options, masquerade_bit: 14, is_liberal: false, cases: Vec::new() };
    let mut groups: Vec<Group> = Vec::new();
    for case in localnet_lab::cases() {
        match groups.iter_mut().find(|group| group.options == case.flows.node) {
            Some(group) => group.cases.push(case),
            None => groups.push(Group { cases: vec![case.clone()], ..group(case.flows.node) }),
        }
    }
    let case = || Case::load(&localnet_lab::case::folder().join("node-port"));
    let options = case()?.flows.node;
    groups.extend([
        Group { cases: vec![case()?], ..group(NodeOptions { localhost: true, ..options.clone() }) },
        Group { cases: vec![case()?], masquerade_bit: 20, ..group(options.clone()) },
        Group { cases: vec![case()?], is_liberal: true, ..group(options) },
    ]);
    Ok(groups)
}

/// Lines of the configuration file, which both programs read.
fn configuration(Group { options, masquerade_bit, .. }: &Group) -> String {
    let list = |networks: &[IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (mut cidrs, mut detect_local) = (String::new(), String::new());
    let mode = match &options.detect_local {
        None => "ClusterCIDR",
        Some(DetectLocal::ClusterCidr(networks)) => {
            cidrs = list(networks).join(",");
            "ClusterCIDR"
        }
        Some(DetectLocal::NodeCidr) => "NodeCIDR",
        Some(DetectLocal::BridgeInterface(name)) => {
            detect_local = format!("bridgeInterface: {name}");
            "BridgeInterface"
        }
        Some(DetectLocal::InterfaceNamePrefix(prefix)) => {
            detect_local = format!("interfaceNamePrefix: {prefix}");
            "InterfaceNamePrefix"
        }
    };
    // Without networks, NodePorts are open on all addresses, and only then on those of the loopback interface.
    let node_ports = match &options.node_port_addresses {
        _ if options.localhost => Vec::new(),
        None => vec!["primary".to_owned()],
        Some(networks) => list(networks),
    };
    let iptables = format!(
        "masqueradeAll: {}, masqueradeBit: {masquerade_bit}, localhostNodePorts: {}, minSyncPeriod: 50ms, syncPeriod: 1h",
        options.masquerade_all, options.localhost
    );
    format!(
        "clusterCIDR: \"{cidrs}\"\ndetectLocalMode: {mode}\ndetectLocal: {{{detect_local}}}\nnodePortAddresses: {node_ports:?}\niptables: {{{iptables}}}\n"
    )
}

/// Whether iptables tools run in a namespace. Those that a killed program has started would still write its rules.
fn runs_tools(node: &Namespace) -> io::Result<bool> {
    let inode = fs::metadata(node.path())?.ino();
    for process in fs::read_dir("/proc")? {
        let process = process?.path();
        // Other files, and processes that have ended meanwhile, lack these files.
        let Ok(namespace) = fs::metadata(process.join("ns/net")) else { continue };
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        if namespace.ino() == inode && name.contains("tables-") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Two equal nodes: kube-proxy runs on the first one, localnet-iptables on the second one.
struct World {
    // Fields are dropped in this order.
    programs: Vec<Running>,
    _brain: Running,
    writer: Writer,
    logs: [Programs; 2],
    networks: [Network; 2],
    api: localnet_e2e::api_server::Api,
    /// The addresses that the nodes have beyond those of the lab.
    addresses: Vec<IpAddr>,
}

impl World {
    async fn build() -> anyhow::Result<Self> {
        let networks = [Network::build(Topology::default())?, Network::build(Topology::default())?];
        let api = writer::reach(&networks[0]).await?;
        let logs = [Programs::new()?, Programs::new()?];
        // Only the first network leads to the API server. The socket of the brain is in the file system.
        let brain = logs[1].start_brain(networks[0].client(), &format!("kube:{}", api.kube_proxy.display()))?;
        let writer = Writer::new(api.client.clone());
        Ok(Self { programs: Vec::new(), _brain: brain, writer, logs, networks, api, addresses: Vec::new() })
    }

    /// Starts both programs with the options of a group, without rules of before.
    fn start(&mut self, group: &Group, lines: &str) -> anyhow::Result<()> {
        let Group { options, is_liberal, .. } = group;
        self.programs.clear();
        for node in self.networks.iter().map(Network::node) {
            await_condition("the end of the tools", || !runs_tools(node).unwrap_or(true))?;
            node.output(Command::new("nft").args(["flush", "ruleset"]))?;
            node.ip(self.addresses.iter().map(|address| format!("address del {address} dev uplink")))?;
            node.ip(options.addresses.iter().map(|address| format!("address add {address} dev uplink nodad")))?;
            node.sysctl(&[("net/netfilter/nf_conntrack_tcp_be_liberal", if *is_liberal { "1" } else { "0" })])?;
        }
        self.addresses.clone_from(&options.addresses);
        let [theirs, ours] = self.networks.each_ref().map(Network::node);
        let client = (self.api.kube_proxy.as_path(), NODE_NAME);
        self.programs.push(kube_proxy::start(theirs, &self.logs[0], Mode::Iptables(FLAVOUR), client, lines)?);
        let (socket, config) = (self.logs[1].api(), self.logs[0].path().join("kube-proxy.yaml"));
        let flags = ["--api", &socket, "--config", &config.display().to_string(), "--iptables-flavour", FLAVOUR];
        self.programs.push(self.logs[1].start(ours, "localnet-iptables", &flags)?);
        Ok(())
    }

    /// The rules of kube-proxy and of localnet for a Case; `None` if the API server refuses it.
    async fn enter(&mut self, case: &Case) -> anyhow::Result<Option<[Vec<Rule>; 2]>> {
        if let Err(error) = self.writer.write(case).await {
            println!("{}: {error:#}", case.name);
            return Ok(None);
        }
        let sentinel = self.writer.write_sentinel().await?;
        let nodes = self.networks.each_ref().map(Network::node);
        for ((program, logs), node) in [KUBE_PROXY, "localnet-iptables"].into_iter().zip(&self.logs).zip(nodes) {
            let has_sentinel = || {
                let Ok(rules) = rules(node) else { return false };
                // Services and slices arrive independently of one another.
                sentinel.paths.iter().all(|(to, endpoint)| {
                    let (address, port) = (format!("-d {}/", to.ip()), format!("--dport {} -j KUBE-SVC-", to.port()));
                    let destination = format!("--to-destination {endpoint}");
                    rules.iter().any(|rule| rule.rest.starts_with(&address) && rule.rest.contains(&port))
                        && rules.iter().any(|rule| rule.rest.ends_with(&destination))
                })
            };
            tokio::task::block_in_place(|| await_condition("the sentinel's rules", has_sentinel))
                .with_context(|| logs.log(program))?;
        }
        Ok(Some([rules(nodes[0])?, rules(nodes[1])?]))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_differences_from_the_rules_of_kube_proxy_are_listed() -> anyhow::Result<()> {
    let mut world = World::build().await?;
    let (mut compared, mut refused, mut met, mut wrong) = (0, BTreeSet::new(), BTreeSet::new(), Vec::new());
    let mut checks_translation = false;
    for group in groups()? {
        let lines = configuration(&group);
        world.start(&group, &lines)?;
        let is_random = |case: &Case| RANDOM.iter().any(|random| case.name.starts_with(random));
        for case in group.cases.into_iter().filter(|case| !is_random(case)) {
            let Some(rules) = world.enter(&case).await.with_context(|| format!("{}\n{lines}", case.name))? else {
                refused.insert(case.name);
                continue;
            };
            compared += 1;
            checks_translation |= rules[1].iter().any(|rule| rule.rest.contains(UNTRANSLATED));
            let differences = unexplained(&case.name, rules, &mut met);
            wrong.extend(differences.into_iter().map(|difference| format!("{}: {difference}", case.name)));
        }
    }
    println!("{compared} Cases compared");
    wrong.extend(ENTRIES.iter().filter(|entry| !met.contains(*entry)).map(|entry| format!("{entry:?} is not met")));
    anyhow::ensure!(checks_translation, "no rule of localnet contains{UNTRANSLATED}");
    anyhow::ensure!(wrong.is_empty(), "{} unexplained:\n{}", wrong.len(), wrong.join("\n"));
    anyhow::ensure!(refused == REFUSED.map(str::to_owned).into(), "the API server refuses {refused:?}");
    Ok(())
}
