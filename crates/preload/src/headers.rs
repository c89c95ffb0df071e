//! Headers of messages, as the program's C library lays them out.
//!
//! The kernel counts buffers and the bytes of control messages in 64 bits. In musl's headers there are 32 bits and a gap, which a program
//! need not clear: musl's `sendmsg` and `recvmsg` do that, in copies of their own.

use libc::{c_int, cmsghdr, msghdr};

use crate::{c_library, user};

/// What a count of a header says.
#[inline]
pub(crate) fn count(word: usize) -> usize {
    if c_library::is_musl() {
        word & u32::MAX as usize
    } else {
        word
    }
}

/// Whether the kernel takes a message's address, of which it makes nothing on a connection.
pub(crate) fn takes_name(header: &msghdr) -> bool {
    // It copies no more than the longest address that there is.
    const LONGEST: usize = size_of::<libc::sockaddr_storage>();
    let bytes = header.msg_namelen as usize;
    header.msg_name.is_null()
        || header.msg_namelen.cast_signed() >= 0
            && user::can_read(header.msg_name.cast(), bytes.min(LONGEST))
}

/// The descriptors that a message's control messages carry. They are readable.
pub(crate) fn descriptors(header: &msghdr) -> Vec<c_int> {
    let mut found = Vec::new();
    let start = header.msg_control as usize;
    let mut rest = count(header.msg_controllen);
    let mut place = start;
    while rest >= size_of::<cmsghdr>() {
        // SAFETY: inside the control messages.
        let control = unsafe { (place as *const cmsghdr).read_unaligned() };
        let bytes = count(control.cmsg_len);
        if bytes < size_of::<cmsghdr>() || bytes > rest {
            // The kernel refuses the message.
            break;
        }
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let first = place + size_of::<cmsghdr>();
            let carried = (bytes - size_of::<cmsghdr>()) / size_of::<c_int>();
            found.extend((0..carried).map(|index| {
                // SAFETY: inside the control message.
                unsafe { (first as *const c_int).add(index).read_unaligned() }
            }));
        }
        let step = bytes.next_multiple_of(size_of::<usize>()).min(rest);
        place += step;
        rest -= step;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two control messages: one of another kind, and two descriptors, with `gap` in the upper halves.
    fn message(gap: usize) -> [usize; 7] {
        let kind = |level: c_int, kind: c_int| {
            (level.cast_unsigned() as usize) | (kind.cast_unsigned() as usize) << 32
        };
        let two = 5usize | 6usize << 32;
        [
            20 | gap,
            kind(libc::SOL_SOCKET, libc::SCM_TIMESTAMP),
            7,
            24 | gap,
            kind(libc::SOL_SOCKET, libc::SCM_RIGHTS),
            two,
            usize::MAX,
        ]
    }

    fn header(words: &mut [usize], bytes: usize) -> msghdr {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = words.as_mut_ptr().cast();
        header.msg_controllen = bytes;
        header
    }

    #[test]
    fn descriptors_are_found_with_and_without_gaps() {
        let mut words = message(0);
        assert_eq!(descriptors(&header(&mut words, 48)), [5, 6]);
        // Cut short, and a length that the kernel refuses.
        assert_eq!(descriptors(&header(&mut words, 47)), []);
        words[0] = 15;
        assert_eq!(descriptors(&header(&mut words, 48)), []);
        // What programs leave in the gaps is not looked at where there are any.
        let gap = 0x5a5a_5a5a << 32;
        c_library::pretend(true);
        assert_eq!(descriptors(&header(&mut message(gap), 48 | gap)), [5, 6]);
        assert_eq!(count(3 | gap), 3);
        c_library::pretend(false);
        assert_eq!(count(3 | gap), 3 | gap);
    }
}
