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
fn what_is_kept_of_a_bucket_is_there_when_it_is_handed_over() {
    loom::model(model::a_state_goes_with_its_bucket);
}

#[test]
fn what_is_done_in_place_overtakes_nothing() {
    loom::model(model::what_is_done_in_place_overtakes_nothing);
}

#[test]
fn causes_come_before_effects() {
    loom::model(model::causes_come_first);
}
