//! What a function that runs says of itself: its state, events, paths, and bearers' frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use millrace_port::{Counters, State};

use super::{Running, gather};
use crate::bearer::{BEARERS_MAX, BearerId};
use crate::link::LinkCounts;
use crate::observed::{EventCounts, EventList, HeldReport, PathCounts, PathList, PathReport};
use crate::report::{
    CountReport, NeighbourReport, PortReport, StageReport, StatusReport, WorkerReport, add_drops,
};
use crate::told::Crowded;
use crate::trace::{self, Capture, Wish};
use crate::worker::{Command, Report};

/// Traces at a time: each takes a megabyte for each worker.
const TRACES_MAX: usize = 4;

/// A trace, as long as somebody looks.
#[derive(Debug)]
pub(crate) struct Looking {
    capture: Capture,
    traces: Arc<AtomicUsize>,
}

impl Iterator for Looking {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        self.capture.next()
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.traces.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Running {
    fn asked(&self) -> Vec<Report> {
        let (answer, answers) = channel();
        for worker in &self.workers {
            worker.tell(Command::Report(answer.clone()));
        }
        drop(answer);
        let mut reports = gather(&answers, self.workers.len());
        reports.sort_by_key(|report| report.worker);
        reports
    }

    /// Workers that are not among those that have answered.
    fn unanswered(&self, answered: impl Iterator<Item = usize> + Clone) -> Vec<usize> {
        let all = 0..self.workers.len();
        all.filter(|worker| !answered.clone().any(|one| one == *worker))
            .collect()
    }

    /// Stations that workers know.
    ///
    /// # Errors
    /// Which workers have not answered in time.
    pub fn neighbours(&self) -> Result<Vec<NeighbourReport>, Vec<usize>> {
        let reports = self.asked();
        let unanswered = self.unanswered(reports.iter().map(|report| report.worker));
        if !unanswered.is_empty() {
            return Err(unanswered);
        }
        let reports = reports.into_iter();
        Ok(reports.flat_map(|report| report.neighbours).collect())
    }

    /// Its ports, of which each was counted by its worker, and what came by it by all.
    fn ports_of(&self, reports: &[Report]) -> Vec<PortReport> {
        let mut ports = Vec::new();
        for (number, (port, owner)) in self.ports.iter().enumerate() {
            let mut port = port.clone();
            port.worker = *owner;
            let (mut counters, mut link) = (Counters::default(), LinkCounts::default());
            for report in reports {
                link.add(&report.counts[number]);
                let own = report.ports.iter();
                for (_, counted, state) in own.filter(|(own, ..)| usize::from(*own) == number) {
                    counters.add(counted);
                    // Of several workers' queues those are told of that are not as they should be.
                    if port.state.is_empty() || port.state == State::Connected.to_string() {
                        port.state.clone_from(state);
                    }
                }
            }
            port.counters = CountReport::new(&counters, &link);
            ports.push(port);
        }
        ports
    }

    /// What it is, does and counts.
    #[must_use]
    pub fn status(&self) -> StatusReport {
        let mut reports = self.asked();
        let ports = self.ports_of(&reports);
        let mut drops = [Vec::new(), Vec::new()];
        for report in &mut reports {
            let more = std::mem::take(&mut report.drops);
            for (to, more) in drops.iter_mut().zip(more) {
                add_drops(to, more);
            }
        }
        let [core_drops, radio_drops] = drops;
        let (mut paths, mut held) = (PathCounts::default(), HeldReport::default());
        for report in &reports {
            paths.add(report.paths);
            held.add(report.held);
        }
        let (told, gone) = self.events.counts();
        let figures = self.control.snapshot();
        let workers = self.workers.iter().enumerate().map(|(number, worker)| {
            let report = reports.iter().find(|report| report.worker == number);
            let work = report.map(|report| report.work).unwrap_or_default();
            WorkerReport {
                processor: worker.processor,
                turns: work.turns,
                busy_turns: work.busy_turns,
                sleeps: work.sleeps,
                processor_ns: work.processor_ns,
                load: figures.workers[number].load,
                is_active: figures.workers[number].is_active,
                shards: work.shards,
                shards_given: work.given,
                shards_taken: work.taken,
                handed_over: work.handed_over,
            }
        });
        let stages = figures.stages.iter().map(|stage| StageReport {
            name: stage.name.clone(),
            events: stage.work.events,
            batches: stage.work.batches,
            cost_ns: stage.work.cost_ns,
            waiting: stage.work.waiting,
            waiting_max: stage.work.waiting_max,
        });
        let store = self.config.store.as_ref();
        StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ns: u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            bearers: self.count() as u64,
            bearers_max: BEARERS_MAX as u64,
            store: store.map(|path| path.display().to_string()),
            ports,
            core_drops,
            radio_drops,
            lost_tunnels: reports.iter().map(|report| report.lost).sum(),
            echo_responses: reports.iter().map(|report| report.alive).sum(),
            unsent: reports.iter().map(|report| report.overflows.1).sum(),
            paths,
            held,
            events: EventCounts {
                told,
                gone,
                lost: reports.iter().map(|report| report.overflows.0).sum(),
            },
            workers: workers.collect(),
            unanswered: self.unanswered(reports.iter().map(|report| report.worker)),
            stages: stages.collect(),
        }
    }

    /// The scheduler's stages as a picture (SVG), with what passed between them in so much time, or since the function began.
    pub(crate) fn graph(&self, time: Option<Duration>) -> String {
        let Some(time) = time else {
            return self.control.snapshot().svg();
        };
        let earlier = self.control.snapshot();
        thread::sleep(time);
        self.control.snapshot().since(&earlier).svg()
    }

    /// Events from a number on, or from the oldest that is kept, at most so many. Where there is none yet it is waited for, so long.
    pub(crate) fn events(
        &self,
        from: Option<u64>,
        most: usize,
        wait: Duration,
    ) -> Result<EventList, Crowded> {
        self.events.read(from, most, wait)
    }

    /// Paths from a place on, at most so many.
    #[must_use]
    pub fn paths(&self, place: u64, most: usize) -> PathList {
        let workers = self.workers.len() as u64;
        let (answer, answers) = channel();
        for worker in &self.workers {
            // Those of all workers take turns, each with its own numbers.
            let from = usize::try_from(place / workers).unwrap_or(usize::MAX);
            worker.tell(Command::Paths(from, most.saturating_add(1), answer.clone()));
        }
        drop(answer);
        let found = gather(&answers, self.workers.len());
        let unanswered = self.unanswered(found.iter().map(|(worker, _)| *worker));
        let found = found.into_iter();
        let found = found.flat_map(|(worker, paths)| {
            paths
                .into_iter()
                .map(move |(number, path)| (number, worker, path))
        });
        let places = found.map(|(number, worker, path)| {
            let place = number as u64 * workers + worker as u64;
            (place, PathReport::new(worker, &path))
        });
        let mut paths: Vec<(u64, PathReport)> = places.filter(|(own, _)| *own >= place).collect();
        paths.sort_by_key(|(place, _)| *place);
        let is_all = paths.len() <= most;
        paths.truncate(most);
        let last = paths.last().map(|(place, _)| place + 1);
        PathList {
            next: last.filter(|_| !is_all),
            paths: paths.into_iter().map(|(_, path)| path).collect(),
            unanswered,
        }
    }

    /// Begins to show a bearer's frames, so many, and for so long. None: there is no such bearer.
    ///
    /// # Errors
    /// When as many look as may.
    pub(crate) fn trace(
        &self,
        id: BearerId,
        count: u64,
        time: Duration,
    ) -> Option<Result<Looking, Crowded>> {
        // Whoever changes it waits, and tells workers after this.
        let registry = self.registry();
        let bearer = registry.get(id)?;
        if self.traces.fetch_add(1, Ordering::Relaxed) >= TRACES_MAX {
            self.traces.fetch_sub(1, Ordering::Relaxed);
            return Some(Err(Crowded));
        }
        let interfaces = self.config.port.iter().map(|port| port.interface());
        let wish = Wish {
            id,
            bearer: &bearer,
            ports: interfaces.map(|one| (one.name, one.side)).collect(),
            count,
            time,
        };
        let bells = self.workers.iter().map(|worker| worker.bell.clone());
        let (capture, taps) = trace::begin(&wish, bells.collect());
        for (worker, tap) in self.workers.iter().zip(taps) {
            worker.tell(Command::Trace(Box::new(tap)));
        }
        Some(Ok(Looking {
            capture,
            traces: self.traces.clone(),
        }))
    }
}
