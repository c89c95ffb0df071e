//! What lies in the rings of a client that is gone: what it has left unread after it had shut its own direction down, and all of both
//! rings where other processes have the end, too.
//!
//! *After a shutdown* the kernel has sent its FIN before, and says nothing when the process is killed; TCP would reset the connection.
//! So what is unread is sent by the kernel: a socket that nobody has answers it with the reset. Should somebody have it still (a forked
//! child, or a client that lives and has lost us), the bytes come to it in order, for both locks are ours meanwhile.
//!
//! *Other processes that have the end* are known to us by this client only: nobody could ask for their bytes any more when they start other
//! programs, nor for those that they sent when their peer does. So they take the kernel's road from now on, and what is unread comes by it
//! both ways, or, where that fails, from the ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::{Duration, Instant};

use millrace_shm::board::{Row, flags};
use millrace_shm::segment::ENDED;
use nix::sys::socket::{getsockopt, sockopt};
use tracing::debug;

use super::patience::pause;
use super::reorder::ARRIVAL;
use super::{Asker, Refusal, Road, apart};
use crate::offers::{ClientId, OfferKey};
use crate::pairings::Pairing;
use crate::server::Server;
use crate::sys;

/// So long one client's end may hold the agent up, whatever its segments say. What is left then, nobody sends.
const TIME_MAX: Duration = Duration::from_millis(100);

/// So long a client that is gone is remembered while others are at work on its connections: one of them may be asking for what it left, and
/// wait for us.
const LINGER_MAX: Duration = Duration::from_secs(1);
/// Until they are tried again.
const LINGER_PAUSE: Duration = Duration::from_millis(2);

/// A process that is ending has closed its sockets after so long, or has left them to others, whose acknowledgements come as late as that.
const CLOSE_MAX: Duration = Duration::from_millis(50);

/// Clients that are gone, and have left bytes that could not be sent yet.
#[derive(Debug, Default)]
pub(crate) struct Lingering {
    clients: Vec<Lingerer>,
    again_at: Option<Instant>,
}

#[derive(Debug)]
struct Lingerer {
    client: ClientId,
    left: Vec<OfferKey>,
    until: Instant,
}

impl Lingering {
    fn keep(&mut self, lingerer: Lingerer, now: Instant) {
        self.clients.push(lingerer);
        self.again_at = Some(now + LINGER_PAUSE);
    }

    fn take(&mut self, client: ClientId) -> Option<Lingerer> {
        let mut found = self.clients.iter();
        let index = found.position(|lingerer| lingerer.client == client)?;
        Some(self.clients.swap_remove(index))
    }

    /// Those that are to be tried now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<ClientId> {
        if self.again_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.again_at = None;
        self.clients
            .iter()
            .map(|lingerer| lingerer.client)
            .collect()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.again_at
    }
}

impl Server {
    /// A client is gone: has what is left in its rings sent by the kernel, where nobody could ask for it later, or its peers would not hear
    /// of its end. False: somebody is at work on one of them, and it is to be tried again.
    pub(crate) fn send_last(&mut self, client: ClientId) -> bool {
        let began = Instant::now();
        let tenant = self.tenant_of(client);
        let lingerer = self.lingering.take(client);
        let mut lingerer = lingerer.unwrap_or_else(|| Lingerer {
            client,
            left: self.left_by(client),
            until: began + LINGER_MAX,
        });
        let mut busy = Vec::new();
        for key in lingerer.left {
            let start = Instant::now();
            if start > began + TIME_MAX {
                break;
            }
            let patience = self.patience.at(tenant, start);
            let outcome = if self.has_left_nothing(key) {
                self.send_last_of(key, patience)
            } else {
                self.send_last_apart(key, patience)
            };
            if let Err(refusal) = outcome {
                debug!(client = key.0.0, offer = key.1, "not sent: {refusal}");
                if matches!(refusal, Refusal::Locked | Refusal::Sending) {
                    busy.push(key);
                }
            }
            let now = Instant::now();
            self.patience.spend(tenant, now, now - start);
        }
        let is_done = busy.is_empty() || began >= lingerer.until;
        if !is_done {
            lingerer.left = busy;
            self.lingering.keep(lingerer, Instant::now());
        }
        is_done
    }

    fn send_last_apart(&mut self, key: OfferKey, patience: Duration) -> Result<(), Refusal> {
        let (pairing, _) = self.pairings.get(key).ok_or(Refusal::Unpaired)?;
        let (connection_id, ends) = (pairing.connection_id, pairing.ends);
        let clients = ends.map(|end| end.client);
        if self.is_stopped(&clients) {
            return Err(Refusal::Stopped);
        }
        let work = |server: &Server| server.send_last_of(key, patience);
        let outcome = self.apart(&clients, Some(ends), work, |_, _| ());
        if let Err(Refusal::Interrupted | Refusal::Stuck) = &outcome {
            self.abandon(connection_id, &ends, &[]);
        }
        if matches!(outcome, Err(Refusal::Interrupted)) {
            apart::end_with_worker();
        }
        outcome
    }

    /// The ends of a client that is gone of which somebody should hear.
    fn left_by(&self, client: ClientId) -> Vec<OfferKey> {
        self.pairings
            .of_client(client)
            .filter(|(pairing, direction)| {
                let sent = &pairing.segment.words(*direction).sender_flags;
                sent.load(Relaxed) & ENDED != 0
                    || self.left_to_others(pairing, *direction).is_some()
            })
            .map(|(pairing, direction)| pairing.ends[direction].key())
            .collect()
    }

    /// The row of an end that other processes have, too.
    fn left_to_others(&self, pairing: &Pairing, direction: usize) -> Option<&Row> {
        let end = &pairing.ends[direction];
        let row = self.row_of(end, pairing.connection_id).ok()?;
        let own = self.clients.get(&end.client).map(|client| client.pid);
        let mut holders = self.holders(end, row).map(u32::cast_signed);
        let has_others =
            holders.any(|process| Some(process) != own && sys::pidfd_open(process).is_ok());
        has_others.then_some(row)
    }

    /// Whether all that came through both gates has been read.
    fn has_left_nothing(&self, key: OfferKey) -> bool {
        let found = self.pairings.get(key);
        found.is_some_and(|(pairing, _)| {
            [0, 1].map(|direction| self.has_read_all(pairing, direction).is_some()) == [true; 2]
        })
    }

    fn send_last_of(&self, key: OfferKey, patience: Duration) -> Result<(), Refusal> {
        let found = self.pairings.get(key);
        let (pairing, its_direction) = found.ok_or(Refusal::Unpaired)?;
        let left = self.left_to_others(pairing, its_direction);
        if let Some(row) = left {
            let word = &row.identity.flags;
            word.fetch_or(flags::SEND_PINNED | flags::RECEIVE_PINNED, AcqRel);
            word.fetch_and(!flags::FORKED, AcqRel);
        }
        let received = self.send_unread(pairing, 1 - its_direction, patience);
        match left {
            // Its peer could have that brought back no more.
            Some(_) => received.and(self.send_unread(pairing, its_direction, patience)),
            None => received,
        }
    }

    /// Has the kernel send what lies unread in the ring of `direction`.
    fn send_unread(
        &self,
        pairing: &Pairing,
        direction: usize,
        patience: Duration,
    ) -> Result<(), Refusal> {
        let [receiver, sender] = [1 - direction, direction].map(|index| &pairing.ends[index]);
        let mut road = Road {
            connection_id: pairing.connection_id,
            sender: self.row_of(sender, pairing.connection_id)?,
            receiver: self.row_of(receiver, pairing.connection_id)?,
            segment: &pairing.segment,
            direction,
            sender_connected: sender.offer.end == millrace_wire::End::Active,
            asker: Asker::Nobody,
            carries: false,
            makes_room: false,
            reader_is_ending: false,
            callers: Vec::new(),
        };
        road.segment.words(direction).gate.close_now();
        if road.is_drained()? {
            return Ok(());
        }
        let socket = self.borrow_socket(sender, road.sender)?;
        if road.reader_was_killed(socket.as_fd()) {
            return Ok(());
        }
        let reader = self.borrow_socket(receiver, road.receiver);
        road.reader_is_ending = reader.is_err() && self.is_ending(receiver, road.receiver);
        let reader = reader.as_ref().ok().map(AsFd::as_fd);
        // Nobody waits for us: who has a lock is left in peace, and it is tried again.
        road.bring_back(socket.as_fd(), reader, patience)
    }
}

impl Road<'_> {
    /// Whether what is sent is for the reader: the sender stays, and tells its program what becomes of it.
    pub(super) fn is_for_reader(&self) -> bool {
        matches!(self.asker, Asker::Reader | Asker::Nobody)
    }

    /// Whether it has ended without a word. Who has the sender's end finds that out by what is unread, and tells of a reset; by the kernel
    /// the bytes would come behind its FIN, and be answered as on a connection that was closed.
    pub(super) fn reader_was_killed(&self, sender: BorrowedFd<'_>) -> bool {
        !self.reader_has_ended() && sys::is_closed_by_peer_alone(sender)
    }

    fn reader_has_ended(&self) -> bool {
        let words = self.segment.words(1 - self.direction);
        words.sender_flags.load(Relaxed) & ENDED != 0
    }

    /// Whether what has just been sent came behind the FIN of a reader that was killed meanwhile. Nothing has changed then: the error that
    /// the kernel's answer left is not the one that the program is to see, and is taken away.
    pub(super) fn came_too_late(&self, sender: BorrowedFd<'_>) -> bool {
        // What was there before the FIN is acknowledged with it.
        let is_missing = || sys::unacknowledged(sender).is_ok_and(|bytes| bytes != 0);
        if self.reader_has_ended() || !is_missing() {
            return false;
        }
        let began = Instant::now();
        // In the middle of a close the kernel takes no bytes any more, and the FIN is still to come.
        let has_ended = || sys::is_closed_by_peer_alone(sender) || sys::is_over(sender);
        while self.reader_is_ending && is_missing() && !has_ended() && began.elapsed() < CLOSE_MAX {
            pause(began);
        }
        let began = Instant::now();
        while self.reader_was_killed(sender) && is_missing() {
            if began.elapsed() > ARRIVAL {
                return true;
            }
            pause(began);
        }
        let taken = self.sender.receive.kernel_position.load(Relaxed);
        let is_late = sys::is_over_by_fin(sender, taken) && is_missing();
        if is_late {
            let _ = getsockopt(&sender, sockopt::SocketError);
        }
        is_late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lingers_is_tried_again_and_given_up_in_time() {
        let now = Instant::now();
        let client = ClientId(7);
        let until = now + LINGER_MAX;
        let left = vec![(client, 1)];
        let mut lingering = Lingering::default();
        assert!(lingering.due(now).is_empty());
        lingering.keep(
            Lingerer {
                client,
                left,
                until,
            },
            now,
        );
        assert!(lingering.due(now).is_empty());
        let later = now + LINGER_PAUSE;
        assert_eq!(lingering.next_deadline(), Some(later));
        assert_eq!(lingering.due(later), [client]);
        assert_eq!(lingering.next_deadline(), None);
        let lingerer = lingering.take(client).unwrap();
        assert_eq!((lingerer.left.len(), lingerer.until), (1, until));
        assert!(lingering.take(client).is_none());
    }
}
