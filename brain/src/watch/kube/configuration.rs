//! The configuration of the API server, for as long as it is asked: its files are looked at before each request.
//!
//! ```text
//! kubeconfig, certificates ─► another content? ─► a new client, with a connection of its own
//! token file               ─► the token of this request
//! ```
//!
//! Requests are rare, since a watch lasts for minutes, and the files are small. Watches that are under way keep the
//! connection they have: the API server looks at credentials when a request begins. Files that cannot be used, for instance
//! half written ones, change nothing.

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use http::{HeaderValue, header::AUTHORIZATION};
use kube::{
    Config,
    client::Body,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::{
    runtime::Handle,
    sync::{Mutex, watch},
    task,
};
use tower::{BoxError, ServiceExt as _};
use tracing::{info, warn};

use super::{
    connection::{AnyBody, Connection, KeepAlive, connect},
    trouble,
};

/// Where the configuration is.
#[derive(Clone, Debug)]
struct Place {
    files: Files,
    /// The API server is there, whatever the files say.
    server: Option<http::Uri>,
}

#[derive(Clone, Debug)]
enum Files {
    Kubeconfig(PathBuf),
    /// `KUBECONFIG`, `~/.kube/config`, the service account of a pod.
    Usual,
}

impl Place {
    async fn read(&self) -> anyhow::Result<Config> {
        let config = self.files.read().await;
        let Some(server) = self.server.clone() else { return config };
        match (config, &self.files) {
            (Ok(mut config), _) => {
                config.cluster_url = server;
                Ok(config)
            }
            // No credentials are needed where there are none.
            (Err(_), Files::Usual) => Ok(Config::new(server)),
            (Err(error), Files::Kubeconfig(_)) => Err(error),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.files()
    }
}

impl Files {
    async fn read(&self) -> anyhow::Result<Config> {
        match self {
            Self::Kubeconfig(path) => {
                let config = read(path).await.map_err(|error| anyhow::anyhow!(trouble::cause(&error)));
                config.with_context(|| format!("failed to use kubeconfig {}", path.display()))
            }
            Self::Usual => Config::infer().await.map_err(|error| {
                anyhow::anyhow!(
                    "failed to find an API server: {}; name a kubeconfig with --source kube:PATH",
                    trouble::cause(&error)
                )
            }),
        }
    }

    /// The files that the configuration is made of, in so far as kube does not look after them itself.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = match self {
            Self::Kubeconfig(path) => vec![path.clone()],
            Self::Usual => match std::env::var_os("KUBECONFIG") {
                Some(paths) => std::env::split_paths(&paths).collect(),
                None => std::env::home_dir().into_iter().map(|home| home.join(".kube/config")).collect(),
            },
        };
        for kubeconfig in files.clone().iter().filter_map(|path| Kubeconfig::read_from(path).ok()) {
            let authorities = kubeconfig.clusters.into_iter().filter_map(|named| named.cluster?.certificate_authority);
            let users = kubeconfig.auth_infos.into_iter().filter_map(|named| named.auth_info);
            let identities = users.flat_map(|user| [user.client_certificate, user.client_key]).flatten();
            files.extend(authorities.chain(identities).map(PathBuf::from));
        }
        files
    }
}

async fn read(kubeconfig: &Path) -> Result<Config, KubeconfigError> {
    Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default()).await
}

/// A token that is read from a file for each request.
#[derive(Clone, Debug)]
struct Token {
    file: PathBuf,
    header: HeaderValue,
    /// Why it is still this one.
    trouble: Option<String>,
}

impl Token {
    /// Takes the token file out of the credentials, if that is what counts. In the order of kube, which is client-go's.
    fn take(user: &mut AuthInfo) -> anyhow::Result<Option<Self>> {
        let password = user.username.is_some() && user.password.is_some();
        if user.auth_provider.is_some() || password || user.token.is_some() {
            return Ok(None);
        }
        let Some(file) = user.token_file.take().map(PathBuf::from) else { return Ok(None) };
        user.exec = None;
        let header = Self::read(&file).map_err(|problem| anyhow::anyhow!(problem))?;
        Ok(Some(Self { file, header, trouble: None }))
    }

    fn read(file: &Path) -> Result<HeaderValue, String> {
        let text = fs::read_to_string(file).map_err(|error| format!("token file {}: {error}", file.display()))?;
        // Whoever writes one by hand ends it with a line break.
        let token = Some(text.trim()).filter(|token| !token.is_empty());
        let header = token.and_then(|token| HeaderValue::try_from(format!("Bearer {token}")).ok());
        let mut header = header.ok_or_else(|| format!("token file {}: holds no token", file.display()))?;
        header.set_sensitive(true);
        Ok(header)
    }

    /// What cannot be read leaves the last token: some files are removed once they were read.
    fn refresh(&mut self) {
        match Self::read(&self.file) {
            Ok(header) => (self.header, self.trouble) = (header, None),
            Err(problem) => {
                if self.trouble.as_ref() != Some(&problem) {
                    warn!(problem, "the token cannot be read again; the former one stays in use");
                }
                self.trouble = Some(problem);
            }
        }
    }
}

/// Connects as the files say.
#[derive(Clone, Debug)]
pub(super) struct Configured {
    place: Place,
    keep_alive: KeepAlive,
    hashes: RandomState,
    now: Arc<Mutex<Now>>,
    url: watch::Sender<String>,
}

/// What the files last said.
#[derive(Debug)]
struct Now {
    fingerprint: u64,
    connection: Connection,
    token: Option<Token>,
}

impl Configured {
    /// Reads the configuration: `kubeconfig`, or else the usual places. Nothing is sent yet.
    pub(super) async fn read(
        kubeconfig: Option<&Path>,
        server: Option<http::Uri>,
        keep_alive: KeepAlive,
    ) -> anyhow::Result<Self> {
        let files = kubeconfig.map_or(Files::Usual, |path| Files::Kubeconfig(path.to_owned()));
        let place = Place { files, server };
        let hashes = RandomState::new();
        let fingerprint = fingerprint(&hashes, &place);
        let (url, connection, token) = open(&place, keep_alive).await?;
        let now = Arc::new(Mutex::new(Now { fingerprint, connection, token }));
        Ok(Self { place, keep_alive, hashes, now, url: watch::Sender::new(url) })
    }

    /// Where the API server is.
    pub(super) fn url(&self) -> watch::Receiver<String> {
        self.url.subscribe()
    }

    pub(super) async fn ask(self, mut request: http::Request<Body>) -> Result<http::Response<AnyBody>, BoxError> {
        let (connection, token) = self.look().await?;
        if let Some(token) = token {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        connection.oneshot(request).await
    }

    /// What the files say now.
    async fn look(&self) -> Result<(Connection, Option<HeaderValue>), task::JoinError> {
        let (this, mut now) = (self.clone(), Arc::clone(&self.now).lock_owned().await);
        // Files may be on a server that is away.
        let looked = task::spawn_blocking(move || {
            let fingerprint = fingerprint(&this.hashes, &this.place);
            if fingerprint != now.fingerprint {
                now.fingerprint = fingerprint;
                match Handle::current().block_on(open(&this.place, this.keep_alive)) {
                    Ok((url, connection, token)) => {
                        info!(url, "the configuration of the API server has changed, and is used from now on");
                        (now.connection, now.token) = (connection, token);
                        this.url.send_replace(url);
                    }
                    Err(error) => warn!(
                        error = format!("{error:#}"),
                        "the changed configuration of the API server cannot be used; the former one stays in use"
                    ),
                }
            }
            if let Some(token) = &mut now.token {
                token.refresh();
            }
            (now.connection.clone(), now.token.as_ref().map(|token| token.header.clone()))
        });
        looked.await
    }
}

async fn open(place: &Place, keep_alive: KeepAlive) -> anyhow::Result<(String, Connection, Option<Token>)> {
    let mut config = place.read().await?;
    let unusable = "failed to use the configuration of the API server";
    let token = Token::take(&mut config.auth_info).context(unusable)?;
    let connection = connect(&config, keep_alive).context(unusable)?;
    Ok((config.cluster_url.to_string(), connection, token))
}

/// A number that changes with the content of the files.
fn fingerprint(hashes: &RandomState, place: &Place) -> u64 {
    let content = |file: &PathBuf| fs::read(file).map_err(|error: io::Error| error.kind());
    hashes.hash_one(place.files().iter().map(content).collect::<Vec<_>>())
}
