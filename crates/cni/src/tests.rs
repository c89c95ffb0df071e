//! The plugin against a switch that runs, and an IPAM plugin that says what it was asked.

use std::collections::HashMap;
use std::fs;
use std::io::PipeWriter;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_switch::{Config as SwitchConfig, Options, Request, Server, SwitchReport, ask};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use crate::commands::{self, Call};
use crate::error::Error;

/// Answers with one address, and writes down what it was asked; refuses where a file says so.
const IPAM: &str = r#"#!/bin/sh
here=$(dirname "$0")
cat > "$here/input"
echo "$CNI_COMMAND" >> "$here/asked"
[ ! -e "$here/refuses" ] || { echo '{"code": 99, "msg": "no address is left", "details": "all are taken"}'; exit 1; }
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"ips": [{"address": "10.9.0.2/24", "gateway": "10.9.0.1"}],'
echo ' "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.9.0.1"]}}'
"#;

/// A directory with a switch and an IPAM plugin.
struct Site {
    place: tempfile::TempDir,
    /// The pod's network namespace.
    netns: String,
    switch: Option<(PipeWriter, JoinHandle<()>)>,
}

impl Site {
    fn new() -> Site {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("addresses");
        fs::write(&program, IPAM).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut site = Site {
            place,
            netns: "/run/netns/pod".to_owned(),
            switch: None,
        };
        site.start();
        site
    }

    fn start(&mut self) {
        let (stopped, stop) = std::io::pipe().unwrap();
        let options = Options {
            control: self.control(),
            config: SwitchConfig::default(),
        };
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let server = Server::start(options, stopped.as_fd()).unwrap();
            ready.send(()).unwrap();
            server.serve().unwrap();
        });
        is_ready.recv().unwrap();
        self.switch = Some((stop, thread));
    }

    fn stop(&mut self) {
        if let Some((stop, thread)) = self.switch.take() {
            drop(stop);
            thread.join().unwrap();
        }
    }

    fn control(&self) -> PathBuf {
        self.place.path().join("switch.sock")
    }

    fn directory(&self) -> PathBuf {
        self.place.path().join("cni")
    }

    fn config(&self, version: &str) -> Value {
        json!({
            "cniVersion": version,
            "name": "fast",
            "type": "millrace-cni",
            "switch": self.control(),
            "directory": self.directory(),
            "vlan": 7,
            "mtu": 1400,
            "settings": { "memif": { "id": 3 }, "mac_limit": 5 },
            "ipam": { "type": "addresses" },
        })
    }

    fn ask(&self, command: &str, container: &str, config: &Value) -> Result<Value, Error> {
        let path = self.place.path().display().to_string();
        let given = HashMap::from([
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", self.netns.as_str()),
            ("CNI_IFNAME", "eth1"),
            ("CNI_PATH", path.as_str()),
        ]);
        let input = config.to_string();
        let call = Call::new(input.as_bytes(), |name| {
            given.get(name).map(|value| (*value).to_owned())
        });
        let text = commands::run(&call)?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Ports of the switch: names, VLANs.
    fn ports(&self) -> Vec<(String, String)> {
        let report = ask(&self.control(), &Request::Report).unwrap();
        let report: SwitchReport = serde_json::from_value(report).unwrap();
        let ports = report.ports.into_iter();
        ports.map(|port| (port.name, port.vlan)).collect()
    }

    fn asked(&self) -> Vec<String> {
        let text = fs::read_to_string(self.place.path().join("asked")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn refuse_addresses(&self) {
        fs::write(self.place.path().join("refuses"), "").unwrap();
    }

    /// Whether anything of containers is left.
    fn is_clean(&self) -> bool {
        self.ports().is_empty() && !self.directory().join("fast").exists()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop();
    }
}

/// As long as runtimes make them, and alike at the beginning.
const ONE: &str = "4f5c0a7e1b2d3c4e5f60718293a4b5c64f5c0a7e1b2d3c4e5f60718293a4b5c6";
const OTHER: &str = "4f5c0a7e1b2d3c4e5f60718293a4b5c64f5c0a7e1b2d3c4e5f60718293a4b5c7";
/// What they are called for short.
const ONE_SHORT: &str = "4f5c0a7e1b2d-3f1c3948c3b4410d";

#[test]
fn a_port_comes_and_goes() {
    let site = Site::new();
    let mut config = site.config("1.1.0");
    let result = site.ask("ADD", ONE, &config).unwrap();
    let socket = site
        .directory()
        .join("fast")
        .join(ONE_SHORT)
        .join("eth1/port.sock");
    assert!(socket.exists());
    let interface = &result["interfaces"][0];
    assert_eq!(interface["name"], "eth1");
    assert_eq!(interface["socketPath"], json!(socket));
    assert_eq!(
        (&interface["mtu"], &interface["sandbox"]),
        (&json!(1400), &json!("/run/netns/pod"))
    );
    assert!(interface["mac"].as_str().unwrap().starts_with("02:"));
    assert_eq!(
        result["ips"],
        json!([{ "address": "10.9.0.2/24", "gateway": "10.9.0.1", "interface": 0 }])
    );
    assert_eq!(result["routes"], json!([{ "dst": "0.0.0.0/0" }]));
    assert_eq!(result["dns"], json!({ "nameservers": ["10.9.0.1"] }));
    let ports = site.ports();
    assert_eq!(
        ports,
        [(format!("cni/{}/eth1", ONE_SHORT), "access 7".to_owned())]
    );

    config["prevResult"] = result;
    site.ask("CHECK", ONE, &config).unwrap();
    let code = |asked: Result<Value, Error>| asked.unwrap_err().code;
    assert_eq!(code(site.ask("CHECK", OTHER, &config)), 3);
    assert_eq!(
        code(site.ask("ADD", ONE, &config)),
        7,
        "it is there already"
    );
    site.ask("DEL", ONE, &config).unwrap();
    assert!(site.is_clean());
    site.ask("DEL", ONE, &config).unwrap();
    assert_eq!(code(site.ask("CHECK", ONE, &config)), 3);
    assert_eq!(site.asked(), ["ADD", "CHECK", "DEL", "DEL"]);
}

#[test]
fn a_port_is_of_the_kind_that_is_asked_for() {
    let site = Site::new();
    let mut config = site.config("1.1.0");
    config["port"] = json!("vhost_user");
    config["settings"] = json!({ "vhost_user": { "accept_unsealed": true } });
    config["socketMode"] = json!(0o660);
    let result = site.ask("ADD", ONE, &config).unwrap();
    let socket = result["interfaces"][0]["socketPath"].as_str().unwrap();
    let mode = fs::metadata(socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    site.ask("DEL", ONE, &config).unwrap();
    assert!(site.is_clean());
}

/// A network namespace for this thread, and its path. None, and a line that says so, where there is none to be had.
fn apart() -> Option<String> {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        eprintln!("skipped: no network namespace here: {error}");
        return None;
    }
    let own = fs::read_link("/proc/thread-self").unwrap();
    Some(format!("/proc/{}/ns/net", own.display()))
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// Whether an interface goes. What another test starts has its queues, too, until it is another program.
fn is_gone(name: &str) -> bool {
    let place = Path::new("/proc/sys/net/ipv4/conf").join(name);
    (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !place.exists()
    })
}

#[test]
fn a_tap_interface_is_the_pod_s_and_goes_with_its_port() {
    let mut site = Site::new();
    let Some(netns) = apart() else { return };
    site.netns.clone_from(&netns);
    let mut config = site.config("1.1.0");
    config["port"] = json!("tap");
    config["settings"] = json!({ "tap": { "queues": 2 } });
    let result = site.ask("ADD", ONE, &config).unwrap();
    let interface = result["interfaces"][0].as_object().unwrap();
    assert!(!interface.contains_key("socketPath"));
    assert_eq!(
        (&interface["name"], &interface["sandbox"]),
        (&json!("eth1"), &json!(netns))
    );
    assert_eq!(site.ports().len(), 1);
    config["prevResult"] = result;
    site.ask("CHECK", ONE, &config).unwrap();

    // What somebody has changed is noticed.
    for (change, back, what) in [
        ("link set eth1 mtu 1300", "link set eth1 mtu 1400", "made"),
        (
            "route del default",
            "route add default via 10.9.0.1",
            "0.0.0.0/0",
        ),
        (
            "addr del 10.9.0.2/24 dev eth1",
            "addr add 10.9.0.2/24 dev eth1",
            "10.9.0.2",
        ),
    ] {
        ip(change);
        let refused = site.ask("CHECK", ONE, &config).unwrap_err();
        assert!(
            refused.code == 101 && refused.message.contains(what),
            "{change}: {refused:?}"
        );
        ip(back);
    }
    let taken = site.ask("ADD", OTHER, &config).unwrap_err();
    assert!(taken.message.contains("already"), "{taken:?}");
    config["interface"] = json!("eth2");
    let other = site.ask("ADD", OTHER, &config).unwrap();
    assert_eq!(other["interfaces"][1]["name"], "eth2");
    site.ask("DEL", OTHER, &config).unwrap();
    site.ask("DEL", ONE, &config).unwrap();
    assert!(site.is_clean());
    assert!(is_gone("eth1") && is_gone("eth2"));

    // Nobody takes it: it is gone, too.
    site.stop();
    assert_eq!(site.ask("ADD", ONE, &config).unwrap_err().code, 11);
    assert!(is_gone("eth2"));
}

#[test]
fn results_of_other_plugins_are_kept() {
    let site = Site::new();
    let mut config = site.config("0.4.0");
    config["prevResult"] = json!({
        "cniVersion": "0.4.0",
        "interfaces": [{ "name": "eth0", "mac": "02:11:22:33:44:55", "sandbox": "/run/netns/pod", "theirs": 1 }],
        "ips": [{ "version": "6", "address": "fd00::2/64", "interface": 0 }],
        "dns": { "domain": "example" },
    });
    config["runtimeConfig"] = json!({ "mac": "02:aa:bb:cc:dd:ee" });
    let result = site.ask("ADD", ONE, &config).unwrap();
    assert_eq!(result["cniVersion"], "0.4.0");
    assert_eq!(
        result["interfaces"][0],
        config["prevResult"]["interfaces"][0]
    );
    assert_eq!(result["interfaces"][1]["mac"], "02:aa:bb:cc:dd:ee");
    assert!(result["interfaces"][1].get("mtu").is_none());
    assert_eq!(result["ips"][0], config["prevResult"]["ips"][0]);
    assert_eq!(
        (&result["ips"][1]["interface"], &result["ips"][1]["version"]),
        (&json!(1), &json!("4"))
    );
    assert_eq!(result["dns"], json!({ "domain": "example" }));
    config["prevResult"] = result;
    site.ask("CHECK", ONE, &config).unwrap();
}

#[test]
fn what_fails_leaves_nothing() {
    let mut site = Site::new();
    let mut config = site.config("1.0.0");
    site.refuse_addresses();
    let refused = site.ask("ADD", ONE, &config).unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (99, "no address is left")
    );
    assert!(site.is_clean());
    config["ipam"] = json!({ "type": "nothing-of-that-name" });
    assert_eq!(site.ask("ADD", ONE, &config).unwrap_err().code, 7);
    assert!(site.is_clean());
    config["ipam"] = json!({});
    config["settings"] = json!({ "colour": "red" });
    let refused = site.ask("ADD", ONE, &config).unwrap_err();
    assert!(
        refused.code == 100 && refused.details.contains("colour"),
        "{refused:?}"
    );
    assert!(site.is_clean());
    config["settings"] = json!({});
    site.stop();
    assert_eq!(site.ask("ADD", ONE, &config).unwrap_err().code, 11);
    assert_eq!(site.ask("STATUS", ONE, &config).unwrap_err().code, 50);
    assert!(!site.directory().join("fast").exists());
    site.start();
    site.ask("STATUS", ONE, &config).unwrap();
}

#[test]
fn what_was_left_is_collected() {
    let mut site = Site::new();
    let mut config = site.config("1.1.0");
    site.ask("ADD", ONE, &config).unwrap();
    site.ask("ADD", OTHER, &config).unwrap();
    config["cni.dev/valid-attachments"] = json!([{ "containerID": OTHER, "ifname": "eth1" }]);
    site.ask("GC", ONE, &config).unwrap();
    assert_eq!(site.ports().len(), 1);
    // A switch that was started anew has no ports: what is written down goes all the same.
    site.stop();
    site.start();
    assert_eq!(
        site.ask("CHECK", OTHER, &config).unwrap_err().code,
        7,
        "there is no earlier result"
    );
    config["cni.dev/valid-attachments"] = json!([]);
    site.ask("GC", ONE, &config).unwrap();
    assert!(site.is_clean());
}

/// Killed after each thing that ADD does: DEL takes away what there is.
#[test]
fn del_takes_away_what_a_killed_add_has_left() {
    let site = Site::new();
    let config = site.config("1.1.0");
    for last in ["directory", "half a record", "record", "port"] {
        let network = site.directory().join("fast");
        let own = network.join(ONE_SHORT).join("eth1");
        fs::create_dir_all(&own).unwrap();
        let ending = match last {
            "directory" => None,
            "half a record" => Some("new"),
            _ => Some("json"),
        };
        if let Some(ending) = ending {
            fs::write(network.join(format!("eth1@{ONE}.{ending}")), "{").unwrap();
        }
        if last == "port" {
            let toml = port(&own.join("port.sock"));
            let request = Request::AddPort {
                toml,
                ifindex: None,
            };
            ask(&site.control(), &request).unwrap();
        }
        site.ask("DEL", ONE, &config).unwrap();
        assert!(site.is_clean(), "{last}");
    }
}

fn port(socket: &Path) -> String {
    let name = format!("cni/{}/eth1", ONE_SHORT);
    format!(
        "name = {name:?}\nmemif.path = {:?}\n",
        socket.display().to_string()
    )
}

#[test]
fn a_path_that_no_socket_can_have_is_told() {
    let site = Site::new();
    let mut config = site.config("1.1.0");
    config["name"] = json!("n".repeat(100));
    let refused = site.ask("ADD", ONE, &config).unwrap_err();
    assert!(
        refused.code == 7 && refused.message.contains("107 bytes"),
        "{refused:?}"
    );
    assert!(site.ports().is_empty() && !site.directory().join("n".repeat(100)).exists());
}

#[test]
fn what_cannot_be_is_told() {
    let site = Site::new();
    let good = site.config("1.0.0");
    let with = |name: &str, value: Value| {
        let mut config = good.clone();
        config[name] = value;
        config
    };
    for (config, code) in [
        (with("cniVersion", json!("0.1.0")), 1),
        (with("cniVersion", json!(1)), 6),
        (with("name", json!("a/b")), 7),
        (with("port", json!("tarot")), 6),
        (with("directory", json!("here")), 7),
        (with("runtimeConfig", json!({ "mac": "02:00" })), 7),
        (with("settings", json!({ "memif": 1 })), 7),
        (with("interface", json!("eth2")), 7),
        (json!("nothing"), 6),
    ] {
        let refused = site.ask("ADD", ONE, &config).unwrap_err();
        assert_eq!(refused.code, code, "{config}: {refused:?}");
        let told: Value = serde_json::from_str(&refused.to_json("1.0.0")).unwrap();
        assert_eq!(
            (&told["code"], &told["cniVersion"]),
            (&json!(code), &json!("1.0.0"))
        );
    }
    assert_eq!(site.ask("DANCE", ONE, &good).unwrap_err().code, 4);
    for container in ["", "../up", "a b", "-a"] {
        assert_eq!(
            site.ask("ADD", container, &good).unwrap_err().code,
            4,
            "{container:?}"
        );
    }
    assert!(site.is_clean());
    let version = site
        .ask("VERSION", "", &json!({ "cniVersion": "1.0.0" }))
        .unwrap();
    assert_eq!(version["cniVersion"], "1.0.0");
    assert!(
        version["supportedVersions"]
            .as_array()
            .unwrap()
            .contains(&json!("1.1.0"))
    );
}
