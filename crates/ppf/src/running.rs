//! A function that runs: its workers, and its registry, which is changed and told to them.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_sched::Control;
use millrace_switch::Bell;

use crate::bearer::{Bearer, BearerId, MeterId};
use crate::config::Config;
use crate::registry::{ChangeError, Put, Registry};
use crate::report::{BearerList, BearerReport, Passed, PortReport, UeList, UeReport};
use crate::spec::{BearerSpec, UeSpec};
use crate::store::StoreError;
use crate::told::EventLog;
use crate::worker::Command;
use crate::worker::errand::{Busy, Errand, Errands, Way, by_shard};

mod begin;
mod observe;
#[cfg(test)]
mod tests;

/// A worker answers between two bursts. What one would say that does not within this time is not known.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bearers that a worker is told of at once: it takes some microseconds, in which packets wait.
const PIECE: usize = 256;

/// A worker, by who tells it what to do.
#[derive(Debug)]
struct Handle {
    commands: Sender<Command>,
    bell: Arc<Bell>,
    processor: Option<usize>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Handle {
    fn tell(&self, command: Command) {
        // A worker that has panicked said so.
        let _ = self.commands.send(command);
        self.bell.ring();
    }
}

/// A function that runs.
#[derive(Debug)]
pub struct Running {
    began: Instant,
    config: Config,
    /// What a port is, and its worker.
    ports: Vec<(PortReport, usize)>,
    workers: Vec<Handle>,
    registry: Mutex<Registry>,
    /// The scheduler of the workers, and how errands get there.
    control: Control,
    errands: Arc<Errands>,
    way: Mutex<Way>,
    events: Arc<EventLog>,
    /// How many look at bearers now.
    traces: Arc<AtomicUsize>,
}

/// Takes what came of workers' answers, until nobody has one to give any more: the question is forgotten before.
fn gather<T>(answers: &Receiver<T>, count: usize) -> Vec<T> {
    let until = Instant::now() + PATIENCE;
    let mut gathered = Vec::with_capacity(count);
    while gathered.len() < count {
        let left = until.saturating_duration_since(Instant::now());
        match answers.recv_timeout(left) {
            Ok(answer) => gathered.push(answer),
            Err(_) => break,
        }
    }
    gathered
}

impl Running {
    /// What bearers there are. Whoever has it holds up who changes something.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        // It is whole between two statements that can panic.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bearers there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.registry().len()
    }

    /// Adds bearers, each if it can be.
    ///
    /// # Errors
    /// When they cannot be kept, or workers have no room to be told of them: then none was added.
    pub fn add(&self, specs: &[BearerSpec]) -> Result<Vec<Result<BearerId, String>>, ChangeError> {
        let wanted: Vec<_> = specs.iter().map(|spec| (None, spec)).collect();
        let put = self.put(&wanted, 0)?.into_iter();
        let added = put.map(|put| put.map(|put| put.id).map_err(|error| error.to_string()));
        Ok(added.collect())
    }

    /// Has bearers be so that have a number, with so many end markers to where their tunnels led until now, and adds those that have none;
    /// one after another, and each if it can be.
    ///
    /// # Errors
    /// When they cannot be kept, or workers have no room to be told of them: then nothing has changed.
    pub fn put(
        &self,
        wanted: &[(Option<BearerId>, &BearerSpec)],
        markers: u32,
    ) -> Result<Vec<Result<Put, ChangeError>>, ChangeError> {
        let done = {
            // Workers are told in the order of changes: whoever has the way has the registry next.
            let mut way = self.way_for(wanted.len())?;
            let mut registry = self.registry();
            let done = registry.put(wanted)?;
            let (mut added, mut changed) = (Vec::new(), Vec::new());
            for (put, (_, spec)) in done.iter().zip(wanted) {
                match put {
                    Ok(Put { id, before: None }) => added.push((*id, spec.bearer())),
                    Ok(Put {
                        id,
                        before: Some(before),
                    }) => changed.push((*id, Box::new((before.clone(), spec.bearer())))),
                    Err(_) => {}
                }
            }
            self.tell_all(&added, Command::Know);
            for piece in changed.chunks(PIECE) {
                for worker in &self.workers {
                    worker.tell(Command::Change(piece.to_vec()));
                }
            }
            let added = by_shard(added, |(id, _)| *id).into_iter();
            way.send(added.map(|(shard, bearers)| (shard, Errand::Put(bearers))));
            let changed = by_shard(changed, |(id, _)| *id).into_iter();
            way.send(changed.map(|(shard, changed)| (shard, Errand::Change(changed, markers))));
            done
        };
        // Peers that are told of their tunnels may send at once: workers have them by then, and know whose each user is.
        self.usage(done.iter().flatten().map(|put| put.id));
        self.wait_for_all();
        Ok(done)
    }

    /// Has a bearer be otherwise, and sends so many end markers to where its tunnels led until now.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn change(
        &self,
        id: BearerId,
        spec: &BearerSpec,
        markers: u32,
    ) -> Result<BearerReport, ChangeError> {
        let put = self.put(&[(Some(id), spec)], markers)?.pop();
        put.ok_or(ChangeError::Unknown)??;
        self.bearer(id).ok_or(ChangeError::Unknown)
    }

    /// Adds a user equipment, with what limits all its bearers together.
    ///
    /// # Errors
    /// When there are too many, or it cannot be kept.
    pub fn add_ue(&self, spec: UeSpec) -> Result<UeReport, ChangeError> {
        let mut registry = self.registry();
        let ue = registry.add_ue(spec)?;
        self.tell_of_ue(ue, Some(spec));
        Ok(UeReport {
            ue,
            spec,
            bearers: 0,
        })
    }

    /// Has one be limited otherwise.
    ///
    /// # Errors
    /// When there is none, or it cannot be kept.
    pub fn change_ue(&self, ue: u32, spec: UeSpec) -> Result<UeReport, ChangeError> {
        let mut registry = self.registry();
        registry.change_ue(ue, spec)?;
        self.tell_of_ue(ue, Some(spec));
        let (spec, bearers) = registry.ue(ue).ok_or(ChangeError::Unknown)?;
        Ok(UeReport { ue, spec, bearers })
    }

    /// Takes one away, which no bearer is of.
    ///
    /// # Errors
    /// When there is none, or it cannot be away.
    pub fn remove_ue(&self, ue: u32) -> Result<UeReport, ChangeError> {
        let mut registry = self.registry();
        let spec = registry.remove_ue(ue)?;
        self.tell_of_ue(ue, None);
        Ok(UeReport {
            ue,
            spec,
            bearers: 0,
        })
    }

    /// Workers are told while the registry is held: in the order of changes.
    fn tell_of_ue(&self, ue: u32, spec: Option<UeSpec>) {
        for worker in &self.workers {
            let limits = spec.map(|spec| spec.limits());
            worker.tell(Command::Ue(MeterId(ue), limits));
        }
    }

    /// A user equipment.
    #[must_use]
    pub fn ue(&self, ue: u32) -> Option<UeReport> {
        let (spec, bearers) = self.registry().ue(ue)?;
        Some(UeReport { ue, spec, bearers })
    }

    /// Those whose numbers are from `from` on, at most so many.
    #[must_use]
    pub fn ues(&self, from: u32, most: usize) -> UeList {
        let registry = self.registry();
        let all = registry.ues().skip_while(|(ue, ..)| *ue < from);
        let mut all = all.map(|(ue, spec, bearers)| UeReport { ue, spec, bearers });
        let ues = all.by_ref().take(most).collect();
        let next = all.next().map(|next| next.ue);
        UeList { ues, next }
    }

    /// Takes bearers away; returns those that there were, with what passed by them.
    ///
    /// # Errors
    /// When that cannot be kept, or workers have no room to be told of it: none is away then.
    pub fn remove(&self, ids: &[BearerId]) -> Result<Vec<BearerReport>, ChangeError> {
        let (answer, answers) = channel();
        let (gone, pieces) = {
            let mut way = self.way_for(ids.len())?;
            let mut registry = self.registry();
            let gone = registry.remove(ids)?;
            self.tell_all(&gone, Command::Forget);
            let shards = by_shard(gone.iter().map(|(id, _)| *id), |id| *id);
            let pieces = shards.len();
            let remove = |(shard, ids)| (shard, Errand::Remove(ids, answer.clone()));
            way.send(shards.into_iter().map(remove));
            (gone, pieces)
        };
        drop(answer);
        Ok(with_usage(gone, gather(&answers, pieces)))
    }

    /// Tells all workers of bearers, some at a time.
    fn tell_all(
        &self,
        bearers: &[(BearerId, Bearer)],
        of: impl Fn(Vec<(BearerId, Bearer)>) -> Command,
    ) {
        // One worker knows what it has.
        if self.workers.len() == 1 {
            return;
        }
        for piece in bearers.chunks(PIECE) {
            for worker in &self.workers {
                worker.tell(of(piece.to_vec()));
            }
        }
    }

    /// Waits until all workers know what they were told of.
    fn wait_for_all(&self) {
        // One worker does all in the order of events.
        if self.workers.len() == 1 {
            return;
        }
        let (answer, answers) = channel();
        for worker in &self.workers {
            worker.tell(Command::Done(answer.clone()));
        }
        drop(answer);
        gather(&answers, self.workers.len());
    }

    /// Has things be done at bearers, by whoever has their shards, in the order of these calls: there is room for so many.
    fn way_for(&self, errands: usize) -> Result<MutexGuard<'_, Way>, ChangeError> {
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        way.reserve(errands).map_err(|Busy| ChangeError::Busy)?;
        Ok(way)
    }

    /// A bearer, with what passed by it.
    #[must_use]
    pub fn bearer(&self, id: BearerId) -> Option<BearerReport> {
        let bearer = self.registry().get(id)?;
        self.reports(vec![(id, bearer)]).pop()
    }

    /// Bearers whose places are from `place` on, at most so many.
    #[must_use]
    pub fn bearers(&self, place: usize, most: usize) -> BearerList {
        let mut page = self.registry().page(place, most.saturating_add(1));
        let is_all = page.len() <= most;
        page.truncate(most);
        // A place has 22 bits.
        let last = page.last().map(|(id, _)| id.slot() as u32 + 1);
        BearerList {
            bearers: self.reports(page),
            next: last.filter(|_| !is_all),
        }
    }

    fn reports(&self, bearers: Vec<(BearerId, Bearer)>) -> Vec<BearerReport> {
        let usage = self.usage(bearers.iter().map(|(id, _)| *id));
        with_usage(bearers, usage)
    }

    /// What passed by bearers, by all that was done at them until now.
    fn usage(&self, ids: impl Iterator<Item = BearerId>) -> Vec<Vec<(BearerId, Passed)>> {
        let (answer, answers) = channel();
        let shards = by_shard(ids, |id| *id);
        let pieces = shards.len();
        let ask = |(shard, ids)| (shard, Errand::Usage(ids, answer.clone()));
        // Whoever only asks is not answered where there is no room.
        if let Ok(mut way) = self.way_for(pieces) {
            way.send(shards.into_iter().map(ask));
        }
        drop(answer);
        gather(&answers, pieces)
    }

    /// Sees to it that what was written survives the machine as well, and that workers learn what they had no room for.
    ///
    /// # Errors
    /// When the store cannot be synchronised.
    pub fn sync(&self) -> Result<(), StoreError> {
        // Whoever has it does the same.
        if let Ok(mut way) = self.way.try_lock() {
            way.flush();
        }
        self.registry().sync()
    }

    /// Ends the workers: no packet passes any more.
    pub fn stop(&self) {
        self.events.end();
        for worker in &self.workers {
            worker.tell(Command::Stop);
        }
        for worker in &self.workers {
            let thread = worker.thread.lock();
            let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
            if let Some(thread) = thread {
                // It panicked, and said so.
                let _ = thread.join();
            }
        }
        self.errands.end();
    }
}

/// Bearers with what passed by them, as workers say it.
fn with_usage(
    bearers: Vec<(BearerId, Bearer)>,
    answers: Vec<Vec<(BearerId, Passed)>>,
) -> Vec<BearerReport> {
    let passed: std::collections::HashMap<_, _> = answers.into_iter().flatten().collect();
    let bearers = bearers.into_iter();
    let report =
        bearers.map(|(id, bearer)| BearerReport::new(id, &bearer, passed.get(&id).copied()));
    report.collect()
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}
