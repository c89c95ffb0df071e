//! The two halves of a direction, over loom's words, in every interleaving that loom finds within its bound of
//! preemptions: switching, room, readers and senders in parallel. And mutants, each of which a model must catch.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p millrace-shm -p millrace-stream --test loom`
#![cfg(loom)]

#[path = "loom/pipe.rs"]
mod pipe;
#[path = "loom/sys.rs"]
mod sys;

use loom::thread;
use millrace_shm::model::Fault;
use millrace_stream::SendPlan;

use pipe::Way::{self, Any, Kernel};
use pipe::{BLOCK, Pipe, Slip};

/// What a model's thread does wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Mutant {
    sender: Option<fn(&Pipe)>,
    receiver: Option<fn(&Pipe)>,
    slip: Option<Slip>,
}

impl Mutant {
    const NONE: Mutant = Mutant {
        sender: None,
        receiver: None,
        slip: None,
    };

    fn sender(fault: fn(&Pipe)) -> Mutant {
        Mutant {
            sender: Some(fault),
            ..Mutant::NONE
        }
    }

    fn receiver(fault: fn(&Pipe)) -> Mutant {
        Mutant {
            receiver: Some(fault),
            ..Mutant::NONE
        }
    }

    fn slip(slip: Slip) -> Mutant {
        Mutant {
            slip: Some(slip),
            ..Mutant::NONE
        }
    }
}

fn apply(fault: Option<fn(&Pipe)>, pipe: &Pipe) {
    if let Some(fault) = fault {
        fault(pipe);
    }
}

fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(model);
}

/// One sender, one receiver that sleeps in the kernel when nothing is there.
fn stream(open: bool, script: &'static [Way], mutant: Mutant) {
    let preemptions = if mutant.slip == Some(Slip::OpenUndrained) {
        3
    } else {
        2
    };
    explore(preemptions, move || {
        let pipe = Pipe::new(mutant.slip);
        if open {
            assert!(pipe.receive_half().try_open());
        }
        let sender = thread::spawn({
            let pipe = pipe.clone();
            move || {
                apply(mutant.sender, &pipe);
                pipe.send_all(script, &mut (1..));
            }
        });
        apply(mutant.receiver, &pipe);
        for (message, _) in (1..).zip(script) {
            assert_eq!(pipe.receive(), message, "order of the stream");
        }
        sender.join().unwrap();
    });
}

const PLAIN: &[Way] = &[Any, Any, Any];
const OVERFLOWING: &[Way] = &[Any, Kernel, Any];

#[test]
fn a_stream_that_begins_in_the_ring() {
    stream(true, PLAIN, Mutant::NONE);
}

#[test]
fn a_stream_that_begins_in_the_kernel() {
    stream(false, PLAIN, Mutant::NONE);
}

#[test]
fn a_stream_with_calls_that_only_the_kernel_serves() {
    stream(true, OVERFLOWING, Mutant::NONE);
}

#[test]
#[should_panic(expected = "Corrupt")]
fn mutant_publish_without_release() {
    stream(
        true,
        PLAIN,
        Mutant::sender(|pipe| pipe.words().gate.break_here(Fault::Relaxed)),
    );
}

#[test]
#[should_panic(expected = "Corrupt")]
fn mutant_gate_read_without_acquire() {
    stream(
        true,
        PLAIN,
        Mutant::receiver(|pipe| pipe.words().gate.break_here(Fault::Relaxed)),
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_publish_into_a_closed_gate() {
    stream(
        true,
        &[Any],
        Mutant::sender(|pipe| pipe.words().gate.break_here(Fault::Overlook(1 << 32))),
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_close_without_looking_at_the_tail() {
    stream(
        true,
        &[Any],
        Mutant::receiver(|pipe| pipe.words().gate.break_here(Fault::Overlook(0xffff_ffff))),
    );
}

#[test]
#[should_panic(expected = "Corrupt")]
fn mutant_switch_position_not_written() {
    stream(
        false,
        PLAIN,
        Mutant::sender(|pipe| pipe.words().switch_position.break_here(Fault::Mute)),
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_head_released_without_release() {
    stream(
        true,
        PLAIN,
        Mutant::receiver(|pipe| pipe.words().head.break_here(Fault::Relaxed)),
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_head_read_without_acquire() {
    stream(
        true,
        PLAIN,
        Mutant::sender(|pipe| pipe.words().head.break_here(Fault::Relaxed)),
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_head_released_before_the_copy() {
    stream(true, PLAIN, Mutant::slip(Slip::ReleaseBeforeCopy));
}

#[test]
#[should_panic(expected = "order of the stream")]
fn mutant_opened_while_not_drained() {
    stream(true, OVERFLOWING, Mutant::slip(Slip::OpenUndrained));
}

#[test]
#[should_panic(expected = "order of the stream")]
fn mutant_kernel_send_with_the_gate_open() {
    stream(
        true,
        OVERFLOWING,
        Mutant::slip(Slip::KernelSendWithoutClosing),
    );
}

/// A signal handler sends between the plan and the commit of the call that it interrupted. It must go by the kernel: the
/// interrupted call may be copying to the place in the ring where the handler's bytes would lie.
fn nested_send(before: &'static [Way], nested: &'static [Way], mutant: Mutant) {
    explore(3, move || {
        let pipe = Pipe::new(None);
        assert!(pipe.receive_half().try_open());
        let sender = thread::spawn({
            let pipe = pipe.clone();
            move || {
                apply(mutant.sender, &pipe);
                let mut messages = 1..;
                pipe.send_all(before, &mut messages);
                let outer = pipe.send_half().plan(BLOCK as usize).unwrap();
                pipe.send_all(nested, &mut messages);
                let last = messages.next().unwrap();
                match outer {
                    SendPlan::Ring { gate, first, .. } if pipe.put((gate, first), last) => {}
                    _ => pipe.send(last),
                }
            }
        });
        for (message, _) in (1..).zip(before.iter().chain(nested).chain(&[Any])) {
            assert_eq!(pipe.receive(), message, "order of the stream");
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_signal_handler_sends_within_a_send() {
    nested_send(&[Any], &[Kernel], Mutant::NONE);
}

#[test]
fn a_signal_handler_sends_within_the_first_send_of_an_epoch() {
    nested_send(&[], &[Kernel], Mutant::NONE);
}

#[test]
#[should_panic(expected = "order of the stream")]
fn mutant_nested_send_by_the_ring() {
    nested_send(&[], &[Any], Mutant::NONE);
}

#[test]
#[should_panic(expected = "Corrupt")]
fn mutant_publish_without_looking_at_the_epoch() {
    nested_send(
        &[Any],
        &[Kernel],
        Mutant::sender(|pipe| pipe.words().gate.break_here(Fault::Overlook(!0 << 38))),
    );
}

fn put_if_room(pipe: &Pipe, message: u32) -> bool {
    let plan = pipe.send_half().plan(BLOCK as usize).unwrap();
    matches!(plan, SendPlan::Ring { gate, first, .. } if pipe.put_racy((gate, first), message))
}

/// Two readers take from the ring without excluding each other, as a signal handler within a read does;
/// the sender goes on, and must find no rule broken.
fn two_readers(mutant: Mutant) {
    explore(3, move || {
        let pipe = Pipe::new(None);
        assert!(pipe.receive_half().try_open());
        for message in [1, 2] {
            assert!(put_if_room(&pipe, message));
        }
        let reader = thread::spawn({
            let pipe = pipe.clone();
            move || {
                apply(mutant.receiver, &pipe);
                pipe.take_racy()
            }
        });
        let sender = thread::spawn({
            let pipe = pipe.clone();
            move || (3..6).all(|message| put_if_room(&pipe, message))
        });
        let mut taken = [pipe.take_racy(), reader.join().unwrap()];
        sender.join().unwrap();
        taken.sort_unstable();
        assert_eq!(taken, [1, 2], "a message was taken twice");
    });
}

#[test]
fn two_readers_take_each_byte_once() {
    two_readers(Mutant::NONE);
}

#[test]
#[should_panic(expected = "taken twice")]
fn mutant_head_moved_without_comparison() {
    two_readers(Mutant::receiver(|pipe| {
        pipe.receiver.receive.head.break_here(Fault::Blind)
    }));
}

/// Two threads read, each in the kernel when nothing is there.
fn two_sleepers(preemptions: usize, mutant: Mutant) {
    explore(preemptions, move || {
        let pipe = Pipe::new(mutant.slip);
        let reader = thread::spawn({
            let pipe = pipe.clone();
            move || {
                apply(mutant.receiver, &pipe);
                pipe.glance();
                pipe.receive()
            }
        });
        let sender = thread::spawn({
            let pipe = pipe.clone();
            move || {
                pipe.send(1);
                pipe.send(2);
            }
        });
        let mut received = [pipe.receive(), reader.join().unwrap()];
        sender.join().unwrap();
        received.sort_unstable();
        assert_eq!(received, [1, 2]);
    });
}

#[test]
fn a_sleeper_is_woken_whatever_another_reader_does() {
    two_sleepers(3, Mutant::NONE);
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_opened_while_another_sleeps() {
    two_sleepers(
        2,
        Mutant::receiver(|pipe| pipe.receiver.receive.sleepers.break_here(Fault::Deaf)),
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_asleep_without_notice() {
    two_sleepers(3, Mutant::slip(Slip::SleepUnannounced));
}

#[test]
#[should_panic(expected = "promised")]
fn mutant_awake_before_the_position_is_counted() {
    two_sleepers(3, Mutant::slip(Slip::WakeBeforeCounting));
}

/// Two threads send, one of them by the kernel.
fn two_senders(mutant: Mutant) {
    explore(3, move || {
        let pipe = Pipe::new(None);
        let other = thread::spawn({
            let pipe = pipe.clone();
            move || pipe.send(1)
        });
        let sender = thread::spawn({
            let pipe = pipe.clone();
            move || {
                apply(mutant.sender, &pipe);
                pipe.send(2);
            }
        });
        let mut received = [pipe.receive(), pipe.receive()];
        other.join().unwrap();
        sender.join().unwrap();
        received.sort_unstable();
        assert_eq!(received, [1, 2]);
    });
}

#[test]
fn a_ring_send_waits_for_another_threads_kernel_send() {
    two_senders(Mutant::NONE);
}

#[test]
#[should_panic(expected = "Corrupt")]
fn mutant_ring_used_during_a_kernel_send() {
    two_senders(Mutant::sender(|pipe| {
        pipe.sender.send.raw.break_here(Fault::Deaf)
    }));
}

/// The receiver polls before each read.
fn polled(slip: Option<Slip>) {
    explore(3, move || {
        let pipe = Pipe::new(slip);
        assert!(pipe.receive_half().try_open());
        let sender = thread::spawn({
            let pipe = pipe.clone();
            move || pipe.send_all(&[Any, Any], &mut (1..))
        });
        for message in 1..=2 {
            pipe.poll();
            assert_eq!(pipe.receive(), message, "order of the stream");
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_poll_does_not_sleep_upon_bytes() {
    polled(None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_poll_that_reads_the_tail_too_late() {
    polled(Some(Slip::TailAfterLooking));
}
