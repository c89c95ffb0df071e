//! The second stage: changes packets and forwards them.

use std::os::fd::AsFd;

use anyhow::Context;
use clap::Args;
use millrace_channel::{Error, Loan, Message, Publisher, Subscriber};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::packet::{self, Fault, TAG_BYTES, Tag};
use crate::stop::Stop;
use crate::{ChannelOptions, PATIENCE, now_ns};

/// Takes packets of its share of flows, forwards them as a router does (one hop less to live), and gives back what it has forwarded.
///
/// Ends with 0 at SIGTERM or SIGINT.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    channel: ChannelOptions,
    /// Give packets back only when the collector has read them: then the next worker of a flow cannot overtake this one. Each batch waits
    /// for the collector.
    #[arg(long)]
    in_order: bool,
}

/// Packets that are forwarded at once.
const BATCH: usize = 32;

struct Worker {
    subscriber: Subscriber,
    publisher: Publisher,
    stop: Stop,
    in_order: bool,
    /// What its packets are marked with.
    number: u32,
}

#[derive(Default)]
struct Counts {
    forwarded: u64,
    expired: u64,
    damaged: u64,
}

/// It is to stop, and what it could not forward stays with the balancer.
#[derive(Debug)]
struct Stopped;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let stop = Stop::new()?;
    // Who forwards has to be there before there is something to forward.
    let publisher = options.channel.forwarded().publisher()?;
    let subscriber = options.channel.packets().group("workers").subscriber()?;
    let worker = Worker {
        number: (publisher.id() ^ now_ns()) as u32,
        in_order: options.in_order,
        subscriber,
        publisher,
        stop,
    };
    let mut counts = Counts::default();
    while !worker.stop.is_asked() {
        match worker.forward_batch(&mut counts)? {
            Ok(0) => worker.wait()?,
            Ok(_) => {}
            Err(Stopped) => break,
        }
    }
    println!("forwarded {}", counts.forwarded);
    println!("expired {}", counts.expired);
    println!("damaged {}", counts.damaged);
    Ok(())
}

impl Worker {
    /// Forwards what there is, up to a batch; how many there were.
    fn forward_batch(&self, counts: &mut Counts) -> anyhow::Result<Result<usize, Stopped>> {
        let mut held = Vec::with_capacity(BATCH);
        while held.len() < BATCH
            && let Some(message) = self.subscriber.pop()
        {
            if !self.forward(&message, counts)? {
                // Not to be given back: it has not gone on. Those before it have.
                let _ = message.detach();
                self.publisher.publish();
                return Ok(Err(Stopped));
            }
            held.push(message);
        }
        self.publisher.publish();
        while self.in_order && !self.publisher.drain(PATIENCE) {
            if self.stop.is_asked() {
                return Ok(Err(Stopped));
            }
        }
        // They are on their way, and are given back only now: what a worker has not given back dies with it, or goes to another one.
        let count = held.len();
        drop(held);
        Ok(Ok(count))
    }

    /// False: it is to stop, and the packet was not forwarded.
    fn forward(&self, message: &Message<'_>, counts: &mut Counts) -> anyhow::Result<bool> {
        let Some(mut loan) = self.loan(message.len())? else {
            return Ok(false);
        };
        match change(message, &mut loan, self.number) {
            Ok(()) if !self.push(loan)? => return Ok(false),
            Ok(()) => counts.forwarded += 1,
            Err(Fault::Expired) => counts.expired += 1,
            Err(Fault::Damaged) => counts.damaged += 1,
        }
        Ok(true)
    }

    /// Memory for a packet, however long that takes. None: it is to stop.
    fn loan(&self, bytes: usize) -> anyhow::Result<Option<Loan<'_>>> {
        loop {
            match self.publisher.loan(bytes) {
                Ok(loan) => return Ok(Some(loan)),
                Err(Error::TimedOut) if self.stop.is_asked() => return Ok(None),
                Err(Error::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// False: it is to stop.
    fn push<'a>(&'a self, mut loan: Loan<'a>) -> anyhow::Result<bool> {
        while let Err(failed) = self.publisher.push(loan) {
            match failed.error {
                Error::TimedOut if self.stop.is_asked() => return Ok(false),
                Error::TimedOut => loan = failed.loan,
                error => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Until there is a packet, or it is to stop: a loop of the program's own.
    fn wait(&self) -> anyhow::Result<()> {
        let mut waited_for = [
            PollFd::new(self.subscriber.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.stop.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut waited_for, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno).context("to wait for packets"),
        }
    }
}

/// Copies a packet to the worker's own memory, where nobody else can change it any more, and forwards that.
fn change(message: &Message<'_>, loan: &mut [u8], worker: u32) -> Result<(), Fault> {
    message.copy_to(0, loan);
    let tag = Tag::parse(loan).ok_or(Fault::Damaged)?;
    let tag = Tag {
        worker,
        is_redelivered: message.is_redelivered(),
        ..tag
    };
    tag.emit(loan);
    packet::forward(&mut loan[TAG_BYTES..])
}
