//! What speaks with a cluster's API server; see the library.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    millrace_cluster::main()
}
