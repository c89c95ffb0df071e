//! Threads for workers: each turns as long as there is something to do, looks around for a while, and sleeps.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::calibration;
use crate::placement::pin;
use crate::told::Told;
use crate::worker::Worker;

/// Batches of a turn: then others get what is theirs.
const BATCHES: usize = 16;
/// Turns without anything to do between two looks at the clock.
const LOOKS: u32 = 64;

/// Workers that run.
#[derive(Debug)]
pub struct Running {
    threads: Vec<JoinHandle<Worker>>,
    is_over: Arc<AtomicBool>,
}

impl Running {
    /// Starts a thread for each. Who has had nothing to do for `patience` sleeps until something comes; `on_start` is called in each thread
    /// first, with the worker's number: to pin it, say.
    ///
    /// The first two workers begin by measuring what it costs to hand events over, which takes some microseconds, and two milliseconds at
    /// most.
    ///
    /// # Errors
    /// When the kernel has no more threads; those that were started are ended.
    pub fn start(
        workers: Vec<Worker>,
        patience: Duration,
        on_start: impl Fn(usize) + Send + Sync + 'static,
    ) -> io::Result<Running> {
        let on_start = move |worker: &Worker| on_start(worker.index());
        Running::start_each(workers, patience, on_start)
    }

    /// The same, each worker on a processor of its own, as far as there are any: see [`crate::placement::Machine::choose`]. Those that are
    /// none, or that this program may not use, leave their worker where the kernel puts it, and [`crate::Snapshot`] shows it.
    ///
    /// # Errors
    /// As [`Running::start`].
    pub fn start_on(
        workers: Vec<Worker>,
        patience: Duration,
        processors: &[usize],
    ) -> io::Result<Running> {
        let processors = processors.to_vec();
        let on_start = move |worker: &Worker| {
            let processor = processors.get(worker.index());
            let pinned = processor.filter(|processor| pin(**processor).is_ok());
            let shown = pinned.map_or(0, |processor| *processor as u64 + 1);
            worker.seen().processor.set(shown);
        };
        Running::start_each(workers, patience, on_start)
    }

    fn start_each(
        workers: Vec<Worker>,
        patience: Duration,
        on_start: impl Fn(&Worker) + Send + Sync + 'static,
    ) -> io::Result<Running> {
        let is_over = Arc::new(AtomicBool::new(false));
        let on_start = Arc::new(on_start);
        let mut running = Running {
            threads: Vec::with_capacity(workers.len()),
            is_over: is_over.clone(),
        };
        let is_measured = workers.len() > 1;
        let mut sides = calibration::sides().into_iter();
        for worker in workers {
            let side = sides.next().filter(|_| is_measured);
            let (is_over, on_start) = (is_over.clone(), on_start.clone());
            let name = format!("worker-{}", worker.index());
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                on_start(&worker);
                if let Some(side) = side {
                    side.measure(worker.shared());
                }
                work(worker, patience, &is_over)
            });
            match thread {
                Ok(thread) => running.threads.push(thread),
                Err(error) => {
                    running.stop();
                    return Err(error);
                }
            }
        }
        Ok(running)
    }

    /// Ends them, and returns the workers as they are: what is in the graph stays in it.
    pub fn stop(self) -> Vec<Worker> {
        // Release: pairs with the acquire in `work`.
        self.is_over.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        let join = |thread: JoinHandle<Worker>| thread.join().ok();
        self.threads.into_iter().filter_map(join).collect()
    }
}

fn work(mut worker: Worker, patience: Duration, is_over: &AtomicBool) -> Worker {
    worker.bed().own();
    let mut idle = 0;
    let mut since = None;
    while !is_over.load(Ordering::Acquire) {
        if worker.turn(BATCHES) > 0 || !worker.is_idle() {
            (idle, since) = (0, None);
            continue;
        }
        idle += 1;
        std::hint::spin_loop();
        if idle % LOOKS != 0 {
            continue;
        }
        let now = Instant::now();
        if now.duration_since(*since.get_or_insert(now)) >= patience {
            worker.sleep(is_over);
            (idle, since) = (0, None);
        }
    }
    worker
}

impl Worker {
    /// What wakes the thread that runs this worker, when it has lain down: an eventfd, say. It is called by whoever sends something, and is
    /// short, and does not panic. For a thread of one's own; [`Running`] has its threads park.
    ///
    /// Such a thread has turns ([`Worker::turn`]) until [`Worker::is_idle`]. Then it lies down, and asks once more: what was sent before
    /// wakes nobody. If that is so still, it waits until it is woken, or [`Worker::next_timer_ns`] has come; in any case it gets up.
    pub fn wake_with(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.bed().wake_with(wake);
    }

    /// From here on whoever sends something to this worker wakes it, once: see [`Worker::wake_with`].
    pub fn lie_down(&self) {
        self.show();
        self.told().fall_asleep(self.now_ns());
        self.bed().lie_down();
    }

    /// From here on nobody wakes it. The time since [`Worker::lie_down`] is counted as sleep.
    pub fn get_up(&self) {
        self.bed().get_up();
        if let Some(slept_ns) = self.told().awake(self.now_ns()) {
            let seen = self.seen();
            seen.parks.add(1);
            seen.parked_ns.add(slept_ns);
        }
    }

    fn told(&self) -> &Told {
        &self.shared().loads[self.index()].0
    }

    fn sleep(&self, is_over: &AtomicBool) {
        self.lie_down();
        if self.is_idle() && !is_over.load(Ordering::Acquire) {
            match self.next_timer_ns() {
                Some(due) => {
                    let left = due.saturating_sub(self.now_ns());
                    std::thread::park_timeout(Duration::from_nanos(left));
                }
                None => std::thread::park(),
            }
        }
        self.get_up();
    }
}
