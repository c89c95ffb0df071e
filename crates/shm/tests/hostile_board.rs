//! A client that scribbles over its board while the agent reads it.
#![cfg(not(loom))]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::thread;

use millrace_shm::Mapping;
use millrace_shm::board::{self, Board};

const ROWS: u32 = 64;
const LOOKS: u32 = 3_000;

#[test]
fn the_agent_reads_as_many_rows_as_there_are_whatever_the_client_says() {
    let fd = board::create(ROWS).unwrap();
    let agent = Board::attach(fd.as_fd()).unwrap();
    let client = Mapping::new(
        fd.as_fd(),
        board::HEADER_BYTES + ROWS as usize * size_of::<board::Row>(),
    )
    .unwrap();
    let stop = AtomicBool::new(false);
    let mut seen = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 1u64;
            while !stop.load(Relaxed) {
                // Xorshift64 (Marsaglia, 2003).
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let offset = (state >> 8) as usize % client.bytes();
                // SAFETY: within the mapping.
                let place = unsafe { client.base().add(offset) };
                // SAFETY: a byte of memory that everybody accesses by atomics.
                unsafe { place.cast::<AtomicU8>().as_ref() }.store(state as u8, Relaxed);
            }
        });
        let mut looks = 0;
        while looks < LOOKS || seen == 0 {
            looks += 1;
            let rows: Vec<_> = agent.rows().collect();
            assert!(rows.len() <= ROWS as usize && rows.iter().all(|(index, _)| *index < ROWS));
            seen += rows.len();
            assert_eq!(agent.row_count(), ROWS);
            assert!(agent.row(ROWS).is_none());
            agent.post_mail();
            thread::yield_now();
        }
        stop.store(true, Relaxed);
    });
}
