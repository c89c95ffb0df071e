//! Clients and servers.

use std::collections::HashMap;
use std::time::Instant;

use millrace_channel::{Client, Error};

use crate::body;
use crate::ledger;
use crate::{Failure, GLANCE, Order, PATIENCE};

/// Requests that a client has under way.
const UNDER_WAY: usize = 8;

/// Asks until it is stopped, then waits for the last answers. Each request is answered rightly, or said to be lost.
pub fn ask(order: &Order) -> Result<(), Failure> {
    let client = order.open(|channel| channel.clone().timeout(GLANCE).client())?;
    let own =
        body::mix(u64::from(std::process::id()) ^ (Instant::now().elapsed().as_nanos() as u64));
    // By the request's number, the right answer.
    let mut awaited = HashMap::new();
    let (mut next, mut answered, mut lost) = (0, 0_u64, 0_u64);
    let mut is_stopped = false;
    let mut progress = Instant::now();
    while !is_stopped || !awaited.is_empty() {
        while !is_stopped && awaited.len() < UNDER_WAY {
            let Some((number, answer)) = send(&client, own, next)? else {
                break;
            };
            awaited.insert(number, answer);
            next += 1;
        }
        client.publish();
        match client.receive() {
            Ok(Ok(reply)) => match awaited.remove(&reply.sequence()) {
                Some(wanted) if reply.to_vec() == wanted => answered += 1,
                Some(_) if ledger::is_hostile(&order.directory, reply.publisher()) => lost += 1,
                Some(_) => {
                    return Err(format!("the answer to {} is wrong", reply.sequence()).into());
                }
                None => {
                    return Err(
                        format!("an answer to {}, which waits for none", reply.sequence()).into(),
                    );
                }
            },
            Ok(Err(gone)) if awaited.remove(&gone.request).is_some() => lost += 1,
            Ok(Err(gone)) => {
                return Err(format!("{} is lost, which was not under way", gone.request).into());
            }
            // One that means no good may have given requests back without an answer.
            Err(Error::TimedOut)
                if order.is_beset && is_stopped && progress.elapsed() > GLANCE * 50 =>
            {
                break;
            }
            Err(Error::TimedOut) if progress.elapsed() > PATIENCE && !awaited.is_empty() => {
                return Err(format!("{} requests have no answer", awaited.len()).into());
            }
            Err(Error::TimedOut) => {
                if awaited.is_empty() {
                    progress = Instant::now();
                }
                is_stopped |= order.is_stopped();
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        progress = Instant::now();
        is_stopped |= next % 16 == 0 && order.is_stopped();
    }
    let words = format!("{answered} {lost}");
    Ok(ledger::note_end(&order.directory, "client", own, &words)?)
}

/// Sends a request; its number and the right answer. None: there is no room, or nobody who serves, now.
fn send(client: &Client, own: u64, number: u64) -> Result<Option<(u64, Vec<u8>)>, Failure> {
    let mut loan = match client.loan(body::bytes_of(own, number)) {
        Err(Error::TimedOut) => return Ok(None),
        loan => loan?,
    };
    body::write(own, number, &mut loan);
    let answer = answer_to(&loan);
    match client.push(loan, None) {
        Ok(number) => Ok(Some((number, answer))),
        Err(failed) if matches!(failed.error, Error::TimedOut) => Ok(None),
        Err(failed) => Err(failed.error.into()),
    }
}

/// A hash of the request, as often as the request is long, so that a reply can be torn, too.
fn answer_to(request: &[u8]) -> Vec<u8> {
    let hash = body::hash(request).to_le_bytes();
    hash.iter()
        .copied()
        .cycle()
        .take(8 + request.len() / 2)
        .collect()
}

/// Answers until it is stopped and nothing comes any more.
pub fn serve(order: &Order) -> Result<(), Failure> {
    let server = order.open(|channel| channel.clone().timeout(GLANCE).server())?;
    let mut is_stopped = false;
    loop {
        let request = match server.receive() {
            Ok(request) => request,
            Err(Error::TimedOut) if is_stopped => return Ok(()),
            Err(Error::TimedOut) => {
                is_stopped |= order.is_stopped();
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let answer = answer_to(&request.message().to_vec());
        match request.send(&answer) {
            Ok(()) | Err(Error::Gone | Error::TimedOut | Error::TooLong { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
