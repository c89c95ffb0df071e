//! Which VLAN a frame is in, and with which tag it leaves.

use crate::parse::VLAN_MASK;

/// VLAN 0: of frames without a tag at ports that know of no VLAN.
pub(crate) const NONE: u16 = 0;

/// A set of VLANs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Set([u64; 64]);

impl Set {
    pub(crate) const EMPTY: Set = Set([0; 64]);

    pub(crate) fn insert(&mut self, vlan: u16) {
        self.0[usize::from(vlan & VLAN_MASK) / 64] |= 1 << (vlan % 64);
    }

    #[inline]
    pub(crate) fn contains(&self, vlan: u16) -> bool {
        self.0[usize::from(vlan & VLAN_MASK) / 64] >> (vlan % 64) & 1 == 1
    }
}

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set()
            .entries((0..=VLAN_MASK).filter(|vlan| self.contains(*vlan)))
            .finish()
    }
}

/// What a port has to do with VLANs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Those whose frames enter and leave.
    allowed: Set,
    /// Where frames without a tag belong, and which frames leave without one. None: nowhere, and none.
    native: Option<u16>,
}

/// What to do with the tag of a frame that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edit {
    Keep,
    /// Take it off.
    Pop,
    /// Put one on.
    Push(u16),
    /// Change the VLAN, and leave the priority.
    Set(u16),
}

impl Membership {
    /// A port that knows of no VLAN: whatever comes goes as it is, apart by VLAN all the same.
    pub(crate) fn transparent() -> Membership {
        let mut allowed = Set::EMPTY;
        (0..4095).for_each(|vlan| allowed.insert(vlan));
        Membership {
            allowed,
            native: Some(NONE),
        }
    }

    /// A port of one VLAN, whose frames have no tag.
    pub(crate) fn access(vlan: u16) -> Membership {
        Membership::trunk(&[], Some(vlan))
    }

    /// A port of several VLANs, whose frames have tags but for those of the native one.
    pub(crate) fn trunk(vlans: &[u16], native: Option<u16>) -> Membership {
        let mut allowed = Set::EMPTY;
        vlans
            .iter()
            .copied()
            .chain(native)
            .for_each(|vlan| allowed.insert(vlan));
        Membership { allowed, native }
    }

    /// In which VLAN a frame with this tag is. None: it may not enter.
    #[inline]
    pub(crate) fn classify(&self, tag: Option<u16>) -> Option<u16> {
        let vlan = match tag.map(|tag| tag & VLAN_MASK) {
            // A tag of VLAN 0 says a priority only.
            None | Some(NONE) => self.native?,
            Some(vlan) => vlan,
        };
        self.allows(vlan).then_some(vlan)
    }

    #[inline]
    pub(crate) fn allows(&self, vlan: u16) -> bool {
        self.allowed.contains(vlan)
    }

    /// How a frame of a VLAN leaves that came with this tag.
    #[inline]
    pub(crate) fn edit(&self, tag: Option<u16>, vlan: u16) -> Edit {
        let is_tagged = self.native != Some(vlan);
        match tag.map(|tag| tag & VLAN_MASK) {
            _ if vlan == NONE => Edit::Keep,
            None if is_tagged => Edit::Push(vlan),
            None => Edit::Keep,
            Some(_) if !is_tagged => Edit::Pop,
            Some(NONE) => Edit::Set(vlan),
            Some(_) => Edit::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_ports_have_one_vlan_without_tags() {
        let port = Membership::access(10);
        assert_eq!(port.classify(None), Some(10));
        assert_eq!(port.classify(Some(0xe000)), Some(10));
        assert_eq!(port.classify(Some(10)), Some(10));
        assert_eq!(port.classify(Some(11)), None);
        assert!(port.allows(10) && !port.allows(11) && !port.allows(NONE));
        assert_eq!(port.edit(Some(0xe00a), 10), Edit::Pop);
        assert_eq!(port.edit(Some(0xe000), 10), Edit::Pop);
        assert_eq!(port.edit(None, 10), Edit::Keep);
    }

    #[test]
    fn trunks_have_tags_but_for_the_native_vlan() {
        let port = Membership::trunk(&[10, 20], Some(1));
        assert_eq!(port.classify(None), Some(1));
        assert_eq!(port.classify(Some(20)), Some(20));
        assert_eq!(port.classify(Some(30)), None);
        assert_eq!(port.edit(None, 10), Edit::Push(10));
        assert_eq!(port.edit(Some(0xa000), 10), Edit::Set(10));
        assert_eq!(port.edit(Some(0xa00a), 10), Edit::Keep);
        assert_eq!(port.edit(None, 1), Edit::Keep);
        assert_eq!(port.edit(Some(1), 1), Edit::Pop);
        let without = Membership::trunk(&[10], None);
        assert_eq!(without.classify(None), None);
        assert_eq!(without.edit(None, 10), Edit::Push(10));
    }

    #[test]
    fn ports_that_know_of_none_change_nothing() {
        let port = Membership::transparent();
        for tag in [None, Some(0), Some(0xe000), Some(7), Some(4094)] {
            let vlan = port.classify(tag).unwrap();
            assert_eq!(port.edit(tag, vlan), Edit::Keep);
        }
        assert_eq!(port.classify(Some(4095)), None);
        // From an access port into one of these, the VLAN shows.
        assert_eq!(port.edit(None, 10), Edit::Push(10));
    }
}
