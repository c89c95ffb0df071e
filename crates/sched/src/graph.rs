//! What a program wants done: stages, each with its kind and its handlers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::event::{Event, StageId};

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
    /// When it panics, these events are lost, and counted; the worker makes another handler, and for a second its flows are other
    /// workers', where there are any.
    fn handle(&mut self, events: &[Event], out: &mut Out);
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

/// Stages, in the order that work goes through them: who has several to do does the last one first.
#[derive(Debug, Default)]
pub struct Graph {
    pub(crate) stages: Vec<Stage>,
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

    /// Has a flow's events of a stage done by the same worker as those of the stage before it, or, where one flow is too much for one
    /// worker, by another one. Otherwise that is decided by what the stage costs.
    pub fn fuse(&mut self, stage: StageId, is_fused: bool) {
        self.stages[stage.index()].fused = Some(is_fused);
    }
}
