//! Half-closes, closes, resets, what can be seen after them, and the end of every sequence.

use super::Generator;
use super::model::{EndId, Thing};
use crate::plan::{Call, Flag, Half, Opt, ReceiveBy, SendBy, Until};

impl Generator {
    pub(super) fn shutdown(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        if !self.is_late() {
            return false;
        }
        let half = self
            .random
            .pick(&[Half::Write, Half::Write, Half::Read, Half::Both]);
        self.call(at, Call::Shutdown { slot, half });
        let reset = self.model.end(id).reset;
        let end = self.model.end_mut(id);
        if !reset {
            end.finished |= half != Half::Read;
            end.shut_read |= half != Half::Write;
        }
        self.settle_states(id.conn);
        true
    }

    /// Endings come late, and not in every sequence, or there would be little before them.
    fn is_late(&mut self) -> bool {
        let late = self.steps.len() > 40;
        late || self.random.chance(25)
    }

    /// Closes all descriptors of an end, sometimes so that the connection is reset.
    pub(super) fn close(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        if !self.is_late() {
            return false;
        }
        if self.random.chance(25) {
            let (option, value) = (Opt::Linger, 0);
            self.call(
                at,
                Call::SetOption {
                    slot,
                    option,
                    value,
                },
            );
            self.model.end_mut(id).aborts = true;
        }
        for (at, slot) in self.model.holders(id) {
            self.close_slot(at, slot);
        }
        true
    }

    /// `connect` to nobody, which dissolves the connection.
    pub(super) fn disconnect(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        if !self.is_late() || self.model.end(id.peer()).frozen {
            return false;
        }
        self.call(at, Call::Disconnect { slot });
        let both = self.model.end(id).finished && self.model.end(id.peer()).finished;
        let end = self.model.end_mut(id);
        end.queued = 0;
        end.unsettled = false;
        end.reset = true;
        if !both {
            self.model.end_mut(id.peer()).reset = true;
        }
        self.settle_states(id.conn);
        true
    }

    /// Looks at ends of connections that have ended: sends, receives, errors, names.
    pub(super) fn after_end(&mut self) -> bool {
        let ends = self.model.held_ends();
        let ended: Vec<EndId> = ends
            .into_iter()
            .filter(|id| self.model.ended(*id) || self.model.end(*id).finished)
            .collect();
        let Some(id) = self.random.pick_any(&ended) else {
            return false;
        };
        let Some((at, slot)) = self.holder(id) else {
            return false;
        };
        match self.random.between(0, 4) {
            0 | 1 => return self.send_after_end(id),
            2 => {
                let option = Opt::Error;
                self.call(at, Call::GetOption { slot, option });
            }
            3 => {
                let peer = self.random.chance(50);
                self.call(at, Call::Name { slot, peer });
            }
            _ => {
                if !self.model.ended(id) {
                    return false;
                }
                let by = self
                    .random
                    .pick(&[ReceiveBy::Read, ReceiveBy::Recv, ReceiveBy::Recvmsg]);
                let bytes = self.random.between(1, 5000);
                self.receive(id, at, slot, by, bytes, &[]);
            }
        }
        true
    }

    /// Sends where nobody receives any more.
    fn send_after_end(&mut self, id: EndId) -> bool {
        if self.model.flows(id) || self.model.end(id.peer()).frozen {
            return false;
        }
        let Some((at, slot)) = self.holder(id) else {
            return false;
        };
        let by = self.random.pick(&[
            SendBy::Write,
            SendBy::Send,
            SendBy::Sendmsg,
            SendBy::Writev,
            SendBy::Sendfile,
            SendBy::Sendmmsg,
        ]);
        let mut flags = Vec::new();
        if matches!(by, SendBy::Send | SendBy::Sendmsg) && self.random.chance(40) {
            flags.push(Flag::NoSignal);
        }
        let provokes = self.model.provokes(id);
        let (bytes, parts, bad) = (self.random.between(1, 2000), 1, false);
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
        if provokes {
            self.model.end_mut(id).reset = true;
            self.model.end_mut(id.peer()).reset = true;
            self.settle_states(id.conn);
        }
        true
    }

    /// The end of every sequence: last messages, everything is read, everything is closed.
    pub(super) fn finish(&mut self) {
        self.settle_all();
        let ids: Vec<EndId> = self.model.ends.keys().copied().collect();
        for id in &ids {
            if self.model.flows(*id) && self.holder(*id).is_some() {
                let bytes = self.message_size(*id).max(1);
                self.send_whole(*id, bytes);
                self.settle(id.peer());
            }
        }
        for id in &ids {
            self.read_rest(*id);
        }
        for id in ids.iter().filter(|id| id.side == 0) {
            let first = if self.random.chance(50) {
                *id
            } else {
                id.peer()
            };
            self.end_stream(first);
            self.end_stream(first.peer());
        }
        for at in self.model.running() {
            if self.random.chance(50) {
                self.call(at, Call::CloseAll);
            }
        }
    }

    /// Reads all that is there.
    fn read_rest(&mut self, id: EndId) {
        let queued = self.model.end(id).queued;
        if let Some((at, slot)) = self.holder(id)
            && queued > 0
        {
            let by = self
                .random
                .pick(&[ReceiveBy::Read, ReceiveBy::Recv, ReceiveBy::Recvmsg]);
            let chunk = self.random.pick(&[100, 4096, 65_536]);
            let until = if self.model.ended(id) {
                Until::End
            } else {
                Until::Sent
            };
            self.call(
                at,
                Call::ReceiveAll {
                    slot,
                    by,
                    chunk,
                    until,
                },
            );
            self.model.end_mut(id).queued = 0;
        }
    }

    /// Ends the end's direction; the peer sees the end of the stream.
    fn end_stream(&mut self, id: EndId) {
        let Some((at, slot)) = self.holder(id) else {
            return;
        };
        let half = Half::Write;
        self.call(at, Call::Shutdown { slot, half });
        if !self.model.end(id).reset {
            self.model.end_mut(id).finished = true;
        }
        self.settle_states(id.conn);
        let peer = id.peer();
        if let Some((reader, far)) = self.holder(peer)
            && self.model.ended(peer)
        {
            let (by, chunk, until) = (ReceiveBy::Recv, 4096, Until::End);
            self.call(
                reader,
                Call::ReceiveAll {
                    slot: far,
                    by,
                    chunk,
                    until,
                },
            );
            let events = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
            let by = self.any_poll();
            self.poll_once(reader, by, far, events, 0);
        }
        debug_assert!(self.model.thing(at, slot) == Some(Thing::End(id)));
    }
}
