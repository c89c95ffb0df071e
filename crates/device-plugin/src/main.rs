//! The device plugin; see the library.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    millrace_device_plugin::main()
}
