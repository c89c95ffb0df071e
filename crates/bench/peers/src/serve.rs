//! The serving process: makes the other processes of each trial that is asked for, and sleeps between trials.

use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::line::Line;
use crate::request::{self, Request};
use crate::{sys, transport};

/// Serves for ever.
pub(crate) fn serve(path: &Path) -> Result<()> {
    let listener = request::listen_at(path)?;
    loop {
        // A request that is none, or a process that failed, is told where it was asked; the next trial is another one.
        if let Err(error) = request::receive(&listener).and_then(one_trial) {
            eprintln!("millrace-peers: {error:#}");
        }
    }
}

fn one_trial(request: Request) -> Result<()> {
    request.trial.check()?;
    let mut request = Some(request);
    let others = request.as_ref().map_or(0, |request| request.trial.others);
    let mut processes = Vec::new();
    for index in 0..others {
        let pid = sys::fork(|| {
            // All that it does not need is closed with the rest of the request.
            request
                .take()
                .map_or(1, |request| u8::from(!other(request, index)))
        })?;
        processes.push(pid);
    }
    drop(request);
    let mut went_well = true;
    for pid in processes {
        went_well &= sys::wait(pid)?;
    }
    ensure!(went_well, "a process of the last trial failed");
    Ok(())
}

/// Another process, by its number; says whether all went well.
fn other(request: Request, index: usize) -> bool {
    let Request {
        trial,
        parts,
        lines,
    } = request;
    sys::end_after(trial.limit_seconds());
    let line = lines
        .into_iter()
        .nth(index)
        .map(UnixStream::from)
        .map(Line::new);
    let Some(Ok(mut line)) = line else {
        return false;
    };
    let done = transport::by_name(&trial.transport)
        .and_then(|kind| (kind.take_part)(&trial, parts, &mut line, index));
    if let Err(error) = &done {
        line.fail(error);
    }
    done.is_ok()
}
