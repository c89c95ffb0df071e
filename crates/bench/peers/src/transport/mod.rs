//! Ways for messages, each of them behind the same two traits, so that one loop measures all.

mod bare_line;
mod bare_ring;
mod channel;
mod eventfd;
pub(crate) mod iceoryx;
mod pipe;
mod seqpacket;

use std::os::fd::OwnedFd;

use anyhow::{Context, Result};

use crate::head::Head;
use crate::line::Line;
use crate::outcome::Outcome;
use crate::trial::{Lane, Trial, Workload};
use crate::workload;

/// A way for messages.
pub(crate) trait Transport {
    /// The sending end.
    type Source: Source;
    /// The receiving end.
    type Sink: Sink;

    /// Makes what both ends need, in the asking process; it is handed to all of them.
    fn make(lane: &Lane<'_>) -> Result<Vec<OwnedFd>>;
    /// A source of a lane, by its number.
    fn source(lane: &Lane<'_>, parts: Vec<OwnedFd>, index: usize) -> Result<Self::Source>;
    /// A sink of a lane, by its number.
    fn sink(lane: &Lane<'_>, parts: Vec<OwnedFd>, index: usize) -> Result<Self::Sink>;
}

/// The sending end. Where there are several sinks, each message goes to one of them.
pub(crate) trait Source {
    /// Waits until it has met its sinks: all ends are open when it is called.
    fn meet(&mut self) -> Result<()> {
        Ok(())
    }

    /// Gets the next message's buffer while there is nothing else to do, where that can be done ahead.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Puts a message with this head behind the others; the rest of it is not touched. False: there is no room.
    fn push(&mut self, head: &Head) -> Result<bool>;

    /// Makes visible what was pushed.
    fn publish(&mut self) -> Result<()>;

    /// Tells every sink that this was all, by the message `stop` or in another way.
    fn finish(&mut self, stop: &Head) -> Result<()>;
}

/// The receiving end.
pub(crate) trait Sink {
    /// Waits until it has met its sources.
    fn meet(&mut self) -> Result<()> {
        Ok(())
    }

    /// Takes messages, so many at most, and hands their heads over; what it took goes back. Some(0): there is nothing, None: nothing will
    /// come any more.
    /// Ends whose lane does not spin may sleep in here.
    fn pop(&mut self, most: usize, take: &mut impl FnMut(&Head)) -> Result<Option<usize>>;

    /// Sleeps until there is something, where `pop` does not.
    fn wait(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A transport by its name.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// What it can be asked to do.
    pub(crate) workloads: &'static [Workload],
    /// The asking process's side of a trial.
    pub(crate) ask: fn(&Trial, Parts, &mut [Line]) -> Result<Outcome>,
    /// Another process's side.
    pub(crate) take_part: fn(&Trial, Parts, &mut Line, usize) -> Result<()>,
    /// What both ends need.
    pub(crate) make: fn(&Trial) -> Result<Parts>,
}

/// What both ends of the two lanes need.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) there: Vec<OwnedFd>,
    pub(crate) back: Vec<OwnedFd>,
}

fn make<T: Transport>(trial: &Trial) -> Result<Parts> {
    let parts = |lane: Option<Lane<'_>>| lane.map_or(Ok(Vec::new()), |lane| T::make(&lane));
    Ok(Parts {
        there: parts(trial.there())?,
        back: parts(trial.back())?,
    })
}

const fn kind<T: Transport>(
    name: &'static str,
    about: &'static str,
    workloads: &'static [Workload],
) -> Kind {
    Kind {
        name,
        about,
        workloads,
        ask: workload::ask::<T>,
        take_part: workload::take_part::<T>,
        make: make::<T>,
    }
}

const STREAMS: &[Workload] = &[
    Workload::RoundTrip,
    Workload::OneWay,
    Workload::FanIn,
    Workload::Work,
];

/// All of them, in the order of tables.
pub(crate) const ALL: &[Kind] = &[
    kind::<channel::Channels>(
        "channel",
        "channels of Millrace, between processes that need not trust each other",
        &Workload::ALL,
    ),
    kind::<iceoryx::Iceoryx>(
        "iceoryx2",
        "the crate iceoryx2: publish-subscribe over shared memory, between processes that trust each other",
        &Workload::ALL,
    ),
    kind::<seqpacket::Seqpacket>(
        "seqpacket",
        "a pair of Unix sockets of type SOCK_SEQPACKET",
        &Workload::ALL,
    ),
    kind::<pipe::Pipe>("pipe", "a plain pipe", &Workload::ALL),
    kind::<bare_ring::BareRing>(
        "bare-ring",
        "a ring of one producer and one consumer in shared memory: two cursors and slots, and nothing else. A reference, no road",
        STREAMS,
    ),
    kind::<bare_line::BareLine>(
        "bare-line",
        "one cache line in each direction, whose last word says that it is full. What the processors can do at best. A reference, no road",
        &[Workload::RoundTrip],
    ),
    kind::<eventfd::Eventfd>(
        "eventfd",
        "the bare ring with an eventfd, at which the sink sleeps in epoll_wait. A reference for waking, no road",
        &[Workload::Waking],
    ),
];

/// The one with this name.
pub(crate) fn by_name(name: &str) -> Result<&'static Kind> {
    let names = || {
        ALL.iter()
            .map(|kind| kind.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let found = ALL.iter().find(|kind| kind.name == name);
    found.with_context(|| format!("there is no transport {name}; there are {}", names()))
}

/// A buffer that is full is waited for with the processor in hand, or given to others where there are more processes than processors.
#[inline]
pub(crate) fn pause(is_crowded: bool) {
    if is_crowded {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}
