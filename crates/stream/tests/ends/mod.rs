//! Two ends over a real segment, whose kernel is a queue. What they do is what `crates/preload/src/{send,receive}.rs` do,
//! without system calls; seeded chaos chooses among what a program might ask for.

mod sys;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use millrace_shm::board::Row;
use millrace_shm::segment::Segment;
use millrace_shm::sys::thread_id;
use millrace_stream::{Chaos, ReceiveHalf, ReceivePlan, SendHalf, SendPlan};

/// Bytes that the kernel's queue holds.
const QUEUE_BYTES: usize = 16_000;
/// Looks at a full or an empty ring before the kernel is taken.
const LOOKS: u32 = 20;
/// Who sleeps so long has been forgotten: the test fails instead of hanging.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// The kernel's side of one direction.
#[derive(Default)]
pub(crate) struct Kernel {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    bytes: VecDeque<u8>,
    /// Bytes taken so far.
    taken: u64,
    ended: bool,
}

impl Kernel {
    fn wait_until(&self, ready: impl Fn(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        let queue = self.queue.lock().unwrap();
        let waiting = |queue: &mut Queue| !ready(queue);
        let (queue, waited) = self
            .changed
            .wait_timeout_while(queue, FORGOTTEN, waiting)
            .unwrap();
        assert!(!waited.timed_out(), "asleep in the kernel for good");
        queue
    }

    /// Puts in a part of `bytes`, when there is room.
    fn send(&self, bytes: &[u8], chaos: &Chaos) -> usize {
        let mut queue = self.wait_until(|queue| queue.bytes.len() < QUEUE_BYTES);
        let room = bytes.len().min(QUEUE_BYTES - queue.bytes.len());
        let count = chaos.cut(room as u32) as usize;
        queue.bytes.extend(&bytes[..count]);
        self.changed.notify_all();
        count
    }

    fn end(&self) {
        self.queue.lock().unwrap().ended = true;
        self.changed.notify_all();
    }

    /// Sleeps until there is something to read, or the end.
    fn wait_readable(&self) -> MutexGuard<'_, Queue> {
        self.wait_until(|queue| queue.ended || !queue.bytes.is_empty())
    }

    /// Whether there is something, as a peek says: bytes, or the end.
    fn peek(&self) -> (bool, bool) {
        let queue = self.queue.lock().unwrap();
        (!queue.bytes.is_empty(), queue.ended)
    }

    /// Takes up to `target.len()` bytes that are there. How many, and the kernel's count before.
    fn take(&self, mut queue: MutexGuard<'_, Queue>, target: &mut [u8]) -> (usize, u64) {
        let count = target.len().min(queue.bytes.len());
        for (byte, taken) in target.iter_mut().zip(queue.bytes.drain(..count)) {
            *byte = taken;
        }
        let before = queue.taken;
        queue.taken += count as u64;
        self.changed.notify_all();
        (count, before)
    }
}

/// One end of one direction: its record, its mapping, and the kernel.
pub(crate) struct End<'a> {
    pub(crate) row: &'a Row,
    pub(crate) segment: &'a Segment,
    pub(crate) kernel: &'a Kernel,
}

enum Sent {
    Some(usize),
    Again,
    ByKernel,
}

/// What was received: so many bytes, the first of which is the stream's `position`-th.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) position: u64,
    pub(crate) bytes: usize,
}

enum Step {
    Got(Received),
    Again,
    End,
    /// Announced: sleep in the kernel and take from it.
    Raw,
    /// Announced: sleep in the kernel, as `poll` does, and come back.
    Poll,
}

impl End<'_> {
    fn send_half(&self) -> SendHalf<'_> {
        SendHalf::new(self.row, self.segment, 0)
    }

    fn receive_half(&self) -> ReceiveHalf<'_> {
        ReceiveHalf::new(self.row, self.segment, 0)
    }

    fn sending<R>(&self, work: impl FnOnce(SendHalf<'_>) -> R) -> R {
        let lock = &self.row.send.lock;
        let held = lock.lock(thread_id());
        let result = work(self.send_half());
        lock.unlock(held);
        result
    }

    fn receiving<R>(&self, work: impl FnOnce(ReceiveHalf<'_>) -> R) -> R {
        let lock = &self.row.receive.lock;
        let held = lock.lock(thread_id());
        let result = work(self.receive_half());
        lock.unlock(held);
        result
    }

    /// Sends all of `bytes`.
    pub(crate) fn send(&self, mut bytes: &[u8], chaos: &Chaos) {
        while !bytes.is_empty() {
            let sent = match self.sending(|half| self.send_step(&half, bytes, chaos)) {
                Sent::Some(sent) => sent,
                Sent::Again => 0,
                Sent::ByKernel => self.send_by_kernel(bytes, chaos),
            };
            bytes = &bytes[sent..];
        }
    }

    fn send_step(&self, half: &SendHalf<'_>, bytes: &[u8], chaos: &Chaos) -> Sent {
        if chaos.strikes(6) {
            half.leave();
        }
        match half.plan(bytes.len()).expect("the peer is honest") {
            SendPlan::Ring {
                gate,
                bytes: count,
                window,
                first,
            } => {
                if first {
                    half.begin_epoch(gate, half.kernel_position());
                }
                let count = chaos.cut(count);
                sys::write(self.segment, gate.tail, window, &bytes[..count as usize]);
                if half.commit(gate, count) {
                    Sent::Some(count as usize)
                } else {
                    Sent::Again
                }
            }
            SendPlan::Full { gate, head, .. } => {
                for _ in 0..LOOKS {
                    std::thread::yield_now();
                    if self.segment.read_head(0) != head {
                        return Sent::Again;
                    }
                }
                half.overflow(gate);
                Sent::Again
            }
            SendPlan::Kernel => {
                half.begin_kernel(bytes.len());
                Sent::ByKernel
            }
        }
    }

    /// The program's own call, which has been announced; unlocked.
    fn send_by_kernel(&self, bytes: &[u8], chaos: &Chaos) -> usize {
        let sent = self.kernel.send(bytes, chaos);
        self.row.send.kernel_position.fetch_add(sent as u64, SeqCst);
        // Release: pairs with the Acquire in `SendHalf::plan`.
        self.row.send.raw.fetch_sub(1, Release);
        sent
    }

    /// Shuts the direction down: what is in the ring comes before the kernel's end.
    pub(crate) fn end(&self) {
        self.sending(|half| {
            half.leave();
            half.announce_end();
        });
        self.kernel.end();
    }

    /// Receives some bytes; None at the end of the stream.
    pub(crate) fn receive(&self, target: &mut [u8], chaos: &Chaos) -> Option<Received> {
        let mut looks = 0;
        loop {
            looks += 1;
            match self.receiving(|half| self.receive_step(&half, target, chaos, looks)) {
                Step::Got(received) => return Some(received),
                Step::End => return None,
                Step::Again => std::thread::yield_now(),
                Step::Raw => return self.end_raw(target, chaos),
                Step::Poll => {
                    drop(self.kernel.wait_readable());
                    self.row.receive.sleepers.fetch_sub(1, Release);
                    self.open(chaos);
                }
            }
        }
    }

    fn receive_step(
        &self,
        half: &ReceiveHalf<'_>,
        target: &mut [u8],
        chaos: &Chaos,
        looks: u32,
    ) -> Step {
        match half.plan().expect("the peer is honest") {
            ReceivePlan::Ring {
                head,
                bytes,
                window,
                ..
            } => {
                let count = chaos.cut(bytes.min(target.len() as u32));
                sys::read(self.segment, head, window, &mut target[..count as usize]);
                let position = self.position(head, self.row.receive.kernel_position.load(Relaxed));
                let received = Received {
                    position,
                    bytes: count as usize,
                };
                if half.commit(head, count) {
                    half.widen(window);
                    Step::Got(received)
                } else {
                    Step::Again
                }
            }
            ReceivePlan::KernelUpTo { limit } => {
                let most = target.len().min(usize::try_from(limit).unwrap());
                let queue = self.kernel.queue.lock().unwrap();
                let (bytes, before) = self.kernel.take(queue, &mut target[..most]);
                assert_ne!(bytes, 0, "the switch position promised more");
                self.row
                    .receive
                    .kernel_position
                    .fetch_add(bytes as u64, SeqCst);
                Step::Got(Received {
                    position: self.position(self.head(), before),
                    bytes,
                })
            }
            ReceivePlan::Empty { gate } if looks < LOOKS && !chaos.strikes(8) => {
                self.look_in_kernel(half, gate.tail)
            }
            ReceivePlan::Empty { gate } if !half.close(gate.tail) => Step::Again,
            ReceivePlan::Empty { .. } | ReceivePlan::Kernel => {
                self.row.receive.sleepers.fetch_add(1, SeqCst);
                if chaos.strikes(3) {
                    Step::Poll
                } else {
                    Step::Raw
                }
            }
        }
    }

    /// The ring is empty at `tail`: only the kernel knows of an end, or of bytes sent while the gate was closed.
    fn look_in_kernel(&self, half: &ReceiveHalf<'_>, tail: u32) -> Step {
        let (bytes, end) = self.kernel.peek();
        if half.tail() != tail || !bytes && !end {
            return Step::Again;
        }
        if !bytes {
            return Step::End;
        }
        half.close(tail);
        Step::Again
    }

    /// The program's own call, which has been announced; unlocked.
    fn end_raw(&self, target: &mut [u8], chaos: &Chaos) -> Option<Received> {
        let head = self.head();
        let most = chaos.cut(target.len() as u32) as usize;
        let (bytes, before) = self
            .kernel
            .take(self.kernel.wait_readable(), &mut target[..most]);
        self.row
            .receive
            .kernel_position
            .fetch_add(bytes as u64, SeqCst);
        // Release: pairs with the Acquire in `ReceiveHalf::try_open`.
        self.row.receive.sleepers.fetch_sub(1, Release);
        self.open(chaos);
        (bytes != 0).then_some(Received {
            position: self.position(head, before),
            bytes,
        })
    }

    fn open(&self, chaos: &Chaos) {
        if !chaos.strikes(3) {
            self.receiving(|half| half.try_open());
        }
    }

    fn head(&self) -> u32 {
        self.row.receive.head.load(Relaxed)
    }

    /// The place in the stream of a byte before which `head` bytes came by the ring and `kernel` by the kernel.
    fn position(&self, head: u32, kernel: u64) -> u64 {
        u64::from(head) + kernel
    }
}

/// Makes the gate usable before the first byte, or not.
pub(crate) fn begin(end: &End<'_>, open: bool) {
    if open {
        assert!(end.receive_half().try_open());
    }
    end.row.identity.holders.fetch_add(1, AcqRel);
}
