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
            ours,
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

#[test]
fn descriptors_that_a_client_sends_are_not_kept() {
    let (client, theirs) = connected();
    let (gift, other_end) = std::os::unix::net::UnixStream::pair().unwrap();
    let list = [gift.as_raw_fd(); 4];
    let parts = [IoSlice::new(b"gift")];
    let control = [ControlMessage::ScmRights(&list)];
    sendmsg::<SockaddrStorage>(
        theirs.as_raw_fd(),
        &parts,
        &control,
        MsgFlags::empty(),
        None,
    )
    .unwrap();
    drop(gift);
    assert!(matches!(
        client.receive(&mut [0; MAX_BYTES]),
        Incoming::Gift
    ));
    let mut other_end = other_end;
    let mut byte = [0];
    assert_eq!(
        io::Read::read(&mut other_end, &mut byte).unwrap(),
        0,
        "nobody holds the gift"
    );
}

/// Sends until there is no room; returns how many messages there was room for.
fn fill(client: &mut Client, cause: Cause) -> usize {
    let message = ToClient::Declined(Declined {
        offer_id: 1,
        reason: Reason::Quota,
    });
    let mut sent = 0;
    loop {
        match client.send(message, None, cause) {
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
