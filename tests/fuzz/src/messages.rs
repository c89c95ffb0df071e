//! What an honest publisher has sent, and whether an honest subscriber gets it.

use std::collections::VecDeque;

use millrace_channel::Message;

/// Marks and lengths of all messages, by their numbers.
#[derive(Default)]
pub(crate) struct Log(Vec<(u64, usize)>);

/// Fills a message so that no other looks like it, nor any part of it.
pub(crate) fn fill(mark: u64, target: &mut [u8]) {
    for (index, chunk) in (0_u64..).zip(target.chunks_mut(8)) {
        let word =
            mark.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

impl Log {
    /// The publisher has sent a message, to which it has given this number.
    pub(crate) fn note(&mut self, sequence: u64, mark: u64, bytes: usize) {
        assert_eq!(sequence, self.0.len() as u64, "numbers follow each other");
        self.0.push((mark, bytes));
    }

    /// Messages sent so far.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// It is whole.
    pub(crate) fn check(&self, message: &Message<'_>) {
        let (mark, bytes) = self.0[usize::try_from(message.sequence()).expect("a small number")];
        let mut contents = vec![0; bytes];
        fill(mark, &mut contents);
        assert!(
            message.to_vec() == contents,
            "message {} is not what was sent",
            message.sequence()
        );
    }
}

/// What a subscriber outside of groups has still to get, in order.
pub(crate) struct Expected {
    queue: VecDeque<u64>,
    /// The publisher may give messages up, and tells.
    drops: bool,
    is_begun: bool,
}

impl Expected {
    pub(crate) fn new(drops: bool) -> Expected {
        Expected {
            queue: VecDeque::new(),
            drops,
            is_begun: false,
        }
    }

    /// The message of this number has been sent.
    pub(crate) fn push(&mut self, sequence: u64) {
        self.queue.push_back(sequence);
    }

    /// Nothing is still to come.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// A message has come: it is the next one, or those between were given up, and it tells so.
    pub(crate) fn check(&mut self, message: &Message<'_>) {
        let (sequence, told) = (message.sequence(), message.lost_before());
        let before = self.queue.iter().position(|queued| *queued == sequence);
        let before = before.expect("it has been sent, and has not come yet");
        self.queue.drain(..=before);
        assert!(self.drops || before == 0, "{before} before {sequence}");
        // The first cannot tell by its number, and may tell of later ones.
        let is_right = told == before as u64 || !self.is_begun && told > before as u64;
        assert!(is_right, "{before} before {sequence}, {told} told");
        self.is_begun = true;
    }

    /// Nothing more will come.
    pub(crate) fn finish(&self) {
        let left = self.queue.len();
        assert!(self.drops || left == 0, "{left} have not come");
    }
}
