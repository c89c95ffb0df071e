//! A pair of Unix sockets that keep the bounds of messages. A batch is one system call at either end (sendmmsg, recvmmsg). Sources share
//! one end and sinks the other.
//!
//! Messages that are larger than a socket's buffer go in several packets, as a program has to send them.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{Sink, Source, Transport};
use crate::head::{HEAD_BYTES, Head};
use crate::sys::{self, Packets};
use crate::trial::Lane;

/// The largest packet: two of them fit the kernel's default buffer.
const PACKET: usize = 64 << 10;

/// See the module.
pub(crate) struct Seqpacket;

/// The sending end, and the batch.
pub(crate) struct Sender {
    end: Option<OwnedFd>,
    packets: Packets,
    filled: usize,
    shape: Shape,
}

/// The receiving end, and what was received.
pub(crate) struct Receiver {
    end: OwnedFd,
    packets: Packets,
    /// Of a message that is not whole yet.
    filled: usize,
    shape: Shape,
}

/// How messages go in packets.
#[derive(Clone, Copy)]
struct Shape {
    bytes: usize,
    /// Of a message.
    packets: usize,
    batch: usize,
    spins: bool,
}

impl Shape {
    fn of(lane: &Lane<'_>) -> Result<Shape> {
        let (bytes, batch) = (lane.trial.bytes, lane.trial.batch);
        let packets = bytes.div_ceil(PACKET);
        ensure!(
            bytes % packets == 0,
            "{bytes} bytes are no equal packets of {PACKET} at most"
        );
        ensure!(
            packets == 1 || !lane.is_crowded(),
            "packets of several messages would mix, as {PACKET} bytes go in one"
        );
        Ok(Shape {
            bytes,
            packets,
            batch,
            spins: lane.spins,
        })
    }

    fn packets(self) -> Packets {
        Packets::new(self.bytes / self.packets, self.packets * self.batch)
    }
}

fn ends(parts: Vec<OwnedFd>) -> Result<[OwnedFd; 2]> {
    let parts = <[OwnedFd; 2]>::try_from(parts);
    parts.ok().context("a pair of sockets has two ends")
}

impl Transport for Seqpacket {
    type Source = Sender;
    type Sink = Receiver;

    fn make(_: &Lane<'_>) -> Result<Vec<OwnedFd>> {
        let (sender, receiver) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok(vec![sender, receiver])
    }

    fn source(lane: &Lane<'_>, parts: Vec<OwnedFd>, _: usize) -> Result<Sender> {
        let ([sender, _], shape) = (ends(parts)?, Shape::of(lane)?);
        Ok(Sender {
            end: Some(sender),
            packets: shape.packets(),
            filled: 0,
            shape,
        })
    }

    fn sink(lane: &Lane<'_>, parts: Vec<OwnedFd>, _: usize) -> Result<Receiver> {
        let ([_, receiver], shape) = (ends(parts)?, Shape::of(lane)?);
        Ok(Receiver {
            end: receiver,
            packets: shape.packets(),
            filled: 0,
            shape,
        })
    }
}

impl Source for Sender {
    fn push(&mut self, head: &Head) -> Result<bool> {
        if self.filled == self.shape.batch {
            return Ok(false);
        }
        let at = self.filled * self.shape.bytes;
        head.write_to(&mut self.packets.bytes_mut()[at..at + HEAD_BYTES]);
        self.filled += 1;
        Ok(true)
    }

    fn publish(&mut self) -> Result<()> {
        let end = self.end.as_ref().context("the socket is closed")?;
        let (mut sent, all) = (0, self.filled * self.shape.packets);
        while sent < all {
            match sys::send_packets(end, &mut self.packets, sent..all, self.shape.spins)? {
                0 => std::hint::spin_loop(),
                more => sent += more,
            }
        }
        self.filled = 0;
        Ok(())
    }

    /// The end of the stream is received when the last of the sources has closed it.
    fn finish(&mut self, _: &Head) -> Result<()> {
        self.end = None;
        Ok(())
    }
}

impl Sink for Receiver {
    fn pop(&mut self, _: usize, take: &mut impl FnMut(&Head)) -> Result<Option<usize>> {
        let each = self.shape.packets;
        // Of a message of several packets no more than its rest, so that nothing has to be moved.
        let most = if each == 1 { self.shape.batch } else { each };
        match sys::receive_packets(
            &self.end,
            &mut self.packets,
            self.filled..most,
            self.shape.spins,
        )? {
            None => return Ok(None),
            Some(more) => self.filled += more,
        }
        let whole = self.filled / each;
        for message in
            self.packets.bytes()[..whole * self.shape.bytes].chunks_exact(self.shape.bytes)
        {
            take(&Head::read_from(message).context("a message is too short")?);
        }
        self.filled -= whole * each;
        Ok(Some(whole))
    }
}
