//! What the objects of the program say of themselves (ELF notes): whether one is Go's, whose code calls the kernel past the C library.
//!
//! Such a program has the C library, and with it this one, as soon as a part of it is C. What C has connected is Go's as well: it reads,
//! copies and closes it, and starts programs that get it, and no hook hears of that.

use std::mem::size_of;

use libc::{c_int, c_void, dl_phdr_info, size_t};

use crate::objects::headers;

const PT_NOTE: u32 = 4;
/// The name and the kind of Go's note (`cmd/link`: `ELF_NOTE_GO_NAME`, `ELF_NOTE_GOBUILDID_TAG`).
const GO: (&[u8], u32) = (b"Go\0\0", 4);

/// Whether an object that the program was started with is Go's. Those that it loads later are not looked at: in a forked child the dynamic
/// linker's lock may be another thread's for ever.
pub(crate) fn are_of_go() -> bool {
    // SAFETY: the function gets nothing, and looks at what the dynamic linker shows it.
    unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::null_mut()) != 0 }
}

/// For each object. One ends the iteration.
unsafe extern "C" fn visit(
    info: *mut dl_phdr_info,
    _bytes: size_t,
    _nothing: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker describes a loaded object.
    let info = unsafe { &*info };
    let has = headers(info)
        .iter()
        .filter(|it| it.p_type == PT_NOTE)
        .any(|header| {
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            // SAFETY: notes lie in what is loaded of the object, and nobody writes to them.
            let notes =
                unsafe { std::slice::from_raw_parts(start as *const u8, header.p_memsz as usize) };
            has_note(notes, header.p_align as usize, GO)
        });
    c_int::from(has)
}

/// Whether there is one of that name and kind among `notes`, which are `align` bytes apart at least.
fn has_note(notes: &[u8], align: usize, (name, kind): (&[u8], u32)) -> bool {
    let align = if align == 8 { 8 } else { 4 };
    let mut rest = notes;
    while let Some((head, behind)) = rest.split_at_checked(3 * size_of::<u32>()) {
        let mut words = head
            .as_chunks()
            .0
            .iter()
            .map(|word| u32::from_ne_bytes(*word));
        let (Some(name_bytes), Some(bytes), Some(its_kind)) =
            (words.next(), words.next(), words.next())
        else {
            return false;
        };
        let (name_bytes, bytes) = (name_bytes as usize, bytes as usize);
        if its_kind == kind && behind.get(..name_bytes) == Some(name) {
            return true;
        }
        let text_at = (head.len() + name_bytes).next_multiple_of(align);
        rest = rest
            .get((text_at + bytes).next_multiple_of(align)..)
            .unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, text: &[u8]) -> Vec<u8> {
        let mut note: Vec<u8> = [name.len() as u32, text.len() as u32, kind]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        for part in [name, text] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn go_s_note_is_found_behind_others() {
        let others = [
            note(b"GNU\0", 3, b"twenty"),
            note(b"GNU\0", 4, b""),
            note(b"Go\0\0", 3, b"odd"),
        ]
        .concat();
        assert!(!has_note(&others, 4, GO) && !has_note(&[], 4, GO));
        let all = [others, note(b"Go\0\0", 4, b"an id")].concat();
        assert!(has_note(&all, 4, GO));
        // Whatever is cut, or says that it is longer than it is.
        for length in 0..all.len() {
            has_note(&all[..length], 4, GO);
        }
        assert!(!has_note(&[0xff; 64], 8, GO));
        assert!(!are_of_go());
    }
}
