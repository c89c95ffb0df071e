//! Which of a path's tunnels are of bearers that are in this table: the others are known of because another worker has them, and a bearer
//! that moves from one worker to another is one of the first here, and then one of the others.
//!
//! A path is there while a bearer of this table has its number, whatever was said of others' in between.

use std::net::IpAddr;

use super::{Asking, Path, PathId, Paths};
use crate::bearer::Side;

impl Path {
    /// One with a tunnel of another table's bearer.
    pub(super) fn new(side: Side, address: IpAddr) -> Path {
        Path {
            side,
            address,
            tunnels: 1,
            own: 0,
            is_up: None,
            asking: Asking::Resting(0),
            sequence: 0,
            requests: 0,
            responses: 0,
            restart_counter: None,
        }
    }
}

impl Paths {
    /// The path to an address, with a tunnel more, of a bearer of this table. None: there are too many.
    pub(crate) fn acquire_own(&mut self, side: Side, address: IpAddr) -> Option<PathId> {
        let path = self.acquire(side, address)?;
        self.places[path.index()].own += 1;
        Some(path)
    }

    /// One of those less.
    pub(crate) fn release_own(&mut self, path: PathId) {
        if self.give(path).is_some() {
            self.release(path);
        }
    }

    /// A bearer of this table goes to another worker: its tunnel is one of the others' from now on. Returns where it leads.
    #[inline]
    pub(crate) fn give(&mut self, path: PathId) -> Option<IpAddr> {
        let place = self.places.get_mut(path.index())?;
        place.own = place.own.saturating_sub(1);
        Some(place.address)
    }

    /// A bearer comes from another worker: its tunnel was one of the others' until now. One that nobody has told of yet is a new one.
    pub(crate) fn take(&mut self, side: Side, address: IpAddr) -> Option<PathId> {
        let known = self.find(side, address);
        let known = known.filter(|path| {
            let place = &mut self.places[path.index()];
            let is_known = place.own < place.tunnels;
            place.own += u32::from(is_known);
            is_known
        });
        known.or_else(|| self.acquire_own(side, address))
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
            // By address: tunnels of others, and of this table's.
            let mut model = [(0_u32, 0_u32); 6];
            for _ in 0..3_000 {
                let at = random.below(6);
                let (others, own) = &mut model[at as usize];
                let path = paths.find(Side::Core, address(at));
                assert_eq!(path.is_some(), *others + *own > 0);
                match (random.below(6), path) {
                    (0, _) => {
                        paths.acquire(Side::Core, address(at)).unwrap();
                        *others += 1;
                    }
                    (1, _) => {
                        paths.acquire_own(Side::Core, address(at)).unwrap();
                        *own += 1;
                    }
                    // Of others that there are not nothing changes.
                    (2, Some(path)) => {
                        paths.release(path);
                        *others = others.saturating_sub(1);
                    }
                    (3, Some(path)) if *own > 0 => {
                        paths.release_own(path);
                        *own -= 1;
                    }
                    (4, Some(path)) if *own > 0 => {
                        assert_eq!(paths.give(path), Some(address(at)));
                        (*own, *others) = (*own - 1, *others + 1);
                    }
                    (5, _) => {
                        paths.take(Side::Core, address(at)).unwrap();
                        (*own, *others) = (*own + 1, others.saturating_sub(1));
                    }
                    _ => {}
                }
            }
            let tunnels = |at| model[at as usize].0 + model[at as usize].1;
            for at in 0..6 {
                let found = paths.iter().find(|path| path.address == address(at));
                assert_eq!(found.map_or(0, |path| path.tunnels), tunnels(at));
            }
        }
    }
}
