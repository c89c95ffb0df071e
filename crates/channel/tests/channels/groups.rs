//! Of a group one gets each message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use millrace_channel::{Channel, Error};

use crate::agent::Running;
use crate::{A_WHILE, SOON, channel};

/// So many that each member has some.
const KEYS: u64 = 128;
const MESSAGES: u64 = 320 * KEYS;
/// Messages after which a member joins or leaves.
const CHANGE_AFTER: u64 = 1000;

/// Numbers in the order in which members have read them.
type Log = Arc<Mutex<Vec<u64>>>;

/// A member in a thread of its own.
struct Member {
    is_stopped: Arc<AtomicBool>,
    /// Says how many it has read.
    thread: JoinHandle<u64>,
}

impl Member {
    fn join(channel: &Channel, log: &Log) -> Member {
        let subscriber = channel.clone().group("workers");
        let (log, is_stopped) = (Arc::clone(log), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&is_stopped);
        let thread = std::thread::spawn(move || {
            let subscriber = subscriber.subscriber().unwrap();
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                match subscriber.receive_until(Some(Instant::now() + A_WHILE)) {
                    Ok(message) => {
                        assert!(!message.is_redelivered(), "none is kept");
                        // Written down before it is given back: then the next of its key may go to another member.
                        log.lock().unwrap().push(message.u64_at(0).unwrap());
                        count += 1;
                    }
                    Err(Error::TimedOut) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            count
        });
        Member { is_stopped, thread }
    }

    /// What it has not read yet is left to others.
    fn leave(self) -> u64 {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[test]
fn members_join_and_leave_and_each_key_stays_in_order_and_none_is_lost() {
    let agent = Running::start();
    let channel = channel(&agent, "shared").slots(64).redeliver(true);
    let publisher = channel.publisher().unwrap();
    let log = Log::default();
    let mut members: Vec<_> = (0..2).map(|_| Member::join(&channel, &log)).collect();
    assert!(publisher.wait_for_subscribers(2, SOON));
    let mut counts = Vec::new();
    for number in 0..MESSAGES {
        let mut loan = publisher.loan(8).unwrap();
        loan.copy_from_slice(&number.to_le_bytes());
        assert_eq!(publisher.push_keyed(loan, number % KEYS).unwrap(), number);
        if number % 8 == 7 {
            publisher.publish();
        }
        if number % CHANGE_AFTER == CHANGE_AFTER / 2 {
            // Two, three, four, three, two, … at a time; the one that has been there longest leaves.
            if number / CHANGE_AFTER % 4 < 2 {
                members.push(Member::join(&channel, &log));
                assert!(publisher.wait_for_subscribers(members.len(), SOON));
            } else {
                counts.push(members.remove(0).leave());
            }
        }
    }
    assert!(publisher.drain(SOON));
    counts.extend(members.into_iter().map(Member::leave));
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    assert_eq!(publisher.dropped(), 0);
    let mut next: Vec<u64> = (0..KEYS).collect();
    for number in log.lock().unwrap().iter() {
        let next = &mut next[(number % KEYS) as usize];
        assert_eq!(number, next, "of its key");
        *next += KEYS;
    }
    let ends = (0..KEYS).map(|key| MESSAGES + key);
    assert!(next.into_iter().eq(ends), "some are missing");
}
