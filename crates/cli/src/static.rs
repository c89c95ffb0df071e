//! The command for containers, and for machines with another C library than this one's: linked with everything that it needs.
//!
//! It is not what people run on the machine: `millrace load` could not be accelerated, and names are resolved without the
//! machine's plugins.

#![no_main]

use millrace_cli as _;
