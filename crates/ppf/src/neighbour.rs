//! Stations of links: who has an address, as ARP and neighbour discovery say it (RFC 826; RFC 4861, 7.3).
//!
//! An entry is made when something is to be sent to an address, and by nothing that comes: who floods the link with answers fills nothing.
//!
//! | state | goes on to | when |
//! |---|---|---|
//! | incomplete: all are asked, once in a second | reachable | the address's owner answers |
//! | | failed | three times in vain; what waits for it is dropped |
//! | reachable: for 30 s after an answer | probing | it is used after that |
//! | probing: used, and its station is asked | reachable | it answers |
//! | | incomplete | three times in vain |
//! | failed: nothing is sent to it | incomplete | it is used a second later |

use std::collections::HashMap;
use std::net::IpAddr;

use millrace_port::{Burst, Packet};

use crate::ethernet::Mac;
use crate::table::users::Hash;

const SECOND_NS: u64 = 1_000_000_000;
/// How long an answer counts.
const REACHABLE_NS: u64 = 30 * SECOND_NS;
/// How long nobody is asked again (RFC 4861, 10: RETRANS_TIMER).
const ASK_NS: u64 = SECOND_NS;
/// How often one is asked.
const ASKS: u32 = 3;
/// Entries, at most.
pub(crate) const NEIGHBOURS_MAX: usize = 4096;
/// Of those, so many are being looked for, at most: the others are not displaced by addresses that there are not. Of one more, the port
/// that looks for most gives up its oldest.
const UNKNOWN_MAX: usize = 512;
/// Packets that wait for a station, of each.
pub(crate) const HELD_MAX: usize = 4;
/// Who was not used for so long can be forgotten when there is no room.
const AGE_NS: u64 = 60 * SECOND_NS;

/// What is known of a station.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// All are asked.
    Incomplete,
    /// It answered lately.
    Reachable,
    /// It is asked whether it is still there.
    Probing,
    /// It does not answer.
    Failed,
}

impl Known {
    /// A word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Known::Incomplete => "incomplete",
            Known::Reachable => "reachable",
            Known::Probing => "probing",
            Known::Failed => "failed",
        }
    }
}

#[derive(Debug)]
struct Entry {
    mac: Mac,
    known: Known,
    /// Reachable: until when. Otherwise when it is asked next, or may be.
    at_ns: u64,
    asked: u32,
    used_ns: u64,
    made_ns: u64,
    port: u16,
    address: IpAddr,
    held: Option<Box<Burst>>,
}

/// What a packet that wants to go to a station finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Its address.
    To(Mac),
    /// It is looked for: the packet may wait.
    Wait,
    /// It is not there.
    Nowhere,
}

/// Who is to be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) port: u16,
    pub(crate) address: IpAddr,
    /// The station that it was at; none: all are asked.
    pub(crate) mac: Option<Mac>,
}

/// What somebody says of an address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Said {
    /// The station.
    pub(crate) mac: Mac,
    /// It was asked for.
    pub(crate) is_answer: bool,
    /// It is told to all, unasked: somebody else has the address now, most often.
    pub(crate) is_announced: bool,
    /// It is right also where another station was known.
    pub(crate) overrides: bool,
}

/// All stations that something was sent to.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    entries: Vec<Option<Entry>>,
    places: HashMap<(u16, IpAddr), u32, Hash>,
    /// A place that is another one's is of another generation.
    generation: u32,
    unknown: usize,
    /// When `poll` has something to do.
    due_ns: Option<u64>,
    swept_ns: u64,
    crowded: Vec<(u16, u64)>,
}

impl Neighbours {
    /// Grows when a place that was found once may have become another's.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// When to call [`Neighbours::poll`].
    #[inline]
    pub(crate) fn poll_at_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// The place of an address's entry, which is made if it is not there. None: there are too many.
    pub(crate) fn find(&mut self, port: u16, address: IpAddr, now_ns: u64) -> Option<u32> {
        if let Some(place) = self.places.get(&(port, address)) {
            return Some(*place);
        }
        if self.unknown >= UNKNOWN_MAX || self.places.len() >= NEIGHBOURS_MAX {
            self.sweep(now_ns);
            if self.unknown >= UNKNOWN_MAX {
                self.crowd_out(port);
            }
            if self.places.len() >= NEIGHBOURS_MAX {
                return None;
            }
        }
        let entry = Entry {
            mac: Mac::default(),
            known: Known::Incomplete,
            at_ns: now_ns,
            asked: 0,
            used_ns: now_ns,
            made_ns: now_ns,
            port,
            address,
            held: None,
        };
        self.unknown += 1;
        self.be_due(now_ns);
        let free = self.entries.iter().position(Option::is_none);
        let place = free.unwrap_or(self.entries.len());
        if free.is_none() {
            self.entries.push(None);
        }
        self.entries[place] = Some(entry);
        // No more than `NEIGHBOURS_MAX`.
        self.places.insert((port, address), place as u32);
        Some(place as u32)
    }

    /// Where a packet for an entry goes. A place that is nobody's leads nowhere.
    #[inline]
    pub(crate) fn way(&mut self, place: u32, now_ns: u64) -> Way {
        let Some(Some(entry)) = self.entries.get_mut(place as usize) else {
            return Way::Nowhere;
        };
        entry.used_ns = now_ns;
        match entry.known {
            Known::Reachable if now_ns < entry.at_ns => Way::To(entry.mac),
            Known::Probing => Way::To(entry.mac),
            Known::Reachable => {
                (entry.known, entry.asked, entry.at_ns) = (Known::Probing, 0, now_ns);
                let mac = entry.mac;
                self.be_due(now_ns);
                Way::To(mac)
            }
            Known::Incomplete => Way::Wait,
            Known::Failed if now_ns < entry.at_ns => Way::Nowhere,
            Known::Failed => {
                (entry.known, entry.asked, entry.at_ns) = (Known::Incomplete, 0, now_ns);
                self.unknown += 1;
                self.be_due(now_ns);
                Way::Wait
            }
        }
    }

    /// Keeps a packet until its station is known; only the station is missing in it. False: too many wait.
    pub(crate) fn hold(&mut self, place: u32, packet: Packet<'_>) -> bool {
        let Some(Some(entry)) = self.entries.get_mut(place as usize) else {
            return false;
        };
        let held = entry
            .held
            .get_or_insert_with(|| Box::new(Burst::new(HELD_MAX)));
        held.append_copy(packet)
    }

    /// For how many more packets there is room at an entry.
    pub(crate) fn held_room(&self, place: u32) -> usize {
        match self.entries.get(place as usize) {
            Some(Some(entry)) => HELD_MAX - entry.held.as_ref().map_or(0, |held| held.len()),
            _ => 0,
        }
    }

    /// Somebody says at which station an address is. Returns what has waited for that.
    pub(crate) fn hear(
        &mut self,
        (port, address): (u16, IpAddr),
        said: Said,
        now_ns: u64,
    ) -> Option<Box<Burst>> {
        let place = *self.places.get(&(port, address))?;
        let entry = self.entries[place as usize].as_mut()?;
        let is_other = entry.mac != said.mac;
        match entry.known {
            Known::Incomplete => self.unknown -= 1,
            // What is said of another one without certainty, or was not asked for, is asked about (RFC 4861, 7.2.5).
            Known::Reachable | Known::Probing if is_other && !said.overrides || !said.is_answer => {
                if is_other {
                    if said.overrides {
                        entry.mac = said.mac;
                    } else if entry.known == Known::Probing {
                        return None;
                    }
                    (entry.known, entry.asked, entry.at_ns) = (Known::Probing, 0, now_ns);
                    self.be_due(now_ns);
                }
                return None;
            }
            Known::Reachable | Known::Probing | Known::Failed => {}
        }
        let mac = said.mac;
        (entry.mac, entry.known) = (mac, Known::Reachable);
        entry.at_ns = now_ns + REACHABLE_NS;
        entry.held.take()
    }

    /// Asks whom it is time to ask; what has waited in vain is given to `lose`, by port.
    pub(crate) fn poll(
        &mut self,
        now_ns: u64,
        mut ask: impl FnMut(Ask),
        mut lose: impl FnMut(u16, &Burst),
    ) {
        if self.due_ns.is_none_or(|due| due > now_ns) {
            return;
        }
        self.due_ns = None;
        let mut due: Option<u64> = None;
        for entry in self.entries.iter_mut().flatten() {
            if matches!(entry.known, Known::Reachable | Known::Failed) {
                continue;
            }
            if entry.at_ns > now_ns {
                due = Some(due.map_or(entry.at_ns, |due| due.min(entry.at_ns)));
                continue;
            }
            if entry.asked == ASKS && entry.known == Known::Probing {
                (entry.known, entry.asked) = (Known::Incomplete, 0);
                self.unknown += 1;
            }
            if entry.asked == ASKS {
                (entry.known, entry.at_ns) = (Known::Failed, now_ns + ASK_NS);
                self.unknown -= 1;
                if let Some(held) = entry.held.take() {
                    lose(entry.port, &held);
                }
                continue;
            }
            let is_probed = entry.known == Known::Probing;
            ask(Ask {
                port: entry.port,
                address: entry.address,
                mac: is_probed.then_some(entry.mac),
            });
            entry.asked += 1;
            entry.at_ns = now_ns + ASK_NS;
            due = Some(due.map_or(entry.at_ns, |due| due.min(entry.at_ns)));
        }
        self.due_ns = due;
    }

    /// All of them: port, address, station, what is known.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, IpAddr, Mac, Known)> {
        let entries = self.entries.iter().flatten();
        entries.map(|entry| (entry.port, entry.address, entry.mac, entry.known))
    }

    fn be_due(&mut self, at_ns: u64) {
        self.due_ns = Some(self.due_ns.map_or(at_ns, |due| due.min(at_ns)));
    }

    /// Forgets one of those that are looked for: of the port where most are, or of this one, if that has as many, the one that was wanted
    /// first. So whoever asks for ever more addresses at one port keeps nobody of another one from being found.
    fn crowd_out(&mut self, port: u16) {
        let unknown = || {
            let entries = self.entries.iter().enumerate();
            let entries = entries.filter_map(|(place, entry)| Some((place, entry.as_ref()?)));
            entries.filter(|(_, entry)| entry.known == Known::Incomplete)
        };
        let mut counts: HashMap<u16, usize> = HashMap::new();
        for (_, entry) in unknown() {
            *counts.entry(entry.port).or_default() += 1;
        }
        let most = counts
            .into_iter()
            .max_by_key(|(of, count)| (*count, *of == port));
        let crowd = unknown().filter(|(_, entry)| most.is_some_and(|(of, _)| of == entry.port));
        let Some((place, _)) = crowd.min_by_key(|(_, entry)| entry.made_ns) else {
            return;
        };
        if let Some(entry) = self.entries[place].take() {
            self.places.remove(&(entry.port, entry.address));
            self.unknown -= 1;
            self.generation = self.generation.wrapping_add(1);
            let held = entry.held.map_or(0, |held| held.len() as u64);
            self.crowded.push((entry.port, held));
        }
    }

    /// By port, packets that waited for a station that was forgotten since the last question.
    pub(crate) fn take_crowded(&mut self) -> Vec<(u16, u64)> {
        std::mem::take(&mut self.crowded)
    }

    /// Forgets whom nobody has used for long, and who does not answer; at most once in a second.
    fn sweep(&mut self, now_ns: u64) {
        if now_ns < self.swept_ns + SECOND_NS && self.swept_ns != 0 {
            return;
        }
        self.swept_ns = now_ns;
        for place in &mut self.entries {
            let Some(entry) = place else { continue };
            let is_old = entry.used_ns + AGE_NS < now_ns;
            if entry.known == Known::Failed || is_old && entry.known == Known::Reachable {
                self.places.remove(&(entry.port, entry.address));
                *place = None;
                self.generation = self.generation.wrapping_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number))
    }

    fn mac(last: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, last])
    }

    fn said(last: u8, is_answer: bool) -> Said {
        Said {
            mac: mac(last),
            is_answer,
            is_announced: false,
            overrides: true,
        }
    }

    fn asked(neighbours: &mut Neighbours, now_ns: u64) -> (Vec<Ask>, usize) {
        let (mut asks, mut lost) = (Vec::new(), 0);
        neighbours.poll(now_ns, |ask| asks.push(ask), |_, held| lost += held.len());
        (asks, lost)
    }

    #[test]
    fn a_station_is_asked_for_and_what_waited_goes_to_it() {
        let mut neighbours = Neighbours::default();
        let place = neighbours.find(3, address(1), 5).unwrap();
        assert_eq!(neighbours.way(place, 5), Way::Wait);
        let mut burst = Burst::new(1);
        assert!(burst.push(&[7; 300]));
        let packet = burst.get(0).unwrap();
        for _ in 0..HELD_MAX {
            assert!(neighbours.hold(place, packet));
        }
        assert!(!neighbours.hold(place, packet));
        assert_eq!(neighbours.poll_at_ns(), Some(5));
        let ask = Ask {
            port: 3,
            address: address(1),
            mac: None,
        };
        assert_eq!(asked(&mut neighbours, 5), (vec![ask], 0));
        assert_eq!(asked(&mut neighbours, 6), (vec![], 0), "once in a second");
        assert!(neighbours.hear((3, address(2)), said(1, true), 7).is_none());
        assert!(neighbours.hear((4, address(1)), said(1, true), 7).is_none());
        let held = neighbours.hear((3, address(1)), said(1, true), 7).unwrap();
        assert_eq!(held.len(), HELD_MAX);
        assert_eq!(neighbours.way(place, 8), Way::To(mac(1)));
        asked(&mut neighbours, SECOND_NS + 5);
        assert_eq!(neighbours.poll_at_ns(), None, "who is known has no timer");
    }

    #[test]
    fn who_does_not_answer_fails_and_is_tried_again_when_used() {
        let mut neighbours = Neighbours::default();
        let place = neighbours.find(0, address(1), 0).unwrap();
        let mut burst = Burst::new(1);
        assert!(burst.push(&[7; 60]));
        assert!(neighbours.hold(place, burst.get(0).unwrap()));
        for second in 0..3 {
            assert_eq!(asked(&mut neighbours, second * SECOND_NS).0.len(), 1);
        }
        assert_eq!(asked(&mut neighbours, 3 * SECOND_NS), (vec![], 1));
        assert_eq!(neighbours.way(place, 3 * SECOND_NS), Way::Nowhere);
        assert_eq!(neighbours.poll_at_ns(), None);
        assert_eq!(neighbours.way(place, 4 * SECOND_NS), Way::Wait);
        assert_eq!(asked(&mut neighbours, 4 * SECOND_NS).0.len(), 1);
        assert_eq!(neighbours.unknown, 1);
    }

    #[test]
    fn who_is_used_after_its_time_is_probed_and_used_meanwhile() {
        let mut neighbours = Neighbours::default();
        let place = neighbours.find(0, address(1), 0).unwrap();
        neighbours.hear((0, address(1)), said(1, true), 0);
        asked(&mut neighbours, 0);
        let late = REACHABLE_NS + 1;
        assert_eq!(neighbours.way(place, late), Way::To(mac(1)));
        for second in 0..3 {
            let (asks, _) = asked(&mut neighbours, late + second * SECOND_NS);
            assert_eq!(asks[0].mac, Some(mac(1)));
            assert_eq!(neighbours.way(place, late), Way::To(mac(1)));
        }
        // It moved, and nobody has told: all are asked.
        let (asks, _) = asked(&mut neighbours, late + 3 * SECOND_NS);
        assert_eq!((asks.len(), asks[0].mac), (1, None));
        assert_eq!(neighbours.way(place, late), Way::Wait);
        neighbours.hear((0, address(1)), said(2, true), late);
        assert_eq!(neighbours.way(place, late), Way::To(mac(2)));
        neighbours.hear((0, address(1)), said(3, false), late);
        assert_eq!(neighbours.way(place, late), Way::To(mac(3)));
        assert_eq!(
            asked(&mut neighbours, late + 9 * SECOND_NS).0[0].mac,
            Some(mac(3))
        );
        // Nor is somebody believed who says himself that it may be otherwise.
        neighbours.hear((0, address(1)), said(3, true), late);
        let unsure = Said {
            overrides: false,
            ..said(4, true)
        };
        neighbours.hear((0, address(1)), unsure, late);
        assert_eq!(neighbours.way(place, late), Way::To(mac(3)));
        assert_eq!(asked(&mut neighbours, late).0[0].mac, Some(mac(3)));
        assert_eq!(neighbours.unknown, 0);
    }

    #[test]
    fn addresses_that_there_are_not_do_not_fill_everything() {
        let mut neighbours = Neighbours::default();
        let mut now_ns = 1;
        let known = neighbours.find(0, address(1), now_ns).unwrap();
        neighbours.hear((0, address(1)), said(1, true), now_ns);
        let mut gone = 0;
        for number in 2..20_000 {
            now_ns += SECOND_NS / 1000;
            assert!(neighbours.find(0, address(number), now_ns).is_some());
            neighbours.way(known, now_ns);
            asked(&mut neighbours, now_ns);
            gone += neighbours.take_crowded().len();
            if number == 10_000 {
                neighbours.find(1, address(1), now_ns).unwrap();
            }
            // Somebody else's, at another port, is looked for as long as is usual.
            let other = neighbours.iter().find(|(port, ..)| *port == 1);
            let is_asked = other.is_some_and(|(.., known)| known == Known::Incomplete);
            assert_eq!(is_asked, (10_000..13_001).contains(&number), "{number}");
        }
        assert!(gone > 0 && neighbours.entries.len() <= NEIGHBOURS_MAX);
        assert!(neighbours.generation() > 0);
        assert!(matches!(neighbours.way(known, now_ns), Way::To(_)));
        assert_eq!(neighbours.find(0, address(1), now_ns), Some(known));
    }
}
