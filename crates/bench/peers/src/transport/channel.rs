//! Channels of Millrace, by the agent that `MILLRACE_AGENT` names, with the library's settings but for the room.
//!
//! A source that finds no room waits as the library waits. Sinks ask without a pause where they have a processor of their own and are not
//! there to be woken; else the library waits for them. Workers are one group, each message for the least loaded.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_channel::{Channel, DetachedLoan, Error, Loan, Message, Publisher, Subscriber};

use super::{Sink, Source, Transport};
use crate::head::{HEAD_BYTES, Head};
use crate::trial::Lane;

/// Pools of this size are the library's own choice.
const POOL_BYTES: u64 = 8 << 20;
/// Who does not come until then does not come.
const SOON: Duration = Duration::from_secs(10);
/// How long a worker waits before it looks whether there will be anything more.
const A_WHILE: Duration = Duration::from_millis(100);

/// See the module.
pub(crate) struct Channels;

/// A publisher, until it has finished.
pub(crate) struct Sending {
    publisher: Option<Publisher>,
    bytes: usize,
    sinks: usize,
    prepared: Option<DetachedLoan>,
}

/// A subscriber.
pub(crate) struct Receiving {
    subscriber: Subscriber,
    sources: usize,
    waiting: Waiting,
}

/// How a sink waits.
#[derive(Clone, Copy)]
enum Waiting {
    /// It asks again at once.
    Spins,
    /// As the library does.
    Sleeps,
    /// The same, until the source has gone: with several sinks it cannot tell each that this was all.
    Works,
}

fn channel(lane: &Lane<'_>) -> Result<Channel> {
    let slots = u32::try_from(lane.trial.depth.max(2))?;
    let needed = 2 * lane.trial.depth * lane.trial.bytes.next_power_of_two();
    let pool = POOL_BYTES.max(needed as u64);
    Ok(Channel::new(&lane.name).slots(slots).pool_bytes(pool))
}

impl Transport for Channels {
    type Source = Sending;
    type Sink = Receiving;

    fn make(_: &Lane<'_>) -> Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }

    fn source(lane: &Lane<'_>, _: Vec<OwnedFd>, _: usize) -> Result<Sending> {
        Ok(Sending {
            publisher: Some(channel(lane)?.publisher()?),
            bytes: lane.trial.bytes,
            sinks: lane.sinks,
            prepared: None,
        })
    }

    fn sink(lane: &Lane<'_>, _: Vec<OwnedFd>, _: usize) -> Result<Receiving> {
        let channel = channel(lane)?;
        let (channel, waiting) = match (lane.sinks, lane.sleeps) {
            (1, false) => (channel, Waiting::Spins),
            (1, true) => (channel, Waiting::Sleeps),
            _ => (channel.group("workers"), Waiting::Works),
        };
        Ok(Receiving {
            subscriber: channel.subscriber()?,
            sources: lane.sources,
            waiting,
        })
    }
}

impl Source for Sending {
    fn meet(&mut self) -> Result<()> {
        let publisher = self.publisher.as_ref();
        let met =
            publisher.is_some_and(|publisher| publisher.wait_for_subscribers(self.sinks, SOON));
        ensure!(met, "the subscribers do not come");
        Ok(())
    }

    #[inline]
    fn prepare(&mut self) -> Result<()> {
        if self.prepared.is_none() {
            let publisher = self.publisher.as_ref().context("it has finished")?;
            self.prepared = Some(publisher.loan(self.bytes)?.detach());
        }
        Ok(())
    }

    // A head that goes by memory has to be written there first, behind the last message.
    #[inline(always)]
    fn push(&mut self, head: &Head) -> Result<bool> {
        let publisher = self.publisher.as_ref().context("it has finished")?;
        match self.prepared.take() {
            Some(prepared) => send(publisher, publisher.attach(prepared), head)?,
            None => send(publisher, publisher.loan(self.bytes)?, head)?,
        }
        Ok(true)
    }

    #[inline]
    fn publish(&mut self) -> Result<()> {
        if let Some(publisher) = &self.publisher {
            publisher.publish();
        }
        Ok(())
    }

    fn finish(&mut self, stop: &Head) -> Result<()> {
        let prepared = self.prepared.take();
        let publisher = self.publisher.as_ref().context("it has finished")?;
        drop(prepared.map(|prepared| publisher.attach(prepared)));
        if self.sinks == 1 {
            self.push(stop)?;
            return self.publish();
        }
        ensure!(publisher.drain(SOON), "the workers do not take everything");
        self.publisher = None;
        Ok(())
    }
}

/// Writes into a loan and pushes it.
#[inline(always)]
fn send<'a>(publisher: &'a Publisher, mut loan: Loan<'a>, head: &Head) -> Result<(), Error> {
    head.write_to(&mut loan[..HEAD_BYTES]);
    publisher.push(loan)?;
    Ok(())
}

impl Receiving {
    /// The head of a message, which goes back at once. None: there is none now.
    #[inline]
    fn take(message: &Message<'_>) -> Result<Head> {
        let mut bytes = [0; HEAD_BYTES];
        let copied = message.copy_to(0, &mut bytes);
        ensure!(copied == HEAD_BYTES, "a message is too short");
        Head::read_from(&bytes).context("a message is too short")
    }
}

impl Sink for Receiving {
    fn meet(&mut self) -> Result<()> {
        let met = self.subscriber.wait_for_publishers(self.sources, SOON);
        ensure!(met, "the publishers do not come");
        Ok(())
    }

    #[inline]
    fn pop(&mut self, most: usize, take: &mut impl FnMut(&Head)) -> Result<Option<usize>> {
        let mut taken = 0;
        match self.waiting {
            Waiting::Spins => {}
            Waiting::Sleeps => {
                take(&Self::take(&self.subscriber.receive()?)?);
                taken += 1;
            }
            Waiting::Works => match self
                .subscriber
                .receive_until(Some(Instant::now() + A_WHILE))
            {
                Ok(message) => {
                    take(&Self::take(&message)?);
                    taken += 1;
                }
                Err(Error::TimedOut) => return Ok((self.subscriber.publishers() > 0).then_some(0)),
                Err(error) => return Err(error.into()),
            },
        }
        while taken < most {
            let Some(message) = self.subscriber.pop() else {
                break;
            };
            take(&Self::take(&message)?);
            taken += 1;
        }
        Ok(Some(taken))
    }
}
