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

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::{Duration, Instant};

use millrace_shm::board::{Row, flags};
use millrace_shm::lock::Held;
use millrace_shm::segment::ENDED;
use millrace_shm::sys::thread_id;
use tracing::debug;

use super::{Asker, Refusal, Road};
use crate::offers::{ClientId, OfferKey};
use crate::pairings::Pairing;
use crate::server::Server;
use crate::sys;

/// So long one client's end may hold the agent up, whatever its segments say. What is left then, nobody sends.
const TIME_MAX: Duration = Duration::from_millis(100);

impl Server {
    /// A client is gone: has what it has not read sent by the kernel, where its peers would not hear of its end otherwise.
    pub(crate) fn send_last(&mut self, client: ClientId) {
        let left = self
            .pairings
            .of_client(client)
            .filter(|(pairing, direction)| {
                let sent = &pairing.segment.words(*direction).sender_flags;
                sent.load(Relaxed) & ENDED != 0
                    || self.left_to_others(pairing, *direction).is_some()
            });
        let left: Vec<OfferKey> = left
            .map(|(pairing, direction)| pairing.ends[direction].key())
            .collect();
        let deadline = Instant::now() + TIME_MAX;
        for key in left {
            let start = Instant::now();
            if start > deadline {
                return;
            }
            if let Err(refusal) = self.send_last_of(key, start) {
                debug!(client = key.0.0, offer = key.1, "not sent: {refusal}");
            }
            let now = Instant::now();
            self.patience.spend(now, now - start);
        }
    }

    /// The row of an end that other processes have, too.
    fn left_to_others(&self, pairing: &Pairing, direction: usize) -> Option<&Row> {
        let end = &pairing.ends[direction];
        let row = self.row_of(end, pairing.connection_id).ok()?;
        let own = self.clients.get(&end.client).map(|client| client.pid);
        let has_others = row.identity.processes.iter().any(|process| {
            let process = i32::try_from(process.load(Relaxed)).unwrap_or(0);
            process > 0 && Some(process) != own && sys::pidfd_open(process).is_ok()
        });
        has_others.then_some(row)
    }

    fn send_last_of(&self, key: OfferKey, now: Instant) -> Result<(), Refusal> {
        let found = self.pairings.get(key);
        let (pairing, its_direction) = found.ok_or(Refusal::Unpaired)?;
        let left = self.left_to_others(pairing, its_direction);
        if let Some(row) = left {
            let word = &row.identity.flags;
            word.fetch_or(flags::SEND_PINNED | flags::RECEIVE_PINNED, AcqRel);
            word.fetch_and(!flags::FORKED, AcqRel);
        }
        let received = self.send_unread(pairing, 1 - its_direction, now);
        match left {
            // Its peer could have that brought back no more.
            Some(_) => received.and(self.send_unread(pairing, its_direction, now)),
            None => received,
        }
    }

    /// Has the kernel send what lies unread in the ring of `direction`.
    fn send_unread(
        &self,
        pairing: &Pairing,
        direction: usize,
        now: Instant,
    ) -> Result<(), Refusal> {
        let [receiver, sender] = [1 - direction, direction].map(|index| &pairing.ends[index]);
        let road = Road {
            sender: self.row_of(sender, pairing.connection_id)?,
            receiver: self.row_of(receiver, pairing.connection_id)?,
            segment: &pairing.segment,
            direction,
            sender_connected: sender.offer.end == millrace_wire::End::Active,
            asker: Asker::Reader,
        };
        road.segment.words(direction).gate.close_now();
        if road.is_drained()? {
            return Ok(());
        }
        let socket = self.borrow_socket(sender, road.sender)?;
        let patience = self.patience.at(now);
        let lock = &road.receiver.receive.lock;
        if !lock.try_lock_for(thread_id(), patience) {
            return Err(Refusal::Locked);
        }
        let reader = self.borrow_socket(receiver, road.receiver).ok();
        let reader = reader.as_ref().map(AsFd::as_fd);
        let outcome = road.bring_back(socket.as_fd(), reader, patience);
        lock.unlock(Held::Owned);
        outcome
    }
}
