//! How a packet goes on: which header it gets, and what of it stays where it came. Nothing is changed here but copies.

use millrace_wire::gtpu::pdu_session::{Direction, Frame};
use millrace_wire::gtpu::{
    Comprehension, END_MARKER, EXTENSION_PDU_SESSION, EXTENSIONS, Extension, Extensions, G_PDU,
    HEADER_BYTES, Header, LONG_HEADER_BYTES, Message, emit_extension, extension_bytes,
};

use super::{HEADER_BYTES_MAX, Verdict};
use crate::bearer::{BearerId, Peer, Side};
use crate::cause::Cause;
use crate::inner::Inner;
use crate::mark;
use crate::paths::PathId;
use crate::table::Table;
use crate::table::hot::{Flow, Hot, NUMBERS, REFLECTIVE};
use crate::table::users::User;

/// Where a header is written. It is no part of a [`Way`], so that it is copied once, to the verdict.
pub(super) type Room = [u8; HEADER_BYTES_MAX];

/// How long a header is, and what follows it.
type Parts<'a> = (usize, &'a [u8]);

/// How a packet goes on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way<'a> {
    /// By a tunnel.
    Tunnel {
        side: Side,
        to: Peer,
        path: PathId,
        class: u8,
        header_bytes: usize,
        body: &'a [u8],
    },
    /// As it is.
    Plain {
        side: Side,
        header_bytes: usize,
        body: &'a [u8],
    },
    /// Not at all: it was a tunnel's last message.
    Ends,
}

impl<'a> Way<'a> {
    #[inline]
    pub(super) fn verdict(self, bearer: BearerId, room: Room) -> Verdict<'a> {
        match self {
            Way::Tunnel {
                side,
                to,
                path,
                class,
                header_bytes,
                body,
            } => Verdict::Relay {
                bearer,
                side,
                to,
                path,
                class,
                header: (room, header_bytes),
                body,
            },
            Way::Plain {
                side,
                header_bytes,
                body,
            } => Verdict::Plain {
                bearer,
                side,
                header: (room, header_bytes),
                body,
            },
            Way::Ends => Verdict::Done,
        }
    }
}

/// A message as it came.
pub(super) struct Came<'a, 'b> {
    /// By which side's interface.
    pub(super) from: Side,
    /// The outer header's traffic class.
    pub(super) class: u8,
    pub(super) datagram: &'a [u8],
    pub(super) message: &'b Message<'a>,
}

/// Whether an extension header of this kind is understood here.
pub(super) fn is_known(kind: u8) -> bool {
    EXTENSIONS.contains(&kind)
}

/// Where a message ends in its datagram.
pub(super) fn end(datagram: &[u8]) -> usize {
    match datagram {
        [_, _, high, low, ..] => {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            (HEADER_BYTES + length).min(datagram.len())
        }
        _ => datagram.len(),
    }
}

/// A message for a bearer that there is.
#[inline]
pub(super) fn carry<'a>(
    bearers: &Table,
    (id, hot): (BearerId, &Hot),
    came: &Came<'a, '_>,
    room: &mut Room,
) -> Result<Way<'a>, Cause> {
    let to = came.from.other();
    if hot.is_plain(to) {
        return unwrap(bearers, id, hot, came, room);
    }
    let parts = if came.message.extensions == Extensions::default() {
        without_extensions(bearers, hot, to, came, room)?
    } else {
        rewrite(bearers, id, hot, came, room)?
    };
    let class = mark::relayed(
        hot.marking[to as usize],
        came.class,
        mark::class_of(came.message.body),
    );
    tunnel(bearers, hot, to, class, parts)
}

/// A user's packet that comes as it is.
pub(super) fn wrap<'a>(
    bearers: &Table,
    id: BearerId,
    to: Side,
    packet: &'a [u8],
    room: &mut Room,
) -> Result<Way<'a>, Cause> {
    let hot = bearers.hot(id).ok_or(Cause::UnknownUser)?;
    if hot.is_plain(to) {
        return Err(Cause::UnknownUser);
    }
    let mut header = header_of(hot, to, G_PDU);
    let count = match hot.flow(to) {
        Flow::Set(flow) => {
            header.extension = EXTENSION_PDU_SESSION;
            let policy = bearers.paging_policy(hot);
            let extension = put_container(to, flow, policy, &mut room[LONG_HEADER_BYTES..])?;
            LONG_HEADER_BYTES + extension
        }
        Flow::Mapped => return Err(Cause::Flow),
        Flow::Kept | Flow::Removed => header.bytes(),
    };
    let following = count - header.bytes() + packet.len();
    header.emit(following, room).ok_or(Cause::TooBig)?;
    let class = mark::encapsulated(hot.marking[to as usize], mark::class_of(packet));
    tunnel(bearers, hot, to, class, (count, packet))
}

#[inline]
fn tunnel<'a>(
    bearers: &Table,
    hot: &Hot,
    side: Side,
    class: u8,
    (header_bytes, body): Parts<'a>,
) -> Result<Way<'a>, Cause> {
    let path = hot.path(side);
    let address = bearers.paths.address(path).ok_or(Cause::UnknownTeid)?;
    Ok(Way::Tunnel {
        side,
        to: Peer {
            address,
            teid: hot.teid(side),
        },
        path,
        class,
        header_bytes,
        body,
    })
}

fn header_of(hot: &Hot, to: Side, kind: u8) -> Header {
    Header {
        kind,
        teid: hot.teid(to),
        sequence: None,
        extension: 0,
    }
}

/// Numbers that are handed on: none, but where data is forwarded between systems. The last message of a tunnel has none ever (TS 29.281,
/// 5.1).
#[inline]
fn numbers(hot: &Hot, message: &Message<'_>) -> (Option<u16>, Option<u8>) {
    if hot.flags & NUMBERS != 0 && message.kind != END_MARKER {
        (message.sequence, message.npdu)
    } else {
        (None, None)
    }
}

#[inline]
fn without_extensions<'a>(
    bearers: &Table,
    hot: &Hot,
    to: Side,
    came: &Came<'a, '_>,
    room: &mut Room,
) -> Result<Parts<'a>, Cause> {
    let message = came.message;
    let mut header = header_of(hot, to, message.kind);
    let (sequence, npdu) = numbers(hot, message);
    header.sequence = sequence;
    let mut count = 0;
    match hot.flow(to) {
        Flow::Set(flow) if message.kind == G_PDU => {
            header.extension = EXTENSION_PDU_SESSION;
            let policy = bearers.paging_policy(hot);
            count = put_container(to, flow, policy, &mut room[LONG_HEADER_BYTES..])?;
        }
        Flow::Mapped if message.kind == G_PDU => return Err(Cause::Flow),
        _ => {}
    }
    let body = message.body;
    let written = header
        .emit_numbered(npdu, count + body.len(), room)
        .ok_or(Cause::Malformed)?;
    Ok((written + count, body))
}

/// The QoS flow that a message goes on as, if any, by that which its container says; one that is set is so with [`REFLECTIVE`], or without.
fn flow_after(
    bearers: &Table,
    id: BearerId,
    hot: &Hot,
    to: Side,
    came: Option<u8>,
) -> Result<Option<u8>, Cause> {
    match hot.flow(to) {
        Flow::Kept => Ok(came),
        Flow::Removed => Ok(None),
        Flow::Set(flow) => Ok(Some(flow)),
        Flow::Mapped => {
            let extra = bearers.extra(id).ok_or(Cause::Flow)?;
            let map = extra.maps[to as usize].as_ref().ok_or(Cause::Flow)?;
            let came = came.ok_or(Cause::Flow)?;
            map[usize::from(came % 64)].map(Some).ok_or(Cause::Flow)
        }
    }
}

fn flow_of(message: &Message<'_>) -> Option<u8> {
    let mut extensions = message.extensions;
    let container = extensions.find(|one| one.kind == EXTENSION_PDU_SESSION)?;
    Frame::parse(container.content).map(|frame| frame.qfi)
}

/// What becomes of an extension header in a relay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It stays as it is.
    Stays,
    /// It is left out.
    Goes,
    /// Its QoS flow becomes another.
    Changes(u8),
}

fn fate_of(extension: &Extension<'_>, is_kept: bool, flow: Option<u8>) -> Result<Fate, Cause> {
    let kind = extension.kind;
    if kind == EXTENSION_PDU_SESSION && !is_kept {
        return Ok(flow.map_or(Fate::Goes, Fate::Changes));
    }
    match Comprehension::of(kind) {
        Comprehension::Discard => Ok(Fate::Goes),
        Comprehension::Everybody if !is_known(kind) => Err(Cause::Comprehension),
        _ => Ok(Fate::Stays),
    }
}

/// The header of a message with extension headers. They are handed on by their comprehension bits: what nobody has to understand and is not
/// to be handed on is left out. Those behind the last one that changes, in most messages all, stay where they are, before the packet.
fn rewrite<'a>(
    bearers: &Table,
    id: BearerId,
    hot: &Hot,
    came: &Came<'a, '_>,
    room: &mut Room,
) -> Result<Parts<'a>, Cause> {
    let (message, to) = (came.message, came.from.other());
    let is_kept = hot.flow(to) == Flow::Kept || message.kind != G_PDU;
    let flow = match is_kept {
        true => None,
        false => flow_after(bearers, id, hot, to, flow_of(message))?,
    };
    // Up to where something changes, and whether there is a container.
    let (mut at, mut changed, mut has_container) = (LONG_HEADER_BYTES, LONG_HEADER_BYTES, false);
    for extension in message.extensions {
        at += extension_bytes(extension.content.len());
        if fate_of(&extension, is_kept, flow)? != Fate::Stays {
            changed = at;
        }
        has_container |= extension.kind == EXTENSION_PDU_SESSION;
    }
    let mut chain = Chain::new(room);
    if let Some(flow) = flow.filter(|_| !has_container) {
        // It is to be the first (TS 29.281, 5.2.1, note).
        chain.link(EXTENSION_PDU_SESSION);
        let count = put_container(to, flow, bearers.paging_policy(hot), chain.room()?)?;
        chain.grow(count);
    }
    let mut at = LONG_HEADER_BYTES;
    let mut rest = message.extensions;
    while at < changed {
        let Some(extension) = rest.next() else { break };
        at += extension_bytes(extension.content.len());
        let fate = fate_of(&extension, is_kept, flow)?;
        if fate == Fate::Goes {
            continue;
        }
        chain.link(extension.kind);
        let room = chain.room()?;
        let count = emit_extension(extension.content, 0, room).ok_or(Cause::Extension)?;
        if let Fate::Changes(flow) = fate {
            // Of a container that is cut off nobody knows what it is.
            change_flow(room.first_chunk_mut().ok_or(Cause::Extension)?, flow);
        }
        chain.grow(count);
    }
    if let Some(next) = rest.next() {
        chain.link(next.kind);
    }
    let body = came
        .datagram
        .get(at..end(came.datagram))
        .ok_or(Cause::Malformed)?;
    let mut header = header_of(hot, to, message.kind);
    let (sequence, npdu) = numbers(hot, message);
    header.sequence = sequence;
    header.extension = chain.first;
    let following = chain.count - LONG_HEADER_BYTES + body.len();
    let written = header
        .emit_numbered(npdu, following, chain.bytes)
        .ok_or(Cause::Malformed)?;
    let count = written.max(chain.count * usize::from(chain.last != 0));
    Ok((count, body))
}

/// Extension headers that are written, one after another, behind the room for a header.
struct Chain<'a> {
    bytes: &'a mut Room,
    count: usize,
    /// The first one's kind.
    first: u8,
    /// Where the last one's place for the next kind is; 0: none was written.
    last: usize,
}

impl<'a> Chain<'a> {
    fn new(bytes: &'a mut Room) -> Chain<'a> {
        Chain {
            bytes,
            count: LONG_HEADER_BYTES,
            first: 0,
            last: 0,
        }
    }

    /// Says which kind the next one is.
    fn link(&mut self, kind: u8) {
        match self.last {
            0 => self.first = kind,
            last => self.bytes[last] = kind,
        }
    }

    fn room(&mut self) -> Result<&mut [u8], Cause> {
        self.bytes.get_mut(self.count..).ok_or(Cause::Extension)
    }

    /// One was written.
    fn grow(&mut self, count: usize) {
        self.count += count;
        self.last = self.count - 1;
    }
}

/// Makes a PDU session container's QoS flow another: the second byte of what is behind the length. What else it says stays.
#[inline]
pub(crate) fn change_flow(container: &mut [u8; 4], flow: u8) {
    container[2] = container[2] & !0x3f | flow & 0x3f;
}

/// Writes a PDU Session Container of a QoS flow, with [`REFLECTIVE`] or without. Towards the core network it says the flow alone.
#[inline]
pub(crate) fn put_container(
    to: Side,
    flow: u8,
    paging_policy: Option<u8>,
    room: &mut [u8],
) -> Result<usize, Cause> {
    let frame = Frame {
        direction: match to {
            Side::Core => Direction::Uplink,
            Side::Radio => Direction::Downlink,
        },
        qfi: flow,
        reflective: flow & REFLECTIVE != 0,
        paging_policy,
    };
    let (bytes, count) = frame.emit();
    emit_extension(&bytes[..count], 0, room).ok_or(Cause::Extension)
}

/// A packet that leaves its last tunnel.
fn unwrap<'a>(
    bearers: &Table,
    id: BearerId,
    hot: &Hot,
    came: &Came<'a, '_>,
    room: &mut Room,
) -> Result<Way<'a>, Cause> {
    let (message, to) = (came.message, came.from.other());
    must_understand(message)?;
    if message.kind != G_PDU {
        return Ok(Way::Ends);
    }
    let body = message.body;
    if body.is_empty() {
        return Err(Cause::Empty);
    }
    if hot.flow(to) == Flow::Mapped {
        flow_after(bearers, id, hot, to, flow_of(message))?;
    }
    let inner = Inner::parse(body).ok_or(Cause::NotInternet)?;
    // Towards the core network the user sends, and towards the radio network is sent to.
    let user = match to {
        Side::Core => inner.source,
        Side::Radio => inner.destination,
    };
    if !bearers.is_user(hot, to, User::of(user)) {
        return Err(Cause::Spoofed);
    }
    let class = mark::class_of(body).ok_or(Cause::NotInternet)?;
    let ecn = mark::decapsulated(class, came.class).ok_or(Cause::Congestion)?;
    let mut header_bytes = 0;
    if ecn != class & mark::ECN_MASK {
        header_bytes = mark::rewrite(body, ecn, room).ok_or(Cause::NotInternet)?;
    }
    Ok(Way::Plain {
        side: to,
        header_bytes,
        body: &body[header_bytes..],
    })
}

/// As the end of a tunnel, or of a path, does.
pub(super) fn must_understand(message: &Message<'_>) -> Result<(), Cause> {
    let mut extensions = message.extensions;
    let is_foreign = extensions.any(|one| {
        let who = Comprehension::of(one.kind);
        matches!(who, Comprehension::Endpoint | Comprehension::Everybody) && !is_known(one.kind)
    });
    match is_foreign {
        true => Err(Cause::Comprehension),
        false => Ok(()),
    }
}
