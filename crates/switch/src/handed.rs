//! Interfaces that somebody who may opens for a switch that may not: who adds the port hands over what was opened, and the switch has the
//! last of it. So an interface that nobody took over, and one whose switch has died, are as they were before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_port::{af_xdp, tap};

use crate::config::{AfXdpConfig, Kind, PortConfig, TapConfig};
use crate::control::HANDED_MAX;
use crate::kinds::{self, at};

/// What was opened of a port's interface.
#[derive(Debug, Default)]
pub struct Handed {
    /// Queues of a TAP interface. Of AF_XDP a socket for each queue, and behind them what has the program at its place, where something is
    /// taken.
    pub descriptors: Vec<OwnedFd>,
    /// AF_XDP: the interface's number where it was opened, which may be another network namespace than the switch's.
    pub ifindex: Option<u32>,
}

impl Handed {
    /// Opens what a port is of, with this process's rights and in its network namespace.
    ///
    /// # Errors
    /// What is wrong with the configuration, or why the interface cannot be had; nothing stays open then.
    pub fn open(config: &PortConfig) -> Result<Handed, String> {
        config.check()?;
        let kind = config.kind()?;
        let opened = match kind {
            Kind::Tap(one) => open_tap(one),
            Kind::AfXdp(one) => open_af_xdp(one),
            _ => return Err(of_another_kind(config)),
        };
        opened.map_err(|error| {
            let rights = match error.kind() {
                io::ErrorKind::PermissionDenied => format!("; opening it takes {}", rights(kind)),
                _ => String::new(),
            };
            format!("port {:?}: {error}{rights}", config.name)
        })
    }

    /// The descriptors, to be sent.
    #[must_use]
    pub fn as_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.descriptors.iter().map(AsFd::as_fd).collect()
    }

    /// Whether the switch is to open the interface itself.
    pub(crate) fn is_nothing(&self) -> bool {
        self.descriptors.is_empty() && self.ifindex.is_none()
    }

    /// What a port of AF_XDP is made of. Somebody else says so: it is the port that looks at what each descriptor is.
    pub(crate) fn opened(self, config: &af_xdp::Config) -> io::Result<af_xdp::Opened> {
        let mut sockets = self.descriptors;
        let is_taking = !config.take.is_empty();
        let wanted = config.queues as usize + usize::from(is_taking);
        if sockets.len() != wanted {
            let program = if is_taking { " and a program" } else { "" };
            return Err(invalid(format!(
                "queues = {}{program} are {wanted} descriptors, and {} were handed over",
                config.queues,
                sockets.len()
            )));
        }
        let Some(ifindex) = self.ifindex else {
            return Err(invalid("the interface's number is missing".to_owned()));
        };
        let link = sockets.split_off(config.queues as usize).pop();
        Ok(af_xdp::Opened {
            sockets,
            link,
            ifindex,
            first_queue: config.first_queue,
        })
    }
}

/// What opening an interface takes.
pub(crate) fn rights(kind: Kind<'_>) -> &'static str {
    match kind {
        Kind::AfXdp(_) => "CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN",
        _ => "CAP_NET_ADMIN",
    }
}

pub(crate) fn of_another_kind(config: &PortConfig) -> String {
    format!(
        "port {:?}: interfaces can be handed over, of tap and af_xdp, and nothing else",
        config.name
    )
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Whether so many descriptors can be handed over. Otherwise there is no need to open any.
fn have_room(count: usize) -> io::Result<()> {
    if count > HANDED_MAX {
        let what = format!("{count} descriptors cannot be handed over, but {HANDED_MAX}");
        return Err(invalid(what));
    }
    Ok(())
}

fn open_tap(config: &TapConfig) -> io::Result<Handed> {
    let tap = kinds::tap_config(config);
    have_room(tap.queues.into())?;
    let made = tap::descriptors(&tap);
    Ok(Handed {
        descriptors: made.map_err(|error| at(config.interface.as_ref(), &error))?,
        ifindex: None,
    })
}

fn open_af_xdp(config: &AfXdpConfig) -> io::Result<Handed> {
    let queues = kinds::af_xdp_config(config)?;
    have_room((queues.queues as usize).saturating_add(1))?;
    let opened = af_xdp::open(&queues).map_err(|error| at(config.interface.as_ref(), &error))?;
    let mut descriptors = opened.sockets;
    descriptors.extend(opened.link);
    Ok(Handed {
        descriptors,
        ifindex: Some(opened.ifindex),
    })
}
