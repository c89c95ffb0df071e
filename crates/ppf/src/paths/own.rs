//! Who has tunnels by a path: bearers that are in this table, and all that were told of, which are those of all workers where there are
//! several. The two are counted apart, as a bearer is told of and comes at different moments, and moves from table to table meanwhile.

use std::net::IpAddr;

use super::{Asking, Path, PathId, Paths};
use crate::bearer::Side;

impl Path {
    /// One that nobody uses yet.
    pub(super) fn new(side: Side, address: IpAddr) -> Path {
        Path {
            side,
            address,
            own: 0,
            known: 0,
            is_up: None,
            asking: Asking::Resting(0),
            sequence: 0,
            requests: 0,
            responses: 0,
            restart_counter: None,
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.own > 0 || self.known > 0
    }

    /// How many tunnels go by it: one worker has all, and nobody else is told of them.
    pub(super) fn tunnels(&self, workers: usize) -> u32 {
        if workers > 1 { self.known } else { self.own }
    }
}

impl Paths {
    /// The path to an address, with a tunnel more, of a bearer of this table. None: there are too many.
    pub(crate) fn acquire(&mut self, side: Side, address: IpAddr) -> Option<PathId> {
        let path = self.open(side, address)?;
        self.places[path.index()].own += 1;
        Some(path)
    }

    /// One of those less; returns where it led.
    #[inline]
    pub(crate) fn release(&mut self, path: PathId) -> Option<IpAddr> {
        let place = self.places.get_mut(path.index())?;
        place.own = place.own.saturating_sub(1);
        let address = place.address;
        if !place.is_used() {
            self.close(path);
        }
        Some(address)
    }

    /// There is a tunnel more to an address, whichever worker has its bearer. Where there are too many paths its owner has not taken it
    /// either.
    pub(crate) fn know(&mut self, side: Side, address: IpAddr) {
        if let Some(path) = self.open(side, address) {
            self.places[path.index()].known += 1;
        }
    }

    /// There is one less.
    pub(crate) fn forget(&mut self, side: Side, address: IpAddr) {
        if let Some(path) = self.find(side, address) {
            let place = &mut self.places[path.index()];
            place.known = place.known.saturating_sub(1);
            self.close(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::random::Random;

    fn address(number: u64) -> IpAddr {
        Ipv4Addr::from_bits(number as u32).into()
    }

    #[test]
    fn a_path_is_there_while_anybody_s_tunnel_goes_by_it() {
        for seed in 1..30 {
            let (mut random, mut paths) = (Random(seed), Paths::default());
            // By address: those that were told of, and this table's.
            let mut model = [(0_u32, 0_u32); 6];
            for _ in 0..3_000 {
                let at = random.below(6);
                let (others, own) = &mut model[at as usize];
                let path = paths.find(Side::Core, address(at));
                assert_eq!(path.is_some(), *others + *own > 0);
                match (random.below(4), path) {
                    (0, _) => {
                        paths.know(Side::Core, address(at));
                        *others += 1;
                    }
                    (1, _) => {
                        paths.acquire(Side::Core, address(at)).unwrap();
                        *own += 1;
                    }
                    // Of others that there are not nothing changes.
                    (2, _) => {
                        paths.forget(Side::Core, address(at));
                        *others = others.saturating_sub(1);
                    }
                    (3, Some(path)) if *own > 0 => {
                        assert_eq!(paths.release(path), Some(address(at)));
                        *own -= 1;
                    }
                    _ => {}
                }
            }
            for (workers, told) in [(1, model.map(|of| of.1)), (2, model.map(|of| of.0))] {
                paths.share(0, workers);
                for (at, tunnels) in (0..).zip(told) {
                    let path = paths.find(Side::Core, address(at));
                    let path = path.map(|path| paths.places[path.index()].tunnels(workers));
                    assert_eq!(path.unwrap_or(0), tunnels);
                }
            }
        }
    }
}
