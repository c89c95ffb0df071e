use std::collections::BTreeMap;

use super::*;
use crate::bearer::{Flows, Thresholds};
use crate::mark::Marking;
use crate::meter::Limit;
use crate::registry::Registry;
use crate::spec::{FarEnd, Gates, Treatment};

fn spec(number: u32) -> BearerSpec {
    let core = match number % 3 {
        0 => FarEnd::User(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into()),
        1 => FarEnd::Tunnel([192, 0, 2, 1].into(), number + 1),
        _ => FarEnd::User(std::net::Ipv6Addr::from_bits(u128::from(number) << 64 | 1).into()),
    };
    let radio = FarEnd::Tunnel("2001:db8::5".parse().unwrap(), number + 1);
    let mut spec = BearerSpec::new(core, radio);
    spec.gates = Gates {
        core: number.is_multiple_of(2),
        radio: !number.is_multiple_of(5),
    };
    if number.is_multiple_of(4) {
        let mut map = Box::new([None; 64]);
        (map[1], map[63]) = (Some(9), Some(0));
        spec.to_core = Some(Box::new(Treatment {
            paused: true,
            flow: Flows::Mapped(map),
            dscp: Marking::Copied,
            limit: Limit::bytes(1_000_000),
            ..Treatment::default()
        }));
        spec.to_radio = Some(Box::new(Treatment {
            flow: Flows::Set(63),
            rqi: number.is_multiple_of(8),
            ppi: number.is_multiple_of(16).then_some(5),
            dscp: Marking::Fixed(46),
            limit: Limit::packets(7),
            ..Treatment::default()
        }));
    }
    if number.is_multiple_of(6) {
        // A number that is so has a user of IPv4.
        spec.user_v6 = Some(std::net::Ipv6Addr::from_bits(u128::from(number + 1) << 64));
        spec.report = Some(Box::new(Thresholds {
            packets: 1,
            bytes: 2,
            seconds: 3,
        }));
        (spec.forwards_numbers, spec.follows_delivery) = (true, true);
    }
    spec
}

/// What somebody sees.
fn seen(registry: &Registry) -> BTreeMap<u32, BearerSpec> {
    let all = registry.iter();
    all.map(|(id, bearer)| (id.number(), BearerSpec::of(&bearer)))
        .collect()
}

fn open(directory: &Path) -> Registry {
    Registry::restored(Store::open(directory).unwrap())
}

fn journal(directory: &Path) -> PathBuf {
    path_of(directory, newest(directory).unwrap().unwrap())
}

#[test]
fn what_was_answered_is_there_whatever_of_the_file_is_left() {
    let place = tempfile::tempdir().unwrap();
    let mut registry = open(place.path());
    // The file's length, and what there was then.
    let mut history = vec![(MAGIC.len() as u64, seen(&registry))];
    let mut ids: Vec<BearerId> = Vec::new();
    for number in 0..24_u32 {
        match number % 6 {
            0..4 => ids.extend(registry.add(&[spec(number)]).unwrap().into_iter().flatten()),
            4 => drop(registry.change(ids[number as usize % ids.len()], &spec(1000 + number))),
            _ => {
                let id = ids.swap_remove(number as usize % ids.len());
                assert_eq!(registry.remove(&[id]).unwrap().len(), 1);
            }
        }
        let length = fs::metadata(journal(place.path())).unwrap().len();
        history.push((length, seen(&registry)));
    }
    let bytes = fs::read(journal(place.path())).unwrap();
    drop(registry);
    for length in MAGIC.len()..=bytes.len() {
        let cut = tempfile::tempdir().unwrap();
        fs::write(path_of(cut.path(), 7), &bytes[..length]).unwrap();
        let after = open(cut.path());
        let known = history.iter().rfind(|(then, _)| *then <= length as u64);
        assert_eq!(seen(&after), known.unwrap().1, "{length} bytes");
        drop(after);
        let again = open(cut.path());
        assert_eq!(seen(&again), known.unwrap().1, "{length} bytes, again");
    }
}

#[test]
fn a_record_that_is_not_what_was_written_ends_the_journal() {
    let place = tempfile::tempdir().unwrap();
    let mut registry = open(place.path());
    for number in 0..20 {
        assert!(registry.add(&[spec(number)]).unwrap()[0].is_ok());
    }
    let all = seen(&registry);
    drop(registry);
    let bytes = fs::read(journal(place.path())).unwrap();
    for at in (MAGIC.len()..bytes.len()).step_by(7) {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x10;
        let cut = tempfile::tempdir().unwrap();
        fs::write(path_of(cut.path(), 1), &wrong).unwrap();
        let store = Store::open(cut.path()).unwrap();
        assert!(store.cut_bytes() > 0);
        let kept = fs::read(cut.path().join("bearers.1.cut")).unwrap();
        assert_eq!(kept.len() as u64, store.cut_bytes());
        let after = seen(&Registry::restored(store));
        assert!(after.len() < all.len() && after.iter().all(|(id, one)| all[id] == *one));
    }
}

#[test]
fn a_journal_is_written_anew_and_says_the_same() {
    let place = tempfile::tempdir().unwrap();
    let mut registry = open(place.path());
    let specs: Vec<_> = (0..200).map(spec).collect();
    let added = registry.add(&specs).unwrap();
    let ids: Vec<_> = added.into_iter().flatten().collect();
    registry.remove(&ids[50..90]).unwrap();
    let mut number = 0;
    while newest(place.path()).unwrap() == Some(1) {
        number += 1;
        assert!(number < 100_000, "it never is");
        registry
            .change(ids[number % 50], &spec(3 * number as u32 + 1))
            .unwrap();
    }
    let before = seen(&registry);
    let bytes = fs::metadata(journal(place.path())).unwrap().len();
    assert!(bytes < 20_000, "{bytes}");
    assert_eq!(
        fs::read_dir(place.path()).unwrap().count(),
        2,
        "a journal and a lock"
    );
    drop(registry);
    let mut after = open(place.path());
    assert_eq!(seen(&after), before);
    // What was somebody's is nobody else's.
    let again = after.add(&specs[50..90]).unwrap();
    assert!(again.iter().flatten().all(|id| !ids.contains(id)));
}

#[test]
fn zeros_that_a_machine_without_power_has_left_are_cut_off() {
    let place = tempfile::tempdir().unwrap();
    let mut registry = open(place.path());
    assert!(registry.add(&[spec(1)]).unwrap()[0].is_ok());
    let before = seen(&registry);
    drop(registry);
    let file = OpenOptions::new().append(true).open(journal(place.path()));
    file.unwrap().write_all(&[0; 4096]).unwrap();
    let store = Store::open(place.path()).unwrap();
    assert_eq!(store.cut_bytes(), 4096);
    assert_eq!(seen(&Registry::restored(store)), before);
}

#[test]
fn what_a_killed_one_has_begun_is_removed() {
    let place = tempfile::tempdir().unwrap();
    let mut registry = open(place.path());
    assert!(registry.add(&[spec(1)]).unwrap()[0].is_ok());
    let before = seen(&registry);
    assert!(matches!(
        Store::open(place.path()),
        Err(StoreError::Busy(_))
    ));
    drop(registry);
    fs::write(place.path().join("bearers.2.new"), MAGIC).unwrap();
    assert_eq!(seen(&open(place.path())), before);
    assert!(!place.path().join("bearers.2.new").exists());
    // Killed between the new name and the removal of the old one.
    fs::copy(journal(place.path()), path_of(place.path(), 2)).unwrap();
    assert_eq!(seen(&open(place.path())), before);
    assert_eq!(newest(place.path()).unwrap(), Some(2));
    assert!(!path_of(place.path(), 1).exists());
    fs::write(path_of(place.path(), 3), b"something").unwrap();
    assert!(matches!(
        Store::open(place.path()),
        Err(StoreError::Unknown(_))
    ));
}

#[test]
fn what_cannot_be_written_has_not_changed() {
    let place = tempfile::tempdir().unwrap();
    let specs: Vec<_> = (0..30).map(spec).collect();
    let added = open(place.path()).add(&specs).unwrap();
    let ids: Vec<_> = added.into_iter().map(Result::unwrap).collect();
    let mut store = Store::open(place.path()).unwrap();
    // Which nothing can be written to.
    store.journal = File::open(journal(place.path())).unwrap();
    let mut registry = Registry::restored(store);
    let before = seen(&registry);
    // A user goes from one bearer to another, and that one's to a new one.
    let (third, new) = (spec(300), spec(301));
    let wanted = [
        (Some(ids[0]), &third),
        (Some(ids[3]), &specs[0]),
        (None, &specs[3]),
        (None, &new),
    ];
    assert!(registry.put(&wanted).is_err());
    assert_eq!(seen(&registry), before);
    drop(registry);
    assert_eq!(seen(&open(place.path())), before);
}
