//! The one list of reasons why a connection is on the kernel's road.

/// Declares the enum, its codes, names and explanations in one place, so that they cannot disagree.
macro_rules! reasons {
    ($($code:literal $variant:ident $name:literal $text:literal)*) => {
        /// Why a connection is on the kernel's road. `ps`, `doctor`, the metrics and the documentation all use this list.
        ///
        /// Codes are part of the control protocol and of the board: append, never renumber.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $text] $variant = $code,)*
        }

        impl Reason {
            /// Every reason, in the order of its code.
            pub const ALL: &[Reason] = &[$(Reason::$variant,)*];

            /// The reason of this code, if there is one.
            #[must_use]
            pub const fn from_u8(code: u8) -> Option<Reason> {
                match code {
                    $($code => Some(Reason::$variant),)*
                    _ => None,
                }
            }

            /// The name that users see, in snake case.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Reason::$variant => $name,)*
                }
            }

            /// One sentence of explanation.
            #[must_use]
            pub const fn explanation(self) -> &'static str {
                match self {
                    $(Reason::$variant => $text,)*
                }
            }
        }
    };
}

reasons! {
    0 None "none" "The connection is on the ring."
    1 NotBothEnds "not_both_ends" "The other end did not offer: it is remote, or runs without Millrace."
    2 TooShort "too_short" "The connection has not carried enough yet to gain from a faster road, or is being introduced."
    3 Unproven "unproven" "The kernel's facts do not show that these two sockets are the two ends of one connection."
    4 NoAgent "no_agent" "No agent answers, or none that this version can speak with."
    5 Quota "quota" "The agent's limit for this process or user is reached."
    6 Excluded "excluded" "The agent's configuration excludes this program."
    7 Exec "exec" "The process at one end replaced itself by exec; the new program takes the kernel's road."
    8 PassedFd "passed_fd" "The socket was passed to another process."
    9 Forked "forked" "The socket is shared after a fork in a way that needs the kernel."
    10 Ktls "ktls" "The program gave the socket to kernel TLS."
    11 IoUring "io_uring" "The program uses the socket through io_uring."
    12 UrgentData "urgent_data" "The program uses TCP urgent data."
    13 AsyncIo "async_io" "The program asked for signals on readiness (O_ASYNC), or uses the kernel's asynchronous I/O (io_submit)."
    14 LowWater "low_water" "The program set a receive low-water mark above one byte."
    15 Stdio "stdio" "The program uses the socket through stdio."
    16 Repair "repair" "The program put the socket in TCP repair mode."
    17 Zerocopy "zerocopy" "The program uses the kernel's zero-copy operations on the socket."
    18 FastOpen "fast_open" "The connection was made with TCP Fast Open."
    19 CorruptPeer "corrupt_peer" "The other end wrote nonsense into the shared segment."
    20 EpollAmbiguous "epoll_ambiguous" "The program watches the socket in a way that only the kernel can serve faithfully."
    21 NotEstablished "not_established" "The connection is not, or no longer, established in both directions."
    22 NoMemory "no_memory" "There was not enough memory for a segment."
    23 NoDescriptor "no_descriptor" "There was no free file descriptor."
    24 AgentLost "agent_lost" "The agent went away before the connection was introduced."
    25 Splice "splice" "The program moves bytes through the socket by splice, tee or sendfile."
    26 Sleeping "sleeping" "The reader sleeps in the kernel, so bytes come by the kernel until it is awake."
    27 Overflow "overflow" "The ring was full, or a send went by the kernel: the reader has not caught up yet."
    28 Unsupported "unsupported" "The program did something with the socket that the ring cannot carry."
    29 Sandboxed "sandboxed" "The program confined itself to few system calls."
    30 Untraceable "untraceable" "The agent may not trace the program, so bytes that lie unread in a ring could not be brought back."
    31 Helper "helper" "A helper of connection tracking reads the connection's packets."
    32 Shaped "shaped" "The connection's packets are shaped: a queueing discipline limits, delays or drops them."
    33 Policy "policy" "The agent's configuration does not let these two programs be joined."
    34 Unseen "unseen" "The program was not seen to wait for the connection: what lies in a ring might not wake it."
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_and_names_are_unique_and_come_back() {
        let mut names = HashSet::new();
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            assert_eq!(Reason::from_u8(*reason as u8), Some(*reason));
            assert!(names.insert(reason.as_str()));
            assert!(
                reason
                    .as_str()
                    .bytes()
                    .all(|b| b == b'_' || b.is_ascii_lowercase())
            );
        }
        assert_eq!(Reason::from_u8(Reason::ALL.len() as u8), None);
    }
}
