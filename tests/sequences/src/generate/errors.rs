//! Wrong arguments, and calls that make no sense on a socket.

use super::Generator;
use super::model::Thing;
use super::transfer::{FLAGGED_RECEIVE_FORMS, RECEIVE_FORMS, WHOLE_SEND_FORMS};
use crate::perform::NEVER_OPEN;
use crate::plan::{Call, Flag, OddCall, Opt, Process, ReceiveBy, SendBy, Slot};

impl Generator {
    pub(super) fn wrong_arguments(&mut self) -> bool {
        match self.random.between(0, 4) {
            0 => self.receive_to_nowhere(),
            1 => self.send_from_nowhere(),
            2 => {
                let running = self.model.running();
                match self.random.pick_any(&running) {
                    Some(at) => self.try_all(at, NEVER_OPEN),
                    None => false,
                }
            }
            3 => self.try_on_pipe(),
            _ => self.nothing_at_all(),
        }
    }

    /// Receives into memory that is not there.
    fn receive_to_nowhere(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        let end = self.model.end(id);
        if end.queued == 0 || end.queued < end.low_water || end.peek_offset {
            return false;
        }
        let forms: Vec<ReceiveBy> = RECEIVE_FORMS
            .into_iter()
            .filter(|by| !matches!(by, ReceiveBy::Recvmmsg | ReceiveBy::Splice))
            .collect();
        let by = self.random.pick(&forms);
        let bytes = self.random.between(1, 100);
        self.call(
            at,
            Call::Receive {
                slot,
                by,
                bytes,
                parts: 1,
                flags: Vec::new(),
                bad: true,
            },
        );
        true
    }

    /// Sends memory that is not there.
    fn send_from_nowhere(&mut self) -> bool {
        let senders = self.model.senders();
        let Some(from) = self.random.pick_any(&senders) else {
            return false;
        };
        let Some((at, slot)) = self.holder(from) else {
            return false;
        };
        let by = self.random.pick(&WHOLE_SEND_FORMS);
        let bytes = self.random.between(1, 100);
        self.call(
            at,
            Call::Send {
                slot,
                by,
                bytes,
                parts: 1,
                flags: Vec::new(),
                bad: true,
            },
        );
        true
    }

    /// A receive, a send and something else on what is no socket.
    fn try_all(&mut self, at: Process, slot: Slot) -> bool {
        let by = self.random.pick(&FLAGGED_RECEIVE_FORMS);
        let (bytes, parts, bad) = (10, 1, false);
        let flags = vec![Flag::DontWait];
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
        let by = self.random.pick(&[
            SendBy::Send,
            SendBy::Sendmsg,
            SendBy::Sendfile,
            SendBy::Writev,
        ]);
        let flags = Vec::new();
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
        let call = match self.random.between(0, 4) {
            0 => Call::Name { slot, peer: true },
            1 => Call::GetOption {
                slot,
                option: Opt::Type,
            },
            2 => Call::Readable { slot },
            3 => Call::Shutdown {
                slot,
                half: crate::plan::Half::Both,
            },
            _ => Call::Flags { slot },
        };
        self.call(at, call);
        if slot == NEVER_OPEN && self.random.chance(50) {
            self.call(at, Call::Close { slot });
        }
        true
    }

    fn try_on_pipe(&mut self) -> bool {
        match self.pipe() {
            Some((at, slot)) => self.try_all(at, slot),
            None => false,
        }
    }

    /// A pipe of some process; a new one where there is none.
    pub(super) fn pipe(&mut self) -> Option<(Process, Slot)> {
        let pipes = self.model.slots(|thing| thing == Thing::Pipe);
        if let Some(found) = self.random.pick_any(&pipes) {
            return Some(found);
        }
        let running = self.model.running();
        let at = self.random.pick_any(&running)?;
        self.room().then(|| (at, self.open_pipe(at)))
    }

    pub(super) fn open_pipe(&mut self, at: Process) -> Slot {
        let slot = self.new_slot();
        self.call(at, Call::OpenPipe { slot });
        self.model.open(at, slot, Thing::Pipe, false);
        slot
    }

    /// Calls for no bytes at all, and the first of a connection's few impossible ones.
    fn nothing_at_all(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        let zero_reads = [
            ReceiveBy::Read,
            ReceiveBy::Readv,
            ReceiveBy::ReadChk,
            ReceiveBy::Preadv2,
        ];
        let by = self.random.pick(&zero_reads);
        self.receive(id, at, slot, by, 0, &[]);
        let by = self.random.pick(&WHOLE_SEND_FORMS);
        let (bytes, parts, bad) = (0, 1, false);
        let flags = Vec::new();
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
        true
    }

    /// A call that a connected socket refuses.
    pub(super) fn odd_call(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        if self.model.ended(id) || self.model.end(id).finished {
            return false;
        }
        let call = self.random.pick(&[
            OddCall::Pread,
            OddCall::Pwrite,
            OddCall::PreadvAt,
            OddCall::PwritevAt,
            OddCall::Lseek,
            OddCall::FileType,
            OddCall::Tee,
            OddCall::CopyFileRange,
            OddCall::Fsync,
            OddCall::Ftruncate,
            OddCall::Map,
            OddCall::Listen,
            OddCall::ConnectAgain,
            OddCall::Accept,
            OddCall::Bind,
        ]);
        self.call(at, Call::Odd { slot, call });
        true
    }
}
