//! Sending with `MSG_MORE` and `TCP_CORK`, urgent data, large transfers, and full connections.

use super::Generator;
use super::model::EndId;
use crate::plan::{
    Awaited, Call, Flag, Opt, PollBy, Process, ReceiveBy, SendBy, Slot, Thread, Until,
};

impl Generator {
    /// Several sends that are held together until the last.
    pub(super) fn send_more(&mut self) -> bool {
        let senders = self.model.senders();
        let Some(from) = self.random.pick_any(&senders) else {
            return false;
        };
        let Some((at, slot)) = self.holder(from) else {
            return false;
        };
        let cork = self.random.chance(40);
        let option = Opt::Cork;
        if cork {
            let value = 1;
            self.call(
                at,
                Call::SetOption {
                    slot,
                    option,
                    value,
                },
            );
        }
        for _ in 0..self.random.between(1, 4) {
            let bytes = self.message_size(from).min(3000);
            if cork {
                self.send_from(from, at, slot, bytes);
                continue;
            }
            let by = self.random.pick(&[
                SendBy::Send,
                SendBy::Sendto,
                SendBy::Sendmsg,
                SendBy::Splice,
            ]);
            let parts = self.random.between(1, 3) as u8;
            let flags = vec![Flag::More];
            let bad = false;
            self.call(
                at,
                Call::Send {
                    slot,
                    by,
                    bytes,
                    parts,
                    flags,
                    bad,
                },
            );
            self.sent(from, bytes);
        }
        if cork {
            let value = 0;
            self.call(
                at,
                Call::SetOption {
                    slot,
                    option,
                    value,
                },
            );
        } else {
            let bytes = self.random.between(1, 50);
            self.send_whole(from, bytes);
        }
        true
    }

    /// Some bytes, one urgent, some more; all are read. Afterwards nothing is left.
    pub(super) fn urgent(&mut self) -> bool {
        let fresh = self.model.fresh();
        let Some(from) = self.random.pick_any(&fresh) else {
            return false;
        };
        let to = from.peer();
        let (Some((at, slot)), Some((reader, end))) = (self.holder(from), self.holder(to)) else {
            return false;
        };
        if self.model.end(to).low_water > 1 || self.model.end(to).peek_offset {
            return false;
        }
        let inline = self.model.end(to).oob_inline;
        let before = self.random.pick(&[0, 1, 10, 500]);
        // Something follows always: until the mark is passed, FIONREAD counts up to the mark only.
        let after = self.random.pick(&[1, 20, 300]);
        if before > 0 {
            self.send_whole(from, before);
        }
        self.call(at, Call::SendUrgent { slot, inline });
        self.poll_once(reader, PollBy::Poll, end, libc::POLLPRI, 2000);
        self.send_whole(from, after);
        if before > 0 {
            self.call(reader, Call::AtMark { slot: end });
            self.plain_receive(reader, end, 5000);
        }
        self.call(reader, Call::AtMark { slot: end });
        if !inline {
            if self.random.chance(50) {
                self.call(
                    reader,
                    Call::ReceiveUrgent {
                        slot: end,
                        peek: true,
                    },
                );
            }
            self.call(
                reader,
                Call::ReceiveUrgent {
                    slot: end,
                    peek: false,
                },
            );
            self.call(
                reader,
                Call::ReceiveUrgent {
                    slot: end,
                    peek: false,
                },
            );
        }
        let rest = after + u32::from(inline);
        let until = Until::Bytes(rest);
        let by = ReceiveBy::Recv;
        let chunk = 5000;
        self.call(
            reader,
            Call::ReceiveAll {
                slot: end,
                by,
                chunk,
                until,
            },
        );
        let model = self.model.end_mut(to);
        model.queued = 0;
        model.unsettled = false;
        true
    }

    fn plain_receive(&mut self, at: Process, slot: Slot, bytes: u32) {
        self.call(
            at,
            Call::Receive {
                slot,
                by: ReceiveBy::Recv,
                bytes,
                parts: 1,
                flags: vec![Flag::DontWait],
                bad: false,
            },
        );
    }

    /// A send whose memory the kernel may use in place, and the notice that it no longer does.
    pub(super) fn zero_copy(&mut self) -> bool {
        let fresh = self.model.fresh();
        let Some(from) = self.random.pick_any(&fresh) else {
            return false;
        };
        let Some((at, slot)) = self.holder(from) else {
            return false;
        };
        let (option, value) = (Opt::ZeroCopy, 1);
        self.call(
            at,
            Call::SetOption {
                slot,
                option,
                value,
            },
        );
        let by = self.random.pick(&[SendBy::Send, SendBy::Sendmsg]);
        let bytes = self.message_size(from).max(1);
        let (parts, bad) = (1, false);
        let flags = vec![Flag::ZeroCopy];
        self.call(
            at,
            Call::Send {
                slot,
                by,
                bytes,
                parts,
                flags,
                bad,
            },
        );
        self.sent(from, bytes);
        // The notice comes with the acknowledgement, and raises SIGIO: it is there before the connection is said to be at rest.
        self.poll_once(at, PollBy::Poll, slot, 0, 2000);
        self.settle(from.peer());
        for _ in 0..2 {
            let flags = vec![Flag::ErrQueue];
            let (by, bytes) = (ReceiveBy::Recvmsg, 100);
            self.call(
                at,
                Call::Receive {
                    slot,
                    by,
                    bytes,
                    parts,
                    flags,
                    bad,
                },
            );
        }
        true
    }

    /// How much is transferred in bulk over this connection.
    fn bulk_size(&mut self, from: EndId) -> u32 {
        let small = self.model.end(from).small_buffers || self.model.end(from.peer()).small_buffers;
        let limit = if small { 200_000 } else { 1 << 20 };
        match self.random.weighted(&[50, 35, 15]) {
            0 => self.random.between(10_000, 60_000),
            1 => self.random.between(60_000, 200_000),
            _ => self.random.between(200_000, limit),
        }
    }

    /// A thread of a holder sends `bytes`.
    fn start_bulk(&mut self, from: EndId, bytes: u32) -> Option<(Process, Thread)> {
        let (at, slot) = self.holder(from)?;
        let by = self.random.pick(&[
            SendBy::Write,
            SendBy::Writev,
            SendBy::Send,
            SendBy::Sendmsg,
            SendBy::Sendmmsg,
            SendBy::Sendfile,
            SendBy::Splice,
        ]);
        let chunk = match by {
            SendBy::Splice => 16_384,
            _ => self.random.pick(&[3000, 16_384, 65_536, 1 << 20]),
        };
        let call = Call::SendAll {
            slot,
            by,
            chunk,
            bytes,
        };
        Some((at, self.start(at, call)))
    }

    /// The call by which all of a bulk transfer is received.
    fn bulk_receive(&mut self, id: EndId, slot: Slot, bytes: u32) -> Call {
        let by = self.random.pick(&[
            ReceiveBy::Read,
            ReceiveBy::Readv,
            ReceiveBy::Recv,
            ReceiveBy::Recvfrom,
            ReceiveBy::Recvmsg,
            ReceiveBy::Splice,
        ]);
        let chunk = self.random.pick(&[2000, 16_384, 65_536, 1 << 20]);
        let until = Until::Bytes(bytes + self.model.end(id).queued);
        Call::ReceiveAll {
            slot,
            by,
            chunk,
            until,
        }
    }

    /// Whether large transfers are certain to come to an end here.
    pub(super) fn fit_for_bulk(&self, from: EndId) -> bool {
        let to = self.model.end(from.peer());
        let lossless = !to.times_out && to.low_water == 1 && !to.shut_read;
        let edges = to.edge || self.model.end(from).edge;
        lossless && !edges && !self.model.signals && self.room()
    }

    /// Reads all that was sent to an end, however much that is.
    pub(super) fn read_all(&mut self, id: EndId, at: Process, slot: Slot) {
        let by = self
            .random
            .pick(&[ReceiveBy::Read, ReceiveBy::Recvmsg, ReceiveBy::Recv]);
        let chunk = self.random.pick(&[16_384, 1 << 20]);
        let until = Until::Sent;
        self.call(
            at,
            Call::ReceiveAll {
                slot,
                by,
                chunk,
                until,
            },
        );
        self.emptied(id);
    }

    /// One end sends much while the other receives it.
    pub(super) fn bulk(&mut self) -> bool {
        let senders = self.model.senders();
        let Some(from) = self.random.pick_any(&senders) else {
            return false;
        };
        let to = from.peer();
        if !self.fit_for_bulk(from) {
            return false;
        }
        let Some((reader, slot)) = self.holder(to) else {
            return false;
        };
        let bytes = self.bulk_size(from);
        let Some((writer, thread)) = self.start_bulk(from, bytes) else {
            return false;
        };
        let call = self.bulk_receive(to, slot, bytes);
        self.call(reader, call);
        self.join(writer, thread);
        self.emptied(to);
        true
    }

    /// Notes that all was received, and waits until the sender's buffer is empty, too.
    pub(super) fn emptied(&mut self, to: EndId) {
        let end = self.model.end_mut(to);
        end.queued = 0;
        end.unsettled = false;
        self.model.end_mut(to.peer()).was_full = true;
        if let Some((at, slot)) = self.holder(to.peer()) {
            let what = Awaited::Drained;
            self.call(at, Call::Await { slot, what });
        }
    }

    /// Both ends send much at once.
    pub(super) fn duplex(&mut self) -> bool {
        let fresh = self.model.fresh();
        let Some(from) = self.random.pick_any(&fresh) else {
            return false;
        };
        let to = from.peer();
        if !self.fit_for_bulk(from) || !self.fit_for_bulk(to) {
            return false;
        }
        let (Some((near, near_slot)), Some((far, far_slot))) = (self.holder(from), self.holder(to))
        else {
            return false;
        };
        let (forth, back) = (self.bulk_size(from), self.bulk_size(to));
        let writers = [self.start_bulk(from, forth), self.start_bulk(to, back)];
        let call = self.bulk_receive(from, near_slot, back);
        let reader = self.start(near, call);
        let call = self.bulk_receive(to, far_slot, forth);
        self.call(far, call);
        self.join(near, reader);
        for (at, thread) in writers.into_iter().flatten() {
            self.join(at, thread);
        }
        self.emptied(to);
        self.emptied(from);
        true
    }

    /// An end sends until nothing more is taken; then the other reads everything.
    pub(super) fn fill(&mut self) -> bool {
        let senders = self.model.senders();
        let Some(from) = self.random.pick_any(&senders) else {
            return false;
        };
        let to = from.peer();
        if !self.fit_for_bulk(from) {
            return false;
        }
        let (Some((writer, slot)), Some((reader, far))) = (self.holder(from), self.holder(to))
        else {
            return false;
        };
        let small = self.model.end(from).small_buffers || self.model.end(to).small_buffers;
        if !small && self.model.end(from).was_full {
            // The kernel's own tuning has made room for tens of megabytes by now.
            return false;
        }
        let chunk = if small { 1000 } else { 16_384 };
        let chunk = self.random.pick(&[chunk, 65_536]);
        self.call(writer, Call::Fill { slot, chunk });
        if !small {
            // With small buffers, what the kernel takes when it probes the window is a good part of them.
            let by = self.any_poll();
            self.poll_once(writer, by, slot, libc::POLLOUT, 0);
        }
        let waiter = self.random.chance(50).then(|| {
            let by = self.any_poll();
            let items = vec![(slot, libc::POLLOUT)];
            let timeout_ms = -1;
            self.start(
                writer,
                Call::Poll {
                    by,
                    items,
                    timeout_ms,
                },
            )
        });
        self.read_all(to, reader, far);
        if let Some(thread) = waiter {
            self.join(writer, thread);
        }
        let by = self.any_poll();
        self.poll_once(writer, by, slot, libc::POLLOUT, 2000);
        true
    }
}
