//! Scenarios as they are read.

use super::*;

#[test]
fn every_scenario_is_read_and_has_a_quick_case_and_every_case_a_short_one() {
    for scenario in all() {
        for case in &scenario.cases {
            let all = case.parameters(Extent::Whole);
            let short = case.parameters(Extent::Short);
            assert!(!short.is_empty() && short.len() <= all.len());
            let is_part = short.iter().all(|set| all.contains(set));
            assert!(
                is_part,
                "{}/{}: its figures would be held against none",
                scenario.name, case.name
            );
        }
        let quick = scenario
            .cases
            .iter()
            .any(|case| !case.parameters(Extent::Quick).is_empty());
        assert!(quick, "{}", scenario.name);
    }
}

/// Requests that come at equal distances meet the kernel's ticks at other places all the time: after a few ticks, which make a few
/// requests, not just at the first place again. Where that moves by less than three requests in a second, a trial has too few places.
#[test]
fn no_rate_keeps_in_step_with_the_ticks_of_a_kernel() {
    let sets = all().into_iter().flat_map(|scenario| scenario.cases);
    let sets = sets.flat_map(|case| case.parameters(Extent::Whole));
    let rates: Vec<u64> = sets.filter_map(|set| set.get("rate").copied()).collect();
    assert!(!rates.is_empty());
    let slowest = |rate: u64| {
        let ways = [100, 250, 300, 1000].into_iter().flat_map(|ticks| {
            (1..=4).map(move |few| {
                let past = few * rate % ticks;
                past.min(ticks - past) as f64 / few as f64
            })
        });
        ways.fold(f64::INFINITY, f64::min)
    };
    assert_eq!(slowest(5000), 0.0);
    for rate in rates {
        assert!(slowest(rate) >= 3.0, "{rate}: {}", slowest(rate));
    }
}

#[test]
fn the_figure_of_a_case_is_told_in_words_that_are_its_own() {
    let says = |name: &str| {
        let chosen = choose(&[name.to_owned()]).unwrap();
        chosen[0].cases[0].says()
    };
    assert_eq!(says("echo/blocking"), "median round trip");
    assert_eq!(says("pingpong/blocking"), "median round trip");
    assert_eq!(says("pingpong/one-way"), "messages per second");
    assert_eq!(says("idle/memory"), "memory for each connection");
    // Of these nothing goes there and back.
    for name in [
        "one-way",
        "connect/first-byte",
        "channels/waking",
        "redis/rate",
    ] {
        let says = says(name);
        assert!(says.starts_with("median time "), "{name}: {says}");
    }
    for case in all().iter().flat_map(|scenario| &scenario.cases) {
        let is_rate = case.says().ends_with(" per second");
        assert_eq!(is_rate, case.unit.more_is_better(), "{}", case.title);
    }
    let own = of_a_case(
        "true {bytes}",
        "figure = 'my own'\ngrid = [{ bytes = [1] }]",
    );
    assert_eq!(own.unwrap().cases[0].says(), "my own");
}

#[test]
fn grids_are_joined_and_nothing_is_measured_twice() {
    let grid = |clients: &[u64], bytes: &[u64]| {
        Grid::from([
            ("clients".to_owned(), clients.to_vec()),
            ("bytes".to_owned(), bytes.to_vec()),
        ])
    };
    let found = combinations(&[grid(&[1, 50], &[1024]), grid(&[1], &[64, 1024])]);
    let pairs: Vec<(u64, u64)> = found
        .iter()
        .map(|set| (set["clients"], set["bytes"]))
        .collect();
    assert_eq!(pairs, [(1, 1024), (50, 1024), (1, 64)]);
}

#[test]
fn only_known_words_are_filled_in() {
    let words = BTreeMap::from([("port".to_owned(), "7000".to_owned())]);
    assert_eq!(
        fill("listen {port}; { a {b} }", &words),
        "listen 7000; { a {b} }"
    );
}

#[test]
fn a_case_alone_and_its_scenario_are_the_scenario() {
    let words = ["redis/get", "redis"].map(str::to_owned);
    let chosen = choose(&words).unwrap();
    let whole = choose(&["redis".to_owned()]).unwrap();
    assert_eq!(
        (chosen.len(), chosen[0].cases.len()),
        (1, whole[0].cases.len())
    );
}

/// A scenario of one case, with these lines of its own.
fn of_a_case(client: &str, grids: &str) -> Result<Scenario> {
    let text = format!(
        "title = 't'\nabout = 'a'\n[server]\ncommand = 'true'\n[[case]]\nname = 'c'\ntitle = 't'\nclient = '{client}'\n\
         read = 'result-line'\nunit = 'operations_per_second'\n{grids}"
    );
    Scenario::parse("mine", &text)
}

#[test]
fn parameters_are_told_to_a_program_and_are_the_same_in_every_grid() {
    let grid = "grid = [{ bytes = [1] }]";
    assert!(of_a_case("true {bytes}", grid).is_ok());
    let told = |client, grids| format!("{:#}", of_a_case(client, grids).unwrap_err());
    let misspelt = told("true {bytse}", grid);
    assert!(
        misspelt.contains("bytes is in no command: {bytes} has to stand"),
        "{misspelt}"
    );
    let taken = told("true {port}", "grid = [{ port = [1] }]");
    assert!(taken.contains("can be called port"), "{taken}");
    let other = told(
        "true {bytes}",
        "grid = [{ bytes = [1] }]\nshort = [{ size = [1] }]",
    );
    assert!(other.contains("the same parameters"), "{other}");
}

#[test]
fn cases_of_messages_take_the_roads_of_messages_and_no_others() {
    let [channels, redis] = ["channels", "redis"].map(|name| choose(&[name.to_owned()]).unwrap());
    let (channels, redis) = (&channels[0], &redis[0]);
    for road in crate::roads::all() {
        let is_of_messages = road.transport.is_some();
        assert_eq!(channels.takes(&road), is_of_messages, "{}", road.name);
        let is_of_bytes = !is_of_messages && road.device.is_none();
        assert_eq!(redis.takes(&road), is_of_bytes, "{}", road.name);
    }
    // What a case names is there.
    let roads: Vec<String> = crate::roads::all()
        .into_iter()
        .map(|road| road.name)
        .collect();
    let named = channels.cases.iter().flat_map(|case| &case.roads);
    assert!(
        named
            .chain(&channels.roads)
            .all(|name| roads.contains(name))
    );
}

#[test]
fn cases_of_packets_take_the_devices_that_have_their_ports() {
    let scenarios =
        ["packets", "ppf", "scheduler"].map(|name| choose(&[name.to_owned()]).unwrap().remove(0));
    let roads = crate::roads::all();
    for road in &roads {
        let mut named = scenarios
            .iter()
            .filter(|scenario| scenario.roads.contains(&road.name));
        assert_eq!(
            road.device.is_some(),
            named.next().is_some(),
            "{}",
            road.name
        );
        assert!(named.next().is_none(), "{}", road.name);
    }
    for scenario in &scenarios {
        for road in &roads {
            let is_named = scenario.roads.contains(&road.name);
            assert_eq!(scenario.takes(road), is_named, "{}", road.name);
        }
        for case in &scenario.cases {
            let mut named = case.roads.iter();
            let is_there = |name: &String| roads.iter().any(|road| road.name == *name);
            assert!(named.all(is_there), "{}", case.name);
            roads.iter().for_each(|road| check_command(case, road));
        }
    }
}

/// A case has a command on the roads that it names, and these tell of all its parameters.
fn check_command(case: &Case, road: &Road) {
    let takes = case.roads.contains(&road.name);
    let command = case.on(road);
    assert_eq!(command.is_some(), takes, "{} {}", case.name, road.name);
    let device = road.device.iter();
    let device = device.filter_map(|device| device.command.as_deref());
    let commands: Vec<&str> = device.chain(command).collect();
    let told = |name: &String| {
        let word = format!("{{{name}}}");
        commands.iter().any(|command| command.contains(&word))
    };
    assert!(!takes || case.grid[0].keys().all(told), "{}", road.name);
}

#[test]
fn mistakes_are_told_with_what_there_is() {
    let told = |word: &str| choose(&[word.to_owned()]).unwrap_err().to_string();
    assert!(told("reddis").contains("redis"));
    assert!(told("redis/put").contains("get, set"));
    assert!(told("redis/put").contains("no case put"));
    assert!(told("./none.toml").contains("cannot read"));
    let wrong = format!("{:#}", Scenario::parse("mine", "title = 1").unwrap_err());
    assert!(
        wrong.contains("the scenario mine") && wrong.contains("line 1"),
        "{wrong}"
    );
}
