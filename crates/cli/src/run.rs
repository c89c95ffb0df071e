//! `millrace run`: becomes another program, with the library and an agent at hand.

use std::ffi::{CString, OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use nix::errno::Errno;

use crate::{background, locate};

/// As env(1) has it: the program was not found, cannot be executed, or something else went wrong before.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
const FAILED: u8 = 125;

/// Run a program whose TCP connections to other such programs on this machine are accelerated.
///
/// Replaces itself with the program: same process, same streams, same signals, its exit status. Children of the program are
/// accelerated, too. An agent is started in the background where none answers; it leaves when the last program has ended that
/// was run so, or is connected to it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArguments {
    /// How connections come to the ring. Only the default is for production.
    #[arg(long, value_parser = parse_mode, long_help = MODES)]
    mode: Option<String>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "Examples:
  millrace run -- redis-server --save ''
  millrace run -- nginx -g 'daemon off;'
  millrace run -- sh -c 'make test'         everything that the shell starts
  MILLRACE=off redis-cli                    one program left out, below an accelerated shell

Exit status: the program's; 127 when it is not found, 126 when it cannot be executed, 125 when Millrace's library is missing.";

const MODES: &str = "How connections come to the ring. Only the default is for production.

  default       offer a connection once it has proved busy
  eager         at once, from the first byte on, and wait for bytes by spinning
  eager-nospin  at once, and never spin
  chaos:SEED    to the ring and back at moments that the seed decides";

fn parse_mode(text: &str) -> Result<String, String> {
    let chaos = text
        .strip_prefix("chaos:")
        .is_some_and(|seed| seed.parse::<u64>().is_ok());
    if chaos || matches!(text, "default" | "eager" | "eager-nospin") {
        Ok(text.to_owned())
    } else {
        Err("use default, eager, eager-nospin, or chaos:NUMBER".to_owned())
    }
}

/// What the program's environment has beyond this one's.
type Additions = Vec<(&'static str, OsString)>;

/// Only returns when the program could not be started.
pub(crate) fn run(arguments: &RunArguments) -> u8 {
    let turned_off = std::env::var_os("MILLRACE").is_some_and(|value| value == "off");
    let additions = if turned_off {
        Ok(Additions::new())
    } else {
        prepare(arguments)
    };
    match additions {
        Ok(additions) => become_program(&arguments.command, &additions),
        Err(code) => code,
    }
}

fn prepare(arguments: &RunArguments) -> Result<Additions, u8> {
    let library = locate::library().map_err(|places| {
        let places: Vec<String> = places
            .iter()
            .map(|place| place.display().to_string())
            .collect();
        complain!(
            "millrace: the library is missing; it is not at {}",
            places.join(" or ")
        );
        complain!("millrace: install Millrace again, or set MILLRACE_LIBRARY to its path");
        FAILED
    })?;
    let preload = append_preload(std::env::var_os("LD_PRELOAD"), &library).ok_or_else(|| {
        let library = library.display();
        complain!("millrace: LD_PRELOAD cannot hold {library}: it has a space or a colon");
        FAILED
    })?;
    let mut additions = vec![("LD_PRELOAD", preload)];
    if let Some(socket) = agent_socket() {
        // The program may go to another directory.
        let socket = std::path::absolute(&socket).unwrap_or(socket);
        additions.push((locate::AGENT_VARIABLE, socket.into_os_string()));
    }
    if let Some(mode) = &arguments.mode {
        additions.push(("MILLRACE_MODE", mode.into()));
    }
    Ok(additions)
}

/// The socket of an agent that answers, or of one that is started now. Without one the program runs all the same.
fn agent_socket() -> Option<PathBuf> {
    if let Ok(found) = locate::agent_to_stay(locate::PATIENCE_OF_PROGRAMS) {
        return Some(found.socket);
    }
    let socket = locate::named_socket().unwrap_or_else(locate::own_socket);
    match background::start(&socket) {
        Ok(()) => {
            // It would wait ten seconds for the program's first TCP socket otherwise.
            let _ = locate::agent_to_stay(background::PATIENCE);
            Some(socket)
        }
        Err(error) => {
            // Another program may have started one at the same moment.
            if locate::agent_to_stay(locate::PATIENCE_OF_PROGRAMS).is_err()
                && std::io::stderr().is_terminal()
            {
                complain!(
                    "millrace: connections stay on the kernel's road: no agent could be started: {error:#}"
                );
            }
            // The library looks there again from time to time.
            Some(socket)
        }
    }
}

/// `LD_PRELOAD` with the library at its end, once. `None`: the library's path cannot be said there.
fn append_preload(current: Option<OsString>, library: &Path) -> Option<OsString> {
    let library = library.as_os_str().as_bytes();
    let separates = |byte: &u8| matches!(byte, b' ' | b':');
    if library.iter().any(separates) {
        return None;
    }
    let mut value = current.unwrap_or_default().into_vec();
    if !value
        .split(|byte| separates(byte))
        .any(|entry| entry == library)
    {
        if !value.is_empty() {
            value.push(b':');
        }
        value.extend_from_slice(library);
    }
    Some(OsString::from_vec(value))
}

fn become_program(command: &[OsString], additions: &Additions) -> u8 {
    let words: Vec<CString> = command.iter().filter_map(|word| c_string(word)).collect();
    let Some(program) = words.first() else {
        return FAILED;
    };
    let kept =
        std::env::vars_os().filter(|(name, _)| additions.iter().all(|added| name != added.0));
    let added = additions
        .iter()
        .map(|(name, value)| (OsString::from(name), value.clone()));
    let environment: Vec<CString> = kept
        .chain(added)
        .filter_map(|(mut entry, value)| {
            entry.push("=");
            entry.push(value);
            c_string(&entry)
        })
        .collect();
    let Err(errno) = nix::unistd::execvpe(program, &words, &environment);
    let name = millrace_agent::printable(program.as_bytes());
    complain!("millrace: cannot run {name}: {}", errno.desc());
    if errno == Errno::ENOENT {
        NOT_FOUND
    } else {
        NOT_EXECUTABLE
    }
}

/// What comes from the command line and the environment has no zero byte, so nothing is lost.
fn c_string(text: &OsStr) -> Option<CString> {
    CString::new(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_appended_once_and_what_was_there_stays_first() {
        let library = Path::new("/opt/l.so");
        let appended =
            |current: Option<&str>| append_preload(current.map(OsString::from), library).unwrap();
        assert_eq!(appended(None), "/opt/l.so");
        assert_eq!(appended(Some("")), "/opt/l.so");
        assert_eq!(appended(Some("a.so b.so")), "a.so b.so:/opt/l.so");
        assert_eq!(appended(Some("/opt/l.so:a.so")), "/opt/l.so:a.so");
        assert_eq!(append_preload(None, Path::new("/my dir/l.so")), None);
    }

    #[test]
    fn modes_are_those_that_are_documented() {
        for good in [
            "default",
            "eager",
            "eager-nospin",
            "chaos:0",
            "chaos:18446744073709551615",
        ] {
            assert!(parse_mode(good).is_ok(), "{good}");
        }
        for bad in ["", "fast", "chaos", "chaos:", "chaos:x"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }
}
