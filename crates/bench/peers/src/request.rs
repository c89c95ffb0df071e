//! How a trial is asked for: one message at the serving process's socket, with everything that both ends need.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};
use serde::{Deserialize, Serialize};

use crate::transport::Parts;
use crate::trial::Trial;

/// More than a request has.
const REQUEST_MAX: usize = 1 << 16;
/// More descriptors than one comes with: lines and parts of two lanes.
const DESCRIPTORS_MAX: usize = 128;

/// A trial that is asked for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) trial: Trial,
    pub(crate) parts: Parts,
    /// To each of the other processes.
    pub(crate) lines: Vec<OwnedFd>,
}

#[derive(Serialize, Deserialize)]
struct Message {
    trial: Trial,
    there: usize,
    back: usize,
}

fn socket() -> Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// A socket at which trials are asked for.
pub(crate) fn listen_at(path: &Path) -> Result<OwnedFd> {
    let listener = socket()?;
    bind(&listener, &SocketAddrUnix::new(path)?)
        .with_context(|| format!("cannot listen at {}", path.display()))?;
    listen(&listener, 4)?;
    Ok(listener)
}

/// Asks for a trial.
pub(crate) fn send(path: &Path, request: &Request) -> Result<()> {
    let Request {
        trial,
        parts,
        lines,
    } = request;
    let message = Message {
        trial: trial.clone(),
        there: parts.there.len(),
        back: parts.back.len(),
    };
    let all = lines.iter().chain(&parts.there).chain(&parts.back);
    let descriptors: Vec<BorrowedFd<'_>> = all.map(AsFd::as_fd).collect();
    ensure!(
        descriptors.len() <= DESCRIPTORS_MAX,
        "there are too many processes"
    );
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    ensure!(
        beside.push(SendAncillaryMessage::ScmRights(&descriptors)),
        "there are too many processes"
    );
    let to = socket()?;
    connect(&to, &SocketAddrUnix::new(path)?)
        .with_context(|| format!("nobody serves at {}", path.display()))?;
    let text = serde_json::to_vec(&message)?;
    ensure!(text.len() < REQUEST_MAX, "the request is too long");
    sendmsg(
        &to,
        &[IoSlice::new(&text)],
        &mut beside,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Waits for somebody who asks.
pub(crate) fn receive(listener: &OwnedFd) -> Result<Request> {
    let from = accept_with(listener, SocketFlags::CLOEXEC)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut text = vec![0; REQUEST_MAX];
    let received = recvmsg(
        &from,
        &mut [IoSliceMut::new(&mut text)],
        &mut beside,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut lines = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            lines.extend(descriptors);
        }
    }
    let message: Message =
        serde_json::from_slice(&text[..received.bytes]).context("this is no request")?;
    let others = message.trial.others;
    ensure!(
        lines.len() == others + message.there + message.back,
        "descriptors are missing"
    );
    let back = lines.split_off(others + message.there);
    let there = lines.split_off(others);
    Ok(Request {
        trial: message.trial,
        parts: Parts { there, back },
        lines,
    })
}
