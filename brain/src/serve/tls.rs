//! Mutual TLS for TCP. Changed files are reloaded, so that short-lived certificates can be renewed without a restart.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
        server::{NoServerSessionStorage, WebPkiClientVerifier},
    },
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use webpki::{EndEntityCert, KeyUsage};

use super::names;
use crate::{peer::Name, stamp::Stamp, throttle::Throttle};

/// The PEM files of mutual TLS.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of the brain for TCP, in PEM; reloaded when it changes
    #[arg(long = "tls-cert", value_name = "FILE", required = false, requires = "key", requires = "client_ca")]
    pub certificate: PathBuf,
    /// Key of the certificate, in PEM
    #[arg(long = "tls-key", value_name = "FILE", required = false, requires = "certificate")]
    pub key: PathBuf,
    /// CA certificates that verify client certificates, in PEM
    #[arg(long = "tls-client-ca", value_name = "FILE", required = false, requires = "certificate")]
    pub client_ca: PathBuf,
}

impl TlsFiles {
    fn stamp(&self) -> [Option<Stamp>; 3] {
        [&self.certificate, &self.key, &self.client_ca].map(|path| Stamp::of(path).ok())
    }

    /// Loads the files. If `allowed` is not empty, only clients with a name in `allowed` may connect.
    fn config(&self, allowed: &[Name]) -> anyhow::Result<Usable> {
        let provider = Arc::new(ring::default_provider());
        let authorities = certificates(&self.client_ca)?;
        let mut roots = RootCertStore::empty();
        for root in &authorities {
            roots
                .add(root.clone())
                .with_context(|| format!("{} contains an invalid certificate", self.client_ca.display()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .with_context(|| format!("cannot use {} to verify clients", self.client_ca.display()))?;
        let verifier = names::Verifier { inner: verifier, allowed: allowed.to_vec(), refusals: Throttle::default() };
        let certificates = certificates(&self.certificate)?;
        let expires = certificates.iter().filter_map(expires).min();
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .with_context(|| format!("failed to read a private key in PEM from {}", self.key.display()))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_single_cert(certificates, key)
            .with_context(|| {
                format!(
                    "the key in {1} does not belong to the certificate in {0}",
                    self.certificate.display(),
                    self.key.display()
                )
            })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // A client that resumes a session does not present its certificate again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Usable { config: Arc::new(config), authorities, expires })
    }
}

/// The parsed content of valid files.
#[derive(Debug)]
struct Usable {
    config: Arc<ServerConfig>,
    /// The certificate authorities of clients.
    authorities: Vec<CertificateDer<'static>>,
    /// The earliest expiry of the brain's certificates.
    expires: Option<UnixTime>,
}

/// The expiry of a certificate. `webpki` has no accessor for the expiry. But if `webpki` verifies the certificate for a
/// later time, the error contains the expiry.
fn expires(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    /// The end of the year 9999, which is the latest expiry that a certificate can contain (RFC 5280 §4.1.2.5).
    const LATEST: Duration = Duration::from_secs(253_402_300_800);
    let latest = UnixTime::since_unix_epoch(LATEST);
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    match certificate.verify_for_usage(&[], &[], &[], latest, KeyUsage::server_auth(), None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => Some(not_after),
        _ => None,
    }
}

/// A warning if a certificate expires soon.
fn warning(expires: UnixTime, now: UnixTime) -> Option<&'static str> {
    const DAY: u64 = 24 * 60 * 60;
    match expires.as_secs().checked_sub(now.as_secs()) {
        None => Some("has expired, so clients refuse it"),
        Some(left) if left < DAY => Some("expires in less than a day"),
        Some(left) if left < 7 * DAY => Some("expires in less than a week"),
        Some(_) => None,
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    let certificates = read().with_context(|| format!("failed to read certificates in PEM from {}", path.display()))?;
    anyhow::ensure!(!certificates.is_empty(), "{} contains no certificate in PEM", path.display());
    Ok(certificates)
}

/// A TLS configuration that follows its files. If they become invalid, it keeps the last valid content.
#[derive(Debug)]
pub(super) struct Tls {
    files: TlsFiles,
    allowed: Vec<Name>,
    loaded: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    /// The stamps of the files at the last read, whether or not the files were valid then.
    stamp: [Option<Stamp>; 3],
    usable: Usable,
    /// The last logged warning about the expiry.
    warned: Option<&'static str>,
    /// Cancelled when the certificate authorities of clients are replaced.
    retired: CancellationToken,
}

impl Tls {
    /// Loads `files`. If `allowed` is not empty, only clients with a name in `allowed` may connect.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or parsed, or if the key and the certificate do not match.
    pub(super) fn load(files: TlsFiles, allowed: &[Name]) -> anyhow::Result<Self> {
        let (stamp, usable) = (files.stamp(), files.config(allowed)?);
        let loaded = Loaded { stamp, usable, warned: None, retired: CancellationToken::new() };
        let tls = Self { files, allowed: allowed.to_vec(), loaded: Mutex::new(loaded) };
        drop(tls.current());
        Ok(tls)
    }

    /// The acceptor for the next connection, and a token that is cancelled when this connection's client has to reconnect.
    pub(super) fn acceptor(&self) -> (TlsAcceptor, CancellationToken) {
        let current = self.current();
        (TlsAcceptor::from(Arc::clone(&current.usable.config)), current.retired.clone())
    }

    /// The Unix time at which the server's certificate expires.
    pub(super) fn expires(&self) -> Option<u64> {
        self.current().usable.expires.map(|at| at.as_secs())
    }

    /// Reloads changed files. Logs a warning if the certificate expires soon. While the files are invalid, for instance
    /// because they are only partly replaced, the previous content stays in use.
    fn current(&self) -> MutexGuard<'_, Loaded> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.files.certificate.display();
        let stamp = self.files.stamp();
        if stamp != loaded.stamp {
            loaded.stamp = stamp;
            match self.files.config(&self.allowed) {
                Ok(usable) => {
                    if loaded.usable.authorities != usable.authorities {
                        std::mem::take(&mut loaded.retired).cancel();
                    }
                    loaded.usable = usable;
                    info!(certificate = %file, "the certificates were reloaded");
                }
                Err(error) => {
                    warn!(
                        error = format!("{error:#}"),
                        "cannot use the changed certificates; keeping the previous ones"
                    );
                }
            }
        }
        if let Some(expires) = loaded.usable.expires {
            let warning = warning(expires, UnixTime::now());
            if std::mem::replace(&mut loaded.warned, warning) != warning
                && let Some(warning) = warning
            {
                warn!(%file, expires = expires.as_secs(), "the certificate of this server {warning}; renew it");
            }
        }
        loaded
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The input is three files, separated by a zero byte.
    #[test]
    fn fuzz_files_of_tls() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let files = TlsFiles { certificate: path("tls.crt"), key: path("tls.key"), client_ca: path("ca.crt") };
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let good = [certificate.pem(), key.serialize_pem(), certificate.pem()].join("\0");
        localnet_fuzz::target("tls-files", &[good.as_bytes()], |bytes| {
            let mut parts = bytes.split(|byte| *byte == 0);
            for path in [&files.certificate, &files.key, &files.client_ca] {
                fs::write(path, parts.next().unwrap_or_default()).unwrap();
            }
            match files.config(&[]) {
                Ok(_) => "valid".to_owned(),
                Err(error) => format!("{error:#}"),
            }
        });
    }

    #[test]
    fn a_certificate_that_expires_within_a_week_is_warned_about() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 2, 3);
        let certificate = params.self_signed(&key).unwrap();
        let end = expires(certificate.der()).unwrap();
        assert_eq!(end.as_secs(), 1_927_843_200);
        let warned = |seconds: i64| {
            let now = end.as_secs().checked_add_signed(-seconds).unwrap();
            warning(end, UnixTime::since_unix_epoch(Duration::from_secs(now)))
        };
        let day = 24 * 60 * 60;
        let (week, soon) = (Some("expires in less than a week"), Some("expires in less than a day"));
        let expired = Some("has expired, so clients refuse it");
        assert_eq!([8 * day, 6 * day, day / 2, 0, -1].map(warned), [None, week, soon, soon, expired]);
    }
}
