//! Threads for workers: each turns as long as there is something to do, looks around for a while, and sleeps.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::worker::Worker;

/// Batches of a turn: then others get what is theirs.
const BATCHES: usize = 8;
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
    /// # Errors
    /// When the kernel has no more threads; those that were started are ended.
    pub fn start(
        workers: Vec<Worker>,
        patience: Duration,
        on_start: impl Fn(usize) + Send + Sync + 'static,
    ) -> io::Result<Running> {
        let is_over = Arc::new(AtomicBool::new(false));
        let on_start = Arc::new(on_start);
        let mut running = Running {
            threads: Vec::with_capacity(workers.len()),
            is_over: is_over.clone(),
        };
        for worker in workers {
            let (is_over, on_start) = (is_over.clone(), on_start.clone());
            let name = format!("worker-{}", worker.index());
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                on_start(worker.index());
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

    /// Ends them, and returns the workers as they are: what is in the graph stays in it. A worker whose handler panicked is missing.
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
    worker.own_bed();
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
    fn own_bed(&self) {
        self.bed().own();
    }

    fn sleep(&self, is_over: &AtomicBool) {
        self.be_unloaded();
        self.bed().lie_down();
        if self.is_idle() && !is_over.load(Ordering::Acquire) {
            std::thread::park();
        }
        self.bed().get_up();
    }
}
