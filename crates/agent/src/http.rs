//! The metrics endpoint: just enough HTTP/1.1 (RFC 9112) to answer `GET /metrics`, on its user's own event loop: the agent's, and the
//! switch's.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use crate::sys;

/// Readers at a time.
const READERS_MAX: usize = 16;
/// Longest request that is read to its end.
const REQUEST_BYTES_MAX: usize = 8192;
/// A reader that is not done after so long is closed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where metrics are served, and those who read them now.
#[derive(Debug)]
pub struct Endpoint {
    listener: Listener,
    readers: HashMap<u64, Reader>,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

trait Stream: Read + Write + AsFd + std::fmt::Debug {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

#[derive(Debug)]
struct Reader {
    stream: Box<dyn Stream>,
    deadline: Instant,
    request: Vec<u8>,
    /// What is still to be sent; empty while the request is read.
    response: Vec<u8>,
}

impl Endpoint {
    /// Listens at `ADDRESS:PORT`, or at an absolute path.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn open(address: &str) -> io::Result<Endpoint> {
        let listener = if address.starts_with('/') {
            let path = PathBuf::from(address);
            // One that an earlier agent left; anything else is not ours to remove.
            if fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket())
                && UnixStream::connect(&path).is_err()
            {
                fs::remove_file(&path)?;
            }
            let listener = UnixListener::bind(&path)?;
            sys::refuse_descriptors(listener.as_fd());
            listener.set_nonblocking(true)?;
            Listener::Unix(listener, path)
        } else {
            let address: SocketAddr = address.parse().map_err(io::Error::other)?;
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Listener::Tcp(listener)
        };
        Ok(Endpoint {
            listener,
            readers: HashMap::new(),
        })
    }

    /// Readable when somebody connects.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.listener {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }

    /// Takes one connection, or turns it away when there are too many. Its descriptor is in the set by that number.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn accept(&mut self, number: u64, epoll: &Epoll) -> io::Result<()> {
        let accepted = match &self.listener {
            Listener::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
            Listener::Unix(listener, _) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted => Ok(()),
                    _ => Err(error),
                };
            }
        };
        if self.readers.len() >= READERS_MAX {
            return Ok(());
        }
        if epoll
            .add(stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, number))
            .is_ok()
        {
            let deadline = Instant::now() + PATIENCE;
            self.readers.insert(
                number,
                Reader {
                    stream,
                    deadline,
                    request: Vec::new(),
                    response: Vec::new(),
                },
            );
        }
        Ok(())
    }

    /// Goes on with one reader.
    pub fn handle(&mut self, number: u64, epoll: &Epoll, render: impl FnOnce() -> String) {
        let Some(reader) = self.readers.get_mut(&number) else {
            return;
        };
        if let Some(more) = reader.proceed(render) {
            let _ = epoll.modify(reader.stream.as_fd(), &mut EpollEvent::new(more, number));
        } else {
            self.readers.remove(&number);
        }
    }

    /// Closes readers that take too long; returns when the next one will.
    pub fn expire(&mut self, now: Instant) -> Option<Instant> {
        self.readers.retain(|_, reader| reader.deadline > now);
        self.readers.values().map(|reader| reader.deadline).min()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = &self.listener {
            let _ = fs::remove_file(path);
        }
    }
}

impl Reader {
    /// What to wait for next; `None` when it is over.
    fn proceed(&mut self, render: impl FnOnce() -> String) -> Option<EpollFlags> {
        if self.response.is_empty() {
            let mut buffer = [0; 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.request.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Some(EpollFlags::EPOLLIN);
                }
                Err(_) => return None,
            }
            if !has_ended(&self.request) {
                return (self.request.len() < REQUEST_BYTES_MAX).then_some(EpollFlags::EPOLLIN);
            }
            self.response = respond(&self.request, render);
        }
        while !self.response.is_empty() {
            match self.stream.write(&self.response) {
                Ok(length) => drop(self.response.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Some(EpollFlags::EPOLLOUT);
                }
                Err(_) => return None,
            }
        }
        None
    }
}

fn has_ended(request: &[u8]) -> bool {
    request.windows(4).any(|window| window == b"\r\n\r\n")
        || request.windows(2).any(|window| window == b"\n\n")
}

fn respond(request: &[u8], render: impl FnOnce() -> String) -> Vec<u8> {
    let line = request
        .split(|byte| *byte == b'\r' || *byte == b'\n')
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => ("200 OK", render()),
        (Some(b"GET"), _) => ("404 Not Found", "Metrics are at /metrics.\n".to_owned()),
        _ => (
            "405 Method Not Allowed",
            "Only GET is answered.\n".to_owned(),
        ),
    };
    let length = body.len();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.into_bytes(), body.into_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_at_their_path_and_nowhere_else() {
        let answer =
            |request: &[u8]| String::from_utf8(respond(request, || "x 1\n".to_owned())).unwrap();
        let found = answer(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n") && found.ends_with("\r\n\r\nx 1\n"));
        assert!(answer(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(answer(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(answer(b"\xff\n\n").starts_with("HTTP/1.1 405 "));
    }
}
