//! How a back end is made to be the device, as a state machine without sockets.
//!
//! | state | on | says | becomes |
//! |---|---|---|---|
//! | | | SET_OWNER, GET_FEATURES | `Features` |
//! | `Features` | features | GET_PROTOCOL_FEATURES, if there are some | `ProtocolFeatures`, or as after `QueueNum` |
//! | `ProtocolFeatures` | features | SET_PROTOCOL_FEATURES, GET_QUEUE_NUM | `QueueNum` |
//! | `QueueNum` | a number | SET_FEATURES, GET_INFLIGHT_FD where there is none yet | `InFlight`, or as after it |
//! | `InFlight` | memory | SET_INFLIGHT_FD, SET_MEM_TABLE | `Memory` |
//! | `Memory` | success | all of each ring | `Rings` |
//! | `Rings` | success | | connected |
//!
//! Where the back end does not answer for success, nobody waits for it. Any other answer is *forbidden* and ends the connection: it would
//! be one to something else, and all after it as well.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use millrace_wire::vhost_user::{
    Answer, F_PROTOCOL_FEATURES, Inflight, PROTOCOL_INFLIGHT_SHMFD, PROTOCOL_MQ,
    PROTOCOL_REPLY_ACK, Request, Table, VringFd, VringState,
};
use nix::sys::epoll::Epoll;

use super::Config;
use super::device::Device;
use crate::handed::Gifts;
use crate::port::Closed;
use crate::vhost_user::{ControlError, Stream};

const PROTOCOL: u64 = PROTOCOL_MQ | PROTOCOL_REPLY_ACK | PROTOCOL_INFLIGHT_SHMFD;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Features,
    ProtocolFeatures,
    QueueNum,
    InFlight,
    Memory,
    Rings,
    Nothing,
}

/// A connection that is being made.
#[derive(Debug)]
pub(super) struct Maker {
    wait: Wait,
    features: u64,
    protocol: u64,
    pairs: u16,
}

/// Where messages go.
pub(super) struct To<'a> {
    pub(super) config: &'a Config,
    pub(super) stream: &'a Stream,
    pub(super) epoll: &'a Arc<Epoll>,
    pub(super) device: &'a mut Option<Device>,
}

impl To<'_> {
    fn say(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), Closed> {
        self.stream.send(&request.emit(false), fds)
    }

    fn device(&self) -> Result<&Device, Closed> {
        let none = Closed::VhostUser(ControlError::Unexpected("an answer"));
        self.device.as_ref().ok_or(none)
    }
}

impl Maker {
    pub(super) fn begin(stream: &Stream) -> Result<Maker, Closed> {
        stream.send(&Request::SetOwner.emit(false), &[])?;
        stream.send(&Request::GetFeatures.emit(false), &[])?;
        Ok(Maker {
            wait: Wait::Features,
            features: 0,
            protocol: 0,
            pairs: 1,
        })
    }

    /// Whether packets may pass.
    pub(super) fn is_done(&self) -> bool {
        self.wait == Wait::Nothing
    }

    /// The request whose answer is waited for.
    fn awaited(&self) -> Option<Request> {
        let state = VringState::default();
        Some(match self.wait {
            Wait::Features => Request::GetFeatures,
            Wait::ProtocolFeatures => Request::GetProtocolFeatures,
            Wait::QueueNum => Request::GetQueueNum,
            Wait::InFlight => Request::GetInflightFd(Inflight::default()),
            Wait::Memory => Request::SetMemTable(Table::default()),
            Wait::Rings if self.has_protocol() => Request::SetVringEnable(state),
            Wait::Rings | Wait::Nothing => return None,
        })
    }

    fn has_protocol(&self) -> bool {
        self.features & F_PROTOCOL_FEATURES != 0
    }

    fn has(&self, feature: u64) -> bool {
        self.protocol & feature != 0
    }

    /// Goes on after an answer to the request of this number.
    pub(super) fn handle(
        &mut self,
        number: u32,
        answer: Answer,
        mut gifts: Gifts,
        mut to: To<'_>,
    ) -> Result<(), Closed> {
        let awaited = self.awaited();
        let unexpected = Closed::VhostUser(ControlError::Unexpected("an answer"));
        let Some(awaited) = awaited.filter(|awaited| awaited.number() == number) else {
            return Err(unexpected);
        };
        match (self.wait, answer) {
            (Wait::Features, Answer::Number(features)) => {
                self.features = features & to.config.features();
                if self.has_protocol() {
                    to.say(&Request::GetProtocolFeatures, &[])?;
                    self.wait = Wait::ProtocolFeatures;
                    return Ok(());
                }
                self.arrange(&mut to)
            }
            (Wait::ProtocolFeatures, Answer::Number(features)) => {
                self.protocol = features & PROTOCOL;
                to.say(&Request::SetProtocolFeatures(self.protocol), &[])?;
                if self.has(PROTOCOL_MQ) && to.config.queue_pairs > 1 {
                    to.say(&Request::GetQueueNum, &[])?;
                    self.wait = Wait::QueueNum;
                    return Ok(());
                }
                self.arrange(&mut to)
            }
            (Wait::QueueNum, Answer::Number(most)) => {
                let most = u16::try_from(most).unwrap_or(u16::MAX).max(1);
                self.pairs = to.config.queue_pairs.min(most);
                self.arrange(&mut to)
            }
            (Wait::InFlight, Answer::Inflight(inflight)) => {
                gifts.keep_first();
                let missing = ControlError::Descriptors("GET_INFLIGHT_FD");
                gifts.first().ok_or(Closed::VhostUser(missing))?;
                if let Some(device) = to.device {
                    device.inflight = Some((inflight, gifts));
                }
                self.share(&to)
            }
            (Wait::Memory, Answer::Number(0)) => self.run(&to),
            (Wait::Rings, Answer::Number(0)) => {
                self.wait = Wait::Nothing;
                Ok(())
            }
            _ => Err(Closed::VhostUser(ControlError::Refused(awaited.name()))),
        }
    }

    /// Features are known: a device that fits, the one that there was if it does.
    fn arrange(&mut self, to: &mut To<'_>) -> Result<(), Closed> {
        let has_inflight = self.has(PROTOCOL_INFLIGHT_SHMFD);
        let fits = |device: &Device| device.is_good_for(self.features, self.pairs, has_inflight);
        if !to.device.as_ref().is_some_and(fits) {
            let made = Device::new(to.config, self.features, self.pairs, to.epoll);
            *to.device = Some(made.map_err(Closed::Io)?);
        }
        to.say(&Request::SetFeatures(self.features), &[])?;
        let device = to.device()?;
        if has_inflight && device.inflight.is_none() {
            let wanted = Inflight {
                queues: self.pairs * 2,
                size: device.size,
                ..Inflight::default()
            };
            to.say(&Request::GetInflightFd(wanted), &[])?;
            self.wait = Wait::InFlight;
            return Ok(());
        }
        self.share(to)
    }

    fn share(&mut self, to: &To<'_>) -> Result<(), Closed> {
        let device = to.device()?;
        if let (true, Some((inflight, memory))) =
            (self.has(PROTOCOL_INFLIGHT_SHMFD), &device.inflight)
        {
            let memory: Vec<_> = memory.first().into_iter().collect();
            to.say(&Request::SetInflightFd(*inflight), &memory)?;
        }
        let table = Table::new(&[device.region]).unwrap_or_default();
        let request = Request::SetMemTable(table);
        let waits = self.has(PROTOCOL_REPLY_ACK);
        to.stream
            .send(&request.emit(waits), &[device.memory.as_fd()])?;
        if waits {
            self.wait = Wait::Memory;
            return Ok(());
        }
        self.run(to)
    }

    fn run(&mut self, to: &To<'_>) -> Result<(), Closed> {
        let device = to.device()?;
        let rings = device.bells.len();
        for (ring, bells) in device.bells.iter().enumerate() {
            // Fewer than 256.
            let index = ring as u32;
            let state = |number| VringState { index, number };
            let with_fd = VringFd {
                index: ring as u8,
                has_fd: true,
            };
            to.say(&Request::SetVringCall(with_fd), &[bells.call.as_fd()])?;
            to.say(&Request::SetVringNum(state(u32::from(device.size))), &[])?;
            to.say(&Request::SetVringBase(state(device.base(ring))), &[])?;
            to.say(&Request::SetVringAddr(device.address(ring)), &[])?;
            to.say(&Request::SetVringKick(with_fd), &[bells.kick.as_fd()])?;
        }
        self.wait = Wait::Nothing;
        if !self.has_protocol() {
            return Ok(());
        }
        for ring in 0..rings {
            let enable = Request::SetVringEnable(VringState {
                index: ring as u32,
                number: 1,
            });
            let waits = self.has(PROTOCOL_REPLY_ACK) && ring + 1 == rings;
            to.stream.send(&enable.emit(waits), &[])?;
            if waits {
                self.wait = Wait::Rings;
            }
        }
        Ok(())
    }
}
