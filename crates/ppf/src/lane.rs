//! What goes from one worker to another: packets that are the other's to deal with, or that leave by a port of its.
//!
//! Bursts are made at the start and come back; queues have one sender and one receiver, never wait, and never allocate. What there is no
//! burst for is dropped, and counted.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use millrace_port::Burst;
use millrace_switch::Bell;

use crate::node::OUT_BURST;

/// Bursts that may be under way from one worker to another.
const LANE_BURSTS: usize = 256;

/// What one worker hands to another.
#[derive(Debug)]
pub(crate) enum Mail {
    /// Frames that came by a port, to be dealt with.
    Work(u16, Burst),
    /// Frames that leave by a port.
    Frames(u16, Burst),
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Lane {
    mail: SyncSender<Mail>,
    back: Receiver<Burst>,
    spare: Vec<Burst>,
    bell: Arc<Bell>,
    is_rung: bool,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Inlet {
    mail: Receiver<Mail>,
    back: SyncSender<Burst>,
}

/// A lane to the worker with this bell.
pub(crate) fn lane(bell: &Arc<Bell>) -> (Lane, Inlet) {
    let (mail, received) = sync_channel(LANE_BURSTS);
    let (back, returned) = sync_channel(LANE_BURSTS);
    let lane = Lane {
        mail,
        back: returned,
        spare: (0..LANE_BURSTS).map(|_| Burst::new(OUT_BURST)).collect(),
        bell: bell.clone(),
        is_rung: false,
    };
    let inlet = Inlet {
        mail: received,
        back,
    };
    (lane, inlet)
}

impl Lane {
    /// Hands copies of packets over, as `into` says. Returns how many there was no room for.
    pub(crate) fn send(&mut self, packets: &Burst, into: impl FnOnce(Burst) -> Mail) -> usize {
        if self.spare.is_empty() {
            self.spare.extend(self.back.try_iter());
        }
        let Some(mut burst) = self.spare.pop() else {
            return packets.len();
        };
        burst.clear();
        let copied = packets
            .iter()
            .take_while(|packet| burst.append_copy(*packet))
            .count();
        match self.mail.try_send(into(burst)) {
            Ok(()) => {
                self.is_rung = true;
                packets.len() - copied
            }
            // There is room for all bursts, so that the other worker has gone.
            Err(TrySendError::Full(mail) | TrySendError::Disconnected(mail)) => {
                let (Mail::Work(_, burst) | Mail::Frames(_, burst)) = mail;
                self.spare.push(burst);
                packets.len()
            }
        }
    }

    /// Wakes the other worker, if something was sent.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if std::mem::take(&mut self.is_rung) {
            self.bell.ring();
        }
    }
}

impl Inlet {
    pub(crate) fn next(&self) -> Option<Mail> {
        self.mail.try_recv().ok()
    }

    /// Returns a burst. There is room for all.
    pub(crate) fn give_back(&self, burst: Burst) {
        let _ = self.back.try_send(burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_in_order_and_what_has_no_room_is_said() {
        let bell = Arc::new(Bell::new().unwrap());
        let (mut lane, inlet) = lane(&bell);
        let mut burst = Burst::new(OUT_BURST);
        for number in 0..OUT_BURST {
            assert!(burst.push(&[number as u8; 200]));
        }
        for _ in 0..LANE_BURSTS {
            assert_eq!(lane.send(&burst, |burst| Mail::Work(3, burst)), 0);
        }
        assert_eq!(lane.send(&burst, |burst| Mail::Work(3, burst)), OUT_BURST);
        lane.ring();
        assert!(bell.take_news());
        let Some(Mail::Work(3, came)) = inlet.next() else {
            panic!("nothing came");
        };
        let numbers: Vec<u8> = came.iter().map(|packet| packet.head()[0]).collect();
        let wanted: Vec<u8> = (0..OUT_BURST as u8).collect();
        assert_eq!(numbers, wanted);
        inlet.give_back(came);
        assert_eq!(lane.send(&burst, |burst| Mail::Frames(3, burst)), 0);
    }
}
