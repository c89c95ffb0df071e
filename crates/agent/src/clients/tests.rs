use super::*;
use millrace_shm::board;
use millrace_wire::{Declined, Reason};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, getsockopt, send, setsockopt, socketpair,
};

fn connected() -> (Client, OwnedFd) {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
    setsockopt(&ours, sockopt::PassCred, &true).unwrap();
    let peer = getsockopt(&ours, sockopt::PeerCredentials).unwrap();
    (
        Client::new(
            ClientId(1),
            Inlet::new(ours),
            peer,
            (&Containment::default(), false),
            1000,
        )
        .unwrap(),
        theirs,
    )
}

fn send_all(socket: &OwnedFd, bytes: &[u8]) {
    assert_eq!(
        send(socket.as_raw_fd(), bytes, MsgFlags::empty()),
        Ok(bytes.len())
    );
}

#[test]
fn messages_of_the_client_itself_come_through() {
    let (client, theirs) = connected();
    let mut buffer = [0; MAX_BYTES];
    assert!(matches!(client.receive(&mut buffer), Incoming::Nothing));
    send_all(&theirs, b"hello");
    assert!(matches!(client.receive(&mut buffer), Incoming::Message(5)));
    drop(theirs);
    // Another test's child holds a copy between its fork and its exec.
    while matches!(client.receive(&mut buffer), Incoming::Nothing) {
        std::thread::yield_now();
    }
    assert!(matches!(client.receive(&mut buffer), Incoming::Gone));
}

#[test]
fn a_client_has_left_although_its_messages_are_unread() {
    let (client, theirs) = connected();
    send_all(&theirs, b"hello");
    assert!(!client.has_left());
    drop(theirs);
    // Another test's child holds a copy between its fork and its exec.
    while !client.has_left() {
        std::thread::yield_now();
    }
    assert!(matches!(
        client.receive(&mut [0; MAX_BYTES]),
        Incoming::Message(5)
    ));
}

#[test]
fn messages_of_another_process_over_the_same_socket_do_not() {
    let (client, theirs) = connected();
    let status = std::process::Command::new("sh")
        .args(["-c", "printf forged"])
        .stdout(theirs.try_clone().unwrap())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(matches!(
        client.receive(&mut [0; MAX_BYTES]),
        Incoming::Stranger
    ));
}

/// Sends a message with so many descriptors, of which it returns the other end.
fn give(theirs: &OwnedFd, count: usize) -> std::os::unix::net::UnixStream {
    let (gift, other_end) = std::os::unix::net::UnixStream::pair().unwrap();
    pass(theirs, &vec![gift.as_raw_fd(); count]);
    other_end
}

fn pass(theirs: &OwnedFd, list: &[RawFd]) {
    let parts = [IoSlice::new(b"gift")];
    let control = [ControlMessage::ScmRights(list)];
    let flags = MsgFlags::empty();
    sendmsg::<SockaddrStorage>(theirs.as_raw_fd(), &parts, &control, flags, None).unwrap();
}

/// Reads the end of the stream, which comes when nobody holds the other end.
fn is_closed(mut other_end: std::os::unix::net::UnixStream) -> bool {
    io::Read::read(&mut other_end, &mut [0]).unwrap() == 0
}

#[test]
fn descriptors_that_a_client_sends_are_not_kept() {
    let (client, theirs) = connected();
    let mut given = Vec::new();
    for count in [1, 4] {
        let other_end = give(&theirs, count);
        assert!(matches!(
            client.receive(&mut [0; MAX_BYTES]),
            Incoming::Gift
        ));
        given.push(other_end);
    }
    drop(client);
    for other_end in given {
        assert!(is_closed(other_end), "nobody holds the gift");
    }
}

#[test]
fn a_connection_that_lingers_holds_up_nobody_who_was_sent_it() {
    let (client, theirs) = connected();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 30,
    };
    setsockopt(&near, sockopt::Linger, &linger).unwrap();
    near.set_nonblocking(true).unwrap();
    while io::Write::write(&mut &near, &[0; 65_536]).is_ok() {}
    pass(&theirs, &[near.as_raw_fd()]);
    drop(near);
    let began = Instant::now();
    let received = client.receive(&mut [0; MAX_BYTES]);
    assert!(matches!(received, Incoming::Gift));
    drop(client);
    assert!(began.elapsed() < std::time::Duration::from_secs(10));
}

/// Sends until there is no room; returns how many messages there was room for.
fn fill(client: &mut Client, cause: Cause) -> usize {
    let message = ToClient::Declined(Declined {
        offer_id: 1,
        reason: Reason::Quota,
    });
    let mut sent = 0;
    loop {
        match client.send(message, Vec::new(), cause) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error, SendError::Slow);
                return sent;
            }
        }
    }
}

#[test]
fn a_client_that_does_not_read_is_dropped_not_waited_for() {
    let (mut client, _theirs) = connected();
    let sent = fill(&mut client, Cause::Asked);
    assert!((ANSWERS_MAX..2000).contains(&sent), "{sent}");
}

#[test]
fn news_of_all_its_offers_waits_for_a_client_that_is_asleep() {
    let (mut client, theirs) = connected();
    let news = fill(&mut client, Cause::News);
    assert!(news >= 2000, "{news}");
    // Beside them it gets answers; and when it has read, the next.
    assert_eq!(fill(&mut client, Cause::Asked), ANSWERS_MAX);
    let mut read = 0;
    let mut buffer = [0; MAX_BYTES];
    while client.has_mail_waiting() {
        let flags = MsgFlags::MSG_DONTWAIT;
        while nix::sys::socket::recv(theirs.as_raw_fd(), &mut buffer, flags).is_ok() {
            read += 1;
        }
        client.flush().unwrap();
    }
    assert!(read >= news, "{read} of {news}");
    assert_eq!(client.answers, 0);
}

#[test]
fn rows_are_found_wherever_they_are_and_empty_parts_stay_unallocated() {
    let (mut client, _theirs) = connected();
    let fd = client.set_board(board::create(16_384).unwrap()).unwrap();
    let board = Board::attach(fd.as_fd()).unwrap();
    let wanted = [0, 9, 10, 11, 5000, 16_383];
    for index in wanted {
        let row = board.row(index).unwrap();
        row.identity.state.store(state::KERNEL, Ordering::Relaxed);
        row.receive.head.store(1, Ordering::Relaxed);
    }
    let blocks = || nix::sys::stat::fstat(&*fd).unwrap().st_blocks;
    let before = blocks();
    assert_eq!(
        client.rows().iter().map(|row| row.0).collect::<Vec<_>>(),
        wanted
    );
    assert_eq!(blocks(), before);
}

#[test]
fn rows_of_children_that_were_killed_are_not_shown() {
    let (mut client, _theirs) = connected();
    let fd = client.set_board(board::create(16).unwrap()).unwrap();
    let board = Board::attach(fd.as_fd()).unwrap();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let parent = std::os::unix::process::parent_id();
    for (index, holders) in [
        vec![child.id()],
        vec![child.id(), parent],
        vec![u32::MAX],
        vec![],
    ]
    .iter()
    .enumerate()
    {
        let identity = &board.row(index as u32).unwrap().identity;
        identity.state.store(state::KERNEL, Ordering::Relaxed);
        for process in holders {
            identity.join(*process);
        }
    }
    let shown: Vec<u32> = client.rows().iter().map(|row| row.0).collect();
    assert_eq!(shown, [1, 2, 3]);
}
