//! The configuration of the API server. Its files are checked before each request.
//!
//! ```text
//! kubeconfig, certificates ─► content has changed? ─► a new client, with its own connection
//! token file               ─► the token of this request
//! ```
//!
//! Checking the files is cheap, because the files are small, and because requests are rare: a watch lasts for minutes.
//! Watches in progress keep their connection, because the API server checks credentials only at the start of a request.
//! If the files are invalid, for instance because they are only partly written, the previous configuration stays in use.
//!
//! A credential plugin (`exec` in a kubeconfig) runs for the first request, not at the start. If the plugin fails, the
//! request fails, and the brain runs the plugin again until it succeeds.

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
    trouble::{self, NoCredentials},
};

/// Where the configuration comes from.
#[derive(Clone, Debug)]
struct Location {
    /// `None` means `KUBECONFIG`, `~/.kube/config`, or the service account of a pod.
    kubeconfig: Option<PathBuf>,
    /// The URL of the API server, which overrides the URL in the files.
    server: Option<http::Uri>,
}

impl Location {
    async fn read(&self) -> anyhow::Result<Config> {
        let config = match &self.kubeconfig {
            Some(path) => {
                let config = read(path).await.map_err(|error| anyhow::anyhow!(trouble::cause(&error)));
                config.with_context(|| format!("failed to use kubeconfig {}", path.display()))
            }
            None => Config::infer().await.map_err(|error| {
                anyhow::anyhow!(
                    "failed to find an API server: {}; pass a kubeconfig with --source kube:PATH",
                    trouble::cause(&error)
                )
            }),
        };
        match (config, self.server.clone()) {
            (Ok(mut config), Some(server)) => {
                config.cluster_url = server;
                Ok(config)
            }
            // A URL alone is enough for an API server without authentication.
            (Err(_), Some(server)) if self.kubeconfig.is_none() => Ok(Config::new(server)),
            (config, _) => config,
        }
    }

    /// The files of the configuration. Files that the crate `kube` itself reloads are omitted.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = match (&self.kubeconfig, std::env::var_os("KUBECONFIG")) {
            (Some(path), _) => vec![path.clone()],
            (None, Some(paths)) => std::env::split_paths(&paths).collect(),
            (None, None) => std::env::home_dir().into_iter().map(|home| home.join(".kube/config")).collect(),
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

/// A bearer token in a file, which is read for each request.
#[derive(Clone, Debug)]
struct Token {
    file: PathBuf,
    header: HeaderValue,
    /// Why the last read of the file failed. An equal error is not logged again.
    trouble: Option<String>,
}

/// Whether the user has credentials that take precedence over a token file and a plugin. The precedence is the same as in
/// the crate `kube` and in client-go.
fn precedes_files(user: &AuthInfo) -> bool {
    let password = user.username.is_some() && user.password.is_some();
    user.auth_provider.is_some() || password || user.token.is_some()
}

impl Token {
    /// Removes the token file from the credentials and reads it, unless other credentials take precedence over it.
    ///
    /// # Errors
    /// Returns an error if the token file has to be read, but cannot be read.
    fn take(user: &mut AuthInfo) -> anyhow::Result<Option<Self>> {
        if precedes_files(user) {
            return Ok(None);
        }
        let Some(file) = user.token_file.take().map(PathBuf::from) else { return Ok(None) };
        user.exec = None;
        let header = Self::read(&file).map_err(|problem| anyhow::anyhow!(problem))?;
        Ok(Some(Self { file, header, trouble: None }))
    }

    fn read(file: &Path) -> Result<HeaderValue, String> {
        let text = fs::read_to_string(file).map_err(|error| format!("token file {}: {error}", file.display()))?;
        // A file that was written by hand ends with a line break, which is not part of the token.
        let token = Some(text.trim()).filter(|token| !token.is_empty());
        let header = token.and_then(|token| HeaderValue::try_from(format!("Bearer {token}")).ok());
        let mut header = header.ok_or_else(|| format!("token file {}: contains no token", file.display()))?;
        header.set_sensitive(true);
        Ok(header)
    }

    /// Reads the token again. If that fails, the previous token stays in use, because some programs delete the file after
    /// the brain has read it.
    fn refresh(&mut self) {
        match Self::read(&self.file) {
            Ok(header) => (self.header, self.trouble) = (header, None),
            Err(problem) => {
                if self.trouble.as_ref() != Some(&problem) {
                    warn!(problem, "cannot renew the token; keeping the previous one");
                }
                self.trouble = Some(problem);
            }
        }
    }
}

/// A connection that follows its configuration. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Configured {
    location: Location,
    keep_alive: KeepAlive,
    hashes: RandomState,
    current: Arc<Mutex<Current>>,
    url: watch::Sender<String>,
}

/// The configuration that was read last.
#[derive(Debug)]
struct Current {
    /// A hash of the files. If there is a credential plugin, `None` until the first request.
    fingerprint: Option<u64>,
    /// `None` until a credential plugin has succeeded.
    connection: Option<Connection>,
    token: Option<Token>,
    /// The failure of the credential plugin, if its last run failed.
    failed: Option<Failed>,
}

/// Why there are no new credentials.
#[derive(Debug)]
struct Failed {
    at: Instant,
    why: String,
}

/// Minimum time between two runs of a failing credential plugin. Without it, four watches would run the plugin
/// simultaneously.
const PLUGIN_PAUSE: Duration = Duration::from_secs(1);

impl Configured {
    /// Reads the configuration. This neither sends a request nor runs a credential plugin.
    ///
    /// # Errors
    /// Returns an error if there is no configuration, or if it is invalid.
    pub(super) async fn read(
        kubeconfig: Option<&Path>,
        server: Option<http::Uri>,
        keep_alive: KeepAlive,
    ) -> anyhow::Result<Self> {
        let location = Location { kubeconfig: kubeconfig.map(Path::to_owned), server };
        let hashes = RandomState::new();
        let fingerprint = fingerprint(&hashes, &location);
        let mut read = Read::of(&location).await?;
        let url = read.config.cluster_url.to_string();
        let current = if read.config.auth_info.exec.take().is_some() {
            // This checks everything except the credential plugin.
            read.connect(keep_alive)?;
            Current { fingerprint: None, connection: None, token: None, failed: None }
        } else {
            let connection = Some(read.connect(keep_alive)?);
            Current { fingerprint: Some(fingerprint), connection, token: read.token, failed: None }
        };
        Ok(Self { location, keep_alive, hashes, current: Arc::new(Mutex::new(current)), url: watch::Sender::new(url) })
    }

    /// The URL of the API server.
    pub(super) fn url(&self) -> watch::Receiver<String> {
        self.url.subscribe()
    }

    /// Sends a request with the current configuration.
    ///
    /// # Errors
    /// Returns [`NoCredentials`] if a credential plugin fails, or the error of the connection.
    pub(super) async fn send(self, mut request: http::Request<Body>) -> Result<http::Response<AnyBody>, BoxError> {
        let (connection, token) = self.refresh().await??;
        if let Some(token) = token {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        connection.oneshot(request).await
    }

    /// Reads the files, and reconnects if they have changed.
    async fn refresh(&self) -> Result<Result<(Connection, Option<HeaderValue>), NoCredentials>, task::JoinError> {
        let (this, mut now) = (self.clone(), Arc::clone(&self.current).lock_owned().await);
        // Reading may block on a network file system, and a plugin may take long.
        let refreshed = task::spawn_blocking(move || {
            let fingerprint = fingerprint(&this.hashes, &this.location);
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
        refreshed.await
    }

    /// Connects with the current files. If they are invalid, the previous connection stays in use.
    fn open(&self, now: &mut Current, fingerprint: u64) {
        let is_first = now.fingerprint.is_none();
        now.fingerprint = Some(fingerprint);
        let (location, keep_alive) = (&self.location, self.keep_alive);
        let opened = Handle::current().block_on(async {
            let read = Read::of(location).await.map_err(|error| (error, false))?;
            let plugin = read.config.auth_info.exec.is_some();
            let connection = read.connect(keep_alive).map_err(|error| (error, plugin))?;
            Ok((read.config.cluster_url.to_string(), connection, read.token))
        });
        match opened {
            Ok((url, connection, token)) => {
                if !is_first && now.failed.is_none() {
                    info!(url, "the configuration of the API server was reloaded");
                }
                (now.connection, now.token, now.failed) = (Some(connection), token, None);
                self.url.send_replace(url);
            }
            Err((error, plugin)) => {
                let why = format!("{error:#}");
                let is_news = now.failed.as_ref().is_none_or(|failed| failed.why != why);
                // If there is no connection, the requests fail, and their log lines contain the reason.
                if is_news && now.connection.is_some() {
                    warn!(
                        error = why,
                        "cannot use the changed configuration of the API server; keeping the previous one"
                    );
                }
                // Run a failed plugin again after a pause. Invalid files need no retry until they change.
                now.failed = (plugin || now.connection.is_none()).then(|| Failed { at: Instant::now(), why });
            }
        }
    }
}

/// A parsed configuration. It contains `exec` only if the credential plugin has to run.
struct Read {
    config: Config,
    token: Option<Token>,
}

impl Read {
    async fn of(location: &Location) -> anyhow::Result<Self> {
        let mut config = location.read().await?;
        let user = &mut config.auth_info;
        let token = Token::take(user).context(UNUSABLE)?;
        if precedes_files(user) {
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

/// A hash of the content of the files.
fn fingerprint(hashes: &RandomState, location: &Location) -> u64 {
    let content = |file: &PathBuf| fs::read(file).map_err(|error: io::Error| error.kind());
    hashes.hash_one(location.files().iter().map(content).collect::<Vec<_>>())
}
