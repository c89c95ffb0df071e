//! An agent that sends what it likes. A program that believes it must be served by the kernel's road as without one.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use millrace_shm::segment;
use millrace_wire::{
    Declined, End, MAX_BYTES, Matched, Paired, Reason, Recalled, ToAgent, ToClient, Unsupported,
    VERSION_MAX, Welcome,
};

use crate::gifts;
use crate::random::Random;
use crate::sys;

const ROWS: u32 = 16_384;
const RING_BYTES: u32 = 2 << 20;
/// Between looks at its clients.
const NAP: Duration = Duration::from_millis(1);

/// Serves for good. None: there can be no socket there.
pub(crate) fn run(path: &str, mut random: Random) -> Option<Vec<String>> {
    let listener = sys::listen(path).ok()?;
    println!("ready");
    let mut clients: HashMap<u64, Client> = HashMap::new();
    let mut number = 0;
    loop {
        if sys::wait_readable(&listener, NAP)
            && let Ok(socket) = sys::accept(&listener)
        {
            number += 1;
            // Every other client gets a board, so that it goes on to offers.
            let gives_board = random.strikes(2);
            clients.insert(
                number,
                Client {
                    socket,
                    gives_board,
                    kept: Vec::new(),
                },
            );
        }
        clients.retain(|_, client| client.serve(&mut random));
    }
}

struct Client {
    socket: OwnedFd,
    gives_board: bool,
    /// Memory that it was given, and that shrinks when the client may have mapped it.
    kept: Vec<OwnedFd>,
}

impl Client {
    /// False: it has gone, or is dropped.
    fn serve(&mut self, random: &mut Random) -> bool {
        for file in self.kept.drain(..) {
            // A file that was sealed refuses.
            let _ = sys::resize(&file, 0);
        }
        let mut buffer = [0; MAX_BYTES];
        let bytes = match sys::receive(&self.socket, &mut buffer) {
            Ok((0, _)) => return false,
            Ok((bytes, _)) => bytes,
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        };
        match ToAgent::parse(&buffer[..bytes]) {
            Ok(ToAgent::Hello(_)) => self.greet(random),
            Ok(ToAgent::Offer(offer)) => {
                self.say(
                    &ToClient::Matched(Matched {
                        offer_id: offer.offer_id,
                    }),
                    None,
                );
                if random.strikes(3) {
                    self.pair(offer.offer_id, random);
                }
            }
            Ok(ToAgent::Take(take)) => self.pair(take.offer_id, random),
            Ok(ToAgent::Recall(recall)) => {
                let offer_id = recall.offer_id;
                self.say(
                    &ToClient::Recalled(Recalled {
                        offer_id,
                        ok: random.strikes(2),
                    }),
                    None,
                );
            }
            _ => {}
        }
        if random.strikes(6) {
            let noise = random.below(2 * MAX_BYTES);
            let _ = sys::transmit(&self.socket, &random.bytes(noise), &[]);
        }
        !random.strikes(40)
    }

    fn greet(&mut self, random: &mut Random) {
        let bytes = 4096 + 384 * ROWS as usize;
        let right = (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW, ROWS);
        let (file, rows) = if self.gives_board {
            (sys::memory(bytes, right.0).ok(), right.1)
        } else {
            let rows = random.pick(&[ROWS, ROWS, 0, 1, u32::MAX, 65_536, 65_537]);
            (gifts::draw(random, bytes), rows)
        };
        let welcome = Welcome {
            version: random.pick(&[VERSION_MAX, VERSION_MAX, 0, u16::MAX]),
            rows,
            spin_us: random.pick(&[0, 50, u32::MAX]),
            offer_after_calls: random.pick(&[0, 12, u32::MAX]),
            offer_after_bytes: random.pick(&[0, 1, u32::MAX]),
        };
        self.say(&ToClient::Welcome(welcome), file);
        if random.strikes(10) {
            let none = Unsupported {
                version_min: 9,
                version_max: 9,
            };
            self.say(&ToClient::Unsupported(none), None);
        }
    }

    /// Answers an offer, mostly with what is no segment.
    fn pair(&mut self, offer_id: u64, random: &mut Random) {
        let ring_bytes =
            random.pick(&[RING_BYTES, RING_BYTES, 4096, 0, 1, 5000, u32::MAX, 1 << 31]);
        let bytes = segment::segment_bytes(RING_BYTES);
        // A good segment would let the two ends of a connection meet at different ones: no agent that is believed does that.
        let file = loop {
            let file = gifts::draw(random, bytes);
            let is_good = |file: &OwnedFd| {
                millrace_shm::sys::is_sealed_with_size(
                    file.as_raw_fd(),
                    segment::segment_bytes(ring_bytes),
                )
            };
            if !file.as_ref().is_some_and(is_good) {
                break file;
            }
        };
        let message = match random.below(8) {
            0 => ToClient::Declined(Declined {
                offer_id,
                reason: Reason::Quota,
            }),
            1 => ToClient::Recalled(Recalled { offer_id, ok: true }),
            _ => ToClient::Paired(Paired {
                offer_id: offer_id ^ random.pick(&[0, 0, 0, 1, 1 << 32]),
                connection_id: random.odd(),
                end: random.pick(&[End::Active, End::Passive]),
                ring_bytes,
            }),
        };
        self.say(&message, file);
    }

    fn say(&mut self, message: &ToClient, file: Option<OwnedFd>) {
        let mut buffer = [0; MAX_BYTES];
        let bytes = message.encode(VERSION_MAX, &mut buffer);
        let descriptors: Vec<_> = file.iter().map(AsRawFd::as_raw_fd).collect();
        let _ = sys::transmit(&self.socket, &buffer[..bytes], &descriptors);
        self.kept.extend(file);
    }
}
