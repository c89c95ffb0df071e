//! Publishers and subscribers.

use std::time::Instant;

use millrace_channel::{Error, Publisher};

use crate::body::{self, KEYS};
use crate::ledger::{self, Read, Sent};
use crate::{Failure, GLANCE, Order, PATIENCE};

/// Publishes batches of any size, now and then with a rest, until it is stopped; then waits until all has come back.
pub fn publish(order: &Order, is_keyed: bool) -> Result<(), Failure> {
    let publisher = order.open(|channel| channel.clone().timeout(GLANCE).publisher())?;
    let id = publisher.id();
    let sent = Sent::create(&order.directory, id)?;
    while !publisher.wait_for_subscribers(1, GLANCE) {
        if order.is_stopped() {
            return Ok(ledger::note_end(&order.directory, "publisher", id, "")?);
        }
    }
    let mut next = 0;
    while !order.is_stopped() {
        let roll = body::mix(id ^ next);
        let end = next + 1 + roll % 32;
        sent.note(next, end)?;
        for number in next..end {
            send(&publisher, number, is_keyed)?;
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
    Ok(ledger::note_end(&order.directory, "publisher", id, "")?)
}

fn send(publisher: &Publisher, number: u64, is_keyed: bool) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    let is_over = |error: &Error| !matches!(error, Error::TimedOut) || Instant::now() > deadline;
    let whose = publisher.id();
    let mut loan = loop {
        match publisher.loan(body::bytes_of(whose, number)) {
            Ok(loan) => break loan,
            Err(error) if is_over(&error) => {
                return Err(format!("no memory for a message: {error}").into());
            }
            Err(_) => {}
        }
    };
    body::write(whose, number, &mut loan);
    loop {
        let pushed = if is_keyed {
            publisher.push_keyed(loan, number % KEYS)
        } else {
            publisher.push(loan)
        };
        match pushed {
            Ok(_) => return Ok(()),
            Err(failed) if is_over(&failed.error) => {
                return Err(format!("no room: {}", failed.error).into());
            }
            Err(failed) => loan = failed.loan,
        }
    }
}

/// Reads and checks until it is stopped and nothing comes any more.
pub fn subscribe(order: &Order) -> Result<(), Failure> {
    let subscriber = order.open(millrace_channel::Channel::subscriber)?;
    let id = subscriber.id();
    let mut read = Read::create(&order.directory, id)?;
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
            let checked = match (body::check(publisher, &bytes), message.lost_before()) {
                (Ok(_), lost) if lost != 0 => {
                    Err(format!("{publisher:016x}: {lost} were given up"))
                }
                (checked, _) => checked,
            };
            match checked {
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
