//! What is said before packets pass, as two state machines without I/O.
//!
//! | server | on | does | becomes |
//! |---|---|---|---|
//! | `Init` | INIT that fits | ACK | `Setup` |
//! | `Setup` | ADD_REGION, ADD_RING that fit | ACK | `Setup` |
//! | `Setup` | CONNECT, and all rings begin as rings do | CONNECTED | connected |
//!
//! | client | on | does | becomes |
//! |---|---|---|---|
//! | `Hello` | HELLO of our version | makes the memory; INIT | `Setup` |
//! | `Setup` | ACK | the next of ADD_REGION, ADD_RING…, CONNECT | `Setup`, at last `Connect` |
//! | `Connect` | CONNECTED | | connected |
//!
//! Either may say DISCONNECT at any time. Everything else is *forbidden*, and ends the connection: a second INIT would change whose
//! interface it is, memory that comes after CONNECT would change under packets, an ACK that nobody waits for means that the two ends are
//! not at the same message, and a HELLO after the first would change limits that the memory was made by.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use millrace_shm::{Mapping, sys as shm_sys};
use millrace_wire::memif::{
    AddRegion, AddRing, Hello, Init, Message, RING_C2S, Text, VERSION, ring_bytes,
};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::config::LOG2_SIZE_MAX;
use super::error::ControlError;
use super::receive::{Buffers, Receiver};
use super::sys::Ring;
use super::transmit::Transmitter;
use super::{Config, REGION_MAX};
use crate::handed::{self, Gifts, Unfit};
use crate::memory::{Memory, stride};

/// What a connection has once packets may pass.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) receivers: Vec<Receiver>,
    pub(super) transmitters: Vec<Transmitter>,
}

/// What is to be done about a message.
#[derive(Debug)]
pub(super) enum Step {
    /// This is to be sent, with a descriptor.
    Send(Message, Option<OwnedFd>),
    /// Packets may pass, once this is sent.
    Connected(Queues, Option<Message>),
}

/// What a program is called.
fn program() -> Text<32> {
    Text::new(concat!("millrace ", env!("CARGO_PKG_VERSION")))
}

/// What a server says first, which has so many queues that packets come from and go to, at most.
pub(super) fn hello((receive_queues, transmit_queues): (u16, u16)) -> Message {
    Message::Hello(Hello {
        name: program(),
        version_min: VERSION,
        version_max: VERSION,
        region_max: REGION_MAX,
        s2c_ring_max: transmit_queues - 1,
        c2s_ring_max: receive_queues - 1,
        log2_size_max: LOG2_SIZE_MAX,
    })
}

/// The server's side of a connection that is being made.
#[derive(Debug, Default)]
pub(super) struct Server {
    is_ours: bool,
    regions: Vec<Mapping>,
    mapped_bytes: u64,
    c2s: Vec<(AddRing, OwnedFd)>,
    s2c: Vec<(AddRing, OwnedFd)>,
}

impl Server {
    /// Does what a message of the client's asks for.
    pub(super) fn handle(
        &mut self,
        config: &Config,
        message: Message,
        gifts: Gifts,
    ) -> Result<Step, ControlError> {
        match (self.is_ours, message) {
            (false, Message::Init(init)) => self.handle_init(config, &init)?,
            (true, Message::AddRegion(region)) => {
                self.handle_add_region(config, &region, &gifts)?
            }
            (true, Message::AddRing(ring)) => self.handle_add_ring(config, ring, gifts)?,
            (true, Message::Connect(_)) => {
                let queues = self.connect()?;
                let reply = Message::Connected(Text::new(&config.name));
                return Ok(Step::Connected(queues, Some(reply)));
            }
            (_, other) => return Err(ControlError::Unexpected(other.name())),
        }
        Ok(Step::Send(Message::Ack, None))
    }

    fn handle_init(&mut self, config: &Config, init: &Init) -> Result<(), ControlError> {
        if init.version != VERSION {
            return Err(ControlError::Version(init.version));
        }
        if init.id != config.id {
            return Err(ControlError::Id(init.id));
        }
        if init.mode != config.mode {
            return Err(ControlError::Mode);
        }
        let secret = config.secret.as_deref().map(Text::<24>::new);
        if secret.is_some_and(|secret| !is_same(secret.bytes(), init.secret.bytes())) {
            return Err(ControlError::Secret);
        }
        self.is_ours = true;
        Ok(())
    }

    fn handle_add_region(
        &mut self,
        config: &Config,
        region: &AddRegion,
        gifts: &Gifts,
    ) -> Result<(), ControlError> {
        let fd = gifts
            .first()
            .ok_or(ControlError::NoDescriptor("ADD_REGION"))?;
        if usize::from(region.index) != self.regions.len() || region.index > REGION_MAX {
            return Err(ControlError::RegionIndex(region.index));
        }
        let left = config.memory_bytes_max - self.mapped_bytes;
        if region.bytes > left {
            return Err(ControlError::Memory {
                bytes: region.bytes,
                most: config.memory_bytes_max,
            });
        }
        if region.bytes == 0 {
            return Err(ControlError::RegionBytes(0));
        }
        self.regions
            .push(map(fd, region.bytes, config.accept_unsealed)?);
        self.mapped_bytes += region.bytes;
        Ok(())
    }

    fn handle_add_ring(
        &mut self,
        config: &Config,
        ring: AddRing,
        mut gifts: Gifts,
    ) -> Result<(), ControlError> {
        let fd = gifts
            .first()
            .ok_or(ControlError::NoDescriptor("ADD_RING"))?;
        let (rings, most) = if ring.flags & RING_C2S != 0 {
            (&mut self.c2s, config.receive_queues)
        } else {
            (&mut self.s2c, config.transmit_queues)
        };
        if usize::from(ring.index) != rings.len() || ring.index >= most {
            return Err(ControlError::RingIndex(ring.index));
        }
        let wrong = |what| ControlError::Ring {
            index: ring.index,
            what,
        };
        if ring.log2_size > LOG2_SIZE_MAX {
            return Err(wrong("has more than 2^14 descriptors"));
        }
        if ring.private_header_bytes != 0 {
            return Err(wrong(
                "has private headers, whose meaning is not known here",
            ));
        }
        if !handed::is_eventfd(fd) {
            return Err(wrong("came with a descriptor that is no eventfd"));
        }
        rings.extend(gifts.take_first().map(|bell| (ring, bell)));
        Ok(())
    }

    fn connect(&mut self) -> Result<Queues, ControlError> {
        let memory = Arc::new(Memory::new(std::mem::take(&mut self.regions)));
        let make = |(ring, bell): (AddRing, OwnedFd)| {
            let wrong = |what| ControlError::Ring {
                index: ring.index,
                what,
            };
            let made = Ring::new(&memory, ring.region, ring.offset, ring.log2_size)
                .ok_or_else(|| wrong("is not inside its region, or not aligned"))?;
            if !made.has_cookie() {
                return Err(wrong("does not begin with the cookie"));
            }
            Ok((made, bell))
        };
        let receivers = std::mem::take(&mut self.c2s).into_iter().map(make);
        let receivers = receivers
            .map(|made| made.map(|(ring, bell)| Receiver::new(ring, Buffers::Peer, bell)))
            .collect::<Result<_, _>>()?;
        let transmitters = std::mem::take(&mut self.s2c).into_iter().map(make);
        let transmitters = transmitters
            .map(|made| made.map(|(ring, bell)| Transmitter::new(ring, Buffers::Peer, bell)))
            .collect::<Result<_, _>>()?;
        Ok(Queues {
            receivers,
            transmitters,
        })
    }
}

/// Maps a region.
fn map(fd: BorrowedFd<'_>, bytes: u64, accept_unsealed: bool) -> Result<Mapping, ControlError> {
    handed::check_memory(fd, bytes, accept_unsealed).map_err(|unfit| match unfit {
        Unfit::NotSealed => ControlError::NotSealed,
        Unfit::Small => ControlError::RegionBytes(bytes),
        Unfit::Io(error) => ControlError::Map(error),
    })?;
    let bytes = usize::try_from(bytes).map_err(|_| ControlError::RegionBytes(bytes))?;
    Mapping::new(fd, bytes).map_err(ControlError::Map)
}

/// Whether two secrets are the same, in a time that does not say where they differ.
fn is_same(ours: &[u8], theirs: &[u8]) -> bool {
    let differs = ours
        .iter()
        .zip(theirs)
        .fold(0, |sum, (one, other)| sum | (one ^ other));
    ours.len() == theirs.len() && differs == 0
}

/// The client's side.
#[derive(Debug)]
pub(super) enum Client {
    Hello,
    Setup {
        messages: VecDeque<(Message, Option<OwnedFd>)>,
        layout: Layout,
    },
    Connect(Layout),
    Done,
}

impl Client {
    /// Does what a message of the server's asks for.
    pub(super) fn handle(
        &mut self,
        config: &Config,
        message: &Message,
    ) -> Result<Step, ControlError> {
        match (std::mem::replace(self, Client::Done), message) {
            (Client::Hello, Message::Hello(hello)) => self.handle_hello(config, hello),
            (
                Client::Setup {
                    mut messages,
                    layout,
                },
                Message::Ack,
            ) => {
                // There are some as long as the state is this one.
                let (message, fd) = messages
                    .pop_front()
                    .ok_or(ControlError::Unexpected("ACK"))?;
                *self = if messages.is_empty() {
                    Client::Connect(layout)
                } else {
                    Client::Setup { messages, layout }
                };
                Ok(Step::Send(message, fd))
            }
            (Client::Connect(layout), Message::Connected(_)) => {
                Ok(Step::Connected(layout.connect()?, None))
            }
            (_, other) => Err(ControlError::Unexpected(other.name())),
        }
    }

    fn handle_hello(&mut self, config: &Config, hello: &Hello) -> Result<Step, ControlError> {
        if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            return Err(ControlError::Version(hello.version_max));
        }
        let layout = Layout::new(config, hello).map_err(ControlError::Map)?;
        *self = Client::Setup {
            messages: layout.messages(config).map_err(ControlError::Map)?,
            layout,
        };
        let init = Init {
            version: VERSION,
            id: config.id,
            mode: config.mode,
            secret: Text::new(config.secret.as_deref().unwrap_or_default()),
            name: program(),
        };
        Ok(Step::Send(Message::Init(init), None))
    }
}

/// The memory that a client makes: one region, with the rings first, those to the server before those from it, and a buffer for each
/// descriptor behind them.
#[derive(Debug)]
pub(super) struct Layout {
    memory: Arc<Memory>,
    fd: OwnedFd,
    bytes: usize,
    log2_size: u8,
    buffer_bytes: u32,
    c2s: Vec<EventFd>,
    s2c: Vec<EventFd>,
}

impl Layout {
    fn new(config: &Config, hello: &Hello) -> io::Result<Layout> {
        let count = |own: u16, most: u16| usize::from(own.min(most.saturating_add(1)));
        let c2s = count(config.transmit_queues, hello.c2s_ring_max);
        let s2c = count(config.receive_queues, hello.s2c_ring_max);
        let log2_size = config.log2_ring_size.min(hello.log2_size_max);
        let rings = c2s + s2c;
        let buffers = (rings << log2_size) * stride(config.buffer_bytes) as usize;
        let bytes = buffers_at(rings, log2_size) + buffers;
        let fd = shm_sys::create_sealed(c"millrace-memif", bytes, bytes)?;
        let bells = |count| {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            (0..count)
                .map(|_| EventFd::from_value_and_flags(0, flags).map_err(io::Error::from))
                .collect::<io::Result<Vec<_>>>()
        };
        let layout = Layout {
            memory: Arc::new(Memory::new(vec![Mapping::new(fd.as_fd(), bytes)?])),
            fd,
            bytes,
            log2_size,
            buffer_bytes: config.buffer_bytes,
            c2s: bells(c2s)?,
            s2c: bells(s2c)?,
        };
        for number in 0..rings {
            layout.ring(number)?.init();
        }
        Ok(layout)
    }

    fn ring_offset(&self, number: usize) -> u32 {
        // `Config::check` keeps the region's size within 32 bits.
        (number * ring_bytes(self.log2_size)) as u32
    }

    fn ring(&self, number: usize) -> io::Result<Ring> {
        Ring::new(&self.memory, 0, self.ring_offset(number), self.log2_size)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    fn buffers(&self, number: usize) -> Buffers {
        let rings = self.c2s.len() + self.s2c.len();
        let ring_bytes = (number << self.log2_size) * stride(self.buffer_bytes) as usize;
        Buffers::Own {
            first: (buffers_at(rings, self.log2_size) + ring_bytes) as u32,
            bytes: self.buffer_bytes,
        }
    }

    /// All that is to be said after INIT.
    fn messages(&self, config: &Config) -> io::Result<VecDeque<(Message, Option<OwnedFd>)>> {
        let region = AddRegion {
            index: 0,
            bytes: self.bytes as u64,
        };
        let mut messages =
            VecDeque::from([(Message::AddRegion(region), Some(self.fd.try_clone()?))]);
        let directions = [(RING_C2S, &self.c2s), (0, &self.s2c)];
        let mut number = 0;
        for (flags, bells) in directions {
            for (index, bell) in bells.iter().enumerate() {
                let ring = AddRing {
                    flags,
                    index: index as u16,
                    region: 0,
                    offset: self.ring_offset(number),
                    log2_size: self.log2_size,
                    private_header_bytes: 0,
                };
                let bell = bell.as_fd().try_clone_to_owned()?;
                messages.push_back((Message::AddRing(ring), Some(bell)));
                number += 1;
            }
        }
        messages.push_back((Message::Connect(Text::new(&config.name)), None));
        Ok(messages)
    }

    fn connect(self) -> Result<Queues, ControlError> {
        let c2s = self.c2s.len();
        let bell = |bell: &EventFd| bell.as_fd().try_clone_to_owned();
        let transmitters = self.c2s.iter().enumerate().map(|(number, eventfd)| {
            let ring = self.ring(number)?;
            Ok(Transmitter::new(ring, self.buffers(number), bell(eventfd)?))
        });
        let transmitters: io::Result<_> = transmitters.collect();
        let receivers = self.s2c.iter().enumerate().map(|(index, eventfd)| {
            let number = c2s + index;
            let ring = self.ring(number)?;
            Ok(Receiver::new(ring, self.buffers(number), bell(eventfd)?))
        });
        let receivers: io::Result<_> = receivers.collect();
        Ok(Queues {
            receivers: receivers.map_err(ControlError::Map)?,
            transmitters: transmitters.map_err(ControlError::Map)?,
        })
    }
}

/// Where the buffers begin: on a page.
pub(super) const fn buffers_at(rings: usize, log2_size: u8) -> usize {
    (rings * ring_bytes(log2_size)).next_multiple_of(4096)
}

#[cfg(test)]
mod tests;
