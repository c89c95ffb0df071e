use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;

use millrace_shm::board::{self, Board};
use millrace_shm::segment;
use millrace_stream::{ReceiveHalf, ReceivePlan};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, connect, getsockopt, send,
    setsockopt, socket, sockopt,
};

use super::renew::Renewal;
use super::*;

mod bereaved;
mod senders;

const RING: u32 = 4096;
/// So that the bytes wrap, in the ring and in the number.
const START: u32 = u32::MAX - 99;

/// A connection of which direction 0 is on the ring, and the row of either end.
struct Connection {
    near: TcpStream,
    far: TcpStream,
    segment: Segment,
    boards: [Board; 2],
}

impl Connection {
    fn new() -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // The kernel lets no buffer grow whose size was chosen.
        setsockopt(&listener, sockopt::RcvBuf, &8192).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        setsockopt(&near, sockopt::SndBuf, &8192).unwrap();
        let far = listener.accept().unwrap().0;
        let fd = segment::create(RING).unwrap();
        let boards = [0, 1].map(|_| Board::attach(board::create(1).unwrap().as_fd()).unwrap());
        let connection = Connection {
            near,
            far,
            segment: Segment::attach(fd.as_fd(), RING).unwrap(),
            boards,
        };
        // A gate that has let `START` bytes through.
        let gate = &connection.segment.words(0).gate;
        let opened = gate.open(gate.load(), RING.trailing_zeros()).unwrap();
        gate.close(gate.publish(opened, START).unwrap()).unwrap();
        let road = connection.road();
        road.sender.grant(RING.ilog2());
        road.receiver.grant(RING.ilog2());
        road.sender.send.tail.store(START, Relaxed);
        road.receiver.receive.head.store(START, Relaxed);
        connection
    }

    fn road(&self) -> Road<'_> {
        let [sender, receiver] = &self.boards;
        Road {
            connection_id: 0,
            sender: sender.row(0).unwrap(),
            receiver: receiver.row(0).unwrap(),
            segment: &self.segment,
            direction: 0,
            sender_connected: true,
            asker: Asker::Reader,
            carries: false,
            makes_room: false,
            reader_is_ending: false,
            callers: Vec::new(),
        }
    }

    /// What the sender does: `position` bytes have gone by the kernel, and these go by the ring, whose gate is shut then.
    fn send_by_ring(&self, position: u64, bytes: &[u8]) {
        let send = &self.road().sender.send;
        let words = self.segment.words(0);
        let gate = words
            .gate
            .open(words.gate.load(), RING.trailing_zeros())
            .unwrap();
        words.switch_position.store(position, Relaxed);
        send.kernel_position.store(position, Relaxed);
        sys::fill_ring(&self.segment, 0, gate.tail, RING, bytes);
        let gate = words.gate.publish(gate, bytes.len() as u32).unwrap();
        send.tail.store(gate.tail, Relaxed);
        words.gate.close(gate).unwrap();
    }

    fn recall(&self) -> Result<(), Refusal> {
        self.road().bring_back(self.near.as_fd(), None, WAIT)
    }

    fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.far.read_exact(&mut bytes).unwrap();
        bytes
    }
}

fn pattern(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|at| ((at + seed) % 251) as u8).collect()
}

#[test]
fn of_a_queue_that_is_given_up_the_reset_is_seen_and_no_byte() {
    let mut connection = Connection::new();
    connection.near.write_all(&pattern(5000, 0)).unwrap();
    reorder::give_up(connection.near.as_fd(), Some(connection.far.as_fd()));
    let told = connection.far.read(&mut [0; 10]).unwrap_err();
    assert_eq!(told.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn so_it_is_where_the_reset_is_late() {
    let mut connection = Connection::new();
    connection.near.write_all(&pattern(5000, 0)).unwrap();
    reorder::throw_away(connection.far.as_fd());
    let told = connection.far.read(&mut [0; 10]).unwrap_err();
    assert_eq!(told.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn unread_bytes_come_by_the_kernel_in_order() {
    let mut connection = Connection::new();
    let bytes = pattern(RING as usize, 0);
    connection.near.write_all(b"first").unwrap();
    connection.send_by_ring(5, &bytes);
    // The reader has taken three of them.
    let head = &connection.boards[1].row(0).unwrap().receive.head;
    head.fetch_add(3, Relaxed);
    connection.recall().unwrap();
    connection.near.write_all(b"last").unwrap();

    let expected = [b"first", &bytes[3..], b"last"].concat();
    assert_eq!(connection.read(expected.len()), expected);
    let road = connection.road();
    assert!(road.is_drained().unwrap());
    let count = RING - 3;
    assert_eq!(
        road.sender.send.kernel_position.load(Relaxed),
        5 + u64::from(count)
    );
    let words = connection.segment.words(0);
    assert_eq!(words.head.load(Relaxed), START.wrapping_add(RING));
    assert_eq!(words.kernel_hint.load(Relaxed), 5 + u64::from(count));
    assert!(road.sender.send.lock.try_lock_for(1, Duration::ZERO));
}

#[test]
fn a_sender_that_leaves_has_its_bytes_sent_while_the_reader_is_locked() {
    let mut connection = Connection::new();
    let bytes = pattern(100, 0);
    connection.send_by_ring(0, &bytes);
    let mut road = connection.road();
    road.asker = Asker::Sender;
    let own = road.sender.send.lock.lock(1);
    let reading = road.receiver.receive.lock.lock(1);
    let refusal = road.bring_back(connection.near.as_fd(), None, SHORT_WAIT);
    assert!(matches!(refusal, Err(Refusal::Locked)), "{refusal:?}");
    road.receiver.receive.lock.unlock(reading);
    road.bring_back(connection.near.as_fd(), None, WAIT)
        .unwrap();
    road.sender.send.lock.unlock(own);
    assert!(road.is_drained().unwrap());
    assert_eq!(connection.read(100), bytes);
}

#[test]
fn what_went_by_the_kernel_later_is_sent_again_behind_the_ring_s() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut connection = Connection::new();
    connection.near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    connection.far = listener.accept().unwrap().0;
    let bytes = pattern(100, 0);
    connection.near.write_all(b"first").unwrap();
    connection.send_by_ring(5, &bytes);
    connection.near.write_all(b"later").unwrap();
    let road = connection.road();
    road.sender.send.kernel_position.store(10, Relaxed);
    let (near, far) = (connection.near.as_fd(), connection.far.as_fd());
    road.bring_back(near, Some(far), WAIT).unwrap();
    assert!(road.is_drained().unwrap());
    assert_eq!(road.receiver.receive.kernel_position.load(Relaxed), 10);
    assert_eq!(road.sender.send.kernel_position.load(Relaxed), 120);
    let expected = [b"first", &bytes[..], b"later"].concat();
    assert_eq!(connection.read(110), expected);
}

#[test]
fn what_is_left_in_the_ring_comes_behind_what_the_kernel_took() {
    let mut connection = Connection::new();
    let bytes = pattern(3000, 0);
    connection.send_by_ring(0, &bytes);
    connection.near.write_all(&bytes[..1000]).unwrap();
    let road = connection.road();
    let near = connection.near.as_fd();
    road.advance(road.unread(near).unwrap(), 1000, (near, None))
        .unwrap();
    let reader = ReceiveHalf::new(road.receiver, road.segment, 0);
    let plan = reader.plan().unwrap();
    assert_eq!(plan, ReceivePlan::KernelUpTo { limit: 1000 });
    assert_eq!(reader.unread(), 2000);
    connection.recall().unwrap();
    assert_eq!(connection.read(3000), bytes);
}

#[test]
fn a_full_kernel_leaves_bytes_in_the_ring_for_another_time() {
    let mut connection = Connection::new();
    connection.near.set_nonblocking(true).unwrap();
    let mut position = 0;
    let block = pattern(251 * 64, 0);
    // What is under way makes room once more when it has arrived.
    for _ in 0..10 {
        while let Ok(count) = connection.near.write(&block[position % 251..]) {
            position += count;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let bytes = pattern(RING as usize, position);
    connection.send_by_ring(position as u64, &bytes);
    let outcome = connection.recall();
    assert!(matches!(outcome, Err(Refusal::Full)), "{outcome:?}");

    let early = connection.read(position);
    while connection.recall().is_err() {}
    let late = connection.read(RING as usize);
    assert_eq!([early, late].concat(), pattern(position + RING as usize, 0));
}

#[test]
fn nothing_is_sent_when_order_is_not_sure() {
    type Case = (fn(&mut Connection), fn(&Refusal) -> bool);
    let cases: [Case; 11] = [
        // While the locks were waited for an end was closed, and its row is the next connection's.
        (
            |c| c.road().receiver.identity.connection_id.store(9, Relaxed),
            |refusal| matches!(refusal, Refusal::Unpaired),
        ),
        (
            |c| c.road().sender.identity.connection_id.store(9, Relaxed),
            |refusal| matches!(refusal, Refusal::Unpaired),
        ),
        (
            |c| {
                let gate = &c.segment.words(0).gate;
                gate.open(gate.load(), RING.trailing_zeros()).unwrap();
            },
            |refusal| matches!(refusal, Refusal::Open),
        ),
        (
            |c| c.road().sender.send.raw.store(1, Relaxed),
            |refusal| matches!(refusal, Refusal::Sending),
        ),
        (
            |c| assert_eq!(c.road().sender.send.lock.lock(1), Held::Owned),
            |refusal| matches!(refusal, Refusal::Locked),
        ),
        (
            |c| c.road().sender.send.kernel_position.store(1, Relaxed),
            |refusal| matches!(refusal, Refusal::Overtaken),
        ),
        (
            |c| c.near.write_all(b"around the library").unwrap(),
            |refusal| matches!(refusal, Refusal::Overtaken),
        ),
        (
            |c| c.near.shutdown(std::net::Shutdown::Write).unwrap(),
            |refusal| matches!(refusal, Refusal::Overtaken),
        ),
        (
            |c| c.road().sender.send.tail.store(7, Relaxed),
            |refusal| matches!(refusal, Refusal::Corrupt),
        ),
        (
            |c| {
                let head = START.wrapping_add(10).wrapping_sub(RING + 1);
                c.road().receiver.receive.head.store(head, Relaxed);
            },
            |refusal| matches!(refusal, Refusal::Corrupt),
        ),
        (
            |c| {
                // A window beyond the ring.
                let gate = &c.segment.words(0).gate;
                gate.close(gate.open(gate.load(), 31).unwrap()).unwrap();
            },
            |refusal| matches!(refusal, Refusal::Corrupt),
        ),
    ];
    for (index, (spoil, is_expected)) in cases.into_iter().enumerate() {
        let mut connection = Connection::new();
        connection.send_by_ring(0, &pattern(10, 0));
        let head = connection.segment.words(0).head.load(Relaxed);
        spoil(&mut connection);
        let refusal = connection.recall().unwrap_err();
        assert!(is_expected(&refusal), "case {index}: {refusal}");
        assert_eq!(connection.segment.words(0).head.load(Relaxed), head);
    }
}

#[test]
fn recalls_that_wait_leave_most_of_the_time_to_others() {
    let mut patience = Patience::default();
    let (start, tenant) = (Instant::now(), Tenant::User(1));
    assert_eq!(patience.at(tenant, start), WAIT);
    patience.spend(tenant, start, Duration::from_micros(100));
    assert_eq!(
        patience.at(tenant, start),
        WAIT,
        "a quick one costs nothing"
    );
    patience.spend(tenant, start, Duration::from_millis(100));
    let end = start + Duration::from_millis(400);
    assert_eq!(patience.rests_until(tenant, start), Some(end));
    assert_eq!(
        patience.at(tenant, end - Duration::from_millis(1)),
        SHORT_WAIT
    );
    assert_eq!(patience.at(tenant, end), WAIT);
    assert_eq!(patience.at(Tenant::User(2), start), WAIT, "another's");
}

/// Whether this process may fill queues.
fn may_repair(socket: &TcpStream) -> bool {
    let allowed = sys::set_tcp_option(socket.as_fd(), libc::TCP_REPAIR, 1).is_ok();
    if allowed {
        sys::set_tcp_option(socket.as_fd(), libc::TCP_REPAIR, -1).unwrap();
    } else {
        eprintln!("not tested: putting bytes back takes CAP_NET_ADMIN");
    }
    allowed
}

/// Both ends of a connection to this address, by a listener at that one. The near end has chosen its port; the far one is the second, or
/// not.
fn connected(listen: &str, reach: &str, is_far: bool) -> [TcpStream; 2] {
    let listener = TcpListener::bind(listen).unwrap();
    let port = listener.local_addr().unwrap().port();
    let near = chosen_port(reach);
    connect(
        near.as_raw_fd(),
        &SockaddrStorage::from(SocketAddr::new(reach.parse().unwrap(), port)),
    )
    .unwrap();
    let (near, far) = (TcpStream::from(near), listener.accept().unwrap().0);
    if is_far { [near, far] } else { [far, near] }
}

/// A socket that is bound to some port, and to no address, for connections to this one.
fn chosen_port(reach: &str) -> OwnedFd {
    let (family, any) = match reach.parse().unwrap() {
        IpAddr::V4(_) => (AddressFamily::Inet, IpAddr::from([0; 4])),
        IpAddr::V6(_) => (AddressFamily::Inet6, IpAddr::from([0; 16])),
    };
    let near = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    // One that is free: a port of zero would be no choice.
    let port = TcpListener::bind((any, 0)).unwrap().local_addr().unwrap();
    bind(near.as_raw_fd(), &SockaddrStorage::from(port)).unwrap();
    near
}

const FAMILIES: [(&str, &str); 3] = [
    ("127.0.0.1:0", "127.0.0.1"),
    ("[::1]:0", "::1"),
    ("[::]:0", "127.0.0.1"),
];

fn make_again(far: &TcpStream, bytes: &[u8]) {
    let renewal = Renewal::new(far.as_fd(), None).unwrap();
    let fill = || (&mut &*far).write_all(bytes);
    renewal.make(bytes.len(), fill).unwrap();
}

#[test]
fn a_connection_that_is_made_again_ends_by_the_fin_that_it_had() {
    for ((listen, reach), is_far) in FAMILIES
        .into_iter()
        .flat_map(|it| [(it, true), (it, false)])
    {
        let [near, mut far] = connected(listen, reach, is_far);
        if !may_repair(&far) {
            return;
        }
        let addresses = (far.local_addr().unwrap(), far.peer_addr().unwrap());
        drop(near);
        let mut stream = Vec::new();
        far.read_to_end(&mut stream).unwrap();
        make_again(&far, b"gone");
        far.read_to_end(&mut stream).unwrap();
        stream.clear();
        make_again(&far, b"again");
        assert_eq!(
            (far.local_addr().unwrap(), far.peer_addr().unwrap()),
            addresses
        );
        far.read_to_end(&mut stream).unwrap();
        assert_eq!(stream, b"again");
        // What the kernel has kept of the other end acknowledges our FIN.
        far.shutdown(std::net::Shutdown::Write).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while !sys::is_over(far.as_fd()) {
            assert!(Instant::now() < deadline, "{listen}");
        }
        assert_eq!(getsockopt(&far, sockopt::SocketError).unwrap(), 0);
    }
}

#[test]
fn a_connection_that_is_made_again_ends_by_the_reset_that_it_had() {
    for ((listen, reach), is_far) in FAMILIES
        .into_iter()
        .flat_map(|it| [(it, true), (it, false)])
    {
        let [near, mut far] = connected(listen, reach, is_far);
        if !may_repair(&far) {
            return;
        }
        far.write_all(b"unread").unwrap();
        drop(near);
        while !sys::is_over(far.as_fd()) {
            std::thread::yield_now();
        }
        make_again(&far, b"again");
        let mut bytes = [0; 5];
        far.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"again");
        let error = far.read(&mut bytes).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
        assert_eq!(far.read(&mut bytes).unwrap(), 0);
    }
}
