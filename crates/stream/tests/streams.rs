//! Seeded streams between threads, through a real ring and a queue in the place of the kernel, byte for byte.
#![cfg(not(loom))]

mod ends;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::thread;

use ends::{End, Kernel, begin};
use millrace_shm::board::Row;
use millrace_shm::segment::{self, Segment};
use millrace_stream::Chaos;

const STREAM_BYTES: u64 = 150_000;
const MESSAGE_BYTES: u32 = 9_000;
const SEEDS: u64 = 60;

/// The stream's byte at a position: neighbours, and places a ring's length away, differ.
fn byte(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The two ends' records and mappings.
struct Pair {
    rows: [Row; 2],
    segments: [Segment; 2],
    kernel: Kernel,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let ring_bytes = segment::RING_BYTES_MIN << (seed % 3);
        let fd = segment::create(ring_bytes).unwrap();
        Pair {
            rows: Default::default(),
            segments: [(); 2].map(|()| Segment::attach(fd.as_fd(), ring_bytes).unwrap()),
            kernel: Kernel::default(),
        }
    }

    /// The agent's part: grants the large rings while the stream is under way, to the sender first.
    fn grow(&self) {
        for row in &self.rows {
            std::thread::yield_now();
            row.grant(self.segments[0].ring_bytes().ilog2());
        }
    }

    fn end(&self, index: usize) -> End<'_> {
        End {
            row: &self.rows[index],
            segment: &self.segments[index],
            kernel: &self.kernel,
        }
    }
}

/// One thread sends; so many receive, and note each byte that they got.
fn one_sender(seed: u64, readers: u64) -> (u64, u64) {
    let pair = Pair::new(seed);
    let got: Vec<AtomicU8> = (0..STREAM_BYTES).map(|_| AtomicU8::new(0)).collect();
    begin(&pair.end(1), seed.is_multiple_of(2));
    thread::scope(|scope| {
        for reader in 0..readers {
            let (pair, got) = (&pair, &got);
            scope.spawn(move || {
                let chaos = Chaos::new(seed * 1000 + 1 + reader);
                let mut buffer = vec![0; MESSAGE_BYTES as usize];
                while let Some(received) = pair.end(1).receive(&mut buffer, &chaos) {
                    for (position, value) in (received.position..).zip(&buffer[..received.bytes]) {
                        assert_eq!(*value, byte(position), "seed {seed}, byte {position}");
                        got[position as usize].fetch_add(1, Relaxed);
                    }
                }
            });
        }
        let chaos = Chaos::new(seed * 1000);
        let stream: Vec<u8> = (0..STREAM_BYTES).map(byte).collect();
        let mut rest = &stream[..];
        while !rest.is_empty() {
            if rest.len() < stream.len() / 2 {
                pair.grow();
            }
            let count = chaos.cut(MESSAGE_BYTES.min(rest.len() as u32)) as usize;
            pair.end(0).send(&rest[..count], &chaos);
            rest = &rest[count..];
        }
        pair.end(0).end();
    });
    assert!(
        got.iter().all(|times| times.load(Relaxed) == 1),
        "seed {seed}: lost or doubled"
    );
    let send = &pair.rows[0].send;
    (
        send.ring_bytes.load(Relaxed),
        send.kernel_position.load(Relaxed),
    )
}

/// Two threads send, each its own numbered bytes; each one's order must hold.
fn two_senders(seed: u64) {
    const EACH: u64 = STREAM_BYTES / 4;
    let pair = Pair::new(seed);
    begin(&pair.end(1), seed.is_multiple_of(2));
    let senders_left = AtomicU64::new(2);
    thread::scope(|scope| {
        for sender in 0..2u8 {
            let (pair, senders_left) = (&pair, &senders_left);
            scope.spawn(move || {
                let chaos = Chaos::new(seed * 1000 + u64::from(sender));
                let bytes: Vec<u8> = (0..EACH)
                    .map(|count| sender << 7 | (count % 128) as u8)
                    .collect();
                for message in bytes.chunks(chaos.cut(MESSAGE_BYTES) as usize) {
                    pair.end(0).send(message, &chaos);
                }
                if senders_left.fetch_sub(1, std::sync::atomic::Ordering::AcqRel) == 1 {
                    pair.end(0).end();
                }
            });
        }
        let chaos = Chaos::new(seed * 1000 + 2);
        let mut buffer = vec![0; MESSAGE_BYTES as usize];
        let mut counts = [0u64; 2];
        while let Some(received) = pair.end(1).receive(&mut buffer, &chaos) {
            for value in &buffer[..received.bytes] {
                let count = &mut counts[usize::from(value >> 7)];
                assert_eq!(
                    u64::from(value & 127),
                    *count % 128,
                    "seed {seed}, byte {count}"
                );
                *count += 1;
            }
        }
        assert_eq!(counts, [EACH; 2], "seed {seed}");
    });
}

#[test]
fn one_reader_gets_the_stream() {
    let (mut by_ring, mut by_kernel) = (0, 0);
    for seed in 1..=SEEDS {
        let (ring, kernel) = one_sender(seed, 1);
        by_ring += ring;
        by_kernel += kernel;
    }
    assert_eq!(by_ring + by_kernel, SEEDS * STREAM_BYTES);
    assert!(
        by_ring > STREAM_BYTES && by_kernel > STREAM_BYTES,
        "{by_ring} {by_kernel}"
    );
}

#[test]
fn two_readers_share_the_stream() {
    for seed in 1..=SEEDS {
        one_sender(seed, 2);
    }
}

#[test]
fn two_senders_keep_their_orders() {
    for seed in 1..=SEEDS {
        two_senders(seed);
    }
}
