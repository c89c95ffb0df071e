//! A port at work: counts what comes, sends, or sends what somebody else returns and checks it.
#![allow(dead_code, reason = "each example uses a part of it")]

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_port::{Burst, Cause, Port, State};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::frames::{filled, length, number_of, turn_round};

const BURST: usize = 32;
/// After so many packets, `count` says that they flow.
const FLOW: usize = 20_000;
/// Packets that are under way at most: no queue of anybody's is full.
const WINDOW: u64 = 256;

/// The port, and what was said of it.
pub(crate) struct Site {
    port: Box<dyn Port>,
    said: String,
    polled: u32,
    /// Nobody wants more.
    over: Arc<AtomicBool>,
    /// Somebody wants it to begin.
    told: Arc<AtomicBool>,
    begun: Option<Instant>,
    ended: Option<Instant>,
}

impl Site {
    /// Around a port, until standard input ends.
    pub(crate) fn new(port: impl Port + 'static) -> Site {
        let over = Arc::new(AtomicBool::new(false));
        let site = Site {
            port: Box::new(port),
            said: String::new(),
            polled: 0,
            over: over.clone(),
            told: Arc::new(AtomicBool::new(false)),
            begun: None,
            ended: None,
        };
        println!("ready");
        std::io::stdout().flush().expect("standard output is there");
        let told = site.told.clone();
        std::thread::spawn(move || {
            // Whatever becomes of it, that was all.
            while let Ok(1) = std::io::stdin().read(&mut [0]) {
                told.store(true, Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
        });
        site
    }

    /// Does what the words say: `count BYTES`, `send N BYTES`, `exchange N [mac]`, `number N BYTES` to send each with its number,
    /// `ordered` to check such, `collect FILE` to write the numbers of those that come, or `answer` to return each echo request of IPv4.
    pub(crate) fn work(
        &mut self,
        what: &str,
        sleeps: bool,
        mut next: impl FnMut() -> Option<String>,
    ) -> Result<(), Box<dyn Error>> {
        if what == "answer" {
            self.answer();
            self.report(0);
            return Ok(());
        }
        if what == "collect" {
            let path = next().ok_or("a file is missing")?;
            self.collect(File::options().append(true).create(true).open(path)?)?;
            self.report(0);
            return Ok(());
        }
        let mut number =
            || -> Result<u64, Box<dyn Error>> { Ok(next().ok_or("a number is missing")?.parse()?) };
        let wrong = match what {
            "count" => self.count(number()? as usize, sleeps),
            "ordered" => self.ordered(sleeps),
            "send" | "number" => {
                if what == "send" {
                    self.send(number()?, number()? as usize);
                } else {
                    self.send_numbered(number()?, number()? as usize);
                }
                println!("sent");
                while !self.over.load(Ordering::Relaxed) {
                    self.poll();
                    std::thread::sleep(Duration::from_millis(5));
                }
                0
            }
            _ => {
                let count = number()?;
                let skip = if next().is_some() { 12 } else { 0 };
                self.exchange(count, skip)
            }
        };
        self.report(wrong);
        Ok(())
    }

    /// Lets the port do what it must, now and then, and says what has changed.
    fn turn(&mut self) {
        self.polled = self.polled.wrapping_add(1);
        if self.polled.is_multiple_of(64) {
            self.poll();
        }
    }

    fn poll(&mut self) {
        let said = match self.port.poll(Instant::now()) {
            State::Connecting(Some(why)) => format!("closed: {why}"),
            State::Connecting(None) => String::new(),
            State::Connected => "connected".to_owned(),
            State::Closed(why) => format!("over: {why}"),
        };
        if said != self.said {
            println!("{said}");
            self.said = said;
        }
    }

    fn is_connected(&self) -> bool {
        matches!(self.port.state(), State::Connected)
    }

    /// Waits until it is told to begin, by a byte on standard input.
    pub(crate) fn until_told(&mut self) {
        while !self.told.load(Ordering::Relaxed) && !self.over.load(Ordering::Relaxed) {
            self.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn until_connected(&mut self) {
        while !self.is_connected() && !self.over.load(Ordering::Relaxed) {
            self.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn sleep(&mut self) {
        if self.port.arm() {
            let mut polled = [PollFd::new(self.port.as_fd(), PollFlags::POLLIN)];
            // Failing is waking.
            let _ = poll(&mut polled, PollTimeout::from(50u8));
        }
        self.poll();
    }

    fn count(&mut self, bytes: usize, sleeps: bool) -> u64 {
        let mut burst = Burst::new(BURST);
        let (mut wrong, mut total) = (0, 0);
        while !self.over.load(Ordering::Relaxed) {
            self.turn();
            let mut received = 0;
            for queue in 0..self.port.receive_queues().max(1) {
                received += self.port.receive(queue, &mut burst);
                wrong += burst.iter().filter(|packet| packet.len() != bytes).count() as u64;
            }
            if received > 0 {
                if total < FLOW && total + received >= FLOW {
                    println!("flows");
                }
                total += received;
                let now = Instant::now();
                self.begun.get_or_insert(now);
                self.ended = Some(now);
            } else if sleeps {
                self.sleep();
            }
        }
        wrong
    }

    /// Checks packets that were sent with their numbers; returns how many were not what was sent. Those that do not come after all that
    /// came before are told as `again`.
    fn ordered(&mut self, sleeps: bool) -> u64 {
        let mut burst = Burst::new(BURST);
        let (mut wrong, mut again, mut total, mut last) = (0, 0, 0, None);
        while !self.over.load(Ordering::Relaxed) {
            self.turn();
            let count = self.port.receive(0, &mut burst);
            for packet in burst.iter() {
                let bytes = packet.to_vec();
                let number = number_of(&bytes);
                let is_right = number.is_some_and(|number| bytes == filled(number, bytes.len()));
                wrong += u64::from(!is_right);
                again += u64::from(number <= last);
                last = last.max(number);
            }
            if total < FLOW && total + count >= FLOW {
                println!("flows");
            }
            total += count;
            if count == 0 && sleeps {
                self.sleep();
            }
        }
        println!("again {again}");
        wrong
    }

    fn send(&mut self, count: u64, bytes: usize) {
        let mut burst = Burst::new(BURST);
        while burst.push(&filled(0, bytes)) {}
        let mut sent = 0;
        while sent < count && !self.over.load(Ordering::Relaxed) {
            self.until_connected();
            let queue = (sent / BURST as u64) as usize % self.port.transmit_queues().max(1);
            let first = BURST - (count - sent).min(BURST as u64) as usize;
            sent += self.port.transmit(queue, &burst, first) as u64;
            self.turn();
        }
    }

    fn send_numbered(&mut self, count: u64, bytes: usize) {
        let mut burst = Burst::new(BURST);
        let mut number = 0;
        while number < count && !self.over.load(Ordering::Relaxed) {
            burst.clear();
            while number < count && burst.push(&filled(number, bytes)) {
                number += 1;
            }
            let mut sent = 0;
            while sent < burst.len() && !self.over.load(Ordering::Relaxed) {
                self.until_connected();
                sent += self.port.transmit(0, &burst, sent);
                self.turn();
            }
        }
    }

    /// Answers pings, asleep between them.
    fn answer(&mut self) {
        let mut burst = Burst::new(BURST);
        while !self.over.load(Ordering::Relaxed) {
            self.turn();
            let count = self.port.receive(0, &mut burst);
            for number in 0..count {
                turn_round(burst.head_mut(number));
            }
            if count == 0 {
                self.sleep();
                continue;
            }
            let taken = self.port.transmit(0, &burst, 0);
            if taken < count {
                self.port.give_up(0, &burst, taken);
            }
            self.port.release(0);
        }
    }

    /// Writes the number of each packet that comes to a file, before it is given back.
    fn collect(&mut self, mut file: File) -> std::io::Result<()> {
        let mut burst = Burst::new(BURST);
        let mut numbers = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            self.turn();
            self.port.receive(0, &mut burst);
            numbers.clear();
            for packet in burst.iter() {
                let number = number_of(packet.head()).unwrap_or(u64::MAX);
                numbers.extend_from_slice(&number.to_le_bytes());
            }
            file.write_all(&numbers)?;
        }
        Ok(())
    }

    /// Sends packets that somebody returns, and checks each; returns how many were not right.
    fn exchange(&mut self, count: u64, skip: usize) -> u64 {
        self.until_connected();
        let queues = self.port.transmit_queues();
        let (mut sent, mut returned, mut wrong) = (0, 0, 0);
        let mut last = vec![None; queues];
        let mut burst = Burst::new(BURST);
        let begin = Instant::now();
        while returned < count && begin.elapsed() < Duration::from_secs(20) {
            self.turn();
            if sent < count && sent - returned < WINDOW {
                burst.clear();
                assert!(burst.push(&filled(sent, length(sent))));
                sent += self.port.transmit(sent as usize % queues, &burst, 0) as u64;
            }
            for (queue, last) in last.iter_mut().enumerate() {
                self.port.receive(queue, &mut burst);
                for packet in burst.iter() {
                    let bytes = packet.to_vec();
                    let number = number_of(&bytes);
                    let is_right = number.is_some_and(|number| {
                        bytes[skip..] == filled(number, length(number))[skip..]
                    });
                    let is_later = number > *last;
                    *last = number;
                    wrong += u64::from(!is_right || !is_later);
                    returned += 1;
                }
            }
        }
        wrong + (count - returned)
    }

    fn report(&self, wrong: u64) {
        let counters = self.port.counters();
        let tallies = [counters.received, counters.transmitted].map(|tally| {
            let drops =
                Cause::ALL.map(|cause| format!("{}={}", cause.name(), tally.dropped(cause)));
            format!("{} {} {}", tally.packets, tally.bytes, drops.join(","))
        });
        let seconds = match (self.begun, self.ended) {
            (Some(begun), Some(ended)) => (ended - begun).as_secs_f64(),
            _ => 0.0,
        };
        println!(
            "result wrong={wrong} connections={} wakes={} seconds={seconds:.3} received {} transmitted {}",
            counters.connections, counters.wakes, tallies[0], tallies[1]
        );
    }
}
