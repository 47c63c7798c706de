//! Authorization of TLS clients by the names in their certificates: DNS names, and URIs such as SPIFFE IDs. Pure.

use std::{str::FromStr, sync::Arc};

use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use tracing::warn;
use webpki::EndEntityCert;

use crate::throttle::Throttle;

/// An allowed name. A name that ends with `/*` allows every URI below a path; any other name is a complete DNS name or
/// URI.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// Checks whether a client may connect. The caller has verified the certificate.
///
/// # Errors
/// Returns [`Refused`] if `allowed` is not empty and contains none of the certificate's names.
pub(super) fn check(allowed: &[Name], certificate: &CertificateDer<'_>) -> Result<(), Refused> {
    if allowed.is_empty() {
        return Ok(());
    }
    let certificate = EndEntityCert::try_from(certificate).map_err(Refused::Unreadable)?;
    let dns: Vec<&str> = certificate.valid_dns_names().collect();
    let uris: Vec<&str> = certificate.valid_uri_names().collect();
    // The SPIFFE X.509-SVID standard (§2): a certificate with several URI names must be rejected.
    let uri = match uris[..] {
        [uri] => Some(uri),
        _ => None,
    };
    let matches = |name: &Name| dns.iter().any(|dns| name.is_dns(dns)) || uri.is_some_and(|uri| name.is_uri(uri));
    if allowed.iter().any(matches) {
        return Ok(());
    }
    let names: Vec<String> = dns.into_iter().chain(uris).map(str::to_owned).collect();
    Err(if names.is_empty() { Refused::Nameless } else { Refused::NotListed(names) })
}

/// Verifies certificates as `inner` does, and then checks the names in them. A client that may not connect gets the TLS alert
/// `access_denied`, not only a closed connection.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) inner: Arc<dyn ClientCertVerifier>,
    pub(super) allowed: Vec<Name>,
    pub(super) refusals: Throttle,
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(certificate, intermediates, now)?;
        check(&self.allowed, certificate).map_err(|refused| {
            if let Some(others) = self.refusals.pass() {
                warn!(error = %refused, others, "a client's certificate was refused");
            }
            Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
        })?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Why a certificate was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// The certificate contains no name.
    #[error("the client's certificate has no name; issue a certificate with a DNS name or exactly one URI")]
    Nameless,
    /// The certificate contains only these names, and none of them is allowed.
    #[error("the client's names {0:?} are not allowed; add one of them to --tls-allow-name")]
    NotListed(Vec<String>),
    /// The certificate cannot be read.
    #[error("cannot parse the client's certificate: {0}")]
    Unreadable(webpki::Error),
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn certificate(names: &[SanType]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn uri(uri: &str) -> SanType {
        SanType::URI(uri.try_into().unwrap())
    }

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

    #[test]
    fn only_allowed_names_may_connect() {
        const ID: &str = "spiffe://cluster.local/ns/kube-system/sa/localnet";
        let rows = [
            (&[][..], vec![], true),
            (&["node-a"], vec![dns("node-a")], true),
            (&["node-a"], vec![dns("NODE-A")], true),
            (&["node-b", "node-a"], vec![dns("x"), dns("node-a")], true),
            (&["node-a"], vec![dns("node-a.example")], false),
            (&["node-a"], vec![], false),
            (&["node-a.example"], vec![dns("*.example")], false),
            (&["node-a"], vec![uri("node-a")], false),
            (&[ID], vec![uri(ID)], true),
            (&[ID], vec![dns("x"), uri(ID)], true),
            (&[ID], vec![uri(ID), uri("spiffe://cluster.local/other")], false),
            (&[ID], vec![uri("spiffe://cluster.local/ns/kube-system/sa/localnet2")], false),
            (&["spiffe://cluster.local/ns/kube-system/*"], vec![uri(ID)], true),
            (&["spiffe://cluster.local/ns/kube-system/*"], vec![uri("spiffe://cluster.local/ns/kube-system/")], false),
            (
                &["spiffe://cluster.local/ns/kube-system/*"],
                vec![uri("spiffe://cluster.local/ns/kube-system/../x")],
                false,
            ),
            (&["spiffe://cluster.local/ns/kube/*"], vec![uri(ID)], false),
            (&["spiffe://other/*"], vec![uri(ID)], false),
        ];
        for (allowed, names, expected) in rows {
            let allowed: Vec<Name> = allowed.iter().map(|name| name.parse().unwrap()).collect();
            let checked = check(&allowed, &certificate(&names));
            assert_eq!(checked.is_ok(), expected, "{allowed:?} {names:?}: {checked:?}");
        }
    }

    #[test]
    fn an_unreadable_or_nameless_certificate_is_refused() {
        let allowed = ["a".parse().unwrap()];
        let refused = check(&allowed, &CertificateDer::from(vec![1, 2, 3])).unwrap_err();
        assert!(refused.to_string().contains("cannot parse"), "{refused}");
        assert!(check(&allowed, &certificate(&[])).unwrap_err().to_string().contains("has no name"));
        let refused = check(&allowed, &certificate(&[dns("b")])).unwrap_err().to_string();
        assert!(refused.contains("[\"b\"]") && refused.contains("--tls-allow-name"), "{refused}");
    }
}
