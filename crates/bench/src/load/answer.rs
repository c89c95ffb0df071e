//! What is received: answers, right and wrong, and the ends of connections.

use std::io;

use anyhow::{Error, Result, anyhow, bail, ensure};

use super::address::Address;
use super::connection::State;
use super::protocol::{Progress, Protocol};
use super::run::Run;

impl<P: Protocol> Run<'_, P> {
    /// Takes the answers that bytes complete which were just received.
    #[inline]
    pub(super) fn take(&mut self, index: usize, count: usize) -> Result<()> {
        let now_ns = self.received_ns;
        let connection = &mut self.connections[index];
        if connection.silent {
            connection.silent = false;
            self.note_first_byte(index);
        }
        let connection = &mut self.connections[index];
        let kept = connection.filled > 0;
        if kept {
            connection.filled += count;
            if connection.filled < connection.need {
                return Ok(());
            }
        }
        let bytes = if kept {
            &connection.input[..connection.filled]
        } else {
            &self.buffer[..count]
        };
        let (mut taken, mut need) = (0, 1);
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            let Some(flight) = connection.flights.front() else {
                let excerpt = rest[..rest.len().min(32)].escape_ascii();
                bail!(
                    "{} sent bytes on connection {index} that nobody asked for: \"{excerpt}\"",
                    self.target.address
                );
            };
            match self.protocol.answer(flight.ticket, rest) {
                Ok(Progress::Need(bytes)) => {
                    need = bytes;
                    break;
                }
                Ok(Progress::Whole { bytes, last }) => {
                    taken += bytes;
                    if last {
                        connection.state = State::Ending;
                    }
                }
                Err(wrong) => {
                    let request = self.protocol.describe(flight.ticket);
                    bail!(
                        "wrong answer to request {} ({request}) on connection {index} to {}: {wrong}",
                        flight.number,
                        self.target.address
                    );
                }
            }
            let stamps = self.protocol.stamps();
            self.recorder
                .answered(flight.number, flight.intended_ns, now_ns, stamps);
            connection.flights.pop_front();
            self.in_flight -= 1;
        }
        if kept {
            connection.drop_answers(taken, need);
        } else if taken < count {
            connection.keep(&self.buffer[taken..count], need);
        }
        Ok(())
    }

    fn note_first_byte(&mut self, index: usize) {
        if !self.protocol.closes() {
            return;
        }
        if let Some(flight) = self.connections[index].flights.front()
            && self.recorder.counts(flight.intended_ns)
        {
            let time_ns = self.received_ns - flight.intended_ns;
            self.recorder.first_byte.saturating_record(time_ns);
        }
    }

    /// The server has ended a connection: properly, or with an error. It may, where it owes nothing.
    pub(super) fn handle_end(&mut self, index: usize, error: Option<io::Error>) -> Result<()> {
        let connection = &mut self.connections[index];
        if !connection.flights.is_empty() {
            return Err(self.lost(index, error));
        }
        connection.close();
        if !self.protocol.closes() {
            self.reconnections += 1;
        }
        self.fill(index)
    }

    /// A connection has ended while the server owed answers on it.
    pub(super) fn lost(&self, index: usize, error: Option<io::Error>) -> Error {
        let address = self.target.address;
        let how = error.map_or("ended by the server".to_owned(), |error| error.to_string());
        let flights = &self.connections[index].flights;
        let Some(first) = flights.front() else {
            return anyhow!("connection {index} to {address}: {how}");
        };
        anyhow!(
            "connection {index} to {address}: {how}, with unanswered requests: {}, the first of them request {} ({})",
            flights.len(),
            first.number,
            self.protocol.describe(first.ticket)
        )
    }

    pub(super) fn no_connection(&self, index: usize, error: io::Error) -> Error {
        cannot_open(index, self.connections.len(), self.target.address, error)
    }

    /// Nothing has come for too long.
    pub(super) fn check_stalled(&self, now_ns: u64) -> Result<()> {
        let timeout = self.target.options.timeout_seconds;
        let too_long = |since_ns: u64| now_ns >= since_ns + super::run::nanoseconds(timeout);
        if !too_long(self.received_ns) {
            return Ok(());
        }
        let address = self.target.address;
        let connections = self.connections.iter().enumerate();
        let oldest = connections
            .clone()
            .filter_map(|(index, connection)| Some((index, connection.flights.front()?)))
            .min_by_key(|(_, flight)| flight.intended_ns);
        if let Some((index, flight)) = oldest {
            ensure!(
                !too_long(flight.intended_ns),
                "{address} has sent nothing for {timeout} s; unanswered: {}, the first of them request {} ({}) on connection {index}",
                self.in_flight,
                flight.number,
                self.protocol.describe(flight.ticket)
            );
            return Ok(());
        }
        let mut ending = connections.filter(|(_, connection)| connection.state == State::Ending);
        match ending.next() {
            Some((index, _)) => bail!(
                "{address} has not ended connection {index} in {timeout} s after the answer that was its last"
            ),
            None => Ok(()),
        }
    }
}

/// Why one of so many connections could not be opened, and what may help.
pub(super) fn cannot_open(
    index: usize,
    count: usize,
    address: &Address,
    error: io::Error,
) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            ": does a server listen there?"
        }
        io::ErrorKind::AddrNotAvailable => {
            ": the client's ports are used up, because those of ended connections are kept for a minute \
             (net.ipv4.ip_local_port_range gives more)"
        }
        _ => "",
    };
    let hint = if error.raw_os_error() == Some(nix::errno::Errno::EMFILE as i32) {
        ": raise the limit of open files (ulimit -n)"
    } else {
        hint
    };
    anyhow!("cannot open connection {index} of {count} to {address}: {error}{hint}")
}
