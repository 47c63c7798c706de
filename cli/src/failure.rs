//! The reasons why a command has no answer, and their exit codes.

/// The reason why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments are invalid or contradict each other.
    #[error("{0}")]
    Usage(String),
    /// The brain, the file or the kernel cannot be read.
    #[error("{0:#}")]
    Unreadable(#[from] anyhow::Error),
    /// The requested object does not exist.
    #[error("{0}")]
    Missing(String),
}

impl Failure {
    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Unreadable(_) => 3,
            Self::Missing(_) => 4,
        }
    }
}
