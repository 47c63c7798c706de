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
//!
//! A program that a kubeconfig names under `exec` is run for the first request, not at the start: one that fails is run again,
//! and the requests fail until it succeeds.

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
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
    /// `None` before they were looked at.
    fingerprint: Option<u64>,
    /// `None` while a credential plugin has not succeeded yet.
    connection: Option<Connection>,
    token: Option<Token>,
    /// The credential plugin has failed.
    failed: Option<Failed>,
}

/// Why there are no new credentials, and since when.
#[derive(Debug)]
struct Failed {
    at: Instant,
    why: String,
}

/// How long a credential plugin that has failed is left alone: four watches ask at once.
const PLUGIN_PAUSE: Duration = Duration::from_secs(1);

impl Configured {
    /// Reads the configuration: `kubeconfig`, or else the usual places. Nothing is sent yet, and no credential plugin is run.
    pub(super) async fn read(
        kubeconfig: Option<&Path>,
        server: Option<http::Uri>,
        keep_alive: KeepAlive,
    ) -> anyhow::Result<Self> {
        let files = kubeconfig.map_or(Files::Usual, |path| Files::Kubeconfig(path.to_owned()));
        let place = Place { files, server };
        let hashes = RandomState::new();
        let fingerprint = fingerprint(&hashes, &place);
        let mut read = Read::of(&place).await?;
        let url = read.config.cluster_url.to_string();
        let now = if read.config.auth_info.exec.take().is_some() {
            // Everything else has to be usable.
            read.connect(keep_alive)?;
            Now { fingerprint: None, connection: None, token: None, failed: None }
        } else {
            let connection = Some(read.connect(keep_alive)?);
            Now { fingerprint: Some(fingerprint), connection, token: read.token, failed: None }
        };
        Ok(Self { place, keep_alive, hashes, now: Arc::new(Mutex::new(now)), url: watch::Sender::new(url) })
    }

    /// Where the API server is.
    pub(super) fn url(&self) -> watch::Receiver<String> {
        self.url.subscribe()
    }

    pub(super) async fn ask(self, mut request: http::Request<Body>) -> Result<http::Response<AnyBody>, BoxError> {
        let (connection, token) = self.look().await??;
        if let Some(token) = token {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        connection.oneshot(request).await
    }

    /// What the files say now.
    async fn look(&self) -> Result<Result<(Connection, Option<HeaderValue>), NoCredentials>, task::JoinError> {
        let (this, mut now) = (self.clone(), Arc::clone(&self.now).lock_owned().await);
        // Files may be on a server that is away, and a plugin may take its time.
        let looked = task::spawn_blocking(move || {
            let fingerprint = fingerprint(&this.hashes, &this.place);
            let changed = now.fingerprint != Some(fingerprint);
            let again = now.failed.as_ref().is_some_and(|failed| failed.at.elapsed() >= PLUGIN_PAUSE);
            if changed || again {
                this.open(&mut now, fingerprint);
            }
            if let Some(token) = &mut now.token {
                token.refresh();
            }
            match (&now.connection, &now.failed) {
                (Some(connection), _) => Ok((connection.clone(), now.token.as_ref().map(|token| token.header.clone()))),
                (None, Some(failed)) => Err(NoCredentials(failed.why.clone())),
                (None, None) => Err(NoCredentials("its configuration has not been read yet".to_owned())),
            }
        });
        looked.await
    }

    /// Connects as the files say now. What cannot be used leaves the former connection.
    fn open(&self, now: &mut Now, fingerprint: u64) {
        let is_first = now.fingerprint.is_none();
        now.fingerprint = Some(fingerprint);
        let (place, keep_alive) = (&self.place, self.keep_alive);
        let opened = Handle::current().block_on(async {
            let read = Read::of(place).await.map_err(|error| (error, false))?;
            let plugin = read.config.auth_info.exec.is_some();
            let connection = read.connect(keep_alive).map_err(|error| (error, plugin))?;
            Ok((read.config.cluster_url.to_string(), connection, read.token))
        });
        match opened {
            Ok((url, connection, token)) => {
                if !is_first && now.failed.is_none() {
                    info!(url, "the configuration of the API server has changed, and is used from now on");
                }
                (now.connection, now.token, now.failed) = (Some(connection), token, None);
                self.url.send_replace(url);
            }
            Err((error, plugin)) => {
                let why = format!("{error:#}");
                let is_news = now.failed.as_ref().is_none_or(|failed| failed.why != why);
                // Requests that fail for it say so.
                if is_news && now.connection.is_some() {
                    warn!(
                        error = why,
                        "the changed configuration of the API server cannot be used; the former one stays in use"
                    );
                }
                // A plugin may succeed the next time; files are looked at again when they change.
                now.failed = (plugin || now.connection.is_none()).then(|| Failed { at: Instant::now(), why });
            }
        }
    }
}

/// The credentials of a request cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoCredentials(String);

/// A configuration that was read; its `exec` is left only if a plugin is to be run.
struct Read {
    config: Config,
    token: Option<Token>,
}

impl Read {
    async fn of(place: &Place) -> anyhow::Result<Self> {
        let mut config = place.read().await?;
        let user = &mut config.auth_info;
        let token = Token::take(user).context(UNUSABLE)?;
        // In the order of kube, which is client-go's.
        let password = user.username.is_some() && user.password.is_some();
        if user.auth_provider.is_some() || password || user.token.is_some() {
            user.exec = None;
        }
        Ok(Self { config, token })
    }

    fn connect(&self, keep_alive: KeepAlive) -> anyhow::Result<Connection> {
        let connected = connect(&self.config, keep_alive);
        let Some(exec) = &self.config.auth_info.exec else { return connected.context(UNUSABLE) };
        connected.map_err(|error| match error.downcast_ref::<kube::Error>() {
            Some(kube::Error::Auth(failed)) => {
                let program = exec.command.as_deref().unwrap_or_default();
                anyhow::anyhow!("the credential plugin {program:?}: {}", trouble::plugin(failed))
            }
            _ => error.context(UNUSABLE),
        })
    }
}

const UNUSABLE: &str = "failed to use the configuration of the API server";

/// A number that changes with the content of the files.
fn fingerprint(hashes: &RandomState, place: &Place) -> u64 {
    let content = |file: &PathBuf| fs::read(file).map_err(|error: io::Error| error.kind());
    hashes.hash_one(place.files().iter().map(content).collect::<Vec<_>>())
}
