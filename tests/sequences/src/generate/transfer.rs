//! Ordinary sending and receiving.

use super::Generator;
use super::model::EndId;
use crate::plan::{Call, Flag, Opt, Process, ReceiveBy, SendBy, Slot, Until};

/// No more than this is left unread: the kernel's smallest default window is 64 KiB.
const QUEUE_BYTES: u32 = 24 * 1024;
/// The same for connections whose buffers were made small.
const SMALL_QUEUE_BYTES: u32 = 1500;

/// All forms of receiving that return what is there.
pub(super) const RECEIVE_FORMS: [ReceiveBy; 12] = [
    ReceiveBy::Read,
    ReceiveBy::ReadChk,
    ReceiveBy::Readv,
    ReceiveBy::Preadv2,
    ReceiveBy::Preadv2NoWait,
    ReceiveBy::Recv,
    ReceiveBy::RecvChk,
    ReceiveBy::Recvfrom,
    ReceiveBy::RecvfromChk,
    ReceiveBy::Recvmsg,
    ReceiveBy::Recvmmsg,
    ReceiveBy::Splice,
];

/// The forms that take flags.
pub(super) const FLAGGED_RECEIVE_FORMS: [ReceiveBy; 5] = [
    ReceiveBy::Recv,
    ReceiveBy::RecvChk,
    ReceiveBy::Recvfrom,
    ReceiveBy::RecvfromChk,
    ReceiveBy::Recvmsg,
];

const SEND_FORMS: [SendBy; 14] = [
    SendBy::Write,
    SendBy::Writev,
    SendBy::Pwritev2,
    SendBy::Send,
    SendBy::Sendto,
    SendBy::SendtoAddressed,
    SendBy::Sendmsg,
    SendBy::Sendmmsg,
    SendBy::Sendfile,
    SendBy::SendfileOwnOffset,
    SendBy::Sendfile64,
    SendBy::Splice,
    SendBy::Dprintf,
    SendBy::Stdio,
];

/// The forms that hand all bytes to the kernel in one piece.
pub(super) const WHOLE_SEND_FORMS: [SendBy; 5] = [
    SendBy::Write,
    SendBy::Writev,
    SendBy::Send,
    SendBy::Sendto,
    SendBy::Sendmsg,
];

/// Whether the form takes flags.
fn takes_send_flags(by: SendBy) -> bool {
    matches!(
        by,
        SendBy::Send
            | SendBy::Sendto
            | SendBy::SendtoAddressed
            | SendBy::Sendmsg
            | SendBy::Sendmmsg
    )
}

impl Generator {
    /// A size for a message: mostly small, now and then large.
    fn any_size(&mut self) -> u32 {
        match self.random.weighted(&[30, 25, 25, 15, 5]) {
            0 => self.random.between(1, 16),
            1 => self.random.between(17, 200),
            2 => self.random.between(200, 2000),
            3 => self.random.between(2000, 12_000),
            _ => self.random.pick(&[0, 1, 4095, 4096, 4097, 8192, 16_384]),
        }
    }

    /// A size that the peer's queue has room for.
    pub(super) fn message_size(&mut self, from: EndId) -> u32 {
        let peer = self.model.end(from.peer());
        let small = peer.small_buffers || self.model.end(from).small_buffers;
        let limit = if small {
            SMALL_QUEUE_BYTES
        } else {
            QUEUE_BYTES
        };
        let room = limit.saturating_sub(peer.queued);
        self.any_size().min(room)
    }

    /// Sends from a slot of `from`, by any form.
    pub(super) fn send_from(&mut self, from: EndId, at: Process, slot: Slot, bytes: u32) {
        let mut by = self.random.pick(&SEND_FORMS);
        let limit = match by {
            SendBy::Dprintf => 900,
            SendBy::Stdio => 4000,
            _ => 16_384,
        };
        if bytes > limit {
            by = SendBy::Write;
        }
        let mut flags = Vec::new();
        if takes_send_flags(by) {
            for flag in [Flag::NoSignal, Flag::DontWait] {
                if self.random.chance(20) {
                    flags.push(flag);
                }
            }
        }
        let parts = self.random.between(1, 4) as u8;
        self.call(
            at,
            Call::Send {
                slot,
                by,
                bytes,
                parts,
                flags,
                bad: false,
            },
        );
        self.sent(from, bytes);
    }

    /// Notes that bytes are on their way.
    pub(super) fn sent(&mut self, from: EndId, bytes: u32) {
        if self.model.flows(from) {
            let peer = self.model.end_mut(from.peer());
            peer.queued += bytes;
            peer.unsettled = true;
        }
    }

    /// Sends in one piece, which the peer then finds in one piece.
    pub(super) fn send_whole(&mut self, from: EndId, bytes: u32) -> bool {
        let Some((at, slot)) = self.holder(from) else {
            return false;
        };
        let by = self.random.pick(&WHOLE_SEND_FORMS);
        let parts = self.random.between(1, 3) as u8;
        self.call(
            at,
            Call::Send {
                slot,
                by,
                bytes,
                parts,
                flags: Vec::new(),
                bad: false,
            },
        );
        self.sent(from, bytes);
        true
    }

    /// Some end sends a message.
    pub(super) fn message(&mut self) -> bool {
        let senders = self.model.senders();
        let Some(from) = self.random.pick_any(&senders) else {
            return false;
        };
        let Some((at, slot)) = self.holder(from) else {
            return false;
        };
        let bytes = self.message_size(from);
        self.send_from(from, at, slot, bytes);
        true
    }

    /// One message and its reception.
    pub(super) fn exchange(&mut self, from: EndId, bytes: u32) -> bool {
        let Some((at, slot)) = self.holder(from) else {
            return false;
        };
        if !self.model.flows(from) {
            return false;
        }
        self.send_from(from, at, slot, bytes);
        // Where a low-water mark is set, `poll` would not tell of the last bytes.
        if self.random.chance(30) && self.model.end(from.peer()).low_water == 1 {
            return self.receive_without_waiting(from.peer());
        }
        self.settle(from.peer());
        self.receive_from(from.peer())
    }

    /// Receives exactly what is on its way, without looking whether it has come.
    fn receive_without_waiting(&mut self, id: EndId) -> bool {
        let Some((at, slot)) = self.holder(id) else {
            return false;
        };
        let by = self.random.pick(&RECEIVE_FORMS[..10]);
        let chunk = self.random.pick(&[1000, 4096, 65_536]);
        // The slower forms of `Queued` are left to `settle`.
        let until = Until::Sent;
        self.await_for_signals(at, slot);
        self.call(
            at,
            Call::ReceiveAll {
                slot,
                by,
                chunk,
                until,
            },
        );
        let end = self.model.end_mut(id);
        end.queued = 0;
        end.unsettled = false;
        true
    }

    /// Some end receives.
    pub(super) fn receive_some(&mut self) -> bool {
        let ends = self.model.held_ends();
        let waiting: Vec<EndId> = ends
            .into_iter()
            .filter(|id| self.model.end(*id).queued > 0)
            .collect();
        match self.random.pick_any(&waiting) {
            Some(id) => self.receive_from(id),
            None => false,
        }
    }

    /// Receives from an end that has come to rest, by any form that does not block.
    pub(super) fn receive_from(&mut self, id: EndId) -> bool {
        let Some((at, slot)) = self.holder(id) else {
            return false;
        };
        let queued = self.model.end(id).queued;
        let bytes = match self.random.weighted(&[35, 25, 25, 5]) {
            0 => queued,
            1 => self.random.between(1, queued.max(2) - 1),
            2 => queued + self.random.between(1, 5000),
            _ => 0,
        };
        if !self.model.readable(id, bytes) {
            return false;
        }
        let exact = bytes <= queued && bytes > 0 && queued >= self.model.end(id).low_water;
        if exact && self.random.chance(6) {
            self.receive(id, at, slot, ReceiveBy::Stdio, bytes, &[]);
            return true;
        }
        let by = self.random.pick(&RECEIVE_FORMS);
        let mut flags = self.receive_flags(by);
        if by == ReceiveBy::Recvmmsg && !flags.contains(&Flag::DontWait) {
            flags.push(Flag::WaitForOne);
        }
        self.receive(id, at, slot, by, bytes, &flags);
        true
    }

    /// Flags that do not make a call block.
    fn receive_flags(&mut self, by: ReceiveBy) -> Vec<Flag> {
        let mut flags = Vec::new();
        if !FLAGGED_RECEIVE_FORMS.contains(&by) && by != ReceiveBy::Recvmmsg {
            return flags;
        }
        if self.random.chance(20) {
            flags.push(Flag::DontWait);
        }
        if self.random.chance(10) {
            flags.push(Flag::NoSignal);
        }
        if by != ReceiveBy::Recvmmsg && self.random.chance(10) {
            flags.push(Flag::Trunc);
        }
        if by == ReceiveBy::Recvmsg && self.random.chance(10) {
            flags.push(Flag::CloseOnExec);
        }
        flags
    }

    /// Adds a receive call and notes what it takes.
    pub(super) fn receive(
        &mut self,
        id: EndId,
        at: Process,
        slot: Slot,
        by: ReceiveBy,
        bytes: u32,
        flags: &[Flag],
    ) {
        let parts = self.random.between(1, 4) as u8;
        let call = Call::Receive {
            slot,
            by,
            bytes,
            parts,
            flags: flags.to_vec(),
            bad: false,
        };
        self.call(at, call);
        if !flags.contains(&Flag::Peek) {
            self.took(id, bytes);
        }
    }

    /// Notes that up to `bytes` were received.
    pub(super) fn took(&mut self, id: EndId, bytes: u32) {
        let end = self.model.end_mut(id);
        end.queued = end.queued.saturating_sub(bytes);
    }

    /// Looks at bytes without taking them.
    pub(super) fn peek(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        let end = self.model.end(id);
        let (queued, offset) = (end.queued, end.peek_offset);
        let bytes = self.random.between(1, queued + 10);
        if offset || !self.model.readable(id, bytes) {
            return false;
        }
        let by = self.random.pick(&FLAGGED_RECEIVE_FORMS);
        let mut flags = vec![Flag::Peek];
        if self.random.chance(30) {
            flags.push(Flag::DontWait);
        }
        if self.random.chance(20) && (bytes <= queued || self.model.ended(id)) {
            flags.push(Flag::WaitAll);
        }
        if self.random.chance(15) {
            flags.push(Flag::Trunc);
        }
        self.receive(id, at, slot, by, bytes, &flags);
        true
    }

    /// `MSG_WAITALL` where there is enough, or the stream has ended, or nobody waits.
    pub(super) fn wait_all(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        let queued = self.model.end(id).queued;
        let patient = self.model.ended(id) || self.model.end(id).nonblock;
        let by = self.random.pick(&FLAGGED_RECEIVE_FORMS);
        let mut flags = vec![Flag::WaitAll];
        let bytes = if patient {
            queued + self.random.between(1, 300)
        } else if queued > 0 && self.random.chance(50) {
            self.random.between(1, queued)
        } else {
            flags.push(Flag::DontWait);
            queued + self.random.between(1, 300)
        };
        self.receive(id, at, slot, by, bytes, &flags);
        true
    }

    /// Receives where there is nothing.
    pub(super) fn receive_nothing(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        if self.model.end(id).queued > 0 {
            return false;
        }
        let bytes = self.random.pick(&[0, 1, 100, 5000]);
        let waits = !self.model.ended(id) && !self.model.end(id).nonblock;
        if !waits {
            let by = self.random.pick(&RECEIVE_FORMS);
            self.receive(id, at, slot, by, bytes, &[]);
        } else if self.model.end(id).times_out && self.waits_left > 0 {
            self.waits_left -= 1;
            let by = self.random.pick(&RECEIVE_FORMS);
            self.receive(id, at, slot, by, bytes.max(1), &[]);
        } else {
            let by = self.random.pick(&FLAGGED_RECEIVE_FORMS);
            let flag = self
                .random
                .pick(&[Flag::DontWait, Flag::DontWait, Flag::ErrQueue]);
            self.receive(id, at, slot, by, bytes, &[flag]);
        }
        true
    }

    /// A receive time-out that expires: with nothing there, or with less than was asked for.
    pub(super) fn time_out(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        let end = self.model.end(id);
        if self.model.ended(id) || end.nonblock || end.peek_offset || self.waits_left == 0 {
            return false;
        }
        self.waits_left -= 1;
        let queued = end.queued;
        let option = Opt::ReceiveTimeout;
        let value = self.random.between(15, 30) as i32;
        self.call(
            at,
            Call::SetOption {
                slot,
                option,
                value,
            },
        );
        let by = self.random.pick(&FLAGGED_RECEIVE_FORMS);
        let mut flags = vec![Flag::WaitAll];
        if self.random.chance(20) {
            flags.push(Flag::Peek);
        }
        let bytes = queued + self.random.between(1, 50);
        self.receive(id, at, slot, by, bytes, &flags);
        let value = 0;
        self.call(
            at,
            Call::SetOption {
                slot,
                option,
                value,
            },
        );
        self.model.end_mut(id).times_out = false;
        true
    }
}
