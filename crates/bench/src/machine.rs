//! What a reader of a measurement has to know about the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::account;
use crate::markdown;
use crate::processors::Processors;
use crate::programs::{PEERS, SOFTRSS, find_program};
use crate::results::Fact;

/// The arguments that make the programs of the benchmarks tell their version.
const TOOLS: &[(&str, &str)] = &[
    ("redis-server", "--version"),
    ("redis-benchmark", "--version"),
    ("memcached", "--version"),
    ("nginx", "-v"),
    ("haproxy", "-v"),
    ("wrk", "-v"),
    ("sockperf", "--version"),
    ("iperf3", "--version"),
    ("pgbench", "--version"),
    ("ovs-vswitchd", "--version"),
    // Where Debian has it; no PATH leads there.
    (
        "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk",
        "--version",
    ),
    ("ip", "-V"),
    ("nft", "--version"),
    ("ethtool", "--version"),
    (PEERS, "--version"),
    (SOFTRSS, "--version"),
    ("rustc", "--version"),
];

/// Names of the facts that are others each time.
pub(crate) const VARYING: [&str; 2] = ["load before the run", "frequency before the run"];

/// Processor, kernel, mitigations, system, versions of the programs. `used`: the processors of server and client, if they are pinned.
pub fn facts(used: Option<[usize; 2]>) -> Vec<Fact> {
    let mut facts: Vec<(&str, String)> = vec![
        ("processor", processor()),
        ("processors used", placement(used)),
        ("memory", memory()),
        ("kernel", first_line("/proc/sys/kernel/osrelease")),
        ("mitigations", mitigations()),
        (
            "time of interrupts",
            account::how_interrupts_count().to_owned(),
        ),
        ("system", system()),
        (VARYING[0], first_line("/proc/loadavg")),
        (VARYING[1], frequency()),
    ];
    let of_processors = Processors::here().facts(&allowed_processors());
    for &(tool, argument) in TOOLS {
        let name = tool.rsplit('/').next().unwrap_or(tool);
        facts.push((
            name,
            version(tool, argument).unwrap_or_else(|| "not installed".to_owned()),
        ));
    }
    let named = facts.into_iter().map(|(name, value)| Fact {
        name: name.to_owned(),
        value,
    });
    named.chain(of_processors).collect()
}

/// What tells a build from another one: a checksum of each of its files that there is.
#[must_use]
pub fn build(files: &[PathBuf]) -> Fact {
    let sum = |file: &PathBuf| {
        let bytes = fs::read(file).ok()?;
        let mut sum = flate2::Crc::new();
        sum.update(&bytes);
        let name = file.file_name()?.to_string_lossy().into_owned();
        Some(format!("{name} {:08x}", sum.sum()))
    };
    Fact {
        name: "build".to_owned(),
        value: files.iter().filter_map(sum).collect::<Vec<_>>().join(", "),
    }
}

/// Facts that differ: name, value before, value now. Those that differ always are none of them.
pub(crate) fn differences(before: &[Fact], now: &[Fact]) -> Vec<[String; 3]> {
    let value = |facts: &[Fact], name: &str| {
        let fact = facts.iter().find(|fact| fact.name == name);
        fact.map_or("not told".to_owned(), |fact| fact.value.clone())
    };
    let is_new = |fact: &&Fact| before.iter().all(|other| other.name != fact.name);
    let all = before.iter().chain(now.iter().filter(is_new));
    all.filter(|fact| !VARYING.contains(&fact.name.as_str()))
        .map(|fact| {
            [
                fact.name.clone(),
                value(before, &fact.name),
                value(now, &fact.name),
            ]
        })
        .filter(|[_, before, now]| before != now)
        .collect()
}

/// Facts as a Markdown table.
pub fn table(facts: &[Fact]) -> String {
    let mut lines = vec![["fact", "here"].map(str::to_owned).to_vec()];
    lines.extend(
        facts
            .iter()
            .map(|fact| vec![fact.name.clone(), fact.value.clone()]),
    );
    markdown::table(&lines)
}

/// The processors that we may use, in order.
pub fn allowed_processors() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    parse_list(list.unwrap_or("0"))
}

/// Two processors for the two ends of a pair, of different cores if there are. None: there is one only.
#[must_use]
pub fn two_processors() -> Option<[usize; 2]> {
    let allowed = allowed_processors();
    let (&first, others) = allowed.split_first()?;
    let siblings = siblings(first);
    let other = others.iter().find(|other| !siblings.contains(other));
    other.or(others.first()).map(|&second| [first, second])
}

/// The processors that are threads of the same core.
fn siblings(processor: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
    parse_list(&first_line(&path))
}

/// What a reader has to know before believing a figure that is measured now.
#[must_use]
pub fn warnings() -> Vec<String> {
    let mut found = Vec::new();
    let allowed = allowed_processors().len();
    if allowed < 2 {
        found.push("server and client share the only processor that may be used".to_owned());
    }
    let load = first_line("/proc/loadavg");
    let busy = load
        .split(' ')
        .next()
        .and_then(|word| word.parse::<f64>().ok());
    if let Some(busy) = busy.filter(|busy| *busy > allowed as f64 / 2.0) {
        let processors = if allowed == 1 {
            "processor"
        } else {
            "processors"
        };
        found.push(format!(
            "the machine was busy before the run: {busy} programs wanted to run on {allowed} {processors}"
        ));
    }
    found
}

/// Now, by UTC, as `2026-11-22T09:30:00Z`.
#[must_use]
pub fn now() -> String {
    capture("date", &["-u", "+%FT%TZ"]).unwrap_or_else(|| "unknown".to_owned())
}

/// Today, by UTC, as year-month-day.
pub fn today() -> String {
    capture("date", &["-u", "+%F"]).unwrap_or_else(|| "unknown-date".to_owned())
}

/// The commit that is checked out, with a mark when the tree differs from it elsewhere than in results.
pub fn commit() -> String {
    let revision = capture("git", &["rev-parse", "--short=12", "HEAD"]);
    let elsewhere = ["status", "--porcelain", "--", ".", ":!docs/results"];
    let changes = capture("git", &elsewhere);
    match (revision, changes) {
        (Some(revision), Some(changes)) if !changes.is_empty() => format!("{revision} and changes"),
        (Some(revision), _) => revision,
        (None, _) => "not committed".to_owned(),
    }
}

/// What a command prints, if it succeeds.
pub fn capture(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| field_of(&text, name);
    let count = text
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let model = field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let virtual_machine = match field("flags") {
        Some(flags) if flags.split(' ').any(|flag| flag == "hypervisor") => ", virtual machine",
        _ => "",
    };
    format!("{count} × {model}{virtual_machine}")
}

/// Of the first processor, as the kernel tells it now.
fn frequency() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let megahertz = field_of(&text, "cpu MHz");
    megahertz.map_or("unknown".to_owned(), |value| format!("{value} MHz"))
}

/// The first line with this name, of a file with lines `name : value`.
fn field_of(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    let (_, value) = line.split_once(':')?;
    Some(value.trim().to_owned())
}

fn placement(used: Option<[usize; 2]>) -> String {
    let [server, client] = match used {
        Some(used) => used,
        None if allowed_processors().len() > 1 => return "none in particular".to_owned(),
        None => return "one, for server and client".to_owned(),
    };
    let relation = if server == client {
        "the same one"
    } else if siblings(server).contains(&client) {
        "threads of one core"
    } else {
        "different cores"
    };
    format!("server {server}, client {client}, by what the kernel is told {relation}")
}

fn memory() -> String {
    let kibibytes = meminfo(&["MemTotal"]);
    format!("{:.1} GiB", kibibytes as f64 / f64::from(1 << 20))
}

/// The sum of some lines of `/proc/meminfo`, in KiB.
pub fn meminfo(names: &[&str]) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        names
            .contains(&name)
            .then(|| rest.split_whitespace().next()?.parse::<u64>().ok())?
    };
    text.lines().filter_map(value).sum()
}

/// Whether the kernel has a module: loaded, built in, or in the directory from which it is loaded when it is first used.
#[must_use]
pub fn has_module(name: &str) -> bool {
    if Path::new("/sys/module").join(name).exists() {
        return true;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let directory = Path::new("/lib/modules").join(release.trim());
    // A line of either file begins with a path: `kernel/net/smc/smc.ko.xz: …`.
    let is_it = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        let stem = file.split_once(".ko").map(|(stem, _)| stem);
        stem.is_some_and(|stem| stem.replace('-', "_") == name)
    };
    ["modules.builtin", "modules.dep"].iter().any(|list| {
        let text = fs::read_to_string(directory.join(list)).unwrap_or_default();
        text.lines().any(is_it)
    })
}

/// Memory of the kernel's caches with these names, in bytes. Only root may see it.
pub fn slabs(names: &[&str]) -> Option<u64> {
    let text = fs::read_to_string("/proc/slabinfo").ok()?;
    let bytes = |line: &str| {
        // slabinfo(5): name, objects in use, all objects, size of one.
        let words: Vec<&str> = line.split_whitespace().take(4).collect();
        let [name, _, objects, size] = words[..] else {
            return None;
        };
        let known = names.contains(&name);
        known.then_some(objects.parse::<u64>().ok()? * size.parse::<u64>().ok()?)
    };
    Some(text.lines().filter_map(bytes).sum())
}

fn mitigations() -> String {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return "unknown".to_owned();
    };
    let mut active: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path()).ok()?;
            let means = state.trim().strip_prefix("Mitigation: ")?;
            let short = means.split([';', ',']).next()?;
            Some(format!("{} ({short})", entry.file_name().to_str()?))
        })
        .collect();
    active.sort();
    if active.is_empty() {
        "none".to_owned()
    } else {
        active.join(", ")
    }
}

fn system() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("unknown").trim_matches('"').to_owned()
}

/// The first printed line that has a digit, without the program's colours.
fn version(tool: &str, argument: &str) -> Option<String> {
    let program = find_program(tool)?;
    let output = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text
        .lines()
        .find(|line| line.contains(|c: char| c.is_ascii_digit()))?;
    Some(
        line.split(" sha=")
            .next()?
            .split(" Copyright")
            .next()?
            .trim()
            .to_owned(),
    )
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}

/// Parses the kernel's lists of processors: `0-2,5`.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_build_and_another_kernel_differ_and_the_load_does_not() {
        let [load_name, _] = VARYING;
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("millrace");
        let mut facts = Vec::new();
        for content in ["one", "one", "two"] {
            fs::write(&program, content).unwrap();
            facts.push(build(&[program.clone(), directory.path().join("gone")]));
        }
        assert!(facts[0].value.starts_with("millrace ") && facts[0] == facts[1]);
        let with = |build: &Fact, load: &str, kernel: &str| {
            let fact = |name: &str, value: &str| Fact {
                name: name.to_owned(),
                value: value.to_owned(),
            };
            vec![build.clone(), fact(load_name, load), fact("kernel", kernel)]
        };
        let before = with(&facts[0], "0.1", "6.18");
        assert!(differences(&before, &with(&facts[1], "0.2", "6.18")).is_empty());
        let found = differences(&before, &with(&facts[2], "0.1", "6.19"));
        assert_eq!(found.len(), 2);
        assert_eq!(found[1], ["kernel", "6.18", "6.19"]);
        assert_eq!(differences(&[], &before).len(), 2);
    }

    #[test]
    fn the_processors_that_are_told_are_those_that_a_run_has() {
        let told = |used| {
            let facts = facts(used);
            let fact = facts.iter().find(|fact| fact.name == "processors used");
            fact.unwrap().value.clone()
        };
        assert!(told(Some([9001, 7])).starts_with("server 9001, client 7, "));
        assert!(told(Some([7, 7])).ends_with("the same one"));
        assert!(!told(None).contains("server 0"), "{}", told(None));
    }

    #[test]
    fn lists_of_processors_are_expanded() {
        assert_eq!(parse_list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(parse_list("").is_empty());
    }
}
