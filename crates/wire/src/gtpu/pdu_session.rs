//! What stands in the extension header "PDU Session Container": 3GPP TS 38.415 (release 17), clause 5.5.2.
//!
//! ```text
//!   downlink   kind 0 (4) | QMP SNP MSNP spare   PPP RQI QFI (6)   [PPI (3) spare (5)] [times …]
//!   uplink     kind 1 (4) | QMP DD UD SNP        ND NI QFI (6)     [times …]
//! ```
//!
//! Of the optional fields, which are for measuring delays and losses, only the policy indicator of downlink frames is read. A function that
//! relays a frame hands the others on as they came.

/// Which way a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the user.
    Downlink,
    /// From the user.
    Uplink,
}

/// A frame, as far as it says how a packet is to be treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Which way.
    pub direction: Direction,
    /// QoS flow identifier, 0 to 63.
    pub qfi: u8,
    /// Downlink: the user is to answer with the same QoS (reflective QoS indicator).
    pub reflective: bool,
    /// Downlink: paging policy, 0 to 7.
    pub paging_policy: Option<u8>,
}

/// Bytes of a frame that is written, at most.
pub const FRAME_BYTES_MAX: usize = 6;
/// Of one without a paging policy.
pub const FRAME_BYTES: usize = 2;

const PPP: u8 = 1 << 7;
const RQI: u8 = 1 << 6;
const QFI_MASK: u8 = 0x3f;

impl Frame {
    /// What an extension header's content says. None: it is too short, or of a kind that there is not.
    #[inline]
    #[must_use]
    pub fn parse(content: &[u8]) -> Option<Frame> {
        let &[first, second, ..] = content else {
            return None;
        };
        let direction = match first >> 4 {
            0 => Direction::Downlink,
            1 => Direction::Uplink,
            _ => return None,
        };
        let is_down = direction == Direction::Downlink;
        let paging_policy = match is_down && second & PPP != 0 {
            true => Some(content.get(2)? >> 5),
            false => None,
        };
        Some(Frame {
            direction,
            qfi: second & QFI_MASK,
            reflective: is_down && second & RQI != 0,
            paging_policy,
        })
    }

    /// The content of an extension header, and how many bytes of it count.
    #[inline]
    #[must_use]
    pub fn emit(&self) -> ([u8; FRAME_BYTES_MAX], usize) {
        let mut bytes = [0; FRAME_BYTES_MAX];
        bytes[1] = self.qfi & QFI_MASK;
        match (self.direction, self.paging_policy) {
            (Direction::Uplink, _) => {
                bytes[0] = 1 << 4;
                return (bytes, FRAME_BYTES);
            }
            (Direction::Downlink, policy) => {
                if self.reflective {
                    bytes[1] |= RQI;
                }
                let Some(policy) = policy else {
                    return (bytes, FRAME_BYTES);
                };
                bytes[1] |= PPP;
                bytes[2] = policy << 5;
            }
        }
        (bytes, FRAME_BYTES_MAX)
    }
}
