//! What participants write down, each in a file of its own below `DIRECTORY/ledger`, before they do what cannot be undone.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Set in a record's number where the message said that it was delivered again.
pub const AGAIN: u64 = 1 << 63;

fn path(directory: &Path, kind: &str, id: u64) -> PathBuf {
    directory.join(format!("ledger/{kind}-{id:016x}"))
}

/// How far a publisher is.
pub struct Sent(File);

impl Sent {
    pub fn create(directory: &Path, id: u64) -> io::Result<Sent> {
        File::create(path(directory, "publisher", id)).map(Sent)
    }

    /// All numbers below `published` have been published, all from `begun` on have not.
    pub fn note(&self, published: u64, begun: u64) -> io::Result<()> {
        let mut record = published.to_le_bytes().to_vec();
        record.extend(begun.to_le_bytes());
        self.0.write_all_at(&record, 0)
    }
}

/// What a subscriber has read.
pub struct Read {
    file: File,
    /// Of one publisher: the first number with its mark, and how many.
    runs: Vec<[u64; 3]>,
}

impl Read {
    pub fn create(directory: &Path, id: u64) -> io::Result<Read> {
        let file = File::create(path(directory, "subscriber", id))?;
        let runs = Vec::new();
        Ok(Read { file, runs })
    }

    pub fn add(&mut self, publisher: u64, number: u64, is_again: bool) {
        let first = number | if is_again { AGAIN } else { 0 };
        match self.runs.last_mut() {
            Some([whose, begin, count]) if *whose == publisher && *begin + *count == first => {
                *count += 1
            }
            _ => self.runs.push([publisher, first, 1]),
        }
    }

    /// After that, what was read may be given back.
    pub fn write(&mut self) -> io::Result<()> {
        let bytes: Vec<u8> = self
            .runs
            .drain(..)
            .flatten()
            .flat_map(u64::to_le_bytes)
            .collect();
        self.file.write_all(&bytes)
    }
}

/// Somebody has come to his end in good order, and says how it went.
pub fn note_end(directory: &Path, kind: &str, id: u64, words: &str) -> io::Result<()> {
    fs::write(path(directory, &format!("end-of-{kind}"), id), words)
}

/// What this participant sends is not to be believed.
pub fn note_hostile(directory: &Path, id: u64) -> io::Result<()> {
    fs::write(path(directory, "hostile", id), "")
}

pub fn is_hostile(directory: &Path, id: u64) -> bool {
    path(directory, "hostile", id).exists()
}

/// Files of a kind, with their ids.
pub fn all(directory: &Path, kind: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory.join("ledger"))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let id = name
            .strip_prefix(kind)
            .and_then(|rest| rest.strip_prefix('-'));
        if let Some(id) = id.and_then(|id| u64::from_str_radix(id, 16).ok()) {
            found.push((id, path));
        }
    }
    Ok(found)
}

/// Words of a file, as far as they are whole.
pub fn words(path: &Path) -> io::Result<Vec<u64>> {
    let bytes = fs::read(path)?;
    let words = bytes
        .chunks_exact(8)
        .map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    Ok(words.collect())
}
