//! A configuration in use, and how it follows the changes of its file.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    sync::Arc,
};

use localnet_config::{Config, KubeProxyFlags, Reader, Reading};
use localnet_core::Diagnostic;
use tokio::{
    sync::watch,
    task::{self, JoinSet},
};
use tracing::{error, info, warn};

use crate::{
    read::{placed, read, text},
    watch::Watch,
};

/// A configuration in use.
#[derive(Debug)]
pub struct Running {
    flags: KubeProxyFlags,
    reader: Reader,
    file: Option<PathBuf>,
    /// The text that was read last; `None` if the file could not be read.
    text: Option<String>,
    reading: Reading,
    watch: Option<Watch>,
}

impl Running {
    pub(crate) fn new(
        flags: KubeProxyFlags,
        reader: Reader,
        file: Option<PathBuf>,
        text: Option<String>,
        reading: Reading,
    ) -> Self {
        Self { flags, reader, file, text, reading, watch: None }
    }

    /// The current configuration.
    pub fn config(&self) -> &Config {
        &self.reading.config
    }

    /// The flags that were given.
    pub fn flags(&self) -> &KubeProxyFlags {
        &self.flags
    }

    /// Whether the configuration comes from a file.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// The origin of the configuration, for the log: the file, or `flags`.
    fn origin(&self) -> impl Display + use<> {
        self.file.as_ref().map_or_else(|| "flags".to_owned(), |file| file.display().to_string())
    }

    /// Logs that a program starts, with the version, the node if any, the source, the mode and the origin of the configuration.
    pub fn log_start(&self, program: &str, node: Option<&str>, source: impl Display) {
        info!(
            version = env!("CARGO_PKG_VERSION"),
            node,
            source = %source,
            mode = self.config().mode.as_str(),
            configuration = %self.origin(),
            "{program} starts"
        );
    }

    /// Logs the warnings of the configuration. Call this after logging has started, because the configuration determines
    /// how to log.
    pub fn log_warnings(&self) {
        if let Some(file) = &self.file {
            info!(file = %file.display(), version = self.reading.version.as_str(), "configuration read");
        }
        self.log_new_warnings(&[]);
    }

    /// Follows the file until the returned `Following` is dropped. Each part of the program gets a clone of `Current`.
    /// Requires a tokio runtime.
    pub fn follow(self) -> (Current, Following) {
        let mut running = self;
        let (sender, current) = watch::channel(Arc::new(running.config().clone()));
        let mut work = JoinSet::new();
        work.spawn(async move {
            while !sender.is_closed() {
                let config = Arc::new(running.changed().await.clone());
                sender.send_replace(config);
            }
        });
        (Current(current), Following { work })
    }

    /// Logs only the warnings that were not logged before.
    fn log_new_warnings(&self, before: &[Diagnostic]) {
        for warning in self.reading.warnings.iter().filter(|warning| !before.contains(warning)) {
            warn!("{}", placed(warning, self.file.as_deref()));
        }
    }

    /// Waits until the file contains a valid configuration that differs from the current one, and returns it. From then on,
    /// [`Self::config`] also returns it. An invalid file is reported and changes nothing. If there is no file, this waits
    /// forever. Cancel-safe. Requires a tokio runtime.
    pub async fn changed(&mut self) -> &Config {
        let Some(file) = self.file.clone() else { return std::future::pending().await };
        // The watch begins before the first check. Otherwise a change between the check and the watch would be missed.
        let mut first = self.watch.is_none();
        loop {
            let watch = self.watch.get_or_insert_with(|| Watch::new(&file));
            if !std::mem::take(&mut first) {
                watch.check_due().await;
            }
            if self.read_file(&file).await {
                return &self.reading.config;
            }
        }
    }

    /// Reads the file. Returns whether the configuration has changed.
    async fn read_file(&mut self, file: &Path) -> bool {
        let path = file.to_owned();
        let read_text = task::spawn_blocking(move || text(&path)).await;
        let text = match read_text.map_err(anyhow::Error::from).flatten() {
            Ok(text) => text,
            Err(why) => {
                // If the file cannot be read, report this once and not at every check.
                if self.text.take().is_some() {
                    error!("{why:#}; keeping the previous configuration");
                }
                return false;
            }
        };
        if self.text.as_ref() == Some(&text) {
            return false;
        }
        let reading = read(&self.flags, self.reader, Some(file), Some(&text));
        self.text = Some(text);
        match reading {
            Ok(reading) => {
                let before = std::mem::replace(&mut self.reading, reading);
                self.log_new_warnings(&before.warnings);
                if before.config == self.reading.config {
                    info!(file = %file.display(), "the configuration is unchanged");
                    return false;
                }
                info!(file = %file.display(), "the configuration changed");
                let waiting = before.config.at_start(&self.reading.config);
                if !waiting.is_empty() {
                    warn!(fields = waiting.join(", "), "restart the program to apply these fields");
                }
                true
            }
            Err(why) => {
                for line in why.to_string().lines() {
                    error!("{line}; keeping the previous configuration");
                }
                false
            }
        }
    }
}

/// A handle to the current configuration. Each part of a program has its own clone of the handle.
#[derive(Clone, Debug)]
pub struct Current(watch::Receiver<Arc<Config>>);

impl Current {
    /// Returns the current configuration.
    pub fn now(&self) -> Arc<Config> {
        Arc::clone(&self.0.borrow())
    }

    /// Waits until the configuration changes and returns it. Cancel-safe.
    pub async fn changed(&mut self) -> Arc<Config> {
        if self.0.changed().await.is_err() {
            // The task that follows the file has ended. Either the program is about to exit, or it exits now because the
            // task crashed ([`Following::failed`]).
            std::future::pending::<()>().await;
        }
        Arc::clone(&self.0.borrow_and_update())
    }
}

/// The task that follows the file. Dropping this value ends the task.
#[derive(Debug)]
#[must_use = "the file is followed until this is dropped"]
pub struct Following {
    work: JoinSet<()>,
}

impl Following {
    /// Waits until the task crashes, and returns the error. A program that did not exit on this error would silently
    /// ignore all later changes to the file. Cancel-safe.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.work.join_next().await {
            Some(Err(error)) => {
                anyhow::Error::new(error).context("the task that follows the configuration file crashed")
            }
            // The task has ended normally.
            Some(Ok(())) | None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use localnet_config::Platform;

    use super::*;
    use crate::{Begin, begin};

    fn document(period: &str) -> String {
        format!("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nsyncPeriod: {period}\n")
    }

    /// Returns a running program with that file.
    fn running(file: &Path) -> Running {
        let (flags, reader) = (KubeProxyFlags::default(), Reader::kube_proxy(Platform::Linux));
        let text = text(file).unwrap();
        let reading = read(&flags, reader, Some(file), Some(&text)).unwrap();
        Running::new(flags, reader, Some(file.to_owned()), Some(text), reading)
    }

    #[tokio::test(start_paused = true)]
    async fn a_crash_of_the_following_task_is_an_error() {
        let mut work = JoinSet::new();
        work.spawn(async { panic!("out of luck") });
        let error = format!("{:#}", Following { work }.failed().await);
        assert!(
            error.contains("the task that follows the configuration file crashed") && error.contains("out of luck")
        );
        let mut work = JoinSet::new();
        work.spawn(async {});
        let hour = tokio::time::timeout(Duration::from_secs(3600), Following { work }.failed()).await;
        assert!(hour.is_err(), "a task that ends without a crash is not an error");
    }

    #[tokio::test]
    async fn only_another_valid_configuration_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        fs::write(&file, document("1m")).unwrap();
        let mut running = running(&file);
        for (text, changes) in [
            (Some(document("1m")), false),
            (Some(format!("# a comment\n{}", document("60s"))), false),
            (Some(document("-1s")), false),
            (Some("nonsense".to_owned()), false),
            (Some(String::new()), false),
            (None, false),
            (None, false),
            (Some(document("2m")), true),
            (Some(document("2m")), false),
            (None, false),
            (Some(document("2m")), false),
        ] {
            match &text {
                Some(text) => fs::write(&file, text).unwrap(),
                None => _ = fs::remove_file(&file),
            }
            let before = running.config().clone();
            assert_eq!(running.read_file(&file).await, changes, "{text:?}");
            assert_eq!(running.config() != &before, changes, "{text:?}");
        }
        assert_eq!(running.config().sync_period, Duration::from_secs(120));
    }

    #[tokio::test(start_paused = true)]
    async fn flags_alone_never_change() {
        let Ok(Begin::Run(mut running)) = begin(KubeProxyFlags::default(), Reader::kube_proxy(Platform::Linux)) else {
            panic!("flags need no file")
        };
        assert!(!running.has_file());
        // Time is paused, so an hour passes as soon as all tasks wait.
        let hour = tokio::time::timeout(Duration::from_secs(3600), running.changed()).await;
        assert!(hour.is_err());
    }
}
