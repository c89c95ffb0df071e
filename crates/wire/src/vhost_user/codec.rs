//! The bytes of messages.

use super::{
    Answer, HEADER_BYTES, Header, Inflight, MESSAGE_BYTES_MAX, ParseError, REGIONS_MAX, Region,
    Request, Table, VERSION, VringAddress, VringFd, VringState,
};

/// In flags.
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Behind in-flight memory's description: QEMU and DPDK send the structure as their compilers have it. The document has none.
const INFLIGHT_PADDING: usize = 4;

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const RESET_OWNER: u32 = 4;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ERR: u32 = 14;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const GET_QUEUE_NUM: u32 = 17;
const SET_VRING_ENABLE: u32 = 18;
const GET_INFLIGHT_FD: u32 = 31;
const SET_INFLIGHT_FD: u32 = 32;
const GET_MAX_MEM_SLOTS: u32 = 36;
const ADD_MEM_REG: u32 = 37;
const REM_MEM_REG: u32 = 38;

impl VringFd {
    fn parse(word: u64) -> VringFd {
        VringFd {
            index: word as u8,
            has_fd: word & 0x100 == 0,
        }
    }

    fn emit(self) -> u64 {
        u64::from(self.index) | u64::from(!self.has_fd) << 8
    }
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// When it is of another version, or its payload is longer than any message's.
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> Result<Header, ParseError> {
        let mut r = Reader(&bytes);
        let (request, flags, bytes) = (r.u32(), r.u32(), r.u32());
        if flags & VERSION_MASK != VERSION {
            return Err(ParseError::Version(flags & VERSION_MASK));
        }
        if bytes as usize > MESSAGE_BYTES_MAX - HEADER_BYTES {
            return Err(ParseError::Size { request, bytes });
        }
        Ok(Header {
            request,
            is_reply: flags & REPLY != 0,
            needs_reply: flags & NEED_REPLY != 0,
            bytes,
        })
    }
}

impl Request {
    /// Its number, and what it is called in the protocol's documents, without `VHOST_USER_`.
    const fn kind(&self) -> (u32, &'static str) {
        match self {
            Request::GetFeatures => (GET_FEATURES, "GET_FEATURES"),
            Request::SetFeatures(_) => (SET_FEATURES, "SET_FEATURES"),
            Request::SetOwner => (SET_OWNER, "SET_OWNER"),
            Request::ResetOwner => (RESET_OWNER, "RESET_OWNER"),
            Request::SetMemTable(_) => (SET_MEM_TABLE, "SET_MEM_TABLE"),
            Request::SetVringNum(_) => (SET_VRING_NUM, "SET_VRING_NUM"),
            Request::SetVringAddr(_) => (SET_VRING_ADDR, "SET_VRING_ADDR"),
            Request::SetVringBase(_) => (SET_VRING_BASE, "SET_VRING_BASE"),
            Request::GetVringBase(_) => (GET_VRING_BASE, "GET_VRING_BASE"),
            Request::SetVringKick(_) => (SET_VRING_KICK, "SET_VRING_KICK"),
            Request::SetVringCall(_) => (SET_VRING_CALL, "SET_VRING_CALL"),
            Request::SetVringErr(_) => (SET_VRING_ERR, "SET_VRING_ERR"),
            Request::GetProtocolFeatures => (GET_PROTOCOL_FEATURES, "GET_PROTOCOL_FEATURES"),
            Request::SetProtocolFeatures(_) => (SET_PROTOCOL_FEATURES, "SET_PROTOCOL_FEATURES"),
            Request::GetQueueNum => (GET_QUEUE_NUM, "GET_QUEUE_NUM"),
            Request::SetVringEnable(_) => (SET_VRING_ENABLE, "SET_VRING_ENABLE"),
            Request::GetInflightFd(_) => (GET_INFLIGHT_FD, "GET_INFLIGHT_FD"),
            Request::SetInflightFd(_) => (SET_INFLIGHT_FD, "SET_INFLIGHT_FD"),
            Request::GetMaxMemSlots => (GET_MAX_MEM_SLOTS, "GET_MAX_MEM_SLOTS"),
            Request::AddMemReg(_) => (ADD_MEM_REG, "ADD_MEM_REG"),
            Request::RemMemReg(_) => (REM_MEM_REG, "REM_MEM_REG"),
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.kind().0
    }

    /// What it is called in the protocol's documents, without `VHOST_USER_`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.kind().1
    }

    /// How many descriptors come with it.
    #[must_use]
    pub fn fds(&self) -> usize {
        match self {
            Request::SetMemTable(table) => table.regions().len(),
            Request::SetVringKick(ring)
            | Request::SetVringCall(ring)
            | Request::SetVringErr(ring) => usize::from(ring.has_fd),
            Request::SetInflightFd(_) | Request::AddMemReg(_) => 1,
            _ => 0,
        }
    }

    /// Reads a message. The payload has the length that the header says.
    ///
    /// # Errors
    /// When it is no request. Never panics; numbers are the sender's, and to be checked.
    pub fn parse(header: Header, payload: &[u8]) -> Result<Request, ParseError> {
        if header.is_reply {
            return Err(ParseError::Direction);
        }
        let size = ParseError::Size {
            request: header.request,
            bytes: payload.len() as u32,
        };
        let mut r = Reader(payload);
        let request = match header.request {
            GET_FEATURES => Request::GetFeatures,
            SET_FEATURES => Request::SetFeatures(r.u64()),
            SET_OWNER => Request::SetOwner,
            RESET_OWNER => Request::ResetOwner,
            SET_MEM_TABLE => {
                let count = r.u32();
                r.u32();
                if count as usize > REGIONS_MAX {
                    return Err(ParseError::Regions(count));
                }
                let mut table = Table::default();
                for region in &mut table.regions[..count as usize] {
                    *region = r.region();
                    table.count += 1;
                }
                Request::SetMemTable(table)
            }
            SET_VRING_NUM => Request::SetVringNum(r.state()),
            SET_VRING_ADDR => Request::SetVringAddr(r.address()),
            SET_VRING_BASE => Request::SetVringBase(r.state()),
            GET_VRING_BASE => Request::GetVringBase(r.state()),
            SET_VRING_KICK => Request::SetVringKick(VringFd::parse(r.u64())),
            SET_VRING_CALL => Request::SetVringCall(VringFd::parse(r.u64())),
            SET_VRING_ERR => Request::SetVringErr(VringFd::parse(r.u64())),
            GET_PROTOCOL_FEATURES => Request::GetProtocolFeatures,
            SET_PROTOCOL_FEATURES => Request::SetProtocolFeatures(r.u64()),
            GET_QUEUE_NUM => Request::GetQueueNum,
            SET_VRING_ENABLE => Request::SetVringEnable(r.state()),
            GET_INFLIGHT_FD => Request::GetInflightFd(r.inflight()),
            SET_INFLIGHT_FD => Request::SetInflightFd(r.inflight()),
            GET_MAX_MEM_SLOTS => Request::GetMaxMemSlots,
            ADD_MEM_REG => Request::AddMemReg(r.single()),
            REM_MEM_REG => Request::RemMemReg(r.single()),
            request => return Err(ParseError::Request(request)),
        };
        let wanted = request.emit(false).bytes().len() - HEADER_BYTES;
        let is_unpadded = matches!(
            request,
            Request::GetInflightFd(_) | Request::SetInflightFd(_)
        ) && payload.len() + INFLIGHT_PADDING == wanted;
        if wanted != payload.len() && !is_unpadded {
            return Err(size);
        }
        Ok(request)
    }

    /// The message, which asks for an answer that tells of success or not.
    #[must_use]
    pub fn emit(&self, needs_reply: bool) -> Emitted {
        let mut w = Emitted::new(self.number(), if needs_reply { NEED_REPLY } else { 0 });
        match self {
            Request::GetFeatures
            | Request::SetOwner
            | Request::ResetOwner
            | Request::GetProtocolFeatures
            | Request::GetQueueNum
            | Request::GetMaxMemSlots => {}
            Request::SetFeatures(number) | Request::SetProtocolFeatures(number) => {
                w.put(&number.to_le_bytes());
            }
            Request::SetVringKick(ring)
            | Request::SetVringCall(ring)
            | Request::SetVringErr(ring) => w.put(&ring.emit().to_le_bytes()),
            Request::SetMemTable(table) => {
                w.put(&(table.count as u64).to_le_bytes());
                for region in table.regions() {
                    w.region(region);
                }
            }
            Request::SetVringNum(state)
            | Request::SetVringBase(state)
            | Request::GetVringBase(state)
            | Request::SetVringEnable(state) => w.state(*state),
            Request::SetVringAddr(address) => {
                w.put(&address.index.to_le_bytes());
                w.put(&address.flags.to_le_bytes());
                w.put(&address.descriptors.to_le_bytes());
                w.put(&address.used.to_le_bytes());
                w.put(&address.available.to_le_bytes());
                w.put(&address.log.to_le_bytes());
            }
            Request::GetInflightFd(inflight) | Request::SetInflightFd(inflight) => {
                w.inflight(inflight);
            }
            Request::AddMemReg(region) | Request::RemMemReg(region) => {
                w.put(&0u64.to_le_bytes());
                w.region(region);
            }
        }
        w
    }
}

impl Answer {
    /// The message that answers a request of this number.
    #[must_use]
    pub fn emit(&self, request: u32) -> Emitted {
        let mut w = Emitted::new(request, REPLY);
        match self {
            Answer::Number(number) => w.put(&number.to_le_bytes()),
            Answer::State(state) => w.state(*state),
            Answer::Inflight(inflight) => w.inflight(inflight),
        }
        w
    }

    /// Reads a message. The payload has the length that the header says.
    ///
    /// # Errors
    /// When it is no answer. Never panics.
    pub fn parse(header: Header, payload: &[u8]) -> Result<Answer, ParseError> {
        if !header.is_reply {
            return Err(ParseError::Direction);
        }
        let mut r = Reader(payload);
        let (answer, wanted) = match header.request {
            GET_VRING_BASE => (Answer::State(r.state()), 8),
            GET_INFLIGHT_FD => (Answer::Inflight(r.inflight()), 20 + INFLIGHT_PADDING),
            _ => (Answer::Number(r.u64()), 8),
        };
        let is_unpadded =
            matches!(answer, Answer::Inflight(_)) && payload.len() + INFLIGHT_PADDING == wanted;
        if payload.len() != wanted && !is_unpadded {
            return Err(ParseError::Size {
                request: header.request,
                bytes: payload.len() as u32,
            });
        }
        Ok(answer)
    }
}

/// A message as bytes.
#[derive(Debug, Clone, Copy)]
pub struct Emitted {
    bytes: [u8; MESSAGE_BYTES_MAX],
    length: usize,
}

impl Emitted {
    fn new(request: u32, flags: u32) -> Emitted {
        let mut emitted = Emitted {
            bytes: [0; MESSAGE_BYTES_MAX],
            length: 0,
        };
        emitted.put(&request.to_le_bytes());
        emitted.put(&(VERSION | flags).to_le_bytes());
        emitted.put(&[0; 4]);
        emitted
    }

    /// They.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// No message is longer than the array: the longest is a table of regions.
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.length..self.length + field.len()].copy_from_slice(field);
        self.length += field.len();
        let payload = self.length.saturating_sub(HEADER_BYTES) as u32;
        if payload > 0 {
            self.bytes[8..HEADER_BYTES].copy_from_slice(&payload.to_le_bytes());
        }
    }

    fn state(&mut self, state: VringState) {
        self.put(&state.index.to_le_bytes());
        self.put(&state.number.to_le_bytes());
    }

    fn region(&mut self, region: &Region) {
        for field in [region.guest, region.bytes, region.user, region.offset] {
            self.put(&field.to_le_bytes());
        }
    }

    fn inflight(&mut self, inflight: &Inflight) {
        self.put(&inflight.bytes.to_le_bytes());
        self.put(&inflight.offset.to_le_bytes());
        self.put(&inflight.queues.to_le_bytes());
        self.put(&inflight.size.to_le_bytes());
        self.put(&[0; INFLIGHT_PADDING]);
    }
}

/// Takes fields one after another; zeros where there are no more, which the check of the length finds.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk() else {
            self.0 = &[];
            return [0; N];
        };
        self.0 = rest;
        *field
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn state(&mut self) -> VringState {
        VringState {
            index: self.u32(),
            number: self.u32(),
        }
    }

    fn address(&mut self) -> VringAddress {
        VringAddress {
            index: self.u32(),
            flags: self.u32(),
            descriptors: self.u64(),
            used: self.u64(),
            available: self.u64(),
            log: self.u64(),
        }
    }

    fn region(&mut self) -> Region {
        Region {
            guest: self.u64(),
            bytes: self.u64(),
            user: self.u64(),
            offset: self.u64(),
        }
    }

    fn single(&mut self) -> Region {
        self.u64();
        self.region()
    }

    fn inflight(&mut self) -> Inflight {
        Inflight {
            bytes: self.u64(),
            offset: self.u64(),
            queues: self.u16(),
            size: self.u16(),
        }
    }
}
