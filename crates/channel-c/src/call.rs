//! From C and back: arguments, results, and what went wrong.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use millrace_channel::{Channel, DetachedLoan, Error, Message, WhenFull};

use crate::slab::Slab;

/// `struct millrace_options`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MillraceOptions {
    size: usize,
    agent: *const c_char,
    group: *const c_char,
    pool_bytes: u64,
    slots: u32,
    when_full: u32,
    timeout_ms: i64,
    patience_ms: i64,
    redeliver: u32,
    reserved: u32,
}

/// `struct millrace_loan`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MillraceLoan {
    pub(crate) data: *mut c_void,
    pub(crate) bytes: usize,
    pub(crate) number: u64,
}

/// `struct millrace_message`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MillraceMessage {
    pub(crate) data: *const c_void,
    pub(crate) bytes: usize,
    pub(crate) sequence: u64,
    pub(crate) publisher: u64,
    pub(crate) lost: u64,
    pub(crate) number: u64,
    pub(crate) flags: u32,
    reserved: u32,
}

const REDELIVERED: u32 = 1;

impl MillraceLoan {
    pub(crate) fn of(loan: &mut [u8]) -> MillraceLoan {
        MillraceLoan {
            data: loan.as_mut_ptr().cast(),
            bytes: loan.len(),
            number: 0,
        }
    }
}

impl MillraceMessage {
    pub(crate) fn of(message: &Message<'_>) -> MillraceMessage {
        MillraceMessage {
            data: message.as_ptr().cast(),
            bytes: message.len(),
            sequence: message.sequence(),
            publisher: message.publisher(),
            lost: message.lost_before(),
            number: 0,
            flags: if message.is_redelivered() {
                REDELIVERED
            } else {
                0
            },
            reserved: 0,
        }
    }
}

impl MillraceMessage {
    /// There is no reply to the request of this number.
    pub(crate) fn of_lost(request: u64) -> MillraceMessage {
        MillraceMessage {
            data: std::ptr::null(),
            bytes: 0,
            sequence: request,
            publisher: 0,
            lost: 0,
            number: 0,
            flags: 0,
            reserved: 0,
        }
    }
}

/// Why a call fails: a positive error number, and words for it.
#[derive(Debug)]
pub(crate) struct Failure {
    number: c_int,
    text: String,
}

impl Failure {
    pub(crate) fn new(number: c_int, text: &str) -> Failure {
        Failure {
            number,
            text: text.to_owned(),
        }
    }

    pub(crate) fn null() -> Failure {
        Failure::new(libc::EINVAL, "a pointer is NULL that must not be")
    }

    pub(crate) fn used() -> Failure {
        Failure::new(
            libc::EINVAL,
            "a loan or message that this handle does not have, or no more",
        )
    }

    pub(crate) fn nothing() -> Failure {
        Failure::new(libc::EAGAIN, "nothing is there now")
    }

    pub(crate) fn timed_out() -> Failure {
        Error::TimedOut.into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let number = match &error {
            Error::Name(_) | Error::Option(_) => libc::EINVAL,
            Error::NoAgent(..) => libc::ENOENT,
            Error::Unsupported => libc::EPROTO,
            Error::Refused(reason) => match reason.as_str() {
                "not_allowed" => libc::EACCES,
                "quota" => libc::EDQUOT,
                "no_memory" => libc::ENOMEM,
                _ => libc::EBADF,
            },
            Error::TooLong { .. } => libc::EMSGSIZE,
            Error::Full => libc::EAGAIN,
            Error::NoReceiver => libc::ENOTCONN,
            Error::TimedOut => libc::ETIMEDOUT,
            Error::Forked => libc::ECHILD,
            Error::Gone => libc::EPIPE,
            Error::Kernel(_, error) => error.raw_os_error().unwrap_or(libc::EIO),
        };
        Failure {
            number,
            text: error.to_string(),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The loan that is to be sent, with as many bytes as the caller says. One that is refused stays where it was.
pub(crate) fn loan_to_send(
    loans: &mut Slab<DetachedLoan>,
    place: &MillraceLoan,
) -> Result<DetachedLoan, Failure> {
    let loan = loans.take(place.number).ok_or_else(Failure::used)?;
    if place.bytes > loan.bytes() {
        loans.put_back(place.number, loan);
        let text = "the loan was made longer than its memory";
        return Err(Failure::new(libc::EINVAL, text));
    }
    Ok(loan)
}

/// Makes a call's result: no panic crosses into C.
pub(crate) fn call(work: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(work));
    let done = done.unwrap_or_else(|_| {
        Err(Failure::new(
            libc::EINVAL,
            "the handle is another's, or a fault of this library",
        ))
    });
    done.unwrap_or_else(|failure| {
        let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
        // A thread that is ending has no place for it any more.
        let _ = LAST.try_with(|last| *last.borrow_mut() = text);
        -failure.number
    })
}

/// What went wrong last in this thread.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn millrace_error() -> *const c_char {
    let last = LAST.try_with(|last| last.borrow().as_ptr());
    last.unwrap_or(c"the thread is ending".as_ptr())
}

/// A channel as C describes it.
///
/// # Safety
/// `name` is a C string or NULL, and so are those in `options`, which is NULL or such a structure.
pub(crate) unsafe fn channel(
    name: *const c_char,
    options: *const MillraceOptions,
) -> Result<Channel, Failure> {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }?.ok_or_else(Failure::null)?;
    let mut channel = Channel::new(name);
    if options.is_null() {
        return Ok(channel);
    }
    // SAFETY: as above; it is as long as it says.
    if !unsafe { are_known(options) } {
        return Err(Failure::new(
            libc::EINVAL,
            "the options are of another version of millrace.h, and ask for what this library does not know",
        ));
    }
    // SAFETY: as above, and not shorter.
    let options = unsafe { &*options };
    // SAFETY: as above.
    if let Some(agent) = unsafe { text(options.agent) }? {
        channel = channel.agent(agent);
    }
    // SAFETY: as above.
    if let Some(group) = unsafe { text(options.group) }? {
        channel = channel.group(group);
    }
    if options.pool_bytes != 0 {
        channel = channel.pool_bytes(options.pool_bytes);
    }
    if options.slots != 0 {
        channel = channel.slots(options.slots);
    }
    channel = channel.when_full(match options.when_full {
        0 => WhenFull::Block,
        1 => WhenFull::Fail,
        2 => WhenFull::DropOldest,
        3 => WhenFull::DropNewest,
        _ => {
            return Err(Failure::new(
                libc::EINVAL,
                "when_full has a value that there is not",
            ));
        }
    });
    if let Some(timeout) = milliseconds(options.timeout_ms).filter(|_| options.timeout_ms != 0) {
        channel = channel.timeout(timeout);
    }
    if options.patience_ms != 0 {
        channel = channel.patience(milliseconds(options.patience_ms));
    }
    Ok(channel.redeliver(options.redeliver != 0))
}

/// Whether nothing is asked for that this library does not know: a later version of the structure is longer, and has zeros there.
///
/// # Safety
/// It points to such a structure, which is as long as it says.
unsafe fn are_known(options: *const MillraceOptions) -> bool {
    const OURS: usize = size_of::<MillraceOptions>();
    /// A longer one is none.
    const LONGEST: usize = 4096;
    // SAFETY: the caller's promise: its size is there in any case.
    let size = unsafe { (&raw const (*options).size).read() };
    if !(OURS..=LONGEST).contains(&size) {
        return false;
    }
    // SAFETY: as above, and so is the rest.
    let (rest, reserved) = unsafe {
        let rest = options.cast::<u8>().add(OURS);
        (
            std::slice::from_raw_parts(rest, size - OURS),
            (*options).reserved,
        )
    };
    reserved == 0 && rest.iter().all(|byte| *byte == 0)
}

/// # Safety
/// It is NULL, or a C string that lives as long as the result is used.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some)
        .map_err(|_| Failure::new(libc::EINVAL, "a text is not UTF-8"))
}

/// A time span; `None`: below zero, for ever.
pub(crate) fn milliseconds(count: i64) -> Option<Duration> {
    u64::try_from(count).ok().map(Duration::from_millis)
}

/// When a wait is over.
pub(crate) fn deadline(timeout_ms: i64) -> Option<Instant> {
    milliseconds(timeout_ms).and_then(|timeout| Instant::now().checked_add(timeout))
}

/// How long a wait for others is at most; for ever is a year.
pub(crate) fn patience(timeout_ms: i64) -> Duration {
    milliseconds(timeout_ms).unwrap_or(Duration::from_secs(365 * 24 * 3600))
}

/// A handle, or anything else, that must be there.
///
/// # Safety
/// It is NULL, or points to what it says that nobody else uses meanwhile.
pub(crate) unsafe fn there<'a, T>(pointer: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(Failure::null)
}

/// Writes a result to where the caller wants it, if anywhere.
///
/// # Safety
/// It is NULL, or may be written.
pub(crate) unsafe fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { place.write(value) };
    }
}

/// A key, if there is one.
///
/// # Safety
/// It is NULL, or points to a number.
pub(crate) unsafe fn key(key: *const u64) -> Option<u64> {
    // SAFETY: the caller's promise.
    unsafe { key.as_ref() }.copied()
}
