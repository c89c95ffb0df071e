//! Memory that the agent hands out, and the knowledge of when it is really gone.
//!
//! A client that says it is done with a segment may still have it mapped, so quotas do not rest on what clients say. An inotify
//! watch on each memfd reports `IN_DELETE_SELF` when its last mapping and descriptor have gone, in whatever process they
//! were. That is also how the agent learns, without asking anybody, that a connection has left the ring.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use millrace_shm::{board, segment};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::stat::{Mode, fchmod};

use crate::config::QuotaConfig;
use crate::quota::{Payer, Quota};
use crate::tenant::Tenant;

mod channels;

pub(crate) use channels::LinkMemory;

/// What a segment costs before its rings grow.
const SEGMENT_BYTES: u64 = segment::HEADER_BYTES as u64;

/// What a watched memory was for, or the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charge {
    Board {
        tenant: Tenant,
    },
    Answer {
        tenant: Tenant,
        bytes: u64,
    },
    Segment {
        connection_id: u64,
        payers: [Payer; 2],
    },
    Pool {
        tenant: Tenant,
        bytes: u64,
    },
    Link {
        payers: [Payer; 2],
        bytes: u64,
    },
    /// Nothing: a socket of the agent. It is watched with the rest, as a user may have few descriptors for that.
    Place,
}

/// Why there is no memory for somebody.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A limit of the configuration.
    Quota,
    /// No descriptor is left.
    NoDescriptor,
    /// The kernel refuses.
    NoMemory(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Refusal::NoDescriptor,
            _ => Refusal::NoMemory(error),
        }
    }
}

/// Makes memory, charges it, and gives the charge back when the memory is gone.
#[derive(Debug)]
pub(crate) struct Segments {
    inotify: Inotify,
    charges: HashMap<WatchDescriptor, Charge>,
    /// What rings have grown by, of each connection: users and bytes.
    growths: HashMap<u64, Vec<(Tenant, u64)>>,
    quota: Quota,
    /// Memory of channels has come back.
    freed_channels: bool,
    /// A socket of the agent may have gone.
    lost_place: bool,
    /// Sizes of a ring that has grown, in rising order; the last is that of the whole ring.
    steps: [u32; 2],
}

impl Segments {
    pub(crate) fn new(limits: QuotaConfig, steps: [u32; 2]) -> io::Result<Segments> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let bytes_limit = limits
            .bytes_total
            .unwrap_or_else(|| crate::memory::bytes() / 4);
        Ok(Segments {
            inotify,
            charges: HashMap::new(),
            growths: HashMap::new(),
            quota: Quota::new(limits, bytes_limit),
            freed_channels: false,
            lost_place: false,
            steps,
        })
    }

    /// Readable when memory has gone; then call [`Segments::handle_gone`].
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// A connection that has not said hello. `false`: its tenant has too many of these.
    #[must_use]
    pub(crate) fn take_silent(&mut self, tenant: Tenant) -> bool {
        self.quota.take_silent(tenant)
    }

    /// It has said hello, or is gone.
    pub(crate) fn give_back_silent(&mut self, tenant: Tenant) {
        self.quota.give_back_silent(tenant);
    }

    /// A client's board of `rows` rows.
    pub(crate) fn create_board(&mut self, tenant: Tenant, rows: u32) -> Result<OwnedFd, Refusal> {
        if !self.quota.take_client(tenant) {
            return Err(Refusal::Quota);
        }
        let made = board::create(rows).map_err(Refusal::from).and_then(|fd| {
            self.watch(fd.as_fd(), Charge::Board { tenant })?;
            Ok(fd)
        });
        if made.is_err() {
            self.quota.give_back_client(tenant);
        }
        made
    }

    /// Charges an answer to who has asked, for as long as its memory is there.
    pub(crate) fn charge_answer(
        &mut self,
        answer: BorrowedFd<'_>,
        tenant: Tenant,
        bytes: u64,
    ) -> Result<(), Refusal> {
        if !self.quota.take_bytes(tenant, bytes) {
            return Err(Refusal::Quota);
        }
        let watched = self.watch(answer, Charge::Answer { tenant, bytes });
        if watched.is_err() {
            self.quota.give_back_bytes(tenant, bytes);
        }
        watched
    }

    /// A connection's segment.
    pub(crate) fn create_segment(
        &mut self,
        connection_id: u64,
        payers: [Payer; 2],
    ) -> Result<OwnedFd, Refusal> {
        if !self.quota.take_segment(payers, SEGMENT_BYTES) {
            return Err(Refusal::Quota);
        }
        let made = segment::create(self.ring_bytes())
            .map_err(Refusal::from)
            .and_then(|fd| {
                self.watch(
                    fd.as_fd(),
                    Charge::Segment {
                        connection_id,
                        payers,
                    },
                )?;
                Ok(fd)
            });
        if made.is_err() {
            self.quota.give_back_segment(payers, SEGMENT_BYTES);
        }
        made
    }

    /// Size of each direction's large ring.
    pub(crate) fn ring_bytes(&self) -> u32 {
        self.steps[1]
    }

    /// What a ring grows to of which `granted` bytes are allocated.
    pub(crate) fn next_step(&self, granted: u32) -> Option<u32> {
        self.steps.into_iter().find(|step| *step > granted)
    }

    /// Charges what a ring grows by. `false`: a limit is reached, and nothing is charged.
    #[must_use]
    pub(crate) fn charge_growth(&mut self, connection_id: u64, payer: Payer, bytes: u64) -> bool {
        let charged = self.quota.take_bytes(payer.tenant, bytes);
        if charged {
            let growths = self.growths.entry(connection_id).or_default();
            growths.push((payer.tenant, bytes));
        }
        charged
    }

    /// Gives back the last charge for growth: there was no memory for it.
    pub(crate) fn undo_growth(&mut self, connection_id: u64) {
        let last = self.growths.get_mut(&connection_id).and_then(Vec::pop);
        if let Some((tenant, bytes)) = last {
            self.quota.give_back_bytes(tenant, bytes);
        }
    }

    /// Bytes of segments that exist, and how many there may be.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.quota.bytes(), self.quota.bytes_limit())
    }

    /// Watches memory, and keeps in mind what is given back when it has gone.
    fn watch(&mut self, fd: BorrowedFd<'_>, charge: Charge) -> Result<(), Refusal> {
        let watch = self.add_watch(fd)?;
        self.charges.insert(watch, charge);
        Ok(())
    }

    /// Watches a socket of the agent, until it is told of once.
    pub(crate) fn watch_place(&mut self, path: &Path) {
        // The inode stays with the listener, and has one name less.
        let goes = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MOVE_SELF;
        if let Ok(watch) = self.inotify.add_watch(path, goes) {
            self.charges.insert(watch, Charge::Place);
        }
    }

    /// Whether a socket of the agent may have gone since the last call.
    pub(crate) fn has_lost_place(&mut self) -> bool {
        std::mem::take(&mut self.lost_place)
    }

    fn add_watch(&self, fd: BorrowedFd<'_>) -> Result<WatchDescriptor, Refusal> {
        // The memory has no mode bits; a watch needs one for a moment, unless the agent is root.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        fchmod(fd, Mode::S_IRUSR).map_err(io::Error::from)?;
        let watch = self
            .inotify
            .add_watch(path.as_str(), AddWatchFlags::IN_DELETE_SELF);
        fchmod(fd, Mode::empty()).map_err(io::Error::from)?;
        watch.map_err(|errno| match errno {
            // The user's limit of watches: fs.inotify.max_user_watches.
            Errno::ENOSPC => Refusal::Quota,
            errno => io::Error::from(errno).into(),
        })
    }

    /// Gives back what has gone since the last call; returns the connections that have left the ring.
    pub(crate) fn handle_gone(&mut self) -> Vec<u64> {
        let mut gone = Vec::new();
        // Anything but a list of events: there are no more.
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    self.recount(&mut gone);
                } else if let Some(charge) = self.charges.remove(&event.wd) {
                    self.give_back(charge, &mut gone);
                }
            }
        }
        gone
    }

    fn give_back(&mut self, charge: Charge, gone: &mut Vec<u64>) {
        match charge {
            Charge::Board { tenant } => self.quota.give_back_client(tenant),
            Charge::Answer { tenant, bytes } => self.quota.give_back_bytes(tenant, bytes),
            Charge::Segment {
                connection_id,
                payers,
            } => {
                self.quota.give_back_segment(payers, SEGMENT_BYTES);
                for (tenant, bytes) in self.growths.remove(&connection_id).unwrap_or_default() {
                    self.quota.give_back_bytes(tenant, bytes);
                }
                gone.push(connection_id);
            }
            Charge::Pool { .. } | Charge::Link { .. } => self.handle_channel_gone(&charge),
            Charge::Place => self.lost_place = true,
        }
    }

    /// Events were lost: the kernel's list of this instance's watches says what is still there.
    fn recount(&mut self, gone: &mut Vec<u64>) {
        let path = format!("/proc/self/fdinfo/{}", self.inotify.as_fd().as_raw_fd());
        let Ok(text) = std::fs::read_to_string(path) else {
            return;
        };
        let alive: std::collections::HashSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("inotify wd:")?.split(' ').next())
            .map(str::to_owned)
            .collect();
        let lost: Vec<WatchDescriptor> = self
            .charges
            .keys()
            .filter(|watch| !alive.contains(&watch_number(**watch)))
            .copied()
            .collect();
        for watch in lost {
            if let Some(charge) = self.charges.remove(&watch) {
                self.give_back(charge, gone);
            }
        }
    }
}

/// As `/proc/PID/fdinfo` writes it.
fn watch_number(watch: WatchDescriptor) -> String {
    format!("{:x}", watch.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offers::ClientId;

    const PAYERS: [Payer; 2] = [
        Payer {
            client: ClientId(1),
            tenant: Tenant::User(1),
        },
        Payer {
            client: ClientId(2),
            tenant: Tenant::User(2),
        },
    ];

    /// Waits for this many connections to leave: another test's child holds copies between its fork and its exec.
    fn gone(segments: &mut Segments, count: usize) -> Vec<u64> {
        let mut gone = Vec::new();
        while gone.len() < count {
            gone.extend(segments.handle_gone());
            std::thread::yield_now();
        }
        gone
    }

    #[test]
    fn memory_is_charged_until_its_last_mapping_is_gone() {
        let limits = QuotaConfig {
            ends_per_tenant: 1,
            clients_per_tenant: 1,
            ..QuotaConfig::default()
        };
        let mut segments = Segments::new(limits, [4096, 65_536]).unwrap();
        let fd = segments.create_segment(7, PAYERS).unwrap();
        assert!(segments.charge_growth(7, PAYERS[0], 60_000));
        assert_eq!(segments.bytes().0, SEGMENT_BYTES + 60_000);
        assert!(matches!(
            segments.create_segment(8, PAYERS),
            Err(Refusal::Quota)
        ));

        let mapped = millrace_shm::segment::Segment::attach(fd.as_fd(), 65_536).unwrap();
        drop(fd);
        assert!(segments.handle_gone().is_empty(), "a mapping is left");
        drop(mapped);
        assert_eq!(gone(&mut segments, 1), [7]);
        assert_eq!(segments.bytes().0, 0);

        let answer = segment::create(65_536).unwrap();
        let charged = segments.charge_answer(answer.as_fd(), PAYERS[0].tenant, 5000);
        assert!(charged.is_ok() && segments.bytes().0 == 5000);
        drop(answer);
        while segments.bytes().0 != 0 {
            segments.handle_gone();
        }
        drop(segments.create_segment(8, PAYERS).unwrap());

        let board = segments.create_board(PAYERS[0].tenant, 16).unwrap();
        assert!(matches!(
            segments.create_board(PAYERS[0].tenant, 16),
            Err(Refusal::Quota)
        ));
        assert_eq!(gone(&mut segments, 1), [8]);
        drop(board);
        while segments.create_board(PAYERS[0].tenant, 16).is_err() {
            segments.handle_gone();
        }
    }

    #[test]
    fn lost_events_are_made_up_for() {
        let mut segments = Segments::new(QuotaConfig::default(), [4096, 4096]).unwrap();
        let kept = segments.create_segment(1, PAYERS).unwrap();
        for connection_id in 2..40 {
            drop(segments.create_segment(connection_id, PAYERS).unwrap());
        }
        let mut lost = Vec::new();
        while lost.len() < 38 {
            segments.recount(&mut lost);
        }
        lost.sort_unstable();
        assert_eq!(lost, (2..40).collect::<Vec<_>>());
        drop(kept);
        assert_eq!(gone(&mut segments, 1), [1]);
    }
}
