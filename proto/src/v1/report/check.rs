//! What a `ReportStatusRequest` may contain. The limits bound the memory of the brain and the texts of Events.

use localnet_core::Mode;

use super::super::{is_reader_name, settings, wire};

const MOST_WARNINGS: usize = 64;
const MOST_PARTS: usize = 256;
/// Maximum length of a code, in bytes: Kubernetes allows 128 for the reason of an Event, which is made from the code.
const LONGEST_CODE: usize = 127;
/// Maximum length of the path of a field, in bytes.
const LONGEST_FIELD: usize = 256;
/// Maximum length of a text for people, in bytes.
const LONGEST_TEXT: usize = 1024;
/// Maximum number of addresses or CIDRs in a setting.
const MOST_ADDRESSES: usize = 512;
/// Maximum length of an address or CIDR, in bytes.
const LONGEST_ADDRESS: usize = 64;
/// Maximum length of the name of an interface, in bytes: `IFNAMSIZ` of Linux, without the zero.
const LONGEST_INTERFACE: usize = 15;
/// Maximum length of the namespace and of the name of a Service, in bytes.
const LONGEST_NAME: usize = 253;
/// Revision numbers are below this limit, because JavaScript represents every smaller integer exactly.
const REVISIONS: u64 = 1 << 53;

/// The path of a field, and what is wrong with it.
type Invalid = (String, String);

/// Checks a report, except whether its revisions exist.
pub(super) fn check(request: &wire::ReportStatusRequest) -> Result<(), Invalid> {
    let name = &request.reader_name;
    valid(!name.is_empty() && is_reader_name(name), "reader_name", || {
        "is not a name: 1 to 63 lower-case letters, digits and hyphens".to_owned()
    })?;
    revision(request.received.as_ref(), "received")?;
    families(&request.families)?;
    if let Some(skipped) = &request.skipped {
        parts(skipped)?;
    }
    if let Some(traffic) = &request.traffic {
        sizes(traffic)?;
        settings::decode(traffic).map_err(|problem| ("traffic".to_owned(), format!("is invalid: {problem}")))?;
    }
    let warnings = request.warnings.len();
    valid(warnings <= MOST_WARNINGS, "warnings", || format!("has {warnings} entries, more than {MOST_WARNINGS}"))?;
    for (place, warning) in request.warnings.iter().enumerate() {
        diagnostic(warning, &format!("warnings[{place}]"))?;
    }
    let mode = &request.kube_proxy_mode;
    valid(mode.is_empty() || Mode::named(mode).is_some(), "kube_proxy_mode", || {
        "is not a mode: iptables, ipvs, nftables or kernelspace; leave it empty if the backend corresponds to none"
            .to_owned()
    })
}

/// Checks the sizes of settings, because errors repeat invalid texts.
fn sizes(traffic: &wire::TrafficSettings) -> Result<(), Invalid> {
    let (ports, pods) = (traffic.node_ports.as_ref(), traffic.local_pods.as_ref());
    let lists = [
        ("traffic.node_ports.addresses", ports.map(|of| &of.addresses)),
        ("traffic.node_ports.interface_cidrs", ports.map(|of| &of.interface_cidrs)),
        ("traffic.local_pods.cidrs", pods.map(|of| &of.cidrs)),
    ];
    for (field, list) in lists.into_iter().filter_map(|(field, list)| Some((field, list?))) {
        valid(list.len() <= MOST_ADDRESSES, field, || {
            format!("has {} entries, more than {MOST_ADDRESSES}", list.len())
        })?;
        for (place, text) in list.iter().enumerate() {
            short(text, LONGEST_ADDRESS, format!("{field}[{place}]"))?;
        }
    }
    let interface = pods.map_or("", |of| &of.interface);
    let is_name = interface.len() <= LONGEST_INTERFACE && !interface.contains(char::is_control);
    valid(is_name, "traffic.local_pods.interface", || {
        format!("is not the name of an interface: at most {LONGEST_INTERFACE} bytes")
    })
}

fn families(families: &[wire::FamilyStatus]) -> Result<(), Invalid> {
    for (place, family) in families.iter().enumerate() {
        let at = |field: &str| format!("families[{place}].{field}");
        let is_family = [wire::IpFamily::Ipv4, wire::IpFamily::Ipv6].map(i32::from).contains(&family.family);
        valid(is_family, at("family"), || "is neither IP_FAMILY_IPV4 nor IP_FAMILY_IPV6".to_owned())?;
        let is_new = families[..place].iter().all(|earlier| earlier.family != family.family);
        valid(is_new, at("family"), || "is also that of an earlier entry".to_owned())?;
        revision(family.applied.as_ref(), at("applied"))?;
        short(&family.error, LONGEST_TEXT, at("error"))?;
    }
    Ok(())
}

fn parts(wire::SkippedParts { parts, count }: &wire::SkippedParts) -> Result<(), Invalid> {
    let most = "more than 256; shorten the list, but not `count`";
    valid(parts.len() <= MOST_PARTS, "skipped.parts", || format!("has {} entries, {most}", parts.len()))?;
    valid(*count as usize >= parts.len(), "skipped.count", || "is less than the length of `parts`".to_owned())?;
    for (place, part) in parts.iter().enumerate() {
        let at = |field: &str| format!("skipped.parts[{place}].{field}");
        service(part.service.as_ref(), at("service"))?;
        let of = part.diagnostic.as_ref().ok_or_else(|| (at("diagnostic"), "is missing".to_owned()))?;
        diagnostic(of, &at("diagnostic"))?;
    }
    Ok(())
}

fn service(key: Option<&wire::ServiceKey>, field: String) -> Result<(), Invalid> {
    let is_name = |text: &String| (1..=LONGEST_NAME).contains(&text.len()) && !text.contains(char::is_control);
    let is_valid = key.is_some_and(|key| is_name(&key.namespace) && is_name(&key.name));
    valid(is_valid, field, || "is not the key of a Service; send the key as received".to_owned())
}

fn revision(revision: Option<&wire::Revision>, field: impl Into<String>) -> Result<(), Invalid> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_valid = revision.is_none_or(|wire::Revision { instance, number }| {
        instance.len() == 16 && instance.bytes().all(is_digit) && *number < REVISIONS
    });
    valid(is_valid, field, || {
        "is not a revision: an instance of 16 lower-case hexadecimal digits, and a number less than 2^53; send it as received"
            .to_owned()
    })
}

fn diagnostic(of: &wire::Diagnostic, path: &str) -> Result<(), Invalid> {
    let at = |field: &str| format!("{path}.{field}");
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    // Kubernetes requires a reason for an Event, which consists of the words of the code.
    let is_word = |word: &str| word.bytes().any(|byte| byte != b'-') && word.bytes().all(is_letter);
    let is_code = match of.code.split_once('/') {
        Some((backend, code)) => is_word(backend) && is_word(code),
        None => is_word(&of.code),
    };
    valid(is_code && of.code.len() <= LONGEST_CODE, at("code"), || {
        "is not a code: at most 127 lower-case letters, digits and hyphens, with at least one letter or digit; it may begin with the \
         backend's name and a slash"
            .to_owned()
    })?;
    valid(!of.problem.is_empty(), at("problem"), || "is missing".to_owned())?;
    short(&of.field, LONGEST_FIELD, at("field"))?;
    short(&of.problem, LONGEST_TEXT, at("problem"))?;
    short(&of.remedy, LONGEST_TEXT, at("remedy"))
}

fn short(text: &str, most: usize, field: String) -> Result<(), Invalid> {
    valid(text.len() <= most, field, || format!("has {} bytes, more than {most}; shorten it", text.len()))
}

fn valid(is_valid: bool, field: impl Into<String>, problem: impl FnOnce() -> String) -> Result<(), Invalid> {
    if is_valid { Ok(()) } else { Err((field.into(), problem())) }
}
