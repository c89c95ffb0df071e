//! The admission webhook; see the library.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    millrace_admission::main()
}
