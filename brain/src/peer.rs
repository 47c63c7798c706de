//! The identity of an authenticated peer, and the names by which the operator refers to peers. Pure.

use std::str::FromStr;

use serde::Deserialize;

/// The identity of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A user, on a unix socket.
    User(u32),
    /// The owner of a verified certificate.
    Certificate {
        /// The DNS names in the certificate.
        dns: Vec<String>,
        /// The URIs in the certificate.
        uris: Vec<String>,
    },
    /// A peer that has not authenticated.
    Anonymous,
}

impl Peer {
    /// Whether the peer has the name.
    pub fn is(&self, name: &Name) -> bool {
        let Self::Certificate { dns, uris } = self else { return false };
        // The SPIFFE X.509-SVID standard (§2): a certificate with several URI names must be rejected.
        let uri = match &uris[..] {
            [uri] => Some(uri),
            _ => None,
        };
        dns.iter().any(|dns| name.is_dns(dns)) || uri.is_some_and(|uri| name.is_uri(uri))
    }

    /// The names in the certificate of the peer.
    pub fn names(self) -> Vec<String> {
        match self {
            Self::Certificate { dns, uris } => dns.into_iter().chain(uris).collect(),
            Self::User(_) | Self::Anonymous => Vec::new(),
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Certificate { .. } => write!(f, "the client with the names {:?}", self.clone().names()),
            Self::Anonymous => f.write_str("a client without a certificate"),
        }
    }
}

/// An allowed name. A name that ends with `/*` allows every URI below a path; any other name is a complete DNS name or
/// URI.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Name {
    /// A DNS name, in lower case.
    Dns(String),
    /// A URI.
    Uri(String),
    /// All URIs with this prefix, which ends with a slash.
    Below(String),
}

/// The error for a string that is not a [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a DNS name, a URI such as spiffe://cluster.local/ns/kube-system/sa/localnet, or a URI prefix that ends with /*"
)]
pub struct BadName;

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let good = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        let (path, below) = match text.strip_suffix('*') {
            Some(path) => (path, true),
            None => (text, false),
        };
        let authority =
            text.split_once("://").map(|(scheme, rest)| (scheme, rest.split('/').next().unwrap_or_default()));
        match authority {
            _ if !good || path.contains('*') => Err(BadName),
            Some((scheme, authority)) if scheme.is_empty() || authority.is_empty() || authority == "*" => Err(BadName),
            Some(_) if below => path.ends_with('/').then(|| Self::Below(path.to_owned())).ok_or(BadName),
            Some(_) => Ok(Self::Uri(path.to_owned())),
            None if below || text.contains('/') || text.contains(':') => Err(BadName),
            None => Ok(Self::Dns(text.to_ascii_lowercase())),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}

impl Name {
    fn is_dns(&self, name: &str) -> bool {
        matches!(self, Self::Dns(allowed) if allowed.eq_ignore_ascii_case(name))
    }

    fn is_uri(&self, uri: &str) -> bool {
        match self {
            Self::Dns(_) => false,
            Self::Uri(allowed) => allowed == uri,
            // The segments `.` and `..` could lead to a URI outside of the path.
            Self::Below(path) => {
                uri.strip_prefix(path.as_str()).is_some_and(|rest| !rest.is_empty() && !rest.split('/').any(dots))
            }
        }
    }
}

fn dots(segment: &str) -> bool {
    matches!(segment, "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let rows = [
            ("node-a.example", Ok(Name::Dns("node-a.example".into()))),
            ("Node-A", Ok(Name::Dns("node-a".into()))),
            ("spiffe://cluster.local/ns/a/sa/b", Ok(Name::Uri("spiffe://cluster.local/ns/a/sa/b".into()))),
            ("spiffe://cluster.local/ns/a/*", Ok(Name::Below("spiffe://cluster.local/ns/a/".into()))),
            ("spiffe://cluster.local/*", Ok(Name::Below("spiffe://cluster.local/".into()))),
            ("", Err(BadName)),
            ("*", Err(BadName)),
            ("*.example", Err(BadName)),
            ("spiffe://*", Err(BadName)),
            ("spiffe:///ns/a", Err(BadName)),
            ("spiffe://a/b*", Err(BadName)),
            ("://a/b", Err(BadName)),
            ("a,b", Err(BadName)),
            ("a b", Err(BadName)),
            ("10.0.0.1:80", Err(BadName)),
        ];
        for (text, expected) in rows {
            assert_eq!(text.parse::<Name>(), expected, "{text:?}");
        }
    }
}
