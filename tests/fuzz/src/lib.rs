//! What a fuzzer runs: each function takes any bytes, and panics where something that must hold does not.

pub mod agent;
pub mod captures;
pub mod codec;
pub mod filter;
pub mod frames;
pub mod gtpu;
pub mod memif;
mod messages;
pub mod node;
pub mod offloads;
mod peer;
pub mod publisher;
pub mod ring;
mod site;
pub mod stream;
pub mod subscriber;
mod sys;
pub mod user_plane;
pub mod vhost;
pub mod virtio;

/// Bytes that decide; zeros when there are no more.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// Less than `count`, of which there is one at least.
    fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// From 1 to 16 384, of any magnitude.
    fn size(&mut self) -> usize {
        let (magnitude, low) = (self.byte() % 15, self.byte());
        ((usize::from(low) << magnitude >> 8) + 1).min(1 << 14)
    }
}
