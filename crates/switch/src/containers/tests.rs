//! Containers, which here are processes that sleep.

use std::process::{Child, Command};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::name::container_name;
use super::*;
use crate::config::Config;

const DEVICES: &str = "[[device]]\nname = \"fast\"\nports = 2\nmemif = { id = 3, secret = \"x\" }\nmtu = 9000\n\
                       [[device]]\nname = \"guest\"\ncontainers = 1\nvhost_user = {}\n";
/// As long as runtimes make them, and alike at the beginning.
const ONE: &str = "4f5c0a7e1b2d3c4e5f60718293a4b5c64f5c0a7e1b2d3c4e5f60718293a4b5c6";
const OTHER: &str = "4f5c0a7e1b2d3c4e5f60718293a4b5c64f5c0a7e1b2d3c4e5f60718293a4b5c7";

/// The first process of a container.
struct First(Child);

impl First {
    fn new() -> First {
        First(Command::new("sleep").arg("1000").spawn().unwrap())
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Site {
    place: tempfile::TempDir,
    switch: Switch,
    containers: Containers,
}

impl Site {
    fn new() -> Site {
        Site::at(tempfile::tempdir().unwrap(), DEVICES)
    }

    fn at(place: tempfile::TempDir, text: &str) -> Site {
        let config = Config::parse(text).unwrap();
        let mut switch = Switch::inline(&config).unwrap();
        let control = place.path().join("switch.sock");
        let containers = Containers::open(&control, config.device, &mut switch).unwrap();
        Site {
            place,
            switch,
            containers,
        }
    }

    /// The switch ends, and another one is started.
    fn again(self, text: &str) -> Site {
        let Site {
            place,
            switch,
            containers,
        } = self;
        drop((switch, containers));
        Site::at(place, text)
    }

    fn add(&mut self, id: &str, of: &First, device: &str) -> Result<PathBuf, String> {
        self.containers.add(&mut self.switch, id, of.0.id(), device)
    }

    fn ports(&self) -> Vec<String> {
        self.switch.port_names("")
    }

    fn directory(&self) -> PathBuf {
        self.place.path().join("switch.ports")
    }

    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Until an end is told.
    fn wait(&mut self) {
        let mut descriptors = [PollFd::new(self.containers.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut descriptors, PollTimeout::from(60_000_u16)), Ok(1));
        self.containers.collect(&mut self.switch);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_container_has_its_ports_as_long_as_it_lives() {
    let mut site = Site::new();
    let first = First::new();
    let place = site.add(ONE, &first, "fast").unwrap();
    assert_eq!(
        place,
        site.directory().join(container_name(ONE)).join("fast")
    );
    assert_eq!(
        [
            mode(&site.directory()),
            mode(&place),
            mode(&place.join("1.sock"))
        ],
        [0o700, 0o755, 0o666]
    );
    let facts = fs::read_to_string(place.join(FACTS)).unwrap();
    let facts: serde_json::Value = serde_json::from_str(&facts).unwrap();
    assert_eq!(
        facts[1],
        json!({ "socket": "1.sock", "kind": "memif", "id": 3, "secret": "x", "mtu": 9000 })
    );
    let own = format!("cdi/{}/fast/", container_name(ONE));
    assert_eq!(site.ports(), [format!("{own}0"), format!("{own}1")]);

    // Asked again it is the same, and another device is another directory.
    assert_eq!(site.add(ONE, &first, "fast").unwrap(), place);
    site.add(ONE, &first, "guest").unwrap();
    assert_eq!(site.ports().len(), 3);
    let report = site.containers.report();
    let counts = report
        .iter()
        .map(|device| (device.containers, device.containers_max));
    assert_eq!(counts.collect::<Vec<_>>(), [(1, None), (1, Some(1))]);

    drop(first);
    site.wait();
    assert!(site.ports().is_empty() && site.left().is_empty());
    let directory = site.directory();
    drop(site.containers);
    assert!(!directory.exists());
}

#[test]
fn what_cannot_be_had_is_told_and_leaves_nothing() {
    let mut site = Site::new();
    let (first, other) = (First::new(), First::new());
    let unknown = site.add(ONE, &first, "slow").unwrap_err();
    assert!(unknown.contains("fast, guest"), "{unknown}");
    for id in ["", "../x", "a b", ".a", "-a"] {
        assert!(site.add(id, &first, "fast").is_err(), "{id}");
    }
    let gone = site.containers.add(&mut site.switch, ONE, 0, "fast");
    assert!(gone.unwrap_err().contains("cannot be watched"));
    assert!(site.ports().is_empty() && !site.directory().exists());

    site.add(ONE, &first, "guest").unwrap();
    let most = site.add(OTHER, &other, "guest").unwrap_err();
    assert!(most.contains("1 containers have it"), "{most}");
    let alike = site.add(ONE, &other, "fast").unwrap_err();
    assert!(alike.contains("by that name"), "{alike}");
    // A socket cannot be made where a directory is.
    let place = site.directory().join(container_name(OTHER));
    let place = place.join("fast/1.sock");
    fs::create_dir_all(&place).unwrap();
    assert!(site.add(OTHER, &other, "fast").is_err());
    assert_eq!((site.ports().len(), site.left().len()), (1, 2));
}

#[test]
fn a_switch_that_is_started_again_makes_the_ports_again() {
    let mut site = Site::new();
    let (first, other) = (First::new(), First::new());
    let place = site.add(ONE, &first, "fast").unwrap();
    site.add(OTHER, &other, "guest").unwrap();
    fs::write(site.directory().join("half.new"), "{").unwrap();
    let identity = fs::metadata(&place).unwrap().ino();
    drop(other);

    // The directory is the one that the container has mounted.
    let mut site = site.again(DEVICES);
    assert_eq!((site.ports().len(), site.left().len()), (2, 2));
    assert!(place.join("0.sock").exists());
    assert_eq!(fs::metadata(&place).unwrap().ino(), identity);
    assert_eq!(site.add(ONE, &first, "fast").unwrap(), place);

    // A configuration without the device, and then one with it again.
    let site = site.again("");
    assert!(site.ports().is_empty());
    let mut site = site.again(DEVICES);
    assert_eq!(site.ports().len(), 2);

    // Another process has the number now.
    let path = site
        .directory()
        .join(format!("{}.json", container_name(ONE)));
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"started\":", "\"started\":1")).unwrap();
    site = site.again(DEVICES);
    assert!(site.ports().is_empty() && site.left().is_empty());
}

#[test]
fn a_port_that_a_flow_names_goes_after_the_flow() {
    let mut site = Site::new();
    let first = First::new();
    site.add(ONE, &first, "guest").unwrap();
    let port = site.ports().remove(0);
    let flow = format!("name = \"f\"\nin = {port:?}\ndrop = true");
    site.switch
        .add_flow(crate::config::parse(&flow).unwrap())
        .unwrap();
    drop(first);
    site.wait();
    assert_eq!((site.ports().len(), site.left().len()), (1, 0));
    site.switch.remove_flow("f").unwrap();
    site.containers.collect(&mut site.switch);
    assert!(site.ports().is_empty());
}

#[test]
fn a_directory_that_others_may_enter_is_not_believed() {
    let site = Site::new();
    let directory = site.directory();
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    let control = site.place.path().join("switch.sock");
    let mut switch = Switch::inline(&Config::default()).unwrap();
    let refused = Containers::open(&control, Vec::new(), &mut switch).unwrap_err();
    assert!(refused.to_string().contains("take it away"), "{refused}");
}
