//! Descriptors that nobody asked for, and memory files that are not what they seem.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use crate::random::Random;
use crate::sys;

const SHRINK: i32 = libc::F_SEAL_SHRINK;
const GROW: i32 = libc::F_SEAL_GROW;
const WRITE: i32 = libc::F_SEAL_WRITE;

/// Something to send beside a message; `bytes` is the size of the memory that would be right there.
pub(crate) fn draw(random: &mut Random, bytes: usize) -> Option<OwnedFd> {
    let pipe = |which: usize| {
        let (reader, writer) = std::io::pipe().ok()?;
        Some(if which == 0 {
            reader.into()
        } else {
            writer.into()
        })
    };
    match random.below(14) {
        0 => None,
        1 => pipe(0),
        2 => pipe(1),
        3 => File::open("/").ok().map(OwnedFd::from),
        4 => File::open("/dev/null").ok().map(OwnedFd::from),
        5 => File::open("/dev/zero").ok().map(OwnedFd::from),
        6 => UnixStream::pair().ok().map(|(one, _)| one.into()),
        7 => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .ok()
            .map(OwnedFd::from),
        8 => UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
            .ok()
            .map(OwnedFd::from),
        // As large as it should be, and not for long.
        9 => sys::memory(bytes, 0).ok(),
        10 => sys::memory(bytes, random.pick(&[SHRINK, GROW])).ok(),
        // Sealed, and of a wrong size.
        11 => sys::memory(
            random.pick(&[0, 1, 4095, 4096, bytes - 4096, bytes + 4096]),
            SHRINK | GROW,
        )
        .ok(),
        12 => sys::memory(bytes, SHRINK | GROW | WRITE).ok(),
        // Nothing is wrong with it but its content.
        _ => sys::memory(bytes, SHRINK | GROW).ok(),
    }
}
