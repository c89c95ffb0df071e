use millrace_wire::ChannelName;

use super::super::names::Scope;
use super::*;

const NEWS: &str = "news";

fn key(name: &str) -> ChannelKey {
    ChannelKey {
        scope: Scope::Rule,
        two_way: false,
        name: ChannelName::new(name).unwrap(),
    }
}

/// Somebody who takes part at once. Its id is a hundred times its number.
fn come(matching: &mut Matching, number: u64, sends: bool) -> ClientId {
    let client = ClientId(number);
    matching.open(client, Member::new(key(NEWS), sends, number * 100, 0));
    matching.handle_sealed(client);
    client
}

/// Links whoever can be linked; returns the pairs.
fn link_all(matching: &mut Matching) -> Vec<[u64; 2]> {
    let mut pairs = Vec::new();
    while let Some(pair) = matching.next_pair(&mut 1000, |_| true) {
        pairs.push(pair.map(|client| client.0));
        matching.link(pair, pair[0].0 * 10 + pair[1].0, false);
    }
    pairs
}

#[test]
fn each_sender_is_linked_with_each_receiver_once() {
    let mut matching = Matching::default();
    come(&mut matching, 1, true);
    come(&mut matching, 2, true);
    assert_eq!(link_all(&mut matching), [[0; 2]; 0]);
    come(&mut matching, 3, false);
    assert_eq!(link_all(&mut matching), [[1, 3], [2, 3]]);
    come(&mut matching, 4, false);
    come(&mut matching, 5, true);
    assert_eq!(link_all(&mut matching), [[1, 4], [2, 4], [5, 4], [5, 3]]);
    assert!(!matching.is_due());
}

#[test]
fn nobody_takes_part_before_its_pool_is_sealed_and_its_claims_have_come() {
    let mut matching = Matching::default();
    let receiver = come(&mut matching, 1, false);
    let sender = ClientId(2);
    matching.open(sender, Member::new(key(NEWS), true, 200, 2));
    matching.handle_sealed(sender);
    matching.handle_claim(sender, 7).unwrap();
    assert!(link_all(&mut matching).is_empty());
    matching.handle_claim(sender, 8).unwrap();
    assert_eq!(link_all(&mut matching), [[2, 1]]);
    assert_eq!(matching.handle_claim(sender, 9), Err(OutOfTurn));
    assert_eq!(matching.handle_claim(receiver, 9), Err(OutOfTurn));

    let unsealed = ClientId(3);
    matching.open(unsealed, Member::new(key(NEWS), true, 300, 0));
    assert!(link_all(&mut matching).is_empty());
    matching.handle_sealed(unsealed);
    matching.handle_sealed(unsealed);
    assert_eq!(link_all(&mut matching), [[3, 1]]);
}

#[test]
fn names_and_kinds_keep_participants_apart() {
    let mut matching = Matching::default();
    come(&mut matching, 1, true);
    let keys = [
        key("other"),
        ChannelKey {
            two_way: true,
            ..key(NEWS)
        },
        ChannelKey {
            scope: Scope::Tenant(crate::tenant::Tenant::User(1)),
            ..key(NEWS)
        },
    ];
    for (number, key) in (2..).zip(keys) {
        matching.open(ClientId(number), Member::new(key, false, number, 0));
        matching.handle_sealed(ClientId(number));
    }
    assert!(link_all(&mut matching).is_empty());
}

#[test]
fn a_link_that_either_end_holds_is_not_made_again() {
    for claims in [[true, false], [false, true], [true, true]] {
        let mut matching = Matching::default();
        for (number, sends, peer) in [(1, true, 200), (2, false, 100)] {
            let client = ClientId(number);
            matching.open(client, Member::new(key(NEWS), sends, number * 100, 1));
            let claims_it = claims[number as usize - 1];
            matching
                .handle_claim(client, if claims_it { peer } else { 5 })
                .unwrap();
            matching.handle_sealed(client);
        }
        assert!(link_all(&mut matching).is_empty(), "{claims:?}");
        let ties: Vec<_> = matching.get(ClientId(1)).unwrap().ties().collect();
        assert_eq!(ties, [(ClientId(2), Tie::Held)]);
        // Who has gone and holds nothing any more gets a new one, whatever was said of the old one.
        matching.leave(ClientId(2));
        come(&mut matching, 2, false);
        let expected = if claims == [false, true] { 1 } else { 0 };
        let again = link_all(&mut matching).len();
        assert!(again >= expected, "{claims:?}");
    }
}

fn left(matching: &mut Matching, client: u64, peer: u64) -> Option<u64> {
    matching.handle_left(ClientId(client), peer, |_| false)
}

#[test]
fn a_link_that_is_over_for_both_is_made_again() {
    let mut matching = Matching::default();
    come(&mut matching, 1, true);
    come(&mut matching, 2, false);
    let ids = [1, 2].map(|number| matching.get(ClientId(number)).unwrap().id);
    assert_eq!(link_all(&mut matching).len(), 1);
    for _ in 0..2 {
        assert_eq!(left(&mut matching, 1, ids[1]), None);
        assert!(link_all(&mut matching).is_empty(), "one alone says so");
    }
    assert_eq!(left(&mut matching, 2, 77), None, "whom it does not know");
    assert!(left(&mut matching, 2, ids[0]).is_some());
    assert_eq!(link_all(&mut matching).len(), 1);
    assert_eq!(left(&mut matching, 2, ids[0]), None, "the new one");
    matching.leave(ClientId(1));
    come(&mut matching, 1, true);
    assert_eq!(link_all(&mut matching).len(), 1);
    let said = left(&mut matching, 1, ids[1]);
    assert_eq!(said, None, "what was said of the dead is forgotten");
}

#[test]
fn a_link_that_one_alone_held_is_made_again_when_it_is_over_for_that_one() {
    for holder in [1, 2] {
        let mut matching = Matching::default();
        for (number, sends) in [(1, true), (2, false)] {
            let claims = u32::from(number == holder);
            let member = Member::new(key(NEWS), sends, number * 100, claims);
            matching.open(ClientId(number), member);
            matching.handle_sealed(ClientId(number));
        }
        let other = 3 - holder;
        matching
            .handle_claim(ClientId(holder), other * 100)
            .unwrap();
        assert!(link_all(&mut matching).is_empty());
        assert_eq!(left(&mut matching, holder, other * 100), None, "no number");
        assert_eq!(link_all(&mut matching), [[1, 2]]);
        assert_eq!(left(&mut matching, holder, other * 100), None);
        assert!(link_all(&mut matching).is_empty(), "both have the new one");
    }
}

#[test]
fn of_a_link_that_only_its_server_has_the_server_s_word_is_enough() {
    let mut matching = Matching::default();
    come(&mut matching, 1, true);
    come(&mut matching, 2, false);
    let ids = [1, 2].map(|number| matching.get(ClientId(number)).unwrap().id);
    assert_eq!(link_all(&mut matching).len(), 1);
    let said = matching.handle_left(ClientId(2), ids[0], |_| true);
    assert!(said.is_some());
    assert_eq!(link_all(&mut matching).len(), 1);
    let said = matching.handle_left(ClientId(1), ids[1], |_| true);
    assert_eq!(said, None, "the client has no end that could be over");
}

#[test]
fn who_has_no_room_waits_and_keeps_nobody_else_waiting() {
    let mut matching = Matching::default();
    for number in 1..=3 {
        come(&mut matching, number, false);
    }
    come(&mut matching, 9, true);
    let mut pairs = Vec::new();
    while let Some(pair) = matching.next_pair(&mut 1000, |client| client != ClientId(2)) {
        pairs.push(pair[1].0);
        matching.link(pair, pair[1].0, false);
    }
    assert_eq!(pairs, [1, 3]);
    assert!(!matching.is_due());
    matching.wake(ClientId(2));
    assert_eq!(link_all(&mut matching), [[9, 2]]);
}

#[test]
fn a_server_that_maps_nothing_gets_few_links_and_its_clients_get_others() {
    let mut matching = Matching::default();
    let (lazy, quick) = (come(&mut matching, 1, false), come(&mut matching, 2, false));
    let clients: Vec<_> = (10..20)
        .map(|number| come(&mut matching, number, true))
        .collect();
    let mut pairs = Vec::new();
    while let Some(pair) = matching.next_pair(&mut 1000, |_| true) {
        pairs.push(pair);
        matching.link(pair, pair[0].0 * 10 + pair[1].0, true);
        if pair[1] == quick {
            matching.handle_mapped(pair);
        }
    }
    let of = |server| pairs.iter().filter(|pair| pair[1] == server).count();
    assert_eq!((of(lazy), of(quick)), (UNREADY_MAX as usize, clients.len()));
    matching.handle_mapped([pairs.iter().find(|pair| pair[1] == lazy).unwrap()[0], lazy]);
    let next = matching.next_pair(&mut 1000, |_| true).unwrap();
    assert_eq!(next[1], lazy);
}

#[test]
fn servers_that_map_nothing_keep_no_client_from_another() {
    let mut matching = Matching::default();
    for number in 1..=8 {
        come(&mut matching, number, false);
    }
    let client = come(&mut matching, 10, true);
    for link in 0..8 {
        let pair = matching.next_pair(&mut 1000, |_| true).unwrap();
        assert_eq!(pair[0], client);
        matching.link(pair, link, true);
    }
    assert_eq!(matching.next_pair(&mut 1000, |_| true), None);
}

#[test]
fn who_got_no_memory_is_looked_at_when_some_comes_back() {
    let mut matching = Matching::default();
    come(&mut matching, 1, true);
    come(&mut matching, 2, false);
    let mut tries = 0;
    while let Some(pair) = matching.next_pair(&mut 1000, |_| true) {
        matching.refuse(pair);
        tries += 1;
    }
    assert_eq!(
        (tries, matching.is_due()),
        (2, false),
        "once for each of the two"
    );
    matching.wake_refused();
    assert_eq!(link_all(&mut matching), [[1, 2]]);
}

#[test]
fn a_look_ends_when_its_budget_does_and_goes_on_where_it_was() {
    let mut matching = Matching::default();
    for number in 1..=50 {
        come(&mut matching, number, false);
    }
    link_all(&mut matching);
    come(&mut matching, 99, true);
    let mut budget = 10;
    assert_eq!(
        matching.next_pair(&mut budget, |client| client == ClientId(99)
            || client == ClientId(40)),
        None
    );
    assert!(budget == 0 && matching.is_due());
    let found = (0..10).find_map(|_| {
        matching.next_pair(&mut 10, |client| {
            client == ClientId(99) || client == ClientId(40)
        })
    });
    assert_eq!(found, Some([ClientId(99), ClientId(40)]));
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn whatever_happens_all_who_are_there_are_linked_in_the_end_and_nothing_is_left_of_the_others() {
    for seed in 0..200 {
        let (mut state, mut matching) = (seed, Matching::default());
        let mut there: BTreeMap<u64, bool> = BTreeMap::new();
        let mut links: BTreeSet<[u64; 2]> = BTreeSet::new();
        for number in 1..60 {
            match random(&mut state) % 4 {
                0 | 1 => {
                    let sends = random(&mut state).is_multiple_of(2);
                    come(&mut matching, number, sends);
                    there.insert(number, sends);
                }
                2 => {
                    let gone = there.keys().nth(random(&mut state) as usize % 8).copied();
                    if let Some(gone) = gone {
                        there.remove(&gone);
                        matching.leave(ClientId(gone));
                        links.retain(|pair| !pair.contains(&gone));
                    }
                }
                _ => links.extend(link_all(&mut matching)),
            }
        }
        links.extend(link_all(&mut matching));
        let of = |sends| {
            there
                .iter()
                .filter(move |(_, it)| **it == sends)
                .map(|(number, _)| *number)
        };
        let expected: BTreeSet<[u64; 2]> = of(true)
            .flat_map(|sender| of(false).map(move |receiver| [sender, receiver]))
            .collect();
        assert_eq!(links, expected, "seed {seed}");
        for number in there.keys() {
            matching.leave(ClientId(*number));
        }
        assert!(
            matching.ids.is_empty() && matching.channels.is_empty(),
            "seed {seed}"
        );
        assert!(
            matching.due.is_empty() && matching.cursors.is_empty(),
            "seed {seed}"
        );
    }
}
