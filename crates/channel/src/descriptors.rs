//! Participants as what a program's own loop waits for, by the traits that it asks for: `tokio`'s `AsyncFd` owns what it waits for.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use crate::{Client, Publisher, Server, Subscriber};

macro_rules! descriptor {
    ($participant:ident) => {
        impl AsFd for $participant {
            fn as_fd(&self) -> BorrowedFd<'_> {
                $participant::as_fd(self)
            }
        }

        impl AsRawFd for $participant {
            fn as_raw_fd(&self) -> RawFd {
                $participant::as_fd(self).as_raw_fd()
            }
        }
    };
}

descriptor!(Publisher);
descriptor!(Subscriber);
descriptor!(Client);
descriptor!(Server);
