//! The table that a compiler leaves beside a function: what is to be done at which of its calls, when it is unwound (the call-site table of
//! the Itanium C++ ABI, "Exception Handling Tables").

/// `DW_EH_PE_omit`: there is no such field.
const OMITTED: u8 = 0xff;
/// `DW_EH_PE_uleb128` and `DW_EH_PE_udata4`: how numbers are written.
const VARIABLE: u8 = 0x01;
const FOUR_BYTES: u8 = 0x03;

/// Whether a table says something of the instruction `at` so many bytes from the beginning of its function. None: we do not know its form.
///
/// # Safety
/// It is such a table.
pub(crate) unsafe fn says_of(table: *const u8, at: u64) -> Option<bool> {
    let mut reader = Reader(table);
    // SAFETY: the fields follow one another, as many as the table says.
    unsafe {
        if reader.byte() != OMITTED {
            return None;
        }
        if reader.byte() != OMITTED {
            reader.variable();
        }
        let form = reader.byte();
        let bytes = reader.variable();
        let end = reader.0.wrapping_add(usize::try_from(bytes).ok()?);
        while reader.0 < end {
            let start = reader.number(form)?;
            let length = reader.number(form)?;
            reader.number(form)?;
            reader.variable();
            if at < start {
                return Some(false);
            }
            if at - start < length {
                return Some(true);
            }
        }
    }
    Some(false)
}

struct Reader(*const u8);

impl Reader {
    unsafe fn byte(&mut self) -> u8 {
        // SAFETY: the caller's.
        let byte = unsafe { self.0.read() };
        self.0 = self.0.wrapping_add(1);
        byte
    }

    unsafe fn variable(&mut self) -> u64 {
        let mut number = 0;
        let mut shift = 0;
        loop {
            // SAFETY: the caller's.
            let byte = unsafe { self.byte() };
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte & 0x80 == 0 {
                return number;
            }
        }
    }

    unsafe fn number(&mut self, form: u8) -> Option<u64> {
        match form {
            // SAFETY: the caller's.
            VARIABLE => Some(unsafe { self.variable() }),
            FOUR_BYTES => {
                // SAFETY: the caller's.
                let number = unsafe { self.0.cast::<u32>().read_unaligned() };
                self.0 = self.0.wrapping_add(4);
                Some(number.into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(table: &[u8], at: u64) -> Option<bool> {
        // SAFETY: a table of ours.
        unsafe { says_of(table.as_ptr(), at) }
    }

    #[test]
    fn what_lies_in_a_call_is_spoken_of_and_nothing_else() {
        // From 5 on three bytes with a place to go on, from 200 on ten without one.
        let variable = [0xff, 0xff, 0x01, 10, 5, 3, 90, 0, 0xc8, 0x01, 10, 0, 0, 0];
        let [mut fixed, mut typed] = [
            Vec::from([0xff, 0xff, 0x03, 26]),
            Vec::from([0xff, 0x9b, 40, 0x01, 9]),
        ];
        for (start, length, place) in [(5u32, 3u32, 90u32), (200, 10, 0)] {
            for number in [start, length, place] {
                fixed.extend(number.to_le_bytes());
            }
            fixed.push(0);
        }
        typed.extend(&variable[4..13]);
        for table in [&variable[..], &fixed, &typed] {
            let spoken_of: Vec<u64> = (0..300)
                .filter(|at| said(table, *at) == Some(true))
                .collect();
            assert_eq!(spoken_of, (5..8).chain(200..210).collect::<Vec<u64>>());
        }
        assert_eq!(said(&[0x00, 0xff, 0x01, 0], 0), None);
        assert_eq!(said(&[0xff, 0xff, 0x0b, 4, 0, 0, 0, 0], 0), None);
    }
}
