//! What is of each flow in users' packets: written when they are sent, and expected when they come.

use millrace_port::HEAD_BYTES;

use super::super::checksum::{complement, sum_of, word};
use super::super::sink::Checks;
use super::super::stamp::Stamp;
use super::{
    ARP, DESTINATION_AT, ETHERNET_QUESTION, Flow, Gtpu, IN_TUNNEL_AT, IPV4, NUMBER_AT, OUTER_AT,
    PORT_AT, QUESTION_BYTES, RUN_AT, SOURCE_AT, SUM_AT, TEID_AT, TYPE_AT, USER_BYTES,
};

/// Where things are in a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    is_in_tunnel: bool,
    user_at: usize,
}

impl Layout {
    pub(super) fn of(is_in_tunnel: bool) -> Layout {
        Layout {
            is_in_tunnel,
            user_at: if is_in_tunnel { IN_TUNNEL_AT } else { OUTER_AT },
        }
    }
}

/// How a frame comes, but for what is of its flow.
pub(super) struct Known {
    head: [u8; HEAD_BYTES],
    bytes: usize,
    /// Of the user's header, before anything of its flow is written.
    sum: u32,
}

impl Known {
    pub(super) fn of(frame: &[u8], layout: Layout) -> Known {
        let mut head = [0; HEAD_BYTES];
        let kept = frame.len().min(HEAD_BYTES);
        head[..kept].copy_from_slice(&frame[..kept]);
        Known {
            head,
            bytes: frame.len(),
            sum: sum_of(&frame[layout.user_at..layout.user_at + 20]),
        }
    }
}

/// Users' packets that were made.
pub(in super::super) struct Users {
    pub(super) gtpu: Gtpu,
    pub(super) sent: Layout,
    pub(super) came: Layout,
    /// How each comes.
    pub(super) known: Vec<Known>,
}

impl Users {
    /// Where what fills a packet begins to count its bytes, in a frame that comes.
    pub(in super::super) fn filled_from(&self) -> usize {
        self.came.user_at
    }

    /// As much of a run's number as a packet has room for.
    pub(in super::super) fn run(run: u32) -> u32 {
        run & 0xffff
    }

    /// Writes what is of a flow, a run and a number into packet `index`.
    #[inline]
    pub(in super::super) fn write(
        &self,
        index: usize,
        flow: usize,
        run: u32,
        number: u64,
        head: &mut [u8],
    ) {
        let flow = &self.gtpu.flows[flow];
        if self.sent.is_in_tunnel {
            head[TEID_AT..IN_TUNNEL_AT].copy_from_slice(&flow.teid);
        }
        let user = head[self.sent.user_at..].first_chunk_mut();
        // Each frame has as much.
        let Some(user) = user else { return };
        self.write_user(index, flow, run, number, user);
    }

    #[inline]
    fn write_user(
        &self,
        index: usize,
        flow: &Flow,
        run: u32,
        number: u64,
        packet: &mut [u8; USER_BYTES],
    ) {
        let [a, b, c, d] = flow.user;
        let sum = self.known[index].sum + (run & 0xffff) + word(a, b) + word(c, d);
        let address_at = match self.gtpu.way.goes_up() {
            true => SOURCE_AT,
            false => DESTINATION_AT,
        };
        packet[RUN_AT..RUN_AT + 2].copy_from_slice(&(run as u16).to_be_bytes());
        packet[SUM_AT..SUM_AT + 2].copy_from_slice(&complement(sum).to_be_bytes());
        packet[address_at..address_at + 4].copy_from_slice(&flow.user);
        packet[PORT_AT..PORT_AT + 2].copy_from_slice(&flow.port);
        packet[NUMBER_AT..].copy_from_slice(&(number as u32).to_be_bytes());
    }

    /// Reads which packet this is, of `sent`. None: it is none of these. It does not say when it was due.
    #[inline]
    pub(in super::super) fn read(&self, head: &[u8], sent: u64) -> Option<Stamp> {
        let packet: &[u8; USER_BYTES] = head.get(self.came.user_at..)?.first_chunk()?;
        if head[TYPE_AT..OUTER_AT] != IPV4 {
            return None;
        }
        let [.., a, b, c, d] = *packet;
        // The latest one whose number ends so. There is none of this run where an earlier one has sent more.
        let number = sent.checked_sub(1).and_then(|last| {
            let back = (last as u32).wrapping_sub(u32::from_be_bytes([a, b, c, d]));
            last.checked_sub(back.into())
        });
        Some(Stamp {
            run: word(packet[RUN_AT], packet[RUN_AT + 1]),
            number: number.unwrap_or(u64::MAX),
            time_ns: 0,
        })
    }

    /// Whether this is how packet `index` comes, of that flow, and how long it is.
    #[inline]
    pub(in super::super) fn is_like(
        &self,
        (index, flow): (usize, usize),
        stamp: &Stamp,
        head: &[u8],
        bytes: usize,
        checks: Checks,
    ) -> bool {
        let known = &self.known[index];
        let end = known.bytes.min(HEAD_BYTES);
        if bytes != known.bytes || head.len() != end {
            return false;
        }
        let flow = &self.gtpu.flows[flow];
        let mut expected = known.head;
        if let Some(user) = expected[self.came.user_at..].first_chunk_mut() {
            self.write_user(index, flow, stamp.run, stamp.number, user);
        }
        if self.came.is_in_tunnel {
            let teid = if self.gtpu.is_kept {
                flow.teid
            } else {
                flow.far_teid
            };
            expected[TEID_AT..IN_TUNNEL_AT].copy_from_slice(&teid);
            if !self.gtpu.is_kept && !take_choices(&mut expected, head) {
                return false;
            }
        }
        if checks.is_turned {
            turn(&mut expected);
        }
        let from = if checks.skips_macs { 12 } else { 0 };
        head[from..] == expected[from..end]
    }

    /// Whether somebody asks for a station: the far ends are here.
    pub(in super::super) fn is_question(&self, head: &[u8]) -> bool {
        let is_arp = |head: &[u8]| {
            head[TYPE_AT..OUTER_AT] == ARP && head[OUTER_AT..OUTER_AT + 8] == ETHERNET_QUESTION
        };
        !self.gtpu.is_kept && head.len() >= QUESTION_BYTES && is_arp(head)
    }
}

/// An outer header's number, its life and whether it may be cut are its sender's to choose: takes those of `head` over, with the checksum
/// that belongs to them. False: it is a fragment's, or of a life that is over, or the checksum is wrong.
#[inline]
fn take_choices(expected: &mut [u8; HEAD_BYTES], head: &[u8]) -> bool {
    let header = &head[OUTER_AT..OUTER_AT + 20];
    let chosen = OUTER_AT + RUN_AT..OUTER_AT + RUN_AT + 5;
    expected[chosen.clone()].copy_from_slice(&head[chosen]);
    let sum = OUTER_AT + SUM_AT..OUTER_AT + SUM_AT + 2;
    expected[sum.clone()].copy_from_slice(&head[sum]);
    let is_whole = header[6] & 0xbf == 0 && header[7] == 0;
    is_whole && header[8] > 0 && complement(sum_of(header)) == 0
}

/// Lets source and destination of Ethernet, of the first header of the Internet's and of the one behind it change places.
fn turn(head: &mut [u8; HEAD_BYTES]) {
    head[..12].rotate_left(6);
    head[OUTER_AT + SOURCE_AT..OUTER_AT + 20].rotate_left(4);
    head[OUTER_AT + 20..OUTER_AT + 24].rotate_left(2);
}
