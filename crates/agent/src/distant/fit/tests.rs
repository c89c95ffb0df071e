use std::net::SocketAddr;

use super::*;
use crate::offers::ClientId;

fn socket(cookie: u64, send: [u32; 2], receive_next: u32) -> TcpSocket {
    TcpSocket {
        fd: 3,
        established: true,
        cookie,
        netns_cookie: 1,
        owner: 1,
        send_unacknowledged: send[0],
        send_next: send[1],
        receive_next,
        shaped: false,
    }
}

fn address(text: &str) -> Address {
    text.parse::<SocketAddr>().unwrap().into()
}

/// An end behind NAT: nobody's addresses mirror its own.
fn end(number: u64, seen: [TcpSocket; 2]) -> End {
    End {
        key: (ClientId(number), 1),
        local: address(&format!("10.0.0.1:{number}")),
        remote: address("10.0.0.9:80"),
        is_near: false,
        is_own: true,
        tenant: Tenant::User(number as u32),
        seen,
    }
}

/// The same where addresses mirror each other: those of the second end.
fn mirroring(end: &End, number: u64, seen: [TcpSocket; 2]) -> End {
    End {
        key: (ClientId(number), 1),
        local: end.remote,
        remote: end.local,
        seen,
        ..*end
    }
}

fn pairs(ends: &[End]) -> Vec<[u64; 2]> {
    let pairs = only_fits(ends, Pairing::Any);
    pairs.iter().map(|pair| pair.map(|key| key.0.0)).collect()
}

/// What two looks at two ends say, whichever is named first.
fn of_both(first: [TcpSocket; 2], second: [TcpSocket; 2]) -> Option<u64> {
    let (first, second) = (end(1, first), end(2, second));
    assert_eq!(fit(&first, &second), fit(&second, &first));
    let fits = fit(&first, &second).is_some_and(|chances| chances <= CHANCES_MAX);
    for ends in [[first, second], [second, first]] {
        assert_eq!(only_fits(&ends, Pairing::Any).len(), usize::from(fits));
        assert!(only_fits(&ends, Pairing::Mirrored).is_empty());
    }
    fit(&first, &second)
}

#[test]
fn ends_at_rest_fit_exactly() {
    let near = socket(1, [100, 100], 900);
    assert_eq!(of_both([near; 2], [socket(2, [900, 900], 100); 2]), Some(1));
    for wrong in [
        socket(2, [900, 900], 101),
        socket(2, [900, 900], 99),
        socket(2, [899, 899], 100),
        socket(2, [901, 901], 100),
        socket(1, [900, 900], 100),
    ] {
        assert_eq!(of_both([near; 2], [wrong; 2]), None, "{wrong:?}");
    }
}

#[test]
fn bytes_on_their_way_and_the_wrap_are_allowed_for() {
    let start = u32::MAX - 5;
    let sender = [
        socket(1, [start, start.wrapping_add(3000)], 7),
        socket(1, [start.wrapping_add(1000), start.wrapping_add(4000)], 7),
    ];
    let receiver = [
        socket(2, [7, 7], start.wrapping_add(2000)),
        socket(2, [7, 7], start.wrapping_add(2500)),
    ];
    assert_eq!(of_both(sender, receiver), Some(4000 + 500 + 1));
    let ahead = socket(2, [7, 7], start.wrapping_add(5000));
    assert_eq!(of_both(sender, [ahead; 2]), None);
}

#[test]
fn a_fit_that_says_little_is_none() {
    let wide = |cookie, other: u32| socket(cookie, [0, 1 << 13], other);
    assert!(of_both([wide(1, 50); 2], [wide(2, 50); 2]).unwrap() > CHANCES_MAX);
    let (open, narrow) = (socket(1, [0, 1 << 30], 50), socket(2, [50, 50], 9));
    assert!(of_both([open; 2], [narrow; 2]).unwrap() > CHANCES_MAX);
    // Where the addresses mirror each other it may say less.
    let first = end(1, [wide(1, 50); 2]);
    let second = mirroring(&first, 2, [wide(2, 50); 2]);
    assert_eq!(pairs(&[first, second]), [[1, 2]]);
    assert_eq!(only_fits(&[first, second], Pairing::Mirrored).len(), 1);
}

#[test]
fn who_fits_two_is_paired_with_neither() {
    let near = end(1, [socket(1, [100, 100], 900); 2]);
    let far = |number, cookie| end(number, [socket(cookie, [900, 900], 100); 2]);
    let other = [
        end(4, [socket(4, [5, 5], 6); 2]),
        end(5, [socket(5, [6, 6], 5); 2]),
    ];
    assert_eq!(
        pairs(&[near, far(2, 2), other[0], other[1]]),
        [[1, 2], [4, 5]]
    );
    assert_eq!(
        pairs(&[near, far(2, 2), other[0], far(3, 3), other[1]]),
        [[4, 5]]
    );
    let mirrored = mirroring(&near, 6, far(6, 6).seen);
    assert_eq!(pairs(&[near, far(2, 2), mirrored]), [[0; 2]; 0]);
    assert_eq!(pairs(&[near, mirrored]), [[1, 6]]);
}

#[test]
fn two_near_ends_or_such_in_namespaces_of_others_are_no_pair() {
    let ends = [
        end(1, [socket(1, [100, 100], 900); 2]),
        end(2, [socket(2, [900, 900], 100); 2]),
    ];
    let with = |change: &dyn Fn(usize, &mut End)| {
        let mut ends = ends;
        ends.iter_mut()
            .enumerate()
            .for_each(|(index, end)| change(index, end));
        pairs(&ends).len()
    };
    assert_eq!(with(&|index, end| end.is_near = index == 0), 1);
    assert_eq!(with(&|_, end| end.is_near = true), 0);
    assert_eq!(with(&|index, end| end.is_own = index == 0), 0);
    assert_eq!(
        with(&|_, end| (end.is_own, end.tenant) = (false, Tenant::User(7))),
        1
    );
    assert_eq!(
        with(&|_, end| (end.is_own, end.tenant) = (false, Tenant::Nobody)),
        0
    );
}

/// Numbers without a pattern that anybody would see.
fn scatter(number: u64) -> u32 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[test]
fn thousands_find_each_other_as_if_each_had_been_tried_with_each() {
    // Many at rest, a few under way, some of which stand around the wrap; each third is behind NAT; and lone ones.
    let mut ends = Vec::new();
    for number in 0..600u64 {
        let span = if number % 7 == 0 { 40_000 } else { 0 };
        let base = if number % 50 == 0 {
            (u32::MAX - 20_000).wrapping_add(97 * number as u32)
        } else {
            scatter(number)
        };
        let back = scatter(number + 1000);
        let sender = socket(2 * number + 1, [base, base.wrapping_add(span)], back);
        let receiver = socket(2 * number + 2, [back, back], base.wrapping_add(span / 2));
        let first = end(2 * number + 1, [sender; 2]);
        let second = end(2 * number + 2, [receiver; 2]);
        ends.push(first);
        if number % 11 != 0 {
            let mirrored = mirroring(&first, 2 * number + 2, second.seen);
            ends.push(if number % 3 == 0 { second } else { mirrored });
        }
    }
    let mut wanted = Vec::new();
    for (index, first) in ends.iter().enumerate() {
        for second in &ends[index + 1..] {
            if may_be_one(first, second) {
                wanted.push([first.key, second.key]);
            }
        }
    }
    assert!(wanted.len() > 500, "{}", wanted.len());
    let mut found = only_fits(&ends, Pairing::Any);
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
}
