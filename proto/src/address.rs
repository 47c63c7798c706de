//! The address of a brain, in the syntax of Docker's hosts: `unix:///run/localnet/brain.sock`, `tcp://127.0.0.1:12090` or
//! `npipe:////./pipe/localnet`.

use std::{error::Error, fmt, path::PathBuf, str::FromStr};

/// The default address of a brain.
#[cfg(windows)]
pub const DEFAULT_ADDRESS: &str = "tcp://127.0.0.1:12090";

/// The default address of a brain.
#[cfg(not(windows))]
pub const DEFAULT_ADDRESS: &str = "unix:///run/localnet/brain.sock";

/// The address of a brain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The absolute path of a unix socket.
    Unix(PathBuf),
    /// A host and a port.
    Tcp {
        /// The host's name or IP address, without brackets.
        host: String,
        /// The port; a brain that listens on 0 lets the kernel choose one.
        port: u16,
    },
    /// The name of a named pipe on this Windows machine, without the prefix `\\.\pipe\`.
    Pipe(String),
}

/// The error for a string that is not a valid [`Address`].
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidAddress {
    text: String,
    problem: &'static str,
}

impl fmt::Display for InvalidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, problem } = self;
        write!(
            f,
            "{text:?}: {problem}; expected unix:///absolute/path or tcp://host:port (or, on Windows, npipe:////./pipe/name)"
        )
    }
}

impl Error for InvalidAddress {}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |problem| InvalidAddress { text: text.to_owned(), problem };
        if let Some(path) = text.strip_prefix("unix://") {
            return match path.strip_prefix('/') {
                Some(rest) if !rest.is_empty() => Ok(Self::Unix(path.into())),
                _ => Err(bad("the path must be absolute")),
            };
        }
        if let Some(pipe) = text.strip_prefix("npipe://") {
            return match pipe.strip_prefix("//./pipe/") {
                Some(name) if !name.is_empty() && !name.contains('\\') => Ok(Self::Pipe(name.to_owned())),
                _ => Err(bad("not a pipe on this machine")),
            };
        }
        let Some(rest) = text.strip_prefix("tcp://") else { return Err(bad("unknown scheme")) };
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| bad("the port is missing"))?;
        let port = port.parse().map_err(|_| bad("the port is not a number from 0 to 65535"))?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if bare.is_empty() || (bare == host && host.contains(':')) {
            return Err(bad("the host is missing, or is an IPv6 address without brackets"));
        }
        Ok(Self::Tcp { host: bare.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Pipe(name) => write!(f, "npipe:////./pipe/{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in
            [DEFAULT_ADDRESS, "tcp://127.0.0.1:12090", "tcp://[::1]:1", "tcp://brain.example:0", "npipe:////./pipe/a/b"]
        {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn the_error_for_an_invalid_address_names_the_problem() {
        let rows = [
            ("/run/brain.sock", "unknown scheme"),
            ("unix://brain.sock", "the path must be absolute"),
            ("unix:///", "the path must be absolute"),
            ("npipe:////./pipe/", "not a pipe on this machine"),
            ("npipe:////other/pipe/a", "not a pipe on this machine"),
            (r"npipe:////./pipe/..\a", "not a pipe on this machine"),
            ("tcp://127.0.0.1", "the port is missing"),
            ("tcp://127.0.0.1:http", "the port is not a number from 0 to 65535"),
            ("tcp://:80", "the host is missing, or is an IPv6 address without brackets"),
            ("tcp://::1:80", "the host is missing, or is an IPv6 address without brackets"),
        ];
        for (text, problem) in rows {
            assert_eq!(text.parse::<Address>(), Err(InvalidAddress { text: text.to_owned(), problem }));
        }
    }
}
