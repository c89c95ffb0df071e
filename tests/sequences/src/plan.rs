//! A sequence as data: what is done, by whom, in which order.
//!
//! Processes, slots, connections and threads are small numbers that the plan chooses. A *slot* names a
//! descriptor; after a fork, parent and child both have it. A plan stays playable when steps are taken
//! out of it: a call on a slot that nobody opened is made on descriptor -1.

mod stream;

use crate::sys::{EpollBy, ExecBy, SpawnBy};
use serde::{Deserialize, Serialize};
pub(crate) use stream::{Manner, Stream};

/// A process of the sequence; 0 and 1 exist from the start.
pub(crate) type Process = u8;
/// The name of a descriptor.
pub(crate) type Slot = u8;
/// A helper thread, which makes one call and ends.
pub(crate) type Thread = u8;

/// A whole sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// What it was generated from.
    pub(crate) seed: u64,
    /// Whether the first processes exec a fresh image before the first step.
    pub(crate) fresh_images: bool,
    /// Whether processes are killed at the end, rather than told to exit.
    pub(crate) killed: bool,
    /// How many processes there are at the start.
    pub(crate) processes: u8,
    /// The last three bytes of the loopback address for IPv4.
    pub(crate) address: [u8; 3],
    /// How long anything waits for what should come.
    pub(crate) patience_ms: u32,
    /// A step that takes longer hangs.
    pub(crate) limit_ms: u32,
    /// What is done.
    pub(crate) steps: Vec<Step>,
}

/// One step. The next begins when it has completed, or when its thread sleeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Step {
    /// The main thread of a process makes a call.
    Do { at: Process, call: Call },
    /// A new thread of the process makes a call, which may block.
    Start {
        at: Process,
        thread: Thread,
        call: Call,
    },
    /// Waits for the first of these threads that completes its call.
    Join { any: Vec<Thread> },
    /// Tells whether a thread has completed its call or sleeps in it.
    Probe { thread: Thread },
    /// Sends a thread a signal, with or without `SA_RESTART`.
    Interrupt {
        at: Process,
        thread: Thread,
        restart: bool,
    },
    /// `fork`.
    Fork { at: Process, child: Process },
    /// Replaces the process's image, which goes on in the sequence. A `stranger` has no preloaded library.
    Exec {
        at: Process,
        by: ExecBy,
        stranger: bool,
    },
    /// Ends the process.
    Exit { at: Process, by: ExitBy },
    /// Stops the process with `SIGSTOP`.
    Stop { at: Process },
    /// Lets a stopped process continue.
    Continue { at: Process },
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ExitBy {
    Exit,
    ExitNow,
    Kill,
}

/// Addresses that a socket is bound to and connected by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Family {
    V4,
    V6,
    /// IPv4 through an IPv6 socket.
    Mapped,
}

/// Flags of receiving and sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Flag {
    Peek,
    WaitAll,
    DontWait,
    Trunc,
    NoSignal,
    More,
    ErrQueue,
    WaitForOne,
    CloseOnExec,
    ZeroCopy,
}

/// The forms of receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReceiveBy {
    Read,
    ReadChk,
    Readv,
    Preadv2,
    Preadv2NoWait,
    Recv,
    RecvChk,
    Recvfrom,
    RecvfromChk,
    Recvmsg,
    Recvmmsg,
    Splice,
    Stdio,
}

/// The forms of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SendBy {
    Write,
    Writev,
    Pwritev2,
    Send,
    Sendto,
    SendtoAddressed,
    Sendmsg,
    Sendmmsg,
    Sendfile,
    SendfileOwnOffset,
    Sendfile64,
    Splice,
    Dprintf,
    Stdio,
}

/// The forms of accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AcceptBy {
    Accept,
    AcceptNameless,
    Accept4,
}

/// The forms of waiting for several descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PollBy {
    Poll,
    PollChk,
    Ppoll,
    PpollMasked,
    PpollChk,
    Select,
    Pselect,
}

/// The forms of duplicating a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DuplicateBy {
    Dup,
    Dup2,
    Dup3,
    Dup3CloseOnExec,
    Fcntl,
    FcntlCloseOnExec,
    /// `F_DUPFD` to a number above 1024.
    FcntlHigh,
}

/// Which directions `shutdown` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Half {
    Read,
    Write,
    Both,
}

/// Socket options, and what is like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Opt {
    ReceiveTimeout,
    SendTimeout,
    ReceiveLow,
    SendBuffer,
    ReceiveBuffer,
    Error,
    Type,
    Domain,
    Protocol,
    AcceptConn,
    ReuseAddr,
    KeepAlive,
    Linger,
    OobInline,
    PeekOffset,
    NoDelay,
    Cork,
    KeepIdle,
    UserTimeout,
    QuickAck,
    Inq,
    ZeroCopy,
    /// An option that does not exist.
    Unknown,
}

/// What `Await` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Awaited {
    /// Every byte sent to this end is there to be read, as `FIONREAD` tells.
    Queued,
    /// Every byte sent by this end has been acknowledged, as `SIOCOUTQ` tells.
    Drained,
    /// `TCP_INFO` tells that nobody has ended.
    Open,
    /// This end has ended its direction, the peer not.
    HalfClosed,
    /// The peer has ended its direction, this end not.
    PeerClosed,
    /// Both have ended, or the connection was reset.
    Closed,
}

/// Calls that make no sense on a socket, and must say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OddCall {
    Pread,
    Pwrite,
    PreadvAt,
    PwritevAt,
    Lseek,
    FileType,
    Tee,
    CopyFileRange,
    Fsync,
    Ftruncate,
    Map,
    Listen,
    ConnectAgain,
    Accept,
    Bind,
}

/// When `ReceiveAll` is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Until {
    /// When all that was sent so far was received.
    Sent,
    /// When this many bytes were received.
    Bytes(u32),
    /// At the end of the stream.
    End,
}

/// One call, or a short loop of one call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Call {
    Listen {
        slot: Slot,
        listener: u8,
        family: Family,
        any: bool,
    },
    Socket {
        slot: Slot,
        family: Family,
        nonblock: bool,
        cloexec: bool,
    },
    Connect {
        slot: Slot,
        conn: u8,
        listener: u8,
        family: Family,
    },
    /// Connects by sending, with `MSG_FASTOPEN`.
    FastOpen {
        slot: Slot,
        conn: u8,
        listener: u8,
        family: Family,
        bytes: u32,
    },
    Accept {
        from: Slot,
        slot: Slot,
        conn: u8,
        by: AcceptBy,
        nonblock: bool,
        cloexec: bool,
    },
    /// Connects to a port where nobody listens.
    Refused {
        slot: Slot,
    },
    /// `connect` to `AF_UNSPEC`.
    Disconnect {
        slot: Slot,
    },
    Receive {
        slot: Slot,
        by: ReceiveBy,
        bytes: u32,
        parts: u8,
        flags: Vec<Flag>,
        bad: bool,
    },
    Send {
        slot: Slot,
        by: SendBy,
        bytes: u32,
        parts: u8,
        flags: Vec<Flag>,
        bad: bool,
    },
    /// Receives by `chunk` bytes at most, waiting with `poll` where the socket does not block.
    ReceiveAll {
        slot: Slot,
        by: ReceiveBy,
        chunk: u32,
        until: Until,
    },
    /// Sends by `chunk` bytes at most, waiting with `poll` where the socket does not block.
    SendAll {
        slot: Slot,
        by: SendBy,
        chunk: u32,
        bytes: u32,
    },
    /// Sends without blocking until no more is taken. How much that is, is not told.
    Fill {
        slot: Slot,
        chunk: u32,
    },
    /// Sends one urgent byte; `inline` tells whether the other end gets it among the others.
    SendUrgent {
        slot: Slot,
        inline: bool,
    },
    ReceiveUrgent {
        slot: Slot,
        peek: bool,
    },
    AtMark {
        slot: Slot,
    },
    Poll {
        by: PollBy,
        items: Vec<(Slot, i16)>,
        timeout_ms: i32,
    },
    EpollCreate {
        slot: Slot,
        cloexec: bool,
    },
    EpollAdd {
        set: Slot,
        slot: Slot,
        events: u32,
    },
    EpollModify {
        set: Slot,
        slot: Slot,
        events: u32,
    },
    EpollDelete {
        set: Slot,
        slot: Slot,
    },
    EpollWait {
        by: EpollBy,
        set: Slot,
        room: u8,
        timeout_ms: i32,
    },
    /// As many waits for one event as `rounds` says; tells which descriptors came.
    EpollTour {
        set: Slot,
        rounds: u8,
    },
    Await {
        slot: Slot,
        what: Awaited,
    },
    Shutdown {
        slot: Slot,
        half: Half,
    },
    Close {
        slot: Slot,
    },
    /// `close_range` of the one descriptor.
    CloseRange {
        slot: Slot,
        cloexec: bool,
    },
    /// `close_range` of all descriptors of the sequence.
    CloseAll,
    /// With `over`, `to` is an open slot that is replaced.
    Duplicate {
        slot: Slot,
        to: Slot,
        by: DuplicateBy,
        over: bool,
    },
    /// `dup2`, or `dup3`, of a descriptor onto itself.
    DuplicateSelf {
        slot: Slot,
        dup3: bool,
    },
    Nonblock {
        slot: Slot,
        on: bool,
        ioctl: bool,
    },
    /// `O_ASYNC`: `SIGIO` to this process when something happens.
    Async {
        slot: Slot,
        on: bool,
    },
    CloseOnExec {
        slot: Slot,
        on: bool,
    },
    /// `F_GETFL` and `F_GETFD`.
    Flags {
        slot: Slot,
    },
    SetOption {
        slot: Slot,
        option: Opt,
        value: i32,
    },
    GetOption {
        slot: Slot,
        option: Opt,
    },
    Name {
        slot: Slot,
        peer: bool,
    },
    /// `FIONREAD`.
    Readable {
        slot: Slot,
    },
    Odd {
        slot: Slot,
        call: OddCall,
    },
    /// Opens something that is no socket: the read end of a pipe with nothing in it.
    OpenPipe {
        slot: Slot,
    },
    /// Passes the descriptor to a process by `SCM_RIGHTS`.
    PassTo {
        slot: Slot,
        to: Process,
    },
    /// Takes the descriptor that was passed first.
    Take {
        slot: Slot,
        cloexec: bool,
    },
    Spawn {
        by: SpawnBy,
    },
    /// Waits for the end of a child.
    Reap {
        child: Process,
    },
    /// Many calls at full speed.
    Stream(Stream),
    /// Lets time pass, in which the library may do its own.
    Pause {
        ms: u32,
    },
}
