//! Where a port is, as a person writes it.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use millrace_port::Port;
use millrace_port::memif::{Config, Memif, Role};

/// A port to open: `KIND:PATH`, and options behind commas, as `memif-server:/run/a.sock,id=1,ring=2048`.
#[derive(Clone, Debug)]
pub struct Place {
    text: String,
    config: Config,
}

impl FromStr for Place {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Place> {
        let wrong = || {
            format!(
                "{text:?} is no port: one is memif-server:PATH or memif-client:PATH, with options id=N, ring=N and buffer=N"
            )
        };
        let (kind, rest) = text.split_once(':').with_context(wrong)?;
        let role = match kind {
            "memif-server" => Role::Server,
            "memif-client" => Role::Client,
            _ => bail!(wrong()),
        };
        let mut words = rest.split(',');
        let path = words.next().filter(|path| !path.is_empty());
        let mut config = Config::new(role, PathBuf::from(path.with_context(wrong)?));
        // The generator is run by who tests, on ports of his own.
        config.accept_unsealed = true;
        for word in words {
            let (name, value) = word.split_once('=').with_context(wrong)?;
            let value: u32 = value.parse().with_context(wrong)?;
            match name {
                "id" => config.id = value,
                "ring" => {
                    ensure!(
                        value.is_power_of_two(),
                        "in {text:?}: a ring has a power of two descriptors, not {value}"
                    );
                    config.log2_ring_size = value.ilog2() as u8;
                }
                "buffer" => config.buffer_bytes = value,
                _ => bail!(wrong()),
            }
        }
        Ok(Place {
            text: text.to_owned(),
            config,
        })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.text)
    }
}

impl Place {
    /// Opens the port, which need not be connected then.
    ///
    /// # Errors
    /// What the port says.
    pub(super) fn open(&self) -> Result<Box<dyn Port>> {
        let port = Memif::new(self.config.clone());
        Ok(Box::new(port.with_context(|| {
            format!("the port {self} cannot be opened")
        })?))
    }
}
