//! What touches other programs' sockets is done by a process of its own, the worker: whoever kills the agent in the middle would leave a
//! socket half made again, or bytes that are in no queue any more. The worker goes on to the end, and answers in the agent's place.
//!
//! The agent waits for it. A worker that is killed, or does not come to its end, leaves sockets as they are then: the agent makes them
//! plain ones again, and has them reset. Then it ends, too, since the worker had its memory and may have been at work on that; whoever
//! watches over it starts another one, and connections go on meanwhile.
//!
//! A worker that is *stuck* cannot be killed: a program can make calls on its own socket last for ever (see `recall`), by memory of a file
//! system that does not answer. It is left where it is, and does nothing more; the agent goes on. The connection is reset by its other
//! end, and whose the socket is has no recalls for a while (`patience`), and until the worker has ended.
//!
//! Limits:
//! - whoever kills both in the same moment has killed what was to mend it: the sockets stay as they are;
//! - where there can be no other process, the agent does the work itself;
//! - before Linux 5.9 a worker holds the agent's place for as long as it works: until then no other agent comes there. Nobody ends one that
//!   is stopped when the agent is no more;
//! - one that is stuck holds the agent up for two seconds, and keeps as much of its memory until it ends;
//! - where the agent may not see in which call it is (`/proc/PID/syscall`), the agent ends.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use millrace_wire::Recall;
use tracing::{debug, error, warn};

use super::{Refusal, put_back};
use crate::offers::ClientId;
use crate::pairings::PairedEnd;
use crate::proof::Process;
use crate::server::Server;
use crate::sys::{self, Left, Worked};
use crate::tenant::Tenant;

/// A worker is done in a fraction of that, also on a machine that has much else to do, or something has stopped it.
const WORK_MAX: Duration = Duration::from_secs(10);
/// Until it is looked whether one that is stuck has ended.
const LEFT_PAUSE: Duration = Duration::from_secs(1);

/// What a worker says, in a byte.
const DONE: u8 = 0;
const LOCKED: u8 = 1;
const SENDING: u8 = 2;
const FULL: u8 = 3;
const UNDER_WAY: u8 = 4;
const REFUSED: u8 = 5;

/// A worker that is stuck.
#[derive(Debug)]
pub(crate) struct LeftWorker {
    left: Left,
    /// Of the socket on which it is.
    inode: Option<u64>,
    /// Whose that is.
    tenant: Tenant,
}

impl Server {
    /// What lies in a ring is brought back by a worker.
    pub(super) fn recall_apart(
        &mut self,
        client: ClientId,
        recall: &Recall,
        patience: Duration,
    ) -> Result<(), Refusal> {
        let (mut clients, ends) = self.parties(client, recall);
        if self.is_stopped(&clients) {
            return Err(Refusal::Stopped);
        }
        clients.extend(self.waiting.at(Instant::now()).map(|ask| ask.client));
        let work = |server: &Server| server.recall(client, recall, patience);
        let last_words = |server: &mut Server, ok| server.answer(client, recall, ok);
        let outcome = self.apart(&clients, ends, work, last_words);
        match outcome {
            Err(Refusal::Interrupted) => {
                self.abandon_recall(client, recall);
                end_with_worker();
            }
            Err(Refusal::Stuck) => self.abandon_recall(client, recall),
            _ => {}
        }
        outcome
    }

    /// Has a worker do it, for these clients: the first one asks. `last_words`: what it does when the agent is no more, and nobody else
    /// tells the client.
    pub(super) fn apart(
        &mut self,
        clients: &[ClientId],
        ends: Option<[PairedEnd; 2]>,
        work: impl Fn(&Server) -> Result<(), Refusal>,
        last_words: impl FnOnce(&mut Server, bool),
    ) -> Result<(), Refusal> {
        let keeps = self.descriptors_of(clients);
        self.suspect.store(0, Relaxed);
        let worked = sys::apart(WORK_MAX, keeps, || {
            let outcome = work(self);
            if let Err(refusal) = &outcome {
                debug!("refused: {refusal}");
            }
            if std::os::unix::process::parent_id() != self.pid {
                last_words(self, outcome.is_ok());
            }
            encode(&outcome)
        });
        let Ok(Worked { said, left }) = worked else {
            return work(self);
        };
        if let Some(left) = left {
            // Also where it has done its work: it may have the other end's socket still, which could not be closed.
            self.leave(left, clients, ends);
            return Err(Refusal::Stuck);
        }
        said.map_or(Err(Refusal::Interrupted), decode)
    }

    /// What a worker needs: to ask the kernel, to look at these clients, and to answer them.
    fn descriptors_of(&self, clients: &[ClientId]) -> Vec<RawFd> {
        let clients = clients.iter().filter_map(|client| self.clients.get(client));
        let both = clients.flat_map(|client| {
            let process = client.process.as_ref().map(AsFd::as_fd);
            [Some(client.as_fd()), process]
        });
        let descriptors = both.flatten().chain([self.prover.as_fd()]);
        descriptors.map(|fd| fd.as_raw_fd()).collect()
    }

    /// The worker is stuck: whoever has the socket on which it is has no recalls for a while.
    fn leave(&mut self, left: Left, clients: &[ClientId], ends: Option<[PairedEnd; 2]>) {
        let inode = inode_under(left.number());
        let mut its_ends = ends.iter().flatten();
        let end = its_ends.find(|end| Some(end.inode) == inode);
        let suspect = ClientId(self.suspect.load(Relaxed));
        let suspect = self.clients.contains_key(&suspect).then_some(suspect);
        let client = end.map(|end| end.client).or(suspect);
        let client = client.or(clients.first().copied());
        let tenant = client.map_or(Tenant::Nobody, |client| self.tenant_of(client));
        let pid = client.and_then(|client| self.clients.get(&client).map(|client| client.pid));
        warn!(
            worker = left.number(),
            pid, "a program does not let go of its socket: it has no recalls for a while"
        );
        self.metrics.workers_left += 1;
        self.patience.stop(tenant, Instant::now());
        self.left_workers.push(LeftWorker {
            left,
            inode,
            tenant,
        });
    }

    /// Whether one of these clients has no recalls for a while.
    pub(super) fn is_stopped(&self, clients: &[ClientId]) -> bool {
        let now = Instant::now();
        clients.iter().any(|client| {
            let tenant = self.tenant_of(*client);
            let mut left = self.left_workers.iter();
            self.patience.is_stopped(tenant, now) || left.any(|it| it.tenant == tenant)
        })
    }

    /// Forgets workers that have ended after all; returns when to look again.
    pub(crate) fn bury_workers(&mut self, now: Instant) -> Option<Instant> {
        self.left_workers.retain(|it| !it.left.has_ended());
        (!self.left_workers.is_empty()).then_some(now + LEFT_PAUSE)
    }

    /// Those whose a recall is: who asks, and who has an end.
    pub(super) fn parties(
        &self,
        client: ClientId,
        recall: &Recall,
    ) -> (Vec<ClientId>, Option<[PairedEnd; 2]>) {
        let found = self.asked_for(client, recall).ok();
        let ends = found.map(|(pairing, _)| pairing.ends);
        let ends = ends.or_else(|| self.left_of(client, recall).map(|(_, ends)| *ends));
        let others = ends.iter().flatten().map(|end| end.client);
        (std::iter::once(client).chain(others).collect(), ends)
    }

    /// The worker that brought bytes back was killed, or is stuck.
    pub(super) fn abandon_recall(&mut self, client: ClientId, recall: &Recall) {
        let found = self.asked_for(client, recall).ok();
        let found = found.map(|(pairing, _)| (pairing.connection_id, pairing.ends));
        let left = || self.left_of(client, recall).map(|(id, ends)| (id, *ends));
        if let Some((connection_id, ends)) = found.or_else(left) {
            self.abandon(connection_id, &ends, &[(client, recall.fd)]);
        }
    }

    /// Ends a connection whose worker did not come to its end: nobody knows what is in its queues. These clients may have one of its
    /// sockets, by that number. Each end is let go of by a worker of its own, but for one that has not let go of the last.
    pub(super) fn abandon(
        &mut self,
        connection_id: u64,
        ends: &[PairedEnd; 2],
        holders: &[(ClientId, i32)],
    ) {
        self.bury_workers(Instant::now());
        for end in ends {
            let holds = |it: &LeftWorker| it.inode == Some(end.inode);
            if self.left_workers.iter().any(holds) {
                continue;
            }
            let holding = holders.iter().map(|(client, _)| *client);
            let clients: Vec<ClientId> = std::iter::once(end.client).chain(holding).collect();
            let work = |server: &Server| server.abandon_end(connection_id, end, holders);
            let outcome = self.apart(&clients, Some(*ends), work, |_, _| ());
            if matches!(outcome, Err(Refusal::Interrupted)) {
                end_with_worker();
            }
        }
        for row in ends.iter().flat_map(|end| self.row_of(end, connection_id)) {
            row.receive.lock.free_from_agent();
            row.send.lock.free_from_agent();
            row.identity.end_work();
        }
    }

    fn abandon_end(
        &self,
        connection_id: u64,
        end: &PairedEnd,
        holders: &[(ClientId, i32)],
    ) -> Result<(), Refusal> {
        let own = self.row_of(end, connection_id);
        let own = own.and_then(|row| self.borrow_socket(end, row)).ok();
        let mut others = holders.iter();
        let other = || others.find_map(|(client, fd)| self.borrow_number(end, *client, *fd).ok());
        let socket = own.or_else(other).ok_or(Refusal::OtherSocket)?;
        put_back::abandon(socket.as_fd(), &end.offer.local);
        Ok(())
    }

    /// The ends of a connection, one of which has gone, of which a client has the other.
    pub(super) fn left_of(
        &self,
        client: ClientId,
        recall: &Recall,
    ) -> Option<(u64, &[PairedEnd; 2])> {
        let own = self.pairings.left((client, recall.offer_id));
        let connection_id = own.map_or(recall.connection_id, |(id, _)| id);
        let ends = self.pairings.left_by_id(connection_id)?;
        Some((connection_id, ends))
    }
}

/// The agent's memory may be as the worker left it.
pub(super) fn end_with_worker() -> ! {
    error!(
        "the process that brought bytes back to the kernel's road was killed: this agent ends, and another may take its place"
    );
    std::process::exit(1)
}

/// The socket on which a process is in a system call.
fn inode_under(worker: i32) -> Option<u64> {
    let process = Process::open(worker, None).ok()??;
    let text = process.read("syscall")?;
    // Number, and arguments: the first is the descriptor.
    let descriptor = text.split_ascii_whitespace().nth(1)?.strip_prefix("0x")?;
    process.socket_inode(i32::from_str_radix(descriptor, 16).ok()?)
}

fn encode(outcome: &Result<(), Refusal>) -> u8 {
    match outcome {
        Ok(()) => DONE,
        Err(Refusal::Locked) => LOCKED,
        Err(Refusal::Sending) => SENDING,
        Err(Refusal::Full) => FULL,
        Err(Refusal::UnderWay) => UNDER_WAY,
        Err(_) => REFUSED,
    }
}

fn decode(said: u8) -> Result<(), Refusal> {
    match said {
        DONE => Ok(()),
        LOCKED => Err(Refusal::Locked),
        SENDING => Err(Refusal::Sending),
        FULL => Err(Refusal::Full),
        UNDER_WAY => Err(Refusal::UnderWay),
        _ => Err(Refusal::Told),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use nix::sys::signal::{Signal, raise};
    use nix::sys::socket::{setsockopt, sockopt};

    use super::*;
    use crate::sys::Borrowed;

    fn said(patience: Duration, work: impl FnOnce() -> u8) -> Option<u8> {
        let worked = sys::apart(patience, Vec::new(), work).unwrap();
        assert!(worked.left.is_none());
        worked.said
    }

    #[test]
    fn a_worker_s_word_comes_back_and_one_that_dies_or_never_ends_has_none() {
        assert_eq!(said(WORK_MAX, || 7), Some(7));
        let killed = || raise(Signal::SIGKILL).map_or(1, |()| 2);
        assert_eq!(said(WORK_MAX, killed), None);
        let endless = || loop {
            std::thread::sleep(WORK_MAX);
        };
        let patience = Duration::from_millis(20);
        assert_eq!(said(patience, endless), None);
    }

    #[test]
    fn a_worker_s_last_descriptor_of_a_socket_that_lingers_holds_nobody_up() {
        let lingers = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let far = listener.accept().unwrap().0;
            near.set_nonblocking(true).unwrap();
            while near.write(&[0; 1 << 16]).is_ok() {}
            let linger = libc::linger {
                l_onoff: 1,
                l_linger: 600,
            };
            setsockopt(&near, sockopt::Linger, &linger).unwrap();
            drop(Borrowed::new(near.into(), true));
            std::mem::forget(far);
            7
        };
        assert_eq!(said(WORK_MAX, lingers), Some(7));
    }

    #[test]
    fn what_a_recall_came_to_is_told_in_a_byte() {
        assert!(decode(encode(&Ok(()))).is_ok());
        let told = |refusal| decode(encode(&Err(refusal)));
        assert!(matches!(told(Refusal::Locked), Err(Refusal::Locked)));
        assert!(matches!(told(Refusal::Sending), Err(Refusal::Sending)));
        assert!(matches!(told(Refusal::Full), Err(Refusal::Full)));
        assert!(matches!(told(Refusal::Corrupt), Err(Refusal::Told)));
    }
}
