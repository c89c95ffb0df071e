//! Publishers and subscribers.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;

use millrace_channel::{DetachedLoan, DetachedMessage, Loan, Publisher, PushError, Subscriber};

use crate::call::{
    Failure, MillraceLoan, MillraceMessage, MillraceOptions, call, channel, deadline, key,
    loan_to_send, patience, store, there,
};
use crate::slab::Slab;
use crate::verbs::{any_handle, counts, sending_handle};

/// `millrace_publisher`.
#[derive(Debug)]
pub(crate) struct PublisherHandle {
    publisher: Publisher,
    loans: Slab<DetachedLoan>,
}

/// `millrace_subscriber`.
#[derive(Debug)]
pub(crate) struct SubscriberHandle {
    subscriber: Subscriber,
    messages: Slab<DetachedMessage>,
}

sending_handle!(
    PublisherHandle,
    publisher,
    attach,
    (millrace_publisher_loan, millrace_publisher_try_loan),
    (
        millrace_publisher_push = push,
        millrace_publisher_try_push = Publisher::try_push
    ),
    millrace_publisher_return,
    millrace_publisher_publish
);
any_handle!(
    PublisherHandle,
    publisher,
    wait_for_subscribers,
    millrace_publisher_wait,
    millrace_publisher_fd,
    millrace_publisher_close
);
any_handle!(
    SubscriberHandle,
    subscriber,
    wait_for_publishers,
    millrace_subscriber_wait,
    millrace_subscriber_fd,
    millrace_subscriber_close
);
counts!(
    PublisherHandle,
    publisher,
    subscribers,
    millrace_publisher_subscribers
);
counts!(
    PublisherHandle,
    publisher,
    dropped,
    millrace_publisher_dropped
);
counts!(
    SubscriberHandle,
    subscriber,
    publishers,
    millrace_subscriber_publishers
);
counts!(SubscriberHandle, subscriber, lost, millrace_subscriber_lost);

fn push<'a>(
    publisher: &'a Publisher,
    loan: Loan<'a>,
    key: Option<u64>,
) -> Result<u64, PushError<Loan<'a>>> {
    match key {
        Some(key) => publisher.push_keyed(loan, key),
        None => publisher.push(loan),
    }
}

/// See `millrace.h`, as of all below.
///
/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_publisher_open(
    name: *const c_char,
    options: *const MillraceOptions,
    publisher: *mut *mut PublisherHandle,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let place = unsafe { there(publisher) }?;
        *place = std::ptr::null_mut();
        // SAFETY: as above.
        let opened = unsafe { channel(name, options) }?.publisher()?;
        *place = Box::into_raw(Box::new(PublisherHandle {
            publisher: opened,
            loans: Slab::default(),
        }));
        Ok(0)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_publisher_send(
    publisher: *mut PublisherHandle,
    data: *const c_void,
    bytes: usize,
    key_or_null: *const u64,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let publisher = &unsafe { there(publisher) }?.publisher;
        if data.is_null() && bytes != 0 {
            return Err(Failure::null());
        }
        let mut lent = publisher.loan(bytes)?;
        if bytes != 0 {
            // SAFETY: as the header demands; not NULL.
            lent.copy_from_slice(unsafe { std::slice::from_raw_parts(data.cast(), bytes) });
        }
        // SAFETY: as above.
        let pushed = push(publisher, lent, unsafe { key(key_or_null) });
        pushed.map_err(|failed| failed.error)?;
        publisher.publish();
        Ok(0)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_publisher_drain(
    publisher: *mut PublisherHandle,
    timeout_ms: i64,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let handle = unsafe { there(publisher) }?;
        let is_done = handle.publisher.drain(patience(timeout_ms));
        is_done.then_some(0).ok_or_else(Failure::timed_out)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_subscriber_open(
    name: *const c_char,
    options: *const MillraceOptions,
    subscriber: *mut *mut SubscriberHandle,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let place = unsafe { there(subscriber) }?;
        *place = std::ptr::null_mut();
        // SAFETY: as above.
        let opened = unsafe { channel(name, options) }?.subscriber()?;
        *place = Box::into_raw(Box::new(SubscriberHandle {
            subscriber: opened,
            messages: Slab::default(),
        }));
        Ok(0)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_subscriber_pop(
    subscriber: *mut SubscriberHandle,
    message: *mut MillraceMessage,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let SubscriberHandle {
            subscriber,
            messages,
        } = unsafe { there(subscriber) }?;
        // SAFETY: as above.
        let place = unsafe { there(message) }?;
        let popped = subscriber.pop().ok_or_else(Failure::nothing)?;
        *place = MillraceMessage::of(&popped);
        place.number = messages.put(popped.detach());
        Ok(0)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_subscriber_receive(
    subscriber: *mut SubscriberHandle,
    timeout_ms: i64,
    message: *mut MillraceMessage,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let SubscriberHandle {
            subscriber,
            messages,
        } = unsafe { there(subscriber) }?;
        // SAFETY: as above.
        let place = unsafe { there(message) }?;
        let received = subscriber.receive_until(deadline(timeout_ms))?;
        *place = MillraceMessage::of(&received);
        place.number = messages.put(received.detach());
        Ok(0)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_subscriber_release(
    subscriber: *mut SubscriberHandle,
    message: *mut MillraceMessage,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let handle = unsafe { there(subscriber) }?;
        // SAFETY: as above.
        let place = unsafe { there(message) }?;
        let detached = handle
            .messages
            .take(place.number)
            .ok_or_else(Failure::used)?;
        drop(handle.subscriber.attach(detached));
        Ok(0)
    })
}
