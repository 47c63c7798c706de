//! Where the brain reads Kubernetes objects: `--source`.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

/// A source of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file or folder of Kubernetes YAML or JSON.
    File(PathBuf),
    /// An API server.
    Kube {
        /// The kubeconfig. `None` means the default locations.
        kubeconfig: Option<PathBuf>,
        /// A URL that overrides the URL in the kubeconfig.
        server: Option<http::Uri>,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Kube { server: Some(server), .. } => write!(f, "kube:{server}"),
            Self::Kube { kubeconfig: Some(path), .. } => write!(f, "kube:{}", path.display()),
            Self::Kube { .. } => f.write_str("kube"),
        }
    }
}

/// The names of the sources.
pub fn names(sources: &[Source]) -> Vec<Arc<str>> {
    sources.iter().map(|source| source.to_string().into()).collect()
}

/// Checks that sources can be merged.
///
/// # Errors
/// Returns an error if a source occurs twice, or if there are two API servers.
pub(crate) fn check(sources: &[Source]) -> anyhow::Result<()> {
    for (position, source) in sources.iter().enumerate() {
        let earlier = &sources[..position];
        anyhow::ensure!(!earlier.contains(source), "--source {source}: is given twice; remove one of the two");
        let is_kube = |source: &Source| matches!(source, Source::Kube { .. });
        anyhow::ensure!(
            !is_kube(source) || !earlier.iter().any(is_kube),
            "--source {source}: is the second API server, but the brain reads only one; remove one of the two"
        );
    }
    Ok(())
}

/// The error for a string that is not a [`Source`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected file:PATH, kube or kube:KUBECONFIG")]
pub struct BadSource;

impl FromStr for Source {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "kube" => Ok(Self::Kube { kubeconfig: None, server: None }),
            Some(("kube", path)) if !path.is_empty() => Ok(Self::Kube { kubeconfig: Some(path.into()), server: None }),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(BadSource),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_parsed() {
        let rows = [
            ("file:examples", Ok(Source::File("examples".into()))),
            ("file:/a:b", Ok(Source::File("/a:b".into()))),
            ("kube", Ok(Source::Kube { kubeconfig: None, server: None })),
            ("kube:/etc/kubeconfig", Ok(Source::Kube { kubeconfig: Some("/etc/kubeconfig".into()), server: None })),
            ("kube:", Err(BadSource)),
            ("file:", Err(BadSource)),
            ("file", Err(BadSource)),
            ("examples", Err(BadSource)),
        ];
        for (text, expected) in rows {
            assert_eq!(text.parse::<Source>(), expected, "{text}");
        }
    }

    #[test]
    fn a_source_occurs_once_and_only_one_is_an_api_server() {
        let rows = [
            (&["kube", "file:a", "file:b"][..], ""),
            (&["file:a", "kube", "file:a"], "--source file:a: is given twice"),
            (&["kube", "kube:/k"], "--source kube:/k: is the second API server"),
        ];
        for (texts, expected) in rows {
            let sources: Vec<Source> = texts.iter().map(|text| text.parse().unwrap()).collect();
            let error = check(&sources).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with(expected) && error.is_empty() == expected.is_empty(), "{texts:?}: {error}");
        }
    }
}
