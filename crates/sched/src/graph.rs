//! What a program wants done: stages, each with its kind and its handlers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::event::{Event, StageId};
use crate::map::Place;
use crate::state::State;

/// Stages of a graph, at most.
pub const STAGES_MAX: usize = 64;

/// What a stage's events may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One worker at a time for each flow, and events of a flow in their order.
    Atomic,
    /// Several workers for one flow, where one is not enough: what they hand on is put in the order that the events came in, also
    /// where some of them hand on nothing, or several.
    Ordered,
    /// Any worker, in any order.
    Parallel,
}

/// What a stage does. Each worker has a handler of its own for each stage.
pub trait Handler: Send {
    /// Does the work of events that came together, in their order, at most [`crate::Config::burst`]. What is not handed on by `out` has
    /// left the graph.
    ///
    /// When it panics, these events are lost, and counted, and so is, without being counted, what this handler kept of its flows. The
    /// worker makes another handler, and for a second its flows are other workers', where there are any.
    fn handle(&mut self, events: &[Event], out: &mut Out);

    /// Gives up what it keeps of a bucket of an atomic stage, which another worker is to have: see [`crate::bucket_of`]. No event of it
    /// comes any more, unless the bucket comes back. None: there is nothing.
    ///
    /// When it panics, that is lost with all that this handler keeps, as when [`Handler::handle`] panics.
    fn give(&mut self, bucket: usize) -> Option<State> {
        let _ = bucket;
        None
    }

    /// Gets what the former owner of a bucket gave up, before the first event of it comes. A bucket of which nothing was given up, or
    /// whose state was lost, comes without: then there is nothing that could be known of its flows.
    ///
    /// When it panics, that is lost with all that this handler keeps, as when [`Handler::handle`] panics. A worker that has no handler,
    /// since making one panicked, loses what it gets, and counts it.
    fn take(&mut self, bucket: usize, state: State) {
        let _ = (bucket, state);
    }
}

impl<F: FnMut(&[Event], &mut Out) + Send> Handler for F {
    fn handle(&mut self, events: &[Event], out: &mut Out) {
        self(events, out);
    }
}

/// Where a handler hands events on.
#[derive(Debug, Default)]
pub struct Out {
    pub(crate) events: Vec<Event>,
    pub(crate) drops: Vec<(u8, u64)>,
    /// After how many nanoseconds.
    pub(crate) timers: Vec<(u64, Event)>,
    pub(crate) now_ns: u64,
    /// The stages for which events wait, by bits.
    pub(crate) waiting: u64,
}

impl Out {
    /// Hands an event on. It is what came, or made of it by [`Event::to`]: for another stage, of another flow, or several of it. This
    /// never fails.
    #[inline]
    pub fn forward(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Hands all of them on to one stage, in their order.
    #[inline]
    pub fn forward_all(&mut self, events: &[Event], stage: StageId) {
        self.events
            .extend(events.iter().map(|event| event.to(stage)));
    }

    /// Hands an event on when so much time has passed: never earlier, and later by up to 16 µs, and what it takes to wake the worker, or
    /// to have it finish its turn. It is in the graph until then. Nobody takes it back: a stage that does not want it any more knows by its
    /// value, and does nothing.
    pub fn forward_after(&mut self, event: Event, delay: Duration) {
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.timers.push((delay_ns, event));
    }

    /// When the worker began this turn, in nanoseconds since the graph was built: nothing is asked for it.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Whether events of a stage waited at this worker when it began with these: what is done for that stage in place overtakes them.
    #[inline]
    #[must_use]
    pub fn waits(&self, stage: StageId) -> bool {
        self.waiting >> stage.index() & 1 != 0
    }

    /// Counts an event that is dropped, by a cause of the program's own.
    pub fn drop(&mut self, cause: u8) {
        match self.drops.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, count)) => *count += 1,
            None => self.drops.push((cause, 1)),
        }
    }
}

pub(crate) type Maker = Arc<dyn Fn(usize) -> Box<dyn Handler> + Send + Sync>;

/// A stage of a graph.
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) maker: Maker,
    /// Whether it stays with the stage before it; none: as is measured.
    pub(crate) fused: Option<bool>,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.name, self.kind)
    }
}

/// A flow whose bucket stays with a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pin {
    pub(crate) stage: StageId,
    pub(crate) flow: u32,
    pub(crate) worker: usize,
}

impl Pin {
    pub(crate) fn place(self) -> Place {
        Place::of(self.stage, self.flow)
    }
}

/// Stages, in the order that work goes through them: who has several to do does the last one first.
#[derive(Debug, Default)]
pub struct Graph {
    pub(crate) stages: Vec<Stage>,
    pub(crate) pins: Vec<Pin>,
}

impl Graph {
    /// An empty graph.
    #[must_use]
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Adds a stage; `handler` makes one for each worker, by its number.
    ///
    /// # Panics
    /// When there are more than [`STAGES_MAX`].
    pub fn stage<H: Handler + 'static>(
        &mut self,
        name: &str,
        kind: Kind,
        handler: impl Fn(usize) -> H + Send + Sync + 'static,
    ) -> StageId {
        assert!(
            self.stages.len() < STAGES_MAX,
            "a graph has {STAGES_MAX} stages at most"
        );
        self.stages.push(Stage {
            name: name.to_owned(),
            kind,
            maker: Arc::new(move |worker| Box::new(handler(worker))),
            fused: None,
        });
        StageId(self.stages.len() as u8 - 1)
    }

    /// Has a flow's events of a stage done by the same worker as those of the stage before it; or, if not fused, begin at another worker,
    /// if there is one, and move by load on their own. Otherwise they are done by the same worker, unless a flow is too much for one
    /// worker and the stage costs more than handing over does.
    pub fn fuse(&mut self, stage: StageId, is_fused: bool) {
        self.stages[stage.index()].fused = Some(is_fused);
    }

    /// Has a flow of a stage, and all of its bucket, be a worker's from the start, and never another one's: whatever the load, and also
    /// while that worker stands down, or is ill. Batches of an ordered stage are lent still. [`crate::build`] says what cannot be.
    ///
    /// # Panics
    /// When there is no such stage.
    pub fn pin(&mut self, stage: StageId, flow: u32, worker: usize) {
        assert!(stage.index() < self.stages.len(), "there is no such stage");
        self.pins.push(Pin {
            stage,
            flow,
            worker,
        });
    }
}
