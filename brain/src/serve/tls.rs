//! Mutual TLS for TCP. The files are read again when they have changed, so that short-lived certificates need no restart.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
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

use super::names::{self, Name};
use crate::{metrics::Metrics, throttle::Throttle};

/// The files of mutual TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The brain's certificate, followed by those that lead to its root.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// Roots of the clients' certificates.
    pub client_ca: PathBuf,
}

impl TlsFiles {
    fn stamp(&self) -> [Option<Stamp>; 3] {
        [&self.certificate, &self.key, &self.client_ca].map(|path| Stamp::of(path))
    }

    /// How to greet clients, of whom those with these names may connect, or all if there are none.
    fn config(&self, allowed: &[Name]) -> anyhow::Result<Usable> {
        let provider = Arc::new(ring::default_provider());
        let authorities = certificates(&self.client_ca)?;
        let mut roots = RootCertStore::empty();
        for root in &authorities {
            roots.add(root.clone()).with_context(|| format!("{} holds a bad certificate", self.client_ca.display()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .with_context(|| format!("{} cannot verify clients", self.client_ca.display()))?;
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
                format!("{} and {} do not belong together", self.certificate.display(), self.key.display())
            })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // A session that is taken up again would spare a client from showing its certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Usable { config: Arc::new(config), authorities, expires })
    }
}

/// What the files hold.
struct Usable {
    config: Arc<ServerConfig>,
    /// Whose certificates clients may have.
    authorities: Vec<CertificateDer<'static>>,
    /// When the first of the brain's certificates expires.
    expires: Option<UnixTime>,
}

/// When a certificate expires. Verifying it says so first, if it is asked about a time when everything has expired.
fn expires(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    /// The year 9999, the last that a certificate can name, is over.
    const THE_END: Duration = Duration::from_secs(253_402_300_800);
    let never = UnixTime::since_unix_epoch(THE_END);
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    match certificate.verify_for_usage(&[], &[], &[], never, KeyUsage::server_auth(), None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => Some(not_after),
        _ => None,
    }
}

/// How much life a certificate has left, as far as somebody should be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Enough,
    /// Less than a week.
    Week,
    /// Less than a day.
    Day,
    Over,
}

impl Life {
    fn left(expires: UnixTime, now: UnixTime) -> Self {
        const DAY: u64 = 24 * 60 * 60;
        match expires.as_secs().checked_sub(now.as_secs()) {
            None => Self::Over,
            Some(left) if left < DAY => Self::Day,
            Some(left) if left < 7 * DAY => Self::Week,
            Some(_) => Self::Enough,
        }
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    let found = read().with_context(|| format!("failed to read certificates in PEM from {}", path.display()))?;
    anyhow::ensure!(!found.is_empty(), "{} holds no certificate in PEM", path.display());
    Ok(found)
}

/// Tells one content of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    modified: (i64, i64),
    size: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self { inode: file.ino(), modified: (file.mtime(), file.mtime_nsec()), size: file.size() })
    }
}

/// Mutual TLS with the newest usable content of its files.
pub(super) struct Tls {
    files: TlsFiles,
    allowed: Vec<Name>,
    /// Where the time of expiry is told.
    metrics: OnceLock<Metrics>,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    /// Of the files when they were last read, whether or not they were good.
    stamp: [Option<Stamp>; 3],
    usable: Usable,
    /// What was last said in the log of its life.
    life: Life,
    /// Cancelled when other authorities take the place of these.
    retired: CancellationToken,
}

impl Tls {
    /// The files; clients with these names may connect, or all if there are none.
    pub(super) fn load(files: TlsFiles, allowed: &[Name]) -> anyhow::Result<Self> {
        let stamp = files.stamp();
        let usable = files.config(allowed)?;
        let loaded = Loaded { stamp, usable, life: Life::Enough, retired: CancellationToken::new() };
        let tls = Self { files, allowed: allowed.to_vec(), metrics: OnceLock::new(), loaded: Mutex::new(loaded) };
        tls.look();
        Ok(tls)
    }

    /// From now on the time of expiry is told there.
    pub(super) fn tell(&self, metrics: Metrics) {
        _ = self.metrics.set(metrics);
        self.look();
    }

    /// For the next connection, and what tells when clients of this one have to connect anew.
    pub(super) fn acceptor(&self) -> (TlsAcceptor, CancellationToken) {
        self.look();
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        (TlsAcceptor::from(Arc::clone(&loaded.usable.config)), loaded.retired.clone())
    }

    /// Reads files that have changed. While they are unusable, for instance half replaced, the last good ones stay.
    pub(super) fn look(&self) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.files.stamp();
        if stamp != loaded.stamp {
            loaded.stamp = stamp;
            match self.files.config(&self.allowed) {
                Ok(usable) => {
                    if loaded.usable.authorities != usable.authorities {
                        std::mem::take(&mut loaded.retired).cancel();
                    }
                    loaded.usable = usable;
                    info!(certificate = %self.files.certificate.display(), "certificates read again");
                }
                Err(error) => {
                    warn!(
                        error = format!("{error:#}"),
                        "the changed certificates are not usable; the former ones stay in use"
                    );
                }
            }
        }
        let Some(expires) = loaded.usable.expires else { return };
        if let Some(metrics) = self.metrics.get() {
            metrics.certificate_expires(expires.as_secs());
        }
        let life = Life::left(expires, UnixTime::now());
        if std::mem::replace(&mut loaded.life, life) == life {
            return;
        }
        let (file, expires) = (self.files.certificate.display(), expires.as_secs());
        match life {
            Life::Enough => {}
            Life::Week => warn!(%file, expires, "the certificate of this server expires in less than a week; renew it"),
            Life::Day => warn!(%file, expires, "the certificate of this server expires in less than a day; renew it"),
            Life::Over => {
                warn!(%file, expires, "the certificate of this server has expired: clients refuse it; renew it");
            }
        }
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three files, with a zero between them.
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
                Ok(_) => "good".to_owned(),
                Err(error) => format!("{error:#}"),
            }
        });
    }

    #[test]
    fn the_end_of_a_certificate_is_known_and_told_in_time() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 2, 3);
        let certificate = params.self_signed(&key).unwrap();
        let end = expires(certificate.der()).unwrap();
        assert_eq!(end.as_secs(), 1_927_843_200);
        let left = |seconds: i64| {
            let now = end.as_secs().checked_add_signed(-seconds).unwrap();
            Life::left(end, UnixTime::since_unix_epoch(Duration::from_secs(now)))
        };
        let day = 24 * 60 * 60;
        assert_eq!(
            [8 * day, 6 * day, day / 2, 0, -1].map(left),
            [Life::Enough, Life::Week, Life::Day, Life::Day, Life::Over]
        );
    }
}
