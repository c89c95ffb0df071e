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
    /// One that has it no more may have worked on it.
    pub(super) was_taken: bool,
}

/// What its subscribers are told of a message. Read from the message's record, it would have to wait until that is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) line: u32,
    pub(super) bytes: u32,
    pub(super) memory_bytes: u64,
    pub(super) sequence: u64,
    pub(super) marks: u8,
}

impl Sent {
    #[inline(always)]
    pub(super) fn new(buffer: &Buffer, sequence: u64, marks: u8) -> Sent {
        Sent {
            line: buffer.line(),
            bytes: buffer.bytes(),
            memory_bytes: buffer.memory_bytes(),
            sequence,
            marks,
        }
    }
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

    /// One that has it no more may have worked on it: whoever gets it next is told so, and those after him.
    pub(super) fn note_taken(&mut self, number: u32) {
        self.list[number as usize].was_taken = true;
    }

    /// A flight has one holder more.
    pub(super) fn hold(&mut self, number: u32) {
        self.list[number as usize].holders += 1;
    }

    /// A message goes to so many.
    #[inline(always)]
    pub(super) fn add(
        &mut self,
        buffer: Buffer,
        holders: u32,
        sequence: u64,
        key: Option<u64>,
    ) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| self.make_more());
        // Field by field: a record that is made elsewhere first has to be written before it can be copied.
        let flight = &mut self.list[number as usize];
        flight.buffer = Some(buffer);
        flight.holders = holders;
        flight.sequence = sequence;
        flight.key = key;
        flight.was_taken = false;
        number
    }

    #[cold]
    fn make_more(&mut self) -> u32 {
        self.list.push(Flight {
            buffer: None,
            holders: 0,
            sequence: 0,
            key: None,
            was_taken: false,
        });
        self.list.len() as u32 - 1
    }

    /// The bytes of memory that it takes.
    pub(super) fn bytes(&self, number: u32) -> u64 {
        let buffer = self.get(number).buffer.as_ref();
        buffer.map_or(0, Buffer::memory_bytes)
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
