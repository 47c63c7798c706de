//! Evaluates kube-proxy's rules in mode nftables, as `nft --json list table` prints them. Pure.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
};

use ipnet::IpNet;
use localnet_client::route::{Origin, Packet};
use localnet_proto::Protocol;
use serde_json::Value;

use super::verdict::{Left, Passing, Unknown, Verdict, Verdicts};

/// The maximum depth of jumps, as in the kernel.
const DEPTH: usize = 16;

/// A table of kube-proxy.
#[derive(Debug, Default)]
pub struct Table {
    /// The base chains by hook, each with its priority.
    hooks: BTreeMap<String, Vec<(i64, String)>>,
    /// The statements of each rule of each chain.
    chains: BTreeMap<String, Vec<Vec<Value>>>,
    /// The elements of each set and map.
    sets: BTreeMap<String, Elements>,
}

/// The elements of a set or map: the keys, with the values of maps.
#[derive(Debug, Default)]
struct Elements {
    /// The keys without prefixes and ranges.
    exact: BTreeMap<Key, Value>,
    /// The other keys.
    wide: Vec<(Key, Value)>,
}

/// The fields of a key in their canonical form.
type Key = Vec<String>;

/// The ways in which a packet leaves a rule; `None`: to the next rule.
type Ways<'a> = Vec<(Option<Left>, Passing<'a>)>;

/// What a statement does with a packet.
enum Step<'a> {
    /// The rule goes on with the packet.
    On(Passing<'a>),
    /// The rule does not match.
    Off,
    /// The packet may leave the chain in one of these ways. `None`: the packet leaves the rule.
    Ways(Ways<'a>),
}

/// The value of an expression.
enum Found {
    Fields(Key),
    /// A random number: any element may be found.
    Any,
}

impl Table {
    /// Reads the output of `nft --json list table`.
    ///
    /// # Errors
    /// Returns an error if the text is not such an output.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        let root: Value = serde_json::from_str(text)?;
        let mut table = Self::default();
        for object in root["nftables"].as_array().into_iter().flatten().filter_map(Value::as_object).flatten() {
            let (kind, object) = object;
            let name = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            match kind.as_str() {
                "chain" => {
                    if let Some(hook) = object["hook"].as_str() {
                        let priority = object["prio"].as_i64().unwrap_or_default();
                        table.hooks.entry(hook.to_owned()).or_default().push((priority, name("name")));
                    }
                    table.chains.entry(name("name")).or_default();
                }
                "set" | "map" => _ = table.sets.insert(name("name"), Elements::of(&object["elem"])),
                "rule" => {
                    let statements = object["expr"].as_array().cloned().unwrap_or_default();
                    table.chains.entry(name("chain")).or_default().push(statements);
                }
                _ => {}
            }
        }
        table.hooks.values_mut().for_each(|chains| chains.sort());
        Ok(table)
    }

    /// The destinations for which the rules translate or stop packets, without NodePorts.
    pub fn destinations(&self) -> impl Iterator<Item = (SocketAddr, Protocol)> {
        let maps = ["service-ips", "no-endpoint-services"].into_iter().filter_map(|name| self.sets.get(name));
        maps.flat_map(|map| map.exact.keys()).filter_map(|key| {
            let [address, protocol, port] = key.as_slice() else { return None };
            let protocol = Protocol::ALL.into_iter().find(|of| of.as_str().eq_ignore_ascii_case(protocol))?;
            Some((SocketAddr::new(address.parse().ok()?, port.parse().ok()?), protocol))
        })
    }

    /// What the rules do with a packet.
    ///
    /// # Errors
    /// Returns an error if the packet meets a rule that compares something unknown.
    pub fn verdicts(&self, packet: &Packet, local: &[IpAddr]) -> Result<Verdicts, Unknown> {
        let (mut verdicts, mut masquerade) = (Verdicts::new(), Vec::new());
        let first = if packet.origin == Origin::Node { "output" } else { "prerouting" };
        for (left, passing) in self.hook(first, Passing::new(packet, local))? {
            let to_node = passing.is_local(passing.to.ip());
            match (left.end(), packet.origin) {
                (Some(verdict), _) => _ = verdicts.insert(verdict),
                (None, Origin::Node) if !to_node => masquerade.push(passing),
                (None, _) => {
                    for (left, passing) in self.hook(if to_node { "input" } else { "forward" }, passing)? {
                        match left.end() {
                            Some(verdict) => _ = verdicts.insert(verdict),
                            None => masquerade.push(passing),
                        }
                    }
                }
            }
        }
        for passing in masquerade {
            if !passing.translated {
                verdicts.insert(Verdict::Untouched);
                continue;
            }
            for (left, passing) in self.hook("postrouting", passing)? {
                verdicts.insert(passing.arrives(left == Left::Masqueraded));
            }
        }
        Ok(verdicts)
    }

    /// Passes all base chains of a hook, in the order of their priorities.
    fn hook<'a>(&self, hook: &str, passing: Passing<'a>) -> Result<Vec<(Left, Passing<'a>)>, Unknown> {
        let mut ways = vec![(Left::AtEnd, passing)];
        for (_, chain) in self.hooks.get(hook).into_iter().flatten() {
            let mut next = Vec::new();
            for (left, passing) in ways {
                match left {
                    Left::AtEnd | Left::Accepted => next.extend(self.pass(chain, passing, 0)?),
                    Left::Masqueraded | Left::Dropped | Left::Rejected => next.push((left, passing)),
                }
            }
            ways = next;
        }
        Ok(ways)
    }

    fn pass<'a>(&self, chain: &str, passing: Passing<'a>, depth: usize) -> Result<Vec<(Left, Passing<'a>)>, Unknown> {
        if depth > DEPTH {
            return Err(Unknown(format!("chain {chain}")));
        }
        let (mut ways, mut here) = (Vec::new(), vec![passing]);
        for rule in self.chains.get(chain).into_iter().flatten() {
            let mut next = Vec::new();
            for passing in here {
                for (left, passing) in self.rule(rule, passing, depth)? {
                    match left {
                        Some(left) => ways.push((left, passing)),
                        None => next.push(passing),
                    }
                }
            }
            next.dedup();
            here = next;
        }
        ways.extend(here.into_iter().map(|passing| (Left::AtEnd, passing)));
        Ok(ways)
    }

    /// The ways in which a packet leaves a rule; `None`: to the next rule.
    fn rule<'a>(&self, rule: &[Value], passing: Passing<'a>, depth: usize) -> Result<Ways<'a>, Unknown> {
        let mut passing = passing;
        for statement in rule {
            match self.step(statement, passing, depth)? {
                Step::On(now) => passing = now,
                Step::Off => break,
                Step::Ways(ways) => return Ok(ways),
            }
        }
        Ok(vec![(None, passing)])
    }

    fn step<'a>(&self, statement: &Value, passing: Passing<'a>, depth: usize) -> Result<Step<'a>, Unknown> {
        let unknown = || Unknown(statement.to_string());
        let (kind, of) = statement.as_object().and_then(|object| object.iter().next()).ok_or_else(unknown)?;
        Ok(match kind.as_str() {
            "counter" => Step::On(passing),
            // The only sets that rules update are those of remembered clients.
            "set" => Step::On(Passing { sticky: true, ..passing }),
            "match" if self.matches(of, &passing).ok_or_else(unknown)? => Step::On(passing),
            "match" => Step::Off,
            "mangle" => {
                let mark = number(&of["value"], &passing).filter(|_| of["key"]["meta"]["key"] == "mark");
                Step::On(Passing { mark: mark.ok_or_else(unknown)?, ..passing })
            }
            "vmap" => {
                let key = field(&of["key"], &passing).ok_or_else(unknown)?;
                let found = self.lookup(&key, &of["data"]).ok_or_else(unknown)?;
                if found.is_empty() {
                    // A packet without an element goes on with the rule's next statement; kube-proxy's rules have none.
                    return Ok(Step::On(passing));
                }
                let mut ways = Vec::new();
                for verdict in found {
                    ways.extend(self.verdict(&verdict, passing, depth)?.ok_or_else(unknown)?);
                }
                Step::Ways(ways)
            }
            "dnat" => {
                let targets = self.targets(of, &passing).ok_or_else(unknown)?;
                let way = |to| (Some(Left::Accepted), Passing { to, translated: true, ..passing });
                match targets.is_empty() {
                    true => Step::Off,
                    false => Step::Ways(targets.into_iter().map(way).collect()),
                }
            }
            _ => Step::Ways(self.verdict(statement, passing, depth)?.ok_or_else(unknown)?),
        })
    }

    /// The ways in which a packet leaves a rule with this verdict. `None` if the verdict is unknown.
    fn verdict<'a>(&self, verdict: &Value, passing: Passing<'a>, depth: usize) -> Result<Option<Ways<'a>>, Unknown> {
        let Some((kind, of)) = verdict.as_object().and_then(|object| object.iter().next()) else { return Ok(None) };
        let left = match kind.as_str() {
            "accept" => Left::Accepted,
            "drop" => Left::Dropped,
            "reject" => Left::Rejected,
            "return" => Left::AtEnd,
            "masquerade" => Left::Masqueraded,
            "jump" | "goto" => {
                let ways = self.pass(of["target"].as_str().unwrap_or_default(), passing, depth + 1)?;
                // After a jump, the packet comes back. After a goto, it leaves this chain, too.
                let back = |left| if left == Left::AtEnd && kind == "jump" { None } else { Some(left) };
                return Ok(Some(ways.into_iter().map(|(left, passing)| (back(left), passing)).collect()));
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![(Some(left), passing)]))
    }

    /// Whether a match holds. `None` if it compares something unknown.
    fn matches(&self, of: &Value, passing: &Passing<'_>) -> Option<bool> {
        let (left, right) = (&of["left"], &of["right"]);
        let negated = of["op"] == "!=";
        let holds = match left {
            Value::Object(object) if object.contains_key("ct") => match left["ct"]["key"].as_str()? {
                "state" => words(right).any(|state| state == "new"),
                "status" => words(right).any(|status| status == "dnat") && passing.translated,
                _ => return None,
            },
            Value::Object(object) if object.contains_key("fib") => {
                let flags = &left["fib"]["flags"];
                let source = words(flags).any(|flag| flag == "saddr");
                let address = if source { passing.packet.source } else { passing.to.ip() };
                (left["fib"]["result"] == "type" && right == "local").then(|| passing.is_local(address))?
            }
            Value::Object(object) if object.contains_key("&") => number(left, passing)? == number(right, passing)?,
            Value::Object(object) if object.contains_key("meta") && left["meta"]["key"] == "iifname" => {
                passing.packet.origin == Origin::Pod
            }
            _ => {
                let Found::Fields(fields) = field(left, passing)? else { return None };
                match right.as_str().and_then(|name| name.strip_prefix('@')) {
                    // A new client is not remembered.
                    Some(name) if name.starts_with("affinity-") => false,
                    Some(name) => self.sets.get(name)?.find(&fields).next().is_some(),
                    None => {
                        let listed = right["set"].as_array().map_or_else(|| vec![right], |all| all.iter().collect());
                        listed.into_iter().any(|one| fits(&canonical(one), &fields))
                    }
                }
            }
        };
        Some(holds != negated)
    }

    /// The values in a map that a key finds. Several if the key is random. `None` if the map is unknown.
    fn lookup(&self, key: &Found, map: &Value) -> Option<Vec<Value>> {
        let inline;
        let elements = match map.as_str() {
            Some(name) => self.sets.get(name.strip_prefix('@')?)?,
            None => {
                inline = Elements::of(&map["set"]);
                &inline
            }
        };
        Some(match key {
            Found::Any => elements.all().cloned().collect(),
            Found::Fields(fields) => elements.find(fields).cloned().collect(),
        })
    }

    /// The destinations of a translation. `None` if they are unknown.
    fn targets(&self, of: &Value, passing: &Passing<'_>) -> Option<Vec<SocketAddr>> {
        let address = &of["addr"];
        let values = match address.get("map") {
            Some(map) => self.lookup(&field(&map["key"], passing)?, &map["data"])?,
            None => vec![address.clone()],
        };
        values
            .into_iter()
            .map(|value| {
                let fields = canonical(&value);
                let port = match fields.get(1) {
                    Some(port) => port.parse().ok()?,
                    None if of["port"].is_null() => passing.to.port(),
                    None => u16::try_from(of["port"].as_u64()?).ok()?,
                };
                Some(SocketAddr::new(fields.first()?.parse().ok()?, port))
            })
            .collect()
    }
}

impl Elements {
    /// Reads the list of elements.
    fn of(list: &Value) -> Self {
        let mut elements = Self::default();
        for element in list.as_array().into_iter().flatten() {
            let (key, value) = match element.as_array().map(Vec::as_slice) {
                Some([key, value]) => (canonical(key), value.clone()),
                _ => (canonical(element), Value::Null),
            };
            // A wide key only costs time. Names of interfaces, which may contain these characters, are therefore no problem.
            if key.iter().any(|field| field.contains(['/', '-'])) {
                elements.wide.push((key, value));
            } else {
                elements.exact.insert(key, value);
            }
        }
        elements
    }

    /// The values of all elements.
    fn all(&self) -> impl Iterator<Item = &Value> {
        self.exact.values().chain(self.wide.iter().map(|(_, value)| value))
    }

    /// The values of the elements that contain a packet's fields.
    fn find(&self, fields: &[String]) -> impl Iterator<Item = &Value> {
        let wide = self.wide.iter().filter(|(key, _)| fits(key, fields)).map(|(_, value)| value);
        self.exact.get(fields).into_iter().chain(wide)
    }
}

/// The fields of a value: `{"concat": […]}`, or a single field. Comments and timeouts do not count.
fn canonical(value: &Value) -> Key {
    if let Some(inner) = value.get("elem").and_then(|elem| elem.get("val")) {
        return canonical(inner);
    }
    match value.get("concat").and_then(Value::as_array) {
        Some(parts) => parts.iter().flat_map(canonical).collect(),
        None => vec![text(value)],
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(object) if object.contains_key("prefix") => {
            format!("{}/{}", text(&value["prefix"]["addr"]), value["prefix"]["len"])
        }
        // nft lists adjacent prefixes as one range.
        Value::Object(object) if object.contains_key("range") => {
            format!("{}-{}", text(&value["range"][0]), text(&value["range"][1]))
        }
        other => other.to_string(),
    }
}

/// Whether the fields of an element, which may be prefixes or ranges, contain those of a packet.
fn fits(element: &[String], fields: &[String]) -> bool {
    let range = |of: &str| -> Option<RangeInclusive<IpAddr>> {
        let (first, last) = of.split_once('-')?;
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let one = |(of, field): (&String, &String)| {
        of == field
            || field.parse::<IpAddr>().is_ok_and(|address| {
                of.parse::<IpNet>().is_ok_and(|net| net.contains(&address))
                    || range(of).is_some_and(|range| range.contains(&address))
            })
    };
    element.len() == fields.len() && element.iter().zip(fields).all(one)
}

/// The value of an expression for a packet. `None` if it is unknown.
fn field(expression: &Value, passing: &Passing<'_>) -> Option<Found> {
    if let Some(parts) = expression.get("concat").and_then(Value::as_array) {
        let mut all = Key::new();
        for part in parts {
            match field(part, passing)? {
                Found::Fields(fields) => all.extend(fields),
                Found::Any => return None,
            }
        }
        return Some(Found::Fields(all));
    }
    if expression.get("numgen").is_some() {
        return Some(Found::Any);
    }
    let text = if let Some(meta) = expression.get("meta") {
        (meta["key"] == "l4proto").then(|| passing.packet.protocol.as_str().to_ascii_lowercase())?
    } else {
        match expression["payload"]["field"].as_str()? {
            "saddr" => passing.packet.source.to_string(),
            "daddr" => passing.to.ip().to_string(),
            "dport" => passing.to.port().to_string(),
            "protocol" | "nexthdr" => passing.packet.protocol.as_str().to_ascii_lowercase(),
            _ => return None,
        }
    };
    Some(Found::Fields(vec![text]))
}

/// The value of an expression with the packet's mark.
fn number(expression: &Value, passing: &Passing<'_>) -> Option<u32> {
    if let Some(number) = expression.as_u64() {
        return u32::try_from(number).ok();
    }
    if expression["meta"]["key"] == "mark" {
        return Some(passing.mark);
    }
    let (operator, parts) = expression.as_object()?.iter().next()?;
    let [left, right] = parts.as_array()?.as_slice() else { return None };
    let (left, right) = (number(left, passing)?, number(right, passing)?);
    match operator.as_str() {
        "&" => Some(left & right),
        "|" => Some(left | right),
        "^" => Some(left ^ right),
        _ => None,
    }
}

/// A word, or a list of words.
fn words(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.get("set").and_then(Value::as_array).or(value.as_array());
    let all: Vec<&Value> = list.map_or_else(|| vec![value], |list| list.iter().collect());
    all.into_iter().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shadow::verdict::testing::short;

    /// In the notation of nft, in a form that [`table`] completes: the chains and maps of mode nftables with one Service.
    const RULES: &[(&str, &str)] = &[
        (
            "pre",
            r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":"new"}},{"jump":{"target":"firewall-check"}}"#,
        ),
        ("firewall-check", r#"{"vmap":{"key":VIP,"data":"@firewall-ips"}}"#),
        (
            "firewall-web",
            r#"{"match":{"op":"!=","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"set":[{"prefix":{"addr":"203.0.113.0","len":25}},{"range":["10.180.0.8","10.180.0.9"]}]}}},{"drop":null}"#,
        ),
        ("nat", r#"{"jump":{"target":"services"}}"#),
        (
            "services",
            r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"daddr"}},"right":"@cluster-ips"}},{"match":{"op":"!=","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"prefix":{"addr":"10.180.0.0","len":16}}}},MARK"#,
        ),
        ("services", r#"{"vmap":{"key":VIP,"data":"@service-ips"}}"#),
        (
            "services",
            r#"{"match":{"op":"==","left":{"fib":{"result":"type","flags":["daddr"]}},"right":"local"}},{"vmap":{"key":{"concat":[{"meta":{"key":"l4proto"}},{"payload":{"protocol":"th","field":"dport"}}]},"data":"@service-nodeports"}}"#,
        ),
        ("external-web", "MARK"),
        ("external-web", r#"{"goto":{"target":"service-web"}}"#),
        (
            "service-web",
            r#"{"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"tcp"}},{"dnat":{"family":"ip","addr":{"map":{"key":{"numgen":{"mode":"random","mod":2,"offset":0}},"data":{"set":[[0,{"concat":["10.180.0.1",8080]}],[1,{"concat":["10.180.1.1",8080]}]]}}}}}"#,
        ),
        (
            "service-sticky",
            r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":"@affinity-1"}},{"goto":{"target":"endpoint-1"}}"#,
        ),
        (
            "service-sticky",
            r#"{"vmap":{"key":{"numgen":{"mode":"random","mod":1,"offset":0}},"data":{"set":[[0,{"goto":{"target":"endpoint-1"}}]]}}}"#,
        ),
        (
            "endpoint-1",
            r#"{"set":{"op":"update","elem":{"payload":{"protocol":"ip","field":"saddr"}},"set":"@affinity-1"}}"#,
        ),
        (
            "endpoint-1",
            r#"{"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"udp"}},{"dnat":{"addr":"10.180.0.1","port":53}}"#,
        ),
        ("check", r#"{"vmap":{"key":VIP,"data":"@no-endpoint-services"}}"#),
        (
            "check",
            r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"daddr"}},"right":"@cluster-ips"}},{"reject":{"type":"icmp","expr":"port-unreachable"}}"#,
        ),
        (
            "post",
            r#"{"match":{"op":"!=","left":{"&":[{"meta":{"key":"mark"}},16384]},"right":0}},{"mangle":{"key":{"meta":{"key":"mark"}},"value":{"^":[{"meta":{"key":"mark"}},16384]}}},{"masquerade":{"flags":"fully-random"}}"#,
        ),
        (
            "post",
            r#"{"match":{"op":"in","left":{"ct":{"key":"status"}},"right":"dnat"}},{"match":{"op":"==","left":{"concat":[{"payload":{"protocol":"ip","field":"saddr"}},{"payload":{"protocol":"ip","field":"daddr"}},{"meta":{"key":"l4proto"}},{"payload":{"protocol":"th","field":"dport"}}]},"right":"@hairpin-connections"}},{"masquerade":null}"#,
        ),
    ];
    const VIP: &str = r#"{"concat":[{"payload":{"protocol":"ip","field":"daddr"}},{"meta":{"key":"l4proto"}},{"payload":{"protocol":"th","field":"dport"}}]}"#;
    const MARK: &str = r#"{"mangle":{"key":{"meta":{"key":"mark"}},"value":{"|":[{"meta":{"key":"mark"}},16384]}}}"#;
    const SETS: &str = r#"
        {"set":{"name":"cluster-ips","elem":["10.96.0.1","10.96.0.2"]}},
        {"set":{"name":"affinity-1","flags":["timeout"]}},
        {"set":{"name":"hairpin-connections","elem":[{"concat":["10.180.0.1","10.180.0.1","tcp",8080]}]}},
        {"map":{"name":"service-ips","elem":[[{"concat":["10.96.0.1","tcp",80]},{"goto":{"target":"service-web"}}],
            [{"concat":["192.0.2.1","tcp",80]},{"goto":{"target":"external-web"}}],
            [{"concat":["10.96.0.2","udp",53]},{"goto":{"target":"service-sticky"}}]]}},
        {"map":{"name":"service-nodeports","elem":[[{"concat":["tcp",30080]},{"goto":{"target":"external-web"}}]]}},
        {"map":{"name":"firewall-ips","elem":[[{"concat":["192.0.2.1","tcp",80]},{"goto":{"target":"firewall-web"}}]]}},
        {"map":{"name":"no-endpoint-services","elem":[[{"elem":{"val":{"concat":["192.0.2.9","tcp",80]},"comment":"shop/empty"}},{"drop":null}]]}}"#;

    /// The table without one of its rules.
    fn table(without: Option<usize>) -> Table {
        let hook = |name, hook, priority| {
            format!(r#"{{"chain":{{"name":"{name}","type":"nat","hook":"{hook}","prio":{priority}}}}}"#)
        };
        let mut objects = vec![
            r#"{"metainfo":{"version":"1.0.6"}}"#.to_owned(),
            hook("nat", "prerouting", -100),
            hook("pre", "prerouting", -110),
            hook("nat", "output", -100),
            hook("check", "forward", 0),
            hook("check", "output", 0),
            hook("post", "postrouting", 100),
            SETS.to_owned(),
        ];
        for (_, (chain, statements)) in RULES.iter().enumerate().filter(|(index, _)| Some(*index) != without) {
            let statements = statements.replace("VIP", VIP).replace("MARK", MARK);
            objects.push(format!(r#"{{"rule":{{"chain":"{chain}","expr":[{statements}]}}}}"#));
        }
        Table::parse(&format!(r#"{{"nftables":[{}]}}"#, objects.join(","))).unwrap()
    }

    fn verdicts(table: &Table, from: &str, to: &str, protocol: Protocol) -> String {
        let (source, to): (IpAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let origin = if from == "192.168.0.2" { Origin::Node } else { Origin::Outside };
        let packet = Packet { source, destination: to.ip(), protocol, port: to.port(), origin };
        let verdicts = table.verdicts(&packet, &[IpAddr::from([192, 168, 0, 2])]).unwrap();
        short(&verdicts)
    }

    const PACKETS: &[(&str, &str, Protocol, &str)] = &[
        ("10.180.0.9", "10.96.0.1:80", Protocol::Tcp, "10.180.0.1, 10.180.1.1"),
        ("10.180.0.1", "10.96.0.1:80", Protocol::Tcp, "10.180.0.1 M, 10.180.1.1"),
        ("203.0.113.1", "10.96.0.1:80", Protocol::Tcp, "10.180.0.1 M, 10.180.1.1 M"),
        ("10.180.0.9", "10.96.0.1:81", Protocol::Tcp, "reject"),
        ("10.180.0.9", "10.96.0.2:53", Protocol::Udp, "10.180.0.1 S"),
        ("203.0.113.1", "192.0.2.1:80", Protocol::Tcp, "10.180.0.1 M, 10.180.1.1 M"),
        ("203.0.113.200", "192.0.2.1:80", Protocol::Tcp, "drop"),
        ("203.0.113.1", "192.0.2.9:80", Protocol::Tcp, "drop"),
        ("203.0.113.1", "192.168.0.2:30080", Protocol::Tcp, "10.180.0.1 M, 10.180.1.1 M"),
        ("203.0.113.1", "192.168.0.2:22", Protocol::Tcp, "untouched"),
        ("192.168.0.2", "10.96.0.1:81", Protocol::Tcp, "reject"),
    ];

    #[test]
    fn packets_follow_the_rules() {
        for (from, to, protocol, expected) in PACKETS {
            assert_eq!(verdicts(&table(None), from, to, *protocol), *expected, "{from} {to} {protocol}");
        }
    }

    #[test]
    fn each_removed_rule_changes_a_verdict() {
        for (index, rule) in RULES.iter().enumerate() {
            let without = table(Some(index));
            let is_noticed = PACKETS
                .iter()
                .any(|(from, to, protocol, expected)| verdicts(&without, from, to, *protocol) != *expected);
            // A new client is not remembered.
            assert_eq!(is_noticed, !rule.1.contains(r#""right":"@affinity-1""#), "{rule:?}");
        }
    }

    #[test]
    fn elements_are_values_prefixes_and_ranges() {
        let list = r#"[["10.96.0.1", 1], [{"prefix":{"addr":"10.96.0.0","len":24}}, 2], [{"range":["10.96.0.8","10.97.0.9"]}, 3]]"#;
        let elements = Elements::of(&serde_json::from_str(list).unwrap());
        for (address, expected) in
            [("10.96.0.1", &[1, 2][..]), ("10.96.0.8", &[2, 3]), ("10.97.0.1", &[3]), ("10.97.0.10", &[])]
        {
            let found: Vec<_> = elements.find(&[address.to_owned()]).filter_map(Value::as_u64).collect();
            assert_eq!(found, expected, "{address}");
        }
    }

    #[test]
    fn a_rule_that_compares_something_unknown_is_an_error_for_the_packets_that_meet_it() {
        let text = r#"{"nftables":[{"chain":{"name":"nat","hook":"prerouting","prio":-100}},
            {"rule":{"chain":"nat","expr":[{"match":{"op":"==","left":{"payload":{"protocol":"th","field":"dport"}},"right":80}},
            {"match":{"op":"==","left":{"meta":{"key":"skuid"}},"right":0}},{"drop":null}]}}]}"#;
        let table = Table::parse(text).unwrap();
        let packet = |port| Packet {
            source: IpAddr::from([203, 0, 113, 1]),
            destination: IpAddr::from([192, 0, 2, 1]),
            protocol: Protocol::Tcp,
            port,
            origin: Origin::Outside,
        };
        assert!(table.verdicts(&packet(80), &[]).unwrap_err().to_string().contains("skuid"));
        assert_eq!(table.verdicts(&packet(81), &[]), Ok([Verdict::Untouched].into()));
    }
}
