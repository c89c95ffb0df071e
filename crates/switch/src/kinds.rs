//! Kinds of port. A further one is a struct and an entry of `Kind` in `config/kinds.rs`, a field in `config/port.rs`, and an arm here;
//! nothing else of the switch knows what a port is of.

use std::io;
use std::time::Duration;

use millrace_port::af_xdp::{self, AfXdp};
use millrace_port::memif::{self, Memif};
use millrace_port::pcap::{Format, Link, Pace, Pcap};
use millrace_port::ring::{self, Ring};
use millrace_port::tap::{self, Tap};
use millrace_port::vhost_user::{self, VhostUser};
use millrace_port::virtio_user::{self, VirtioUser};
use millrace_port::{Offloads, Port};

use crate::config::{
    AfXdpConfig, Kind, MemifConfig, MirrorConfig, PcapConfig, PortConfig, RingConfig, RingSide,
    Role, TapConfig, VhostUserConfig, VirtioUserConfig,
};
use crate::handed::{self, Handed};

/// So long the kernel may need to part with a queue's socket and program, of a port that was taken away or a switch that was killed. The
/// thread that waits for it is one that no packet passes.
const PARTING: Duration = Duration::from_secs(1);

/// A port that was made, and that nobody has yet.
pub(crate) struct Made {
    pub(crate) port: Box<dyn Port + Send>,
    /// It is a file: reading and writing may take time, so that no processor of the data path has it.
    pub(crate) is_file: bool,
}

/// Makes a port of any kind but a tunnel, which is a part of an endpoint. `handed`: of what somebody else has opened.
pub(crate) fn open(config: &PortConfig, handed: Handed) -> Result<Option<Made>, String> {
    let kind = config.kind()?;
    let is_own = handed.is_nothing();
    let is_interface = matches!(kind, Kind::Tap(_) | Kind::AfXdp(_));
    if !is_own && !is_interface {
        return Err(handed::of_another_kind(config));
    }
    let most = config.memory_bytes_max();
    let made = match kind {
        Kind::Memif(one) => memif(&config.name, one, most).map(|port| Some(made(port, false))),
        Kind::VhostUser(one) => vhost_user(one, most).map(|port| Some(made(port, false))),
        Kind::VirtioUser(one) => virtio_user(one).map(|port| Some(made(port, false))),
        Kind::Ring(one) => ring(one).map(|port| Some(made(port, false))),
        Kind::Tap(one) => tap(one, handed).map(|port| Some(made(port, false))),
        Kind::AfXdp(one) => af_xdp(one, handed).map(|port| Some(made(port, false))),
        Kind::Pcap(one) => pcap(one).map(|port| Some(made(port, true))),
        Kind::Vxlan(_) => Ok(None),
    };
    made.map_err(|error| {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
        let hint = if is_denied && is_own && is_interface {
            let rights = handed::rights(kind);
            format!("; opening it takes {rights}, or `millrace switch add-port … --open` by somebody who has that")
        } else {
            String::new()
        };
        format!("port {:?}: {error}{hint}", config.name)
    })
}

/// A port, and whether it is a file, whose reading and writing may take time, and which wants to know the time before it is asked for
/// packets.
type Part = (Box<dyn Port + Send>, bool);

/// Makes a port of any kind but a tunnel, for a program that is no switch. Where the kernel has its queues apart (TAP, AF_XDP) it is in so
/// many parts at most, each of which may be another thread's; otherwise in one.
///
/// # Errors
/// What is wrong with the configuration, or why the port cannot be had.
pub fn open_parts(config: &PortConfig, most: usize) -> Result<Vec<Part>, String> {
    config.check()?;
    let failed = |error| format!("port {:?}: {error}", config.name);
    match config.kind()? {
        Kind::Tap(one) => {
            parts(tap(one, Handed::default()).and_then(|port| port.split(most))).map_err(failed)
        }
        Kind::AfXdp(one) => {
            parts(af_xdp(one, Handed::default()).and_then(|port| port.split(most))).map_err(failed)
        }
        _ => match open(config, Handed::default())? {
            Some(made) => Ok(vec![(made.port, made.is_file)]),
            None => Err(format!(
                "port {:?}: a tunnel to another switch is of use to a switch only",
                config.name
            )),
        },
    }
}

fn parts(ports: io::Result<Vec<impl Port + Send + 'static>>) -> io::Result<Vec<Part>> {
    let boxed = |port| (Box::new(port) as Box<dyn Port + Send>, false);
    Ok(ports?.into_iter().map(boxed).collect())
}

fn made(port: impl Port + Send + 'static, is_file: bool) -> Made {
    Made {
        port: Box::new(port),
        is_file,
    }
}

fn memif(name: &str, config: &MemifConfig, most: Option<u64>) -> io::Result<Memif> {
    let role = match config.role {
        Role::Server => memif::Role::Server,
        Role::Client => memif::Role::Client,
    };
    let mut memif = memif::Config::new(role, &config.path);
    memif.id = config.id;
    memif.secret.clone_from(&config.secret);
    name.clone_into(&mut memif.name);
    if let Some(queues) = config.queues {
        memif.receive_queues = queues;
        memif.transmit_queues = queues;
    }
    if let Some(size) = config.ring_size {
        // Of 32 bits.
        memif.log2_ring_size = size.ilog2() as u8;
    }
    if let Some(bytes) = config.buffer_bytes {
        memif.buffer_bytes = bytes;
    }
    if let Some(mode) = config.socket_mode {
        memif.socket_mode = mode;
    }
    memif.memory_bytes_max = most.unwrap_or(memif.memory_bytes_max);
    memif.accept_unsealed = config.accept_unsealed;
    Memif::new(memif).map_err(|error| at(&config.path, &error))
}

fn listens(role: Role) -> vhost_user::Role {
    match role {
        Role::Server => vhost_user::Role::Server,
        Role::Client => vhost_user::Role::Client,
    }
}

fn vhost_user(config: &VhostUserConfig, most: Option<u64>) -> io::Result<VhostUser> {
    let mut back = vhost_user::Config::new(listens(config.role), &config.path);
    back.queue_pairs = config.queues.unwrap_or(back.queue_pairs);
    back.offloads = config.offloads;
    back.socket_mode = config.socket_mode.unwrap_or(back.socket_mode);
    back.memory_bytes_max = most.unwrap_or(back.memory_bytes_max);
    back.accept_unsealed = config.accept_unsealed;
    VhostUser::new(back).map_err(|error| at(&config.path, &error))
}

fn virtio_user(config: &VirtioUserConfig) -> io::Result<VirtioUser> {
    let mut front = virtio_user::Config::new(listens(config.role), &config.path);
    front.queue_pairs = config.queues.unwrap_or(front.queue_pairs);
    front.ring_size = config.ring_size.unwrap_or(front.ring_size);
    front.buffer_bytes = config.buffer_bytes.unwrap_or(front.buffer_bytes);
    front.offloads = config.offloads;
    front.socket_mode = config.socket_mode.unwrap_or(front.socket_mode);
    VirtioUser::new(front).map_err(|error| at(&config.path, &error))
}

fn ring(config: &RingConfig) -> io::Result<Ring> {
    let side = match config.side {
        RingSide::First => ring::Side::First,
        RingSide::Second => ring::Side::Second,
    };
    let mut end = ring::Config::new(&config.name, side);
    end.agent.clone_from(&config.agent);
    end.slots = config.slots.unwrap_or(end.slots);
    end.pool_bytes = config.pool_bytes.unwrap_or(end.pool_bytes);
    // It says itself which agent, and what of the configuration.
    Ring::new(&end).map_err(|error| io::Error::other(error.to_string()))
}

pub(crate) fn tap_config(config: &TapConfig) -> tap::Config {
    let mut tap = tap::Config::new(&config.interface);
    tap.queues = config.queues.unwrap_or(tap.queues);
    tap.accepts = Offloads {
        checksum: config.offloads,
        tso4: config.offloads,
        tso6: config.offloads,
        ecn: config.offloads,
        uso: false,
    };
    tap
}

fn tap(config: &TapConfig, handed: Handed) -> io::Result<Tap> {
    let tap = tap_config(config);
    let made = if handed.is_nothing() {
        Tap::open(&tap)
    } else {
        Tap::from_descriptors(handed.descriptors, tap.accepts)
    };
    made.map_err(|error| at(config.interface.as_ref(), &error))
}

pub(crate) fn af_xdp_config(config: &AfXdpConfig) -> io::Result<af_xdp::Config> {
    let mut queues = af_xdp::Config::new(&config.interface);
    queues.first_queue = config.first_queue;
    queues.queues = config.queues.unwrap_or(queues.queues);
    queues.ring_size = config.ring_size.unwrap_or(queues.ring_size);
    queues.take = config
        .takes()
        .map_err(|what| io::Error::new(io::ErrorKind::InvalidInput, what))?;
    queues.patience = PARTING;
    Ok(queues)
}

fn af_xdp(config: &AfXdpConfig, handed: Handed) -> io::Result<AfXdp> {
    let queues = af_xdp_config(config)?;
    let made = if handed.is_nothing() {
        AfXdp::open(&queues)
    } else {
        let opened = handed.opened(&queues);
        opened.and_then(|opened| AfXdp::from_opened(opened, &queues))
    };
    made.map_err(|error| at(config.interface.as_ref(), &error))
}

fn pcap(config: &PcapConfig) -> io::Result<Pcap> {
    let pace = if config.stamps {
        Pace::Stamps
    } else {
        Pace::Full
    };
    if let Some(path) = &config.read {
        return Pcap::read(path, pace).map_err(|error| at(path, &error));
    }
    config.write.as_ref().map_or_else(
        || Err(io::Error::from(io::ErrorKind::InvalidInput)),
        |path| write(path),
    )
}

fn write(path: &std::path::Path) -> io::Result<Pcap> {
    let is_classic = path.extension().is_some_and(|end| end == "pcap");
    let format = if is_classic {
        Format::Pcap
    } else {
        Format::Pcapng
    };
    Pcap::write(path, format, Link::Ethernet).map_err(|error| at(path, &error))
}

/// Makes where a mirror's copies go.
pub(crate) fn mirror(config: &MirrorConfig) -> Result<Made, String> {
    match write(&config.file) {
        Ok(port) => Ok(made(port, true)),
        Err(error) => Err(format!("mirror {:?}: {error}", config.name)),
    }
}

pub(crate) fn at(path: &std::path::Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::config::Config;

    #[test]
    fn who_brings_more_memory_than_it_may_is_told_so() {
        let place = tempfile::tempdir().unwrap();
        for (name, own) in [("vhost_user", "a"), ("memif", "b")] {
            let path = place.path().join(own);
            let text = format!(
                "[[port]]\nname = \"a\"\n{name} = {{ path = {path:?}, memory_bytes_max = 65536 }}"
            );
            let config = Config::parse(&text).unwrap();
            let mut port = open(&config.port[0], Handed::default())
                .unwrap()
                .unwrap()
                .port;
            let mut peer: Box<dyn Port + Send> = match name {
                "memif" => {
                    Box::new(Memif::new(memif::Config::new(memif::Role::Client, &path)).unwrap())
                }
                _ => {
                    let front = virtio_user::Config::new(virtio_user::Role::Client, &path);
                    Box::new(VirtioUser::new(front).unwrap())
                }
            };
            let until = Instant::now() + Duration::from_secs(10);
            loop {
                let state = port.poll(Instant::now()).to_string();
                if state.contains("more memory than memory_bytes_max, 65536") {
                    break;
                }
                assert!(Instant::now() < until, "{name}: {state}");
                peer.poll(Instant::now());
            }
        }
    }
}
