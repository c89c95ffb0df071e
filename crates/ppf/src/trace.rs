//! One bearer's frames, as they come and as they leave, for whoever looks: pcapng, while packets pass.
//!
//! Frames are looked at where ports are: by the TEIDs that peers send to, by the far ends that messages go to, and by the user's address on
//! a side without tunnels. So they are seen as they are on the link, also what waited meanwhile, and what another worker dealt with. Of
//! outer packets in parts only the first part names a tunnel, and only that is seen.
//!
//! What it costs is bounded, and what it cannot do it counts. While nobody looks, a burst costs a look at an empty list. While somebody
//! does, each frame's headers are looked at, and the bearer's frames are copied into blocks, of which there are a few; where none is free,
//! frames are not traced, and pass all the same. A block is handed over when it is full, after a tenth of a second, or before the worker
//! sleeps.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_port::{PACKET_BYTES_MAX, Packet};
use millrace_switch::Bell;
use millrace_wire::gtpu::{HEADER_BYTES, PORT};
use millrace_wire::pcap::{
    Direction, INTRODUCTION_BYTES_MAX, Interface, LEAD_BYTES_MAX, LINK_ETHERNET,
    LIVE_TRAIL_BYTES_MAX, STATISTICS_BYTES, Statistics, emit_around_live, emit_interface,
    emit_introduction, emit_statistics, set_interface,
};

use crate::bearer::{Bearer, BearerId, Side};
use crate::ethernet::Frame;
use crate::ip::{IPV6_BYTES, UDP, UDP_BYTES, addresses};
use crate::table::users::User;

/// Frames are handed over in blocks of this size, of which each worker has so many.
const BLOCK_BYTES: usize = 128 * 1024;
const BLOCKS: usize = 8;
/// What a frame takes at most, beside its bytes.
const AROUND_BYTES: usize = LEAD_BYTES_MAX + LIVE_TRAIL_BYTES_MAX;
/// A block that is not full is handed over after this time.
const FLUSH: Duration = Duration::from_millis(100);
/// Whoever looks is told so often that nothing has come: it may have gone, which writing to it tells.
const STILL: Duration = Duration::from_secs(1);
/// A worker ends a trace within this time, or has died.
const PATIENCE: Duration = Duration::from_secs(2);

const _: () = assert!(PACKET_BYTES_MAX + AROUND_BYTES <= BLOCK_BYTES);

/// Which frames are a bearer's.
#[derive(Debug, Clone)]
struct Wanted {
    id: BearerId,
    /// By side: the tunnel's far end, if there is one.
    tunnels: [Option<(IpAddr, u32)>; 2],
    /// By side: the user's addresses, if there is no tunnel.
    users: [[Option<User>; 2]; 2],
}

impl Wanted {
    fn new(id: BearerId, bearer: &Bearer) -> Wanted {
        let peers = Side::BOTH.map(|side| bearer.peer(side));
        Wanted {
            id,
            tunnels: peers.map(|peer| (!peer.is_plain()).then_some((peer.address, peer.teid))),
            users: peers.map(|peer| match peer.is_plain() {
                true => {
                    let also = bearer.user_v6.map(|user| User::of(user.into()));
                    [Some(User::of(peer.address)), also]
                }
                false => [None, None],
            }),
        }
    }

    /// Whether a frame is the bearer's that begins so, and goes this way by a port of this side.
    #[inline]
    fn has(&self, side: Side, head: &[u8], direction: Direction) -> bool {
        let Some(seen) = Seen::parse(head) else {
            return false;
        };
        let is_tunnel = seen.teid.is_some_and(|teid| match direction {
            Direction::In => teid == self.id.teid(side),
            Direction::Out => self.tunnels[side as usize] == Some((seen.destination, teid)),
        });
        if is_tunnel {
            return true;
        }
        // A user's address is the destination where packets go to the user, and the source where they come from it.
        let is_towards_user = (side == Side::Core) == (direction == Direction::In);
        let user = match is_towards_user {
            true => seen.destination,
            false => seen.source,
        };
        let users = self.users[side as usize].iter().flatten();
        let mut users = users.filter(|known| **known == User::of(user));
        users.next().is_some()
    }
}

/// What a frame says of whose it is.
struct Seen {
    source: IpAddr,
    destination: IpAddr,
    /// The tunnel that a message of GTP-U names.
    teid: Option<u32>,
}

impl Seen {
    fn parse(head: &[u8]) -> Option<Seen> {
        let frame = Frame::parse(head)?;
        let packet = head.get(frame.bytes..)?;
        let (source, destination) = addresses(packet)?;
        let (protocol, at) = match source {
            // Behind the beginning of a packet there is no header of UDP.
            IpAddr::V4(_) if u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff != 0 => (0, 0),
            IpAddr::V4(_) => (packet[9], usize::from(packet[0] & 0xf) * 4),
            IpAddr::V6(_) => (packet[6], IPV6_BYTES),
        };
        let datagram = packet.get(at..).unwrap_or_default();
        let datagram = datagram.first_chunk::<{ UDP_BYTES + HEADER_BYTES }>();
        let datagram = datagram.filter(|datagram| {
            protocol == UDP && u16::from_be_bytes([datagram[2], datagram[3]]) == PORT
        });
        let teid = datagram.map(|datagram| {
            let [.., t0, t1, t2, t3] = *datagram;
            u32::from_be_bytes([t0, t1, t2, t3])
        });
        Some(Seen {
            source,
            destination,
            teid,
        })
    }
}

/// What workers and whoever looks know together.
#[derive(Debug)]
struct Shared {
    /// Frames that are still wanted.
    left: AtomicU64,
    written: AtomicU64,
    no_room: AtomicU64,
    is_over: AtomicBool,
    /// A time, and the same by the calendar.
    clock: (Instant, u64),
}

impl Shared {
    fn calendar_ns(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.clock.0);
        // Until 2554.
        self.clock.1.saturating_add(since.as_nanos() as u64)
    }

    // Relaxed everywhere: these are counts and a wish, and no other memory is read by what they say.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// A trace's part at one worker.
#[derive(Debug)]
pub(crate) struct Tap {
    wanted: Wanted,
    /// By port.
    sides: Arc<[Side]>,
    worker: usize,
    shared: Arc<Shared>,
    full: SyncSender<(usize, Vec<u8>)>,
    free: Receiver<Vec<u8>>,
    /// The one that is filled. None: none was free when the last one went.
    block: Option<Vec<u8>>,
    /// When its first frame came.
    begun: Option<Instant>,
}

impl Tap {
    /// The bearer is so from now on.
    pub(crate) fn follow(&mut self, id: BearerId, bearer: &Bearer) {
        if self.wanted.id == id {
            self.wanted = Wanted::new(id, bearer);
        }
    }

    fn see(&mut self, port: u16, packet: Packet<'_>, now: Instant, direction: Direction) {
        let Some(side) = self.sides.get(usize::from(port)) else {
            return;
        };
        if !self.wanted.has(*side, packet.head(), direction) {
            return;
        }
        if self.shared.left.load(Ordering::Relaxed) == 0 {
            return;
        }
        if !self.has_room(packet.len() + AROUND_BYTES) {
            self.shared.no_room.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let left = &self.shared.left;
        let (one, other) = (Ordering::Relaxed, Ordering::Relaxed);
        // Another worker may have seen the last one.
        let taken = left.fetch_update(one, other, |left| left.checked_sub(1));
        let Ok(left) = taken else { return };
        let Some(block) = &mut self.block else { return };
        let (mut lead, mut trail) = ([0; LEAD_BYTES_MAX], [0; LIVE_TRAIL_BYTES_MAX]);
        // A packet of 68 KiB at most.
        let bytes = packet.len() as u32;
        let time_ns = self.shared.calendar_ns(now);
        let behind = emit_around_live((bytes, bytes), time_ns, direction, &mut lead, &mut trail);
        set_interface(&mut lead, port.into());
        block.extend_from_slice(&lead);
        packet.append_to(block);
        block.extend_from_slice(&trail[..behind]);
        self.begun.get_or_insert(now);
        self.shared.written.fetch_add(1, Ordering::Relaxed);
        if left == 1 {
            self.hand_over();
        }
    }

    /// Whether so many bytes have room in a block, another one perhaps.
    fn has_room(&mut self, bytes: usize) -> bool {
        let has = |block: &Vec<u8>| block.len() + bytes <= BLOCK_BYTES;
        if self.block.as_ref().is_some_and(has) {
            return true;
        }
        if self.block.is_some() {
            self.hand_over();
        }
        if self.block.is_none() {
            self.block = self.free.try_recv().ok();
        }
        self.block.is_some()
    }

    /// Gives the block away. There is room for all that there are; whoever has gone wants none.
    fn hand_over(&mut self) {
        self.begun = None;
        if let Some(block) = self.block.take() {
            let _ = self.full.try_send((self.worker, block));
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.hand_over();
    }
}

/// Shows frames that go one way by a port to all who look.
pub(crate) fn see<'a>(
    taps: &mut [Tap],
    port: u16,
    packets: impl Iterator<Item = Packet<'a>>,
    now: Instant,
    direction: Direction,
) {
    for packet in packets {
        for tap in &mut *taps {
            tap.see(port, packet, now, direction);
        }
    }
}

/// Hands over what has waited long enough, or everything, and ends what nobody looks at any more.
pub(crate) fn mind(taps: &mut Vec<Tap>, now: Instant, is_idle: bool) {
    for tap in &mut *taps {
        if tap
            .begun
            .is_some_and(|begun| is_idle || now - begun >= FLUSH)
        {
            tap.hand_over();
        }
    }
    taps.retain(|tap| !tap.shared.is_over());
}

/// A trace, for whoever looks: a piece of pcapng after the other, each of whole blocks. It ends when as many frames were seen or as
/// much time has passed as was wanted, and workers' parts of it end with it.
#[derive(Debug)]
pub(crate) struct Capture {
    shared: Arc<Shared>,
    full: Receiver<(usize, Vec<u8>)>,
    free: Vec<SyncSender<Vec<u8>>>,
    bells: Vec<Arc<Bell>>,
    until: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nothing was given yet; it begins with this.
    New(Vec<u8>),
    Live,
    /// Workers are told to end it; until then they are waited for.
    Ending(Instant),
    Over,
}

/// What is traced.
pub(crate) struct Wish<'a> {
    pub(crate) id: BearerId,
    pub(crate) bearer: &'a Bearer,
    /// By port: its name, and its side.
    pub(crate) ports: Vec<(String, Side)>,
    /// So many frames at most.
    pub(crate) count: u64,
    /// For so long, at most.
    pub(crate) time: Duration,
}

/// A trace, and the parts of it that workers are given, one for each bell.
pub(crate) fn begin(wish: &Wish<'_>, bells: Vec<Arc<Bell>>) -> (Capture, Vec<Tap>) {
    let now = Instant::now();
    let calendar = SystemTime::now().duration_since(UNIX_EPOCH);
    let shared = Arc::new(Shared {
        left: AtomicU64::new(wish.count),
        written: AtomicU64::new(0),
        no_room: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        clock: (now, calendar.unwrap_or_default().as_nanos() as u64),
    });
    let (sender, full) = sync_channel(bells.len() * (BLOCKS + 1));
    let sides: Arc<[Side]> = wish.ports.iter().map(|(_, side)| *side).collect();
    let mut free = Vec::new();
    let parts = (0..bells.len()).map(|worker| {
        let (back, returned) = sync_channel(BLOCKS + 1);
        for _ in 0..BLOCKS {
            // There is room.
            let _ = back.try_send(Vec::with_capacity(BLOCK_BYTES));
        }
        free.push(back);
        Tap {
            wanted: Wanted::new(wish.id, wish.bearer),
            sides: sides.clone(),
            worker,
            shared: shared.clone(),
            full: sender.clone(),
            free: returned,
            block: None,
            begun: None,
        }
    });
    let parts: Vec<Tap> = parts.collect();
    let capture = Capture {
        shared,
        full,
        free,
        bells,
        until: now + wish.time,
        state: State::New(introduction(wish)),
    };
    (capture, parts)
}

/// What the capture begins with: an interface for each port. Names are shown as text whatever is in them.
fn introduction(wish: &Wish<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let filter = format!("bearer {}", wish.id);
    for (number, (name, _)) in wish.ports.iter().enumerate() {
        let name = name.escape_debug().to_string();
        let interface = Interface {
            link: LINK_ETHERNET,
            // As long as a packet can be.
            snap_bytes: PACKET_BYTES_MAX as u32,
            name: &name,
            filter: &filter,
        };
        let mut buffer = [0; INTRODUCTION_BYTES_MAX];
        let length = match number {
            0 => emit_introduction(&interface, &mut buffer),
            _ => emit_interface(&interface, &mut buffer),
        };
        bytes.extend_from_slice(&buffer[..length]);
    }
    bytes
}

impl Capture {
    fn statistics(&self) -> Vec<u8> {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (written, no_room) = (count(&self.shared.written), count(&self.shared.no_room));
        let statistics = Statistics {
            start_ns: self.shared.clock.1,
            end_ns: self.shared.calendar_ns(Instant::now()),
            received: written + no_room,
            lost: 0,
            accepted: written + no_room,
            dropped: no_room,
            delivered: written,
        };
        let mut block = [0; STATISTICS_BYTES];
        emit_statistics(&statistics, &mut block);
        block.to_vec()
    }

    /// A copy of a block, which goes back to its worker.
    fn copy_of(&self, worker: usize, mut block: Vec<u8>) -> Vec<u8> {
        let copy = block.clone();
        block.clear();
        if let Some(free) = self.free.get(worker) {
            // Nobody wants it back when the trace has ended.
            let _ = free.try_send(block);
        }
        copy
    }

    fn end(&mut self, now: Instant) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.bells.iter().for_each(|bell| bell.ring());
        self.state = State::Ending(now + PATIENCE);
    }

    /// Waits for a block. None: there is none, and the trace is over or about to be.
    fn wait(&mut self) -> Option<Vec<u8>> {
        let now = Instant::now();
        let is_full = self.shared.left.load(Ordering::Relaxed) == 0;
        let left = self.until.saturating_duration_since(now);
        if is_full || left.is_zero() {
            self.end(now);
            return None;
        }
        match self.full.recv_timeout(left.min(STILL)) {
            Ok((worker, block)) => Some(self.copy_of(worker, block)),
            Err(RecvTimeoutError::Timeout) => Some(self.statistics()),
            // All workers have ended.
            Err(RecvTimeoutError::Disconnected) => {
                self.end(now);
                None
            }
        }
    }
}

impl Iterator for Capture {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            match &mut self.state {
                State::New(introduction) => {
                    let introduction = std::mem::take(introduction);
                    self.state = State::Live;
                    return Some(introduction);
                }
                State::Live => {
                    if let Some(block) = self.wait() {
                        return Some(block);
                    }
                }
                State::Ending(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if let Ok((worker, block)) = self.full.recv_timeout(left) {
                        return Some(self.copy_of(worker, block));
                    }
                    self.state = State::Over;
                    return Some(self.statistics());
                }
                State::Over => return None,
            }
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.bells.iter().for_each(|bell| bell.ring());
    }
}

#[cfg(test)]
mod tests;
