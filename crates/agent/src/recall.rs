//! Recall: a reader leaves its ring with bytes in it, and whoever reads next sees only the kernel's queue. The agent has the
//! *sender's* kernel socket send those bytes: they come in order behind all that has gone by the kernel, and before all that will.
//!
//! The reader has shut its gate, holds the lock of its receiving half, and waits for the answer. The agent takes the sender's
//! descriptor for a moment (`pidfd_getfd`), and that end's send lock, so that nothing overtakes. A sender asks for the same before it
//! becomes a program that nobody could ask: then it holds its own lock, and the agent takes the reader's. For a reader that is gone nobody
//! asks (`last`). Everything in rows and segment is the clients' word, and it is theirs alone to suffer from: what is sent comes from the
//! ring that both of them write, and goes to its reader.
//!
//! Limits:
//! - the right to trace the sender's process is needed: the same user, or root. Where Yama lets nobody but ancestors trace, a program names
//!   a user's own agent as who may (`preload/src/client/link.rs` `let_borrow`); who may not be traced is not introduced (`may_borrow`);
//! - its PID namespace must be the agent's, because a lock's owner is known by its thread number;
//! - a sender that is stopped where it holds its lock keeps that; one that is stopped in a call is at rest (`calls`);
//! - its row must name a descriptor that still is the proved socket;
//! - who dies between sending and noting it leaves bytes that come twice; the reader gets no answer then, and must not go on (`apart`);
//! - one recall waits for 100 ms at most, half a second for what the kernel sends again, or two where a queue trickles, and all of a tenant
//!   for about a fifth of the agent's time, but for what trickles; a system call on the sender's socket waits for those on it that are
//!   under way, and one that faults on memory of a slow file system is as slow: two seconds, then the connection is reset, and its tenant
//!   has no recalls for a minute.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::{Duration, Instant};

use millrace_shm::board::{Row, flags};
use millrace_shm::gate::Gate;
use millrace_shm::lock::{Held, OwnerLock};
use millrace_shm::segment::{Segment, is_window};
use millrace_wire::{End, Recall, Recalled, ToClient};
use tracing::debug;

use crate::offers::ClientId;
use crate::pairings::{PairedEnd, Pairing};
use crate::server::Server;
use crate::sys;
use crate::tenant::Tenant;

mod apart;
mod calls;
mod ends;
mod last;
mod meeting;
mod patience;
mod put_back;
mod refusal;
mod renew;
mod reorder;
mod room;
mod stubborn;
mod transfer;

pub(crate) use apart::LeftWorker;
pub(crate) use last::Lingering;
use meeting::Ask;
pub(crate) use meeting::Waiting;
pub(crate) use patience::Patience;
use patience::{SHORT_WAIT, WAIT};
use put_back::Left;
pub(crate) use refusal::Refusal;
use room::Room;
use transfer::{Prompt, transmit};

impl Server {
    /// A client leaves its ring: sends by the kernel what it has not read, or (`sends`) what it has sent and is not read.
    pub(crate) fn handle_recall(&mut self, client: ClientId, recall: &Recall) {
        self.metrics.recalls += 1;
        let is_leaving = !recall.sends && self.leaves_ring(client, recall);
        self.try_recall(Ask::new(client, *recall, is_leaving, Instant::now()));
    }

    /// Answers the client, unless it has to wait.
    fn try_recall(&mut self, ask: Ask) {
        let Ask { client, recall, .. } = ask;
        let start = Instant::now();
        let tenant = self.tenant_of(client);
        let rest = self.patience.rests_until(tenant, start);
        let patience = self.patience.at(tenant, start);
        let outcome = if self.is_settled(client, &recall) {
            Ok(())
        } else {
            self.recall_apart(client, &recall, patience)
        };
        let now = Instant::now();
        self.patience.spend(tenant, now, now - start);
        if let Err(refusal) = &outcome {
            if self.keep(ask, refusal, rest, now) {
                return;
            }
            if !recall.sends
                && let Ok((pairing, direction)) = self.asked_for(client, &recall)
            {
                let connection_id = pairing.connection_id;
                self.waiting.note_in_vain(connection_id, direction, now);
            }
            self.metrics.recalls_failed += 1;
            let (client, offer) = (client.0, recall.offer_id);
            debug!(client, offer, "not recalled: {refusal}");
        }
        self.answer(client, &recall, outcome.is_ok());
        self.waiting.try_soon(now);
    }

    fn answer(&mut self, client: ClientId, recall: &Recall, ok: bool) {
        let offer_id = recall.offer_id;
        self.send(client, ToClient::Recalled(Recalled { offer_id, ok }), None);
    }

    /// Whose patience a client's recalls cost.
    pub(crate) fn tenant_of(&self, client: ClientId) -> Tenant {
        let found = self.clients.get(&client);
        found.map_or(Tenant::Nobody, |client| client.tenant)
    }

    /// Whether a reader says that it cannot go on to read its ring.
    fn leaves_ring(&self, client: ClientId, recall: &Recall) -> bool {
        let asked_for = self.asked_for(client, recall);
        asked_for.is_ok_and(|(pairing, direction)| {
            let row = self.row_of(&pairing.ends[1 - direction], pairing.connection_id);
            row.is_ok_and(|row| row.identity.flags.load(Relaxed) & flags::LEAVES != 0)
        })
    }

    /// Whether nothing is left to bring back, nor to be told.
    fn is_settled(&self, client: ClientId, recall: &Recall) -> bool {
        let asked_for = self.asked_for(client, recall).ok();
        let read = asked_for.and_then(|(pairing, direction)| self.has_read_all(pairing, direction));
        read.is_some_and(|(receiver, gate)| !gate.open && !put_back::owes_error(receiver))
    }

    /// The row of a direction's reader, and the gate, if it has read all that came through it.
    fn has_read_all(&self, pairing: &Pairing, direction: usize) -> Option<(&Row, Gate)> {
        let receiver = &pairing.ends[1 - direction];
        let row = self.row_of(receiver, pairing.connection_id).ok()?;
        let gate = pairing.segment.words(direction).gate.load();
        (gate.tail == row.receive.head.load(Acquire)).then_some((row, gate))
    }

    /// The pairing that a client means, and the direction.
    fn asked_for(&self, client: ClientId, recall: &Recall) -> Result<(&Pairing, usize), Refusal> {
        let (pairing, own_direction) = match self.pairings.get((client, recall.offer_id)) {
            Some(found) => found,
            None => self.inherited(client, recall)?,
        };
        let direction = if recall.sends {
            own_direction
        } else {
            1 - own_direction
        };
        Ok((pairing, direction))
    }

    fn recall(&self, client: ClientId, recall: &Recall, patience: Duration) -> Result<(), Refusal> {
        let sends = recall.sends;
        let (pairing, direction) = match self.asked_for(client, recall) {
            Err(Refusal::Unpaired) if !sends => return self.put_back_alone(client, recall),
            found => found?,
        };
        let met = self.met(pairing.connection_id, direction, sends);
        let now = Instant::now();
        let is_being_left = self
            .waiting
            .is_being_left(pairing.connection_id, direction, now);
        let [receiver, sender] = [1 - direction, direction].map(|index| &pairing.ends[index]);
        let left = Left {
            connection_id: pairing.connection_id,
            ends: &pairing.ends,
            segment: &pairing.segment,
            direction,
        };
        let put_back = || self.put_back(&left, client, recall.fd);
        let sender_row = match self.row_of(sender, pairing.connection_id) {
            Err(_) if !sends => return put_back(),
            found => found?,
        };
        let mut road = Road {
            connection_id: pairing.connection_id,
            sender: sender_row,
            receiver: self.row_of(receiver, pairing.connection_id)?,
            segment: &pairing.segment,
            direction,
            sender_connected: sender.offer.end == End::Active,
            asker: match (&met, sends) {
                (Some(_), _) => Asker::Both,
                (None, true) => Asker::Sender,
                (None, false) => Asker::Reader,
            },
            // What is left in the ring of a reader that leaves is lost; what a sender leaves, its reader can read there, or it is put back
            // later. If it were carried over, the reader's queue would grow, and the FIN come before its time.
            carries: met.is_some() || !sends || is_being_left,
            makes_room: false,
            reader_is_ending: false,
            callers: self.all_holders(sender, sender_row),
        };
        road.shut_gate()?;
        // Who asks may have the end from a process that has let go, and says what number it has there.
        let mut askers = vec![(client, recall.fd, sends)];
        askers.extend(met.map(|ask| (ask.client, ask.recall.fd, ask.recall.sends)));
        let borrow = |end: &PairedEnd, row, its_sends| {
            self.borrow_socket(end, row).or_else(|refusal| {
                let mut own = askers.iter().filter(|(.., sends)| *sends == its_sends);
                let own =
                    own.find_map(|(client, fd, _)| self.borrow_number(end, *client, *fd).ok());
                own.ok_or(refusal)
            })
        };
        let socket = match borrow(sender, road.sender, true) {
            Err(refusal) if !sends => {
                return put_back().map_err(|why| match why {
                    Refusal::Connected | Refusal::Stays => refusal,
                    why => why,
                });
            }
            borrowed => borrowed?,
        };
        road.makes_room = !sys::may_repair(socket.as_fd());
        let reader = borrow(receiver, road.receiver, false);
        road.reader_is_ending = reader.is_err() && self.is_ending(receiver, road.receiver);
        let reader = reader.as_ref().ok().map(AsFd::as_fd);
        road.bring_back(socket.as_fd(), reader, patience)
    }
}

/// One direction of a connection, seen from both of its ends.
struct Road<'a> {
    connection_id: u64,
    sender: &'a Row,
    receiver: &'a Row,
    segment: &'a Segment,
    direction: usize,
    sender_connected: bool,
    asker: Asker,
    /// All is done that can be: also what may hold the agent up for some milliseconds.
    carries: bool,
    /// The sender's limits may be raised: what has no room nobody could put back later.
    makes_room: bool,
    /// Nobody gave the reader's socket out, and somebody who had it is about to end. While we have it, nobody can close it.
    reader_is_ending: bool,
    /// The processes that may be in a call that sends, where all are known; else none.
    callers: Vec<u32>,
}

/// Who asks, and holds the lock of its half meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asker {
    /// It leaves its ring for good.
    Reader,
    /// It leaves, and its reader can go on to read the ring.
    Sender,
    /// Both leave.
    Both,
    /// Nobody: the agent holds both locks, for what one that is gone has left.
    Nobody,
}

/// What lies unread in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unread {
    head: u32,
    bytes: u32,
    window: u32,
    /// Bytes that went by the kernel before these.
    position: u64,
    /// The kernel's count of what was sent, where a call is under way whose process is stopped: it notes its part when it goes on.
    stopped_at: Option<u64>,
}

impl Road<'_> {
    fn shut_gate(&self) -> Result<Gate, Refusal> {
        let gate = self.segment.words(self.direction).gate.load();
        if gate.open {
            Err(Refusal::Open)
        } else {
            Ok(gate)
        }
    }

    fn is_drained(&self) -> Result<bool, Refusal> {
        Ok(self.shut_gate()?.tail == self.receiver.receive.head.load(Acquire))
    }

    /// Sends by `socket`, the sender's, what its reader has not read. With the reader's own, what has overtaken it, too.
    fn bring_back(
        &self,
        socket: BorrowedFd<'_>,
        reader: Option<BorrowedFd<'_>>,
        patience: Duration,
    ) -> Result<(), Refusal> {
        let locks = [&self.receiver.receive.lock, &self.sender.send.lock];
        let patiences = match self.asker {
            Asker::Reader => [Duration::ZERO, SHORT_WAIT],
            Asker::Sender => [SHORT_WAIT, Duration::ZERO],
            Asker::Both | Asker::Nobody => [Duration::ZERO; 2],
        };
        // Who asks holds its own, unless it waits for us no more: then nobody may use that half meanwhile, either.
        let held = [0, 1].map(|half| locks[half].try_lock_for(OwnerLock::AGENT, patiences[half]));
        let is_ours = match self.asker {
            Asker::Reader => held[1],
            Asker::Sender => held[0],
            Asker::Both => true,
            Asker::Nobody => held == [true; 2],
        };
        let outcome = if !is_ours {
            Err(Refusal::Locked)
        } else if self.is_there() {
            self.bring_back_waited_for(socket, reader, patience)
        } else {
            Err(Refusal::Unpaired)
        };
        for (lock, _) in locks.iter().zip(held).filter(|(_, held)| *held) {
            lock.unlock(Held::Owned);
        }
        outcome
    }

    /// Whether both rows are this connection's still, and for as long as their locks are held: an end that closes says so under them.
    fn is_there(&self) -> bool {
        let rows = [self.sender, self.receiver];
        rows.iter()
            .all(|row| row.identity.connection_id.load(Relaxed) == self.connection_id)
    }

    fn bring_back_locked<'a>(
        &self,
        socket: BorrowedFd<'a>,
        reader: Option<BorrowedFd<'a>>,
        patience: Duration,
    ) -> Result<(), Refusal> {
        if sys::has_upper_protocol(socket) || reader.is_some_and(sys::has_upper_protocol) {
            return Err(Refusal::Upper);
        }
        let mut room = Room::of(socket, self.carries || self.makes_room);
        let mut drawn = Vec::new();
        let is_still = self.await_calls(SHORT_WAIT) || self.are_callers_stopped();
        if self.carries && !is_still && self.call_ends_in(socket) && room.make() {
            let has_ended = self.await_calls(if room.is_ample() {
                patience
            } else {
                SHORT_WAIT
            });
            // While the agent rests from recalls this one is refused instead, and asked for again.
            let may_draw = !has_ended && !room.is_ample() && patience >= WAIT;
            if let Some(reader) = reader.filter(|_| may_draw) {
                drawn = self.draw((socket, reader), &mut room);
            }
        }
        let outcome = self.send_again(&drawn, (socket, reader), patience, &mut room);
        if outcome.is_err() && !drawn.is_empty() {
            reorder::give_up(socket, reader);
        }
        outcome
    }

    /// `drawn`: what has been taken out of the reader's queue before.
    fn send_again<'a>(
        &self,
        drawn: &[u8],
        (socket, reader): (BorrowedFd<'a>, Option<BorrowedFd<'a>>),
        patience: Duration,
        room: &mut Room<'a>,
    ) -> Result<(), Refusal> {
        let _prompt = Prompt::of(socket);
        let unread = self.unread(socket)?;
        // The kernel knows also of bytes that passed the library by.
        let noted = self.noted(unread);
        let counted = sys::sent(socket, self.sender_connected);
        if noted != unread.position || counted != Some(noted) || !drawn.is_empty() {
            let reader = reader.ok_or(Refusal::Overtaken)?;
            return self.reorder(unread, drawn, (socket, reader), (room, patience));
        }
        let Unread {
            head,
            bytes,
            window,
            ..
        } = unread;
        let copy = sys::copy_ring(self.segment, self.direction, head, window, bytes);
        if self.is_for_reader() && self.reader_was_killed(socket) {
            return Err(Refusal::Killed);
        }
        let sent = transmit(socket, &copy, patience, room) as u32;
        if self.is_for_reader() && self.came_too_late(socket) {
            return Err(Refusal::Killed);
        }
        if unread.stopped_at.is_some() {
            self.must_have_sent(noted + u64::from(sent), (socket, reader))?;
        }
        self.advance(unread, sent, (socket, reader))?;
        (sent == bytes).then_some(()).ok_or(Refusal::Full)
    }

    /// What lies in the ring.
    fn unread(&self, socket: BorrowedFd<'_>) -> Result<Unread, Refusal> {
        let gate = self.shut_gate()?;
        let send = &self.sender.send;
        // `pending`: a process that shares the sender's end died between publishing and noting it.
        if gate.tail != send.tail.load(Relaxed) && gate.tail != send.pending.load(Relaxed) {
            return Err(Refusal::Corrupt);
        }
        let stopped_at = self.stopped_at(socket)?;
        let unread = unread_in(self.segment, self.direction, self.receiver, gate)?;
        Ok(Unread {
            stopped_at,
            ..unread
        })
    }

    /// Notes that the first `sent` unread bytes have gone by the kernel. What is left in the ring comes behind them.
    fn advance(
        &self,
        unread: Unread,
        sent: u32,
        (sender, reader): (BorrowedFd<'_>, Option<BorrowedFd<'_>>),
    ) -> Result<(), Refusal> {
        let words = self.segment.words(self.direction);
        let position = unread.position.wrapping_add(u64::from(sent));
        let send = &self.sender.send;
        match unread.stopped_at {
            // It adds its part to that.
            Some(before) => drop(send.kernel_position.fetch_add(position - before, Relaxed)),
            None => send.kernel_position.store(position, Relaxed),
        }
        send.resent_bytes.fetch_add(u64::from(sent), Relaxed);
        words.switch_position.store(position, Relaxed);
        words.kernel_hint.fetch_max(position, Relaxed);
        let next = unread.head.wrapping_add(sent);
        // AcqRel: as in the reader's commit; the copy comes before the head moves.
        let head = &self.receiver.receive.head;
        let moved = head.compare_exchange(unread.head, next, AcqRel, Acquire);
        if moved.is_err() {
            // The reader did not wait for the answer, and reads in the ring what is in its queue as well.
            if sent > 0 {
                reorder::give_up(sender, reader);
            }
            return Err(Refusal::Corrupt);
        }
        self.segment.release(self.direction, next);
        Ok(())
    }
}

/// What lies in a ring whose gate is `gate`.
fn unread_in(
    segment: &Segment,
    direction: usize,
    receiver: &Row,
    gate: Gate,
) -> Result<Unread, Refusal> {
    let position = segment.words(direction).switch_position.load(Relaxed);
    // Acquire: pairs with the AcqRel of the reader's commit.
    let head = receiver.receive.head.load(Acquire);
    let bytes = gate.tail.wrapping_sub(head);
    let window = 1u32.checked_shl(gate.window_log2);
    let is_sane = |window: &u32| {
        bytes <= *window && is_window(*window, segment.ring_bytes()) && segment.reach(*window)
    };
    let window = window.filter(is_sane).ok_or(Refusal::Corrupt)?;
    Ok(Unread {
        head,
        bytes,
        window,
        position,
        stopped_at: None,
    })
}

#[cfg(test)]
mod tests;
