//! Loom's atomics, with a way to make one thread's use of one word faulty.
//!
//! The models in `tests/loom.rs` of this crate and of `millrace-stream` run the real code. Their mutants do not
//! change it: they break a word, and the model must notice.

use std::fmt;
use std::sync::OnceLock;

use loom::sync::atomic as loom_atomic;
use loom::sync::atomic::Ordering;
use loom::thread::{self, ThreadId};

/// What goes wrong with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every operation is relaxed.
    Relaxed,
    /// A compare-and-swap does not compare.
    Blind,
    /// A compare-and-swap neither compares nor changes these bits.
    Overlook(u64),
    /// Stores are lost.
    Mute,
    /// Loads give zero.
    Deaf,
}

loom::lazy_static! {
    /// The thread number that has died, or zero.
    static ref DEAD: loom_atomic::AtomicU32 = loom_atomic::AtomicU32::new(0);
}

/// The thread of that number exists no more. One per execution of a model.
pub fn die(thread: u32) {
    // Release: pairs with the Acquire in `thread_exists`; what a thread did comes before its end.
    DEAD.store(thread, Ordering::Release);
}

/// In the place of [`crate::sys::thread_exists`].
pub(crate) fn thread_exists(thread: u32) -> bool {
    // Acquire: pairs with the Release in `die`.
    DEAD.load(Ordering::Acquire) != thread
}

/// In the place of [`crate::sys::has_ended`]: the dead leave no numbers behind.
pub(crate) fn has_ended(_thread: u32) -> bool {
    false
}

/// In the place of [`crate::sys::yield_now`].
pub(crate) fn yield_now() {
    thread::yield_now();
}

macro_rules! word {
    ($name:ident, $integer:ty) => {
        /// A word that loom follows.
        pub struct $name {
            word: loom_atomic::$name,
            fault: OnceLock<(Fault, ThreadId)>,
        }

        impl $name {
            /// A word of that value.
            #[must_use]
            pub fn new(value: $integer) -> Self {
                let word = loom_atomic::$name::new(value);
                Self {
                    word,
                    fault: OnceLock::new(),
                }
            }

            /// Makes the calling thread's operations on the word faulty, for the rest of the execution.
            ///
            /// # Panics
            /// When the word has a fault already.
            pub fn break_here(&self, fault: Fault) {
                let fresh = self.fault.set((fault, thread::current().id())).is_ok();
                assert!(fresh, "one fault per word");
            }

            fn fault(&self) -> Option<Fault> {
                let (fault, culprit) = self.fault.get()?;
                (*culprit == thread::current().id()).then_some(*fault)
            }

            fn order(&self, order: Ordering) -> Ordering {
                if self.fault() == Some(Fault::Relaxed) {
                    Ordering::Relaxed
                } else {
                    order
                }
            }

            /// As the standard library's, as are the others.
            pub fn load(&self, order: Ordering) -> $integer {
                if self.fault() == Some(Fault::Deaf) {
                    return 0;
                }
                self.word.load(self.order(order))
            }

            #[allow(missing_docs, reason = "as the standard library's")]
            pub fn store(&self, value: $integer, order: Ordering) {
                if self.fault() != Some(Fault::Mute) {
                    self.word.store(value, self.order(order));
                }
            }

            #[allow(missing_docs, reason = "as the standard library's")]
            pub fn swap(&self, value: $integer, order: Ordering) -> $integer {
                self.word.swap(value, self.order(order))
            }

            #[allow(missing_docs, reason = "as the standard library's")]
            pub fn fetch_add(&self, value: $integer, order: Ordering) -> $integer {
                self.word.fetch_add(value, self.order(order))
            }

            #[allow(missing_docs, reason = "as the standard library's")]
            pub fn fetch_sub(&self, value: $integer, order: Ordering) -> $integer {
                self.word.fetch_sub(value, self.order(order))
            }

            #[allow(missing_docs, reason = "as the standard library's")]
            pub fn fetch_or(&self, value: $integer, order: Ordering) -> $integer {
                self.word.fetch_or(value, self.order(order))
            }

            #[allow(missing_docs, reason = "as the standard library's")]
            pub fn fetch_and(&self, value: $integer, order: Ordering) -> $integer {
                self.word.fetch_and(value, self.order(order))
            }

            #[allow(
                missing_docs,
                clippy::missing_errors_doc,
                reason = "as the standard library's"
            )]
            #[allow(
                clippy::cast_possible_truncation,
                reason = "a mask may be wider than the word"
            )]
            pub fn compare_exchange(
                &self,
                current: $integer,
                new: $integer,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$integer, $integer> {
                let (success, failure) = (self.order(success), self.order(failure));
                match self.fault() {
                    Some(Fault::Blind) => Ok(self.word.swap(new, success)),
                    Some(Fault::Overlook(bits)) => {
                        let bits = bits as $integer;
                        self.word.fetch_update(success, failure, |now| {
                            ((now ^ current) & !bits == 0).then_some(now & bits | new & !bits)
                        })
                    }
                    _ => self.word.compare_exchange(current, new, success, failure),
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter
                    .debug_struct(stringify!($name))
                    .finish_non_exhaustive()
            }
        }
    };
}

word!(AtomicU8, u8);
word!(AtomicU16, u16);
word!(AtomicU32, u32);
word!(AtomicU64, u64);
