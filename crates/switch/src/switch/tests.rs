//! Changes while a worker is held up.

use super::*;
use crate::vxlan::ASK_PATH;

#[path = "../../tests/rig/mod.rs"]
mod rig;

use rig::{MemoryPort, Rig, Wire, frame, port};

/// Ports of two workers, and in two VLANs. The third worker has files.
fn rig(more: &str) -> Rig {
    let ports = [
        port("a", "worker = 0\nvlan.access = 10"),
        port("b", "worker = 1\nvlan.access = 20"),
        port("c", "worker = 0\nvlan.access = 10"),
        port("d", "worker = 1\nvlan.access = 20"),
    ];
    let mut rig = rig::rig(&format!("processors = [0, 1]\n{}{more}", ports.concat()));
    rig.switch.patience = Duration::from_millis(10);
    rig
}

/// Has a worker answer nothing until it is released.
fn hold(rig: &mut Rig, worker: usize) -> Box<Worker> {
    rig.switch.workers[worker].inline.take().unwrap()
}

fn release(rig: &mut Rig, mut held: Box<Worker>) {
    held.turn(rig.now);
    let number = held.number;
    rig.switch.workers[number].inline = Some(held);
}

fn parsed(text: &str) -> Config {
    Config::parse(text).unwrap()
}

/// Adds a port of VLAN 20 at worker 1.
fn add(rig: &mut Rig, name: &str) -> (Result<(), String>, Arc<std::sync::Mutex<Wire>>) {
    let config = parsed(&port(name, "worker = 1\nvlan.access = 20"));
    let (port, wire) = MemoryPort::new();
    let added = rig.switch.attach(config.port[0].clone(), Box::new(port));
    (added, wire)
}

#[test]
fn a_port_is_gone_at_its_worker_though_another_one_does_not_answer() {
    let mut rig = rig("");
    let held = hold(&mut rig, 2);
    let error = rig.switch.remove_port("c").unwrap_err();
    assert!(error.contains("worker 2 does not answer"), "{error}");
    // Whoever comes next is somebody else, in another VLAN and at another worker.
    let (added, _wire) = add(&mut rig, "e");
    assert!(added.is_err());
    assert!(rig.ways("c", &frame(255, 3, None, 1)).is_empty());
    release(&mut rig, held);
    let (added, wire) = add(&mut rig, "e");
    added.unwrap();
    assert!(rig.ways("c", &frame(255, 3, None, 2)).is_empty());
    assert_eq!(rig.ways("b", &frame(255, 2, None, 3)), ["d"]);
    assert_eq!(wire.lock().unwrap().from_switch.len(), 1);
}

#[test]
fn a_number_is_not_used_again_before_its_worker_has_given_it_up() {
    for silent in 0..3 {
        let mut rig = rig("");
        let held = hold(&mut rig, silent);
        rig.switch.remove_port("c").unwrap_err();
        assert_eq!(rig.switch.new_port("e"), Ok(4));
        release(&mut rig, held);
        assert_eq!(rig.switch.new_port("e"), Ok(2));
        assert!(rig.switch.leaving.is_empty());
    }
}

#[test]
fn of_what_is_added_in_vain_nothing_is_left() {
    let place = tempfile::tempdir().unwrap();
    let flow = parsed("[[flow]]\nname = \"f\"\nin = \"b\"\ndrop = true");
    let path = place.path().join("m.pcap");
    let mirror = parsed(&format!("[[mirror]]\nname = \"m\"\nfile = {path:?}"));
    for silent in 0..3 {
        let mut rig = rig("");
        let held = hold(&mut rig, silent);
        let (added, wire) = add(&mut rig, "e");
        added.unwrap_err();
        let add_others = |rig: &mut Rig| {
            let flow = rig.switch.add_flow(flow.flow[0].clone());
            let mirror = rig.switch.add_mirror(mirror.mirror[0].clone());
            (flow, mirror)
        };
        assert!(matches!(add_others(&mut rig), (Err(_), Err(_))));
        release(&mut rig, held);
        let report = rig.report();
        assert_eq!((report.flows.len(), report.mirrors.len()), (0, 0));
        assert_eq!(report.ports.len(), 4, "silent: {silent}");
        assert_eq!(Arc::strong_count(&wire), 1, "the port is closed");
        assert_eq!(rig.ways("b", &frame(255, 2, None, 1)), ["d"]);
        add(&mut rig, "e").0.unwrap();
        assert_eq!(add_others(&mut rig), (Ok(()), Ok(())));
    }
}

#[test]
fn workers_behind_one_that_does_not_answer_go_by_the_change() {
    let mut rig = rig("[[flow]]\nname = \"f\"\nin = \"b\"\ndrop = true\n");
    let _held = hold(&mut rig, 0);
    assert!(rig.ways("b", &frame(255, 2, None, 1)).is_empty());
    rig.switch.remove_flow("f").unwrap_err();
    assert_eq!(rig.ways("b", &frame(255, 2, None, 2)), ["d"]);
}

#[test]
fn a_tunnel_is_as_wide_again_as_its_path_and_reports_say_so() {
    for (own, wide) in [("", 65_485), ("mtu = 2000\n", 2000)] {
        let mut rig = rig(&format!(
            "[[port]]\nname = \"tunnel\"\n{own}vxlan = {{ local = \"127.77.1.1\", remote = \"127.77.1.2\", port = 24795, vni = 7 }}\n"
        ));
        let number = rig.switch.port_number("tunnel").unwrap();
        let mtu = |rig: &mut Rig| {
            let ports = rig.switch.report().unwrap().ports;
            let port = ports.into_iter().find(|port| port.name == "tunnel");
            port.unwrap().mtu
        };
        rig.switch.turn(rig.now);
        assert_eq!(mtu(&mut rig), Some(wide));
        let worker = rig.switch.ports[usize::from(number)]
            .as_ref()
            .unwrap()
            .plan
            .worker;
        // As when the kernel has learnt that the path is narrower.
        let own = rig.switch.workers[worker].inline.as_mut().unwrap();
        own.tell_mtu(number, 1400);
        rig.switch.turn(rig.now + ASK_PATH / 2);
        assert_eq!(mtu(&mut rig), Some(1400));
        rig.switch.turn(rig.now + ASK_PATH);
        assert_eq!(mtu(&mut rig), Some(wide));
    }
}
