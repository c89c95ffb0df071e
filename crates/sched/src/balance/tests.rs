use super::*;
use crate::event::{Event, Priority};

/// Stages of which these may be apart from the ones before them, for what they cost.
fn dear<const N: usize>(is_dear: [bool; N]) -> [Fused; N] {
    is_dear.map(|is_dear| if is_dear { Fused::Dear } else { Fused::Cheap })
}

/// Events of a stage and a bucket.
fn load_of(level: u64, events: &[(u8, usize, usize)]) -> Load {
    let mut load = Load::new(0);
    (load.level, load.steady) = (level, level * 1000);
    for (stage, bucket, count) in events {
        for _ in 0..*count {
            load.remember(Place::new(StageId(*stage), *bucket), *bucket as u32);
        }
    }
    load
}

/// Of one stage.
fn choose(level: u64, events: &[(usize, usize)], other: u64) -> Vec<(usize, u64)> {
    let events: Vec<_> = events
        .iter()
        .map(|(bucket, count)| (0, *bucket, *count))
        .collect();
    let chosen = load_of(level, &events).choose(other, &[10], &dear([false]), |_| true, |_| true);
    chosen
        .iter()
        .map(|chosen| (chosen.bucket, chosen.load))
        .collect()
}

#[test]
fn what_moves_makes_the_more_loaded_one_less_loaded() {
    // Ten buckets of a tenth each, and somebody idle: half of them go.
    let even: Vec<_> = (0..10).map(|bucket| (bucket, 10)).collect();
    let moved = choose(1000, &even, 0);
    assert_eq!(moved.len(), 5, "{moved:?}");
    assert!(moved.iter().all(|(_, load)| *load == 100));
    // An elephant stays, since it would only be somewhere else; mice go.
    let moved = choose(1000, &[(7, 90), (1, 5), (2, 5)], 100);
    assert_eq!(moved, [(1, 50), (2, 50)]);
    assert_eq!(choose(1000, &[(7, 90)], 0), []);
    assert_eq!(choose(600, &even, 0), []);
    assert_eq!(choose(1000, &even, 950), []);
}

#[test]
fn it_begins_for_a_tenth_and_ends_for_less() {
    let even: Vec<_> = (0..100).map(|bucket| (0, bucket, 1)).collect();
    let mut load = load_of(1000, &even);
    let mut choose = |other| {
        load.choose(other, &[10], &dear([false]), |_| true, |_| true)
            .len()
    };
    assert_eq!(choose(910), 0);
    assert_eq!(choose(890), MOVES - 4);
    assert_eq!(choose(950), 1, "it goes on");
    assert_eq!((choose(980), choose(950)), (0, 0));
    let level = load.steady();
    load.give(&[Move {
        bucket: 1,
        stages: 0..1,
        load: 100,
    }]);
    assert_eq!(load.steady(), level - 100);
    load.charge(50);
    assert_eq!(load.steady(), level - 50);
}

#[test]
fn what_goes_up_and_down_has_a_steady_load() {
    let mut load = Load::new(0);
    for look in 1..400 {
        // Busy in one look of two.
        load.add(LOOK_NS * (look % 2));
        load.look(look * LOOK_NS);
    }
    assert!((450..550).contains(&load.steady()), "{}", load.steady());
    // A look after a long sleep is as many looks.
    load.look(1000 * LOOK_NS);
    assert!(load.steady() < 20, "{}", load.steady());
}

#[test]
fn an_elephant_is_cut_where_its_stages_may_be_apart() {
    // Stage 2 costs as much as the others together.
    let mut elephant = load_of(1000, &[(0, 7, 30), (1, 7, 30), (2, 7, 30)]);
    let costs = [10, 10, 20];
    let part = |stage, load| {
        vec![Move {
            bucket: 7,
            stages: stage..3,
            load,
        }]
    };
    assert_eq!(
        elephant.choose(0, &costs, &dear([false, true, true]), |_| true, |_| true),
        part(2, 500)
    );
    assert_eq!(
        elephant.choose(0, &costs, &dear([false, true, false]), |_| true, |_| true),
        part(1, 750)
    );
    assert_eq!(
        elephant.choose(0, &costs, &dear([false; 3]), |_| true, |_| true),
        []
    );
    assert_eq!(
        elephant.choose(480, &costs, &dear([false, true, true]), |_| true, |_| true),
        []
    );
}

#[test]
fn what_the_user_has_cut_off_moves_on_its_own() {
    // Ten buckets of two stages, a twentieth each.
    let even: Vec<_> = (0..20).map(|at| (at % 2, usize::from(at) / 2, 5)).collect();
    let stages = [Fused::First, Fused::Pinned(false)];
    let mut load = load_of(1000, &even);
    let moved = load.choose(200, &[10, 10], &stages, |_| true, |_| true);
    assert!(
        moved
            .iter()
            .all(|one| one.stages.len() == 1 && one.load == 50)
    );
    assert_eq!(moved.len(), MOVES, "{moved:?}");
    let mut load = load_of(1000, &even);
    let moved = load.choose(200, &[10, 10], &dear([false, true]), |_| true, |_| true);
    assert!(!moved.is_empty());
    assert!(
        moved
            .iter()
            .all(|one| one.stages == (0..2) && one.load == 100)
    );
}

#[test]
fn the_load_is_the_share_of_time_with_work() {
    let mut load = Load::new(0);
    for look in 1..=20 {
        load.add(LOOK_NS / 2);
        assert_eq!(load.look(look * LOOK_NS - 1), None);
        assert_eq!(load.look(look * LOOK_NS), Some(look % 4 == 0));
    }
    assert!((490..=500).contains(&load.level), "{}", load.level);
}

#[test]
fn one_of_so_many_events_is_remembered_however_they_are_cut_into_batches() {
    let event = |flow| Event {
        flow,
        stage: StageId(0),
        priority: Priority::Normal,
        entry: 0,
        is_sent_on: false,
        value: 0,
    };
    let events: Vec<Event> = (0..2000).map(event).collect();
    for size in [1, 2, 16, 17, 18, 32, 700] {
        let mut load = Load::new(0);
        for batch in events.chunks(size) {
            load.saw(StageId(0), batch, |event| event.flow);
        }
        let seen = load.sample.iter().flatten().map(|mark| mark.flow);
        let every = (0..2000).filter(|flow| (flow + 1) % STRIDE as u32 == 0);
        assert!(seen.eq(every), "batches of {size}");
    }
}

#[test]
fn what_may_not_move_is_load_that_stays() {
    // Half of all is of a bucket that cannot go.
    let mut load = load_of(1000, &[(0, 7, 50), (0, 1, 25), (0, 2, 25), (1, 7, 0)]);
    let may_move = |place: Place| place.bucket() != 7;
    let moved = load.choose(0, &[10, 10], &dear([false, true]), may_move, |_| true);
    let moved: Vec<_> = moved.iter().map(|one| (one.bucket, one.load)).collect();
    assert_eq!(moved, [(1, 250), (2, 250)]);
    // Of one whose first stage cannot, the second can.
    let mut load = load_of(1000, &[(0, 7, 50), (1, 7, 50)]);
    let may_move = |place: Place| place.stage() != StageId(0);
    let moved = load.choose(0, &[10, 10], &dear([false, true]), may_move, |_| true);
    let moved: Vec<_> = moved.iter().map(|one| (one.bucket, one.load)).collect();
    assert_eq!(moved, [(7, 500)]);
}

#[test]
fn what_may_not_go_now_is_neither_chosen_nor_reckoned_with() {
    let mut load = load_of(1000, &[(0, 7, 50), (0, 1, 25), (0, 2, 25)]);
    let may_go = |part: &Move| part.bucket != 7;
    let moved = load.choose(0, &[10], &dear([false]), |_| true, may_go);
    let moved: Vec<_> = moved.iter().map(|one| (one.bucket, one.load)).collect();
    assert_eq!(moved, [(1, 250), (2, 250)]);
    let mut load = load_of(1000, &[(0, 7, 50), (1, 7, 50)]);
    let stages = dear([false, true]);
    // Of a bucket whose first stage is away the second may go.
    let may_go = |part: &Move| !part.stages.contains(&0);
    let moved = load.choose(0, &[10, 10], &stages, |_| true, may_go);
    assert_eq!((moved.len(), moved[0].stages.clone()), (1, 1..2));
}

#[test]
fn elephants_are_flows_with_much_load() {
    let mut load = load_of(
        900,
        &[(0, 7, 40), (1, 7, 40), (0, 9, 80), (0, 1, 20), (1, 1, 20)],
    );
    assert_eq!(load.elephants(&[10, 10]), None);
    load.hunts = HUNT - 1;
    let elephant = |flow, load| Elephant { flow, load };
    let found = load.elephants(&[10, 30]).unwrap();
    // 1600 and 800 of 3200, and 800.
    assert_eq!(found, [elephant(7, 450)]);
    load.hunts = HUNT - 1;
    let found = load.elephants(&[20, 5]).unwrap();
    assert_eq!(found, [elephant(9, 464), elephant(7, 290)]);
    assert!(
        found
            .iter()
            .all(|one| Elephant::unpack(one.pack()) == Some(*one))
    );
    assert_eq!(Elephant::unpack(0), None);
    (load.level, load.hunts) = (200, HUNT - 1);
    assert_eq!(load.elephants(&[20, 5]), Some(Vec::new()));
}
