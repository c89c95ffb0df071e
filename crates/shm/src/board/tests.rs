use super::*;
use std::os::fd::AsFd;

#[test]
fn agent_and_client_see_the_same_rows_and_mail() {
    let fd = create(16).unwrap();
    let agent = Board::attach(fd.as_fd()).unwrap();
    let client = Board::attach_rows(fd.as_fd(), 16).unwrap();
    agent.post_mail();
    assert_eq!(client.mail(), 1);
    client.header().rows_used.store(4, Ordering::Relaxed);
    let row = client.row(3).unwrap();
    row.identity.state.store(state::KERNEL, Ordering::Relaxed);
    let address = std::net::Ipv4Addr::new(127, 0, 0, 9)
        .to_ipv6_mapped()
        .octets();
    for (word, half) in row.identity.local.iter().zip(address_words(address)) {
        word.store(half, Ordering::Relaxed);
    }
    let shown: Vec<_> = agent.rows().collect();
    assert_eq!(shown.len(), 1);
    assert_eq!((shown[0].0, shown[0].1.local.0), (3, address));
    assert!(client.row(16).is_none());
}
#[test]
#[cfg_attr(miri, ignore = "one mapping takes another's place")]
fn a_vacated_board_keeps_its_addresses_and_takes_another_one_in() {
    let first = create(16).unwrap();
    let board = Board::attach_rows(first.as_fd(), 16).unwrap();
    let row = board.row(5).unwrap();
    assert_eq!(board.index_of(row), Some(5));
    assert_eq!(board.index_of(&Row::default()), None);
    row.receive.sleepers.store(1, Ordering::Relaxed);
    board.vacate().unwrap();
    assert_eq!(row.receive.sleepers.load(Ordering::Relaxed), 0);
    row.receive.sleepers.store(9, Ordering::Relaxed);
    let old = Board::attach(first.as_fd()).unwrap();
    let kept = &old.row(5).unwrap().receive.sleepers;
    assert_eq!(kept.load(Ordering::Relaxed), 1, "it is nobody's memory");

    assert!(board.refill(create(17).unwrap().as_fd()).is_err());
    let second = create(16).unwrap();
    board.refill(second.as_fd()).unwrap();
    Board::attach(second.as_fd()).unwrap().post_mail();
    assert_eq!(board.mail(), 1);
    assert_eq!(row.receive.sleepers.load(Ordering::Relaxed), 0);
}
