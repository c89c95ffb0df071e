//! Making connections, and the first messages, during which the two ends get to know of each other.

use super::Generator;
use super::model::{End, EndId, Listener, Thing};
use crate::board::{CONNECTIONS, LISTENERS};
use crate::plan::{AcceptBy, Awaited, Call, Family, Opt, PollBy, Process, Slot, Step};

/// Where a listener is: its number, and who holds it.
#[derive(Clone, Copy)]
pub(super) struct Listening {
    pub(super) number: u8,
    pub(super) at: Process,
    pub(super) slot: Slot,
}

impl Generator {
    pub(super) fn set_up(&mut self, processes: u8) {
        let connections = self.random.weighted(&[0, 70, 20, 10]);
        for _ in 0..connections {
            // The messages of the connection before may have ended with the end of a process.
            if self.model.running().len() < usize::from(processes) {
                break;
            }
            let server = self.random.between(0, u32::from(processes) - 1) as u8;
            let client = if processes == 2 && self.random.chance(90) {
                1 - server
            } else {
                server
            };
            let listening = self.listen(server);
            let conn = self.connect_and_accept(client, listening);
            if self.random.chance(30) {
                self.drop_listener(listening);
            }
            self.first_messages(conn);
        }
    }

    fn listen(&mut self, at: Process) -> Listening {
        let number = self.model.listeners.len() as u8;
        let slot = self.new_slot();
        let weighted = [
            Family::V4,
            Family::V4,
            Family::V4,
            Family::V6,
            Family::Mapped,
        ];
        let family = self.random.pick(&weighted);
        let any = self.random.chance(30);
        self.call(
            at,
            Call::Listen {
                slot,
                listener: number,
                family,
                any,
            },
        );
        self.model.open(at, slot, Thing::Listener(number), false);
        let mut template = End::new();
        self.set_no_delay(at, slot);
        while self.random.chance(25) {
            self.set_early_option(at, slot, &mut template);
        }
        self.model.listeners.push(Listener { family, template });
        Listening { number, at, slot }
    }

    fn drop_listener(&mut self, listening: Listening) {
        self.call(
            listening.at,
            Call::Close {
                slot: listening.slot,
            },
        );
        self.model.drop_slot(listening.at, listening.slot);
    }

    /// Half of all ends send at once, as most programs have it; it also saves time.
    fn set_no_delay(&mut self, at: Process, slot: Slot) {
        if self.random.chance(50) {
            let (option, value) = (Opt::NoDelay, 1);
            self.call(
                at,
                Call::SetOption {
                    slot,
                    option,
                    value,
                },
            );
        }
    }

    /// Sets an option that matters from the start, or that an accepted socket inherits.
    fn set_early_option(&mut self, at: Process, slot: Slot, end: &mut End) {
        let choices = [
            (Opt::KeepAlive, 1),
            (Opt::SendBuffer, 8192),
            (Opt::SendBuffer, 65536),
            (Opt::ReceiveBuffer, 32768),
            (Opt::ReceiveLow, 20),
            (Opt::OobInline, 1),
            (Opt::QuickAck, 1),
            (Opt::ReceiveTimeout, 30),
        ];
        let (option, value) = self.random.pick(&choices);
        if self.midway && option == Opt::ReceiveLow {
            // With it it would not come to the ring.
            return;
        }
        self.call(
            at,
            Call::SetOption {
                slot,
                option,
                value,
            },
        );
        match option {
            Opt::SendBuffer | Opt::ReceiveBuffer => end.small_buffers = true,
            Opt::ReceiveLow => end.low_water = 20,
            Opt::OobInline => end.oob_inline = true,
            Opt::ReceiveTimeout => end.times_out = true,
            _ => {}
        }
    }

    /// The family by which a client reaches a listener.
    fn client_family(&mut self, listener: u8) -> Family {
        match self.model.listeners[usize::from(listener)].family {
            Family::V6 => Family::V6,
            _ => self.random.pick(&[Family::V4, Family::V4, Family::Mapped]),
        }
    }

    /// Opens the client's socket and connects it; returns its slot.
    fn connect(&mut self, client: Process, listener: u8, conn: u8) -> Slot {
        let slot = self.new_slot();
        let id = EndId { conn, side: 0 };
        let family = self.client_family(listener);
        let (nonblock, cloexec) = (self.random.chance(25), self.random.chance(15));
        self.call(
            client,
            Call::Socket {
                slot,
                family,
                nonblock,
                cloexec,
            },
        );
        let mut end = End::new();
        end.nonblock = nonblock;
        self.set_no_delay(client, slot);
        while self.random.chance(25) {
            self.set_early_option(client, slot, &mut end);
        }
        let fast = !nonblock && self.random.chance(5);
        let bytes = self.random.between(1, 500);
        self.call(
            client,
            if fast {
                Call::FastOpen {
                    slot,
                    conn,
                    listener,
                    family,
                    bytes,
                }
            } else {
                Call::Connect {
                    slot,
                    conn,
                    listener,
                    family,
                }
            },
        );
        if nonblock {
            self.poll_once(client, PollBy::Poll, slot, libc::POLLOUT, 2000);
            let option = Opt::Error;
            self.call(client, Call::GetOption { slot, option });
        } else if self.random.chance(20) {
            let what = Awaited::Open;
            self.call(client, Call::Await { slot, what });
        }
        self.model.open(client, slot, Thing::End(id), cloexec);
        let template = self.model.listeners[usize::from(listener)].template.clone();
        self.model.ends.insert(id, end);
        self.model.ends.insert(id.peer(), template);
        if fast {
            self.sent(id, bytes);
        }
        slot
    }

    /// The call that accepts connection `conn` into a new slot.
    pub(super) fn accept_call(&mut self, listening: Listening, conn: u8) -> (Slot, bool, Call) {
        let slot = self.new_slot();
        let by = self.random.pick(&[
            AcceptBy::Accept,
            AcceptBy::AcceptNameless,
            AcceptBy::Accept4,
            AcceptBy::Accept4,
        ]);
        let flags = by == AcceptBy::Accept4;
        let nonblock = flags && self.random.chance(30);
        let cloexec = flags && self.random.chance(20);
        let call = Call::Accept {
            from: listening.slot,
            slot,
            conn,
            by,
            nonblock,
            cloexec,
        };
        self.model.end_mut(EndId { conn, side: 1 }).nonblock = nonblock;
        (slot, cloexec, call)
    }

    /// Notes that a connection was accepted.
    pub(super) fn accepted(&mut self, at: Process, slot: Slot, conn: u8, cloexec: bool) {
        let id = EndId { conn, side: 1 };
        self.model.open(at, slot, Thing::End(id), cloexec);
    }

    /// A new connection; sometimes with bytes sent before it is accepted.
    fn connect_and_accept(&mut self, client: Process, listening: Listening) -> u8 {
        let conn = self.next_conn;
        self.next_conn += 1;
        let slot = self.connect(client, listening.number, conn);
        if self.random.chance(20) {
            let id = EndId { conn, side: 0 };
            self.send_from(id, client, slot, 100);
        }
        let (accepted, cloexec, call) = self.accept_call(listening, conn);
        self.call(listening.at, call);
        self.accepted(listening.at, accepted, conn, cloexec);
        conn
    }

    /// A few messages each way, with time in between for the two ends to be introduced.
    fn first_messages(&mut self, conn: u8) {
        if self.midway {
            return self.approach(conn);
        }
        let rounds = self.random.between(1, 4);
        let pause = self.random.chance(70);
        for round in 0..rounds {
            for side in [0, 1] {
                let id = EndId { conn, side };
                let bytes = self.message_size(id);
                if self.exchange(id, bytes) && pause && round == 0 {
                    let ms = self.random.between(1, 3);
                    if let Some((at, _)) = self.holder(id) {
                        self.call(at, Call::Pause { ms });
                    }
                }
            }
        }
    }

    /// A further connection in the middle of things.
    pub(super) fn another_connection(&mut self) -> bool {
        if !self.room() || usize::from(self.next_conn) >= CONNECTIONS {
            return false;
        }
        let listeners = self
            .model
            .slots(|thing| matches!(thing, Thing::Listener(_)));
        let running = self.model.running();
        let Some(client) = self.random.pick_any(&running) else {
            return false;
        };
        let listening = match self.random.pick_any(&listeners) {
            Some((at, slot)) => match self.model.thing(at, slot) {
                Some(Thing::Listener(number)) => Listening { number, at, slot },
                _ => return false,
            },
            None if self.model.listeners.len() < LISTENERS => {
                let at = self.random.pick(&running);
                self.listen(at)
            }
            None => return false,
        };
        let conn = self.connect_and_accept(client, listening);
        self.first_messages(conn);
        true
    }

    /// A thread blocks in accept; then somebody connects.
    pub(super) fn blocked_accept(&mut self) -> bool {
        if !self.room() || usize::from(self.next_conn) >= CONNECTIONS {
            return false;
        }
        let listeners = self
            .model
            .slots(|thing| matches!(thing, Thing::Listener(_)));
        let Some((at, slot)) = self.random.pick_any(&listeners) else {
            return false;
        };
        let Some(Thing::Listener(number)) = self.model.thing(at, slot) else {
            return false;
        };
        if self.model.listeners[usize::from(number)].template.times_out {
            return false;
        }
        let listening = Listening { number, at, slot };
        let conn = self.next_conn;
        self.next_conn += 1;
        // The ends exist in the model once connected; the flags of the call are noted after that.
        self.model.ends.insert(EndId { conn, side: 0 }, End::new());
        let (accepted, cloexec, call) = self.accept_call(listening, conn);
        let nonblock = self.model.end(EndId { conn, side: 1 }).nonblock;
        let thread = self.start(at, call);
        if self.random.chance(30) {
            // The kernel gives accept a descriptor number before it waits, and again when it restarts.
            self.interrupt(at, thread, true);
            self.steps.push(Step::Probe { thread });
        }
        let running = self.model.running();
        let client = self.random.pick(&running);
        self.connect(client, number, conn);
        self.join(at, thread);
        self.model.end_mut(EndId { conn, side: 1 }).nonblock = nonblock;
        self.accepted(at, accepted, conn, cloexec);
        self.first_messages(conn);
        true
    }

    /// A connection that nobody accepts.
    pub(super) fn refused(&mut self) -> bool {
        let running = self.model.running();
        let Some(at) = self.random.pick_any(&running) else {
            return false;
        };
        if !self.room() {
            return false;
        }
        let slot = self.new_slot();
        self.call(
            at,
            Call::Socket {
                slot,
                family: Family::V4,
                nonblock: false,
                cloexec: false,
            },
        );
        self.call(at, Call::Refused { slot });
        let option = Opt::Error;
        self.call(at, Call::GetOption { slot, option });
        self.poll_once(at, PollBy::Poll, slot, libc::POLLIN | libc::POLLOUT, 0);
        self.call(at, Call::Close { slot });
        true
    }
}
