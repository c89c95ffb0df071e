//! Publishers and subscribers.

use std::collections::HashMap;
use std::time::Instant;

use millrace_channel::{Error, Message, Publisher, WhenFull};

use crate::body::{self, KEYS};
use crate::ledger::{self, Read, Sent};
use crate::{Failure, GLANCE, Order, PATIENCE};

/// Publishes batches of any size, now and then with a rest, until it is stopped; then waits until all has come back, and says how many
/// messages were given up.
pub fn publish(order: &Order) -> Result<(), Failure> {
    let publisher = order.open(|channel| channel.clone().timeout(GLANCE).publisher())?;
    let id = publisher.id();
    let sent = Sent::create(&order.directory, id)?;
    let note_end = || {
        let dropped = publisher.dropped().to_string();
        ledger::note_end(&order.directory, "publisher", id, &dropped)
    };
    while !publisher.wait_for_subscribers(1, GLANCE) {
        if order.is_stopped() {
            return Ok(note_end()?);
        }
    }
    let mut next = 0;
    while !order.is_stopped() {
        let roll = body::mix(id ^ next);
        let end = next + 1 + roll % 32;
        sent.note(next, end)?;
        for number in next..end {
            send(&publisher, number, order)?;
        }
        publisher.publish();
        sent.note(end, end)?;
        next = end;
        if roll >> 32 & 15 == 0 {
            std::thread::sleep(GLANCE / 20);
        }
    }
    if !publisher.drain(PATIENCE) {
        return Err(format!("{id:016x}: not all came back").into());
    }
    Ok(note_end()?)
}

fn send(publisher: &Publisher, number: u64, order: &Order) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    let waits = order.when_full == WhenFull::Block;
    let is_over = |error: &Error| {
        let comes_to_an_end = match error {
            Error::TimedOut => true,
            Error::Full | Error::NoReceiver => order.when_full == WhenFull::Fail,
            _ => false,
        };
        !comes_to_an_end || Instant::now() > deadline
    };
    let whose = publisher.id();
    let mut loan = loop {
        match publisher.loan(body::bytes_of(whose, number)) {
            Ok(loan) => break loan,
            // A subscriber without room is passed over; a pool without any is not.
            Err(Error::Full) if !waits && Instant::now() < deadline => {
                publisher.publish();
                std::thread::yield_now();
            }
            Err(error) if is_over(&error) => {
                return Err(format!("no memory for a message: {error}").into());
            }
            Err(_) => {}
        }
    };
    body::write(whose, number, &mut loan);
    loop {
        let pushed = if order.is_keyed {
            publisher.push_keyed(loan, number % KEYS)
        } else {
            publisher.push(loan)
        };
        match pushed {
            Ok(counted) if counted != number => {
                return Err(format!("{counted} is not the number of {number}").into());
            }
            Ok(_) => return Ok(()),
            Err(failed) if is_over(&failed.error) => {
                return Err(format!("no room: {}", failed.error).into());
            }
            Err(failed) => {
                loan = failed.loan;
                if !waits {
                    publisher.publish();
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// The last numbers of all publishers.
struct Gaps<'a> {
    order: &'a Order,
    known: HashMap<u64, u64>,
}

impl Gaps<'_> {
    /// The number of a message. Where messages are dropped, numbers go up, and each message tells of
    /// those that are missing before it.
    fn check(&mut self, number: u64, message: &Message<'_>) -> Result<u64, String> {
        let (publisher, lost) = (message.publisher(), message.lost_before());
        if matches!(self.order.when_full, WhenFull::Block | WhenFull::Fail) {
            return match lost {
                0 => Ok(number),
                _ => Err(format!("{publisher:016x}: {lost} were given up")),
            };
        }
        let Some(last) = self.known.insert(publisher, number) else {
            return Ok(number);
        };
        let Some(missing) = number.checked_sub(last + 1) else {
            return Err(format!("{publisher:016x}: {number} came after {last}"));
        };
        // Others of the group have the rest.
        if lost == missing || self.order.in_group {
            return Ok(number);
        }
        Err(format!(
            "{publisher:016x}: {missing} are missing between {last} and {number}, and {lost} were given up"
        ))
    }
}

/// Reads and checks until it is stopped and nothing comes any more.
pub fn subscribe(order: &Order) -> Result<(), Failure> {
    let subscriber = order.open(millrace_channel::Channel::subscriber)?;
    let id = subscriber.id();
    let mut read = Read::create(&order.directory, id)?;
    let mut gaps = Gaps {
        order,
        known: HashMap::new(),
    };
    let mut bytes = Vec::new();
    let mut is_stopped = false;
    loop {
        let mut held = Vec::new();
        match subscriber.receive_until(Some(Instant::now() + GLANCE)) {
            Ok(message) => held.push(message),
            Err(Error::TimedOut) if is_stopped => break,
            Err(Error::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        let most = body::mix(subscriber.id()) % 16 + 1;
        held.extend(std::iter::from_fn(|| subscriber.pop()).take(most as usize));
        for message in &held {
            let publisher = message.publisher();
            bytes.resize(message.len(), 0);
            message.copy_to(0, &mut bytes);
            let checked = body::check(publisher, &bytes);
            match checked.and_then(|number| gaps.check(number, message)) {
                Ok(number) => read.add(publisher, number, message.is_redelivered()),
                Err(_) if ledger::is_hostile(&order.directory, publisher) => {}
                Err(why) => return Err(why.into()),
            }
        }
        read.write()?;
        drop(held);
        is_stopped |= order.is_stopped();
    }
    Ok(ledger::note_end(&order.directory, "subscriber", id, "")?)
}
