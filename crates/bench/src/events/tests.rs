use super::*;

fn load() -> Load {
    Load {
        stages: 3,
        cycles: 0,
        flows: 64,
        seconds: 0.02,
        fused: None,
        workers: 1,
        processors: Vec::new(),
        enqueue: 32,
        dequeue: 32,
        limit: 4096,
        hash: None,
        picture: None,
    }
}

#[test]
fn all_that_comes_in_goes_out() {
    let stop = AtomicBool::new(false);
    let more = [
        load(),
        Load {
            stages: 1,
            enqueue: 1,
            dequeue: 1,
            limit: 1,
            ..load()
        },
        Load {
            workers: 2,
            fused: Some(false),
            cycles: 100,
            ..load()
        },
        Load {
            fused: Some(true),
            enqueue: 128,
            dequeue: 128,
            ..load()
        },
        Load {
            hash: Some(Hash::Naive),
            ..load()
        },
        Load {
            hash: Some(Hash::Tables),
            flows: 1,
            limit: 100_000,
            ..load()
        },
    ];
    for load in more {
        let passed = run(&load, &stop).unwrap();
        assert!(passed.events > 0 && passed.rate > 0.0, "{load:?}: {passed}");
        assert_eq!(passed.stages.len(), load.stages);
        let told = passed.stages.last().map(|stage| stage.fused.as_str());
        match load.fused {
            Some(fused) => assert_eq!(told, Some(format!("Pinned({fused})").as_str())),
            None => assert!(
                told.is_some_and(|told| !told.starts_with("Pinned")),
                "{passed}"
            ),
        }
    }
}

#[test]
fn what_cannot_be_is_told() {
    let stop = AtomicBool::new(false);
    for wrong in [
        Load {
            stages: 0,
            ..load()
        },
        Load { flows: 0, ..load() },
        Load {
            enqueue: 0,
            ..load()
        },
        Load {
            enqueue: 1025,
            ..load()
        },
        Load {
            dequeue: 0,
            ..load()
        },
        Load { limit: 0, ..load() },
        Load {
            workers: 0,
            ..load()
        },
        Load {
            processors: vec![0, 100_000],
            ..load()
        },
    ] {
        assert!(run(&wrong, &stop).is_err(), "{wrong:?}");
    }
    for seconds in [-1.0, 0.0, f64::INFINITY, f64::NAN] {
        let wrong = Load { seconds, ..load() };
        assert!(run(&wrong, &stop).is_err(), "{seconds}");
        assert!(simulate(&wrong, 100, &stop).is_err(), "{seconds}");
    }
}

#[test]
fn more_workers_bring_more_in_virtual_time() {
    let stop = AtomicBool::new(false);
    let rate = |workers: usize| {
        let load = Load {
            seconds: 0.01,
            workers,
            ..load()
        };
        simulate(&load, 100, &stop).unwrap().rate
    };
    let (one, four) = (rate(1), rate(4));
    // A worker does three stages of 100 ns, and half a hand-over.
    assert!(one > 2.5e6 && one < 3.4e6, "{one}");
    assert!(four > 2.0 * one && four < 4.1 * one, "{four} of {one}");
    let again = rate(4);
    assert!(
        again == four,
        "{again} and {four}: it follows from nothing but what was asked"
    );
    assert!(simulate(&load(), 0, &stop).is_err());
}
