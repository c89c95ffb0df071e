//! How workers are told what to do, and what is still to be answered.
//!
//! A worker can be held up for longer than anybody waits: the one that has files by a file system. What it was told it does when it goes
//! on, in order. Until then all others go by what there is now, and nothing that it may still take for another port has that port's number.

use super::*;

/// A number that a port had. It is another one's when all this is answered: everybody goes by a plan without the port, and its worker has
/// given it up.
pub(super) struct Leaving {
    pub(super) number: u16,
    answers: Answers,
}

/// What was not answered yet, by worker.
type Answers = Vec<(usize, Receiver<()>)>;

impl Switch {
    /// Tells a worker to do something; it answers when that is done.
    fn order<T>(
        &mut self,
        worker: usize,
        command: impl FnOnce(Sender<T>) -> Command,
    ) -> Receiver<T> {
        let (to, answer): (Sender<T>, Receiver<T>) = channel();
        let handle = &mut self.workers[worker];
        match &mut handle.inline {
            Some(worker) => worker.handle(command(to)),
            None => {
                let _ = handle.commands.send(command(to));
                handle.bell.ring();
            }
        }
        answer
    }

    /// Has a worker do something, and waits until it is done.
    pub(super) fn asked<T>(
        &mut self,
        worker: usize,
        command: impl FnOnce(Sender<T>) -> Command,
    ) -> Result<T, String> {
        let answer = self.order(worker, command);
        let answer = answer.recv_timeout(self.patience);
        answer.map_err(|_| silent(worker))
    }

    /// Waits for several, no longer than for one. What is left is not answered.
    fn wait(&self, answers: &mut Answers) -> Result<(), String> {
        let until = Instant::now() + self.patience;
        answers.retain(|(_, answer)| {
            let left = until.saturating_duration_since(Instant::now());
            answer.recv_timeout(left).is_err()
        });
        let first = answers.first();
        first.map_or(Ok(()), |(worker, _)| Err(silent(*worker)))
    }

    /// Gives a port to its worker, which has it before anybody sends to it.
    pub(super) fn give(
        &mut self,
        number: u16,
        worker: usize,
        command: impl FnOnce(u16, Sender<()>) -> Command,
    ) -> Result<(), String> {
        let given = self.asked(worker, |done| command(number, done));
        if given.is_err() {
            let answer = self.order(worker, |done| Command::Remove(number, done));
            self.leave(number, vec![(worker, answer)]);
        }
        given
    }

    /// Takes a port, whose record is gone, from its worker when nobody sends to it any more; or when that takes too long.
    pub(super) fn take_back(&mut self, number: u16, worker: usize) -> Result<(), String> {
        let mut answers = self.order_plan();
        let published = self.wait(&mut answers);
        let answer = self.order(worker, |done| Command::Remove(number, done));
        answers.push((worker, answer));
        let outcome = published.and_then(|()| self.wait(&mut answers));
        self.leave(number, answers);
        outcome
    }

    /// The same after it was added in vain: whoever has waited once does not wait again.
    pub(super) fn withdraw(&mut self, number: u16, worker: usize) {
        let mut answers = self.order_plan();
        let answer = self.order(worker, |done| Command::Remove(number, done));
        answers.push((worker, answer));
        self.leave(number, answers);
    }

    fn leave(&mut self, number: u16, answers: Answers) {
        if !answers.is_empty() {
            self.leaving.push(Leaving { number, answers });
        }
    }

    /// Has numbers free whose last answer has come, or never will: of a worker that has ended nothing is left.
    pub(super) fn free_left(&mut self) {
        self.leaving.retain_mut(|one| {
            let answers = &mut one.answers;
            answers.retain(|(_, answer)| answer.try_recv() == Err(TryRecvError::Empty));
            !answers.is_empty()
        });
    }

    /// Has all workers go by what is there now, also those behind one that does not answer.
    pub(super) fn publish(&mut self) -> Result<(), String> {
        let mut answers = self.order_plan();
        self.wait(&mut answers)
    }

    /// The same without waiting.
    pub(super) fn order_plan(&mut self) -> Answers {
        let plan = Arc::new(self.plan());
        let workers = 0..self.workers.len();
        let answers = workers.map(|worker| {
            let plan = plan.clone();
            (worker, self.order(worker, |done| Command::Plan(plan, done)))
        });
        answers.collect()
    }

    /// What workers are to go by.
    fn plan(&self) -> Plan {
        let mut ports: Vec<Option<PortPlan>> = self
            .ports
            .iter()
            .map(|record| record.as_ref().map(|record| record.plan.clone()))
            .collect();
        for mirror in &self.mirrors {
            let place = usize::from(mirror.to);
            if ports.len() <= place {
                ports.resize(place + 1, None);
            }
            ports[place] = Some(mirror.plan.clone());
        }
        let flows = self.flows.iter();
        let flows = flows.map(|record| record.as_ref().map(|record| record.plan.clone()));
        let mirrors = self.mirrors.iter().map(|mirror| MirrorPlan {
            to: mirror.to,
            ports: (!mirror.config.ports.is_empty()).then(|| {
                let names = mirror.config.ports.iter();
                names
                    .filter_map(|name| self.port_number(name).ok())
                    .collect()
            }),
            enters: mirror.config.direction != Direction::Out,
            leaves: mirror.config.direction != Direction::In,
        });
        Plan::new(ports, flows.collect(), mirrors.collect(), self.limits)
    }
}

fn silent(worker: usize) -> String {
    format!("worker {worker} does not answer: start the switch again")
}
