//! A peer that holds its segment by right, plays along now and then, and writes what it likes over it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use millrace_shm::Mapping;
use millrace_shm::board::{Board, Row};
use millrace_shm::segment::{self, Segment};
use millrace_stream::{Corrupt, ReceiveHalf, ReceivePlan, SendHalf, SendPlan};
use millrace_wire::{Grow, Paired, Take, ToAgent, ToClient, Withdraw};

use crate::order::{Order, Shape};
use crate::random::Random;
use crate::session::{self, Session};
use crate::strikes::{self, Style, Target};
use crate::sys;

/// All bytes that the attacker puts into rings of its own are this one: any other there is somebody else's.
pub(crate) const MARK: u8 = 0xa5;
/// Rows of its board that it uses in turn.
const ROWS: u32 = 8;
/// How long an introduction may take.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// How long it waits for the other end's farewell.
const FAREWELL: Duration = Duration::from_secs(1);
/// The longest attack on one connection, in milliseconds.
const ATTACK_MS: usize = 250;
/// The longest message of either side, in bytes.
const MESSAGE_MAX: usize = 100_000;
/// Parts of the header page in which no word lies.
const UNUSED: [std::ops::Range<usize>; 2] = [8..256, 768..2048];
/// Its own small ring.
const OWN_RING: std::ops::Range<usize> = 2048..3072;

/// What came of it.
struct Tally {
    /// Until when it goes on.
    deadline: Instant,
    connections: u64,
    paired: u64,
    ring_sends: u64,
    ring_receives: u64,
    corrupt: u64,
    strikes: u64,
    /// The other end has ended the connection.
    ended: u64,
    holes: Vec<String>,
}

/// Attacks the server at `port`, one connection after the other.
pub(crate) fn run(
    port: u16,
    mut random: Random,
    deadline: Instant,
    style: Style,
    slots: &[u32],
) -> Vec<String> {
    let mut tally = Tally {
        deadline,
        connections: 0,
        paired: 0,
        ring_sends: 0,
        ring_receives: 0,
        corrupt: 0,
        strikes: 0,
        ended: 0,
        holes: Vec::new(),
    };
    let Some(session) = Session::open() else {
        return vec!["no agent".to_owned()];
    };
    let Some((board, board_file)) = session.be_welcomed() else {
        return vec!["not welcomed".to_owned()];
    };
    tally.holes.extend(unsealed("board", &board_file));
    let board_memory = strikes::map(&board_file, 4096 + 384 * board.row_count() as usize)
        .expect("a board can be mapped");
    for (number, slot) in (1..).zip(slots) {
        if Instant::now() > deadline {
            break;
        }
        let style = style.draw(&mut random);
        let order = Order {
            slot: *slot,
            seed: random.next() >> 24,
            message_max: 1 + random.below(MESSAGE_MAX) as u32,
            pause_us: random.pick(&[0, 0, 50, 1000]),
            read_pause_us: random.pick(&[0, 0, 0, 500]),
            shape: Shape::Heedless,
        };
        let Some(stream) = greet(port, order) else {
            continue;
        };
        tally.connections += 1;
        let mut peer = Peer::new(&session, &board, number, stream, &mut random);
        if let Some((paired, file)) = peer.be_introduced() {
            tally.paired += 1;
            peer.attack(&paired, &file, &board_memory, style, &mut tally);
        }
        session.say(&ToAgent::Withdraw(Withdraw { offer_id: number }));
    }
    println!(
        "{} connections, {} paired, {} ended by the other end, {} ring sends, {} ring receives, {} corrupt, {} strikes",
        tally.connections,
        tally.paired,
        tally.ended,
        tally.ring_sends,
        tally.ring_receives,
        tally.corrupt,
        tally.strikes
    );
    tally.holes
}

fn greet(port: u16, order: Order) -> Option<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    order.transmit(&stream).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

/// What may be done to a shared file and should not.
fn unsealed(name: &str, file: &OwnedFd) -> Vec<String> {
    let mut holes = Vec::new();
    for bytes in [0, 1, 4096, 1 << 30] {
        if sys::resize(file, bytes).is_ok() {
            holes.push(format!("a {name} can be resized to {bytes} bytes"));
        }
    }
    if sys::seal(file) {
        holes.push(format!("a {name} can be sealed further"));
    }
    holes
}

/// The connection has ended.
struct Ended;

/// One connection; what is sent is direction 0.
pub(crate) struct Peer<'a> {
    session: &'a Session,
    board: &'a Board,
    offer_id: u64,
    pub(crate) stream: TcpStream,
    pub(crate) row: Row,
    random: &'a mut Random,
    buffer: Vec<u8>,
}

impl<'a> Peer<'a> {
    pub(crate) fn new(
        session: &'a Session,
        board: &'a Board,
        offer_id: u64,
        stream: TcpStream,
        random: &'a mut Random,
    ) -> Peer<'a> {
        let row = Row::default();
        row.send
            .kernel_position
            .store(crate::order::BYTES as u64, Relaxed);
        Peer {
            session,
            board,
            offer_id,
            stream,
            row,
            random,
            buffer: vec![MARK; MESSAGE_MAX],
        }
    }

    pub(crate) fn board_row(&self) -> &'a Row {
        let index = self.offer_id as u32 % ROWS;
        self.board.row(index).expect("a board has more rows")
    }

    /// Talks by the kernel until the agent has introduced the two ends, if it does.
    pub(crate) fn be_introduced(&mut self) -> Option<(Paired, OwnedFd)> {
        let offer_id = self.offer_id;
        self.board_row().grant(0);
        let offer = session::offer(&self.stream, offer_id, offer_id as u32 % ROWS)?;
        self.session.say(&ToAgent::Offer(offer));
        let deadline = Instant::now() + INTRODUCTION;
        // Who answers has taken the order, which is checked, from the stream.
        sys::wait_readable(&self.stream, INTRODUCTION);
        while Instant::now() < deadline {
            self.by_kernel_out(64).ok()?;
            self.by_kernel_in(usize::MAX).ok()?;
            match self.session.hear(Duration::from_millis(1)) {
                Some((ToClient::Matched(matched), _)) if matched.offer_id == offer_id => {
                    self.session.say(&ToAgent::Take(Take { offer_id }));
                }
                Some((ToClient::Paired(paired), Some(file))) if paired.offer_id == offer_id => {
                    return Some((paired, file));
                }
                Some((ToClient::Declined(declined), _)) if declined.offer_id == offer_id => {
                    return None;
                }
                _ => {}
            }
        }
        None
    }

    fn attack(
        &mut self,
        paired: &Paired,
        file: &OwnedFd,
        board: &Mapping,
        style: Style,
        tally: &mut Tally,
    ) {
        tally.holes.extend(unsealed("segment", file));
        let bytes = segment::segment_bytes(paired.ring_bytes);
        let (Ok(segment), Ok(whole)) = (
            Segment::attach(file.as_fd(), paired.ring_bytes),
            strikes::map(file, bytes),
        ) else {
            tally.holes.push("a segment cannot be mapped".to_owned());
            return;
        };
        let milliseconds = 5 + self.random.below(ATTACK_MS) as u64;
        let mut deadline = Instant::now() + Duration::from_millis(milliseconds);
        let mut calls = self.random.pick(&[0, 1, 8, 64]);
        if matches!(style, Style::Siege | Style::Silent) {
            calls = 0;
        }
        if style == Style::Siege {
            deadline = tally.deadline;
        }
        let mut ended = Ok(());
        while ended.is_ok() && Instant::now() < deadline {
            self.note_grants();
            for _ in 0..self.random.below(calls + 1) {
                ended = ended.and_then(|()| self.call(&segment, tally));
            }
            let mut target = Target {
                segment: &segment,
                whole: &whole,
                file,
                board,
                random: self.random,
            };
            target.strike(style);
            tally.strikes += 1;
            if style == Style::Silent {
                std::thread::sleep(Duration::from_millis(1));
                ReceiveHalf::new(&self.row, &segment, 1).try_open();
            }
        }
        tally.ended += u64::from(ended.is_err());
        self.leave(ended.is_ok());
        if style.is_tidy() {
            let holes = self.trespasses(&whole, file, style);
            tally
                .holes
                .extend(holes.into_iter().map(|hole| format!("{hole} ({style:?})")));
        }
    }

    /// Some go at once, some say that they have no more to send and listen for a while.
    fn leave(&mut self, is_there: bool) {
        if !is_there || self.random.strikes(2) {
            return;
        }
        sys::shut_down(&self.stream, libc::SHUT_WR);
        let deadline = Instant::now() + FAREWELL;
        while Instant::now() < deadline && self.by_kernel_in(usize::MAX).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes over what the agent has granted, where it makes sense.
    fn note_grants(&mut self) {
        let theirs = self.board_row();
        let sane = |log2: u32| if (12..=24).contains(&log2) { log2 } else { 0 };
        let id = self.row.identity.connection_id.load(Relaxed);
        let log2 = sane(theirs.granted_to_send());
        self.row.send.grant.give(id, log2);
        let log2 = sane(theirs.granted_to_receive());
        self.row.receive.grant.give(id, log2);
        if self.random.strikes(50) {
            let offer_id = self.offer_id;
            self.session.say(&ToAgent::Grow(Grow { offer_id }));
        }
    }

    /// A call as an honest program makes it; after broken rules it takes the cursors as they are, and goes on.
    fn call(&mut self, segment: &Segment, tally: &mut Tally) -> Result<(), Ended> {
        let receives = self.random.strikes(2);
        let done = if receives {
            self.receive(segment, tally)
        } else {
            self.send(segment, tally)
        };
        match done {
            Ok(done) => done,
            Err(Corrupt) => {
                tally.corrupt += 1;
                let tail = segment.words(0).gate.load().tail;
                self.row.send.tail.store(tail, Relaxed);
                self.row.send.head_seen.store(tail, Relaxed);
                let words = segment.words(1);
                self.row.receive.head.store(words.gate.load().tail, Relaxed);
                let position = words.switch_position.load(Relaxed).min(1 << 60);
                self.row.receive.kernel_position.store(position, Relaxed);
                Ok(())
            }
        }
    }

    fn send(&mut self, segment: &Segment, tally: &mut Tally) -> Result<Result<(), Ended>, Corrupt> {
        let want = 1 + self.random.below(8192);
        let half = SendHalf::new(&self.row, segment, 0);
        match half.plan(want)? {
            SendPlan::Ring {
                gate,
                bytes,
                window,
                first,
            } => {
                if first {
                    half.begin_epoch(gate, half.kernel_position());
                }
                self.buffer[..bytes as usize].fill(MARK);
                sys::write_ring(
                    segment,
                    (0, gate.tail),
                    window,
                    &self.buffer[..bytes as usize],
                );
                tally.ring_sends += u64::from(half.commit(gate, bytes));
            }
            SendPlan::Full { gate, .. } => half.overflow(gate),
            SendPlan::Kernel => {
                half.begin_kernel(want);
                let done = self.by_kernel_out(want);
                self.row.send.raw.store(0, Relaxed);
                return Ok(done);
            }
        }
        Ok(Ok(()))
    }

    fn receive(
        &mut self,
        segment: &Segment,
        tally: &mut Tally,
    ) -> Result<Result<(), Ended>, Corrupt> {
        let half = ReceiveHalf::new(&self.row, segment, 1);
        match half.plan()? {
            ReceivePlan::Ring {
                head,
                bytes,
                window,
                ..
            } => {
                let bytes = bytes.min(MESSAGE_MAX as u32);
                sys::read_ring(
                    segment,
                    (1, head),
                    window,
                    &mut self.buffer[..bytes as usize],
                );
                half.commit(head, bytes);
                half.widen(window);
                tally.ring_receives += 1;
                Ok(Ok(()))
            }
            ReceivePlan::KernelUpTo { limit } => {
                Ok(self.by_kernel_in(usize::try_from(limit).unwrap_or(usize::MAX)))
            }
            ReceivePlan::Empty { .. } | ReceivePlan::Kernel => {
                let done = self.by_kernel_in(usize::MAX);
                ReceiveHalf::new(&self.row, segment, 1).try_open();
                Ok(done)
            }
        }
    }

    fn by_kernel_out(&mut self, bytes: usize) -> Result<(), Ended> {
        self.buffer[..bytes].fill(MARK);
        let sent = moved((&self.stream).write(&self.buffer[..bytes]))?;
        self.row.send.kernel_position.fetch_add(sent, Relaxed);
        Ok(())
    }

    fn by_kernel_in(&mut self, limit: usize) -> Result<(), Ended> {
        let room = limit.min(self.buffer.len());
        let result = (&self.stream).read(&mut self.buffer[..room]);
        if matches!(result, Ok(0)) {
            return Err(Ended);
        }
        let taken = moved(result)?;
        self.row.receive.kernel_position.fetch_add(taken, Relaxed);
        Ok(())
    }

    /// What the other end has written or touched where it must not.
    fn trespasses(&self, whole: &Mapping, file: &OwnedFd, style: Style) -> Vec<String> {
        let mut holes = Vec::new();
        for place in UNUSED.into_iter().flatten() {
            if sys::load(whole, place) != 0 {
                holes.push(format!(
                    "byte {place} of a segment, which nobody uses, was written"
                ));
            }
        }
        for place in OWN_RING {
            let byte = sys::load(whole, place);
            if byte != 0 && byte != MARK {
                holes.push(format!(
                    "byte {place} of a segment, in the attacker's own ring, was written"
                ));
            }
        }
        let row = self.board_row();
        let granted = |log2: u32| if log2 == 0 { 0 } else { 1u64 << (log2 & 63) };
        let allocated = sys::allocated_bytes(file);
        let most = segment::HEADER_BYTES as u64
            + granted(row.granted_to_send())
            + granted(row.granted_to_receive());
        if style != Style::Board && allocated > most {
            holes.push(format!(
                "a segment has {allocated} bytes of memory, of {most} that were granted"
            ));
        }
        holes.truncate(8);
        holes
    }
}

/// Bytes that moved; a call that would wait moved none.
fn moved(result: std::io::Result<usize>) -> Result<u64, Ended> {
    match result {
        Ok(bytes) => Ok(bytes as u64),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(0)
        }
        Err(_) => Err(Ended),
    }
}
