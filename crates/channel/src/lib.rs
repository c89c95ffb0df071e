//! Channels: messages between programs on one machine that need not trust each other, without a copy.
//!
//! ```no_run
//! use millrace_channel::Channel;
//!
//! // One program…
//! let publisher = Channel::new("upf/packets").publisher()?;
//! let mut loan = publisher.loan(64)?;
//! loan.fill(7);
//! publisher.push(loan)?;
//! publisher.publish();
//!
//! // …and another.
//! let subscriber = Channel::new("upf/packets").subscriber()?;
//! let message = subscriber.receive()?;
//! assert_eq!(message.to_vec(), [7; 64]);
//! # Ok::<(), millrace_channel::Error>(())
//! ```
//!
//! The agent (`millrace agent`) brings those together who use a name, and gives them memory; messages do not pass through it, and it may
//! stop and start again meanwhile. Messages lie in the publisher's *pool*, which others can only read. Between a publisher and each of its
//! subscribers there is a *link*. A publisher keeps in private memory who has which message, so whoever dies or misbehaves gives back
//! everything at once and harms nobody else.
//!
//! A message that is read in place can be changed by its publisher while it is read: whoever does not trust the publisher copies first what
//! must stay as it was checked ([`Message::copy_to`], [`Message::to_vec`]). A publisher that means well never changes it.
//!
//! A publisher, subscriber, client or server is used by one thread at a time, and not by a forked child, which has empty descriptors and
//! zeros in the place of what it inherited.
//!
//! In reading order: [`Channel`] (how to take part), [`Publisher`] and [`Subscriber`], [`Client`] and [`Server`]; then `endpoint` (what all
//! have: links, waiting), `control` (what is said with the agent), `room` (sending), `outbox`, `tickets` and `routes` (who gets which
//! message, and what comes back), `inbox` (whose message is next), `places` (where the agent is), and `sys`.

#![deny(unsafe_code)]

mod channel;
mod control;
mod descriptors;
mod endpoint;
mod error;
mod inbox;
mod loan;
mod outbox;
mod pending;
mod places;
mod publisher;
mod requests;
mod room;
mod routes;
mod subscriber;
mod sys;
mod tickets;

pub use channel::{Channel, WhenFull};
pub use error::{Error, PushError};
pub use loan::{DetachedLoan, Lender, Loan, OfClient, Own, ReplyLoan};
pub use millrace_shm::link::MESSAGE_BYTES_MAX;
pub use publisher::Publisher;
pub use requests::{Answer, Client, Lost, Request, Server};
pub use subscriber::{DetachedMessage, Message, Subscriber};
