//! What touches other programs' sockets is done by a process of its own, the worker: whoever kills the agent in the middle would leave a
//! socket half made again, or bytes that are in no queue any more. The worker goes on to the end, and answers in the agent's place.
//!
//! The agent waits for it. A worker that is killed, or does not come to its end, leaves sockets as they are then: the agent makes them
//! plain ones again, and has them reset. Then it ends, too, since the worker had its memory and may have been at work on that; whoever
//! watches over it starts another one, and connections go on meanwhile.
//!
//! Limits:
//! - whoever kills both in the same moment has killed what was to mend it: the sockets stay as they are;
//! - where there can be no other process, the agent does the work itself;
//! - a worker holds the agent's place for as long as it works: until then no other agent comes there. Nobody ends one that is stopped when
//!   the agent is no more;
//! - a program that makes calls on its own socket last (see `recall`) for ten seconds ends the agent, which it held up before, too.

use std::os::fd::AsFd;
use std::time::Duration;

use millrace_wire::Recall;
use tracing::{debug, error};

use super::{Refusal, put_back};
use crate::offers::ClientId;
use crate::pairings::PairedEnd;
use crate::server::Server;
use crate::sys;

/// A worker is done in a fraction of that, also on a machine that has much else to do, or something has stopped it.
const WORK_MAX: Duration = Duration::from_secs(10);

/// What a worker says, in a byte.
const DONE: u8 = 0;
const LOCKED: u8 = 1;
const SENDING: u8 = 2;
const FULL: u8 = 3;
const REFUSED: u8 = 4;

impl Server {
    /// Has a worker do it. `last_words`: what it does when the agent is no more, and hears of it from nobody else.
    pub(super) fn apart(
        &mut self,
        work: impl Fn(&Server) -> Result<(), Refusal>,
        last_words: impl FnOnce(&mut Server, bool),
    ) -> Result<(), Refusal> {
        let worked = sys::apart(WORK_MAX, || {
            let outcome = work(self);
            if let Err(refusal) = &outcome {
                debug!("refused: {refusal}");
            }
            if std::os::unix::process::parent_id() != self.pid {
                last_words(self, outcome.is_ok());
            }
            encode(&outcome)
        });
        match worked {
            Ok(Some(said)) => decode(said),
            Ok(None) => Err(Refusal::Interrupted),
            Err(_) => work(self),
        }
    }

    /// The worker that brought bytes back was killed.
    pub(super) fn abandon_recall(&self, client: ClientId, recall: &Recall) -> ! {
        let found = self.asked_for(client, recall).ok();
        let found = found.map(|(pairing, _)| (pairing.connection_id, &pairing.ends));
        if let Some((connection_id, ends)) = found.or_else(|| self.left_of(client, recall)) {
            self.abandon(connection_id, ends, &[(client, recall.fd)]);
        }
        end_with_worker()
    }

    /// Ends a connection on which a worker was killed: nobody knows what is in its queues. These clients may have one of its sockets, by
    /// that number.
    pub(super) fn abandon(
        &self,
        connection_id: u64,
        ends: &[PairedEnd; 2],
        holders: &[(ClientId, i32)],
    ) {
        for end in ends {
            let own = self.row_of(end, connection_id);
            let own = own.and_then(|row| self.borrow_socket(end, row)).ok();
            let mut others = holders.iter();
            let other =
                || others.find_map(|(client, fd)| self.borrow_number(end, *client, *fd).ok());
            if let Some(socket) = own.or_else(other) {
                put_back::abandon(socket.as_fd(), &end.offer.local);
            }
        }
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

fn encode(outcome: &Result<(), Refusal>) -> u8 {
    match outcome {
        Ok(()) => DONE,
        Err(Refusal::Locked) => LOCKED,
        Err(Refusal::Sending) => SENDING,
        Err(Refusal::Full) => FULL,
        Err(_) => REFUSED,
    }
}

fn decode(said: u8) -> Result<(), Refusal> {
    match said {
        DONE => Ok(()),
        LOCKED => Err(Refusal::Locked),
        SENDING => Err(Refusal::Sending),
        FULL => Err(Refusal::Full),
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

    #[test]
    fn a_worker_s_word_comes_back_and_one_that_dies_or_never_ends_has_none() {
        assert_eq!(sys::apart(WORK_MAX, || 7).unwrap(), Some(7));
        let killed = || raise(Signal::SIGKILL).map_or(1, |()| 2);
        assert_eq!(sys::apart(WORK_MAX, killed).unwrap(), None);
        let endless = || loop {
            std::thread::sleep(WORK_MAX);
        };
        let patience = Duration::from_millis(20);
        assert_eq!(sys::apart(patience, endless).unwrap(), None);
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
        assert_eq!(sys::apart(WORK_MAX, lingers).unwrap(), Some(7));
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
