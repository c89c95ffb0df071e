//! What a front end says, as a state machine without sockets.
//!
//! A front end may say most things at any time; what each needs is in the table. Everything else is *forbidden* and ends the connection:
//! features change what lies in rings, so they cannot change under them, as a ring's size and position cannot; a ring that was never
//! described cannot start; and a message that a feature was not agreed on for would be answered by something that nobody waits for.
//!
//! | message | needs | does |
//! |---|---|---|
//! | GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, GET_MAX_MEM_SLOTS | | answers |
//! | SET_OWNER, RESET_OWNER, SET_VRING_ERR | | nothing |
//! | SET_FEATURES, SET_PROTOCOL_FEATURES | only what was offered, and no ring that runs | |
//! | SET_MEM_TABLE, ADD_MEM_REG, REM_MEM_REG | memory that fits | maps it; rings that run go on in it |
//! | SET_VRING_NUM, SET_VRING_BASE | a ring that does not run | |
//! | SET_VRING_ADDR | | a ring that runs goes on there |
//! | SET_VRING_CALL | an eventfd, or none | |
//! | SET_VRING_KICK | memory, size, place; an eventfd, or none | the ring runs |
//! | SET_VRING_ENABLE | PROTOCOL_FEATURES | packets may pass, or not |
//! | GET_VRING_BASE | | the ring stops; answers where it goes on |
//! | GET_INFLIGHT_FD, SET_INFLIGHT_FD | INFLIGHT_SHMFD | makes, or maps, in-flight memory |

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use millrace_shm::{Mapping, sys as shm_sys};
use millrace_wire::vhost_user::{
    Answer, F_PROTOCOL_FEATURES, Inflight, PROTOCOL_CONFIGURE_MEM_SLOTS, PROTOCOL_INFLIGHT_SHMFD,
    PROTOCOL_MQ, PROTOCOL_REPLY_ACK, Region, Request, VringFd,
};
use millrace_wire::virtio::RING_PACKED;
use nix::sys::epoll::Epoll;

use super::Config;
use super::error::ControlError;
use super::rings::Vring;
use crate::bell::Bell;
use crate::handed::{self, Gifts, Unfit};
use crate::memory::Memory;
use crate::virtio::guest::{self, Guest};
use crate::virtio::inflight::InFlight;

/// Regions of a peer's memory, at most.
const REGIONS_MAX: usize = 64;
/// A region is mapped from the start of its file on. QEMU's two regions of a large guest are in one file, one behind the other; more than
/// twice the memory is nobody's, and would take addresses away from others of this process.
const MAPPED_PER_BYTE: u64 = 2;
const PROTOCOL: u64 =
    PROTOCOL_MQ | PROTOCOL_REPLY_ACK | PROTOCOL_INFLIGHT_SHMFD | PROTOCOL_CONFIGURE_MEM_SLOTS;

/// An answer, with the descriptor that goes with it.
pub(super) type Reply = (Answer, Option<OwnedFd>);

/// What is known of a front end.
#[derive(Debug)]
pub(super) struct Session {
    config: Config,
    epoll: Arc<Epoll>,
    features: u64,
    protocol: u64,
    regions: Vec<guest::Region>,
    guest: Option<Arc<Guest>>,
    inflight: Option<InFlight>,
    pub(super) rings: Vec<Vring>,
}

impl Session {
    pub(super) fn new(config: Config, epoll: &Arc<Epoll>) -> Session {
        let rings = 0..u32::from(config.queue_pairs) * 2;
        Session {
            rings: rings.map(Vring::new).collect(),
            config,
            epoll: epoll.clone(),
            features: 0,
            protocol: 0,
            regions: Vec::new(),
            guest: None,
            inflight: None,
        }
    }

    /// Whether a message may ask for an answer.
    pub(super) fn replies(&self) -> bool {
        self.protocol & PROTOCOL_REPLY_ACK != 0
    }

    /// Does what a message of the front end's asks for.
    pub(super) fn handle(
        &mut self,
        request: &Request,
        gifts: Gifts,
    ) -> Result<Option<Reply>, ControlError> {
        // What comes with REM_MEM_REG is closed, as the document has it.
        if gifts.len() != request.fds() && !matches!(request, Request::RemMemReg(_)) {
            return Err(ControlError::Descriptors(request.name()));
        }
        let mut number = None;
        match request {
            Request::GetFeatures => number = Some(self.config.features()),
            Request::GetProtocolFeatures => number = Some(PROTOCOL),
            Request::GetQueueNum => number = Some(u64::from(self.config.queue_pairs)),
            Request::GetMaxMemSlots => number = Some(REGIONS_MAX as u64),
            Request::SetOwner | Request::ResetOwner | Request::SetVringErr(_) => {}
            Request::SetFeatures(features) => self.handle_set_features(*features)?,
            Request::SetProtocolFeatures(features) => {
                if features & !PROTOCOL != 0 {
                    return Err(ControlError::Features(*features));
                }
                self.protocol = *features;
            }
            Request::SetMemTable(table) => self.handle_set_mem_table(table.regions(), &gifts)?,
            Request::AddMemReg(region) => self.handle_add_mem_reg(request, region, &gifts)?,
            Request::RemMemReg(region) => self.handle_rem_mem_reg(request, region)?,
            Request::SetVringNum(state) => self.ring(state.index)?.set_size(state.number)?,
            Request::SetVringBase(state) => self.ring(state.index)?.set_base(state.number)?,
            Request::SetVringAddr(address) => {
                self.ring(address.index)?.set_address(*address);
                if self.ring(address.index)?.end.is_some() {
                    self.start(address.index)?;
                }
            }
            Request::SetVringCall(ring) => {
                let call = self.handed_bell(*ring, gifts)?;
                self.ring(u32::from(ring.index))?.set_call(call);
            }
            Request::SetVringKick(ring) => {
                let kick = self.handed_bell(*ring, gifts)?;
                let kick = kick.map(|kick| Bell::new(kick, &self.epoll));
                let kick = kick.transpose().map_err(ControlError::Map)?;
                let index = u32::from(ring.index);
                self.start(index)?;
                self.ring(index)?.set_kick(kick);
            }
            Request::SetVringEnable(state) => {
                self.ring(state.index)?.is_enabled = state.number != 0;
            }
            Request::GetVringBase(state) => {
                let mut state = *state;
                state.number = self.ring(state.index)?.stop();
                return Ok(Some((Answer::State(state), None)));
            }
            Request::GetInflightFd(wanted) => return self.handle_get_inflight(wanted).map(Some),
            Request::SetInflightFd(inflight) => self.handle_set_inflight(inflight, &gifts)?,
        }
        Ok(number.map(|number| (Answer::Number(number), None)))
    }

    fn ring(&mut self, index: u32) -> Result<&mut Vring, ControlError> {
        self.rings
            .get_mut(index as usize)
            .ok_or(ControlError::Queue(index))
    }

    fn handle_set_features(&mut self, features: u64) -> Result<(), ControlError> {
        if features & !self.config.features() != 0 {
            return Err(ControlError::Features(features));
        }
        let runs = self.rings.iter().any(|ring| ring.end.is_some());
        if runs && features != self.features {
            return Err(ControlError::Unexpected("SET_FEATURES"));
        }
        self.features = features;
        // Who does not enable rings one by one has them enabled.
        if features & F_PROTOCOL_FEATURES == 0 {
            for ring in &mut self.rings {
                ring.is_enabled = true;
            }
        }
        Ok(())
    }

    /// An eventfd for a ring, or none where the driver polls.
    fn handed_bell(
        &mut self,
        ring: VringFd,
        mut gifts: Gifts,
    ) -> Result<Option<OwnedFd>, ControlError> {
        let index = u32::from(ring.index);
        self.ring(index)?;
        match gifts.first() {
            None => Ok(None),
            Some(fd) if handed::is_eventfd(fd) => Ok(gifts.take_first()),
            Some(_) => Err(ControlError::Ring {
                index,
                what: "came with a descriptor that is no eventfd",
            }),
        }
    }

    fn start(&mut self, index: u32) -> Result<(), ControlError> {
        let ring = self.rings.get_mut(index as usize);
        let ring = ring.ok_or(ControlError::Queue(index))?;
        ring.start(self.guest.as_ref(), self.features, self.inflight.as_ref())
    }

    fn handle_set_mem_table(
        &mut self,
        regions: &[Region],
        gifts: &Gifts,
    ) -> Result<(), ControlError> {
        self.regions.clear();
        for (region, fd) in regions.iter().zip(gifts.iter()) {
            self.add_region(region, fd)?;
        }
        self.renew()
    }

    fn handle_add_mem_reg(
        &mut self,
        request: &Request,
        region: &Region,
        gifts: &Gifts,
    ) -> Result<(), ControlError> {
        if self.protocol & PROTOCOL_CONFIGURE_MEM_SLOTS == 0 || self.regions.len() >= REGIONS_MAX {
            return Err(ControlError::Unexpected(request.name()));
        }
        for fd in gifts.iter() {
            self.add_region(region, fd)?;
        }
        self.renew()
    }

    fn handle_rem_mem_reg(
        &mut self,
        request: &Request,
        region: &Region,
    ) -> Result<(), ControlError> {
        let is_it = |own: &guest::Region| {
            (own.guest, own.user, own.bytes) == (region.guest, region.user, region.bytes)
        };
        let found = self.regions.iter().position(is_it);
        let found = found.ok_or(ControlError::Unexpected(request.name()))?;
        self.regions.remove(found);
        self.renew()
    }

    fn add_region(&mut self, region: &Region, fd: BorrowedFd<'_>) -> Result<(), ControlError> {
        let Region {
            guest,
            user,
            bytes,
            offset,
        } = *region;
        let wrong = ControlError::Region { guest, bytes };
        let has_room = |begin: u64, own: fn(&guest::Region) -> u64| {
            let end = begin.checked_add(bytes);
            end.is_some_and(|end| {
                let overlaps =
                    |other: &guest::Region| begin < own(other) + other.bytes && own(other) < end;
                !self.regions.iter().any(overlaps)
            })
        };
        let total: u64 = self.regions.iter().map(|region| region.bytes).sum();
        let most = self.config.memory_bytes_max;
        if bytes > most.saturating_sub(total) {
            return Err(ControlError::Memory { bytes, most });
        }
        if bytes == 0
            || !has_room(guest, |region| region.guest)
            || !has_room(user, |region| region.user)
        {
            return Err(wrong);
        }
        let others: u64 = self
            .regions
            .iter()
            .map(|region| region.mapping.bytes() as u64)
            .sum();
        let left = most.saturating_mul(MAPPED_PER_BYTE).saturating_sub(others);
        let mapped = offset.checked_add(bytes);
        let mapped = mapped.filter(|end| *end <= most.min(left));
        let Some(mapped) = mapped else {
            return Err(wrong);
        };
        let mapping = map(fd, mapped, self.config.accept_unsealed, wrong)?;
        self.regions.push(guest::Region {
            guest,
            user,
            bytes,
            mapping: Arc::new(mapping),
            offset: offset as usize,
        });
        Ok(())
    }

    /// Rings that run go on in the memory as it is now.
    fn renew(&mut self) -> Result<(), ControlError> {
        self.guest = Some(Arc::new(Guest::new(&self.regions)));
        let running = (0..)
            .zip(&self.rings)
            .filter(|(_, ring)| ring.end.is_some());
        let running: Vec<u32> = running.map(|(index, _)| index).collect();
        running.into_iter().try_for_each(|index| self.start(index))
    }

    fn is_packed(&self) -> bool {
        self.features & RING_PACKED != 0
    }

    fn handle_get_inflight(&mut self, wanted: &Inflight) -> Result<Reply, ControlError> {
        let bytes = InFlight::bytes(wanted.queues, wanted.size, self.is_packed());
        if self.protocol & PROTOCOL_INFLIGHT_SHMFD == 0
            || bytes == 0
            || usize::from(wanted.queues) > self.rings.len()
        {
            return Err(ControlError::Unexpected("GET_INFLIGHT_FD"));
        }
        let fd = shm_sys::create_sealed(c"millrace-inflight", bytes, 0);
        let answer = Inflight {
            bytes: bytes as u64,
            offset: 0,
            ..*wanted
        };
        let fd = fd.map_err(ControlError::Map)?;
        Ok((Answer::Inflight(answer), Some(fd)))
    }

    fn handle_set_inflight(
        &mut self,
        inflight: &Inflight,
        gifts: &Gifts,
    ) -> Result<(), ControlError> {
        if self.protocol & PROTOCOL_INFLIGHT_SHMFD == 0 {
            return Err(ControlError::Unexpected("SET_INFLIGHT_FD"));
        }
        let end = inflight.offset.checked_add(inflight.bytes);
        let end = end
            .filter(|end| *end <= self.config.memory_bytes_max.min(u32::MAX.into()))
            .ok_or(ControlError::InFlight)?;
        for fd in gifts.iter() {
            let mapping = map(fd, end, self.config.accept_unsealed, ControlError::InFlight)?;
            let memory = Arc::new(Memory::new(vec![mapping]));
            let (offset, queues) = (inflight.offset as u32, inflight.queues);
            let made = InFlight::new(memory, offset, queues, inflight.size, self.is_packed());
            self.inflight = Some(made.ok_or(ControlError::InFlight)?);
        }
        Ok(())
    }
}

/// Maps memory of a front end's, up to so many bytes. `wrong`: what is said when it has less.
fn map(
    fd: BorrowedFd<'_>,
    bytes: u64,
    accept_unsealed: bool,
    wrong: ControlError,
) -> Result<Mapping, ControlError> {
    match handed::check_memory(fd, bytes, accept_unsealed) {
        Ok(()) => {}
        Err(Unfit::NotSealed) => return Err(ControlError::NotSealed),
        Err(Unfit::Small) => return Err(wrong),
        Err(Unfit::Io(error)) => return Err(ControlError::Map(error)),
    }
    let bytes = usize::try_from(bytes).map_err(|_| wrong)?;
    Mapping::new(fd, bytes).map_err(ControlError::Map)
}
