//! The metrics endpoint: just enough HTTP/1.1 (RFC 9112) to answer `GET /metrics`, on its user's own event loop: the agent's, and the
//! switch's.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use crate::sys;

/// Readers at a time, and those of one address: whoever takes too many places is in nobody's way but their own.
const READERS_MAX: usize = 64;
const READERS_OF_ONE_MAX: usize = 4;
/// What was rendered for an address is what every address gets for so long, however often they ask.
const KEPT: Duration = Duration::from_secs(1);
/// Longest request that is read to its end.
const REQUEST_BYTES_MAX: usize = 8192;
/// A reader that is not done after so long is closed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where metrics are served, and those who read them now.
#[derive(Debug)]
pub struct Endpoint {
    listener: Listener,
    readers: HashMap<u64, Reader>,
    kept: Kept,
}

/// The last answer with metrics, and when it was made.
#[derive(Debug, Default)]
struct Kept(Option<(Instant, Arc<[u8]>)>);

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
    /// `None`: by a path, whose rights say who reads.
    from: Option<IpAddr>,
    deadline: Instant,
    request: Vec<u8>,
    /// What is sent; empty while the request is read.
    response: Arc<[u8]>,
    sent: usize,
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
            kept: Kept::default(),
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
            Listener::Tcp(listener) => listener.accept().and_then(|(stream, peer)| {
                stream.set_nonblocking(true)?;
                Ok((Box::new(stream) as Box<dyn Stream>, Some(peer.ip())))
            }),
            Listener::Unix(listener, _) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok((Box::new(stream) as Box<dyn Stream>, None))
            }),
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted => Ok(()),
                    _ => Err(error),
                };
            }
        };
        if !self.has_place(from) {
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
                    from,
                    deadline,
                    request: Vec::new(),
                    response: Arc::default(),
                    sent: 0,
                },
            );
        }
        Ok(())
    }

    fn has_place(&self, from: Option<IpAddr>) -> bool {
        let readers = self.readers.values();
        let own = readers.filter(|reader| from.is_some() && reader.from == from);
        self.readers.len() < READERS_MAX && own.count() < READERS_OF_ONE_MAX
    }

    /// Goes on with one reader.
    pub fn handle(&mut self, number: u64, epoll: &Epoll, render: impl FnOnce() -> String) {
        let Some(reader) = self.readers.get_mut(&number) else {
            return;
        };
        let kept = reader.from.map(|_| &mut self.kept);
        let metrics = || match kept {
            Some(kept) => kept.get(Instant::now(), render),
            None => found(render()),
        };
        if let Some(more) = reader.proceed(metrics) {
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

impl Kept {
    /// The one that is there, or a new one when it is too old.
    fn get(&mut self, now: Instant, render: impl FnOnce() -> String) -> Arc<[u8]> {
        let fresh = self.0.take().filter(|(made, _)| now < *made + KEPT);
        let (_, answer) = self
            .0
            .insert(fresh.unwrap_or_else(|| (now, found(render()))));
        Arc::clone(answer)
    }
}

impl Reader {
    /// What to wait for next; `None` when it is over. `metrics` is the answer with them.
    fn proceed(&mut self, metrics: impl FnOnce() -> Arc<[u8]>) -> Option<EpollFlags> {
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
            self.response = respond(&self.request, metrics);
        }
        while self.sent < self.response.len() {
            match self.stream.write(&self.response[self.sent..]) {
                Ok(length) => self.sent += length,
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

fn respond(request: &[u8], metrics: impl FnOnce() -> Arc<[u8]>) -> Arc<[u8]> {
    let line = request
        .split(|byte| *byte == b'\r' || *byte == b'\n')
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => metrics(),
        (Some(b"GET"), _) => answer("404 Not Found", "Metrics are at /metrics.\n"),
        _ => answer("405 Method Not Allowed", "Only GET is answered.\n"),
    }
}

/// The answer with what was rendered.
fn found(metrics: String) -> Arc<[u8]> {
    answer("200 OK", &metrics)
}

fn answer(status: &str, body: &str) -> Arc<[u8]> {
    let length = body.len();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    text.into_bytes().into()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::sys::epoll::{EpollCreateFlags, EpollTimeout};
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket,
    };

    use super::*;

    const LISTENER: u64 = 0;

    /// An endpoint at an address or a path, and what its user's event loop does for it.
    struct Served {
        endpoint: Endpoint,
        epoll: Epoll,
        next_number: u64,
        rendered: u32,
    }

    impl Served {
        fn at(address: &str) -> Served {
            let endpoint = Endpoint::open(address).unwrap();
            let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
            let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
            epoll.add(endpoint.as_fd(), event).unwrap();
            Served {
                endpoint,
                epoll,
                next_number: LISTENER,
                rendered: 0,
            }
        }

        /// Serves until nothing happens any more.
        fn settle(&mut self) {
            let mut events = [EpollEvent::empty(); 1];
            while self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap() > 0 {
                if events[0].data() == LISTENER {
                    self.next_number += 1;
                    self.endpoint.accept(self.next_number, &self.epoll).unwrap();
                } else {
                    let rendered = &mut self.rendered;
                    self.endpoint.handle(events[0].data(), &self.epoll, || {
                        *rendered += 1;
                        format!("x {rendered}\n")
                    });
                }
            }
        }

        /// Somebody who connects from this address of the machine's own.
        fn connect(&self, from: &str) -> TcpStream {
            let Listener::Tcp(listener) = &self.endpoint.listener else {
                panic!("a path has no addresses");
            };
            let address = |address: SocketAddr| SockaddrStorage::from(address);
            let (family, flags) = (AddressFamily::Inet, SockFlag::empty());
            let stream = socket(family, SockType::Stream, flags, None).unwrap();
            let own = SocketAddr::new(from.parse().unwrap(), 0);
            bind(stream.as_raw_fd(), &address(own)).unwrap();
            connect(stream.as_raw_fd(), &address(listener.local_addr().unwrap())).unwrap();
            TcpStream::from(stream)
        }

        /// What the reader gets; nothing where it was turned away.
        fn ask(&mut self, mut reader: impl Read + Write) -> String {
            let _ = reader.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            self.settle();
            let mut text = String::new();
            let _ = reader.read_to_string(&mut text);
            text
        }
    }

    #[test]
    fn an_address_that_takes_every_place_it_can_is_in_nobody_else_s_way() {
        let mut served = Served::at("127.0.0.1:0");
        let mut silent: Vec<_> = (0..200)
            .map(|_| {
                let stream = served.connect("127.0.0.1");
                served.settle();
                stream
            })
            .collect();
        assert_eq!(served.endpoint.readers.len(), READERS_OF_ONE_MAX);
        let further = served.connect("127.0.0.1");
        served.settle();
        assert_eq!(served.ask(further), "");
        let other = served.connect("127.0.0.2");
        served.settle();
        assert!(served.ask(other).ends_with("\r\n\r\nx 1\n"));
        silent.clear();
        served.settle();
        let again = served.connect("127.0.0.1");
        served.settle();
        assert!(served.ask(again).ends_with("\r\n\r\nx 1\n"));
    }

    #[test]
    fn all_addresses_together_have_no_more_places_than_there_are() {
        let mut served = Served::at("127.0.0.1:0");
        let mut connect = |address: usize| {
            let stream = served.connect(&format!("127.0.1.{address}"));
            served.settle();
            (stream, served.endpoint.readers.len())
        };
        let all: Vec<_> = (0..READERS_MAX).map(|index| connect(index % 60)).collect();
        assert_eq!(connect(61).1, READERS_MAX);
        drop(all);
    }

    #[test]
    fn metrics_are_rendered_once_a_second_for_all_addresses_together() {
        let mut kept = Kept::default();
        let (began, mut rendered) = (Instant::now(), 0);
        for (milliseconds, number) in [(0, 1), (1, 1), (999, 1), (1000, 2), (1999, 2), (5000, 3)] {
            let answer = kept.get(began + Duration::from_millis(milliseconds), || {
                rendered += 1;
                format!("x {rendered}\n")
            });
            let end = format!("\r\n\r\nx {number}\n");
            assert!(answer.ends_with(end.as_bytes()), "{milliseconds}");
        }
    }

    #[test]
    fn who_reads_by_a_path_finds_what_is_now() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.sock");
        let mut served = Served::at(path.to_str().unwrap());
        for end in ["\nx 1\n", "\nx 2\n"] {
            let reader = UnixStream::connect(&path).unwrap();
            assert!(served.ask(reader).ends_with(end));
        }
    }

    #[test]
    fn metrics_are_at_their_path_and_nowhere_else() {
        let answer = |request: &[u8]| {
            let answer = respond(request, || found("x 1\n".to_owned()));
            String::from_utf8(answer.to_vec()).unwrap()
        };
        let found = answer(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n") && found.ends_with("\r\n\r\nx 1\n"));
        assert!(answer(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(answer(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(answer(b"\xff\n\n").starts_with("HTTP/1.1 405 "));
    }
}
