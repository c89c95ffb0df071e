//! What outlives the process: bearers, in a file that is only appended to.
//!
//! A directory has one journal, `bearers.N`, and a lock. A journal is
//!
//! ```text
//!   "MRPPF\0\0\1"                                       8 bytes
//!   length u32 | CRC-32 u32 | kind u8 | number u32 …    each record; the checksum is of what follows it
//!   kind 1   core | radio | gates u8 | more             a bearer is so from now on
//!   kind 2                                              its place is free, and goes on with this number
//!   kind 3   limit | limit                              a user equipment of this number is limited so from now on
//!   kind 4                                              it is no more
//!   side     4, 6, 0x84 or 0x86, u8 | address | TEID u32    0x80: of a user, and without a TEID
//!   more     each thing by its byte, where it is not as it usually is: 1 the user's address of IPv6, 2 and 3 what is done with packets
//!            towards either side (`treated.rs`), 4 thresholds of reports, 5 numbers are handed on, 6 delivery is followed, 7 the
//!            user equipment's number, u32
//! ```
//!
//! in little endian. Changes are appended by one write for each question, before it is answered: a process that is killed at any
//! instruction leaves whole records and perhaps a part of the last ones, of which nobody was told. That is cut off when the journal is
//! read, and what is cut off is kept beside it (`bearers.N.cut`). When most of the journal is of what is no more, a new one with the next
//! number is written, synchronised, and given its name; then the old one is removed. So there is always one that is whole, and of two the
//! one with the higher number counts.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::bearer::BearerId;
use crate::spec::{BearerSpec, UeSpec};
use record::{Record, Records};

mod record;
mod treated;

#[cfg(test)]
mod tests;

const MAGIC: [u8; 8] = *b"MRPPF\0\0\x01";
const NAME: &str = "bearers.";
/// A journal that is shorter is not written anew.
const COMPACT_BYTES_MIN: u64 = 1 << 20;
/// Records are gathered up to so many bytes, and then written.
const WRITE_BYTES: usize = 1 << 20;

/// Why what was asked for is not kept.
#[derive(Debug)]
pub enum StoreError {
    /// Another process has the directory.
    Busy(PathBuf),
    /// It is not of a kind that this program knows.
    Unknown(PathBuf),
    /// It cannot be read or written.
    Io(PathBuf, io::Error),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Busy(path) => {
                write!(f, "another function has the store {}", path.display())
            }
            StoreError::Unknown(path) => write!(
                f,
                "{} is no journal of bearers, or of another version",
                path.display()
            ),
            StoreError::Io(path, error) => write!(f, "the store {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for StoreError {}

/// What a journal says.
#[derive(Debug, Default)]
pub struct Loaded {
    /// By place: its number, and its bearer; a free one goes on with the number.
    places: Vec<Option<(BearerId, Option<BearerSpec>)>>,
    /// Limits of user equipments.
    pub(crate) ues: BTreeMap<u32, UeSpec>,
}

impl Loaded {
    /// Bearers, by their places.
    pub(crate) fn bearers(&self) -> impl Iterator<Item = (BearerId, &BearerSpec)> {
        let places = self.places.iter().flatten();
        places.filter_map(|(id, spec)| Some((*id, spec.as_ref()?)))
    }

    /// The number that each free place goes on with.
    pub(crate) fn free(&self) -> impl Iterator<Item = BearerId> {
        let places = self.places.iter().flatten();
        places.filter_map(|(id, spec)| spec.is_none().then_some(*id))
    }
}

/// A journal that is open.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    number: u64,
    journal: File,
    bytes: u64,
    /// Of what was kept when the journal was last written anew.
    live_bytes: u64,
    is_dirty: bool,
    /// A write failed, and what it left could not be cut off: nothing more is kept.
    is_broken: bool,
    buffer: Vec<u8>,
    loaded: Loaded,
    cut_bytes: u64,
    _lock: Flock<File>,
}

impl Store {
    /// Opens the store of a directory, which is made if it is not there.
    ///
    /// # Errors
    /// When another process has it, or it cannot be read or written.
    pub fn open(directory: &Path) -> Result<Store, StoreError> {
        let failed = |error| StoreError::Io(directory.to_owned(), error);
        let made = DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(directory);
        made.map_err(failed)?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(directory.join("lock"))
            .map_err(failed)?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|_| StoreError::Busy(directory.to_owned()))?;
        let number = newest(directory).map_err(failed)?;
        let (number, journal, found) = match number {
            Some(number) => {
                let path = path_of(directory, number);
                let journal = OpenOptions::new().read(true).write(true).open(&path);
                let journal = journal.map_err(failed)?;
                let found = fs::read(&path).map_err(failed)?;
                (number, journal, found)
            }
            None => (1, begin(directory, 1).map_err(failed)?, MAGIC.to_vec()),
        };
        let Some(rest) = found.strip_prefix(&MAGIC[..]) else {
            return Err(StoreError::Unknown(path_of(directory, number)));
        };
        let mut records = Records::new(rest);
        let (loaded, live_bytes) = replay(&mut records);
        if records.is_unknown() {
            return Err(StoreError::Unknown(path_of(directory, number)));
        }
        let (whole, all) = ((MAGIC.len() + records.at()) as u64, found.len() as u64);
        let mut store = Store {
            directory: directory.to_owned(),
            number,
            journal,
            bytes: whole,
            live_bytes,
            is_dirty: false,
            is_broken: false,
            buffer: Vec::new(),
            loaded,
            cut_bytes: all - whole,
            _lock: lock,
        };
        store.cut(&found[whole as usize..]).map_err(failed)?;
        store.remove_others();
        Ok(store)
    }

    /// What it has, once.
    pub fn take_loaded(&mut self) -> Loaded {
        std::mem::take(&mut self.loaded)
    }

    /// How many bytes were cut off when it was opened.
    #[must_use]
    pub fn cut_bytes(&self) -> u64 {
        self.cut_bytes
    }

    /// Keeps what a killed process has begun beside the journal, and takes it off.
    fn cut(&mut self, rest: &[u8]) -> io::Result<()> {
        if rest.is_empty() {
            return Ok(());
        }
        let beside = format!("{NAME}{}.cut", self.number);
        fs::write(self.directory.join(beside), rest)?;
        self.journal.set_len(self.bytes)
    }

    /// Writes down that bearers are so from now on.
    ///
    /// # Errors
    /// When it cannot be written: then nothing was.
    pub fn append<'a>(
        &mut self,
        bearers: impl IntoIterator<Item = (BearerId, &'a BearerSpec)>,
    ) -> Result<(), StoreError> {
        self.buffer.clear();
        for (id, spec) in bearers {
            Record::Bearer(id, spec).emit(&mut self.buffer);
        }
        self.write()
    }

    /// Writes down that bearers are no more.
    ///
    /// # Errors
    /// As [`Store::append`].
    pub fn append_removed(
        &mut self,
        bearers: impl IntoIterator<Item = BearerId>,
    ) -> Result<(), StoreError> {
        self.buffer.clear();
        for id in bearers {
            Record::<BearerSpec>::Free(id.next()).emit(&mut self.buffer);
        }
        self.write()
    }

    /// Writes down how a user equipment is limited from now on; none: it is no more.
    ///
    /// # Errors
    /// As [`Store::append`].
    pub fn append_ue(&mut self, ue: u32, spec: Option<UeSpec>) -> Result<(), StoreError> {
        self.buffer.clear();
        Record::<BearerSpec>::Ue(ue, spec).emit(&mut self.buffer);
        self.write()
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let failed = |error| StoreError::Io(path_of(&self.directory, self.number), error);
        if self.is_broken {
            let what = "an earlier change could not be written, nor taken back; start again";
            return Err(failed(io::Error::other(what)));
        }
        if self.buffer.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.journal.write_all_at(&self.buffer, self.bytes) {
            // A part of it may be there, and would be cut off at the next start, with all that is behind it.
            self.is_broken = self.journal.set_len(self.bytes).is_err();
            return Err(failed(error));
        }
        self.bytes += self.buffer.len() as u64;
        self.is_dirty = true;
        Ok(())
    }

    /// Whether the journal is mostly of what is no more, for all that is known.
    #[must_use]
    pub fn is_to_compact(&self) -> bool {
        self.bytes > COMPACT_BYTES_MIN.max(2 * self.live_bytes)
    }

    /// Writes a new journal, of bearers and user equipments that there are, and of free places with the number that each goes on with.
    ///
    /// # Errors
    /// When it cannot be written: the old one goes on then.
    pub fn compact(
        &mut self,
        bearers: impl IntoIterator<Item = (BearerId, BearerSpec)>,
        free: impl IntoIterator<Item = BearerId>,
        ues: impl IntoIterator<Item = (u32, UeSpec)>,
    ) -> Result<(), StoreError> {
        let path = path_of(&self.directory, self.number + 1);
        // Not again before there is as much more.
        self.live_bytes = self.bytes;
        let records = bearers
            .into_iter()
            .map(|(id, spec)| Record::Bearer(id, spec));
        let free = free.into_iter().map(Record::Free);
        let ues = ues.into_iter().map(|(ue, spec)| Record::Ue(ue, Some(spec)));
        let written = write_anew(&path, ues.chain(records).chain(free));
        let (journal, bytes) = written.map_err(|error| {
            // Unless its name is there, which is the last thing that is done.
            StoreError::Io(path.clone(), error)
        })?;
        self.journal = journal;
        self.number += 1;
        (self.bytes, self.live_bytes) = (bytes, bytes);
        (self.is_dirty, self.is_broken) = (false, false);
        self.remove_others();
        Ok(())
    }

    /// Has the machine keep what was written.
    ///
    /// # Errors
    /// When it does not.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        if !self.is_dirty {
            return Ok(());
        }
        self.is_dirty = false;
        let synced = self.journal.sync_data();
        synced.map_err(|error| StoreError::Io(path_of(&self.directory, self.number), error))
    }

    /// Removes journals that are not this one, but not what was cut off. What cannot be removed is in nobody's way.
    fn remove_others(&self) {
        let own = path_of(&self.directory, self.number);
        for entry in fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_other = name.starts_with(NAME) && !name.ends_with(".cut");
            if is_other && entry.path() != own {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{NAME}{number}"))
}

/// The highest number of a journal.
fn newest(directory: &Path) -> io::Result<Option<u64>> {
    let mut newest = None;
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let number = name.strip_prefix(NAME).and_then(|rest| rest.parse().ok());
        newest = newest.max(number);
    }
    Ok(newest)
}

/// Makes an empty journal, which has its name when it is whole.
fn begin(directory: &Path, number: u64) -> io::Result<File> {
    let (journal, _) = write_anew(&path_of(directory, number), std::iter::empty())?;
    Ok(journal)
}

fn write_anew(path: &Path, records: impl Iterator<Item = Record>) -> io::Result<(File, u64)> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let mut journal = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)?;
    let mut buffer = MAGIC.to_vec();
    let mut bytes = 0;
    for record in records {
        record.emit(&mut buffer);
        if buffer.len() >= WRITE_BYTES {
            journal.write_all(&buffer)?;
            bytes += buffer.len() as u64;
            buffer.clear();
        }
    }
    journal.write_all(&buffer)?;
    bytes += buffer.len() as u64;
    journal.sync_all()?;
    let directory = path.parent().map(File::open).transpose()?;
    fs::rename(&unfinished, path)?;
    // From now on this journal counts, whatever comes.
    if let Some(Err(error)) = directory.map(|directory| directory.sync_all()) {
        tracing::warn!(
            "the name {} may not survive the machine: {error}",
            path.display()
        );
    }
    Ok((journal, bytes))
}

/// What there is after all records, and how long a journal of it alone is.
fn replay(records: &mut Records<'_>) -> (Loaded, u64) {
    let Loaded {
        mut places,
        mut ues,
    } = Loaded::default();
    // Of the last record of each place.
    let mut lengths: Vec<u16> = Vec::new();
    let mut begin = records.at();
    while let Some(record) = records.next() {
        let bytes = records.at() - begin;
        begin = records.at();
        let (id, spec) = match record {
            Record::Bearer(id, spec) => (id, Some(spec)),
            Record::Free(id) => (id, None),
            Record::Ue(ue, Some(spec)) => {
                ues.insert(ue, spec);
                continue;
            }
            Record::Ue(ue, None) => {
                ues.remove(&ue);
                continue;
            }
        };
        if places.len() <= id.slot() {
            places.resize(id.slot() + 1, None);
            lengths.resize(id.slot() + 1, 0);
        }
        places[id.slot()] = Some((id, spec));
        // Some thousands at most.
        lengths[id.slot()] = bytes as u16;
    }
    let lengths = lengths.into_iter().map(u64::from).sum::<u64>();
    let bytes = (MAGIC.len() + ues.len() * record::UE_BYTES) as u64 + lengths;
    (Loaded { places, ues }, bytes)
}
