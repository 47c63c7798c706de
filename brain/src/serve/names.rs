//! Authorization of TLS clients by the names in their certificates: DNS names, and URIs such as SPIFFE IDs. Pure.

use std::sync::Arc;

use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use tracing::warn;
use webpki::EndEntityCert;

use crate::{
    peer::{Name, Peer},
    throttle::Throttle,
};

/// The peer with this certificate, which the caller has verified.
pub(super) fn peer(certificate: &CertificateDer<'_>) -> Result<Peer, webpki::Error> {
    let certificate = EndEntityCert::try_from(certificate)?;
    let dns = certificate.valid_dns_names().map(str::to_owned).collect();
    let uris = certificate.valid_uri_names().map(str::to_owned).collect();
    Ok(Peer::Certificate { dns, uris })
}

/// Checks whether a client may connect. The caller has verified the certificate.
///
/// # Errors
/// Returns [`Refused`] if `allowed` is not empty and contains none of the certificate's names.
pub(super) fn check(allowed: &[Name], certificate: &CertificateDer<'_>) -> Result<(), Refused> {
    if allowed.is_empty() {
        return Ok(());
    }
    let peer = peer(certificate).map_err(Refused::Unreadable)?;
    if allowed.iter().any(|name| peer.is(name)) {
        return Ok(());
    }
    let names = peer.names();
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
