//! The graph that packets go through which are not dealt with where they came, and what its stages do.
//!
//! | stage | flows | whose | what |
//! |---|---|---|---|
//! | `bearer` | shards of bearers | move between workers, with their bearers' state | what came by another worker's port, and errands |
//! | `worker` | workers | each its own | what a certain worker is to hear of |
//! | `port` | ports | the worker's that has the port | what leaves by another worker's port |

use std::sync::{Arc, Mutex, PoisonError};

use millrace_sched::{
    Config, ConfigError, Entry, Event, Graph, Handler, Kind, Out, StageId, State, Worker, bucket_of,
};

use super::{Serving, errand};
use crate::bearer::SHARDS;
use crate::node::BURST;
use crate::post::{self, Post};
use crate::table::moving::Shard;

/// The stages, by what they are called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stages {
    pub(crate) bearer: StageId,
    pub(crate) worker: StageId,
    pub(crate) port: StageId,
}

/// Where a worker's handlers find what it has. Only its own thread comes here, and never while it is here already.
#[derive(Default)]
pub(crate) struct Desk(Mutex<Option<Box<Serving>>>);

impl Desk {
    /// Puts there what a worker has.
    pub(super) fn fill(&self, serving: Serving) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(serving));
    }

    /// Drops it.
    pub(super) fn clear(&self) {
        let serving = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(serving);
    }

    /// Does something with it.
    #[inline]
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Serving) -> R) -> Option<R> {
        // A panic ends the process.
        let mut serving = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        serving.as_deref_mut().map(act)
    }
}

/// The graph for workers with these desks; `owners` has each port's worker.
pub(crate) fn graph(desks: &[Arc<Desk>], owners: &[usize]) -> (Graph, Stages) {
    let workers = desks.len();
    let desks: Arc<[Arc<Desk>]> = desks.into();
    let shards = shards();
    let of = |desks: &Arc<[Arc<Desk>]>| {
        let desks = desks.clone();
        move |worker: usize| Deal {
            worker,
            desk: desks[worker].clone(),
        }
    };
    let (of_bearers, of_worker, of_port) = (of(&desks), of(&desks), of(&desks));
    let mut graph = Graph::new();
    let stages = Stages {
        bearer: graph.stage("bearer", Kind::Atomic, move |worker| OfBearers {
            deal: of_bearers(worker),
            shards: shards.clone(),
        }),
        worker: graph.stage("worker", Kind::Atomic, of_worker),
        port: graph.stage("port", Kind::Atomic, move |worker| Leave(of_port(worker))),
    };
    for worker in 0..workers {
        graph.pin(stages.worker, worker as u32, worker);
    }
    for (port, owner) in (0..).zip(owners) {
        graph.pin(stages.port, port, *owner);
    }
    (graph, stages)
}

/// A worker's part of the scheduler.
pub(crate) struct Part {
    pub(crate) scheduled: Worker,
    pub(crate) entry: Entry,
    pub(crate) desk: Arc<Desk>,
    pub(crate) post: Post,
}

/// Makes a scheduler for so many workers: their parts, the entry point of errands, and the stages.
pub(crate) fn build(
    workers: usize,
    owners: &[usize],
) -> Result<(Vec<Part>, Entry, Stages), ConfigError> {
    let desks: Vec<Arc<Desk>> = (0..workers).map(|_| Arc::default()).collect();
    let (graph, stages) = graph(&desks, owners);
    let mut entries = vec![post::PARCELS; workers];
    entries.push(errand::ROOM);
    let config = Config {
        entries,
        burst: BURST,
        ..Config::new(workers)
    };
    let (scheduled, mut entries) = millrace_sched::build(&graph, &config)?;
    let of_errands = entries.split_off(workers).remove(0);
    let parts = scheduled.into_iter().zip(entries);
    let parts = parts.zip(desks).zip(Post::new(workers));
    let parts = parts.map(|(((scheduled, entry), desk), post)| Part {
        scheduled,
        entry,
        desk,
        post,
    });
    Ok((parts.collect(), of_errands, stages))
}

/// By bucket of the scheduler: the shard that is there. Each has one of its own.
fn shards() -> Arc<[Option<u32>]> {
    let mut shards = vec![None; millrace_sched::BUCKETS];
    for shard in 0..SHARDS as u32 {
        shards[bucket_of(shard)] = Some(shard);
    }
    shards.into()
}

/// Ends the process with a worker that panics: bearers and ports of one that is no more would be nobody's. Whoever started the process
/// starts it again, and what was answered is kept.
pub(crate) struct EndsAll(pub(crate) usize);

impl Drop for EndsAll {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                worker = self.0,
                "a worker has ended, and with it the function"
            );
            std::process::exit(1);
        }
    }
}

/// Deals with packets that were handed over, and with errands.
struct Deal {
    worker: usize,
    desk: Arc<Desk>,
}

impl Deal {
    /// Does something with what the worker has. A panic ends the process, and not the worker alone.
    fn with<R>(&self, act: impl FnOnce(&mut Serving) -> R) -> Option<R> {
        let _ends = EndsAll(self.worker);
        self.desk.with(act)
    }
}

impl Handler for Deal {
    fn handle(&mut self, events: &[Event], out: &mut Out) {
        self.with(|serving| serving.deal(events, out));
    }
}

/// The same where bearers' state goes with their shards.
struct OfBearers {
    deal: Deal,
    shards: Arc<[Option<u32>]>,
}

impl Handler for OfBearers {
    fn handle(&mut self, events: &[Event], out: &mut Out) {
        self.deal.handle(events, out);
    }

    fn give(&mut self, bucket: usize) -> Option<State> {
        let shard = self.shards.get(bucket).copied().flatten()?;
        let shard = self.deal.with(|serving| {
            serving.counted.given += 1;
            serving.node.give_shard(shard)
        })?;
        Some(Box::new(shard))
    }

    fn take(&mut self, _: usize, state: State) {
        if let Ok(shard) = state.downcast::<Shard>() {
            self.deal.with(|serving| {
                serving.counted.taken += 1;
                serving.node.take_shard(*shard);
            });
        }
    }
}

/// Sends packets by this worker's ports.
struct Leave(Deal);

impl Handler for Leave {
    fn handle(&mut self, events: &[Event], _: &mut Out) {
        self.0.with(|serving| serving.let_leave(events));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shard_has_a_bucket_of_its_own() {
        let there = shards();
        assert_eq!(there.iter().flatten().count(), SHARDS);
    }
}
