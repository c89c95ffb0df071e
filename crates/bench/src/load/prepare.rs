//! What the server has to know before the run, by a connection that ends with it.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Target;
use super::protocol::{Progress, Protocol, Ticket};
use super::sys;

/// Requests and bytes that are sent at once: much, and less than what sockets hold, so that neither end waits for the other.
const BATCH: usize = 128;
const BATCH_BYTES: usize = 32 << 10;

/// Sends the protocol's preparations and checks their answers.
pub(super) fn prepare<P: Protocol>(protocol: &mut P, target: Target<'_>) -> Result<()> {
    let total = protocol.preparations();
    if total == 0 {
        return Ok(());
    }
    let (address, timeout) = (target.address, target.options.timeout_seconds);
    let (socket, _) = sys::connect(address, true)
        .with_context(|| format!("cannot connect to {address}: does a server listen there?"))?;
    sys::set_receive_timeout(&socket, Duration::from_secs_f64(timeout))?;
    let (mut out, mut input) = (Vec::new(), Vec::new());
    let (mut tickets, mut next) = (VecDeque::new(), 0);
    let mut buffer = vec![0; 64 << 10];
    while next < total || !tickets.is_empty() {
        if tickets.is_empty() {
            out.clear();
            while next < total && tickets.len() < BATCH && out.len() < BATCH_BYTES {
                tickets.push_back(protocol.prepare(next, &mut out));
                next += 1;
            }
            let mut sent = 0;
            while sent < out.len() {
                sent += sys::send(&socket, &out[sent..])
                    .with_context(|| format!("{address}: cannot send before the run"))?;
            }
        }
        match sys::receive(&socket, &mut buffer) {
            Ok(0) => bail!("{address} ended the connection on which the run was prepared"),
            Ok(count) => input.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!(
                "{address} has not answered for {timeout} s, before the run: does it speak {}?",
                target.protocol
            ),
            Err(error) => {
                return Err(error).with_context(|| format!("{address}, before the run"));
            }
        }
        take(protocol, target, &mut tickets, &mut input)?;
    }
    Ok(())
}

/// Takes the answers that are there.
fn take<P: Protocol>(
    protocol: &mut P,
    target: Target<'_>,
    tickets: &mut VecDeque<Ticket>,
    input: &mut Vec<u8>,
) -> Result<()> {
    let mut taken = 0;
    while taken < input.len() {
        let address = target.address;
        let Some(&ticket) = tickets.front() else {
            bail!("{address} sent more than it was asked for, before the run");
        };
        match protocol.answer(ticket, &input[taken..]) {
            Ok(Progress::Need(_)) => break,
            Ok(Progress::Whole { bytes, .. }) => taken += bytes,
            Err(wrong) => {
                let request = protocol.describe(ticket);
                bail!("{address}: wrong answer to {request}, before the run: {wrong}");
            }
        }
        tickets.pop_front();
    }
    input.drain(..taken);
    Ok(())
}
