//! The tag that a packet leaves with.

use millrace_port::{Burst, Offload, PACKET_BYTES_MAX, Packet};

use crate::counters::Cause;
use crate::offload;
use crate::parse::{TAG_AT, TAG_BYTES, TYPE_VLAN, VLAN_MASK};
use crate::vlan::Edit;

/// By how much what is behind the tag moves.
fn moved(edit: Edit) -> i32 {
    match edit {
        Edit::Keep | Edit::Set(_) => 0,
        Edit::Pop => -(TAG_BYTES as i32),
        Edit::Push(_) => TAG_BYTES as i32,
    }
}

/// What a packet leaves to others to do once its tag is changed. Asked before it is put into a burst: what is there cannot be taken back.
///
/// # Errors
/// Why the tag cannot be changed. Without it the packet would be in another VLAN.
pub(super) fn offload_after(packet: Packet<'_>, edit: Edit) -> Result<Offload, Cause> {
    let moved = moved(edit);
    if moved > 0 && packet.len() + TAG_BYTES > PACKET_BYTES_MAX {
        return Err(Cause::TooLarge);
    }
    let offload = packet.offload();
    if moved == 0 || offload == Offload::NONE {
        return Ok(offload);
    }
    offload::shifted(offload, moved).ok_or(Cause::Offload)
}

/// Changes the tag of a packet that is in a burst, and says what it leaves to others then.
pub(super) fn change(burst: &mut Burst, number: usize, edit: Edit, offload: Offload) {
    match edit {
        Edit::Keep => return,
        Edit::Pop => burst.remove(number, TAG_AT, TAG_BYTES),
        Edit::Push(vlan) => {
            let [a, b] = TYPE_VLAN.to_be_bytes();
            let [c, d] = vlan.to_be_bytes();
            let is_done = burst.insert(number, TAG_AT, &[a, b, c, d]);
            assert!(is_done, "its length was looked at");
        }
        Edit::Set(vlan) => {
            let tag = &mut burst.head_mut(number)[TAG_AT + 2..TAG_AT + 4];
            let kept = u16::from_be_bytes([tag[0], tag[1]]) & !VLAN_MASK;
            tag.copy_from_slice(&(kept | vlan).to_be_bytes());
        }
    }
    burst.set_offload(number, offload);
}

#[cfg(test)]
mod tests {
    use millrace_port::Checksum;

    use super::*;

    const PUSH: Edit = Edit::Push(10);

    #[test]
    fn a_tag_that_does_not_fit_is_not_left_out() {
        let mut burst = Burst::new(1);
        for (bytes, is_good) in [
            (PACKET_BYTES_MAX - TAG_BYTES, true),
            (PACKET_BYTES_MAX - TAG_BYTES + 1, false),
            (PACKET_BYTES_MAX, false),
        ] {
            burst.clear();
            assert!(burst.push(&vec![0; bytes]));
            let packet = burst.get(0).unwrap();
            let expected = is_good.then_some(Offload::NONE).ok_or(Cause::TooLarge);
            assert_eq!(offload_after(packet, PUSH), expected, "{bytes}");
            for edit in [Edit::Keep, Edit::Pop, Edit::Set(10)] {
                assert_eq!(offload_after(packet, edit), Ok(Offload::NONE));
            }
        }
    }

    #[test]
    fn a_place_that_no_number_says_is_not_another_one() {
        let partial = |start| Offload {
            checksum: Checksum::Partial { start, offset: 14 },
            segment: None,
        };
        let mut burst = Burst::new(1);
        assert!(burst.push(&vec![0; PACKET_BYTES_MAX - TAG_BYTES]));
        for (start, edit, expected) in [
            (34, PUSH, Ok(partial(38))),
            (65_531, PUSH, Ok(partial(65_535))),
            (65_532, PUSH, Err(Cause::Offload)),
            (38, Edit::Pop, Ok(partial(34))),
            (3, Edit::Pop, Err(Cause::Offload)),
            (65_532, Edit::Set(10), Ok(partial(65_532))),
        ] {
            burst.set_offload(0, partial(start));
            assert_eq!(offload_after(burst.get(0).unwrap(), edit), expected);
        }
    }
}
