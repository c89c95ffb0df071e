//! The text of a BPF program: instructions (`struct bpf_insn`), put one after the other. `linux/bpf.h` has the numbers. Public for the
//! programs of `millrace bench`, which splice sockets.

/// What a function returns, and the program itself.
pub const R0: u8 = 0;
/// The first argument of a function; at the program's beginning, what it is about.
pub const R1: u8 = 1;
/// The second argument.
pub const R2: u8 = 2;
/// The third argument.
pub const R3: u8 = 3;
/// The fourth argument.
pub const R4: u8 = 4;
/// The end of the program's stack. Registers from 6 to 9 keep their values across calls.
pub const FRAME: u8 = 10;

/// Reads four bytes of memory.
pub const LOAD_U32: u8 = 0x61;
/// Reads eight bytes of memory.
pub const LOAD_U64: u8 = 0x79;
/// Writes four bytes.
pub const STORE_U32: u8 = 0x63;
/// Writes eight bytes.
pub const STORE_U64: u8 = 0x7b;
/// Adds a register to eight bytes of memory, at once for all processors.
pub const ADD_ATOMIC_U64: u8 = 0xdb;
/// Adds a number.
pub const ADD: u8 = 0x07;
/// Adds a register.
pub const ADD_REGISTER: u8 = 0x0f;
/// Keeps the bits that a number has.
pub const AND: u8 = 0x57;
/// Shifts to the left by a number.
pub const SHIFT_LEFT: u8 = 0x67;
/// Makes as many bits as its number says big-endian.
pub const TO_BIG_ENDIAN: u8 = 0xdc;
/// Jumps.
pub const JUMP: u8 = 0x05;
/// Jumps where a register is a number.
pub const JUMP_IF_EQUAL: u8 = 0x15;
/// Jumps where it is another one.
pub const JUMP_UNLESS_EQUAL: u8 = 0x55;
/// Jumps where two registers differ.
pub const JUMP_UNLESS_SAME: u8 = 0x5d;
/// Jumps where a register is a number or above it.
pub const JUMP_IF_NOT_BELOW: u8 = 0x35;
/// Jumps where a register is another one or above it.
pub const JUMP_IF_REGISTER_NOT_BELOW: u8 = 0x3d;
/// Looks up a value in a map, in `enum bpf_func_id`: the function that every program needs.
pub const MAP_LOOKUP: i32 = 1;

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

/// A jump whose goal is not there yet.
#[derive(Debug)]
#[must_use]
pub struct Jump(usize);

/// A place to which a jump may go back.
#[derive(Clone, Copy, Debug)]
pub struct Place(usize);

/// A program's text, while it is written.
#[derive(Debug, Default)]
pub struct Text(Vec<u64>);

impl Text {
    /// Appends an instruction of any kind.
    pub fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        self.0.push(instruction(code, to, from, offset, value));
    }

    /// Reads memory that a register points to.
    pub fn load(&mut self, code: u8, to: u8, from: u8, offset: i16) {
        self.put(code, to, from, offset, 0);
    }

    /// Copies a register.
    pub fn copy(&mut self, to: u8, from: u8) {
        self.put(MOVE, to, from, 0, 0);
    }

    /// Sets a register to a number.
    pub fn set(&mut self, to: u8, value: i32) {
        self.put(SET, to, 0, 0, value);
    }

    /// Sets all its bits, which takes two instructions.
    pub fn set_u64(&mut self, to: u8, value: u64) {
        self.put_u64(to, 0, value);
    }

    /// Sets a register to a map, by its descriptor.
    pub fn set_map(&mut self, to: u8, map: i32) {
        self.put_u64(to, IS_MAP, u64::from(map.cast_unsigned()));
    }

    fn put_u64(&mut self, to: u8, from: u8, value: u64) {
        self.put(SET_U64, to, from, 0, value as i32);
        self.put(0, 0, 0, 0, (value >> 32) as i32);
    }

    /// The address of something on the stack.
    pub fn set_frame(&mut self, to: u8, offset: i16) {
        self.copy(to, FRAME);
        self.put(ADD, to, 0, 0, offset.into());
    }

    /// Calls a function of the kernel, by its number in `enum bpf_func_id`.
    pub fn call(&mut self, function: i32) {
        self.put(CALL, 0, 0, 0, function);
    }

    /// Jumps to where [`Text::land`] says.
    pub fn jump(&mut self, code: u8, register: u8, from: u8, value: i32) -> Jump {
        self.put(code, register, from, 0, value);
        Jump(self.0.len() - 1)
    }

    /// The next instruction is where this jump goes.
    pub fn land(&mut self, Jump(from): Jump) {
        let distance = (self.0.len() - from - 1) as i16;
        self.0[from] |= instruction(0, 0, 0, distance, 0);
    }

    /// Where the next instruction will be.
    #[must_use]
    pub fn here(&self) -> Place {
        Place(self.0.len())
    }

    /// Jumps back.
    pub fn jump_back(&mut self, Place(to): Place) {
        let distance = self.0.len() + 1 - to;
        self.put(JUMP, 0, 0, -(distance as i16), 0);
    }

    /// Ends the program.
    pub fn leave(&mut self, value: i32) {
        self.set(R0, value);
        self.put(EXIT, 0, 0, 0, 0);
    }

    /// The instructions.
    #[must_use]
    pub fn finish(self) -> Vec<u64> {
        self.0
    }
}
