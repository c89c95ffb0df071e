//! The kernel's own description of its types (`/sys/kernel/btf/vmlinux`, "BPF Type Format" in the kernel's documentation): where a member
//! lies, and which number a function has. No more of it is read than that.

use std::ops::Range;

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_FUNC: u32 = 12;

/// A kernel's types.
#[derive(Debug)]
pub(crate) struct Btf {
    bytes: Vec<u8>,
    strings: Range<usize>,
    /// Where each type's record begins; number 0 is `void`, which has none.
    types: Vec<usize>,
}

/// One record, as far as all kinds share it.
#[derive(Debug, Clone, Copy)]
struct Record {
    at: usize,
    name: u32,
    info: u32,
}

impl Record {
    fn kind(self) -> u32 {
        self.info >> 24 & 0x1f
    }

    fn count(self) -> usize {
        (self.info & 0xffff) as usize
    }

    /// Bytes behind the common twelve.
    fn extra_bytes(self) -> Option<usize> {
        Some(match self.kind() {
            // Pointers, forward declarations, typedefs, qualifiers, functions, floats, type tags.
            2 | 7..=12 | 16 | 18 => 0,
            // Integers, variables, declaration tags.
            1 | 14 | 17 => 4,
            3 => 12,
            6 | 13 => 8 * self.count(),
            KIND_STRUCT | KIND_UNION | 15 | 19 => 12 * self.count(),
            _ => return None,
        })
    }
}

impl Btf {
    /// Reads the table. `None`: it is not one, or of a kind that came later.
    pub(crate) fn parse(bytes: Vec<u8>) -> Option<Btf> {
        let magic = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        if magic != MAGIC {
            return None;
        }
        let header = |index: usize| Some(word(&bytes, 4 + 4 * index)? as usize);
        let (length, types_at, types_bytes) = (header(0)?, header(1)?, header(2)?);
        let (strings_at, strings_bytes) = (header(3)?, header(4)?);
        let strings =
            length.checked_add(strings_at)?..length.checked_add(strings_at + strings_bytes)?;
        let mut at = length.checked_add(types_at)?;
        let end = at.checked_add(types_bytes)?;
        if strings.end > bytes.len() || end > bytes.len() {
            return None;
        }
        let mut table = Btf {
            bytes,
            strings,
            types: vec![0],
        };
        while at < end {
            table.types.push(at);
            at += 12 + table.record(at)?.extra_bytes()?;
        }
        Some(table)
    }

    /// The number of a function.
    pub(crate) fn function(&self, name: &str) -> Option<u32> {
        self.find(name, &[KIND_FUNC])
    }

    /// Bytes from the beginning of a structure to a member of a member…; members of anonymous members count as its own.
    pub(crate) fn offset(&self, structure: &str, path: &[&str]) -> Option<u32> {
        let mut number = self.find(structure, &[KIND_STRUCT, KIND_UNION])?;
        let mut bits = 0;
        for name in path {
            let (offset, kind) = self.member(number, name)?;
            bits += offset;
            number = kind;
        }
        (bits % 8 == 0).then_some(bits / 8)
    }

    /// Bytes of a structure.
    pub(crate) fn size(&self, structure: &str) -> Option<u32> {
        let number = self.find(structure, &[KIND_STRUCT])?;
        word(&self.bytes, *self.types.get(number as usize)? + 8)
    }

    fn find(&self, name: &str, kinds: &[u32]) -> Option<u32> {
        let numbers = 1..self.types.len();
        numbers
            .filter_map(|number| Some((number, self.record(*self.types.get(number)?)?)))
            .find(|(_, record)| kinds.contains(&record.kind()) && self.is_named(record.name, name))
            .map(|(number, _)| number as u32)
    }

    /// Where a member begins, in bits, and its type.
    fn member(&self, number: u32, name: &str) -> Option<(u32, u32)> {
        let record = self.record(*self.types.get(number as usize)?)?;
        match record.kind() {
            KIND_STRUCT | KIND_UNION => {}
            // Typedefs, volatile, const, restrict, type tags: what they are of.
            8..=11 | 18 => return self.member(word(&self.bytes, record.at + 8)?, name),
            _ => return None,
        }
        (0..record.count()).find_map(|index| {
            let at = record.at + 12 + 12 * index;
            let (named, kind) = (word(&self.bytes, at)?, word(&self.bytes, at + 4)?);
            let place = word(&self.bytes, at + 8)?;
            // With the record's flag set the upper byte is a bit field's width.
            let bits = if record.info >> 31 == 1 {
                place & 0x00ff_ffff
            } else {
                place
            };
            if self.is_named(named, name) {
                Some((bits, kind))
            } else if self.is_named(named, "") {
                self.member(kind, name)
                    .map(|(inner, kind)| (bits + inner, kind))
            } else {
                None
            }
        })
    }

    fn record(&self, at: usize) -> Option<Record> {
        Some(Record {
            at,
            name: word(&self.bytes, at)?,
            info: word(&self.bytes, at + 4)?,
        })
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let strings = self.bytes.get(self.strings.clone()).unwrap_or_default();
        let rest = strings.get(offset as usize..).unwrap_or_default();
        rest.get(..name.len()) == Some(name.as_bytes()) && rest.get(name.len()) == Some(&0)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_s_table_can_be_read() {
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("skipped: this kernel has no BTF");
            return;
        };
        let table = Btf::parse(bytes).unwrap();
        assert_eq!(table.offset("list_head", &["prev"]), Some(8));
        assert_eq!(table.size("list_head"), Some(16));
        // Members of anonymous unions and structures.
        assert!(table.offset("sock_common", &["skc_rcv_saddr"]).is_some());
        assert_eq!(table.offset("sock", &["__sk_common"]), Some(0));
        assert_eq!(table.offset("sock", &["no such member"]), None);
        assert_eq!(table.offset("no such structure", &[]), None);
    }

    #[test]
    fn cut_or_wrong_tables_are_refused() {
        assert!(Btf::parse(Vec::new()).is_none());
        assert!(Btf::parse(vec![0; 64]).is_none());
        let mut bytes = vec![0; 40];
        bytes[..2].copy_from_slice(&MAGIC.to_ne_bytes());
        for (index, value) in [24u32, 0, 16, 16, 0].into_iter().enumerate() {
            bytes[4 + 4 * index..8 + 4 * index].copy_from_slice(&value.to_ne_bytes());
        }
        // A structure of one member, which is not there.
        bytes[28..32].copy_from_slice(&(KIND_STRUCT << 24 | 1).to_ne_bytes());
        let table = Btf::parse(bytes.clone()).unwrap();
        assert_eq!(table.offset("", &["x"]), None);
        bytes.truncate(30);
        assert!(Btf::parse(bytes).is_none());
    }
}
