//! Forks, execs, exits, passed descriptors, stopped processes.

use super::Generator;
use super::model::{EndId, Thing};
use crate::board::PROCESSES;
use crate::plan::{Call, ExitBy, Process, Step};
use crate::sys::{ExecBy, SpawnBy};

/// After so many steps, most connections have come to the ring.
const MANY_STEPS: usize = 100;

impl Generator {
    pub(super) fn fork(&mut self) -> bool {
        let running = self.model.running();
        match self.random.pick_any(&running) {
            Some(at) => self.fork_of(at),
            None => false,
        }
    }

    /// A process forks, if there is room for one more; the child has the next number.
    pub(super) fn fork_of(&mut self, at: Process) -> bool {
        if self.model.processes.len() + 2 > PROCESSES || !self.room() {
            return false;
        }
        if self.midway && self.steps.len() < MANY_STEPS && self.random.chance(70) {
            // A connection that two processes have does not come to the ring.
            return false;
        }
        let child = self.model.processes.len() as Process;
        self.steps.push(Step::Fork { at, child });
        let mut model = self.model.processes[usize::from(at)].clone();
        model.threads.clear();
        model.parent = Some(at);
        self.model.processes.push(model);
        true
    }

    /// A process that has no thread in a call.
    fn idle_process(&mut self) -> Option<Process> {
        let running = self.model.running();
        let idle: Vec<Process> = running
            .into_iter()
            .filter(|at| self.model.processes[usize::from(*at)].threads.is_empty())
            .collect();
        self.random.pick_any(&idle)
    }

    pub(super) fn exec(&mut self) -> bool {
        self.exec_as(false)
    }

    /// An exec of a program that has no preloaded library.
    pub(super) fn exec_stranger(&mut self) -> bool {
        self.exec_as(true)
    }

    fn exec_as(&mut self, stranger: bool) -> bool {
        let Some(at) = self.idle_process() else {
            return false;
        };
        let by = self.random.pick(&[
            ExecBy::Execv,
            ExecBy::Execve,
            ExecBy::Execvp,
            ExecBy::Execl,
            ExecBy::Fexecve,
        ]);
        self.steps.push(Step::Exec { at, by, stranger });
        let slots = &self.model.processes[usize::from(at)].slots;
        let lost: Vec<u8> = slots
            .iter()
            .filter(|(_, (_, cloexec))| *cloexec)
            .map(|(slot, _)| *slot)
            .collect();
        self.lose(at, &lost);
        true
    }

    /// Closes slots at once, and only then looks at what that did.
    fn lose(&mut self, at: Process, slots: &[u8]) {
        let mut ended: Vec<EndId> = slots
            .iter()
            .filter_map(|slot| self.model.drop_slot(at, *slot))
            .collect();
        ended.dedup_by_key(|id| id.conn);
        for id in ended {
            self.settle_states(id.conn);
        }
    }

    /// A process ends, with whatever it holds; not the last one.
    pub(super) fn exit(&mut self) -> bool {
        let Some(at) = self.idle_process() else {
            return false;
        };
        // Mostly a process that holds nothing alone: else most sequences would end here.
        let ends: Vec<EndId> = self
            .model
            .held_ends()
            .into_iter()
            .filter(|id| {
                self.model
                    .holders(*id)
                    .iter()
                    .all(|(holder, _)| *holder == at)
            })
            .collect();
        if self.model.running().len() < 2 || (!ends.is_empty() && self.random.chance(85)) {
            return false;
        }
        self.end_process(at);
        true
    }

    /// A process that has no thread in a call ends, in any way.
    pub(super) fn end_process(&mut self, at: Process) {
        let by = self
            .random
            .pick(&[ExitBy::Exit, ExitBy::ExitNow, ExitBy::Kill]);
        self.steps.push(Step::Exit { at, by });
        let slots: Vec<u8> = self.model.processes[usize::from(at)]
            .slots
            .keys()
            .copied()
            .collect();
        self.model.processes[usize::from(at)].alive = false;
        self.lose(at, &slots);
        let parent = self.model.processes[usize::from(at)].parent;
        if let Some(parent) = parent
            && self.model.running().contains(&parent)
        {
            self.call(parent, Call::Reap { child: at });
        }
    }

    /// Passes an end to another process, or to itself; the giver mostly closes it.
    pub(super) fn pass(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        if !self.room() {
            return false;
        }
        let running = self.model.running();
        let to = self.random.pick(&running);
        self.call(at, Call::PassTo { slot, to });
        self.model.end_mut(id).in_flight += 1;
        if self.random.chance(60) {
            self.close_slot(at, slot);
        }
        if self.random.chance(40) && self.model.flows(id.peer()) {
            let bytes = self.message_size(id.peer());
            if let Some((sender, far)) = self.holder(id.peer()) {
                self.send_from(id.peer(), sender, far, bytes);
            }
        }
        let taken = self.new_slot();
        let cloexec = self.random.chance(20);
        self.call(
            to,
            Call::Take {
                slot: taken,
                cloexec,
            },
        );
        self.model.end_mut(id).in_flight -= 1;
        self.model.open(to, taken, Thing::End(id), cloexec);
        true
    }

    /// Starts a program that inherits what is not close-on-exec, and ends at once.
    pub(super) fn spawn(&mut self) -> bool {
        let running = self.model.running();
        let Some(at) = self.random.pick_any(&running) else {
            return false;
        };
        let by = self.random.pick(&[
            SpawnBy::PosixSpawn,
            SpawnBy::PosixSpawnp,
            SpawnBy::Vfork,
            SpawnBy::Fork,
            SpawnBy::System,
            SpawnBy::Popen,
        ]);
        self.call(at, Call::Spawn { by });
        true
    }

    /// The reader is stopped while the other end sends to it and looks at its own end.
    pub(super) fn stop(&mut self) -> bool {
        let senders = self.model.senders();
        let Some(from) = self.random.pick_any(&senders) else {
            return false;
        };
        let (Some((writer, slot)), Some((reader, _))) =
            (self.holder(from), self.holder(from.peer()))
        else {
            return false;
        };
        if writer == reader || !self.model.processes[usize::from(reader)].threads.is_empty() {
            return false;
        }
        self.steps.push(Step::Stop { at: reader });
        let bytes = self.message_size(from);
        self.send_from(from, writer, slot, bytes);
        let by = self.any_poll();
        self.poll_once(writer, by, slot, libc::POLLOUT, 0);
        self.steps.push(Step::Continue { at: reader });
        true
    }
}
