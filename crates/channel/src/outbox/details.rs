//! What an outbox is told, and says.

use std::time::Duration;

use crate::{Channel, WhenFull};

/// Why a message cannot go now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hindrance {
    /// Nobody is there.
    NoReceiver,
    /// A subscriber has no room, or the pool has none.
    Full,
}

/// What is said of a message when it is pushed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Details {
    pub(crate) key: Option<u64>,
    /// Its number, if that is not to be the next.
    pub(crate) sequence: Option<u64>,
    pub(crate) marks: u8,
}

impl Details {
    /// Of the next message.
    #[inline(always)]
    pub(crate) fn of_next(key: Option<u64>) -> Details {
        Details {
            key,
            sequence: None,
            marks: 0,
        }
    }

    /// Of the reply to the request of this number.
    pub(crate) fn of_reply(request: u64, marks: u8) -> Details {
        Details {
            key: None,
            sequence: Some(request),
            marks,
        }
    }
}

/// How an outbox behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutboxOptions {
    pub(crate) when_full: WhenFull,
    pub(crate) redeliver: bool,
    /// How long one that gives nothing back is borne, and what waits for a member of a group that has none is kept where room is needed.
    /// None: for ever.
    pub(crate) patience: Option<Duration>,
    /// Each message gets an answer, or is said to get none.
    pub(crate) is_answered: bool,
}

impl OutboxOptions {
    pub(crate) fn of(channel: &Channel, is_answered: bool) -> OutboxOptions {
        OutboxOptions {
            when_full: channel.when_full,
            redeliver: channel.redeliver,
            patience: channel.patience,
            is_answered,
        }
    }

    /// Of the replies of a participant with these. What a client waits for is not dropped in silence: it is told that there is none.
    pub(crate) fn of_replies(self) -> OutboxOptions {
        let blocks = self.when_full == WhenFull::Block;
        OutboxOptions {
            when_full: if blocks {
                WhenFull::Block
            } else {
                WhenFull::Fail
            },
            redeliver: false,
            patience: self.patience,
            is_answered: false,
        }
    }
}
