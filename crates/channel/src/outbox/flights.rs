//! Messages on their way, and the memory that they lie in.

use millrace_shm::pool::{Buffer, Pool};

/// A message on its way.
#[derive(Debug)]
pub(super) struct Flight {
    /// There while somebody has it.
    pub(super) buffer: Option<Buffer>,
    /// Subscribers, and groups whose next member it waits for, that have it.
    pub(super) holders: u32,
    pub(super) sequence: u64,
    pub(super) key: Option<u64>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Flights {
    pub(super) pool: Pool,
    list: Vec<Flight>,
    free: Vec<u32>,
}

impl Flights {
    pub(super) fn new(pool: Pool) -> Flights {
        Flights {
            pool,
            list: Vec::new(),
            free: Vec::new(),
        }
    }

    /// How many have a number.
    pub(super) fn count(&self) -> usize {
        self.list.len() - self.free.len()
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> &Flight {
        &self.list[number as usize]
    }

    /// A flight has one holder more.
    pub(super) fn hold(&mut self, number: u32) {
        self.list[number as usize].holders += 1;
    }

    #[inline]
    pub(super) fn add(&mut self, flight: Flight) -> u32 {
        if let Some(number) = self.free.pop() {
            self.list[number as usize] = flight;
            return number;
        }
        self.list.push(flight);
        self.list.len() as u32 - 1
    }

    /// One who had it has it no more; returns the bytes of memory that it takes.
    #[inline]
    pub(super) fn settle(&mut self, number: u32) -> u64 {
        let flight = &mut self.list[number as usize];
        let bytes = flight.buffer.as_ref().map_or(0, Buffer::memory_bytes);
        flight.holders -= 1;
        if flight.holders == 0 {
            if let Some(buffer) = flight.buffer.take() {
                self.pool.give_back(buffer);
            }
            self.free.push(number);
        }
        bytes
    }
}
