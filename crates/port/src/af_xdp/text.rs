//! Instructions of a BPF program (`linux/bpf.h`), put one after the other. As much of them as a program needs that looks at packets.

/// What a function returns, and the program itself.
pub(super) const R0: u8 = 0;
/// The first argument of a function; at the program's beginning, what it is about.
pub(super) const R1: u8 = 1;
pub(super) const R2: u8 = 2;
pub(super) const R3: u8 = 3;
pub(super) const R4: u8 = 4;
pub(super) const R5: u8 = 5;
/// Registers from here to 9 keep their values across calls.
pub(super) const R6: u8 = 6;

pub(super) const LOAD_U8: u8 = 0x71;
pub(super) const LOAD_U16: u8 = 0x69;
pub(super) const LOAD_U32: u8 = 0x61;
pub(super) const ADD: u8 = 0x07;
pub(super) const ADD_REGISTER: u8 = 0x0f;
pub(super) const AND: u8 = 0x57;
pub(super) const SHIFT_LEFT: u8 = 0x67;
/// These jumps compare 32 bits, as numbers without a sign.
pub(super) const JUMP_IF_EQUAL: u8 = 0x16;
pub(super) const JUMP_UNLESS_EQUAL: u8 = 0x56;
/// And this one 64, as pointers have.
pub(super) const JUMP_IF_ABOVE: u8 = 0x2d;
const JUMP: u8 = 0x05;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const SET_U64: u8 = 0x18;
/// In the place of its source register: the number is a map's descriptor.
const IS_MAP: u8 = 1;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") {
        from << 4 | to
    } else {
        to << 4 | from
    };
    let [offset0, offset1] = offset.to_ne_bytes();
    let [v0, v1, v2, v3] = value.to_ne_bytes();
    u64::from_ne_bytes([code, registers, offset0, offset1, v0, v1, v2, v3])
}

/// A program's text, while it is written. Jumps to the same goal are collected until the goal is there.
#[derive(Debug, Default)]
pub(super) struct Text(Vec<u64>);

/// Jumps whose goal is not there yet.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Jumps(Vec<usize>);

impl Text {
    pub(super) fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        self.0.push(instruction(code, to, from, offset, value));
    }

    pub(super) fn copy(&mut self, to: u8, from: u8) {
        self.put(MOVE, to, from, 0, 0);
    }

    pub(super) fn set(&mut self, to: u8, value: i32) {
        self.put(SET, to, 0, 0, value);
    }

    /// Sets a register to a map, by its descriptor.
    pub(super) fn set_map(&mut self, to: u8, map: i32) {
        self.put(SET_U64, to, IS_MAP, 0, map);
        self.put(0, 0, 0, 0, 0);
    }

    /// Calls a function of the kernel, by its number in `enum bpf_func_id`.
    pub(super) fn call(&mut self, function: i32) {
        self.put(CALL, 0, 0, 0, function);
    }

    /// Jumps to where [`Text::land`] will say.
    pub(super) fn jump(&mut self, jumps: &mut Jumps, code: u8, register: u8, from: u8, value: i32) {
        jumps.0.push(self.0.len());
        self.put(code, register, from, 0, value);
    }

    /// The same, always.
    pub(super) fn go(&mut self, jumps: &mut Jumps) {
        self.jump(jumps, JUMP, 0, 0, 0);
    }

    /// The next instruction is where these jumps go.
    pub(super) fn land(&mut self, Jumps(from): Jumps) {
        for from in from {
            let distance = (self.0.len() - from - 1) as i16;
            self.0[from] |= instruction(0, 0, 0, distance, 0);
        }
    }

    /// Returns what R0 has.
    pub(super) fn leave(&mut self) {
        self.put(EXIT, 0, 0, 0, 0);
    }

    pub(super) fn finish(self) -> Vec<u64> {
        self.0
    }
}
