//! Where packets go. First each packet of a burst is looked at and has its fate decided, then it is done: a burst that goes to one port as
//! it is goes whole, and others are gathered for each port that they go to.

use millrace_port::{Burst, Packet};

use crate::address::Mac;
use crate::counters::Cause;
use crate::flow::Key;
use crate::icmp;
use crate::lane::Mail;
use crate::offload::Cut;
use crate::parse::{Frame, HEADER_BYTES, TAG_AT, TAG_BYTES};
use crate::plan::{Derived, Plan, PortPlan};
use crate::table::{Learnt, Station};
use crate::vlan::Edit;
use crate::worker::Worker;

mod tag;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Drop(Cause),
    /// It goes to one port, with its tag changed.
    To(u16, Edit),
    /// It goes where a flow says.
    Flow(u16),
    /// It goes to all ports of this VLAN.
    Flood(u16),
}

/// What a packet that no flow is asked for goes by: two addresses, and a tag or what is in its place.
const OUTSIDE_BYTES: usize = TAG_AT + TAG_BYTES;
/// Kinds of what is flooded: places of a port's buckets.
const BROADCAST: usize = 0;
const MULTICAST: usize = 1;
const UNKNOWN: usize = 2;

impl Worker {
    /// Takes a burst that came by a port to where it belongs.
    pub(crate) fn process(&mut self, from: u16, queue: usize, burst: &Burst) {
        // Taken for the time of the burst, and not counted: a count that all workers have in common would be written by each.
        let Some(plan) = self.plan.take() else { return };
        self.process_by(&plan, from, queue, burst);
        self.plan = Some(plan);
    }

    fn process_by(&mut self, plan: &Plan, from: u16, queue: usize, burst: &Burst) {
        let place = usize::from(from);
        let tally = &mut self.tallies[place];
        tally.entered += burst.len() as u64;
        let (Some(port), Some(derived)) = (plan.port(from), plan.derived.get(place)) else {
            tally.drop(Cause::NoPort, burst.len() as u64);
            return;
        };
        if let Some((flow, to)) = derived.straight {
            let hits = &mut self.hits[usize::from(flow)];
            hits.packets += burst.len() as u64;
            hits.bytes += burst.iter().map(|packet| packet.len() as u64).sum::<u64>();
            self.send(to, queue, burst);
            return;
        }
        for to in &derived.mirrors_in {
            for packet in burst.iter() {
                self.tallies[place].made += 1;
                self.put(plan, from, *to, queue, packet);
            }
        }
        let mut fates = std::mem::take(&mut self.fates);
        self.decide_all(port, derived, plan, from, burst, &mut fates);
        let decided = &fates[..burst.len()];
        match self.whole(plan, decided) {
            Some(to) => self.send(to, queue, burst),
            None => {
                for (fate, packet) in decided.iter().zip(burst.iter()) {
                    self.carry_out(plan, from, queue, packet, *fate);
                }
            }
        }
        self.fates = fates;
        self.flush(plan, queue, from);
    }

    /// The port that all packets of a burst go to as they are, if it is one of this worker's and asks for nothing more.
    fn whole(&self, plan: &Plan, fates: &[Fate]) -> Option<u16> {
        let first = fates.first()?;
        let Fate::To(to, Edit::Keep) = *first else {
            return None;
        };
        let is_plain = fates.iter().all(|fate| fate == first)
            && plan.port(to)?.worker == self.number
            && plan.derived[usize::from(to)].mirrors_out.is_empty()
            && self.states[usize::from(to)].mtu == usize::MAX;
        is_plain.then_some(to)
    }

    /// Decides for each packet. One that has the addresses and the tag of the packet before goes where that went, without being looked up,
    /// unless it has to be counted by itself: a burst is mostly between few stations.
    fn decide_all(
        &mut self,
        port: &PortPlan,
        derived: &Derived,
        plan: &Plan,
        from: u16,
        burst: &Burst,
        fates: &mut [Fate],
    ) {
        let place = usize::from(from);
        let is_policed = self.states[place].police.iter().any(Option::is_some);
        let may_repeat = derived.flows.is_empty() && !is_policed;
        let mut last = None;
        for (fate, packet) in fates.iter_mut().zip(burst.iter()) {
            let head = packet.head();
            let is_whole = head.len() >= HEADER_BYTES + TAG_BYTES;
            let outside = head.first_chunk::<OUTSIDE_BYTES>().filter(|_| is_whole);
            if let Some((before, known)) = last
                && outside == Some(before)
            {
                *fate = known;
                continue;
            }
            let unlearnt = self.tallies[place].unlearnt;
            *fate = self.decide(port, derived, plan, from, packet);
            let is_to = matches!(fate, Fate::To(..)) && self.tallies[place].unlearnt == unlearnt;
            last = outside
                .filter(|_| may_repeat && is_to)
                .map(|outside| (outside, *fate));
        }
    }

    fn decide(
        &mut self,
        port: &PortPlan,
        derived: &Derived,
        plan: &Plan,
        from: u16,
        packet: Packet<'_>,
    ) -> Fate {
        let Some(frame) = Frame::parse(packet.head()) else {
            return Fate::Drop(Cause::Malformed);
        };
        if !self.is_let_in(from, packet.len() as u64) {
            return Fate::Drop(Cause::Policed);
        }
        if !derived.flows.is_empty()
            && let Some(number) = derived.flows.find(&Key::of(packet.head(), &frame))
        {
            return self.go_by_flow(plan, number, packet.len() as u64);
        }
        if !frame.source.is_station() {
            return Fate::Drop(Cause::Source);
        }
        let Some(vlan) = port.membership.and_then(|one| one.classify(frame.tag)) else {
            return Fate::Drop(Cause::Vlan);
        };
        if frame.destination == Mac::PAUSE {
            return Fate::Drop(Cause::LinkLocal);
        }
        self.learn(Station::new(frame.source, vlan), port, from);
        if frame.destination.is_group() {
            return self.flood_group(frame.destination, vlan, from);
        }
        let station = Station::new(frame.destination, vlan);
        match self.table.find(station, self.now_ns) {
            Some(to) => Self::bridge(plan, port, from, to, &frame, vlan),
            None => self.flood(UNKNOWN, vlan, from),
        }
    }

    fn is_let_in(&mut self, from: u16, bytes: u64) -> bool {
        let (now_ns, amounts) = (self.now_ns, [1, bytes]);
        let police = &mut self.states[usize::from(from)].police;
        // Neither is taken from unless both let it pass.
        let mut buckets = police.iter_mut().zip(amounts);
        let is_let_in = buckets.all(|(bucket, amount)| {
            let bucket = bucket.as_mut();
            bucket.is_none_or(|bucket| bucket.has(amount, now_ns))
        });
        if is_let_in {
            for (bucket, amount) in police.iter_mut().zip(amounts) {
                if let Some(bucket) = bucket {
                    bucket.take(amount, now_ns);
                }
            }
        }
        is_let_in
    }

    fn go_by_flow(&mut self, plan: &Plan, number: u16, bytes: u64) -> Fate {
        let hits = &mut self.hits[usize::from(number)];
        hits.packets += 1;
        hits.bytes += bytes;
        let flow = plan.flows[usize::from(number)].as_ref();
        match flow.map(|flow| &flow.out[..]) {
            Some([to]) => Fate::To(*to, Edit::Keep),
            Some([_, ..]) => Fate::Flow(number),
            _ => Fate::Drop(Cause::Flow),
        }
    }

    fn learn(&mut self, station: Station, port: &PortPlan, from: u16) {
        match self.table.learn(station, from, port.mac_limit, self.now_ns) {
            Learnt::Known => {}
            Learnt::News => {
                for lane in self.lanes.iter_mut().flatten() {
                    // What does not fit is told again later.
                    let _ = lane.send(Mail::Learnt(station, from));
                }
            }
            Learnt::NoRoom => self.tallies[usize::from(from)].unlearnt += 1,
        }
    }

    fn flood_group(&mut self, destination: Mac, vlan: u16, from: u16) -> Fate {
        if destination.is_link_local() {
            return Fate::Drop(Cause::LinkLocal);
        }
        let kind = if destination == Mac::BROADCAST {
            BROADCAST
        } else {
            MULTICAST
        };
        self.flood(kind, vlan, from)
    }

    fn flood(&mut self, kind: usize, vlan: u16, from: u16) -> Fate {
        let place = usize::from(from);
        if let Some(bucket) = &mut self.states[place].storm[kind]
            && !bucket.take(1, self.now_ns)
        {
            return Fate::Drop(Cause::Storm);
        }
        self.tallies[place].flooded += 1;
        Fate::Flood(vlan)
    }

    /// To a station that is known.
    fn bridge(plan: &Plan, port: &PortPlan, from: u16, to: u16, frame: &Frame, vlan: u16) -> Fate {
        let Some(target) = plan.port(to) else {
            return Fate::Drop(Cause::NoPort);
        };
        if to == from || is_beyond_horizon(port, target) {
            return Fate::Drop(Cause::SamePort);
        }
        match target.membership {
            Some(membership) if membership.allows(vlan) => {
                Fate::To(to, membership.edit(frame.tag, vlan))
            }
            _ => Fate::Drop(Cause::Vlan),
        }
    }

    fn carry_out(&mut self, plan: &Plan, from: u16, queue: usize, packet: Packet<'_>, fate: Fate) {
        match fate {
            Fate::Drop(cause) => self.tallies[usize::from(from)].drop(cause, 1),
            Fate::To(to, edit) => self.gather(plan, from, to, queue, packet, edit),
            Fate::Flow(number) => {
                let Some(flow) = &plan.flows[usize::from(number)] else {
                    return;
                };
                self.tallies[usize::from(from)].made += flow.out.len() as u64 - 1;
                for to in &flow.out {
                    self.gather(plan, from, *to, queue, packet, Edit::Keep);
                }
            }
            Fate::Flood(vlan) => self.gather_all(plan, from, queue, packet, vlan),
        }
    }

    fn gather_all(&mut self, plan: &Plan, from: u16, queue: usize, packet: Packet<'_>, vlan: u16) {
        let (Some(port), Some(frame)) = (plan.port(from), Frame::parse(packet.head())) else {
            return;
        };
        let mut copies = 0;
        for to in &plan.flooded {
            let Some(target) = plan.port(*to) else {
                continue;
            };
            let Some(membership) = target.membership else {
                continue;
            };
            if *to == from || !membership.allows(vlan) || is_beyond_horizon(port, target) {
                continue;
            }
            copies += 1;
            let edit = membership.edit(frame.tag, vlan);
            self.gather(plan, from, *to, queue, packet, edit);
        }
        let tally = &mut self.tallies[usize::from(from)];
        match copies {
            0 => tally.drop(Cause::NoPort, 1),
            copies => tally.made += copies - 1,
        }
    }

    /// Puts a packet with those that are about to go to a port.
    fn gather(
        &mut self,
        plan: &Plan,
        from: u16,
        to: u16,
        queue: usize,
        packet: Packet<'_>,
        edit: Edit,
    ) {
        if self.is_too_large(to, packet) {
            self.tallies[usize::from(from)].drop(Cause::TooLarge, 1);
            self.say_too_large(plan, from, to, queue, packet);
            return;
        }
        let offload = match tag::offload_after(packet, edit) {
            Ok(offload) => offload,
            Err(cause) => {
                self.tallies[usize::from(from)].drop(cause, 1);
                return;
            }
        };
        let Some(number) = self.put(plan, from, to, queue, packet) else {
            return;
        };
        let Some(mut out) = self.outs[usize::from(to)].take() else {
            return;
        };
        tag::change(&mut out, number, edit, offload);
        if let Some(packet) = out.get(number) {
            for copy in &plan.derived[usize::from(to)].mirrors_out {
                self.tallies[usize::from(from)].made += 1;
                self.put(plan, from, *copy, queue, packet);
            }
        }
        self.outs[usize::from(to)] = Some(out);
    }

    /// Adds a packet to those of a port; returns its number there. None: it was dropped.
    fn put(
        &mut self,
        plan: &Plan,
        from: u16,
        to: u16,
        queue: usize,
        packet: Packet<'_>,
    ) -> Option<usize> {
        let place = usize::from(to);
        let worker = plan.port(to).map(|port| port.worker);
        for _ in 0..2 {
            if self.outs[place].is_none()
                && let Some(lane) = worker.and_then(|worker| self.lanes.get_mut(worker)?.as_mut())
            {
                self.outs[place] = lane.take_burst();
            }
            let Some(out) = &mut self.outs[place] else {
                break;
            };
            if out.is_empty() {
                self.touched.push(to);
            }
            let is_added = if worker == Some(self.number) {
                out.append(packet)
            } else {
                out.append_copy(packet)
            };
            if is_added {
                return Some(out.len() - 1);
            }
            self.flush_port(plan, to, queue, from);
        }
        let cause = match worker {
            Some(worker) if worker != self.number => Cause::Busy,
            _ => Cause::NoPort,
        };
        self.tallies[usize::from(from)].drop(cause, 1);
        None
    }

    fn is_too_large(&self, to: u16, packet: Packet<'_>) -> bool {
        let mtu = self.states[usize::from(to)].mtu;
        let most = mtu.saturating_add(HEADER_BYTES);
        if packet.len() <= most {
            return false;
        }
        let tag = Frame::parse(packet.head()).and_then(|frame| frame.tag);
        if packet.len() <= most + tag.map_or(0, |_| TAG_BYTES) {
            return false;
        }
        // What is cut before it leaves is as long as its segments.
        let cut = packet.offload().segment.map(|how| Cut::new(packet, how));
        !matches!(cut, Some(Ok(cut)) if cut.network_bytes() <= mtu)
    }

    /// Tells whoever sent a packet that it was too long.
    fn say_too_large(&mut self, plan: &Plan, from: u16, to: u16, queue: usize, packet: Packet<'_>) {
        let mtu = u16::try_from(self.states[usize::from(to)].mtu).unwrap_or(u16::MAX);
        let frame = Frame::parse(packet.head());
        let answer = frame.and_then(|frame| icmp::too_big(packet.head(), &frame, mtu));
        let Some(answer) = answer else { return };
        let Some(mut small) = self.small.take() else {
            return;
        };
        let now_ns = self.now_ns;
        if self.states[usize::from(from)].answers.take(1, now_ns) {
            small.clear();
            small.push(answer.as_bytes());
            if let Some(packet) = small.get(0) {
                self.tallies[usize::from(from)].made += 1;
                self.put(plan, from, from, queue, packet);
            }
        }
        self.small = Some(small);
    }

    /// Sends what was held back because the worker that it is for was not keeping up: what comes meanwhile fills the burst. `is_final`:
    /// in any case.
    pub(crate) fn flush_held(&mut self, is_final: bool) {
        let Some(plan) = self.plan.take() else { return };
        self.is_final = is_final;
        for place in (0..self.held.len()).rev() {
            // One that has to wait on goes to the end, behind those that are still to be looked at.
            let to = self.held.swap_remove(place);
            self.flush_port(&plan, to, 0, to);
        }
        self.is_final = false;
        self.plan = Some(plan);
    }

    /// Sends what was gathered.
    fn flush(&mut self, plan: &Plan, queue: usize, from: u16) {
        while let Some(to) = self.touched.last().copied() {
            self.flush_port(plan, to, queue, from);
        }
    }

    fn flush_port(&mut self, plan: &Plan, to: u16, queue: usize, from: u16) {
        self.touched.retain(|touched| *touched != to);
        let place = usize::from(to);
        let Some(mut burst) = self.outs[place].take() else {
            return;
        };
        let worker = plan.port(to).map(|port| port.worker);
        if worker == Some(self.number) && matches!(self.ports.get(place), Some(Some(_))) {
            self.send(to, queue, &burst);
            burst.clear();
            self.outs[place] = Some(burst);
            return;
        }
        let Some(lane) = worker.and_then(|worker| self.lanes.get_mut(worker)?.as_mut()) else {
            self.tallies[usize::from(from)].drop(Cause::NoPort, burst.len() as u64);
            return;
        };
        if burst.is_empty() {
            lane.put_back(burst);
        } else if !burst.is_full() && lane.is_congested() && !self.is_final {
            self.outs[place] = Some(burst);
            if !self.held.contains(&to) {
                self.held.push(to);
            }
        } else if let Err(lost) = lane.send(Mail::Packets(to, burst)) {
            self.tallies[usize::from(from)].drop(Cause::Busy, lost as u64);
        }
    }
}

/// Whether two ports do not forward to each other.
fn is_beyond_horizon(one: &PortPlan, other: &PortPlan) -> bool {
    one.horizon.is_some() && one.horizon == other.horizon
}
