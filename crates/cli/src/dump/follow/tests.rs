use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use millrace_shm::segment::{Segment, create};

use super::*;

const ID: u64 = 9;
const WINDOW: u32 = 4096;

/// A connection's segment, whose ends do as the test says.
struct Ends {
    segment: Segment,
    file: File,
}

impl Ends {
    fn new() -> Ends {
        let fd = create(WINDOW).unwrap();
        let segment = Segment::attach(fd.as_fd(), WINDOW).unwrap();
        segment.set_connection_id(ID);
        assert!(segment.reach(WINDOW));
        Ends {
            segment,
            file: File::from(fd),
        }
    }

    fn open(&self, direction: usize) {
        let word = &self.segment.words(direction).gate;
        word.open(word.load(), WINDOW.trailing_zeros()).unwrap();
    }

    fn close(&self, direction: usize) {
        self.segment.words(direction).gate.close_now();
    }

    /// So many bytes went by the kernel before this epoch.
    fn begin(&self, direction: usize, switch: u64) {
        let words = self.segment.words(direction);
        words.switch_position.store(switch, Relaxed);
    }

    fn send(&self, direction: usize, bytes: &[u8]) {
        let words = self.segment.words(direction);
        let gate = words.gate.load();
        self.segment
            .write_slice(direction, gate.tail, WINDOW, bytes);
        words.gate.publish(gate, bytes.len() as u32).unwrap();
    }

    /// The reader takes everything.
    fn take(&self, direction: usize) {
        let tail = self.segment.words(direction).gate.load().tail;
        self.segment.release(direction, tail);
    }

    fn fetch(&self, at: usize, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, at as u64)
    }

    fn follower(&self) -> Follower {
        Follower::new(ID, WINDOW, &mut |at, bytes| self.fetch(at, bytes)).unwrap()
    }

    fn look(&self, follower: &mut Follower) -> Vec<Piece> {
        follower
            .look(false, &mut |at, bytes| self.fetch(at, bytes))
            .unwrap()
    }

    /// A look during which something goes on: before each fetch, of which it is told the number.
    fn look_while_always(&self, follower: &mut Follower, goes_on: impl Fn(u32)) -> Vec<Piece> {
        let mut count = 0;
        let mut fetch = |at: usize, bytes: &mut [u8]| {
            goes_on(count);
            count += 1;
            self.fetch(at, bytes)
        };
        follower.look(false, &mut fetch).unwrap()
    }

    /// A look during which something happens, after so many fetches.
    fn look_while(&self, follower: &mut Follower, after: u32, happens: impl Fn()) -> Vec<Piece> {
        self.look_while_always(follower, |count| {
            if count == after {
                happens();
            }
        })
    }
}

/// One piece, and nothing else.
fn only(pieces: Vec<Piece>) -> Piece {
    let [piece] = <[Piece; 1]>::try_from(pieces).unwrap();
    piece
}

#[test]
fn bytes_come_with_their_place_in_the_stream() {
    let ends = Ends::new();
    ends.open(0);
    ends.begin(0, 1000);
    let mut follower = ends.follower();
    assert!(ends.look(&mut follower).is_empty());
    ends.send(0, b"hello");
    let piece = only(ends.look(&mut follower));
    assert_eq!(
        (piece.sequence, piece.data.as_slice()),
        (1001, &b"hello"[..])
    );
    ends.send(0, b"again");
    let piece = only(ends.look(&mut follower));
    assert_eq!((piece.sequence, piece.lost, piece.by_kernel), (1006, 0, 0));

    ends.open(1);
    ends.send(1, b"answer");
    let piece = only(ends.look(&mut follower));
    let places = (piece.direction, piece.sequence, piece.acknowledged);
    assert_eq!(places, (1, 1, 1011));
}

#[test]
fn bytes_that_were_there_before_are_not_shown() {
    let ends = Ends::new();
    ends.open(0);
    ends.send(0, b"early");
    let mut follower = ends.follower();
    ends.send(0, b"late");
    let piece = only(ends.look(&mut follower));
    assert_eq!((piece.sequence, piece.data.as_slice()), (6, &b"late"[..]));
}

#[test]
fn what_went_by_the_kernel_is_a_hole_of_its_size() {
    let ends = Ends::new();
    ends.open(0);
    let mut follower = ends.follower();
    ends.send(0, b"one");
    ends.look(&mut follower);
    ends.close(0);
    ends.look(&mut follower);
    ends.take(0);
    ends.open(0);
    ends.begin(0, 500);
    ends.send(0, b"two");
    let piece = only(ends.look(&mut follower));
    assert_eq!((piece.sequence, piece.by_kernel, piece.lost), (504, 500, 0));
}

/// Two epochs pass unseen; whether the first had bytes is not known afterwards.
fn pass_unseen(ends: &Ends, switch: u64) {
    ends.send(0, b"two");
    ends.close(0);
    ends.take(0);
    ends.open(0);
    ends.begin(0, switch);
    ends.send(0, b"three");
}

#[test]
fn bytes_whose_epoch_is_not_known_are_lost_unless_their_place_is_the_same() {
    for (switch, placed) in [(0, true), (500, false)] {
        let ends = Ends::new();
        ends.open(0);
        let mut follower = ends.follower();
        ends.send(0, b"one");
        ends.look(&mut follower);
        pass_unseen(&ends, switch);
        ends.take(0);
        let pieces = ends.look(&mut follower);
        let untold = if placed { 0 } else { 8 };
        assert_eq!((pieces.len() == 1, follower.untold()), (placed, untold));
        ends.send(0, b"four");
        let piece = only(ends.look(&mut follower));
        assert_eq!(piece.data, b"four");
        assert_eq!(piece.sequence, switch as u32 + 12);
        let expected = if placed { (0, 0) } else { (8, 500) };
        assert_eq!((piece.lost, piece.by_kernel), expected);
    }
}

#[test]
fn unread_bytes_are_of_the_epoch_that_is() {
    let ends = Ends::new();
    ends.open(0);
    let mut follower = ends.follower();
    ends.send(0, b"one");
    ends.look(&mut follower);
    pass_unseen(&ends, 500);
    let piece = only(ends.look(&mut follower));
    assert_eq!(
        (piece.sequence, piece.data.as_slice()),
        (507, &b"three"[..])
    );
    assert_eq!((piece.lost, piece.by_kernel), (3, 500));
}

/// How many bytes pieces have, all of which are `byte`, and how many were lost before them.
fn sums(pieces: &[Piece], byte: u8) -> (usize, u32) {
    let right = |piece: &Piece| piece.data.iter().all(|it| *it == byte);
    assert!(pieces.iter().all(right), "{pieces:?}");
    let bytes = pieces.iter().map(|piece| piece.data.len()).sum();
    (bytes, pieces.iter().map(|piece| piece.lost).sum())
}

#[test]
fn bytes_that_are_overwritten_while_they_are_copied_are_lost() {
    for moment in 1..5 {
        let ends = Ends::new();
        ends.open(0);
        let mut follower = ends.follower();
        ends.send(0, &[1; 3000]);
        // The reader has taken all, and the sender comes round.
        ends.take(0);
        let pieces = ends.look_while(&mut follower, moment, || ends.send(0, &[2; 3000]));
        let (first, lost) = sums(&pieces, 1);
        let (second, told) = sums(&ends.look(&mut follower), 2);
        assert_eq!(first + second + (lost + told) as usize, 6000, "{moment}");
        assert_eq!(second, 3000);
    }
}

#[test]
fn a_write_under_way_is_seen_by_what_it_changes() {
    for moment in 1..4 {
        let ends = Ends::new();
        ends.open(0);
        let mut follower = ends.follower();
        ends.send(0, &[1; 3000]);
        // It goes on while the bytes are copied, and is published later.
        let done = std::cell::Cell::new(0);
        let pieces = ends.look_while_always(&mut follower, |fetch| {
            if fetch >= moment {
                ends.take(0);
                done.set(done.get() + 1000);
                ends.segment
                    .write_slice(0, 3000, WINDOW, &vec![2; 1000 + done.get().min(3000)]);
            }
        });
        let wrong = |piece: &Piece| piece.data.iter().any(|byte| *byte != 1);
        assert!(!pieces.iter().any(wrong), "{moment}");
    }
}

#[test]
fn a_write_that_was_given_up_for_the_kernel_is_not_taken_for_what_was_there() {
    for is_opened_again in [false, true] {
        let ends = Ends::new();
        ends.open(0);
        let mut follower = ends.follower();
        ends.send(0, &[0; 8]);
        ends.take(0);
        assert_eq!(only(ends.look(&mut follower)).data, [0; 8]);
        ends.send(0, &[1; 3000]);
        ends.take(0);
        ends.segment.write_slice(0, 3008, WINDOW, &[2; 3000]);
        ends.close(0);
        ends.segment.words(0).kernel_hint.store(3000, Relaxed);
        if is_opened_again {
            ends.open(0);
        }
        assert!(ends.look(&mut follower).is_empty());
        assert_eq!(follower.untold(), 3000);
    }
}

#[test]
fn a_quiet_connection_loses_nothing_although_its_reader_is_quick() {
    let ends = Ends::new();
    let mut follower = ends.follower();
    for round in 0..20 {
        ends.open(0);
        ends.send(0, &[round; 1000]);
        ends.take(0);
        ends.close(0);
        let piece = only(ends.look(&mut follower));
        assert_eq!((piece.data, piece.lost), (vec![round; 1000], 0));
    }
}

#[test]
fn unread_bytes_are_safe_however_many() {
    let ends = Ends::new();
    ends.open(0);
    let mut follower = ends.follower();
    ends.send(0, &[7; WINDOW as usize]);
    let piece = only(ends.look(&mut follower));
    assert_eq!((piece.data.len(), piece.lost), (WINDOW as usize, 0));
}

#[test]
fn an_onlooker_who_comes_late_counts_what_he_missed() {
    let ends = Ends::new();
    ends.open(0);
    let mut follower = ends.follower();
    for round in 0..10 {
        ends.send(0, &[round; 1000]);
        ends.take(0);
    }
    let piece = only(ends.look(&mut follower));
    assert_eq!(piece.lost as usize + piece.data.len(), 10_000);
    assert_eq!(piece.data.len(), WINDOW as usize);
    assert_eq!(piece.sequence, 10_001 - WINDOW);
    assert!(piece.data.ends_with(&[9; 1000]));
}

#[test]
fn memory_of_another_connection_ends_it() {
    let ends = Ends::new();
    ends.open(0);
    let mut follower = ends.follower();
    ends.send(0, b"x");
    ends.segment.set_connection_id(ID + 1);
    let looked = follower.look(false, &mut |at, bytes| ends.fetch(at, bytes));
    assert!(looked.is_err());
    assert!(Follower::new(ID, WINDOW, &mut |at, bytes| ends.fetch(at, bytes)).is_err());
}

#[test]
fn nonsense_in_the_words_is_lost_and_does_no_harm() {
    let ends = Ends::new();
    let mut follower = ends.follower();
    let word = &ends.segment.words(0).gate;
    for window_log2 in [0, 5, 31] {
        let gate = word.open(word.load(), window_log2).unwrap();
        word.publish(gate, 123_456).unwrap();
        assert!(ends.look(&mut follower).is_empty());
        word.close_now();
        ends.look(&mut follower);
    }
    assert_eq!(follower.untold(), 3 * 123_456);
}
