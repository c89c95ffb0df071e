//! `select` and `pselect`.

use libc::{c_int, fd_set, sigset_t};
use smallvec::SmallVec;

use super::{Watch, length_of, wait};
use crate::kernel;
use crate::{client, thread, user};

/// As many descriptors as the C library's type has.
const FD_SETSIZE: usize = 1024;

/// Bits of an `fd_set`; none where there is no set.
type Words = SmallVec<[u64; 16]>;

/// The descriptors of a program's `fd_set` below `count`, which may be larger than the C library's type.
#[derive(Clone, Copy, Debug)]
struct Bits {
    words: *mut u64,
    count: usize,
}

impl Bits {
    fn bytes(self) -> usize {
        self.count.div_ceil(64) * 8
    }

    fn is_readable(self) -> bool {
        self.words.is_null() || user::can_read(self.words.cast(), self.bytes())
    }

    fn is_usable(self) -> bool {
        self.words.is_null() || user::can_write(self.words.cast(), self.bytes())
    }

    fn copy(self) -> Words {
        if self.words.is_null() {
            return SmallVec::new();
        }
        // SAFETY: `is_usable` has been asked.
        unsafe { std::slice::from_raw_parts(self.words, self.bytes() / 8) }.into()
    }

    fn put(self, words: &[u64]) {
        if !self.words.is_null() {
            // SAFETY: `is_usable` has been asked, and the copy has the same length.
            unsafe { std::slice::from_raw_parts_mut(self.words, self.bytes() / 8) }
                .copy_from_slice(words);
        }
    }
}

fn has_bit(words: &[u64], fd: usize) -> bool {
    words
        .get(fd / 64)
        .is_some_and(|word| word >> (fd % 64) & 1 == 1)
}

/// What the kernel has to report now, and the rings. None: an error, which `errno` has.
fn ask_select(
    wanted: &[Words; 3],
    length: usize,
    mask: *const sigset_t,
    watch: &Watch,
) -> Option<[Words; 3]> {
    let mut found = wanted.clone();
    let places = found.each_mut().map(|words| match words.is_empty() {
        true => std::ptr::null_mut(),
        false => words.as_mut_ptr(),
    });
    let result = kernel::select_now(length, places, watch.mask(mask));
    if result < 0 {
        thread::told(result);
        return None;
    }
    for fd in watch.ready() {
        found[0][fd as usize / 64] |= 1 << (fd as usize % 64);
    }
    // An error counts as both.
    for fd in watch.owing.iter().map(|fd| *fd as usize) {
        for set in [0, 1].into_iter().filter(|set| has_bit(&wanted[*set], fd)) {
            found[set][fd / 64] |= 1 << (fd % 64);
        }
    }
    Some(found)
}

/// `select` and `pselect`; `sleep` is the program's own call.
pub(crate) fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    sleep: &mut dyn FnMut() -> c_int,
) -> c_int {
    let Some(length) = length_of(count) else {
        return sleep();
    };
    client::glance();
    let length = match length > FD_SETSIZE {
        true => length.min(kernel::descriptors_max()),
        false => length,
    };
    let bits = sets.map(|set| Bits {
        words: set.cast(),
        count: length,
    });
    if length == 0 || !bits.iter().all(|bits| bits.is_readable()) {
        return sleep();
    }
    if !bits.iter().all(|bits| bits.is_usable()) {
        return thread::fail(libc::EFAULT);
    }
    let wanted = bits.map(Bits::copy);
    let mut watch = Watch::default();
    for fd in 0..length {
        let [reads, writes] = [0, 1].map(|set| has_bit(&wanted[set], fd));
        if reads || writes {
            watch.look_for_debt(fd as c_int);
        }
        if reads {
            watch.add(fd as c_int, timeout_ns);
        }
    }
    if watch.is_needless(timeout_ns) {
        return sleep();
    }
    let mut ask = |watch: &Watch| {
        let found = ask_select(&wanted, length, mask, watch);
        let total = found.as_ref().map_or(-1, |found| {
            let words = found.iter().flatten();
            words.map(|word| word.count_ones() as c_int).sum()
        });
        if let Some(found) = found.filter(|_| total > 0 || timeout_ns == Some(0)) {
            for (bits, words) in bits.iter().zip(&found) {
                bits.put(words);
            }
        }
        total
    };
    wait(&mut watch, (timeout_ns, mask), &mut ask, sleep)
}
