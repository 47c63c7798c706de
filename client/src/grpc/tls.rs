//! Mutual TLS to a brain on TCP. The files are read each time the client connects. The brain regularly disconnects its
//! clients, so that they reconnect with their current certificates.

use std::{
    fs, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};
use tracing::{info, warn};

use super::TlsFiles;

/// The contents of the files.
#[derive(Clone, PartialEq, Eq)]
struct Contents {
    ca: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// TLS with the newest usable contents of its files.
pub(super) struct Tls {
    files: TlsFiles,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    contents: Contents,
    config: Arc<ClientConfig>,
    /// The error that was logged last, if the current files cannot be used.
    logged: Option<String>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or its contents are invalid.
    pub(super) fn load(files: TlsFiles) -> anyhow::Result<Self> {
        let contents = read(&files)?;
        let config = Arc::new(config(&files, &contents)?);
        Ok(Self { files, loaded: Mutex::new(Loaded { contents, config, logged: None }) })
    }

    /// Connects to a brain with the present contents of the files.
    ///
    /// # Errors
    /// Returns an error if the brain cannot be reached, or if one side does not trust the other.
    pub(super) async fn connect(&self, host: &str, port: u16) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = super::connect(host.to_owned(), port).await?;
        TlsConnector::from(self.newest()).connect(name, stream).await
    }

    /// Reads the files. While they are unusable, for instance during their replacement, the last usable contents stay in
    /// use.
    fn newest(&self) -> Arc<ClientConfig> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let read = read(&self.files).and_then(|contents| {
            if contents == loaded.contents {
                return Ok(None);
            }
            let config = config(&self.files, &contents)?;
            Ok(Some((contents, config)))
        });
        match read {
            Ok(changed) => {
                loaded.logged = None;
                if let Some((contents, config)) = changed {
                    (loaded.contents, loaded.config) = (contents, Arc::new(config));
                    info!("the TLS files were reloaded");
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                if loaded.logged.as_ref() != Some(&error) {
                    warn!(error, "cannot use the changed TLS files; keeping the previous ones");
                    loaded.logged = Some(error);
                }
            }
        }
        Arc::clone(&loaded.config)
    }
}

fn read(files: &TlsFiles) -> anyhow::Result<Contents> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("failed to read {}", path.display()));
    let identity = match &files.identity {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    Ok(Contents { ca: read(&files.ca)?, identity })
}

fn config(files: &TlsFiles, contents: &Contents) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for root in certificates(&files.ca, &contents.ca)? {
        roots.add(root).with_context(|| format!("{} contains an invalid certificate", files.ca.display()))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match files.identity.as_ref().zip(contents.identity.as_ref()) {
        None => config.with_no_client_auth(),
        Some(((certificate_file, key_file), (certificate, key))) => {
            let key = PrivateKeyDer::from_pem_slice(key)
                .with_context(|| format!("failed to read a private key in PEM from {}", key_file.display()))?;
            config
                .with_client_auth_cert(certificates(certificate_file, certificate)?, key)
                .with_context(|| format!("{} is not the key of {}", key_file.display(), certificate_file.display()))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(path: &Path, pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found = found.with_context(|| format!("failed to read certificates in PEM from {}", path.display()))?;
    anyhow::ensure!(!found.is_empty(), "{} contains no certificate in PEM", path.display());
    Ok(found)
}
