//! One that scribbles over all memory that it shares with others, while it takes part.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::body::mix;
use crate::ledger;
use crate::{Failure, GLANCE, Order};

/// Memory that is shared with others.
struct Mapping {
    range: String,
    start: u64,
    bytes: u64,
    is_writable: bool,
}

struct Vandal {
    memory: File,
    state: u64,
    mappings: Vec<Mapping>,
    looked_at: Option<Instant>,
}

impl Vandal {
    fn new() -> Result<Vandal, Failure> {
        Ok(Vandal {
            // A way to write to mapped memory that needs no address in the program: the kernel keeps to what the mapping allows.
            memory: File::options()
                .read(true)
                .write(true)
                .open("/proc/self/mem")?,
            state: u64::from(std::process::id()),
            mappings: Vec::new(),
            looked_at: None,
        })
    }

    fn roll(&mut self) -> u64 {
        self.state = mix(self.state);
        self.state
    }

    /// What is mapped now.
    fn look(&mut self) -> Result<(), Failure> {
        if self
            .looked_at
            .is_some_and(|at| at.elapsed() < Duration::from_millis(1))
        {
            return Ok(());
        }
        self.looked_at = Some(Instant::now());
        self.mappings.clear();
        for line in fs::read_to_string("/proc/self/maps")?.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [range, rights, .., name] = words[..] else {
                continue;
            };
            if !line.contains("millrace") || !rights.ends_with('s') || name == "[vvar]" {
                continue;
            }
            let (start, end) = range.split_once('-').ok_or("a range")?;
            let (start, end) = (
                u64::from_str_radix(start, 16)?,
                u64::from_str_radix(end, 16)?,
            );
            self.mappings.push(Mapping {
                range: range.to_owned(),
                start,
                bytes: end - start,
                is_writable: rights.contains('w'),
            });
        }
        Ok(())
    }

    /// Writes anything anywhere; what must not be writable is tried by every way there is.
    fn scribble(&mut self) -> Result<(), Failure> {
        self.look()?;
        for _ in 0..=self.roll() % 4 {
            let (roll, at, word) = (self.roll(), self.roll(), self.roll());
            let Some(mapping) = self
                .mappings
                .get(roll as usize % self.mappings.len().max(1))
            else {
                return Ok(());
            };
            // More often than elsewhere, where rings and counters are.
            let reach = if roll >> 32 & 3 == 0 {
                mapping.bytes
            } else {
                mapping.bytes.min(8192)
            };
            let at = at % (reach - 8);
            let bytes = &word.to_le_bytes()[..1 + (roll >> 40) as usize % 8];
            if mapping.is_writable {
                self.memory.write_all_at(bytes, mapping.start + at)?;
                continue;
            }
            let by_map = format!("/proc/self/map_files/{}", mapping.range);
            let is_changed = self.memory.write_at(bytes, mapping.start + at).is_ok()
                || File::options()
                    .write(true)
                    .open(by_map)
                    .is_ok_and(|file| file.write_at(bytes, at).is_ok());
            if is_changed {
                return Err("what others may only read was written to".into());
            }
        }
        Ok(())
    }
}

pub fn act(order: &Order, role: &str) -> Result<(), Failure> {
    let mut vandal = Vandal::new()?;
    match role {
        "publisher" => {
            let publisher = order.open(|channel| channel.clone().timeout(GLANCE).publisher())?;
            ledger::note_hostile(&order.directory, publisher.id())?;
            while !order.is_stopped() {
                if let Ok(loan) = publisher.loan(vandal.roll() as usize % 4000) {
                    let _ = publisher.push(loan);
                }
                publisher.publish();
                vandal.scribble()?;
            }
        }
        "subscriber" => {
            let subscriber = order.open(millrace_channel::Channel::subscriber)?;
            while !order.is_stopped() {
                let _ = subscriber.receive_until(Some(Instant::now() + GLANCE / 20));
                vandal.scribble()?;
            }
        }
        "client" => {
            let client = order.open(|channel| channel.clone().timeout(GLANCE / 20).client())?;
            while !order.is_stopped() {
                if let Ok(loan) = client.loan(vandal.roll() as usize % 4000) {
                    let _ = client.push(loan, None);
                }
                client.publish();
                vandal.scribble()?;
                let _ = client.pop();
            }
        }
        "server" => {
            let server = order.open(|channel| channel.clone().timeout(GLANCE / 20).server())?;
            ledger::note_hostile(&order.directory, server.id())?;
            while !order.is_stopped() {
                if let Ok(request) = server.receive() {
                    vandal.scribble()?;
                    let _ = request.send(&[7; 100]);
                }
                vandal.scribble()?;
            }
        }
        other => return Err(format!("there is no role {other:?}").into()),
    }
    Ok(())
}
