//! A road's file, and what may be wrong with one.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Error, Result, anyhow, ensure};
use serde::Deserialize;
use toml::Spanned;

use super::{Device, Road};

/// What it has.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    /// Network namespaces of the two programs.
    server: Spanned<String>,
    client: Spanned<String>,
    /// Where the client finds the server.
    host: Option<Spanned<String>>,
    /// Where the server listens, if that is another address.
    bind: Option<Spanned<String>>,
    /// It is a Unix socket.
    #[serde(default)]
    unix: bool,
    /// How messages go; it is for programs that know it, which meet at a Unix socket.
    transport: Option<String>,
    /// It is for packets, which this program forwards.
    device: Option<Device>,
    /// Its programs ask an agent by themselves.
    #[serde(default)]
    agent: bool,
    /// Connections within the server's namespace are spliced.
    #[serde(default)]
    sockmap: bool,
    /// Both programs are started by this one.
    run_by: Option<String>,
    /// A module that the kernel has to have, loaded or not.
    module: Option<String>,
    /// The Debian package that brings its programs.
    package: Option<String>,
    /// What everybody who measures it has to know.
    caution: Option<String>,
    /// Of a road that takes processor time while nobody is on it, the commands that stop that, and let it go on.
    rest: Option<String>,
    wake: Option<String>,
    /// Commands, as a shell has them. The namespaces are made in a place where there are no others.
    set_up: Spanned<Vec<Spanned<String>>>,
}

/// The name of a road in a file.
pub(super) fn stem(path: &str) -> &str {
    let stem = Path::new(path).file_stem();
    stem.and_then(|name| name.to_str()).unwrap_or_default()
}

/// A road of the user's own.
pub(super) fn open(path: &str) -> Result<Road> {
    let name = stem(path);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    ensure!(
        name.chars().all(is_plain),
        "{path}: a road is called as its file, in letters, digits, -, _ and . only"
    );
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    read(name, path, &text)
}

/// Reads a road; `place` is where its text is from, for messages.
pub(super) fn read(name: &str, place: &str, text: &str) -> Result<Road> {
    let wrong = |span: Range<usize>, what: String| -> Error {
        let line = 1 + text[..span.start].matches('\n').count();
        anyhow!("{place}:{line}: {what}")
    };
    let file: File = toml::from_str(text).map_err(|error| {
        let what = error.message().to_owned();
        wrong(error.span().unwrap_or(0..0), what)
    })?;
    let mut namespaces = BTreeSet::new();
    for command in file.set_up.get_ref() {
        let words = shlex::split(command.get_ref())
            .filter(|words| !words.is_empty())
            .ok_or_else(|| {
                let what = "this is no command: it is empty, or its quotes do not match";
                wrong(command.span(), what.to_owned())
            })?;
        namespaces.extend(made_by(&words).map(str::to_owned));
    }
    for (end, namespace) in [("server", &file.server), ("client", &file.client)] {
        if !namespaces.contains(namespace.get_ref()) {
            let name = namespace.get_ref();
            let what = format!(
                "`{end}` is in the network namespace {name}, and no command of set_up makes it (ip netns add {name})"
            );
            return Err(wrong(namespace.span(), what));
        }
    }
    let unix = file.unix || file.transport.is_some() || file.device.is_some();
    if !unix && file.host.is_none() {
        let what = "`host` is missing: the address at which the client finds the server";
        return Err(wrong(0..0, what.to_owned()));
    }
    for address in [&file.host, &file.bind].into_iter().flatten() {
        if address.get_ref().parse::<IpAddr>().is_err() {
            let what = format!("{} is no IP address", address.get_ref());
            return Err(wrong(address.span(), what));
        }
    }
    if file.device.as_ref().is_some_and(has_wrong_ports) {
        let what = "`ports` of a device are one or two, and one where there is a `receiver`, which alone has none";
        return Err(wrong(0..0, what.to_owned()));
    }
    let host = file.host.map(Spanned::into_inner).unwrap_or_default();
    let set_up = file.set_up.into_inner().into_iter();
    Ok(Road {
        name: name.to_owned(),
        about: file.about,
        accelerated: false,
        build: None,
        base: name.to_owned(),
        server: file.server.into_inner(),
        client: file.client.into_inner(),
        bind: file.bind.map_or_else(|| host.clone(), Spanned::into_inner),
        host,
        unix,
        transport: file.transport,
        device: file.device,
        agent: file.agent,
        sockmap: file.sockmap,
        run_by: file.run_by,
        module: file.module,
        package: file.package,
        caution: file.caution,
        rest: file.rest,
        wake: file.wake,
        set_up: set_up.map(Spanned::into_inner).collect(),
    })
}

fn has_wrong_ports(device: &Device) -> bool {
    let most = match (&device.command, &device.receiver) {
        (None, receiver) => return receiver.is_none() || !device.ports.is_empty(),
        (Some(_), Some(_)) => 1,
        (Some(_), None) => 2,
    };
    !(1..=most).contains(&device.ports.len())
}

/// The network namespace that a command makes.
pub(super) fn made_by(words: &[String]) -> Option<&str> {
    match words {
        [ip, netns, add, name] if [ip, netns, add] == ["ip", "netns", "add"] => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"about = "one namespace"
server = "one"
client = "one"
host = "127.0.0.1"
set_up = [
    "ip netns add one",
    "ip -n one link set lo up",
]
"#;

    #[test]
    fn a_mistake_is_told_with_its_file_and_line() {
        let road = read("mine", "mine.toml", GOOD).unwrap();
        assert_eq!(
            (road.base.as_str(), road.bind.as_str()),
            ("mine", "127.0.0.1")
        );
        for (from, to, told) in [
            ("about = ", "abuot = ", "mine.toml:1: unknown field `abuot`"),
            ("\"127.0.0.1\"", "127", "mine.toml:4: invalid type"),
            ("127.0.0.1", "localhost", "mine.toml:4: localhost is no IP"),
            (
                "client = \"one\"",
                "client = \"two\"",
                "mine.toml:3: `client` is in",
            ),
            ("add one\"", "add 'one\"", "mine.toml:6: this is no command"),
            (
                "\"ip -n one link set lo up\"",
                "\"\"",
                "mine.toml:7: this is no command",
            ),
            (
                "host = \"127.0.0.1\"\n",
                "",
                "mine.toml:1: `host` is missing",
            ),
            ("[\n", "\n", "mine.toml:6: key with no value"),
            (
                "host = \"127.0.0.1\"\n",
                "device = { command = \"true\", ports = [] }\n",
                "mine.toml:1: `ports` of a device",
            ),
            (
                "host = \"127.0.0.1\"\n",
                "device = { command = \"true\", ports = [\"a\", \"b\"], receiver = \"true\" }\n",
                "mine.toml:1: `ports` of a device",
            ),
            (
                "host = \"127.0.0.1\"\n",
                "device = { ports = [\"a\"], receiver = \"true\" }\n",
                "mine.toml:1: `ports` of a device",
            ),
            (
                "host = \"127.0.0.1\"\n",
                "device = { }\n",
                "mine.toml:1: `ports` of a device",
            ),
        ] {
            let error = read("mine", "mine.toml", &GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().starts_with(told), "{told}: {error}");
        }
    }
}
