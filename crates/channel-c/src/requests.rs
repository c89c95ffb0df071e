//! Clients and servers.

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;

use millrace_channel::{Answer, Client, DetachedLoan, DetachedMessage, Request, Server};

use crate::call::{
    Failure, MillraceLoan, MillraceMessage, MillraceOptions, call, channel, deadline, key,
    loan_to_send, patience, store, there,
};
use crate::slab::Slab;
use crate::verbs::{any_handle, counts, sending_handle};

/// `millrace_client`.
#[derive(Debug)]
pub(crate) struct ClientHandle {
    client: Client,
    loans: Slab<DetachedLoan>,
    replies: Slab<DetachedMessage>,
}

/// `millrace_server`.
#[derive(Debug)]
pub(crate) struct ServerHandle {
    server: Server,
    loans: Slab<DetachedLoan>,
    requests: Slab<DetachedMessage>,
}

sending_handle!(
    ClientHandle,
    client,
    attach_loan,
    (millrace_client_loan, millrace_client_try_loan),
    (
        millrace_client_push = Client::push,
        millrace_client_try_push = Client::try_push
    ),
    millrace_client_return,
    millrace_client_publish
);
any_handle!(
    ClientHandle,
    client,
    wait_for_servers,
    millrace_client_wait,
    millrace_client_fd,
    millrace_client_close
);
counts!(ClientHandle, client, pending, millrace_client_pending);
any_handle!(
    ServerHandle,
    server,
    wait_for_clients,
    millrace_server_wait,
    millrace_server_fd,
    millrace_server_close
);

/// See `millrace.h`, as of all below.
///
/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_client_open(
    name: *const c_char,
    options: *const MillraceOptions,
    client: *mut *mut ClientHandle,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let place = unsafe { there(client) }?;
        *place = std::ptr::null_mut();
        // SAFETY: as above.
        let opened = unsafe { channel(name, options) }?.client()?;
        *place = Box::into_raw(Box::new(ClientHandle {
            client: opened,
            loans: Slab::default(),
            replies: Slab::default(),
        }));
        Ok(0)
    })
}

/// Hands a reply out, or says that there is none to the request of this number.
fn hand_out(
    answer: Answer<'_>,
    replies: &mut Slab<DetachedMessage>,
    place: &mut MillraceMessage,
) -> Result<c_int, Failure> {
    match answer {
        Ok(reply) => {
            *place = MillraceMessage::of(&reply);
            place.number = replies.put(reply.detach());
            Ok(0)
        }
        Err(lost) => {
            *place = MillraceMessage::of_lost(lost.request);
            Err(Failure::new(
                libc::EPIPE,
                "the server has died or let the request fall",
            ))
        }
    }
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_client_pop(
    client: *mut ClientHandle,
    reply: *mut MillraceMessage,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let ClientHandle {
            client, replies, ..
        } = unsafe { there(client) }?;
        // SAFETY: as above.
        let place = unsafe { there(reply) }?;
        let answer = client.pop().ok_or_else(Failure::nothing)?;
        hand_out(answer, replies, place)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_client_receive(
    client: *mut ClientHandle,
    timeout_ms: i64,
    reply: *mut MillraceMessage,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let ClientHandle {
            client, replies, ..
        } = unsafe { there(client) }?;
        // SAFETY: as above.
        let place = unsafe { there(reply) }?;
        let answer = client.receive_until(deadline(timeout_ms))?;
        hand_out(answer, replies, place)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_client_release(
    client: *mut ClientHandle,
    reply: *mut MillraceMessage,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let handle = unsafe { there(client) }?;
        // SAFETY: as above.
        let place = unsafe { there(reply) }?;
        let detached = handle
            .replies
            .take(place.number)
            .ok_or_else(Failure::used)?;
        drop(handle.client.attach(detached));
        Ok(0)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_server_open(
    name: *const c_char,
    options: *const MillraceOptions,
    server: *mut *mut ServerHandle,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let place = unsafe { there(server) }?;
        *place = std::ptr::null_mut();
        // SAFETY: as above.
        let opened = unsafe { channel(name, options) }?.server()?;
        *place = Box::into_raw(Box::new(ServerHandle {
            server: opened,
            loans: Slab::default(),
            requests: Slab::default(),
        }));
        Ok(0)
    })
}

fn take_in(
    request: Request<'_>,
    requests: &mut Slab<DetachedMessage>,
    place: &mut MillraceMessage,
) -> c_int {
    *place = MillraceMessage::of(request.message());
    place.number = requests.put(request.detach());
    0
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_server_pop(
    server: *mut ServerHandle,
    request: *mut MillraceMessage,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let ServerHandle {
            server, requests, ..
        } = unsafe { there(server) }?;
        // SAFETY: as above.
        let place = unsafe { there(request) }?;
        let popped = server.pop().ok_or_else(Failure::nothing)?;
        Ok(take_in(popped, requests, place))
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_server_receive(
    server: *mut ServerHandle,
    timeout_ms: i64,
    request: *mut MillraceMessage,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let ServerHandle {
            server, requests, ..
        } = unsafe { there(server) }?;
        // SAFETY: as above.
        let place = unsafe { there(request) }?;
        let received = server.receive_until(deadline(timeout_ms))?;
        Ok(take_in(received, requests, place))
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_server_loan(
    server: *mut ServerHandle,
    request: *const MillraceMessage,
    bytes: usize,
    loan: *mut MillraceLoan,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let ServerHandle {
            server,
            loans,
            requests,
        } = unsafe { there(server) }?;
        // SAFETY: as above.
        let number = unsafe { there(request.cast_mut()) }?.number;
        // SAFETY: as above.
        let place = unsafe { there(loan) }?;
        let asked = server.attach(requests.take(number).ok_or_else(Failure::used)?);
        let lent = asked.loan(bytes);
        requests.put_back(number, asked.detach());
        let mut lent = lent?;
        *place = MillraceLoan::of(&mut lent);
        place.number = loans.put(lent.detach());
        Ok(0)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_server_return(
    server: *mut ServerHandle,
    loan: *mut MillraceLoan,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let handle = unsafe { there(server) }?;
        // SAFETY: as above.
        let place = unsafe { there(loan) }?;
        let detached = handle.loans.take(place.number).ok_or_else(Failure::used)?;
        drop(handle.server.attach_loan(detached));
        Ok(0)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_server_reply(
    server: *mut ServerHandle,
    request: *mut MillraceMessage,
    loan: *mut MillraceLoan,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let ServerHandle {
            server,
            loans,
            requests,
        } = unsafe { there(server) }?;
        // SAFETY: as above.
        let number = unsafe { there(request) }?.number;
        // SAFETY: as above.
        let place = unsafe { there(loan) }?;
        let asked = requests.take(number).ok_or_else(Failure::used)?;
        let detached = match loan_to_send(loans, place) {
            Ok(detached) => detached,
            Err(failure) => {
                requests.put_back(number, asked);
                return Err(failure);
            }
        };
        let asked = server.attach(asked);
        let mut lent = server
            .attach_loan(detached)
            .ok_or(millrace_channel::Error::Gone)?;
        lent.truncate(place.bytes);
        asked.reply(lent)?;
        Ok(0)
    })
}

/// # Safety
/// The arguments are what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn millrace_server_release(
    server: *mut ServerHandle,
    request: *mut MillraceMessage,
) -> c_int {
    call(|| {
        // SAFETY: as the header demands.
        let handle = unsafe { there(server) }?;
        // SAFETY: as above.
        let number = unsafe { there(request) }?.number;
        let detached = handle.requests.take(number).ok_or_else(Failure::used)?;
        drop(handle.server.attach(detached));
        Ok(0)
    })
}
