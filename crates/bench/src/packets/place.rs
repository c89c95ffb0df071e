//! Where a port is, as a person writes it.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use millrace_port::af_xdp::{AfXdp, Take};
use millrace_port::memif::Memif;
use millrace_port::ring::{Ring, Side};
use millrace_port::vhost_user::VhostUser;
use millrace_port::virtio_user::VirtioUser;
use millrace_port::{Port, af_xdp, memif, ring, vhost_user, virtio_user};

/// What a person should have written.
const FORM: &str = "KIND:PATH, with memif-server or memif-client and options id=N, ring=N and buffer=N, virtio-user-server or \
                    virtio-user-client and ring=N, buffer=N and packed=1, or vhost-user-server or vhost-user-client; ring-first:NAME or \
                    ring-second:NAME, or af-xdp:INTERFACE, and ring=N";
/// The protocol of what is sent: an interface of the kernel's has it come here, and the rest is the kernel's.
const UDP: u8 = 17;

/// A port to open: `KIND:PATH`, and options behind commas, as `memif-server:/run/a.sock,id=1,ring=2048`.
#[derive(Clone, Debug)]
pub struct Place {
    text: String,
    kind: Kind,
}

/// What is there.
#[derive(Clone, Debug)]
enum Kind {
    Memif(memif::Config),
    /// The front end: a switch is the back end.
    VirtioUser(virtio_user::Config),
    /// The back end.
    VhostUser(vhost_user::Config),
    /// A side of a ring between two programs, which the agent brings together.
    Ring(ring::Config),
    /// The first queue of an interface.
    AfXdp(af_xdp::Config),
}

impl Kind {
    /// One without options.
    fn new(kind: &str, name: &str) -> Option<Kind> {
        let path = PathBuf::from(name);
        let virtio = |is_server: bool| match is_server {
            true => vhost_user::Role::Server,
            false => vhost_user::Role::Client,
        };
        Some(match kind {
            "memif-server" => Kind::Memif(memif_of(memif::Role::Server, path)),
            "memif-client" => Kind::Memif(memif_of(memif::Role::Client, path)),
            "virtio-user-server" => Kind::VirtioUser(virtio_user::Config::new(virtio(true), path)),
            "virtio-user-client" => Kind::VirtioUser(virtio_user::Config::new(virtio(false), path)),
            "vhost-user-server" => Kind::VhostUser(vhost_user_of(virtio(true), path)),
            "vhost-user-client" => Kind::VhostUser(vhost_user_of(virtio(false), path)),
            "ring-first" => Kind::Ring(ring::Config::new(name, Side::First)),
            "ring-second" => Kind::Ring(ring::Config::new(name, Side::Second)),
            "af-xdp" => Kind::AfXdp(af_xdp::Config {
                take: vec![Take::Protocol(UDP)],
                ..af_xdp::Config::new(name)
            }),
            _ => return None,
        })
    }

    /// Takes an option. False: there is none of this name.
    fn set(&mut self, name: &str, value: u32) -> Result<bool> {
        if name == "ring" {
            ensure!(
                value.is_power_of_two() && value <= 1 << 15,
                "a ring has a power of two descriptors, 32768 at most, not {value}"
            );
        }
        match (self, name) {
            (Kind::Memif(config), "id") => config.id = value,
            (Kind::Memif(config), "ring") => config.log2_ring_size = value.ilog2() as u8,
            (Kind::Memif(config), "buffer") => config.buffer_bytes = value,
            (Kind::VirtioUser(config), "ring") => config.ring_size = value as u16,
            (Kind::VirtioUser(config), "buffer") => config.buffer_bytes = value,
            (Kind::VirtioUser(config), "packed") => config.packed = value != 0,
            (Kind::Ring(config), "ring") => config.slots = value,
            (Kind::AfXdp(config), "ring") => config.ring_size = value,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The generator is run by who tests, on ports of his own.
fn memif_of(role: memif::Role, path: PathBuf) -> memif::Config {
    memif::Config {
        accept_unsealed: true,
        ..memif::Config::new(role, path)
    }
}

/// The same.
fn vhost_user_of(role: vhost_user::Role, path: PathBuf) -> vhost_user::Config {
    vhost_user::Config {
        accept_unsealed: true,
        ..vhost_user::Config::new(role, path)
    }
}

impl FromStr for Place {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Place> {
        let wrong = || format!("{text:?} is no port: one is {FORM}");
        let (kind, rest) = text.split_once(':').with_context(wrong)?;
        let mut words = rest.split(',');
        let name = words.next().filter(|name| !name.is_empty());
        let mut kind = Kind::new(kind, name.with_context(wrong)?).with_context(wrong)?;
        for word in words {
            let (name, value) = word.split_once('=').with_context(wrong)?;
            let value: u32 = value.parse().ok().with_context(wrong)?;
            let is_known = kind.set(name, value);
            if !is_known.with_context(|| format!("in {text:?}"))? {
                bail!(wrong());
            }
        }
        Ok(Place {
            text: text.to_owned(),
            kind,
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
        let said = || format!("the port {self} cannot be opened");
        Ok(match &self.kind {
            Kind::Memif(config) => Box::new(Memif::new(config.clone()).with_context(said)?),
            Kind::VirtioUser(config) => {
                Box::new(VirtioUser::new(config.clone()).with_context(said)?)
            }
            Kind::VhostUser(config) => Box::new(VhostUser::new(config.clone()).with_context(said)?),
            Kind::Ring(config) => Box::new(Ring::new(config).with_context(said)?),
            Kind::AfXdp(config) => Box::new(AfXdp::open(config).with_context(said)?),
        })
    }

    /// The same of a ring, whose packets can be written where the other side reads them. None: it is another port.
    pub(super) fn open_ring(&self) -> Result<Option<Ring>> {
        let Kind::Ring(config) = &self.kind else {
            return Ok(None);
        };
        let ring = Ring::new(config);
        let ring = ring.with_context(|| format!("the port {self} cannot be opened"))?;
        Ok(Some(ring))
    }

    /// Where a socket can be that nobody else has: beside one at which this port listens, as that is its own. Elsewhere the directory need
    /// not be; and a process number alone is not enough, since there may be others of it in other namespaces.
    fn path_of_own(&self) -> PathBuf {
        let is_server = |role: vhost_user::Role| role == vhost_user::Role::Server;
        let listens = match &self.kind {
            Kind::Memif(config) => (config.role == memif::Role::Server).then_some(&config.path),
            Kind::VirtioUser(config) => is_server(config.role).then_some(&config.path),
            Kind::VhostUser(config) => is_server(config.role).then_some(&config.path),
            Kind::Ring(_) | Kind::AfXdp(_) => None,
        };
        if let Some(path) = listens {
            let mut own = path.clone().into_os_string();
            own.push(".own");
            return own.into();
        }
        std::env::temp_dir().join(format!("millrace-load-{}", name_of_own()))
    }

    /// The two ends of one connection, as large as this port: what is sent by the first comes by the second. Of virtio the second is the
    /// back end, since two front ends have nothing to say to each other. None: an interface has no other end that is ours.
    pub(super) fn with_itself(&self) -> Option<[Place; 2]> {
        let own = self.path_of_own();
        let path = || own.clone();
        let (server, client) = (vhost_user::Role::Server, vhost_user::Role::Client);
        let kinds = match &self.kind {
            Kind::Memif(config) => [memif::Role::Server, memif::Role::Client].map(|role| {
                Kind::Memif(memif::Config {
                    role,
                    path: path(),
                    ..config.clone()
                })
            }),
            Kind::VirtioUser(config) => [
                Kind::VirtioUser(virtio_user::Config {
                    role: server,
                    path: path(),
                    ..config.clone()
                }),
                Kind::VhostUser(vhost_user_of(client, path())),
            ],
            Kind::VhostUser(config) => [
                Kind::VirtioUser(virtio_user::Config::new(server, path())),
                Kind::VhostUser(vhost_user::Config {
                    role: client,
                    path: path(),
                    ..config.clone()
                }),
            ],
            Kind::Ring(config) => {
                let name = format!("load/{}", name_of_own());
                [Side::First, Side::Second].map(|side| {
                    Kind::Ring(ring::Config {
                        name: name.clone(),
                        side,
                        ..config.clone()
                    })
                })
            }
            Kind::AfXdp(_) => return None,
        };
        Some(kinds.map(|kind| Place {
            text: format!("the generator itself, as {self}"),
            kind,
        }))
    }
}

/// What no other generator calls its own.
fn name_of_own() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ns = now.unwrap_or_default().as_nanos();
    format!("{}-{now_ns}", std::process::id())
}
