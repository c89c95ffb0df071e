//! A plain pipe. Sources share its writing end and sinks its reading end: the kernel writes and reads whole batches, as long as they fit a
//! page.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::{Sink, Source, Transport};
use crate::head::{HEAD_BYTES, Head};
use crate::trial::Lane;

/// What a write of one piece may have: PIPE_BUF of Linux.
const WHOLE: usize = 4096;
/// What every user may have (/proc/sys/fs/pipe-max-size).
const ROOM: usize = 1 << 20;

/// See the module.
pub(crate) struct Pipe;

/// The writing end, and the batch.
pub(crate) struct Writer {
    end: Option<OwnedFd>,
    batch: Vec<u8>,
    filled: usize,
    bytes: usize,
}

/// The reading end, and what was read.
pub(crate) struct Reader {
    end: OwnedFd,
    buffer: Vec<u8>,
    filled: usize,
    bytes: usize,
}

fn reader_and_writer(parts: Vec<OwnedFd>) -> Result<[OwnedFd; 2]> {
    let parts = <[OwnedFd; 2]>::try_from(parts);
    parts.ok().context("a pipe has two ends")
}

impl Transport for Pipe {
    type Source = Writer;
    type Sink = Reader;

    fn make(lane: &Lane<'_>) -> Result<Vec<OwnedFd>> {
        let batch = lane.trial.bytes * lane.trial.batch;
        ensure!(
            !lane.is_crowded() || batch <= WHOLE,
            "batches of {batch} bytes would mix, as a pipe writes {WHOLE} in one piece"
        );
        let flags = if lane.spins {
            PipeFlags::CLOEXEC | PipeFlags::NONBLOCK
        } else {
            PipeFlags::CLOEXEC
        };
        let (reader, writer) = pipe_with(flags)?;
        fcntl_setpipe_size(&writer, ROOM)?;
        Ok(vec![reader, writer])
    }

    fn source(lane: &Lane<'_>, parts: Vec<OwnedFd>, _: usize) -> Result<Writer> {
        let [_, writer] = reader_and_writer(parts)?;
        Ok(Writer {
            end: Some(writer),
            batch: vec![0; lane.trial.bytes * lane.trial.batch],
            filled: 0,
            bytes: lane.trial.bytes,
        })
    }

    fn sink(lane: &Lane<'_>, parts: Vec<OwnedFd>, _: usize) -> Result<Reader> {
        let [reader, _] = reader_and_writer(parts)?;
        Ok(Reader {
            end: reader,
            buffer: vec![0; lane.trial.bytes * lane.trial.batch],
            filled: 0,
            bytes: lane.trial.bytes,
        })
    }
}

impl Source for Writer {
    fn push(&mut self, head: &Head) -> Result<bool> {
        if self.filled == self.batch.len() {
            return Ok(false);
        }
        head.write_to(&mut self.batch[self.filled..self.filled + HEAD_BYTES]);
        self.filled += self.bytes;
        Ok(true)
    }

    fn publish(&mut self) -> Result<()> {
        let end = self.end.as_ref().context("the pipe is closed")?;
        let mut rest = &self.batch[..self.filled];
        while !rest.is_empty() {
            match write(end, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(error) => return Err(error.into()),
            }
        }
        self.filled = 0;
        Ok(())
    }

    /// The end of the file is read when the last of the sources has closed it.
    fn finish(&mut self, _: &Head) -> Result<()> {
        self.end = None;
        Ok(())
    }
}

impl Sink for Reader {
    fn pop(&mut self, _: usize, take: &mut impl FnMut(&Head)) -> Result<Option<usize>> {
        match read(&self.end, &mut self.buffer[self.filled..]) {
            Ok(0) => {
                ensure!(
                    self.filled == 0,
                    "the pipe ended in the middle of a message"
                );
                return Ok(None);
            }
            Ok(more) => self.filled += more,
            Err(Errno::AGAIN) => return Ok(Some(0)),
            Err(error) => return Err(error.into()),
        }
        let whole = self.filled / self.bytes;
        for message in self.buffer[..whole * self.bytes].chunks_exact(self.bytes) {
            take(&Head::read_from(message).context("a message is too short")?);
        }
        self.buffer.copy_within(whole * self.bytes..self.filled, 0);
        self.filled -= whole * self.bytes;
        Ok(Some(whole))
    }
}
