//! Where a brain is served, in docker's syntax: `unix:///run/localnet/brain.sock`, `tcp://127.0.0.1:12090` or `npipe:////./pipe/localnet`.

use std::{fmt, path::PathBuf, str::FromStr};

/// The address that a brain serves on and backends dial when nothing else is said.
#[cfg(windows)]
pub const DEFAULT_ADDRESS: &str = "tcp://127.0.0.1:12090";

/// The address that a brain serves on and backends dial when nothing else is said.
#[cfg(not(windows))]
pub const DEFAULT_ADDRESS: &str = "unix:///run/localnet/brain.sock";

/// Where a brain is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket, by absolute path.
    Unix(PathBuf),
    /// Host (a name or an IP address, without brackets) and port.
    Tcp {
        /// Name or address of the host.
        host: String,
        /// Port; 0 lets the kernel choose one to listen on.
        port: u16,
    },
    /// A named pipe of Windows, on this machine: its name, without `\\.\pipe\` before it.
    Pipe(String),
}

/// A text that is no address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{text:?}: {problem}; expected unix:///absolute/path or tcp://host:port (or, on Windows, npipe:////./pipe/name)"
)]
pub struct BadAddress {
    text: String,
    problem: &'static str,
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |problem| BadAddress { text: text.to_owned(), problem };
        if let Some(path) = text.strip_prefix("unix://") {
            return match path.strip_prefix('/') {
                Some(rest) if !rest.is_empty() => Ok(Self::Unix(path.into())),
                _ => Err(bad("the path must be absolute")),
            };
        }
        if let Some(pipe) = text.strip_prefix("npipe://") {
            return match pipe.strip_prefix("//./pipe/") {
                Some(name) if !name.is_empty() && !name.contains('\\') => Ok(Self::Pipe(name.to_owned())),
                _ => Err(bad("it names no pipe of this machine: npipe:////./pipe/name does")),
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
    fn addresses_are_read_and_written() {
        for text in
            [DEFAULT_ADDRESS, "tcp://127.0.0.1:12090", "tcp://[::1]:1", "tcp://brain.example:0", "npipe:////./pipe/a/b"]
        {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_is_no_address_says_why() {
        let rows = [
            ("/run/brain.sock", "unknown scheme"),
            ("unix://brain.sock", "the path must be absolute"),
            ("unix:///", "the path must be absolute"),
            ("npipe:////./pipe/", "it names no pipe of this machine: npipe:////./pipe/name does"),
            ("npipe:////other/pipe/a", "it names no pipe of this machine: npipe:////./pipe/name does"),
            (r"npipe:////./pipe/..\a", "it names no pipe of this machine: npipe:////./pipe/name does"),
            ("tcp://127.0.0.1", "the port is missing"),
            ("tcp://127.0.0.1:http", "the port is not a number from 0 to 65535"),
            ("tcp://:80", "the host is missing, or is an IPv6 address without brackets"),
            ("tcp://::1:80", "the host is missing, or is an IPv6 address without brackets"),
        ];
        for (text, problem) in rows {
            assert_eq!(text.parse::<Address>(), Err(BadAddress { text: text.to_owned(), problem }));
        }
    }
}
