//! Ports that are files: captures that are read, as pcap or pcapng, and such that are written.
//!
//! A capture is read at full speed, or by its time stamps: a packet comes when as much time has passed since the first `poll` as was
//! between it and the first packet. Packets that were cut short when they were captured are dropped, and counted. What is written is on the
//! disk after `poll`, or when the port is dropped; its times are those of the last `poll`.
//!
//! Own code and not `pcap-file`: the formats are 300 lines without allocation (`millrace_wire::pcap`), and packets go from the file's bytes
//! to a burst by one copy.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_wire::pcap::{
    Decoder, HEADER_BYTES_MAX, Item, LEAD_BYTES_MAX, LINK_ETHERNET, LINK_RAW, ParseError,
    TRAIL_BYTES_MAX, emit_around, emit_header,
};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::burst::{Burst, PACKET_BYTES_MAX};
use crate::counters::{Cause, Counters};
use crate::port::{Closed, Port, State};

/// A file is read in steps of this size.
const STEP_BYTES: usize = 256 * 1024;

/// How a capture is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Classic pcap, with nanoseconds.
    Pcap,
    /// pcapng, with nanoseconds.
    Pcapng,
}

/// What the packets begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// A MAC header.
    Ethernet,
    /// An IPv4 or IPv6 header.
    Ip,
}

impl Link {
    pub(crate) fn number(self) -> u16 {
        match self {
            Link::Ethernet => LINK_ETHERNET,
            Link::Ip => LINK_RAW,
        }
    }

    fn of(number: u16) -> Option<Link> {
        [Link::Ethernet, Link::Ip]
            .into_iter()
            .find(|link| link.number() == number)
    }

    fn shortest(self) -> usize {
        match self {
            Link::Ethernet => 14,
            Link::Ip => 20,
        }
    }
}

/// How fast a capture is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As fast as it is asked for.
    Full,
    /// As fast as it was captured.
    Stamps,
}

/// Why a capture cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// It is no capture, or not from here on.
    Parse(ParseError),
    /// It ends in the middle of a packet.
    Cut,
    /// Its packets begin with something else than [`Link`] knows.
    Link(u16),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Parse(error) => write!(f, "{error}"),
            Unreadable::Cut => write!(f, "the capture ends in the middle of a packet"),
            Unreadable::Link(link) => write!(f, "packets of link type {link} are not understood"),
        }
    }
}

/// Opens a file. At the other end of a pipe nobody may be, and whoever reads it may stop: opening and writing would wait for that.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let pipe = || io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe, and not a file");
    if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return Err(pipe());
    }
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.file_type().is_fifo() {
        true => Err(pipe()),
        false => Ok(file),
    }
}

#[derive(Debug)]
struct Reader {
    file: File,
    decoder: Decoder,
    bytes: Vec<u8>,
    /// Where the next item begins.
    at: usize,
    pace: Pace,
    /// When the first packet was due, and its time.
    begun: Option<(Instant, u64)>,
    /// When the packet at `at` is due, if not yet.
    due: Option<Instant>,
}

#[derive(Debug)]
struct Writer {
    file: BufWriter<File>,
    format: Format,
    link: Link,
}

/// A capture.
#[derive(Debug)]
pub struct Pcap {
    reader: Option<Reader>,
    writer: Option<Writer>,
    state: State,
    counters: Counters,
    /// Never readable: a file has no news.
    bell: EventFd,
    now: Instant,
    /// The same by the calendar, when the port was made.
    made: (Instant, Duration),
}

impl Pcap {
    /// A port that packets of a file come from, whichever format it has.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read(path: impl AsRef<Path>, pace: Pace) -> io::Result<Pcap> {
        let reader = Reader {
            file: open(path.as_ref(), OpenOptions::new().read(true))?,
            decoder: Decoder::default(),
            bytes: Vec::with_capacity(2 * STEP_BYTES),
            at: 0,
            pace,
            begun: None,
            due: None,
        };
        Pcap::new(Some(reader), None)
    }

    /// A port that packets go to a new file by. What is in the path's place is replaced.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn write(path: impl AsRef<Path>, format: Format, link: Link) -> io::Result<Pcap> {
        let mut header = [0; HEADER_BYTES_MAX];
        let length = emit_header(format == Format::Pcapng, link.number(), &mut header);
        let mut file = {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true);
            BufWriter::with_capacity(STEP_BYTES, open(path.as_ref(), options)?)
        };
        file.write_all(&header[..length])?;
        Pcap::new(None, Some(Writer { file, format, link }))
    }

    fn new(reader: Option<Reader>, writer: Option<Writer>) -> io::Result<Pcap> {
        let now = Instant::now();
        let calendar = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Pcap {
            reader,
            writer,
            state: State::Connected,
            counters: Counters {
                connections: 1,
                ..Counters::default()
            },
            bell: EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?,
            now,
            made: (now, calendar.unwrap_or_default()),
        })
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Connected)
    }
}

impl Reader {
    /// Reads on until so many bytes are there. False: the file has ended before.
    fn fill(&mut self, wanted: usize) -> Result<bool, Closed> {
        self.bytes.drain(..self.at);
        self.at = 0;
        while self.bytes.len() < wanted {
            let filled = self.bytes.len();
            let more = (wanted - filled).max(STEP_BYTES) as u64;
            let read = (&self.file).take(more).read_to_end(&mut self.bytes);
            if read.map_err(Closed::Io)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn receive(
        &mut self,
        burst: &mut Burst,
        now: Instant,
        counters: &mut Counters,
    ) -> Result<(), Closed> {
        self.due = None;
        while !burst.is_full() {
            let item = self.decoder.next(&self.bytes[self.at..]);
            let unreadable = |error| Closed::Unreadable(Unreadable::Parse(error));
            let item = item.map_err(unreadable)?;
            if let Item::Need(bytes) = item {
                if self.fill(bytes)? {
                    continue;
                }
                let is_whole = self.bytes.is_empty();
                let cut = Closed::Unreadable(Unreadable::Cut);
                return Err(if is_whole { Closed::EndOfFile } else { cut });
            }
            let (packet, length) = match item {
                Item::Packet(packet, length) => (packet, length),
                Item::Need(bytes) | Item::Other(bytes) => {
                    self.at += bytes;
                    continue;
                }
            };
            let link = Link::of(packet.link);
            let link = link.ok_or(Closed::Unreadable(Unreadable::Link(packet.link)))?;
            let bytes = packet.bytes.len();
            let cause = if packet.original_bytes as usize > bytes {
                Some(Cause::Cut)
            } else if bytes < link.shortest() {
                Some(Cause::TooShort)
            } else if bytes > PACKET_BYTES_MAX {
                Some(Cause::TooLong)
            } else {
                None
            };
            if let Some(cause) = cause {
                counters.received.drop(cause, 1);
            } else {
                if let (Pace::Stamps, Some(time_ns)) = (self.pace, packet.time_ns) {
                    let (begin, from) = *self.begun.get_or_insert((now, time_ns));
                    let due = begin + Duration::from_nanos(time_ns.saturating_sub(from));
                    if due > now {
                        self.due = Some(due);
                        return Ok(());
                    }
                }
                burst.push(packet.bytes);
                counters.received.pass(1, bytes as u64);
            }
            self.at += length;
        }
        Ok(())
    }
}

impl Writer {
    fn write(&mut self, bytes: &[u8], time_ns: u64) -> io::Result<()> {
        let (mut lead, mut trail) = ([0; LEAD_BYTES_MAX], [0; TRAIL_BYTES_MAX]);
        let blocks = self.format == Format::Pcapng;
        let length = bytes.len() as u32;
        let around = emit_around(blocks, length, time_ns, &mut lead, &mut trail);
        self.file.write_all(&lead[..around.0])?;
        self.file.write_all(bytes)?;
        self.file.write_all(&trail[..around.1])
    }
}

impl Port for Pcap {
    fn poll(&mut self, now: Instant) -> &State {
        self.now = now;
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.file.flush()
        {
            self.state = State::Closed(Closed::Io(error));
        }
        &self.state
    }

    fn poll_at(&self) -> Option<Instant> {
        self.reader.as_ref().and_then(|reader| reader.due)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn receive_queues(&self) -> usize {
        usize::from(self.reader.is_some() && self.is_open())
    }

    fn transmit_queues(&self) -> usize {
        usize::from(self.writer.is_some() && self.is_open())
    }

    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize {
        burst.forget();
        if queue < self.receive_queues()
            && let Some(reader) = &mut self.reader
            && let Err(why) = reader.receive(burst, self.now, &mut self.counters)
        {
            self.state = State::Closed(why);
        }
        burst.len()
    }

    fn release(&mut self, _: usize) {}

    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        if queue >= self.transmit_queues() {
            return 0;
        }
        let Some(writer) = &mut self.writer else {
            return 0;
        };
        let since = self.made.1 + self.now.saturating_duration_since(self.made.0);
        // Until 2554.
        let time_ns = since.as_nanos() as u64;
        let mut taken = 0;
        for packet in burst.iter().skip(first) {
            if packet.len() < writer.link.shortest() {
                self.counters.transmitted.drop(Cause::TooShort, 1);
            } else if packet.leaves_work() {
                // Whoever reads the capture would find a wrong checksum.
                self.counters.transmitted.drop(Cause::Offload, 1);
            } else if let Err(error) = writer.write(&packet.to_vec(), time_ns) {
                self.state = State::Closed(Closed::Io(error));
                break;
            } else {
                self.counters.transmitted.pass(1, packet.len() as u64);
            }
            taken += 1;
        }
        taken
    }

    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize) {
        let cause = match self.transmit_queues() {
            0 => Cause::NoPeer,
            queues if queue < queues => Cause::Full,
            _ => Cause::NoQueue,
        };
        let packets = burst.len().saturating_sub(first) as u64;
        self.counters.transmitted.drop(cause, packets);
    }

    fn arm(&mut self) -> bool {
        // A file that is read at full speed always has more.
        match &self.reader {
            Some(reader) => !self.is_open() || reader.due.is_some(),
            None => true,
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
