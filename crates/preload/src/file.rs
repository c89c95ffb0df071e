//! Bytes between a connection and a file or pipe: `sendfile` and `splice`.

use libc::{c_int, c_uint, iovec, off_t};
use millrace_wire::Reason;

use crate::kernel::{self, kernel};
use crate::pool::Pool;
use crate::send::{Call, Several, send};
use crate::socket::Socket;
use crate::waits::await_events;
use crate::{Outcome, receive, thread, user};

/// Larger files go by the kernel, which does not copy them through the program.
const COPY_BYTES_MAX: usize = 64 * 1024;
/// For what is read of files: the reader of a connection is woken once for all of it.
static PIECES: Pool<[u8; COPY_BYTES_MAX], 4> = Pool::new();
/// Else a file is read in pieces of this size, on the stack, of which the smallest that a thread may have is 16 KiB.
const SMALL_PIECE_BYTES: usize = 4096;
/// Behind this a file system may say that there are no files so long.
const FAR: off_t = 1 << 40;
/// What is on its way from this machine is awaited so long at most, and looked for as often as the other says.
const NS_OF_ARRIVAL: u64 = 1_000_000_000;
const NS_OF_LOOK: u64 = 1_000_000;
/// A pipe that is writable at all takes so much.
const PIPE_BYTES: usize = libc::PIPE_BUF;

/// `sendfile` to a connection: a file that is read at a place is copied to the ring piece by piece.
pub(crate) fn send_file(
    socket: &'static Socket,
    out: c_int,
    input: c_int,
    offset: *mut off_t,
    bytes: usize,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    let usable = !offset.is_null() && user::can_write(offset.cast(), size_of::<off_t>());
    let is_small = (1..=COPY_BYTES_MAX).contains(&bytes);
    let goes_by_ring = socket.is_joined(out) && !socket.is_pinned();
    if !goes_by_ring || !usable || !is_small || !kernel::is_file(input) {
        return send_unread(socket, out, raw);
    }
    with_piece(|piece| send_pieces(socket, (out, input), (offset, bytes), piece, raw))
}

/// Memory from [`PIECES`], until it is dropped.
struct Piece(*mut [u8; COPY_BYTES_MAX]);

impl Drop for Piece {
    fn drop(&mut self) {
        PIECES.give_back(self.0);
    }
}

/// Runs `work` with memory that bytes can be read to.
fn with_piece<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    let Some(piece) = PIECES.take().map(Piece) else {
        return on_the_stack(work);
    };
    // SAFETY: bytes that nobody else has until they are given back.
    work(unsafe { &mut *piece.0 })
}

/// Not in the frame of whoever has other memory: a handler may have little stack.
#[cold]
#[inline(never)]
fn on_the_stack<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    work(&mut [0u8; SMALL_PIECE_BYTES])
}

/// Copies `bytes` bytes at `offset` to the ring, as many at once as `piece` can hold.
fn send_pieces(
    socket: &'static Socket,
    (out, input): (c_int, c_int),
    (offset, bytes): (*mut off_t, usize),
    piece: &mut [u8],
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    // SAFETY: found writable.
    let start = unsafe { offset.read() };
    let errno = thread::errno();
    let several = Several::begin();
    let mut sent = 0usize;
    while sent < bytes {
        let wanted = (bytes - sent).min(piece.len());
        let place = start + sent as off_t;
        let read = kernel!(libc::SYS_pread64, input, piece.as_mut_ptr(), wanted, place);
        if read <= 0 {
            // A place that the file cannot have, or an input that cannot be read at a place: the kernel's to judge.
            return if sent > 0 || read == 0 && place < FAR {
                finish(offset, start, sent)
            } else {
                several.let_handlers_run();
                send_unread(socket, out, raw)
            };
        }
        let list = [iovec {
            iov_base: piece.as_mut_ptr().cast(),
            iov_len: read.cast_unsigned(),
        }];
        let mut copy = || kernel_send(out, &piece[..read.cast_unsigned()]);
        match send(
            socket,
            &Call {
                fd: out,
                list: &list,
                flags: 0,
                several: Some(&several),
            },
            &mut copy,
        ) {
            Outcome::Handled(part) if part >= 0 => {
                sent += part.cast_unsigned();
                several.note_sent();
                if part < read {
                    return finish(offset, start, sent);
                }
            }
            other if sent == 0 => {
                let error = thread::errno();
                several.let_handlers_run();
                thread::set_errno(error);
                return other;
            }
            _ => {
                thread::set_errno(errno);
                return finish(offset, start, sent);
            }
        }
    }
    finish(offset, start, sent)
}

fn kernel_send(fd: c_int, bytes: &[u8]) -> isize {
    // SAFETY: our own buffer.
    unsafe { crate::real::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) }
}

fn finish(offset: *mut off_t, start: off_t, sent: usize) -> Outcome {
    // SAFETY: found writable at the start of the call.
    unsafe { offset.write(start + sent as off_t) };
    Outcome::Handled(sent.cast_signed())
}

/// Makes the program's own call as a raw send: it is counted, and comes after what is in the ring.
fn send_unread(socket: &'static Socket, out: c_int, raw: &mut dyn FnMut() -> isize) -> Outcome {
    crate::send::by_kernel(socket, out, raw)
}

/// `splice` from a pipe to a connection, on which the kernel sends from now on. `call` makes it, with such flags. It is announced, so that
/// nobody takes what it has sent out of the reader's queue meanwhile; but not where it would wait for the pipe, which may be for ever.
pub(crate) fn splice_in(
    socket: &'static Socket,
    out: c_int,
    (bytes, flags): (usize, c_uint),
    call: &mut dyn FnMut(c_uint) -> isize,
) -> Outcome {
    crate::send::leave_to_kernel(socket, out, Reason::Splice);
    if bytes == 0 {
        return Outcome::Handled(call(flags));
    }
    let errno = thread::errno();
    // That flag is about the pipe alone: whether the connection may be waited for is its own O_NONBLOCK's to say.
    let mut at_once = || call(flags | libc::SPLICE_F_NONBLOCK);
    let outcome = crate::send::by_kernel(socket, out, &mut at_once);
    if flags & libc::SPLICE_F_NONBLOCK == 0 && is_nothing(&outcome) {
        thread::set_errno(errno);
        return Outcome::Handled(call(flags));
    }
    outcome
}

/// `splice` from a connection to a pipe: bytes in the ring, and kernel bytes before them, are written to the pipe; after that, and
/// for good, the kernel splices. `rest` splices so many bytes.
pub(crate) fn splice_out(
    socket: &'static Socket,
    (input, out): (c_int, c_int),
    (bytes, flags): (usize, c_uint),
    raw: &mut dyn FnMut() -> isize,
    rest: &mut dyn FnMut(usize) -> isize,
) -> Outcome {
    if bytes == 0 {
        return Outcome::PassThrough;
    }
    thread::test_cancel();
    socket.pin(Reason::Splice);
    if !thread::is_alone() {
        // Else another thread that receives could come between the copy of bytes and their taking.
        socket.draw_back(input);
    }
    let errno = thread::errno();
    let moved = match with_piece(|piece| splice_unread(socket, (input, out), (bytes, flags), piece))
    {
        Ok(moved) => moved,
        Err(outcome) => {
            if matches!(outcome, Outcome::Handled(0..)) {
                thread::set_errno(errno);
            }
            return outcome;
        }
    };
    thread::set_errno(errno);
    if moved == 0 {
        return match receive::by_kernel(socket, input, raw) {
            Outcome::Handled(0) => receive::ending(socket, input),
            outcome => outcome,
        };
    }
    // A splice waits for both sides, and there is something to return already.
    if bytes == moved || kernel::unread(input) == 0 || !kernel::is_writable(out) {
        return Outcome::Handled(moved.cast_signed());
    }
    let more = receive::by_kernel(socket, input, &mut || rest(bytes - moved));
    thread::set_errno(errno);
    match more {
        Outcome::Handled(more) if more > 0 => Outcome::Handled(moved.cast_signed() + more),
        _ => Outcome::Handled(moved.cast_signed()),
    }
}

/// Moves to a pipe what comes before the rest that the kernel can splice: how much that was, or how the call has ended meanwhile.
fn splice_unread(
    socket: &'static Socket,
    (input, out): (c_int, c_int),
    (bytes, flags): (usize, c_uint),
    piece: &mut [u8],
) -> Result<usize, Outcome> {
    let mut moved = 0;
    // What is in the pipe is taken from the ring, too.
    let _uncancelled = thread::Uncancelled::new();
    loop {
        let reach = reach_of(socket, input);
        if reach == 0 || bytes == moved || !kernel::is_pipe(out) {
            break;
        }
        if (moved > 0 || flags & libc::SPLICE_F_NONBLOCK != 0) && !kernel::is_writable(out) {
            return Err(ended(moved, -(libc::EAGAIN as isize)));
        }
        let list = [iovec {
            iov_base: piece.as_mut_ptr().cast(),
            iov_len: (bytes - moved).min(PIPE_BYTES).min(reach),
        }];
        let call = receive::Call {
            fd: input,
            list: &list,
            flags: libc::MSG_PEEK | if moved > 0 { libc::MSG_DONTWAIT } else { 0 },
        };
        let seen = match receive::receive(socket, &call, &mut would_block) {
            Outcome::Handled(seen) if seen > 0 => seen.cast_unsigned(),
            // The agent has sent it again: it is the kernel's to splice.
            none if is_nothing(&none) && reach_of(socket, input) == 0 => break,
            other if moved == 0 => return Err(other),
            _ => return Err(Outcome::Handled(moved.cast_signed())),
        };
        let written = kernel!(libc::SYS_write, out, piece.as_ptr(), seen);
        let Ok(taken @ 1..) = usize::try_from(written) else {
            return Err(ended(moved, written));
        };
        take_seen(socket, input, &mut piece[..taken]);
        moved += taken;
    }
    Ok(moved)
}

/// How much comes before what the kernel can splice.
fn reach_of(socket: &'static Socket, input: c_int) -> usize {
    let reach = socket
        .lock_receive(input)
        .map_or(0, |locked| locked.half.reach());
    usize::try_from(reach).unwrap_or(usize::MAX)
}

/// Takes what has been looked at, and is in the pipe now. It need not be where it was: what lay in the ring may have been sent again by the
/// kernel meanwhile, and be on its way.
fn take_seen(socket: &'static Socket, input: c_int, piece: &mut [u8]) {
    let until_ns = kernel::monotonic_ns() + NS_OF_ARRIVAL;
    let mut taken = 0;
    while let Some(rest) = piece.get_mut(taken..).filter(|rest| !rest.is_empty()) {
        let list = [iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        }];
        let call = receive::Call {
            fd: input,
            list: &list,
            flags: libc::MSG_DONTWAIT,
        };
        // SAFETY: our own buffer.
        let mut raw = || unsafe {
            crate::real::recv(
                input,
                rest.as_mut_ptr().cast(),
                rest.len(),
                libc::MSG_DONTWAIT,
            )
        };
        let error = match receive::receive(socket, &call, &mut raw) {
            Outcome::Handled(more @ 1..) => {
                taken += more.cast_unsigned();
                continue;
            }
            Outcome::Handled(0) | Outcome::PassThrough => break,
            Outcome::Handled(_) => thread::errno(),
            Outcome::Errno(error) => error,
        };
        if !matches!(error, libc::EAGAIN | libc::EINTR) {
            // It is the next call's.
            receive::keep_error(socket.row(), error);
            break;
        }
        if kernel::monotonic_ns() > until_ns {
            break;
        }
        await_events(input, libc::POLLIN, NS_OF_LOOK);
    }
}

/// What a call returns that has moved so much before it met with `result`.
fn ended(moved: usize, result: isize) -> Outcome {
    match result {
        _ if moved > 0 => Outcome::Handled(moved.cast_signed()),
        0.. => Outcome::Handled(result),
        error => Outcome::Errno(-(error as i32)),
    }
}

fn is_nothing(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Handled(result) => *result < 0 && thread::errno() == libc::EAGAIN,
        Outcome::Errno(error) => *error == libc::EAGAIN,
        Outcome::PassThrough => false,
    }
}

fn would_block() -> isize {
    thread::set_errno(libc::EAGAIN);
    -1
}
