//! Roads as they are read, chosen and missed.

use super::*;

#[test]
fn every_road_is_known_by_its_name() {
    let names: Vec<String> = all().into_iter().map(|road| road.name).collect();
    let is_bare = |road: &Road| road.transport.is_some() || road.device.is_some();
    let of_messages = all().into_iter().filter(is_bare);
    let bare = ["unix", "sockmap", "smc"].map(str::to_owned).into_iter();
    let bare: Vec<String> = bare.chain(of_messages.map(|road| road.name)).collect();
    assert_eq!(choose(&names).unwrap().len(), 2 * FILES.len() - bare.len());
    assert!(names.contains(&"millrace-vxlan".to_owned()));
    for bare in bare {
        assert!(!names.contains(&format!("{ABOVE}{bare}")));
    }
}

#[test]
fn a_road_whose_module_the_kernel_lacks_says_so() {
    let mut road = all().remove(0);
    road.set_up.clear();
    assert_eq!(road.missing(), None);
    road.module = Some("millrace_never".to_owned());
    let told = road.missing().unwrap();
    assert_eq!(told, "this kernel has no module millrace_never");
    (road.module, road.run_by) = (None, Some("never-run --fast".to_owned()));
    assert_eq!(road.missing().unwrap(), "no never-run");
    road.package = Some("never".to_owned());
    assert_eq!(road.missing().unwrap(), "no never-run: apt install never");
}

#[test]
fn a_program_that_is_run_by_others_is_missed_too() {
    for (command, programs) in [
        ("ip -n a link set lo up", vec!["ip"]),
        ("ip netns add a", vec!["ip"]),
        ("ip netns exec a env B=c d --e=f", vec!["ip", "env", "d"]),
        ("env A=b C=d ip netns exec a e", vec!["env", "ip", "e"]),
        ("sh -c 'ip netns exec a b'", vec!["sh"]),
    ] {
        assert_eq!(programs_of(command), programs, "{command}");
    }
    let mut road = all().remove(0);
    let gone = "ip netns exec a /usr/lib/never/switch-dpdk --detach";
    road.set_up = vec!["ip netns add a".to_owned(), gone.to_owned()];
    road.package = Some("never".to_owned());
    let told = road.missing().unwrap();
    assert_eq!(told, "no /usr/lib/never/switch-dpdk: apt install never");
}

#[test]
fn a_peer_that_is_no_package_s_is_told_with_what_builds_it() {
    let mut road = all().into_iter().find(|road| road.name == "rte-softrss");
    let road = road.as_mut().unwrap();
    road.set_up.clear();
    let told = road.missing().unwrap_or_default();
    let is_built = find_program(programs::SOFTRSS).is_some();
    assert_eq!(told.is_empty(), is_built, "{told}");
    assert!(
        is_built || told.ends_with(", and make peers in a checkout of Millrace"),
        "{told}"
    );
    assert_eq!(road.peers().count(), usize::from(is_built));
}

#[test]
fn an_unknown_road_is_told_with_those_that_there_are() {
    let error = choose(&["brigde".to_owned()]).unwrap_err().to_string();
    assert!(
        error.contains("brigde") && error.contains("bridge"),
        "{error}"
    );
}

#[test]
fn a_file_of_the_user_s_own_is_a_road_with_its_form_above() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, namespace: &str| {
        let path = directory.path().join(name);
        let text = format!(
            "about = ''\nserver = '{namespace}'\nclient = '{namespace}'\nhost = '127.0.0.1'\nset_up = ['ip netns add {namespace}']\n"
        );
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (mine, same) = (write("mine.toml", "mine"), write("loopback.toml", "x"));
    let (clash, blank) = (write("clash.toml", "bridge-host"), write("a b.toml", "y"));
    let chosen =
        |names: &[&str]| choose(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
    let names: Vec<String> = chosen(&["loopback", &mine, "millrace-mine", "mine"])
        .map_or_else(|error| vec![error.to_string()], |_| Vec::new());
    assert_eq!(names, ["the road mine is named twice"]);
    let roads = chosen(&[&mine, "millrace-mine"]).unwrap();
    assert_eq!(
        (roads[0].name.as_str(), roads[1].base.as_str()),
        ("mine", "mine")
    );
    assert!(roads[1].accelerated);
    for (names, told) in [
        (vec!["mine"], "there is no road mine"),
        (vec![same.as_str()], "two roads would be called loopback"),
        (
            vec!["bridge", &clash],
            "both make the network namespace bridge-host",
        ),
        (vec![blank.as_str()], "in letters, digits"),
        (vec!["./gone.toml"], "cannot read ./gone.toml"),
    ] {
        let error = chosen(&names).unwrap_err().to_string();
        assert!(error.contains(told), "{told}: {error}");
    }
}

#[test]
fn every_command_is_words() {
    for road in all() {
        let device = road.device.iter();
        let device = device.flat_map(|device| device.command.iter().chain(&device.receiver));
        let between = road.rest.iter().chain(&road.wake);
        for command in road.set_up.iter().chain(between).chain(device) {
            assert!(
                shlex::split(command).is_some_and(|words| words.len() > 2),
                "{command}"
            );
        }
    }
}
