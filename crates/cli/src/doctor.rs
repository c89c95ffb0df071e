//! `millrace doctor`: what on this machine prevents or slows acceleration, and what to do about it.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::Path;

use clap::Args;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};

use crate::locate::{self, Found};
use crate::say::plain;

/// Say what on this machine, or in this container, prevents or slows acceleration, and what to do about it.
///
/// Run it where the program runs: in its container, as its user.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 when connections can be accelerated, 1 when something prevents it."
)]
pub(crate) struct DoctorArguments {}

/// How much something matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// As it should be.
    Good,
    /// It slows, or concerns some programs.
    Mind,
    /// It prevents acceleration.
    Bad,
}

/// One line of the diagnosis.
#[derive(Debug)]
struct Finding {
    weight: Weight,
    what: String,
    mend: String,
}

fn good(what: impl Into<String>) -> Finding {
    Finding {
        weight: Weight::Good,
        what: what.into(),
        mend: String::new(),
    }
}

fn mind(what: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding {
        weight: Weight::Mind,
        what: what.into(),
        mend: mend.into(),
    }
}

fn bad(what: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding {
        weight: Weight::Bad,
        what: what.into(),
        mend: mend.into(),
    }
}

/// Prints the diagnosis.
pub(crate) fn run(_: &DoctorArguments) -> anyhow::Result<u8> {
    let mut findings = vec![check_switch(), check_library(), check_preload()];
    // As the library does for the agent, where Yama asks for that; elsewhere an error.
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
    match locate::agent() {
        Ok(found) => findings.extend(check_agent(&found)),
        Err(errors) => findings.push(mind(
            format!("no agent answers ({})", locate::explain(&errors)),
            "`millrace run` starts one of your own; for all users and containers: sudo millrace agent",
        )),
    }
    findings.extend([
        check_processors(),
        check_descriptors(),
        check_sealing(),
        check_inotify(),
        check_io_uring(),
    ]);
    findings.extend(check_sandbox(
        &fs::read_to_string("/proc/self/status").unwrap_or_default(),
    ));

    let mut out = std::io::stdout().lock();
    let styled = out.is_terminal();
    for finding in &findings {
        writeln!(out, "{}", render(finding, styled))?;
    }
    Ok(u8::from(
        findings.iter().any(|finding| finding.weight == Weight::Bad),
    ))
}

fn render(finding: &Finding, styled: bool) -> String {
    let (word, colour) = match finding.weight {
        Weight::Good => ("good", "32"),
        Weight::Mind => ("mind", "33"),
        Weight::Bad => ("bad ", "31"),
    };
    let word = if styled {
        format!("\x1b[{colour}m{word}\x1b[0m")
    } else {
        word.to_owned()
    };
    let mend = if finding.mend.is_empty() {
        String::new()
    } else {
        format!(" -> {}", finding.mend)
    };
    // The environment is, in a container, the image's.
    format!("{word}  {}", plain(&format!("{}{mend}", finding.what)))
}

fn check_switch() -> Finding {
    match std::env::var("MILLRACE") {
        Ok(value) if value == "off" => bad(
            "MILLRACE=off is set here: Millrace is turned off",
            "unset MILLRACE",
        ),
        _ => good("Millrace is not turned off"),
    }
}

fn check_library() -> Finding {
    match locate::library() {
        Ok(path) => good(format!("the library is {}", path.display())),
        Err(places) => {
            let places: Vec<String> = places
                .iter()
                .map(|place| place.display().to_string())
                .collect();
            bad(
                format!(
                    "the library is missing; it is not at {}",
                    places.join(" or ")
                ),
                "install Millrace again, or set MILLRACE_LIBRARY to its path",
            )
        }
    }
}

fn check_preload() -> Finding {
    if let Some(finding) = check_container() {
        return finding;
    }
    let preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    let entries: Vec<&str> = preload
        .split([':', ' '])
        .filter(|entry| !entry.is_empty())
        .collect();
    let missing: Vec<&str> = entries
        .iter()
        .copied()
        .filter(|entry| entry.contains('/') && !Path::new(entry).exists())
        .collect();
    let others: Vec<&str> = entries
        .into_iter()
        .filter(|entry| !entry.ends_with("/libmillrace_preload.so"))
        .collect();
    if !missing.is_empty() {
        mind(
            format!(
                "LD_PRELOAD names files that do not exist: {}",
                missing.join(", ")
            ),
            "take them out of LD_PRELOAD",
        )
    } else if others.is_empty() {
        good("LD_PRELOAD has no other library")
    } else {
        mind(
            format!("LD_PRELOAD has other libraries: {}", others.join(", ")),
            "they come before Millrace's; should they replace socket calls, try without them",
        )
    }
}

/// In a container that has Millrace's directory: whether its programs load the library. `None` where that is not in question.
fn check_container() -> Option<Finding> {
    let library = Path::new("/run/millrace/libmillrace_preload.so");
    let names = |text: &str| text.contains("libmillrace_preload.so");
    let by_list = names(&fs::read_to_string("/etc/ld.so.preload").unwrap_or_default());
    let by_variable = names(&std::env::var("LD_PRELOAD").unwrap_or_default());
    if !library.exists() || by_variable {
        return None;
    }
    Some(if by_list {
        good("programs of this container load the library, by /etc/ld.so.preload")
    } else {
        bad(
            "this container has Millrace's directory, but its programs do not load the library: the hook did not mount /etc/ld.so.preload",
            "look at the engine's log; /etc must be the image's own directory, and the file, if there is one, no link; or use the device \
             millrace.dev/socket=variable",
        )
    })
}

fn check_namespace(status: &millrace_agent::StatusReport) -> Finding {
    let own = fs::read_link("/proc/self/ns/net")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default();
    if own == status.network_namespace {
        good("the agent is in this network namespace")
    } else if status.capabilities.other_namespaces {
        good(
            "the agent is in another network namespace, and can prove connections of this one (BPF iterator)",
        )
    } else {
        bad(
            format!(
                "the agent is in another network namespace ({}) than this process ({own}), and cannot prove its connections",
                status.network_namespace
            ),
            "run the agent as root on Linux 6.1 or later with BTF (/sys/kernel/btf/vmlinux), or one in this namespace",
        )
    }
}

fn check_agent(found: &Found) -> Vec<Finding> {
    let Found {
        socket,
        status,
        answerer,
    } = found;
    let mut findings = vec![good(format!(
        "an agent answers at {} (version {}, user {}, {} programs, {} participants of channels)",
        socket.display(),
        status.version,
        answerer.uid,
        status.clients,
        status.participants
    ))];
    if status.version != env!("CARGO_PKG_VERSION") {
        findings.push(mind(
            format!(
                "this is version {}, the agent is version {}",
                env!("CARGO_PKG_VERSION"),
                status.version
            ),
            "restart the agent; connections go on without it",
        ));
    }
    findings.push(if status.capabilities.sock_diag {
        good("the kernel describes sockets to the agent (sock_diag)")
    } else {
        bad(
            "the kernel does not describe sockets to the agent",
            "load its module: modprobe tcp_diag",
        )
    });
    findings.push(if status.sees_caller {
        good("the agent sees this process in /proc")
    } else if answerer.uid == 0 {
        bad("the agent does not see this process in /proc", "run the agent in the host's PID namespace (hostPID: true)")
    } else {
        bad(
            "the agent does not see this process in /proc: it is not dumpable, or /proc is mounted with hidepid",
            "use root's agent: sudo millrace agent",
        )
    });
    findings.push(if status.may_trace_caller {
        good("the agent may trace this process, to bring back what lies unread in a ring")
    } else {
        bad(
            "the agent may not trace this process, so it could not bring back what lies unread in a ring",
            mend_of_tracing(answerer.uid),
        )
    });
    findings.push(check_namespace(status));
    if !status.capabilities.peer_pidfd {
        findings.push(mind(
            "the kernel is older than 6.5: it names peers by number only",
            "use a newer kernel where you can",
        ));
    }
    if status.segment_bytes > status.segment_bytes_limit / 10 * 9 {
        findings.push(mind(
            "nearly all memory for rings is in use",
            "raise quota.bytes_total in the agent's configuration",
        ));
    }
    findings
}

fn mend_of_tracing(agent: u32) -> &'static str {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "3" => {
            "kernel.yama.ptrace_scope is 3, and stays so until the next boot: set it to 2 or less there"
        }
        _ if agent == 0 => {
            "give the agent CAP_SYS_PTRACE, Linux 5.6 or later, and a seccomp profile that allows pidfd_getfd"
        }
        "2" => {
            "kernel.yama.ptrace_scope is 2: use root's agent (sudo millrace agent), or set it to 1"
        }
        _ => {
            "use root's agent (sudo millrace agent); the kernel must be Linux 5.6 or later, and no seccomp profile forbid pidfd_getfd"
        }
    }
}

fn check_processors() -> Finding {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => mind(
            "this process may use one processor: two ends cannot run at once, so there is little to gain",
            "give it two",
        ),
        count => good(format!("{count} processors")),
    }
}

fn check_descriptors() -> Finding {
    /// Of fewer the library takes none.
    const NEEDED: u64 = 64;
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) if soft < NEEDED => bad(
            format!("only {soft} file descriptors are allowed, of which the library takes none"),
            "raise it: ulimit -n 4096",
        ),
        Ok((soft, _)) if soft < 256 => mind(
            format!("only {soft} file descriptors are allowed"),
            "raise it: ulimit -n 4096",
        ),
        Ok((soft, _)) => good(format!("{soft} file descriptors are allowed")),
        Err(errno) => mind(
            format!("the limit of file descriptors cannot be read: {errno}"),
            "see getrlimit(2)",
        ),
    }
}

fn check_sealing() -> Finding {
    match memfd_create(
        "millrace-doctor",
        MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC,
    ) {
        Ok(_) => good("the kernel makes sealed memory (memfd)"),
        Err(errno) => bad(
            format!("the kernel makes no sealed memory: {errno}"),
            "allow memfd_create in the seccomp profile",
        ),
    }
}

fn check_inotify() -> Finding {
    const NEEDED: u64 = 8192;
    let read = fs::read_to_string("/proc/sys/fs/inotify/max_user_watches");
    match read.ok().and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(watches) if watches < NEEDED => mind(
            format!("a user may have {watches} inotify watches; an agent needs one per connection"),
            "sysctl fs.inotify.max_user_watches=65536",
        ),
        Some(watches) => good(format!(
            "{watches} inotify watches are allowed: one per connection"
        )),
        None => good("inotify has no limit that can be read here"),
    }
}

fn check_io_uring() -> Finding {
    match fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .as_deref()
        .map(str::trim)
    {
        Ok("2") => good("io_uring is off: programs use calls that can be accelerated"),
        _ => mind(
            "io_uring is available: connections that a program uses through it stay on the kernel",
            "configure such programs to use epoll",
        ),
    }
}

/// What `/proc/self/status` says about sandboxes.
fn check_sandbox(status: &str) -> Vec<Finding> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .unwrap_or_default()
    };
    let seccomp = match field("Seccomp") {
        "2" => mind(
            "a seccomp filter is at work here",
            "should connections stay on the kernel, allow memfd, mmap and sendmsg on unix sockets",
        ),
        "1" => bad(
            "strict seccomp is at work here",
            "only read and write are allowed: nothing can be done",
        ),
        _ => good("no seccomp filter"),
    };
    let privileges = match field("NoNewPrivs") {
        "1" => good("no_new_privs is set, which does not matter"),
        _ => good("no_new_privs is not set"),
    };
    vec![seccomp, privileges]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_are_read_from_the_status() {
        let weights = |text| {
            check_sandbox(text)
                .iter()
                .map(|finding| finding.weight)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            weights("Name:\tx\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"),
            [Weight::Good, Weight::Good]
        );
        assert_eq!(
            weights("NoNewPrivs:\t1\nSeccomp:\t2\n"),
            [Weight::Mind, Weight::Good]
        );
        assert_eq!(weights("Seccomp:\t1\n")[0], Weight::Bad);
    }

    #[test]
    fn a_finding_is_one_line_with_its_mend() {
        let line = render(&mind("slow", "do this"), false);
        assert_eq!(line, "mind  slow -> do this");
        assert_eq!(render(&good("fine"), false), "good  fine");
        let named = render(&good("it is \x1b[2J"), true);
        assert_eq!(named, "\x1b[32mgood\x1b[0m  it is \\u{1b}[2J");
    }
}
