//! Mutual TLS for TCP. The files are read again when they have changed, so that short-lived certificates need no restart.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::{NoServerSessionStorage, WebPkiClientVerifier},
    },
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

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

    /// How to greet clients, and whose certificates they may have.
    fn config(&self) -> anyhow::Result<(ServerConfig, Vec<CertificateDer<'static>>)> {
        let provider = Arc::new(ring::default_provider());
        let authorities = certificates(&self.client_ca)?;
        let mut roots = RootCertStore::empty();
        for root in &authorities {
            roots.add(root.clone()).with_context(|| format!("{} holds a bad certificate", self.client_ca.display()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .with_context(|| format!("{} cannot verify clients", self.client_ca.display()))?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .with_context(|| format!("failed to read a private key in PEM from {}", self.key.display()))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(&self.certificate)?, key)
            .with_context(|| {
                format!("{} and {} do not belong together", self.certificate.display(), self.key.display())
            })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // A session that is taken up again would spare a client from showing its certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok((config, authorities))
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
    loaded: Mutex<Loaded>,
}

struct Loaded {
    /// Of the files when they were last read, whether or not they were good.
    stamp: [Option<Stamp>; 3],
    config: Arc<ServerConfig>,
    authorities: Vec<CertificateDer<'static>>,
    /// Cancelled when other authorities take the place of these.
    retired: CancellationToken,
}

impl Tls {
    pub(super) fn load(files: TlsFiles) -> anyhow::Result<Self> {
        let stamp = files.stamp();
        let (config, authorities) = files.config()?;
        let loaded = Loaded { stamp, config: Arc::new(config), authorities, retired: CancellationToken::new() };
        Ok(Self { files, loaded: Mutex::new(loaded) })
    }

    /// For the next connection, and what tells when clients of this one have to connect anew.
    pub(super) fn acceptor(&self) -> (TlsAcceptor, CancellationToken) {
        self.look();
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        (TlsAcceptor::from(Arc::clone(&loaded.config)), loaded.retired.clone())
    }

    /// Reads files that have changed. While they are unusable, for instance half replaced, the last good ones stay.
    pub(super) fn look(&self) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.files.stamp();
        if stamp != loaded.stamp {
            loaded.stamp = stamp;
            match self.files.config() {
                Ok((config, authorities)) => {
                    loaded.config = Arc::new(config);
                    if loaded.authorities != authorities {
                        loaded.authorities = authorities;
                        std::mem::take(&mut loaded.retired).cancel();
                    }
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
            match files.config() {
                Ok(_) => "good".to_owned(),
                Err(error) => format!("{error:#}"),
            }
        });
    }
}
