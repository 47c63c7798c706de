//! The versions of HNS and their features.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Failure;

/// Returns the output of `HNSCall` from its response: `{"Success":true,"Output":{"Major":15,"Minor":3}}`.
///
/// # Errors
/// Returns an error if the response reports a failure or cannot be parsed.
pub fn output(response: String) -> Result<String, Failure> {
    let answer: Value = serde_json::from_str(&response).unwrap_or_default();
    match answer.get("Output").filter(|_| answer["Success"] == true) {
        Some(output) => Ok(output.to_string()),
        None => Err(Failure { call: "HNSCall", hresult: 0, record: response }),
    }
}

/// The version of HNS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Version {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

impl Version {
    /// Creates a version.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The HNS features that a backend needs. The version limits are those of Microsoft's own library, which kube-proxy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Whether HNS supports documents of schema 2.0, which are required.
    pub v2: bool,
    /// Whether HNS supports routes to subnets on other nodes, and remote endpoints. Overlay networks need both.
    pub remote_subnet: bool,
    /// Whether HNS supports direct server return.
    pub dsr: bool,
    /// Whether HNS supports load balancers for IPv6.
    pub ipv6: bool,
    /// Whether load balancers support session affinity.
    pub session_affinity: bool,
    /// Whether load balancers can be changed in place. HNS may claim this feature but not have it.
    pub modify_load_balancer: bool,
}

impl Features {
    /// Returns the features of a version.
    pub fn of(version: Version) -> Self {
        // Later minor versions of this major version also have the feature. The next major version may have it only from a higher
        // minor version.
        let within = |major, minor| version.major == major && version.minor >= minor;
        let from = |major, minor| version >= Version::new(major, minor);
        Self {
            v2: from(9, 2),
            remote_subnet: from(9, 2),
            dsr: within(9, 3) || from(10, 2),
            ipv6: from(11, 10),
            session_affinity: from(12, 0),
            modify_load_balancer: within(15, 5) || from(16, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hcn::schema;

    #[test]
    fn the_version_is_parsed_from_the_response() {
        let read = |response: &str| output(response.to_owned()).map(|output| schema::read_version(&output));
        let answer = r#"{"Success":true,"Error":"","Output":{"Major":15,"Minor":3}}"#;
        assert_eq!(read(answer), Ok(Ok(Version::new(15, 3))));
        assert!(read(r#"{"Success":true,"Output":"15.3"}"#).unwrap().is_err());
        for (response, message) in [
            (r#"{"Success":false,"Error":"Access is denied."}"#, "Access is denied."),
            (r#"{"Output":{"Major":15,"Minor":3}}"#, "Major"),
            ("[]", "[]"),
            ("", "HNSCall: error"),
        ] {
            let failure = read(response).unwrap_err().to_string();
            assert!(failure.contains(message), "{response}: {failure}");
        }
    }

    #[test]
    fn features_begin_at_the_versions_of_microsofts_library() {
        let features = |version: &str| {
            let (major, minor) = version.split_once('.').unwrap();
            let features = Features::of(Version::new(major.parse().unwrap(), minor.parse().unwrap()));
            let Features { v2, remote_subnet, dsr, ipv6, session_affinity, modify_load_balancer } = features;
            let all = [
                (v2, "v2"),
                (remote_subnet, "remote"),
                (dsr, "dsr"),
                (ipv6, "v6"),
                (session_affinity, "affinity"),
                (modify_load_balancer, "modify"),
            ];
            all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect::<Vec<_>>().join(" ")
        };
        for (version, expected) in [
            ("9.1", ""),
            ("9.2", "v2 remote"),
            ("9.3", "v2 remote dsr"),
            ("9.99", "v2 remote dsr"),
            ("10.0", "v2 remote"),
            ("10.2", "v2 remote dsr"),
            ("11.9", "v2 remote dsr"),
            ("11.10", "v2 remote dsr v6"),
            ("12.0", "v2 remote dsr v6 affinity"),
            ("15.4", "v2 remote dsr v6 affinity"),
            ("15.5", "v2 remote dsr v6 affinity modify"),
            ("16.0", "v2 remote dsr v6 affinity modify"),
        ] {
            assert_eq!(features(version), expected, "{version}");
        }
    }
}
