//! The CNI plugin; see the library.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    millrace_cni::main()
}
