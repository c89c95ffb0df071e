//! Where something goes next, and behind which headers.

use std::net::IpAddr;

use super::Node;
use super::lead::Lead;
use crate::bearer::Side;
use crate::ethernet::Mac;
use crate::link::LinkCause;
use crate::neighbour::Way;
use crate::paths::PathId;

/// Where something goes: by which port, and whose place among the neighbours is next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Towards {
    pub(super) port: u16,
    pub(super) place: u32,
}

/// What a frame has as its station: nobody yet, when it has to wait.
#[inline]
pub(super) fn station(way: Way) -> Result<Mac, LinkCause> {
    match way {
        Way::To(mac) => Ok(mac),
        Way::Wait => Ok(Mac::default()),
        Way::Nowhere => Err(LinkCause::Unresolved),
    }
}

/// What was found once of a path. Its number may be another path's by now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hop {
    pub(super) side: Side,
    pub(super) to: IpAddr,
    /// Of the neighbours then.
    pub(super) generation: u32,
    pub(super) towards: Towards,
    pub(super) lead: Lead,
}

/// Of what left last without a path: the next is mostly for the same gateway.
#[derive(Debug, Clone, Copy)]
pub(super) struct Last {
    pub(super) to: IpAddr,
    /// Of the neighbours then.
    pub(super) generation: u32,
    pub(super) towards: Towards,
}

impl Node {
    /// The way that a path takes, which is found once, with its headers, and again when neighbours have changed.
    #[inline]
    pub(super) fn towards(
        &mut self,
        path: PathId,
        side: Side,
        to: IpAddr,
    ) -> Result<Towards, LinkCause> {
        let generation = self.neighbours.generation();
        if let Some(Some(hop)) = self.hops.get(path.index())
            && (hop.generation, hop.side, hop.to) == (generation, side, to)
        {
            return Ok(hop.towards);
        }
        let towards = self.find_way(side, to)?;
        let lead = self.lead(towards, None, to)?;
        if self.hops.len() <= path.index() {
            self.hops.resize(path.index() + 1, None);
        }
        self.hops[path.index()] = Some(Hop {
            side,
            to,
            generation: self.neighbours.generation(),
            towards,
            lead,
        });
        Ok(towards)
    }

    /// The headers of what goes somewhere, from this address of ours if it is said.
    pub(super) fn lead(
        &self,
        towards: Towards,
        from: Option<IpAddr>,
        to: IpAddr,
    ) -> Result<Lead, LinkCause> {
        let interface = &self.interfaces[usize::from(towards.port)];
        let source = from.or_else(|| interface.source(to));
        let source = source.ok_or(LinkCause::NoRoute)?;
        Lead::new(interface, source, to).ok_or(LinkCause::Headers)
    }

    pub(super) fn find_way(&mut self, side: Side, to: IpAddr) -> Result<Towards, LinkCause> {
        let (port, next) = self.routes.find(side, to).ok_or(LinkCause::NoRoute)?;
        if let Some(last) = &self.last
            && (last.generation, last.to, last.towards.port)
                == (self.neighbours.generation(), next, port)
        {
            return Ok(last.towards);
        }
        let place = self.neighbours.find(port, next, self.now_ns);
        let place = place.ok_or(LinkCause::Neighbours)?;
        let towards = Towards { port, place };
        self.last = Some(Last {
            to: next,
            // Looking may have made room, and so another one.
            generation: self.neighbours.generation(),
            towards,
        });
        Ok(towards)
    }
}
