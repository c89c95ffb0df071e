//! Reads what all have written down, and says what cannot be.

use std::collections::HashMap;
use std::path::Path;

use crate::body::KEYS;
use crate::ledger::{self, AGAIN};
use crate::{Failure, SLOTS};

/// A publisher that meant well.
struct Sender {
    published: u64,
    begun: u64,
    /// It has come to its end in good order, and has given up so many messages.
    dropped: Option<u64>,
}

/// A subscriber: what it has read, in this order.
struct Receiver {
    id: u64,
    runs: Vec<[u64; 3]>,
    is_survivor: bool,
}

struct Record {
    senders: HashMap<u64, Sender>,
    receivers: Vec<Receiver>,
    hostile: Vec<u64>,
}

impl Record {
    fn read(directory: &Path) -> Result<Record, Failure> {
        let ids = |kind: &str| -> Result<Vec<u64>, Failure> {
            let all = ledger::all(directory, kind)?;
            Ok(all.into_iter().map(|(id, _)| id).collect())
        };
        let ended_receivers = ids("end-of-subscriber")?;
        let mut ended_senders = HashMap::new();
        for (id, path) in ledger::all(directory, "end-of-publisher")? {
            ended_senders.insert(id, std::fs::read_to_string(path)?.parse()?);
        }
        let mut senders = HashMap::new();
        for (id, path) in ledger::all(directory, "publisher")? {
            let words = ledger::words(&path)?;
            let word = |at: usize| words.get(at).copied().unwrap_or(0);
            let sender = Sender {
                published: word(0),
                begun: word(1),
                dropped: ended_senders.get(&id).copied(),
            };
            senders.insert(id, sender);
        }
        let mut receivers = Vec::new();
        for (id, path) in ledger::all(directory, "subscriber")? {
            let words = ledger::words(&path)?;
            receivers.push(Receiver {
                id,
                runs: words.as_chunks().0.to_vec(),
                is_survivor: ended_receivers.contains(&id),
            });
        }
        Ok(Record {
            senders,
            receivers,
            hostile: ids("hostile")?,
        })
    }

    /// Every subscriber has every message of each publisher, in order, from where they met, but for those that were dropped. Of these there
    /// are no more than their publisher says; and where the oldest ones are, the newest are not among them.
    fn judge_all(&self, rule: &str, wrong: &mut Vec<String>) {
        let mut missing: HashMap<u64, u64> = HashMap::new();
        for receiver in &self.receivers {
            let id = receiver.id;
            let mut next: HashMap<u64, u64> = HashMap::new();
            for [publisher, first, count] in &receiver.runs {
                let expected = next.entry(*publisher).or_insert(*first);
                if first < expected || rule == "all" && first != expected {
                    wrong.push(format!(
                        "{id:016x} has {first} of {publisher:016x}, not {expected}"
                    ));
                }
                *missing.entry(*publisher).or_default() += first.saturating_sub(*expected);
                *expected = first + count;
            }
            for (publisher, next) in next {
                let Some(sender) = self.senders.get(&publisher) else {
                    wrong.extend(
                        (!self.hostile.contains(&publisher))
                            .then(|| format!("{publisher:016x} is unknown")),
                    );
                    continue;
                };
                let Sender {
                    begun, published, ..
                } = sender;
                if next > *begun {
                    wrong.push(format!(
                        "{publisher:016x} began {begun}, and {next} were read"
                    ));
                }
                let may_lack = match rule {
                    "all" => 0,
                    // Nothing older can be taken back where a batch that is not published yet has all the room.
                    "drop-oldest" => u64::from(SLOTS),
                    _ => u64::MAX,
                };
                if receiver.is_survivor && next.saturating_add(may_lack) < *published {
                    wrong.push(format!(
                        "{id:016x} has {next} of {published} of {publisher:016x}"
                    ));
                }
            }
        }
        for (publisher, missing) in missing {
            let sender = self.senders.get(&publisher);
            let dropped = sender.and_then(|sender| sender.dropped);
            if let Some(dropped) = dropped.filter(|dropped| missing > *dropped) {
                wrong.push(format!(
                    "{missing} of {publisher:016x} are missing, which dropped {dropped}"
                ));
            }
        }
    }

    /// Of a group one has each message, but for `may_miss` of one publisher, or, of one that survives, what it says that it has given up.
    fn judge_group(&self, rule: &str, may_miss: u64, wrong: &mut Vec<String>) {
        let redeliver = rule.starts_with("redeliver");
        // Without keys, what a dead member had comes to another one after later messages.
        let in_order = rule != "redeliver";
        for (publisher, sender) in &self.senders {
            let mut times = vec![0_u8; sender.begun as usize];
            for receiver in &self.receivers {
                let mut newest = [None; KEYS as usize];
                let its = receiver
                    .runs
                    .iter()
                    .filter(|[whose, ..]| whose == publisher);
                for number in its.flat_map(|[_, first, count]| *first..first + count) {
                    let (is_again, number) = (number & AGAIN != 0, number & !AGAIN);
                    let Some(times) = times.get_mut(number as usize) else {
                        wrong.push(format!("{publisher:016x} never sent {number}"));
                        continue;
                    };
                    // Twice where nothing is delivered again, or neither of two says so.
                    let is_doubled =
                        *times & 1 != 0 && (!redeliver || !is_again && *times & 2 == 0);
                    if is_doubled || is_again && !redeliver {
                        wrong.push(format!(
                            "{number} of {publisher:016x} was read twice, at last by {:016x}",
                            receiver.id
                        ));
                    }
                    *times |= if is_again { 3 } else { 1 };
                    let newest = &mut newest[(number % KEYS) as usize];
                    if in_order && !is_again && newest.is_some_and(|newest| newest > number) {
                        wrong.push(format!(
                            "{:016x} has {number} of {publisher:016x} after a later one",
                            receiver.id
                        ));
                    }
                    *newest = (*newest).max(Some(number));
                }
            }
            let published = &times[..sender.published as usize];
            let missing = published.iter().filter(|times| **times == 0).count() as u64;
            let allowed = match (sender.dropped, rule) {
                (Some(_), "redeliver" | "redeliver-keyed") => 0,
                (Some(dropped), "once-or-dropped") => dropped,
                // Nobody knows what it has dropped.
                (None, "once-or-dropped") => u64::MAX,
                (dropped, _) => may_miss.min(dropped.unwrap_or(may_miss)),
            };
            if missing > allowed {
                wrong.push(format!(
                    "{missing} of {} of {publisher:016x} are missing, and {allowed} may be",
                    published.len()
                ));
            }
        }
    }
}

/// `rule`: `all` see every message, or those that were not dropped; of a group one does, `once`, or more often where dead members' messages
/// are to `redeliver`; where they have keys, `redeliver-keyed`, in order. `may_miss`: so many of one publisher's messages may have gone to
/// members that were killed; these need not have come so far as to say that they were there. Prints how many messages were read, and how
/// many were given up that these cannot have had.
pub fn judge(directory: &Path, rule: &str, may_miss: u64) -> Result<(), Failure> {
    let record = Record::read(directory)?;
    let mut wrong = Vec::new();
    match rule {
        "all" | "drop-oldest" | "drop-newest" => record.judge_all(rule, &mut wrong),
        _ => record.judge_group(rule, may_miss, &mut wrong),
    }
    let read = record.receivers.iter().flat_map(|receiver| &receiver.runs);
    let read: u64 = read.map(|[_, _, count]| count).sum();
    let senders = record.senders.values();
    let dropped = senders.filter_map(|sender| sender.dropped?.checked_sub(may_miss));
    println!("{read} {}", dropped.sum::<u64>());
    if wrong.is_empty() {
        return Ok(());
    }
    let count = wrong.len();
    wrong.truncate(8);
    Err(format!("{count} findings: {}", wrong.join("; ")).into())
}
