use std::os::fd::AsRawFd;

use millrace_shm::sys::{create_sealed, create_unsealed};
use millrace_wire::memif::{Disconnect, Mode};

use super::super::Role;
use super::*;

const REGION_BYTES: usize = 64 * 1024;

fn config() -> Config {
    Config::new(Role::Server, "/nowhere")
}

fn init() -> Init {
    Init {
        version: VERSION,
        id: 0,
        mode: Mode::Ethernet,
        secret: Text::default(),
        name: Text::new("test"),
    }
}

fn region(index: u16) -> Message {
    Message::AddRegion(AddRegion {
        index,
        bytes: REGION_BYTES as u64,
    })
}

fn ring(index: u16, offset: u32, log2_size: u8) -> AddRing {
    AddRing {
        flags: RING_C2S,
        index,
        region: 0,
        offset,
        log2_size,
        private_header_bytes: 0,
    }
}

fn memory() -> Option<OwnedFd> {
    create_sealed(c"test", REGION_BYTES, 0).ok()
}

fn bell() -> Option<OwnedFd> {
    EventFd::new().unwrap().as_fd().try_clone_to_owned().ok()
}

fn gifts(fd: Option<OwnedFd>) -> Gifts {
    let mut gifts = Gifts::default();
    fd.into_iter().for_each(|fd| gifts.push(fd));
    gifts
}

/// Says messages to a server; returns what it says against the last.
fn against(config: &Config, dialogue: Vec<(Message, Option<OwnedFd>)>) -> String {
    let mut server = Server::default();
    let last = dialogue.len() - 1;
    for (number, (message, fd)) in dialogue.into_iter().enumerate() {
        match server.handle(config, message, gifts(fd)) {
            Ok(step) if number < last => assert!(matches!(step, Step::Send(Message::Ack, None))),
            Ok(_) => return "nothing".to_owned(),
            Err(error) if number == last => return error.to_string(),
            Err(error) => panic!("message {number}: {error}"),
        }
    }
    unreachable!("there is a last message")
}

/// What a server says against the last of these, after an INIT that it takes.
fn says(after: Vec<(Message, Option<OwnedFd>)>, wanted: &str) {
    let dialogue = [vec![(Message::Init(init()), None)], after].concat_moved();
    assert_eq!(against(&config(), dialogue), wanted);
}

fn add(ring: AddRing) -> Message {
    Message::AddRing(ring)
}

#[test]
fn a_server_takes_what_fits_and_says_what_does_not() {
    says(
        vec![(Message::Init(init()), None)],
        "unexpected message INIT",
    );
    says(vec![(Message::Ack, None)], "unexpected message ACK");
    says(vec![(region(1), memory())], "region 1 is not the next");
    says(
        vec![(region(0), memory()), (region(0), memory())],
        "region 0 is not the next",
    );
    says(
        vec![(region(0), None)],
        "ADD_REGION came without a descriptor",
    );
    let unsealed = tempfile::tempfile().unwrap();
    unsealed.set_len(REGION_BYTES as u64).unwrap();
    says(
        vec![(region(0), Some(unsealed.into()))],
        "a region's memory is not sealed against shrinking",
    );
    let small = create_sealed(c"test", 4096, 0).ok();
    says(
        vec![(region(0), small)],
        "a region of 65536 bytes is not backed",
    );
    says(
        vec![(add(ring(0, 0, 4)), None)],
        "ADD_RING came without a descriptor",
    );
    says(vec![(add(ring(1, 0, 4)), bell())], "ring 1 is not the next");
    says(
        vec![(add(ring(0, 0, 4)), bell()), (add(ring(1, 0, 4)), bell())],
        "ring 1 is not the next",
    );
    says(
        vec![(add(ring(0, 0, 15)), bell())],
        "ring 0 has more than 2^14 descriptors",
    );
    says(
        vec![(add(ring(0, 0, 4)), memory())],
        "ring 0 came with a descriptor that is no eventfd",
    );
}

#[test]
fn a_server_takes_rings_that_are_rings() {
    let connect = || (Message::Connect(Text::new("test")), None);
    let wrong = [
        (0, 12),
        (REGION_BYTES as u32 - 64, 4),
        (4, 4),
        (u32::MAX - 7, 4),
    ];
    for (offset, log2_size) in wrong {
        let dialogue = vec![
            (region(0), memory()),
            (add(ring(0, offset, log2_size)), bell()),
            connect(),
        ];
        says(dialogue, "ring 0 is not inside its region, or not aligned");
    }
    let dialogue = vec![
        (region(0), memory()),
        (add(ring(0, 0, 4)), bell()),
        connect(),
    ];
    says(dialogue, "ring 0 does not begin with the cookie");
    says(vec![connect()], "nothing");
}

#[test]
fn a_server_wants_the_right_version_interface_mode_and_secret() {
    let mut guarded = config();
    guarded.secret = Some("open sesame".to_owned());
    let with = |change: fn(&mut Init)| {
        let mut init = init();
        init.secret = Text::new("open sesame");
        change(&mut init);
        against(&guarded, vec![(Message::Init(init), None)])
    };
    assert_eq!(with(|_| ()), "nothing");
    assert_eq!(
        with(|init| init.version = 0x300),
        "memif version 3.0, not 2.0"
    );
    assert_eq!(with(|init| init.id = 7), "no interface has id 7 here");
    assert_eq!(
        with(|init| init.mode = Mode::Ip),
        "the interface is of another mode"
    );
    assert_eq!(
        with(|init| init.secret = Text::default()),
        "the secret is wrong"
    );
    assert_eq!(
        with(|init| init.secret = Text::new("open")),
        "the secret is wrong"
    );
    let early = against(&config(), vec![(region(0), memory())]);
    assert_eq!(early, "unexpected message ADD_REGION");
}

#[test]
fn a_server_bounds_the_memory_that_it_maps() {
    let mut small = config();
    small.memory_bytes_max = 100_000;
    let dialogue = vec![
        (Message::Init(init()), None),
        (region(0), memory()),
        (region(1), memory()),
    ];
    assert_eq!(
        against(&small, dialogue),
        "with a region of 65536 bytes there is more memory than memory_bytes_max, 100000"
    );
    small.accept_unsealed = true;
    let unsealed = create_unsealed(c"test", REGION_BYTES).ok();
    assert_eq!(
        against(
            &small,
            vec![(Message::Init(init()), None), (region(0), unsealed)]
        ),
        "nothing"
    );
}

#[test]
fn a_client_makes_what_the_server_can_have_and_says_it_in_order() {
    let mut config = Config::new(Role::Client, "/nowhere");
    config.transmit_queues = 4;
    config.receive_queues = 4;
    let Message::Hello(mut hello) = hello((config.receive_queues, config.transmit_queues)) else {
        panic!()
    };
    hello.c2s_ring_max = 2;
    hello.s2c_ring_max = 0;
    hello.log2_size_max = 5;
    let mut client = Client::Hello;
    let mut said = Vec::new();
    let mut message = Message::Hello(hello);
    let mut server = Server::default();
    let mut server_config = self::config();
    server_config.receive_queues = 3;
    loop {
        match client.handle(&config, &message).unwrap() {
            Step::Send(next, fd) => {
                said.push(next.name());
                let answer = server.handle(&server_config, next, gifts(fd)).unwrap();
                message = match answer {
                    Step::Send(answer, _) | Step::Connected(_, Some(answer)) => answer,
                    Step::Connected(_, None) => panic!("a server says CONNECTED"),
                };
            }
            Step::Connected(queues, None) => {
                assert_eq!((queues.transmitters.len(), queues.receivers.len()), (3, 1));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let wanted = [
        "INIT",
        "ADD_REGION",
        "ADD_RING",
        "ADD_RING",
        "ADD_RING",
        "ADD_RING",
        "CONNECT",
    ];
    assert_eq!(said, wanted);
}

#[test]
fn a_client_takes_nothing_out_of_turn() {
    let config = Config::new(Role::Client, "/nowhere");
    let Message::Hello(hello) = hello((config.receive_queues, config.transmit_queues)) else {
        panic!()
    };
    let connected = Message::Connected(Text::new("test"));
    let disconnect = Message::Disconnect(Disconnect {
        code: 0,
        reason: Text::default(),
    });
    for early in [Message::Ack, connected, Message::Init(init()), disconnect] {
        assert!(Client::Hello.handle(&config, &early).is_err());
    }
    for early in [connected, Message::Hello(hello)] {
        let mut client = Client::Hello;
        client.handle(&config, &Message::Hello(hello)).unwrap();
        assert!(client.handle(&config, &early).is_err());
    }
    let mut old = hello;
    (old.version_min, old.version_max) = (0x100, 0x100);
    let error = Client::Hello
        .handle(&config, &Message::Hello(old))
        .unwrap_err();
    assert_eq!(error.to_string(), "memif version 1.0, not 2.0");
}

#[test]
fn a_descriptor_that_came_in_vain_is_closed() {
    let fd = memory().unwrap();
    let number = fd.as_raw_fd();
    let mut server = Server::default();
    assert!(
        server
            .handle(&config(), Message::Ack, gifts(Some(fd)))
            .is_err()
    );
    assert!(
        std::fs::read_link(format!("/proc/self/fd/{number}"))
            .map_or(true, |link| !link.to_string_lossy().contains("memfd:test"))
    );
}

/// Puts lists of what cannot be cloned one after another.
trait ConcatMoved<T> {
    fn concat_moved(self) -> Vec<T>;
}

impl<T, const N: usize> ConcatMoved<T> for [Vec<T>; N] {
    fn concat_moved(self) -> Vec<T> {
        self.into_iter().flatten().collect()
    }
}
