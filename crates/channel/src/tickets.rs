//! What is out on one link: the publisher's own record, which nobody else can write.

/// Of a ticket that is not out.
const NOWHERE: u32 = u32::MAX;

/// What a ticket stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Out {
    /// The number of the message in the publisher's list of those on their way.
    pub(crate) flight: u32,
    /// Where its descriptor is in the ring. Free-running.
    pub(crate) position: u32,
    /// The bucket that its key fell into.
    pub(crate) bucket: Option<u16>,
}

/// The tickets of one link.
#[derive(Debug)]
pub(crate) struct Tickets {
    free: Vec<u16>,
    out: Vec<Out>,
    /// Which ticket was written at each position of the ring last, where that is asked for.
    at: Vec<u16>,
    /// Bytes of memory that are out.
    pub(crate) bytes: u64,
}

impl Tickets {
    pub(crate) fn new(slots: u32) -> Tickets {
        let nothing = Out {
            flight: NOWHERE,
            position: 0,
            bucket: None,
        };
        Tickets {
            // The lowest goes out first.
            free: (0..slots).rev().map(|ticket| ticket as u16).collect(),
            out: vec![nothing; slots as usize],
            at: Vec::new(),
            bytes: 0,
        }
    }

    /// From now on tickets can be taken back by their positions. None may be out.
    pub(crate) fn note_positions(&mut self) {
        self.at = vec![0; self.out.len()];
    }

    /// How many are out.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.out.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Gives a ticket out, if one is free.
    #[inline]
    pub(crate) fn give(&mut self, out: Out) -> Option<u16> {
        let ticket = self.free.pop()?;
        let place = out.position as usize & (self.out.len() - 1);
        self.out[usize::from(ticket)] = out;
        if let Some(at) = self.at.get_mut(place) {
            *at = ticket;
        }
        Some(ticket)
    }

    /// Takes a ticket back. None: it is not out.
    #[inline]
    pub(crate) fn take(&mut self, ticket: u16) -> Option<Out> {
        let entry = self.out.get_mut(usize::from(ticket))?;
        let out = *entry;
        if out.flight == NOWHERE {
            return None;
        }
        entry.flight = NOWHERE;
        self.free.push(ticket);
        Some(out)
    }

    /// Takes the ticket back that was written at `position` of the ring. None: it is not out any more.
    pub(crate) fn take_at(&mut self, position: u32) -> Option<Out> {
        let ticket = *self.at.get(position as usize & (self.out.len() - 1))?;
        let is_it = self.out[usize::from(ticket)].position == position;
        is_it.then(|| self.take(ticket))?
    }

    /// All that are out, in any order.
    pub(crate) fn all(&self) -> Vec<Out> {
        let is_out = |out: &&Out| out.flight != NOWHERE;
        self.out.iter().filter(is_out).copied().collect()
    }

    /// All that are out, in the order in which they were published.
    pub(crate) fn take_all(&mut self) -> Vec<Out> {
        let mut all: Vec<Out> = (0..self.out.len())
            .filter_map(|ticket| self.take(ticket as u16))
            .collect();
        let oldest = all.iter().map(|out| out.position).min_by_key(|position| {
            // Positions run free; what is out lies within half their range.
            position.wrapping_sub(all[0].position).cast_signed()
        });
        if let Some(oldest) = oldest {
            all.sort_unstable_by_key(|out| out.position.wrapping_sub(oldest));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(position: u32) -> Out {
        Out {
            flight: position & 0xff,
            position,
            bucket: None,
        }
    }

    #[test]
    fn a_ticket_comes_back_once() {
        let mut tickets = Tickets::new(4);
        let ticket = tickets.give(out(0)).unwrap();
        assert_eq!(tickets.count(), 1);
        assert_eq!(tickets.take(ticket), Some(out(0)));
        assert_eq!(tickets.take(ticket), None);
        assert_eq!(tickets.take(4), None);
        assert_eq!(tickets.take(u16::MAX), None);
    }

    #[test]
    fn what_was_given_back_is_not_taken_back_by_its_position() {
        let mut tickets = Tickets::new(2);
        tickets.note_positions();
        let first = tickets.give(out(0)).unwrap();
        tickets.give(out(1)).unwrap();
        assert!(!tickets.has_free() && tickets.give(out(2)).is_none());
        tickets.take(first).unwrap();
        assert_eq!(tickets.take_at(0), None);
        tickets.give(out(2)).unwrap();
        assert_eq!(tickets.take_at(0), None, "its place is another's");
        assert_eq!(tickets.take_at(2), Some(out(2)));
        assert_eq!(tickets.take_at(1), Some(out(1)));
    }

    #[test]
    fn all_come_back_in_order_also_where_positions_begin_again() {
        let mut tickets = Tickets::new(8);
        let start = u32::MAX - 2;
        let given: Vec<u16> = (0..6)
            .map(|index| tickets.give(out(start.wrapping_add(index))).unwrap())
            .collect();
        tickets.take(given[1]).unwrap();
        let positions: Vec<u32> = tickets
            .take_all()
            .iter()
            .map(|out| out.position.wrapping_sub(start))
            .collect();
        assert_eq!(positions, [0, 2, 3, 4, 5]);
        assert_eq!(tickets.count(), 0);
    }
}
