//! One direction in loom's world: the real rows, words and halves; a ring of two messages; a queue for the kernel.
//! What the methods do is what `crates/preload/src/{send,receive}.rs` do, a message being [`BLOCK`] bytes.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use loom::sync::{Condvar, Mutex};

use millrace_shm::board::Row;
use millrace_shm::gate::Gate;
use millrace_shm::segment::{self, DirectionWords, Segment};
use millrace_stream::{ReceiveHalf, ReceivePlan, SendHalf, SendPlan};

use crate::sys::Slot;

/// Bytes of a message, and of a slot of the ring.
pub(crate) const BLOCK: u32 = segment::RING_BYTES_MIN / SLOTS;
const SLOTS: u32 = 2;

/// How a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As the plan says.
    Any,
    /// By the kernel, as an operation that only the kernel can serve.
    Kernel,
}

/// A step that the model's ends take wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slip {
    /// The head moves before the bytes are copied.
    ReleaseBeforeCopy,
    /// The gate is opened with bytes in the ring.
    OpenUndrained,
    /// The gate stays open when bytes go by the kernel.
    KernelSendWithoutClosing,
    /// A waiter is not announced while it sleeps.
    SleepUnannounced,
    /// A waiter counts as awake before the bytes that it took count as taken.
    WakeBeforeCounting,
    /// A poll closes the gate at a tail that it reads after it has found nothing.
    TailAfterLooking,
}

/// See the head of this file.
pub(crate) struct Pipe {
    pub(crate) sender: Row,
    pub(crate) receiver: Row,
    segment: Segment,
    slots: [Slot; SLOTS as usize],
    /// The same for readers that exclude nobody: what a loser of the race copies is thrown away, so that it may be anything.
    racy_slots: [AtomicU32; SLOTS as usize],
    send_lock: Mutex<()>,
    receive_lock: Mutex<()>,
    queue: Mutex<VecDeque<u32>>,
    arrived: Condvar,
    slip: Option<Slip>,
}

fn slot(cursor: u32) -> usize {
    (cursor / BLOCK % SLOTS) as usize
}

impl Pipe {
    pub(crate) fn new(slip: Option<Slip>) -> Arc<Pipe> {
        static FILE: OnceLock<OwnedFd> = OnceLock::new();
        let file = FILE.get_or_init(|| segment::create(segment::RING_BYTES_MIN).unwrap());
        let granted = || {
            let row = Row::default();
            row.grant(segment::RING_BYTES_MIN.ilog2());
            row
        };
        Arc::new(Pipe {
            sender: granted(),
            receiver: granted(),
            segment: Segment::attach(file.as_fd(), segment::RING_BYTES_MIN).unwrap(),
            slots: Default::default(),
            racy_slots: Default::default(),
            send_lock: Mutex::new(()),
            receive_lock: Mutex::new(()),
            queue: Mutex::new(VecDeque::new()),
            arrived: Condvar::new(),
            slip,
        })
    }

    fn slips(&self, slip: Slip) -> bool {
        self.slip == Some(slip)
    }

    pub(crate) fn words(&self) -> &DirectionWords {
        self.segment.words(0)
    }

    pub(crate) fn send_half(&self) -> SendHalf<'_> {
        SendHalf::new(&self.sender, &self.segment, 0)
    }

    pub(crate) fn receive_half(&self) -> ReceiveHalf<'_> {
        ReceiveHalf::new(&self.receiver, &self.segment, 0)
    }

    fn begin_epoch(&self, gate: Gate, first: bool) {
        if first {
            let half = self.send_half();
            half.begin_epoch(gate, half.kernel_position());
        }
    }

    /// Copies a message to the ring and publishes it. False: the gate has moved.
    pub(crate) fn put(&self, (gate, first): (Gate, bool), message: u32) -> bool {
        self.begin_epoch(gate, first);
        self.slots[slot(gate.tail)].write(message);
        self.send_half().commit(gate, BLOCK)
    }

    /// As [`Pipe::put`], for readers without a lock.
    pub(crate) fn put_racy(&self, (gate, first): (Gate, bool), message: u32) -> bool {
        self.begin_epoch(gate, first);
        self.racy_slots[slot(gate.tail)].store(message, Relaxed);
        self.send_half().commit(gate, BLOCK)
    }

    /// Sends messages, one for each way.
    pub(crate) fn send_all(&self, ways: &[Way], messages: &mut impl Iterator<Item = u32>) {
        for (way, message) in ways.iter().zip(messages) {
            match way {
                Way::Any => self.send(message),
                Way::Kernel => self.send_by_kernel(message),
            }
        }
    }

    /// Sends a message the way that the plan says.
    pub(crate) fn send(&self, message: u32) {
        loop {
            let _locked = self.send_lock.lock().unwrap();
            match self.send_half().plan(BLOCK as usize).unwrap() {
                SendPlan::Ring { gate, first, .. } if self.put((gate, first), message) => return,
                SendPlan::Ring { .. } => {}
                SendPlan::Full { gate, .. } => self.send_half().overflow(gate),
                SendPlan::Kernel => break self.send_half().begin_kernel(BLOCK as usize),
            }
        }
        self.end_kernel_send(message);
    }

    /// Sends a message as a call does that only the kernel can serve.
    pub(crate) fn send_by_kernel(&self, message: u32) {
        {
            let _locked = self.send_lock.lock().unwrap();
            if self.slips(Slip::KernelSendWithoutClosing) {
                self.sender.send.raw.fetch_add(1, SeqCst);
            } else {
                self.send_half().begin_kernel(BLOCK as usize);
            }
        }
        self.end_kernel_send(message);
    }

    fn end_kernel_send(&self, message: u32) {
        self.queue.lock().unwrap().push_back(message);
        self.arrived.notify_all();
        let send = &self.sender.send;
        send.kernel_position.fetch_add(u64::from(BLOCK), SeqCst);
        send.raw.fetch_sub(1, Release);
    }

    /// Opens the gate if it may be opened, as a program does that polls.
    pub(crate) fn glance(&self) {
        let _locked = self.receive_lock.lock().unwrap();
        self.receive_half().try_open();
    }

    /// Sleeps until there is something to read, as `poll` does: without taking it.
    pub(crate) fn poll(&self) {
        let locked = self.receive_lock.lock().unwrap();
        let half = self.receive_half();
        let before = half.tail();
        if half.ready().is_some() {
            return;
        }
        let tail = if self.slips(Slip::TailAfterLooking) {
            half.tail()
        } else {
            before
        };
        let sleepers = &self.receiver.receive.sleepers;
        sleepers.fetch_add(1, SeqCst);
        if half.close(tail) {
            drop(locked);
            let mut queue = self.queue.lock().unwrap();
            while queue.is_empty() {
                queue = self.arrived.wait(queue).unwrap();
            }
        }
        sleepers.fetch_sub(1, Release);
    }

    /// Receives a message, asleep in the kernel when there is none.
    pub(crate) fn receive(&self) -> u32 {
        loop {
            if let Some(message) = self.step() {
                return message;
            }
        }
    }

    fn step(&self) -> Option<u32> {
        let locked = self.receive_lock.lock().unwrap();
        let half = self.receive_half();
        if self.slips(Slip::OpenUndrained) && !half.is_open() {
            let log2 = segment::RING_BYTES_MIN.ilog2();
            self.words().gate.open(self.words().gate.load(), log2).ok();
        }
        match half.plan().unwrap() {
            ReceivePlan::Ring { head, .. } => {
                let message = self.take(&half, head);
                half.try_open();
                message
            }
            ReceivePlan::KernelUpTo { limit } => {
                assert!(limit >= u64::from(BLOCK));
                let message = self.queue.lock().unwrap().pop_front();
                self.count_kernel();
                Some(message.expect("bytes that the switch position promised"))
            }
            // The gate is closed now, at the tail up to which all is read.
            ReceivePlan::Empty { gate } if !half.close(gate.tail) => None,
            ReceivePlan::Empty { .. } | ReceivePlan::Kernel => {
                if !self.slips(Slip::SleepUnannounced) {
                    self.receiver.receive.sleepers.fetch_add(1, SeqCst);
                }
                drop(locked);
                let message = self.sleep();
                self.glance();
                Some(message)
            }
        }
    }

    fn take(&self, half: &ReceiveHalf<'_>, head: u32) -> Option<u32> {
        let copy = || self.slots[slot(head)].read();
        if self.slips(Slip::ReleaseBeforeCopy) {
            return half.commit(head, BLOCK).then(copy);
        }
        let message = copy();
        half.commit(head, BLOCK).then_some(message)
    }

    /// The program's own call: it has been announced, and takes a message from the kernel.
    fn sleep(&self) -> u32 {
        let mut queue = self.queue.lock().unwrap();
        let message = loop {
            if let Some(message) = queue.pop_front() {
                break message;
            }
            queue = self.arrived.wait(queue).unwrap();
        };
        drop(queue);
        let sleepers = &self.receiver.receive.sleepers;
        if self.slips(Slip::WakeBeforeCounting) {
            sleepers.fetch_sub(1, Release);
            self.count_kernel();
            return message;
        }
        self.count_kernel();
        if !self.slips(Slip::SleepUnannounced) {
            // Release: pairs with the Acquire in `ReceiveHalf::try_open`.
            sleepers.fetch_sub(1, Release);
        }
        message
    }

    fn count_kernel(&self) {
        self.receiver
            .receive
            .kernel_position
            .fetch_add(u64::from(BLOCK), SeqCst);
    }

    /// Takes a message that is in the ring, without a lock.
    pub(crate) fn take_racy(&self) -> u32 {
        loop {
            let half = self.receive_half();
            let Ok(ReceivePlan::Ring { head, .. }) = half.plan() else {
                panic!("there is a message for every reader");
            };
            let message = self.racy_slots[slot(head)].load(Relaxed);
            if half.commit(head, BLOCK) {
                return message;
            }
        }
    }
}
