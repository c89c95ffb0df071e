use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;

const BYTES: usize = 8192;

fn memory() -> Mapping {
    let file = sys::create_sealed(c"millrace-test", BYTES, BYTES).unwrap();
    Mapping::new(file.as_fd(), BYTES).unwrap()
}

fn byte(memory: &Mapping) -> &std::sync::atomic::AtomicU8 {
    // SAFETY: mapped as long as `memory`, and only atomics look there.
    unsafe { memory.base().cast().as_ref() }
}

/// A child. It is killed when dropped.
struct Child(libc::pid_t);

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of ours that nobody has waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: as above; nobody asks how it ended.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// A child that says once what `asked` says, and lives on.
fn child(mut to: &UnixStream, asked: impl FnOnce() -> bool) -> Child {
    // SAFETY: the child does what it may after a fork.
    match unsafe { libc::fork() } {
        0 => {
            let _ = to.write_all(&[u8::from(asked())]);
            loop {
                // SAFETY: waits for its end.
                unsafe { libc::pause() };
            }
        }
        child => Child(child),
    }
}

/// What the child said, once.
fn answer(from: &mut UnixStream) -> bool {
    let mut said = [0];
    from.read_exact(&mut said).unwrap();
    said == [1]
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not fork")]
fn a_child_has_an_empty_descriptor_and_zeros_while_it_lives() {
    let (one, mut other) = UnixStream::pair().unwrap();
    let (to, mut answers) = UnixStream::pair().unwrap();
    let one = Withheld::new(OwnedFd::from(one));
    let shared = Withheld::new(memory());
    byte(&shared).store(7, Relaxed);
    let _child = child(&to, || {
        let mut found = libc::pollfd {
            fd: one.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which lives long enough.
        let is_quiet = unsafe { libc::poll(&raw mut found, 1, 0) } == 0;
        let was = byte(&shared).swap(9, Relaxed);
        is_quiet && was == 0
    });
    assert!(answer(&mut answers), "numbers and addresses stay taken");
    assert_eq!(byte(&shared).load(Relaxed), 7);
    drop(one);
    assert_eq!(
        other.read(&mut [0]).unwrap(),
        0,
        "the child does not keep it"
    );
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not fork")]
fn what_was_dropped_before_the_fork_is_another_s_and_stays() {
    let (one, other) = UnixStream::pair().unwrap();
    let (to, mut answers) = UnixStream::pair().unwrap();
    let noted = Withheld::new(OwnedFd::from(one));
    let last = Withheld::new(OwnedFd::from(other));
    let number = noted.as_raw_fd();
    drop(noted);
    // SAFETY: a copy at a number that was free a moment ago; where another test has it now, `F_DUPFD` gives the next one.
    let copy = unsafe { libc::fcntl(to.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number) };
    assert!(copy >= 0);
    let _child = child(&to, || {
        let mut kind = 0_i32;
        let mut bytes = size_of::<i32>() as libc::socklen_t;
        // SAFETY: a number, which lives long enough.
        let asked = unsafe {
            libc::getsockopt(
                copy,
                libc::SOL_SOCKET,
                libc::SO_TYPE,
                (&raw mut kind).cast(),
                &raw mut bytes,
            )
        };
        drop(last);
        asked == 0 && kind == libc::SOCK_STREAM
    });
    assert!(answer(&mut answers));
    // SAFETY: made above.
    unsafe { libc::close(copy) };
}

#[test]
fn entries_leave_the_list_in_any_order() {
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let mut all: Vec<_> = (0..6).map(|_| Withheld::new(file())).collect();
    for place in [5, 0, 2, 0, 1, 0] {
        drop(all.remove(place));
        let listed = between_forks(|| {
            let mut found = Vec::new();
            let mut next = FIRST.load(Relaxed);
            // SAFETY: the list does not change meanwhile.
            while let Some(entry) = unsafe { next.as_ref() } {
                found.push(entry.what.get());
                next = entry.after.get();
            }
            found
        });
        assert!(all.iter().all(|thing| listed.contains(&thing.what())));
    }
}
