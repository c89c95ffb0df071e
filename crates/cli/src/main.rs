//! The command, which begins in the library (`sys::main`).

#![no_main]

use millrace_cli as _;
