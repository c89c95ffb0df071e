//! What is traced, and what it may cost.

mod line;

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use line::{Line, packet};
use millrace_port::pcap::{Pace, Pcap};
use millrace_port::trace::{Config, Trace, TraceCounts};
use millrace_port::{Burst, Port, State};
use millrace_wire::pcap::{Decoder, Item};

/// A file in memory.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One that takes nothing before it is told.
struct Slow(Receiver<()>, Paper);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Whoever tells may have gone.
        let _ = self.0.recv();
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn slow() -> (Slow, Sender<()>, Paper) {
    let (sender, receiver) = channel();
    let paper = Paper::default();
    (Slow(receiver, paper.clone()), sender, paper)
}

fn send(port: &mut Trace<Line>, packets: &[Vec<u8>]) {
    let mut burst = Burst::new(32);
    for some in packets.chunks(32) {
        burst.clear();
        some.iter().for_each(|packet| assert!(burst.push(packet)));
        assert_eq!(port.transmit(0, &burst, 0), some.len());
    }
}

fn receive(port: &mut Trace<Line>, packets: &[Vec<u8>]) {
    packets.iter().for_each(|packet| port.inner().put(packet));
    let mut burst = Burst::new(32);
    while port.receive(0, &mut burst) > 0 {}
}

/// Packets of a capture, each with its whole length.
fn read(paper: &Paper) -> Vec<(Vec<u8>, u32)> {
    let bytes = paper.0.lock().unwrap();
    let mut decoder = Decoder::default();
    let (mut at, mut packets) = (0, Vec::new());
    while at < bytes.len() {
        match decoder.next(&bytes[at..]).unwrap() {
            Item::Need(more) => panic!("{more} bytes are needed at {at}"),
            Item::Other(length) => at += length,
            Item::Packet(packet, length) => {
                packets.push((packet.bytes.to_vec(), packet.original_bytes));
                at += length;
            }
        }
    }
    packets
}

/// The counts of the last block, which is of statistics.
fn statistics(paper: &Paper) -> [u64; 5] {
    let bytes = paper.0.lock().unwrap();
    let block = &bytes[bytes.len() - 112..];
    assert_eq!(block[..8], [5, 0, 0, 0, 112, 0, 0, 0]);
    let count = |number: usize| {
        let at = 20 + 2 * 12 + number * 12 + 4;
        u64::from_le_bytes(block[at..at + 8].try_into().unwrap())
    };
    [0, 1, 2, 3, 4].map(count)
}

fn packets(count: u64, length: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| packet(number, length)).collect()
}

#[test]
fn what_passes_while_it_is_on_is_traced_and_nothing_else() {
    let (line, _other) = Line::pair(usize::MAX);
    let mut port = Trace::new(line);
    send(&mut port, &packets(3, 60));
    assert!(port.end().is_none() && port.counts().is_none());
    let paper = Paper::default();
    let mut config = Config::new("line");
    // Room for all of it: the writer's turn may come late.
    config.queue_bytes = 8 << 20;
    port.begin(config, paper.clone()).unwrap();
    let all = packets(5000, 300);
    send(&mut port, &all);
    receive(&mut port, &all);
    let counts = port.end().unwrap().wait().unwrap();
    send(&mut port, &packets(3, 60));
    assert_eq!(counts.written, 10_000);
    let wanted = all.iter().chain(&all).map(|bytes| (bytes.clone(), 300));
    assert!(read(&paper).into_iter().eq(wanted));
    assert_eq!(statistics(&paper), [10_000, 0, 10_000, 0, 10_000]);
    assert_eq!(port.counters().transmitted.packets, 5006);
}

#[test]
fn one_direction_and_so_many_bytes_of_each() {
    let (line, _other) = Line::pair(usize::MAX);
    let mut port = Trace::new(line);
    let paper = Paper::default();
    let mut config = Config::new("line");
    config.filter = "out".parse().unwrap();
    config.snap_bytes = 77;
    port.begin(config, paper.clone()).unwrap();
    let (short, long) = (packets(10, 70), packets(10, 4000));
    receive(&mut port, &long);
    send(&mut port, &short);
    send(&mut port, &long);
    port.end().unwrap().wait().unwrap();
    let wanted = short.iter().chain(&long);
    let wanted = wanted.map(|bytes| (bytes[..bytes.len().min(77)].to_vec(), bytes.len() as u32));
    assert!(read(&paper).into_iter().eq(wanted));
    assert_eq!(statistics(&paper), [30, 0, 20, 0, 20]);
}

#[test]
fn no_more_in_a_second_than_allowed() {
    let (line, _other) = Line::pair(usize::MAX);
    let mut port = Trace::new(line);
    for limit in [(Some(10), None), (None, Some(600))] {
        let paper = Paper::default();
        let mut config = Config::new("line");
        (config.packets_per_s, config.bytes_per_s) = limit;
        port.begin(config, paper.clone()).unwrap();
        let begin = Instant::now();
        send(&mut port, &packets(10_000, 500));
        let allowed = 1 + (begin.elapsed().as_secs_f64() * 11.0).ceil() as u64;
        let counts = port.end().unwrap().wait().unwrap();
        let at_once = if limit.0.is_some() {
            allowed
        } else {
            139 + allowed
        };
        assert!(
            counts.written >= 1 && counts.written <= at_once,
            "{counts:?}"
        );
        assert_eq!((counts.matched, counts.no_room), (10_000, 0));
        assert_eq!(counts.written + counts.over_limit, 10_000);
        assert_eq!(statistics(&paper)[3], counts.over_limit);
    }
}

#[test]
fn a_slow_file_costs_packets_of_the_trace_and_nothing_else() {
    let (line, _other) = Line::pair(usize::MAX);
    let mut port = Trace::new(line);
    let (target, tell, paper) = slow();
    let mut config = Config::new("line");
    config.queue_bytes = 512 * 1024;
    port.begin(config, target).unwrap();
    let all = packets(2000, 1400);
    send(&mut port, &all);
    let counts = port.counts().unwrap();
    assert_eq!(port.counters().transmitted.packets, 2000);
    assert!(counts.no_room > 1000 && counts.written > 200, "{counts:?}");
    drop(tell);
    let ended = port.end().unwrap().wait().unwrap();
    assert_eq!(ended, counts);
    let wanted = all.iter().map(|bytes| (bytes.clone(), 1400));
    assert!(
        read(&paper)
            .into_iter()
            .eq(wanted.take(counts.written as usize))
    );
    assert_eq!(statistics(&paper)[3], counts.no_room);
    assert_eq!(
        counts.matched,
        counts.written + counts.no_room + counts.over_limit
    );
}

#[test]
fn a_full_disk_ends_the_trace_and_the_port_goes_on() {
    let (line, _other) = Line::pair(usize::MAX);
    let mut port = Trace::new(line);
    port.begin(Config::new("line"), Full).unwrap();
    let all = packets(200, 1400);
    for _ in 0..50 {
        send(&mut port, &all);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(port.counters().transmitted.packets, 10_000);
    let error = port.end().unwrap().wait().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn what_is_traced_can_be_read_soon() {
    let (line, _other) = Line::pair(usize::MAX);
    let mut port = Trace::new(line);
    let paper = Paper::default();
    port.begin(Config::new("line"), paper.clone()).unwrap();
    send(&mut port, &packets(3, 60));
    let at = port.poll_at().unwrap();
    port.poll(at);
    let begin = Instant::now();
    while paper.0.lock().unwrap().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(read(&paper).len(), 3);
    assert_eq!(port.poll_at(), None);
    drop(port);
}

#[test]
fn a_trace_is_a_capture_as_others_are() {
    let (line, _other) = Line::pair(usize::MAX);
    let mut port = Trace::new(line);
    let file = tempfile::NamedTempFile::new().unwrap();
    port.begin(Config::new("line"), file.reopen().unwrap())
        .unwrap();
    let all = packets(200, 1000);
    send(&mut port, &all);
    // The one before ends when another begins, and when its port does.
    port.begin(Config::new("line"), Paper::default()).unwrap();
    drop(port);
    let mut capture = Pcap::read(file.path(), Pace::Full).unwrap();
    let (mut count, mut burst) = (0, Burst::new(32));
    let begin = Instant::now();
    while matches!(capture.state(), State::Connected) {
        count += capture.receive(0, &mut burst);
    }
    while count < 200 && begin.elapsed() < Duration::from_secs(60) {
        // It was still on its way.
        std::thread::sleep(Duration::from_millis(5));
        capture = Pcap::read(file.path(), Pace::Full).unwrap();
        count = 0;
        while matches!(capture.state(), State::Connected) {
            count += capture.receive(0, &mut burst);
        }
    }
    assert_eq!(count, 200);
}

#[test]
fn a_trace_without_bytes_is_refused() {
    let (line, _other) = Line::pair(1);
    let mut port = Trace::new(line);
    let mut config = Config::new("line");
    config.snap_bytes = 0;
    assert!(port.begin(config, Paper::default()).is_err());
    assert_eq!(port.counts(), None::<TraceCounts>);
}
