//! A sending call from its first step to its last.

use super::begun::Message;
use super::turn::note_part;
use super::{Step, all_chunks};
use crate::socket::Socket;
use crate::thread::{self, Busy, Interrupts};
use crate::user;
use crate::vectors::Vectors;

/// A message of which so much is sent leaves the ring for a signal: what the kernel's buffer grows to.
const UNCUT_BYTES: usize = 4 << 20;

/// How far a call has come.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// When it began.
    pub(super) interrupts: Interrupts,
    /// Bytes that are published.
    pub(super) sent: usize,
    /// Steps since then.
    pub(super) fruitless: u32,
    /// Cycles that were spent on waits for room.
    pub(super) waited: u64,
    /// Since a part is published and more is to come.
    pub(super) message: Option<Message>,
    /// So many bytes of the memory of the next step the kernel was asked for.
    pub(super) asked: usize,
    /// From then on handlers wait until the call ends or sleeps: in the kernel none runs between the parts. It is dropped after the
    /// message: one that leaves by a jump leaves nothing behind.
    pub(super) busy: Option<Busy>,
}

impl Course {
    #[inline]
    pub(super) fn begin(interrupts: Interrupts) -> Course {
        Course {
            interrupts,
            ..Course::default()
        }
    }

    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
        (self.sent, self.fruitless, self.asked) = (self.sent + bytes, 0, 0);
    }

    /// Where no lock is held: another thread may have to bring the memory (`userfaultfd`), and close the connection before.
    #[cold]
    pub(super) fn ask_for(&mut self, vectors: &Vectors<'_>, bytes: usize) {
        all_chunks(vectors, bytes, user::may_read);
        self.asked = bytes;
    }

    /// A step of a message of which `left` bytes were left. The half is locked.
    #[inline]
    pub(super) fn note_step(&mut self, socket: &'static Socket, step: &Step, left: usize) {
        let Step::Ring(bytes) = *step else {
            return;
        };
        let is_last = bytes == left;
        note_part(&socket.row().send, self.sent + bytes, is_last);
        if !is_last {
            self.busy.get_or_insert_with(Busy::new);
            if self.message.is_none() {
                self.message = Message::begin(socket);
            }
        }
    }

    /// Whether a signal's handler has waited long enough: the kernel's buffer would have been full meanwhile. What that takes of the rest
    /// goes by the kernel, without a wait: a count that is short says that it is full.
    #[inline]
    pub(super) fn is_cut(&self) -> bool {
        self.sent >= UNCUT_BYTES && thread::has_waiting()
    }
}
