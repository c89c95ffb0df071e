//! What workers tell each other.

use std::sync::mpsc::channel;

use super::*;
use crate::address::Mac;
use crate::lane::lanes;
use crate::plan::PortPlan;
use crate::table::Limits;

/// Workers that go by a plan with so many ports, which none of them has.
fn workers(count: usize, ports: usize) -> Vec<Worker> {
    let bells: Vec<_> = (0..count).map(|_| Arc::new(Bell::new().unwrap())).collect();
    let (lanes, inlets) = lanes(&bells);
    let parts = bells.into_iter().zip(lanes).zip(inlets);
    let workers = parts.enumerate().map(|(number, ((bell, lanes), inlets))| {
        let worker = Worker::new(Parts {
            number,
            epoch: Instant::now(),
            spin: Duration::ZERO,
            commands: channel().1,
            bell,
            lanes,
            inlets,
            plan: plan(0),
        });
        let mut worker = worker.unwrap();
        worker.handle(Command::Plan(plan(ports), channel().0));
        worker
    });
    workers.collect()
}

fn plan(ports: usize) -> Arc<Plan> {
    let port = PortPlan {
        worker: 0,
        membership: None,
        mtu: Some(9000),
        mtu_max: None,
        mac_limit: 0,
        horizon: None,
        tunnel: None,
        storm: [None; 3],
        police: [None; 2],
        rates_version: 1,
    };
    let limits = Limits {
        entries: 16,
        age_ns: 300_000_000_000,
    };
    let ports = vec![Some(port); ports];
    Arc::new(Plan::new(ports, Vec::new(), Vec::new(), limits))
}

#[test]
fn a_station_at_a_port_that_is_not_in_the_plan_is_not_learnt() {
    let mut workers = workers(2, 3);
    let station = Station::new(Mac(0x0200_0000_0001), 0);
    for (port, expected) in [(2, Some(2)), (3, None)] {
        workers[0].table.clear();
        let lane = workers[1].lanes[0].as_mut().unwrap();
        lane.send(Mail::Learnt(station, port)).unwrap();
        lane.ring();
        workers[0].turn(Instant::now());
        assert_eq!(workers[0].table.find(station, 0), expected);
    }
}

#[test]
fn a_path_of_another_width_is_known_to_all() {
    let mut workers = workers(3, 2);
    for mtu in [1400, 1500] {
        workers[0].tell_mtu(1, mtu);
        workers.iter_mut().for_each(|worker| {
            worker.turn(Instant::now());
        });
        for worker in &workers {
            let mtus: Vec<usize> = worker.states.iter().map(|state| state.mtu).collect();
            assert_eq!(mtus, [9000, mtu]);
        }
    }
}
