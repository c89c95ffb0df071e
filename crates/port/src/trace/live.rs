//! A trace that is being written: packets into blocks of bytes, and blocks to the thread that writes them.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_wire::pcap::{
    Direction, INTRODUCTION_BYTES_MAX, Interface, LEAD_BYTES_MAX, LIVE_TRAIL_BYTES_MAX,
    STATISTICS_BYTES, Statistics, emit_around_live, emit_introduction, emit_statistics,
};

use super::limit::Limit;
use super::{Config, TraceCounts};
use crate::burst::{PACKET_BYTES_MAX, Packet};

/// Packets are handed over in blocks of this size: a lock, and perhaps a call to wake the writer, for many of them.
const BLOCK_BYTES: usize = 128 * 1024;
/// What a packet takes at most, beside its bytes.
const AROUND_BYTES: usize = LEAD_BYTES_MAX + LIVE_TRAIL_BYTES_MAX;
/// So much of a block is for packets: the last one has statistics behind them.
const PACKETS_BYTES: usize = BLOCK_BYTES - STATISTICS_BYTES;
/// A block that is not full is handed over after this time.
pub(super) const FLUSH: Duration = Duration::from_millis(200);

const _: () = assert!(PACKET_BYTES_MAX + AROUND_BYTES + INTRODUCTION_BYTES_MAX <= PACKETS_BYTES);

/// The thread that writes, until it has written everything.
#[derive(Debug)]
pub(super) struct Writer(pub(super) JoinHandle<io::Result<()>>);

#[derive(Debug)]
pub(super) struct Live {
    config: Config,
    packets: Limit,
    bytes: Limit,
    /// The one that is filled. None: none was free when the last one went.
    block: Option<Vec<u8>>,
    /// When its first packet came.
    begun: Option<Instant>,
    /// Full ones, to the writer; None when it is over.
    full: Option<SyncSender<Vec<u8>>>,
    free: Receiver<Vec<u8>>,
    /// A time, and the same by the calendar.
    clock: (Instant, u64),
    started_ns: u64,
    pub(super) counts: TraceCounts,
}

fn write(
    mut target: impl Write,
    full: &Receiver<Vec<u8>>,
    free: &SyncSender<Vec<u8>>,
) -> io::Result<()> {
    for mut block in full {
        target.write_all(&block)?;
        target.flush()?;
        block.clear();
        // Nobody wants it back when the trace has ended.
        let _ = free.try_send(block);
    }
    Ok(())
}

impl Live {
    /// Begins, with a thread that writes.
    pub(super) fn begin(
        config: Config,
        target: impl Write + Send + 'static,
    ) -> io::Result<(Live, Writer)> {
        let calendar = SystemTime::now().duration_since(UNIX_EPOCH);
        // Until 2554.
        let started_ns = calendar.unwrap_or_default().as_nanos() as u64;
        let now = Instant::now();
        let blocks = (config.queue_bytes / BLOCK_BYTES).max(2);
        let (full, from_us) = sync_channel(blocks + 1);
        let (to_us, free) = sync_channel(blocks + 1);
        let mut first = Vec::with_capacity(BLOCK_BYTES);
        let filter = config.filter.to_string();
        let mut introduction = [0; INTRODUCTION_BYTES_MAX];
        let interface = Interface {
            link: config.link.number(),
            // 0 would mean that there is no bound.
            snap_bytes: config.snap_bytes as u32,
            name: &config.interface,
            filter: &filter,
        };
        let length = emit_introduction(&interface, &mut introduction);
        first.extend_from_slice(&introduction[..length]);
        for _ in 1..blocks {
            // As many as there is room for.
            let _ = to_us.try_send(Vec::with_capacity(BLOCK_BYTES));
        }
        let thread = std::thread::Builder::new().name("trace".to_owned());
        let writer = thread.spawn(move || write(target, &from_us, &to_us))?;
        let live = Live {
            packets: Limit::new(config.packets_per_s, 1),
            bytes: Limit::new(config.bytes_per_s, PACKET_BYTES_MAX as u64),
            config,
            block: Some(first),
            begun: Some(now),
            full: Some(full),
            free,
            clock: (now, started_ns),
            started_ns,
            counts: TraceCounts::default(),
        };
        Ok((live, Writer(writer)))
    }

    fn calendar_ns(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.clock.0);
        self.clock.1 + since.as_nanos() as u64
    }

    /// Looks at packets that go one way.
    pub(super) fn see<'a>(
        &mut self,
        packets: impl Iterator<Item = Packet<'a>>,
        direction: Direction,
    ) {
        let now = Instant::now();
        let time_ns = self.calendar_ns(now);
        for packet in packets {
            self.counts.seen += 1;
            let (filter, link) = (&self.config.filter, self.config.link);
            if !filter.matches(packet.head(), link, direction) {
                continue;
            }
            self.counts.matched += 1;
            let captured = packet.len().min(self.config.snap_bytes);
            if !self.packets.has(now, 1) || !self.bytes.has(now, captured as u64) {
                self.counts.over_limit += 1;
            } else if !self.has_room(captured + AROUND_BYTES) {
                self.counts.no_room += 1;
            } else {
                self.packets.take(1);
                self.bytes.take(captured as u64);
                self.put(packet, captured, time_ns, direction);
                self.begun.get_or_insert(now);
                self.counts.written += 1;
            }
        }
    }

    /// Whether so many bytes have room in a block, another one perhaps.
    fn has_room(&mut self, bytes: usize) -> bool {
        if self
            .block
            .as_ref()
            .is_some_and(|block| block.len() + bytes <= PACKETS_BYTES)
        {
            return true;
        }
        self.hand_over();
        self.block.is_some()
    }

    /// Gives the block to the writer, and takes a free one if there is one.
    fn hand_over(&mut self) {
        if let (Some(full), Some(block)) = (&self.full, self.block.take()) {
            // There is room for all that there are. A writer that has met an error has gone, and what is left goes nowhere.
            if full.try_send(block).is_err() {
                self.full = None;
            }
        }
        self.begun = None;
        if self.full.is_some() {
            self.block = self.free.try_recv().ok();
        }
    }

    fn put(&mut self, packet: Packet<'_>, captured: usize, time_ns: u64, direction: Direction) {
        let Some(block) = &mut self.block else {
            return;
        };
        let (mut lead, mut trail) = ([0; LEAD_BYTES_MAX], [0; LIVE_TRAIL_BYTES_MAX]);
        let lengths = (captured as u32, packet.len() as u32);
        let behind = emit_around_live(lengths, time_ns, direction, &mut lead, &mut trail);
        block.extend_from_slice(&lead);
        packet.append_first(captured, block);
        block.extend_from_slice(&trail[..behind]);
    }

    /// Hands over what has waited long enough.
    pub(super) fn flush(&mut self, now: Instant) {
        if self.flush_at().is_some_and(|at| at <= now) {
            self.hand_over();
        }
    }

    /// When something has waited long enough.
    pub(super) fn flush_at(&self) -> Option<Instant> {
        self.begun.map(|begun| begun + FLUSH)
    }

    /// Ends with statistics.
    pub(super) fn end(&mut self) {
        let Some(full) = self.full.take() else {
            return;
        };
        let mut statistics = [0; STATISTICS_BYTES];
        let counts = &self.counts;
        let all = Statistics {
            start_ns: self.started_ns,
            end_ns: self.calendar_ns(Instant::now()),
            received: counts.seen,
            lost: 0,
            accepted: counts.matched,
            dropped: counts.over_limit + counts.no_room,
            delivered: counts.written,
        };
        emit_statistics(&all, &mut statistics);
        // Where no block is free, one more is made: the writer has all the others, and the channel has room for them and is emptied.
        let mut block = self.block.take().unwrap_or_default();
        block.extend_from_slice(&statistics);
        let _ = full.try_send(block);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.end();
    }
}
