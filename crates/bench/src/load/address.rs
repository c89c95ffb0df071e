//! Where a server is: `HOST:PORT`, or `unix:PATH`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Error, Result, ensure};

/// What marks the path of a Unix socket.
const UNIX: &str = "unix:";

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Of TCP.
    Tcp(SocketAddr),
    /// The path of a Unix stream socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = Error;

    /// A host's name is looked up, and the first of its addresses taken.
    fn from_str(text: &str) -> Result<Address> {
        if let Some(path) = text.strip_prefix(UNIX) {
            ensure!(
                !path.is_empty(),
                "an address of a Unix socket is {UNIX}PATH, and the path is missing"
            );
            return Ok(Address::Unix(path.into()));
        }
        let mut found = text
            .to_socket_addrs()
            .with_context(|| format!("an address is HOST:PORT or {UNIX}PATH, not {text}"))?;
        let first = found
            .next()
            .with_context(|| format!("{text} has no address"))?;
        Ok(Address::Tcp(first))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(formatter, "{address}"),
            Address::Unix(path) => write!(formatter, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_port_or_the_path_of_a_unix_socket() {
        for text in ["127.0.0.1:6379", "[::1]:80", "unix:/run/redis.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["6379", "unix:", "127.0.0.1:port", ""] {
            let error = format!("{:#}", text.parse::<Address>().unwrap_err());
            assert!(error.contains("unix:PATH"), "{error}");
        }
    }
}
