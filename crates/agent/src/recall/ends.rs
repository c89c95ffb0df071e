//! Who has which end of a connection now, and its socket for a moment.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

use millrace_shm::board::{Row, holders, state};
use millrace_wire::Recall;
use nix::sys::stat::fstat;

use super::Refusal;
use crate::offers::ClientId;
use crate::pairings::{PairedEnd, Pairing};
use crate::proof::{self, Process};
use crate::server::Server;
use crate::sys::{self, Borrowed};

impl Server {
    /// The pairing of a connection that another process offered, and the direction in which the end sends that the client shows to
    /// have too.
    pub(super) fn inherited(
        &self,
        client: ClientId,
        recall: &Recall,
    ) -> Result<(&Pairing, usize), Refusal> {
        let pairing = self.pairings.by_id(recall.connection_id);
        let pairing = pairing.ok_or(Refusal::Unpaired)?;
        Ok((pairing, self.end_shown(client, recall, &pairing.ends)?))
    }

    pub(super) fn process_of(&self, client: ClientId) -> Result<&Process, Refusal> {
        let process = self.clients.get(&client).and_then(|c| c.process.as_ref());
        process.ok_or(Refusal::Process)
    }

    /// Which of two ends a client shows to have.
    pub(super) fn end_shown(
        &self,
        client: ClientId,
        recall: &Recall,
        ends: &[PairedEnd; 2],
    ) -> Result<usize, Refusal> {
        let process = self.process_of(client)?;
        let inode = process.socket_inode(recall.fd).ok_or(Refusal::Unpaired)?;
        if !process.is_unchanged() {
            return Err(Refusal::Process);
        }
        let index = ends.iter().position(|end| end.inode == inode);
        index.ok_or(Refusal::Unpaired)
    }

    /// The row of an end, if it speaks of that connection.
    pub(crate) fn row_of(&self, end: &PairedEnd, connection_id: u64) -> Result<&Row, Refusal> {
        let client = self.clients.get(&end.client).ok_or(Refusal::Unpaired)?;
        let row = client.row(end.offer.row).ok_or(Refusal::Corrupt)?;
        let is_its = row.identity.state.load(Relaxed) == state::ATTACHED
            && row.identity.connection_id.load(Relaxed) == connection_id;
        is_its.then_some(row).ok_or(Refusal::Corrupt)
    }

    /// Whether a client's sockets could be borrowed for a recall. In another PID namespace than ours nothing is ever brought back, as users
    /// are told: there, and of a process that has ended, that is no question.
    pub(crate) fn may_borrow(&self, client: ClientId) -> bool {
        let Some(client) = self.clients.get(&client) else {
            return true;
        };
        match client
            .process
            .as_ref()
            .map(Process::is_in_our_pid_namespace)
        {
            None | Some(Some(false)) => return true,
            Some(None) => return false,
            Some(Some(true)) => {}
        }
        let is_gone = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
        match sys::pidfd_open(client.pid) {
            Ok(pidfd) => sys::may_get_descriptors(pidfd.as_fd()),
            Err(error) => is_gone(&error),
        }
    }

    /// A duplicate of the descriptor of an end that was proved; to be dropped at once. Its row says which number it has now, and who
    /// has it where the process that offered it has let go.
    pub(super) fn borrow_socket(&self, end: &PairedEnd, row: &Row) -> Result<Borrowed, Refusal> {
        let number = row.identity.fd.load(Relaxed).cast_signed();
        let own = self.borrow_number(end, end.client, number);
        let Err(refusal) = own else {
            return own;
        };
        self.holders(end, row)
            .find_map(|holder| self.take_from(end, holder.cast_signed(), number))
            .ok_or(refusal)
    }

    /// The processes that have an end as its row says, if the client that offered it knows processes by the numbers that we do.
    pub(super) fn holders<'a>(
        &self,
        end: &PairedEnd,
        row: &'a Row,
    ) -> impl Iterator<Item = u32> + use<'a> {
        let process = self.process_of(end.client);
        let speaks_our_numbers = process.is_ok_and(Process::shares_pid_namespace);
        let places = row.identity.processes.iter();
        places
            .filter_map(|place| holders::number(place.load(Relaxed)))
            .filter(move |_| speaks_our_numbers)
    }

    /// Whether somebody who has an end, or had it, is about to end.
    pub(super) fn is_ending(&self, end: &PairedEnd, row: &Row) -> bool {
        let first = self.clients.get(&end.client).map(|client| client.pid);
        self.holders(end, row)
            .chain(first.map(i32::cast_unsigned))
            .any(proof::is_ending)
    }

    /// The processes that have an end, where all of them are known.
    pub(super) fn all_holders(&self, end: &PairedEnd, row: &Row) -> Vec<u32> {
        let known: Vec<u32> = self.holders(end, row).collect();
        let count = row.identity.holders.load(Relaxed) as usize;
        if known.len() == count {
            known
        } else {
            Vec::new()
        }
    }

    /// As [`Server::borrow_socket`], from a client that says what number the end has there: one that has it from another process.
    pub(super) fn borrow_number(
        &self,
        end: &PairedEnd,
        client: ClientId,
        number: i32,
    ) -> Result<Borrowed, Refusal> {
        if self.doomed.contains(&client) {
            return Err(Refusal::Process);
        }
        let client = self.clients.get(&client).ok_or(Refusal::Unpaired)?;
        let process = client.process.as_ref().ok_or(Refusal::Process)?;
        if !process.shares_pid_namespace() {
            return Err(Refusal::Process);
        }
        let pidfd = sys::pidfd_open(client.pid).map_err(Refusal::Descriptor)?;
        // It lives still, so the number meant it when it was opened.
        if !process.is_unchanged() {
            return Err(Refusal::Process);
        }
        self.take_socket(end, process, pidfd.as_fd(), number)
    }

    /// As [`Server::borrow_socket`], from whatever process has that number now.
    fn take_from(&self, end: &PairedEnd, pid: i32, number: i32) -> Option<Borrowed> {
        let pidfd = sys::pidfd_open(pid).ok()?;
        let process = Process::open(pid, Some(pidfd.as_fd())).ok()??;
        self.take_socket(end, &process, pidfd.as_fd(), number).ok()
    }

    /// A duplicate of a process's descriptor, if that is the socket that was proved. What it is, is asked before: of a file of another kind
    /// the kernel may have to ask somebody who does not answer, when it is let go of.
    fn take_socket(
        &self,
        end: &PairedEnd,
        process: &Process,
        pidfd: BorrowedFd<'_>,
        number: i32,
    ) -> Result<Borrowed, Refusal> {
        if process.socket_inode(number) != Some(end.inode) {
            return Err(Refusal::OtherSocket);
        }
        let socket = sys::pidfd_getfd(pidfd, number).map_err(Refusal::Descriptor)?;
        let socket = Borrowed::new(socket, std::process::id() != self.pid);
        // It may be another file by now: sockets alone have a cookie, and no file system is asked for it.
        let cookie = sys::socket_cookie(socket.as_fd()).map_err(|_| {
            self.suspect.store(end.client.0, Relaxed);
            Refusal::OtherSocket
        })?;
        let inode = fstat(socket.as_fd()).map_err(|errno| Refusal::Descriptor(errno.into()))?;
        if inode.st_ino == end.inode && cookie == end.offer.cookie {
            Ok(socket)
        } else {
            Err(Refusal::OtherSocket)
        }
    }
}
