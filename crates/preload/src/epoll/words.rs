//! The data words of a set's members, by which events name them, and the hash of its tables.

use std::hash::Hasher;

use libc::c_int;

use super::EDGE;
use super::rings::{Inner, Member};
use crate::socket::Socket;

/// For descriptors and data words: numbers of the program's own, of which nobody makes colliding ones.
#[derive(Debug, Default)]
pub(super) struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 << 8 | u64::from(*byte));
        }
    }

    #[inline]
    fn write_i32(&mut self, number: i32) {
        self.write_u64(u64::from(number.cast_unsigned()));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // The table takes the place from the low bits and a tag from the high ones.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// The members that carry the same data word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharers {
    pub(super) count: u32,
    /// The one that came last.
    pub(super) fd: c_int,
}

impl Inner {
    /// Whether another member carries the same data word as the member `fd`.
    pub(super) fn is_ambiguous(&self, fd: c_int) -> bool {
        let data = self.members.get(&fd).map(|member| member.data);
        let sharers = data.and_then(|data| self.by_data.get(&data));
        sharers.is_some_and(|sharers| sharers.count > 1)
    }

    /// The member that alone carries this data word, and its descriptor.
    pub(super) fn only_one_of(&self, data: u64) -> Option<(c_int, &Member)> {
        let sharers = self.by_data.get(&data)?;
        let member = self.members.get(&sharers.fd)?;
        (sharers.count == 1).then_some((sharers.fd, member))
    }

    /// The connection that carries this data word.
    pub(super) fn socket_of(&self, data: u64) -> Option<&'static Socket> {
        let sharers = self.by_data.get(&data)?;
        self.members.get(&sharers.fd)?.socket
    }

    /// What those want that carry this data word.
    pub(super) fn wanted_by(&self, data: u64) -> u32 {
        let of = |member: &Member| member.wanted.unwrap_or(0);
        if let Some((_, member)) = self.only_one_of(data) {
            return of(member);
        }
        if !self.by_data.contains_key(&data) {
            return 0;
        }
        let sharers = self.members.values().filter(|member| member.data == data);
        sharers.fold(0, |wanted, member| wanted | of(member))
    }

    /// The connection that is the member `fd`, with a descriptor of it; whether its ring may have more to report.
    pub(super) fn sharer(&self, fd: c_int) -> Option<(c_int, &'static Socket, bool)> {
        let member = self.members.get(&fd)?;
        let has_news = member.told & EDGE == 0 || self.is_member_ready(fd);
        Some((member.by, member.socket?, has_news))
    }
}
