//! The protocols between workers, in every order that the language allows.
//!
//!     RUSTFLAGS="--cfg loom" cargo test --release -p millrace-sched --test loom

#![cfg(loom)]

use millrace_sched::model;

#[test]
fn what_was_sent_by_the_older_table_comes_first() {
    loom::model(model::a_bucket_moves);
}

#[test]
fn causes_come_before_effects() {
    loom::model(model::causes_come_first);
}
