//! Links: made one after the other, as both ends have room for the news, and handed out.
//!
//! | of | first | then |
//! |---|---|---|
//! | a publisher and a subscriber | the publisher gets its end | the subscriber gets its own |
//! | a client and a server | the server gets its end, and a pool for replies | when that is mapped it is sealed, the client gets its own |
//!
//! Each end gets one of a pair of sockets with it. Should the other end go before it has got its own, that is closed, which the first sees
//! as it sees the end of any peer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use millrace_shm::link::Link;
use millrace_wire::{LinkEnd, Linked, ToClient};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use tracing::{debug, warn};

use super::matching::Pair;
use super::names::ChannelKey;
use super::report::FlowReport;
use super::{Channels, sealed};
use crate::clients::Client;
use crate::offers::ClientId;
use crate::segments::{LinkMemory, Refusal};
use crate::server::Server;
use crate::sys;

/// Pairs that are looked at before others have their turn.
const TURN_PAIRS: u32 = 256;
/// Links that are made before others have their turn.
const TURN_LINKS: u32 = 16;
/// Links that are looked at: each takes one of the mappings that the kernel lets a process have, 65 530 by default (`vm.max_map_count`).
const LOOKS_MAX: usize = 8192;
/// When there was no memory for a link, it is tried again after so long.
const AGAIN: Duration = Duration::from_secs(1);

/// A link that exists.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) pair: Pair,
    pub(super) key: ChannelKey,
    pub(super) directions: u32,
    /// Of the link, without pools.
    pub(super) bytes: u64,
    /// Of the pool for replies, if there is one.
    pub(super) replies_bytes: u64,
    pub(super) since: Instant,
    /// To look at its counters. `None`: it could not be mapped, or there are too many.
    pub(super) look: Option<Link>,
}

impl Made {
    /// What both ends say of a direction.
    pub(super) fn flow(&self, direction: u32) -> Option<FlowReport> {
        let is_there = direction < self.directions;
        let look = self.look.as_ref().filter(|_| is_there)?;
        Some(FlowReport::of(look.counters(direction)))
    }
}

/// A link that the server has got and the client has not.
#[derive(Debug)]
pub(super) struct Unready {
    link: Rc<OwnedFd>,
    /// The client's end.
    socket: Rc<OwnedFd>,
    replies: Rc<OwnedFd>,
    news: Linked,
}

impl Channels {
    /// A participant is gone, and with it what it shares here.
    pub(super) fn leave(&mut self, client: ClientId) {
        self.participants.remove(&client);
        let key = self.matching.get(client).map(|member| member.key);
        for link in self.matching.leave(client) {
            self.forget(link);
        }
        let Some(totals) = key.and_then(|key| self.totals.get_mut(&key)) else {
            return;
        };
        totals.members = totals.members.saturating_sub(1);
        if let (0, Some(key)) = (totals.members, key) {
            self.totals.remove(&key);
        }
    }

    pub(super) fn forget(&mut self, link: u64) {
        let Some(made) = self.links.remove(&link) else {
            return;
        };
        if let Some(unready) = self.unready.remove(&link) {
            self.matching.handle_mapped(made.pair);
            // The server may have sent whatever it likes by its own end.
            if let Some(socket) = Rc::into_inner(unready.socket) {
                sys::close_apart(socket);
            }
        }
        if let Some(totals) = self.totals.get_mut(&made.key) {
            totals.add_link(&made);
        }
    }
}

impl Server {
    /// Makes links that are due. Returns when to come again, if that is not when something happens.
    pub(crate) fn link_participants(&mut self, now: Instant) -> Option<Instant> {
        if self.channels.again.is_some_and(|at| at <= now) {
            self.channels.again = None;
            self.channels.matching.wake_refused();
        }
        let mut budget = TURN_PAIRS;
        for _ in 0..TURN_LINKS {
            let Server {
                channels, clients, ..
            } = self;
            // A link is descriptors of the agent's until they have been sent: it is made when there is room in both sockets.
            let has_room = |id| {
                let client = clients.get(&id);
                !client.is_none_or(Client::has_mail_waiting)
            };
            let Some(pair) = channels.matching.next_pair(&mut budget, has_room) else {
                break;
            };
            if let Err(refusal) = self.link_up(pair, now) {
                self.channels.links_refused += 1;
                self.channels.matching.refuse(pair);
                if matches!(refusal, Refusal::Quota) {
                    self.explain_quota(pair);
                } else {
                    self.explain(refusal);
                    self.channels.again = Some(now + AGAIN);
                }
            }
        }
        if self.channels.matching.is_due() {
            Some(now)
        } else {
            self.channels.again
        }
    }

    /// Neither of the two is told that a limit keeps them apart, which may be over soon.
    fn explain_quota(&mut self, pair: Pair) {
        let [Some(sender), Some(receiver)] = pair.map(|client| self.clients.get(&client)) else {
            return;
        };
        if let (Some(key), true) = (self.key_of(pair[0]), self.log_limit.allows()) {
            warn!(
                sender = sender.pid,
                sender_tenant = self.pods.tenant_name(sender),
                receiver = receiver.pid,
                receiver_tenant = self.pods.tenant_name(receiver),
                channel = key.name.as_str(),
                "two participants are not brought together: a limit of [quota] is reached"
            );
        }
    }

    /// Makes the link of a sender and a receiver, and hands it out.
    fn link_up(&mut self, pair: Pair, now: Instant) -> Result<(), Refusal> {
        let [Some(sender), Some(receiver)] =
            pair.map(|client| self.channels.participants.get(&client))
        else {
            return Ok(());
        };
        let (open, other) = (sender.open, receiver.open);
        let (Some(pool), Some(key)) = (sender.pool.clone(), self.key_of(pair[0])) else {
            return Ok(());
        };
        let two_way = open.role.is_two_way();
        let slots = open.slots.min(other.slots);
        let payers = pair.map(|client| self.payer(client));
        let replies = two_way.then_some(open.pool_bytes);
        let memory = self.segments.create_link(payers, slots, replies)?;
        let sockets = sockets()?;
        let link = self.channels.numbers.next();
        let may_look = self.channels.links.len() < LOOKS_MAX;
        let made = Made {
            pair,
            key,
            directions: memory.directions,
            bytes: memory.bytes,
            replies_bytes: replies.unwrap_or(0),
            since: now,
            // Without a mapping the two get on as well; they are shown without counters.
            look: may_look
                .then(|| Link::attach(memory.link.as_fd(), slots, memory.directions).ok())
                .flatten(),
        };
        self.channels.links.insert(link, made);
        self.channels.links_made += 1;
        self.channels.matching.link(pair, link, two_way);
        debug!(link, clients = ?pair.map(|client| client.0), "linked");
        let to_receiver = Linked {
            link,
            peer: self.id_of(pair[0]),
            slots,
            overwrites: open.overwrites,
            two_way,
            end: LinkEnd::Subscribes,
            group: other.group_number(),
            peer_pool_bytes: open.pool_bytes,
            own_pool_bytes: replies.unwrap_or(0),
            peer_pid: self.pid_of(pair[0]),
        };
        let to_sender = Linked {
            peer: self.id_of(pair[1]),
            end: LinkEnd::Publishes,
            peer_pool_bytes: replies.unwrap_or(0),
            own_pool_bytes: 0,
            peer_pid: self.pid_of(pair[1]),
            ..to_receiver
        };
        self.hand_out_link(pair, [to_sender, to_receiver], memory, sockets, pool);
        Ok(())
    }

    fn hand_out_link(
        &mut self,
        pair: Pair,
        [to_sender, to_receiver]: [Linked; 2],
        memory: LinkMemory,
        [senders, receivers]: [Rc<OwnedFd>; 2],
        pool: Rc<OwnedFd>,
    ) {
        let link = Rc::new(memory.link);
        let mut fds = vec![Rc::clone(&link), receivers, pool];
        match memory.replies.map(Rc::new) {
            None => {
                let to_sender = ToClient::Linked(to_sender);
                self.hand_out(pair[0], to_sender, vec![link, senders]);
            }
            Some(replies) => {
                fds.push(Rc::clone(&replies));
                let unready = Unready {
                    link,
                    socket: senders,
                    replies,
                    news: to_sender,
                };
                self.channels.unready.insert(to_sender.link, unready);
            }
        }
        self.hand_out(pair[1], ToClient::Linked(to_receiver), fds);
    }

    /// A server has mapped the pool for its replies: it is sealed, and the client gets its end. What is no more is not answered: the client
    /// may have gone meanwhile. A text: the server breaks the protocol.
    pub(super) fn handle_link_ready(&mut self, server: ClientId, link: u64) -> Option<String> {
        let made = self.channels.links.get(&link)?;
        let pair = made.pair;
        if pair[1] != server {
            return None;
        }
        let unready = self.channels.unready.remove(&link)?;
        self.channels.matching.handle_mapped(pair);
        if !sealed(&unready.replies, unready.news.peer_pool_bytes) {
            return Some("its pool for replies cannot be sealed".to_owned());
        }
        let fds = vec![unready.link, unready.socket, unready.replies];
        self.hand_out(pair[0], ToClient::Linked(unready.news), fds);
        None
    }

    fn key_of(&self, client: ClientId) -> Option<ChannelKey> {
        self.channels.matching.get(client).map(|member| member.key)
    }

    fn id_of(&self, client: ClientId) -> u64 {
        let member = self.channels.matching.get(client);
        member.map_or(0, |member| member.id)
    }

    fn pid_of(&self, client: ClientId) -> u32 {
        let client = self.clients.get(&client);
        client.map_or(0, |client| client.pid.unsigned_abs())
    }
}

/// A pair of sockets, one for each end. Neither blocks: who rings a bell that is full need not. Neither takes descriptors, where the kernel
/// can forbid them: who hears a bell would have to let go of them.
fn sockets() -> io::Result<[Rc<OwnedFd>; 2]> {
    let (one, other) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
    )?;
    Ok([one, other].map(|end| {
        sys::refuse_descriptors(end.as_fd());
        Rc::new(end)
    }))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::channel;
    use std::thread;

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};

    use super::*;

    fn send_over(bell: &OwnedFd, fd: &impl AsRawFd) -> nix::Result<usize> {
        let fds = [fd.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&fds)];
        let bytes = [IoSlice::new(&[0])];
        sendmsg::<()>(bell.as_raw_fd(), &bytes, &control, MsgFlags::empty(), None)
    }

    /// A connection whose last close waits, as its bytes are never taken; and what does not take them.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 1000,
        };
        setsockopt(&near, sockopt::Linger, &linger).unwrap();
        near.set_nonblocking(true).unwrap();
        while io::Write::write(&mut &near, &[0; 65_536]).is_ok() {}
        (near, far)
    }

    #[test]
    fn a_bell_takes_no_descriptors_where_the_kernel_can_forbid_them() {
        let [one, other] = sockets().unwrap();
        for bell in [&one, &other] {
            match send_over(bell, &io::stderr()) {
                Ok(_) => eprintln!("not tested: this kernel has no SO_PASSRIGHTS"),
                Err(error) => assert_eq!(error, nix::errno::Errno::EPERM),
            }
        }
    }

    #[test]
    fn nobody_waits_for_what_a_bell_that_nobody_has_had_was_sent() {
        let kind = SockType::SeqPacket;
        let (one, other) =
            socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let (near, far) = lingering();
        send_over(&one, &near).unwrap();
        drop(near);
        let (done, is_done) = channel();
        thread::spawn(move || {
            sys::close_apart(other);
            done.send(())
        });
        is_done.recv_timeout(Duration::from_secs(100)).unwrap();
        drop(far);
    }
}
