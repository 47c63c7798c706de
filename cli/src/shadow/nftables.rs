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

use super::{
    ipset,
    verdict::{Left, Passing, Unknown, Verdict, Verdicts},
};

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
                "set" | "map" => {
                    let types = object["type"].as_array().cloned().unwrap_or_else(|| vec![object["type"].clone()]);
                    let protocols: Vec<bool> = types.iter().map(|kind| kind == "inet_proto").collect();
                    table.sets.insert(name("name"), Elements::of(&object["elem"], &protocols));
                }
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
                let found = self.lookup(&key, of).ok_or_else(unknown)?;
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
                        let protocols = protocols(left);
                        listed.into_iter().any(|one| fits(&named(canonical(one), &protocols), &fields))
                    }
                }
            }
        };
        Some(holds != negated)
    }

    /// The values that a key finds in the map of an expression. Several if the key is random. `None` if the map is unknown.
    fn lookup(&self, key: &Found, of: &Value) -> Option<Vec<Value>> {
        let map = &of["data"];
        let elements = match map.as_str() {
            Some(name) => self.sets.get(name.strip_prefix('@')?)?,
            None => &Elements::of(&map["set"], &protocols(&of["key"])),
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
            Some(map) => self.lookup(&field(&map["key"], passing)?, map)?,
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
    /// Reads the list of elements. `protocols` tells which fields of the keys are protocols.
    fn of(list: &Value, protocols: &[bool]) -> Self {
        let mut elements = Self::default();
        for element in list.as_array().into_iter().flatten() {
            let (key, value) = match element.as_array().map(Vec::as_slice) {
                Some([key, value]) => (canonical(key), value.clone()),
                _ => (canonical(element), Value::Null),
            };
            let key = named(key, protocols);
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

/// Whether each field of an expression is a protocol.
fn protocols(expression: &Value) -> Vec<bool> {
    let is_protocol = |part: &Value| {
        part["meta"]["key"] == "l4proto"
            || part["payload"]["field"] == "protocol"
            || part["payload"]["field"] == "nexthdr"
    };
    match expression.get("concat").and_then(Value::as_array) {
        Some(parts) => parts.iter().map(is_protocol).collect(),
        None => vec![is_protocol(expression)],
    }
}

/// The key with the names of protocols. Without the file /etc/protocols, as in a container, nft prints their numbers.
fn named(mut key: Key, protocols: &[bool]) -> Key {
    for (field, _) in key.iter_mut().zip(protocols).filter(|(_, is_protocol)| **is_protocol) {
        if let Some(protocol) = ipset::protocol(field) {
            *field = protocol.as_lowercase().to_owned();
        }
    }
    key
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
        (meta["key"] == "l4proto").then(|| passing.packet.protocol.as_lowercase().to_owned())?
    } else {
        match expression["payload"]["field"].as_str()? {
            "saddr" => passing.packet.source.to_string(),
            "daddr" => passing.to.ip().to_string(),
            "dport" => passing.to.port().to_string(),
            "protocol" | "nexthdr" => passing.packet.protocol.as_lowercase().to_owned(),
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
mod tests;
