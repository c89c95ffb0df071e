//! A peer that plays one trick on a server, again and again, where TCP has none.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use millrace_shm::board::state;
use millrace_shm::gate::Gate;
use millrace_shm::segment::{SMALL_RING_BYTES, Segment};

use crate::attack::{MARK, Peer};
use crate::random::Random;
use crate::session::Session;
use crate::{order, sys};

/// The server's turn.
pub(crate) const GO: u8 = b'G';
/// The server has read what there was, or the end of the stream.
pub(crate) const ENDED: u8 = b'E';
/// Bytes that the server looks at, at once.
pub(crate) const LOOKS_AT: u32 = 8;
/// How long a trick is played.
pub(crate) const PLAYS: Duration = Duration::from_millis(1500);
/// How long it may take to come to the ring.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long the server may take for whatever it does.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the server must not suffer from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trick {
    /// Bytes that are ready are not, as soon as that has been told.
    Retract,
    /// Bytes that were looked at are others when they are taken.
    Change,
    /// Bytes come behind the end of the stream.
    Follow,
    /// The half that reads is locked, and bytes lie in its ring when the other end closes.
    Hold,
    /// The half that sends is locked, and bytes lie in its ring when the other end starts a program that gets the connection, too.
    Inherit,
    /// The same, when the other end has the kernel read for it, by many requests.
    Request,
}

impl Trick {
    pub(crate) fn named(name: &str) -> Option<Trick> {
        Some(match name {
            "retract" => Trick::Retract,
            "change" => Trick::Change,
            "follow" => Trick::Follow,
            "hold" => Trick::Hold,
            "inherit" => Trick::Inherit,
            "request" => Trick::Request,
            _ => return None,
        })
    }

    /// Connections, one after the other.
    pub(crate) fn connections(self) -> u64 {
        match self {
            Trick::Hold => 20,
            Trick::Inherit | Trick::Request => 4,
            _ => 1,
        }
    }
}

/// Plays it on the server at `port`.
pub(crate) fn run(trick: Trick, port: u16, mut random: Random) -> Vec<String> {
    let opened = Session::open().and_then(|session| Some((session.be_welcomed()?, session)));
    let Some(((board, _file), session)) = opened else {
        return vec!["not welcomed".to_owned()];
    };
    for number in 1..=trick.connections() {
        let Ok(stream) = begin(port) else {
            return vec!["no server".to_owned()];
        };
        let mut peer = Peer::new(&session, &board, number, stream, &mut random);
        let Some((paired, file)) = peer.be_introduced() else {
            return vec!["not introduced".to_owned()];
        };
        let Ok(segment) = Segment::attach(file.as_fd(), paired.ring_bytes) else {
            return vec!["a segment cannot be mapped".to_owned()];
        };
        let position = peer.row.send.kernel_position.load(Relaxed) + 1;
        let mut player = Player {
            peer,
            segment: &segment,
            position,
        };
        player.warm_up();
        player.play(trick, paired.connection_id);
        player.listen(None);
    }
    Vec::new()
}

fn begin(port: u16) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.write_all(&[MARK; order::BYTES])?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

struct Player<'a> {
    peer: Peer<'a>,
    segment: &'a Segment,
    /// Bytes that went by the kernel, with the one that says that it is the server's turn.
    position: u64,
}

impl Player<'_> {
    fn play(&mut self, trick: Trick, connection_id: u64) {
        if matches!(trick, Trick::Hold | Trick::Inherit | Trick::Request) {
            return self.hold(trick, connection_id);
        }
        self.say_go();
        match trick {
            Trick::Retract => self.retract(),
            Trick::Change => self.change(),
            _ => self.follow(),
        }
    }

    /// Talks by the kernel until the server has opened its gate, if it does.
    fn warm_up(&mut self) {
        let began = Instant::now();
        let gate = &self.segment.words(0).gate;
        while gate.load() == Gate::INITIAL && began.elapsed() < WARM_UP {
            self.position += self.peer.stream.write(&[MARK]).unwrap_or(0) as u64;
            sys::wait_readable(&self.peer.stream, WARM_UP);
            let _ = self.peer.stream.read(&mut [0; 4096]);
        }
    }

    fn say_go(&mut self) {
        // The server has read all that was sent, or reads it soon.
        let _ = self.peer.stream.write(&[GO]);
    }

    /// The ring of what is sent has so many bytes behind those that the server has taken.
    fn publish(&self, bytes: u32) {
        let words = self.segment.words(0);
        let gate = words.gate.load();
        let word = u64::from(words.head.load(Acquire).wrapping_add(bytes))
            | u64::from(SMALL_RING_BYTES.ilog2()) << 33
            | u64::from(gate.epoch) << 38;
        sys::gate_word(&words.gate).store(word, Relaxed);
    }

    fn retract(&self) {
        let began = Instant::now();
        let switch = &self.segment.words(0).switch_position;
        while began.elapsed() < PLAYS {
            self.publish(1);
            for _ in 0..100 {
                switch.store(self.position, Relaxed);
                std::hint::spin_loop();
                switch.store(self.position + 1000, Relaxed);
                std::hint::spin_loop();
            }
        }
    }

    fn change(&self) {
        let began = Instant::now();
        let words = self.segment.words(0);
        words.switch_position.store(self.position, Relaxed);
        for turn in 0u8.. {
            if began.elapsed() > PLAYS {
                break;
            }
            let head = words.head.load(Acquire);
            let bytes = [turn; LOOKS_AT as usize];
            sys::write_ring(self.segment, (0, head), SMALL_RING_BYTES, &bytes);
            self.publish(LOOKS_AT);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn follow(&mut self) {
        sys::shut_down(&self.peer.stream, libc::SHUT_WR);
        self.listen(Some(ENDED));
        let words = self.segment.words(0);
        words.switch_position.store(self.position, Relaxed);
        self.publish(LOOKS_AT);
    }

    fn hold(&mut self, trick: Trick, connection_id: u64) {
        let row = self.peer.board_row();
        let fd = self.peer.stream.as_raw_fd().cast_unsigned();
        row.identity.fd.store(fd, Relaxed);
        row.identity.connection_id.store(connection_id, Relaxed);
        row.identity.state.store(state::ATTACHED, Relaxed);
        let thread = sys::thread_number();
        let locks = [&row.receive.lock, &row.send.lock];
        let held = locks.map(|lock| lock.lock(thread));
        if trick == Trick::Hold {
            let gate = &self.segment.words(1).gate;
            let _ = gate.open(gate.load(), SMALL_RING_BYTES.ilog2());
        }
        self.say_go();
        if trick != Trick::Hold {
            self.listen(Some(ENDED));
            let words = self.segment.words(0);
            words.switch_position.store(self.position, Relaxed);
            self.publish(LOOKS_AT);
            self.say_go();
        }
        self.listen(None);
        locks[0].unlock(held[0]);
        locks[1].unlock(held[1]);
        row.identity.state.store(state::FREE, Relaxed);
    }

    /// Reads what comes by the kernel, until that byte has come, or the end.
    fn listen(&mut self, until: Option<u8>) {
        let began = Instant::now();
        let mut buffer = [0; 4096];
        while began.elapsed() < PATIENCE {
            sys::wait_readable(&self.peer.stream, Duration::from_millis(100));
            match self.peer.stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(bytes) if until.is_some_and(|byte| buffer[..bytes].contains(&byte)) => return,
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
                _ => {}
            }
        }
    }
}
