//! Addresses of connections whose program has not stated them: those that it has not offered.
//!
//! The kernel says which socket a descriptor is (`/proc/PID/fd`) and which addresses a socket has (`/proc/PID/net/tcp`, `tcp6`:
//! those of the process's own network namespace). Asked only when somebody looks, so that short connections cost nothing; and of so many
//! only for one answer, since rows and tables are as long as their programs make them. Where there are more, the next answer says more.

use std::collections::HashMap;
use std::net::Ipv6Addr;

use millrace_wire::Address;

use crate::offers::ClientId;
use crate::proof::Process;

/// The two addresses of a socket, its own first.
pub(crate) type Pair = (Address, Address);

/// A connection's listing: whose board, which row, and since when.
pub(crate) type Listing = (ClientId, u32, u64);

/// Descriptors of which the kernel is asked for one answer: 2 µs each.
const ASKED_MAX: usize = 4096;
/// Bytes of tables that are read for one answer: some 50 000 sockets, of which reading takes some 50 ms.
const TABLE_BYTES_MAX: u64 = 8 << 20;

/// What was found out for the last answer, and is for this one.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    last: HashMap<Listing, Pair>,
    now: HashMap<Listing, Pair>,
    namespaces: HashMap<ClientId, Option<String>>,
    /// By network namespace.
    tables: HashMap<String, Table>,
    asked: usize,
    table_bytes: u64,
}

/// The sockets of a network namespace, by inode.
#[derive(Debug)]
struct Table {
    pairs: HashMap<u64, Pair>,
    is_whole: bool,
}

/// What is known of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Pair(Pair),
    /// There is no such socket any more.
    Nothing,
    /// Nobody has looked: there is too much to look at for one answer.
    TooMuch,
}

impl Addresses {
    /// The addresses of a connection that a process has at `fd`.
    pub(crate) fn find(&mut self, listing: Listing, process: &Process, fd: i32) -> Found {
        let found = match self.last.get(&listing) {
            Some(pair) => Found::Pair(*pair),
            None if self.asked >= ASKED_MAX => Found::TooMuch,
            None => {
                self.asked += 1;
                self.ask(listing.0, process, fd).unwrap_or(Found::Nothing)
            }
        };
        if let Found::Pair(pair) = found {
            self.now.insert(listing, pair);
        }
        found
    }

    /// An answer is complete: what it did not need is forgotten.
    pub(crate) fn end_answer(&mut self) {
        *self = Addresses {
            last: std::mem::take(&mut self.now),
            ..Addresses::default()
        };
    }

    fn ask(&mut self, client: ClientId, process: &Process, fd: i32) -> Option<Found> {
        let inode = process.socket_inode(fd)?;
        let namespace = self
            .namespaces
            .entry(client)
            .or_insert_with(|| process.network_namespace())
            .clone()?;
        let read = &mut self.table_bytes;
        let table = self.tables.entry(namespace).or_insert_with(|| {
            let texts = ["net/tcp", "net/tcp6"].map(|name| {
                let text = process.read_beginning(name, TABLE_BYTES_MAX - *read);
                let text = text.unwrap_or_default();
                *read = TABLE_BYTES_MAX.min(*read + text.len() as u64);
                text
            });
            Table {
                pairs: texts.iter().flat_map(|text| parse(text)).collect(),
                is_whole: *read < TABLE_BYTES_MAX,
            }
        });
        let found = table.pairs.get(&inode).map(|pair| Found::Pair(*pair));
        found.or((!table.is_whole).then_some(Found::TooMuch))
    }
}

/// The lines of `/proc/net/tcp` or `tcp6`: number, local and remote address, state, queues, timers, user, time-out, inode.
fn parse(text: &str) -> impl Iterator<Item = (u64, Pair)> + '_ {
    text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let local = parse_address(words.next()?)?;
        let remote = parse_address(words.next()?)?;
        let inode = words.nth(6)?.parse().ok()?;
        // Else the text may end in the middle of the number.
        words.next()?;
        Some((inode, (local, remote)))
    })
}

/// `0100007F:1F90`: words of 32 bits in the machine's order, then the port.
fn parse_address(text: &str) -> Option<Address> {
    let (digits, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |index: usize| {
        let digits = digits.get(index * 8..index * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip = match digits.len() {
        8 => std::net::Ipv4Addr::from(word(0)?).to_ipv6_mapped(),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Ipv6Addr::from(bytes)
        }
        _ => return None,
    };
    let ip = ip.octets();
    Some(Address { ip, port })
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    const LISTING: Listing = (ClientId(1), 2, 3);

    #[test]
    fn the_kernel_says_which_addresses_a_descriptor_has() {
        let own = std::process::id().cast_signed();
        let process = Process::open(own, None).unwrap().unwrap();
        for place in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(place) else {
                continue;
            };
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut addresses = Addresses::default();
            let found = addresses.find(LISTING, &process, near.as_raw_fd());
            let Found::Pair((local, remote)) = found else {
                panic!("the socket is not listed")
            };
            assert_eq!(SocketAddr::from(local), near.local_addr().unwrap());
            assert_eq!(SocketAddr::from(remote), near.peer_addr().unwrap());
            // It is known for the next answer, and forgotten when that did not need it.
            addresses.end_answer();
            assert_eq!(addresses.find(LISTING, &process, -1), found);
            addresses.end_answer();
            addresses.end_answer();
            assert_eq!(addresses.find(LISTING, &process, -1), Found::Nothing);
        }
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        assert_eq!(
            Addresses::default().find(LISTING, &process, file.as_raw_fd()),
            Found::Nothing,
            "no socket"
        );
    }

    #[test]
    fn an_answer_asks_for_so_many_and_the_next_one_for_those_behind_them() {
        let own = std::process::id().cast_signed();
        let process = Process::open(own, None).unwrap().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = near.as_raw_fd();
        let mut addresses = Addresses::default();
        let mut are_known = |rows: std::ops::Range<usize>| {
            let listings = rows.map(|row| (ClientId(1), row as u32, 3));
            let found = listings.map(|listing| addresses.find(listing, &process, fd));
            let found: Vec<Found> = found.collect();
            addresses.end_answer();
            found.iter().filter(|it| **it != Found::TooMuch).count()
        };
        assert_eq!(are_known(0..3 * ASKED_MAX), ASKED_MAX);
        assert_eq!(are_known(0..3 * ASKED_MAX), 2 * ASKED_MAX);
    }

    #[test]
    fn of_tables_that_are_too_long_the_beginning_is_read() {
        let own = std::process::id().cast_signed();
        let process = Process::open(own, None).unwrap().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut addresses = Addresses {
            table_bytes: TABLE_BYTES_MAX - 100,
            ..Addresses::default()
        };
        let found = addresses.find(LISTING, &process, near.as_raw_fd());
        assert_eq!(found, Found::TooMuch);
        assert_eq!(addresses.table_bytes, TABLE_BYTES_MAX);
    }

    #[test]
    fn lines_of_other_shapes_are_passed_over() {
        let text = "  sl  local_address\n  0: 0100007F:1F90 0100007F:0050 01 0:0 0:0 0 0 0 77 1\n 1: 01:1\n\n 2: zz";
        assert_eq!(parse(text).count(), 1);
        let cut = text.rsplit_once(" 1\n 1: ").unwrap().0;
        assert!(cut.ends_with("77"));
        assert_eq!(parse(cut).count(), 0);
    }
}
