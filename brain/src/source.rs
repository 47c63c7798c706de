//! Where the brain reads Kubernetes objects: `--source`.

use std::{fmt, path::PathBuf, str::FromStr};

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
}
