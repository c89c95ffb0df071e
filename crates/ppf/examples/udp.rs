//! The function over the kernel's UDP, one address on each side, for tests beside others' peers; slow, and for nothing else:
//!
//! ```text
//!   udp OURS PEER TEID OURS PEER TEID [SECONDS]     the core network's side, the radio's; peers are asked if they live after so many
//! ```
//!
//! Says its own TEIDs, then events. Reads `mark` (an end marker to the radio's side), and ends when there is no more to read.

use std::io::{BufRead, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use millrace_ppf::{
    Bearer, BearerId, Function, Outer, Peer, Sending, Settings, Side, Supervision, Verdict,
};
use millrace_wire::gtpu::PORT;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Node {
    function: Function,
    bearer: BearerId,
    ours: [IpAddr; 2],
    sockets: [UdpSocket; 2],
    begin: Instant,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let seven = words.len() == 7;
    if words.len() != 6 && !seven {
        return Err("udp OURS PEER TEID OURS PEER TEID [SECONDS]".into());
    }
    let ours: [IpAddr; 2] = [words[0].parse()?, words[3].parse()?];
    let peer = |at: usize| -> Result<Peer> {
        Ok(Peer {
            address: words[at].parse()?,
            teid: words[at + 1].parse()?,
        })
    };
    let mut settings = Settings::default();
    if seven {
        settings.supervision = Some(Supervision {
            interval_ns: words[6].parse::<u64>()? * 1_000_000_000,
            response_ns: 300_000_000,
            requests: 2,
        });
    }
    let mut function = Function::with_settings(settings);
    let bearer = Bearer::new(peer(1)?, peer(4)?);
    let bearer = function.bearers.add(bearer).ok_or("no room")?;
    let socket = |ours: IpAddr| -> Result<UdpSocket> {
        let socket = UdpSocket::bind((ours, PORT))?;
        socket.set_read_timeout(Some(Duration::from_millis(1)))?;
        Ok(socket)
    };
    let node = Node {
        function,
        bearer,
        ours,
        sockets: [socket(ours[0])?, socket(ours[1])?],
        begin: Instant::now(),
    };
    println!("{} {}", bearer.teid(Side::Core), bearer.teid(Side::Radio));
    node.run()
}

impl Node {
    fn run(mut self) -> Result<()> {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = std::io::stdin().lock().lines();
            lines
                .map_while(std::result::Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        loop {
            match receiver.try_recv() {
                Ok(line) if line == "mark" => {
                    self.function.end_marker(self.bearer, Side::Radio);
                }
                Ok(line) => return Err(format!("{line:?} is nothing to do").into()),
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
            for side in Side::BOTH {
                self.receive(side)?;
            }
            self.function.handle_timeout(self.now_ns());
            while let Some(sending) = self.function.poll_sending() {
                if let Sending::Datagram {
                    side, to, bytes, ..
                } = sending
                {
                    self.sockets[side as usize].send_to(&bytes, (to, PORT))?;
                }
            }
            while let Some(event) = self.function.poll_event() {
                println!("{event:?}");
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn receive(&mut self, side: Side) -> Result<()> {
        let mut bytes = [0; 2048];
        let (count, from): (usize, SocketAddr) = match self.sockets[side as usize]
            .recv_from(&mut bytes)
        {
            Ok(got) => got,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let outer = Outer {
            side,
            source: from.ip(),
            destination: self.ours[side as usize],
            source_port: from.port(),
        };
        let now_ns = self.now_ns();
        match self.function.handle_at(&outer, 0, &bytes[..count], now_ns) {
            Verdict::Relay {
                side,
                to,
                header,
                body,
                ..
            } => {
                let message = [&header.0[..header.1], body].concat();
                self.sockets[side as usize].send_to(&message, (to.address, PORT))?;
            }
            Verdict::Reply(reply) => {
                self.sockets[side as usize].send_to(reply.bytes(), (reply.to, reply.to_port))?;
            }
            verdict => println!("{verdict:?}"),
        }
        Ok(())
    }
}
