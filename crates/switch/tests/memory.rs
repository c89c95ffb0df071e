//! What stays mapped of peers that have gone. The only test of its process, whose mappings it counts.

mod rig;

use std::time::{Duration, Instant};

use millrace_port::memif::{self, Memif, Role};
use millrace_port::{Burst, Port, State};
use millrace_switch::Config;
use rig::{Rig, frame, port, rig};

fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

/// Turns until something holds.
fn wait(rig: &mut Rig, mut holds: impl FnMut(&mut Rig) -> bool) {
    let begin = Instant::now();
    while !holds(rig) {
        assert!(begin.elapsed() < Duration::from_secs(60), "it did not come");
        rig.switch.turn(Instant::now());
    }
}

#[test]
fn memory_of_a_peer_is_given_up_when_it_goes_and_when_its_port_does() {
    let mut rig = rig(&(port("b", "") + &port("c", "")));
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a");
    let config = Config::parse(&format!("[[port]]\nname = \"a\"\nmemif.path = {path:?}"));
    let before = mapped();
    for is_removed in [false, true] {
        if rig.report().ports.len() < 3 {
            rig.add(config.clone().unwrap().port.remove(0));
        }
        let mut peer = Memif::new(memif::Config::new(Role::Client, path.clone())).unwrap();
        wait(&mut rig, |_| {
            matches!(peer.poll(Instant::now()), State::Connected)
        });
        // It goes to two ports, so it is gathered for each, and lies in the peer's memory but for its head.
        let mut long = frame(255, 1, None, 1);
        long.resize(1000, 7);
        let mut burst = Burst::new(1);
        assert!(burst.push(&long));
        assert_eq!(peer.transmit(0, &burst, 0), 1);
        wait(&mut rig, |rig| rig.collect().len() == 2);
        assert!(mapped() > before);
        if is_removed {
            rig.switch.remove_port("a").unwrap();
        }
        drop(peer);
        wait(&mut rig, |rig| {
            is_removed || rig.port("a").state != "connected"
        });
        assert_eq!(mapped(), before, "removed: {is_removed}");
    }
}
