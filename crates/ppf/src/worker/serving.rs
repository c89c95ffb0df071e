//! What a worker has: ports, a node, and what goes between them and the scheduler.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use millrace_port::Burst;
use millrace_sched::{Entry, Event, Out, StageId};
use millrace_switch::Bell;
use millrace_wire::pcap::Direction;
use nix::sys::epoll::{Epoll, EpollEvent, EpollTimeout};

use super::errand::{ERRAND, Errand, Errands};
use super::stages::Stages;
use super::{Attached, BELL, Command, Parts, TICK, Work};
use crate::link::LinkCause;
use crate::node::{BURST, Node, Outs, Whose};
use crate::post::Post;
use crate::report::Passed;
use crate::told::EventLog;
use crate::trace::{self, Tap};

/// What a worker has.
pub(super) struct Serving {
    pub(super) node: Node,
    pub(super) number: usize,
    workers: usize,
    pub(super) epoch: Instant,
    commands: Receiver<Command>,
    has_commands: bool,
    is_stopped: bool,
    pub(super) bell: Arc<Bell>,
    pub(super) ports: Vec<Attached>,
    /// By number of port, its place among those that it has, if this worker sends by it.
    places: Vec<Option<usize>>,
    next_poll: usize,
    now: Instant,
    tick_at: Instant,
    pub(super) events: Arc<EventLog>,
    pub(super) stages: Stages,
    entry: Entry,
    /// Something waits to be let into the graph.
    is_waiting: bool,
    post: Post,
    errands: Arc<Errands>,
    /// What comes by a port, what was handed over, and one packet of that.
    burst: Burst,
    work: Burst,
    packet: Vec<u8>,
    outs: Outs,
    pub(super) counted: Work,
    /// Who looks at a bearer.
    taps: Vec<Tap>,
}

/// How what is not dealt with here gets to whoever deals with it.
enum Via<'a> {
    /// By this worker's entry point; whether that is clear, so that nothing overtakes anything.
    Entry(bool),
    /// By a stage's handler, as something that was made of this event.
    Stage(&'a mut Out, Event),
}

impl Serving {
    pub(super) fn new(parts: Parts, entry: Entry, post: Post) -> Serving {
        let mut places = vec![None; parts.owners.len()];
        for (place, attached) in parts.ports.iter().enumerate() {
            let number = usize::from(attached.number);
            // By one worker each, whoever else receives: what leaves of a bearer, whose worker may be another one soon, is in one order.
            places[number] = (parts.owners[number] == parts.number).then_some(place);
        }
        Serving {
            node: parts.node,
            number: parts.number,
            workers: parts.workers,
            epoch: parts.epoch,
            commands: parts.commands,
            has_commands: false,
            is_stopped: false,
            bell: parts.bell,
            ports: parts.ports,
            next_poll: 0,
            now: parts.epoch,
            tick_at: parts.epoch,
            events: parts.events,
            stages: parts.stages,
            entry,
            is_waiting: false,
            post,
            errands: parts.errands,
            burst: Burst::new(BURST),
            work: Burst::new(BURST),
            packet: Vec::new(),
            outs: Outs::new(places.len()),
            places,
            counted: Work::default(),
            taps: Vec::new(),
        }
    }

    /// Begins a turn: time passes, and it does one thing that it is told to. Whether there was one; none: it is to end.
    #[inline]
    pub(super) fn begin(&mut self, now: Instant, has_news: bool, epoll: &Epoll) -> Option<bool> {
        self.now = now;
        let now_ns = (now - self.epoch).as_nanos();
        self.node
            .set_time(u64::try_from(now_ns).unwrap_or(u64::MAX));
        self.has_commands |= has_news;
        let is_busy = self.has_commands && self.obey();
        if now >= self.tick_at {
            self.tick(epoll);
        }
        (!self.is_stopped).then_some(is_busy)
    }

    /// Serves the ports, and sends what is the node's own. `is_clear`: nothing waits in the scheduler for this worker. Whether there was
    /// something, and whether something waits to be let in; `done` gets the shards that packets were dealt with of.
    #[inline]
    pub(super) fn turn(
        &mut self,
        is_clear: bool,
        was_busy: bool,
        done: &mut Vec<u32>,
    ) -> (bool, bool) {
        let is_clear = is_clear && !self.is_waiting;
        self.node.defer(!is_clear);
        let mut is_busy = false;
        for place in 0..self.ports.len() {
            is_busy |= self.serve(place, is_clear, done);
        }
        let now_ns = self.node.now_ns();
        if self.node.poll_at_ns().is_some_and(|at| at <= now_ns) {
            self.node.poll(&mut self.outs);
            self.flush(0, 0, &mut Via::Entry(is_clear));
            // What waits goes on burst by burst, and nobody sleeps meanwhile.
            is_busy |= self.node.has_more();
        }
        self.is_waiting = self.entry.flush() > 0;
        self.counted.turns += 1;
        self.counted.busy_turns += u64::from(is_busy || was_busy || self.is_waiting);
        (is_busy, self.is_waiting)
    }

    /// One burst from each queue of a port.
    #[inline]
    fn serve(&mut self, place: usize, is_clear: bool, shards: &mut Vec<u32>) -> bool {
        let (mut queue, mut is_busy) = (0, false);
        loop {
            let attached = &mut self.ports[place];
            if queue >= attached.port.receive_queues() {
                return is_busy;
            }
            if attached.is_file {
                attached.port.poll(self.now);
            }
            let number = attached.number;
            let (count, mut done) = (attached.port.receive(queue, &mut self.burst), 0);
            is_busy |= count > 0;
            if !self.taps.is_empty() {
                let frames = self.burst.iter();
                trace::see(&mut self.taps, number, frames, self.now, Direction::In);
            }
            while done < count {
                let (node, outs) = (&mut self.node, &mut self.outs);
                done = node.receive_from(done, number, &self.burst, false, outs);
                self.flush(number, queue, &mut Via::Entry(is_clear));
            }
            if self.workers > 1 {
                shards.append(&mut self.outs.done);
            }
            queue += 1;
        }
    }

    /// Deals with what was handed over to this worker: packets, and errands.
    pub(super) fn deal(&mut self, events: &[Event], out: &mut Out) {
        let Some(first) = events.first() else {
            return;
        };
        let via = &mut Via::Stage(out, *first);
        let mut came_by = None;
        for event in events {
            if event.value & ERRAND != 0 {
                self.deal_with_work(came_by.take(), via);
                self.run(event.value);
            } else if let Some(port) = self.post.take(event.value, &mut self.packet) {
                if came_by.is_some_and(|known| known != port) || self.work.is_full() {
                    self.deal_with_work(came_by, via);
                }
                came_by = Some(port);
                if !self.work.push(&self.packet) {
                    self.node.lose(port, LinkCause::NoRoom);
                }
            }
        }
        self.deal_with_work(came_by, via);
    }

    /// Packets that came by one port, and were handed over.
    fn deal_with_work(&mut self, came_by: Option<u16>, via: &mut Via<'_>) {
        let (Some(port), mut done) = (came_by, 0) else {
            return;
        };
        while done < self.work.len() {
            let (node, outs) = (&mut self.node, &mut self.outs);
            done = node.receive_from(done, port, &self.work, true, outs);
            self.flush(port, 0, via);
        }
        self.work.clear();
    }

    /// Sends packets by own ports that other workers have dealt with, or this one when it could not send them at once.
    pub(super) fn let_leave(&mut self, events: &[Event]) {
        let mut leaves_by = None;
        for event in events {
            let Some(port) = self.post.take(event.value, &mut self.packet) else {
                continue;
            };
            if leaves_by.is_some_and(|known| known != port) || self.work.is_full() {
                self.transmit_work(leaves_by);
            }
            leaves_by = Some(port);
            if !self.work.push(&self.packet) {
                self.node.lose(port, LinkCause::NoRoom);
            }
        }
        self.transmit_work(leaves_by);
    }

    fn transmit_work(&mut self, port: Option<u16>) {
        let place = port.and_then(|port| self.places[usize::from(port)]);
        if let Some(place) = place {
            let (attached, taps) = (&mut self.ports[place], &mut self.taps);
            transmit(attached, &self.work, 0, self.now, taps);
        }
        self.work.clear();
    }

    /// Hands over what leaves, and what is others' to deal with; `from` is the port that it came by. What does not is dropped, and counted.
    #[inline]
    fn flush(&mut self, from: u16, queue: usize, via: &mut Via<'_>) {
        for number in 0..self.outs.ports.len() {
            if self.outs.ports[number].is_empty() {
                continue;
            }
            // Of a configuration's 64 ports at most.
            let port = number as u16;
            match self.places[number].filter(|_| self.may_leave(via)) {
                Some(place) => {
                    let (attached, taps) = (&mut self.ports[place], &mut self.taps);
                    transmit(attached, &self.outs.ports[number], queue, self.now, taps);
                }
                None => self.send_on(port, via),
            }
            self.outs.ports[number].clear();
        }
        if !self.outs.whose.is_empty() {
            self.hand_over(from, via);
        }
    }

    /// Whether what leaves by an own port overtakes nothing.
    #[inline]
    fn may_leave(&self, via: &Via<'_>) -> bool {
        match via {
            Via::Entry(is_clear) => *is_clear || self.workers == 1,
            Via::Stage(out, _) => !out.waits(self.stages.port),
        }
    }

    /// Has whoever has the port send what leaves by it.
    fn send_on(&mut self, port: u16, via: &mut Via<'_>) {
        for packet in self.outs.ports[usize::from(port)].iter() {
            let post = (&mut self.post, &mut self.entry);
            let flow = (self.stages.port, port.into());
            match send(post, flow, (port, packet), via) {
                Ok(()) => self.counted.handed_over += 1,
                Err(cause) => self.node.lose(port, cause),
            }
        }
    }

    /// Hands packets to those whose they are.
    fn hand_over(&mut self, from: u16, via: &mut Via<'_>) {
        let stages = self.stages;
        for (packet, whose) in self.outs.works.iter().zip(&self.outs.whose) {
            let mut hand = |stage: StageId, flow: u32| {
                let post = (&mut self.post, &mut self.entry);
                match send(post, (stage, flow), (from, packet), via) {
                    Ok(()) => self.counted.handed_over += 1,
                    Err(cause) => self.node.lose(from, cause),
                }
            };
            match *whose {
                Whose::Shard(shard) => hand(stages.bearer, shard),
                Whose::Worker(worker) => hand(stages.worker, worker as u32),
                Whose::Others => {
                    let others = (0..self.workers).filter(|worker| *worker != self.number);
                    others.for_each(|worker| hand(stages.worker, worker as u32));
                }
            }
        }
        self.outs.clear_works();
    }

    /// Does one thing that it is told to. False: there was none.
    fn obey(&mut self) -> bool {
        let Ok(command) = self.commands.try_recv() else {
            self.has_commands = false;
            return false;
        };
        let node = &mut self.node;
        match command {
            Command::Know(bearers) => {
                for (id, bearer) in &bearers {
                    node.know(*id, bearer);
                }
            }
            Command::Change(changed) => {
                for (id, change) in &changed {
                    for tap in &mut self.taps {
                        tap.follow(*id, &change.1);
                    }
                    node.know_instead(*id, &change.0, &change.1);
                }
            }
            Command::Forget(bearers) => {
                for (id, bearer) in &bearers {
                    node.forget(*id, bearer);
                }
            }
            Command::Ue(ue, limits) => node.put_ue(ue, limits),
            Command::Done(answer) => {
                let _ = answer.send(());
            }
            Command::Report(answer) => {
                // Whoever asked may have gone.
                let _ = answer.send(self.report());
            }
            Command::Paths(from, most, answer) => {
                let paths = node.function.bearers.paths.iter_from(from).take(most);
                let _ = answer.send((self.number, paths.collect()));
            }
            Command::Trace(tap) => self.taps.push(*tap),
            Command::Stop => self.is_stopped = true,
        }
        true
    }

    /// Does what is asked of bearers that are here: after all that workers were told before it.
    fn run(&mut self, value: u64) {
        let Some(errand) = self.errands.take(value) else {
            return;
        };
        while self.obey() {}
        let node = &mut self.node;
        match errand {
            Errand::Put(bearers) => {
                for (id, bearer) in bearers {
                    node.put(id, bearer);
                }
            }
            Errand::Change(changed, markers) => {
                for (id, change) in changed {
                    let (before, after) = *change;
                    node.change(id, &before, after, markers);
                }
            }
            Errand::Remove(ids, answer) => {
                let gone = ids.into_iter().filter_map(|id| {
                    let passed = Passed::of(&node.function.bearers, id);
                    node.remove(id);
                    Some((id, passed?))
                });
                let _ = answer.send(gone.collect());
            }
            Errand::Usage(ids, answer) => {
                let bearers = &node.function.bearers;
                let usage = ids.into_iter();
                let usage = usage.filter_map(|id| Some((id, Passed::of(bearers, id)?)));
                let _ = answer.send(usage.collect());
            }
        }
    }

    /// Lets ports do what they must.
    fn tick(&mut self, epoll: &Epoll) {
        self.tick_at = self.now + TICK;
        self.tell(false);
        trace::mind(&mut self.taps, self.now, false);
        let mut events = [EpollEvent::empty(); 32];
        let waited = epoll.wait(&mut events, EpollTimeout::ZERO);
        self.attend(&events[..waited.unwrap_or(0)], self.now);
        // And one after another without being asked: one whose peer's ring cannot be ends its connection there, and says so nowhere else.
        self.next_poll = (self.next_poll + 1) % self.ports.len().max(1);
        if let Some(attached) = self.ports.get_mut(self.next_poll) {
            attached.port.poll(self.now);
        }
    }

    /// Polls ports that have a reason, or whose time has come.
    pub(super) fn attend(&mut self, events: &[EpollEvent], now: Instant) {
        for event in events {
            if event.data() == BELL {
                self.bell.silence();
                continue;
            }
            if let Some(attached) = self.ports.get_mut(event.data() as usize) {
                attached.port.poll(now);
            }
        }
        for attached in &mut self.ports {
            if attached.port.poll_at().is_some_and(|at| at <= now) {
                attached.port.poll(now);
            }
        }
    }

    /// Has ports wake whoever sleeps. Whether there is nothing to do, and until when.
    pub(super) fn arm(&mut self, now: Instant) -> (bool, Option<Instant>) {
        let asks = self.node.poll_at_ns();
        let mut until = asks.map(|at_ns| self.epoch + Duration::from_nanos(at_ns));
        let mut is_quiet = true;
        for attached in &mut self.ports {
            let port = &mut attached.port;
            if attached.is_file {
                // What was written is to be seen by whoever looks.
                port.poll(now);
            }
            if is_quiet && !port.arm() {
                is_quiet = false;
                // It has packets, or something to do that only `poll` does.
                port.poll(now);
            }
            until = [until, port.poll_at()].into_iter().flatten().min();
        }
        self.counted.sleeps += u64::from(is_quiet);
        (is_quiet, until)
    }

    /// Hands over what others should know, as somebody who has time.
    pub(super) fn tell_all(&mut self, now: Instant) {
        self.tell(true);
        trace::mind(&mut self.taps, now, true);
    }
}

/// Puts a packet into a parcel, and says so to whoever has the flow at that stage. Otherwise there was no room, for which of both is said.
fn send(
    (post, entry): (&mut Post, &mut Entry),
    (stage, flow): (StageId, u32),
    (port, packet): (u16, millrace_port::Packet<'_>),
    via: &mut Via<'_>,
) -> Result<(), LinkCause> {
    let value = post.put(port, packet).ok_or(LinkCause::Parcels)?;
    match via {
        Via::Entry(_) => {
            if entry.gather(&[entry.event(stage, flow, value)]) == 0 {
                post.take_back(value);
                return Err(LinkCause::NewEvents);
            }
        }
        Via::Stage(out, event) => {
            let mut event = event.to(stage);
            (event.flow, event.value) = (flow, value);
            out.forward(event);
        }
    }
    Ok(())
}

/// Sends a burst by a port; what the port does not take is dropped, and counted by it.
#[inline]
fn transmit(attached: &mut Attached, burst: &Burst, queue: usize, now: Instant, taps: &mut [Tap]) {
    let port = &mut attached.port;
    if attached.is_file {
        port.poll(now);
    }
    // Packets of one flow come by one queue, and so go by one.
    let queue = match port.transmit_queues() {
        0 | 1 => 0,
        queues => queue % queues,
    };
    let taken = port.transmit(queue, burst, 0);
    if taken < burst.len() {
        port.give_up(queue, burst, taken);
    }
    if !taps.is_empty() {
        let frames = burst.iter().take(taken);
        trace::see(taps, attached.number, frames, now, Direction::Out);
    }
}
