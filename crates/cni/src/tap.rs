//! TAP interfaces: made here, put into the pod's network namespace, given addresses there, and handed over to the switch.
//!
//! The interface is gone as soon as nobody has its descriptors, whoever was killed, and with the pod's namespace. It is not made in there,
//! because a descriptor keeps the namespace that it was opened in: a pod that nobody takes away would leave that as well. The switch gets
//! the descriptors, and needs no right for them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use millrace_port::tap;
use nix::sched::{CloneFlags, setns};

use crate::addresses::{Addresses, Route};
use crate::attachment::Attachment;
use crate::config::{self, Config};
use crate::error::{Code, Error};
use crate::netlink::{Link, Netlink, RT_TABLE_MAIN};

/// Makes the interface; returns its queues.
pub(crate) fn make(
    config: &Config,
    attachment: &Attachment,
    netns: &Path,
    addresses: &Addresses,
) -> Result<Vec<OwnedFd>, Error> {
    let name = config.interface_of(&attachment.ifname);
    let draft = attachment.draft();
    let mut wanted = tap::Config::new(&draft);
    wanted.queues = queues(config)?;
    let mac = mac(&attachment.mac)?;
    let namespace = open(netns)?;
    let open_netlink = || Netlink::open().map_err(|error| kernel(name, "asked for", &error));
    inside(&namespace, netns, || {
        if find(&mut open_netlink()?, name)?.is_some() {
            return Err(Error::new(
                Code::Config,
                format!("{} has an interface {name} already", netns.display()),
                "behind another plugin, `interface` has to name another one",
            ));
        }
        Ok(())
    })?;
    let made = tap::descriptors(&wanted).map_err(|error| kernel(name, "made", &error))?;
    let found = |netlink: &mut Netlink| {
        let gone = || kernel(&draft, "found", &io::ErrorKind::NotFound.into());
        Ok(find(netlink, &draft)?.ok_or_else(gone)?.index)
    };
    let mut netlink = open_netlink()?;
    let link = found(&mut netlink)?;
    netlink
        .move_to(link, namespace.as_fd())
        .map_err(|error| kernel(name, "put into the pod's namespace", &error))?;
    inside(&namespace, netns, || {
        let mut netlink = open_netlink()?;
        let link = found(&mut netlink)?;
        netlink
            .set_up(link, name, &mac, config.mtu.map(u32::from))
            .map_err(|error| kernel(name, "set up", &error))?;
        give(&mut netlink, name, link, addresses)
    })?;
    Ok(made)
}

/// Gives an interface its addresses and routes.
fn give(netlink: &mut Netlink, name: &str, link: u32, addresses: &Addresses) -> Result<(), Error> {
    if addresses.own.iter().any(|one| one.prefix.address.is_ipv6()) {
        // Some runtimes turn it off; where there is none, the address will say so.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "0");
    }
    for address in &addresses.own {
        netlink
            .add_address(link, address)
            .map_err(|error| kernel(name, &format!("given {}", address.prefix.address), &error))?;
    }
    for route in &addresses.routes {
        netlink.add_route(link, route).map_err(|error| {
            let to = route.to;
            kernel(
                name,
                &format!("given a route to {}/{}", to.address, to.bits),
                &error,
            )
        })?;
    }
    Ok(())
}

/// Whether the interface is as it was made; what differs.
pub(crate) fn check(
    config: &Config,
    attachment: &Attachment,
    netns: &Path,
    addresses: &Addresses,
) -> Result<(), Error> {
    let name = config.interface_of(&attachment.ifname);
    let mac = mac(&attachment.mac)?;
    let differs = |what: String| Err(Error::new(Code::Differs, what, ""));
    inside(&open(netns)?, netns, || {
        let failed = |error| kernel(name, "asked for", &error);
        let mut netlink = Netlink::open().map_err(failed)?;
        let Some(link) = find(&mut netlink, name)? else {
            return differs(format!("{} has no interface {name}", netns.display()));
        };
        if link.mac != mac
            || !link.is_up
            || config.mtu.is_some_and(|mtu| link.mtu != u32::from(mtu))
        {
            return differs(format!("{name} is not as it was made: {link:?}"));
        }
        let own = netlink.addresses(link.index).map_err(failed)?;
        let missing = addresses.own.iter().find(|one| !own.contains(&one.prefix));
        if let Some(missing) = missing {
            return differs(format!("{name} has no address {}", missing.prefix.address));
        }
        let ways = netlink.routes().map_err(failed)?;
        let is_there = |route: &Route| {
            let table = route.table.unwrap_or(RT_TABLE_MAIN);
            ways.iter().any(|way| {
                let is_by_it = route
                    .gateway
                    .is_none_or(|gateway| way.gateway == Some(gateway));
                (way.to, way.table) == (route.to, table) && is_by_it
            })
        };
        // The result does not say by which interface.
        let missing = addresses.routes.iter().find(|route| !is_there(route));
        if let Some(missing) = missing {
            let to = missing.to;
            return differs(format!("there is no route to {}/{}", to.address, to.bits));
        }
        Ok(())
    })
}

/// The network namespace that the runtime names.
pub(crate) fn namespace(netns: Option<&str>) -> Result<PathBuf, Error> {
    let missing = || Error::new(Code::Environment, "CNI_NETNS is missing", "");
    netns.map(PathBuf::from).ok_or_else(missing)
}

fn not_entered(netns: &Path, error: io::Error) -> Error {
    let netns = netns.display();
    let what = format!("the network namespace {netns} cannot be entered");
    Error::new(Code::Io, what, error)
}

fn open(netns: &Path) -> Result<File, Error> {
    File::open(netns).map_err(|error| not_entered(netns, error))
}

/// Does something in a network namespace, in a thread of its own: this one stays where the runtime has it, and runs IPAM plugins there.
fn inside<T: Send>(
    namespace: &File,
    netns: &Path,
    what: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let entered = |error: io::Error| not_entered(netns, error);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| entered(errno.into()))?;
            what()
        });
        let lost = |_| Err(entered(io::Error::other("the thread ended early")));
        thread.join().unwrap_or_else(lost)
    })
}

fn find(netlink: &mut Netlink, name: &str) -> Result<Option<Link>, Error> {
    let links = netlink.links();
    let links = links.map_err(|error| kernel(name, "looked for", &error))?;
    Ok(links.into_iter().find(|link| link.name == name))
}

fn kernel(name: &str, what: &str, error: &io::Error) -> Error {
    Error::new(
        Code::Io,
        format!("interface {name} cannot be {what}"),
        error,
    )
}

/// As many as the switch's settings say.
fn queues(config: &Config) -> Result<u16, Error> {
    let said = config.settings.get("tap").and_then(|tap| tap.get("queues"));
    let Some(said) = said else {
        return Ok(1);
    };
    let number = said.as_u64().and_then(|number| u16::try_from(number).ok());
    let wrong = || {
        Error::new(
            Code::Config,
            "settings.tap.queues is no number of queues",
            "",
        )
    };
    number.ok_or_else(wrong)
}

fn mac(text: &str) -> Result<Vec<u8>, Error> {
    let bytes = config::parse_mac(text);
    bytes.ok_or_else(|| Error::new(Code::Config, format!("{text:?} is no MAC address"), ""))
}
