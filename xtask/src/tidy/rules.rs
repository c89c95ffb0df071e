//! Rules that look at one file at a time.

use std::path::Path;

use super::source::{self, has_word};
use super::{File, Finding};

const LINE_LIMIT: usize = 140;
/// Files of these kinds are written by people, line by line.
const WRITTEN: &[&str] = &["rs", "md", "toml", "sh", "lua", "py", "c", "h", "txt"];
/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "helpers", "misc"];
/// Top directories of every system; a checkout directly below one says nothing about the machine.
const SYSTEM_PLACES: &[&str] = &["/", "/tmp", "/usr", "/opt", "/srv", "/var", "/mnt", "/home"];

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let places = machine_places();
    let mut findings = Vec::new();
    for file in files
        .iter()
        .filter(|file| file.path != "Cargo.lock" && file.path != "LICENSE")
    {
        findings.extend(lines(file));
        findings.extend(machine_paths(file, &places));
        findings.extend(name(file));
        if extension(file) == "rs" {
            findings.extend(unsafe_code(file));
            findings.extend(waits_across_forks(file));
        }
    }
    findings.extend(unsafe_is_forbidden(files));
    findings
}

fn extension(file: &File) -> &str {
    Path::new(&file.path)
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default()
}

/// Widths, blanks at the ends of lines, tabs, the last line's end.
fn lines(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !WRITTEN.contains(&extension(file)) {
        return findings;
    }
    for (number, line) in (1..).zip(file.text.lines()) {
        let width = line.chars().count();
        // Tables cannot be broken, and neither can links.
        let breakable = !line.starts_with('|') && line.trim().contains(' ');
        if width > LINE_LIMIT && breakable {
            let what = format!("{width} columns; {LINE_LIMIT} are the limit");
            findings.push(Finding::new(&file.path, number, what));
        }
        if line.ends_with([' ', '\t']) {
            findings.push(Finding::new(
                &file.path,
                number,
                "blanks at the end of the line",
            ));
        }
        if extension(file) == "rs" && line.starts_with('\t') {
            findings.push(Finding::new(&file.path, number, "indented by a tab"));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(Finding::new(&file.path, 0, "the last line has no end"));
    }
    findings
}

/// Places that only this machine has: around the checkout, and below the homes of users.
fn machine_places() -> Vec<String> {
    let mut places = vec!["/home/".to_owned(), "/Users/".to_owned()];
    places.extend(std::env::var("HOME").map(|home| format!("{home}/")));
    if let Ok(root) = std::env::current_dir().and_then(|path| path.canonicalize()) {
        let parent = root.parent().unwrap_or(&root);
        let system = SYSTEM_PLACES.iter().any(|place| parent == Path::new(place));
        let place = if system { &root } else { parent };
        places.push(format!("{}/", place.display()));
    }
    places.retain(|place| place != "//");
    places
}

/// Lines with a path that begins with one of the places, and is not the end of a longer one.
fn machine_paths(file: &File, places: &[String]) -> Vec<Finding> {
    let stands_in = |line: &str, place: &str| {
        line.match_indices(place).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + place.len()..].chars().next();
            let begins = !before.is_some_and(|c| c.is_alphanumeric() || "._-}/".contains(c));
            begins && after.is_some_and(char::is_alphanumeric)
        })
    };
    let lines = (1..).zip(file.text.lines());
    let findings = lines.filter_map(|(number, line)| {
        let place = places.iter().find(|place| stands_in(line, place))?;
        let what = format!("a path of this machine: {place}");
        Some(Finding::new(&file.path, number, what))
    });
    findings.collect()
}

fn name(file: &File) -> Option<Finding> {
    let path = Path::new(&file.path);
    let empty = |part: &str| EMPTY_NAMES.contains(&part);
    let stem = path.file_stem()?.to_str()?;
    let place = path
        .parent()?
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    (empty(stem) || empty(place)).then(|| Finding::new(&file.path, 0, "the name says nothing"))
}

/// Where `unsafe` may be: the crates whose purpose it is, and modules of system calls.
fn may_be_unsafe(path: &str) -> bool {
    path.starts_with("crates/shm/")
        || path.starts_with("crates/preload/")
        || path.starts_with("crates/channel-c/")
        || path.ends_with("/sys.rs")
        || path.contains("/sys/")
}

fn unsafe_code(file: &File) -> Vec<Finding> {
    if may_be_unsafe(&file.path) {
        return Vec::new();
    }
    let code = source::code_only(&file.text);
    let found = (1..)
        .zip(code.lines())
        .filter(|(_, line)| has_word(line, "unsafe"));
    found
        .map(|(number, _)| Finding::new(&file.path, number, "unsafe outside of a sys.rs"))
        .collect()
}

/// What the standard library waits with knows nothing of forks and signal handlers: in a child that was forked while another thread had it,
/// or in a handler that interrupts whoever has it, it is waited for without end. Tests may.
fn waits_across_forks(file: &File) -> Vec<Finding> {
    let in_programs = ["crates/preload/src/", "crates/stream/src/"];
    if !in_programs.iter().any(|place| file.path.starts_with(place))
        || file.path.ends_with("tests.rs")
    {
        return Vec::new();
    }
    let code = source::code_only(&file.text);
    let waiting = [
        "Once", "OnceLock", "LazyLock", "Mutex", "RwLock", "Condvar", "Barrier",
    ];
    (1..)
        .zip(code.lines().take_while(|line| *line != "mod tests {"))
        .filter(|(_, line)| waiting.iter().any(|word| has_word(line, word)))
        .map(|(number, _)| {
            Finding::new(
                &file.path,
                number,
                "waits for ever after a fork: use `Guarded` or an atomic",
            )
        })
        .collect()
}

/// A crate without a place for `unsafe` says so to the compiler, too.
fn unsafe_is_forbidden(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for root in files {
        let Some(directory) = root
            .path
            .strip_suffix("src/lib.rs")
            .or_else(|| root.path.strip_suffix("src/main.rs"))
        else {
            continue;
        };
        let inside = |file: &&File| file.path.starts_with(directory) && extension(file) == "rs";
        let has_place = files
            .iter()
            .filter(inside)
            .any(|file| may_be_unsafe(&file.path));
        if !has_place && !root.text.contains("#![forbid(unsafe_code)]") {
            findings.push(Finding::new(
                &root.path,
                1,
                "#![forbid(unsafe_code)] is missing",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn unsafe_is_found_in_code_and_not_in_comments() {
        let text = "// unsafe\n#![forbid(unsafe_code)]\nfn f() { unsafe { g() } }\n";
        let findings = unsafe_code(&file("crates/agent/src/proof.rs", text));
        assert_eq!(
            findings
                .iter()
                .map(|finding| finding.line)
                .collect::<Vec<_>>(),
            [3]
        );
        assert!(unsafe_code(&file("crates/agent/src/sys.rs", text)).is_empty());
    }

    #[test]
    fn what_a_forked_child_would_wait_for_is_found() {
        let text = "static RATE: OnceLock<u64> = OnceLock::new();\nfn f(work: impl FnOnce()) {}\nmod tests {\nuse std::sync::Mutex;\n}\n";
        let found = |path| waits_across_forks(&file(path, text)).len();
        assert_eq!(found("crates/preload/src/spin.rs"), 1);
        assert_eq!(found("crates/agent/src/server.rs"), 0);
    }

    #[test]
    fn machine_paths_are_paths_and_not_parts_of_longer_ones() {
        let places = ["/builds/".to_owned()];
        let found = |text| machine_paths(&file("a.md", text), &places).len();
        assert_eq!(found("see /builds/project/x"), 1);
        assert_eq!(
            found("see target/builds/x, or https://example.org/builds/x"),
            0
        );
    }

    #[test]
    fn tables_and_links_may_be_wide() {
        let wide = "x".repeat(200);
        assert!(lines(&file("a.md", &format!("| {wide} a |\n"))).is_empty());
        assert!(lines(&file("a.md", &format!("<{wide}>\n"))).is_empty());
        assert_eq!(lines(&file("a.md", &format!("a {wide}\n"))).len(), 1);
    }

    #[test]
    fn empty_names_are_refused() {
        assert!(name(&file("crates/a/src/utils.rs", "")).is_some());
        assert!(name(&file("tests/common/mod.rs", "")).is_some());
        assert!(name(&file("crates/a/src/ring.rs", "")).is_none());
    }
}
