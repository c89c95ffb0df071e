//! Reports of a synthetic directory of results, as text. What a browser makes of them is in `tests/report` of the repository.

#[path = "../examples/sample/make.rs"]
mod make;

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use millrace_bench::report;
use millrace_bench::results::{
    Idle, Latency, PacketLatency, PacketRate, Packets, Plan, Results, SCHEMA, Share, Unit,
};

/// Made once for all who only read it, where the build has its temporary files: nothing drops what is static.
fn sample() -> (&'static Path, Results) {
    static SAMPLE: OnceLock<Results> = OnceLock::new();
    let directory = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/report"));
    let results = SAMPLE.get_or_init(|| {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).unwrap();
        make::results(directory).unwrap();
        Results::read(directory).unwrap()
    });
    (directory, results.clone())
}

fn fresh() -> (tempfile::TempDir, Results) {
    let directory = tempfile::tempdir().unwrap();
    make::results(directory.path()).unwrap();
    let results = Results::read(directory.path()).unwrap();
    (directory, results)
}

/// The value of an attribute wherever it is in the page, without the scripts.
fn attributes<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let end = page.find("<script").unwrap();
    let parts = page[..end].split(name).skip(1);
    parts.filter_map(|part| part.split('"').nth(1)).collect()
}

#[test]
fn a_page_needs_no_other_file_and_shows_names_as_text() {
    let (directory, results) = sample();
    let page = report::html(directory, &results).unwrap();
    assert!(attributes(&page, " src=").is_empty());
    assert!(
        attributes(&page, " href=")
            .iter()
            .all(|link| link.starts_with('#'))
    );
    for link in attributes(&page, " href=") {
        let target = format!(" id=\"{}\"", link.trim_start_matches('#'));
        assert!(page.contains(&target), "{link} leads nowhere");
    }
    assert!(!page.contains("<script>alert"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(page.contains("&lt;while trials ran&gt;"));
    assert!(page.contains("Content-Security-Policy"));
    assert_eq!(page.matches("</script>").count(), 4);
}

#[test]
fn verdicts_and_the_share_of_the_ring_are_told_in_every_form() {
    let (directory, mut results) = sample();
    let page = report::html(directory, &results).unwrap();
    assert!(page.contains("against bridge</span>"));
    assert!(page.contains("<td>faster</td>") && page.contains("<td>slower</td>"));
    assert!(page.contains("ring\u{a0}99.8\u{a0}%"));
    let markdown = report::markdown(directory, &results);
    assert!(markdown.contains("×** faster") && markdown.contains("ring\u{a0}99.8\u{a0}%"));
    assert!(markdown.contains("millrace-bridge against bridge"));
    let csv = report::csv(&results);
    let found = csv
        .lines()
        .filter(|line| line.contains(",millrace-bridge,"));
    assert!(
        found
            .clone()
            .any(|line| line.contains(",bridge,") && line.contains(",faster,"))
    );
    // Nine rounds are too few, and a quick run is none for verdicts.
    for cell in &mut results.cells {
        cell.trials.retain(|trial| trial.round < make::ROUNDS);
    }
    let page = report::html(directory, &results).unwrap();
    assert!(page.contains("against bridge</span>") && !page.contains("<td>faster</td>"));
    assert!(!report::csv(&results).contains(",faster,"));
}

#[test]
fn the_figure_is_named_in_the_words_of_its_cell() {
    let (directory, mut results) = sample();
    let told = |results: &Results, words: &str| {
        let page = report::html(directory, results).unwrap();
        page.matches(&format!("{words}; less is better")).count()
    };
    assert_eq!(told(&results, "median round trip"), 1);
    let of_times = results.cells.iter_mut();
    for cell in of_times.filter(|cell| cell.unit == Unit::Nanoseconds) {
        cell.figure = "median time to the first byte".to_owned();
    }
    assert_eq!(told(&results, "median time to the first byte"), 1);
    assert_eq!(told(&results, "median round trip"), 0);
    // Older files do not tell it.
    for cell in &mut results.cells {
        cell.figure = String::new();
    }
    assert_eq!(told(&results, "time"), 1);
    assert_eq!(told(&results, "median round trip"), 0);
}

#[test]
fn what_void_means_is_told_beside_the_void_trials() {
    let (directory, results) = sample();
    let page = report::html(directory, &results).unwrap();
    assert!(page.contains("Void is a trial during which"));
    assert!(page.contains("Others are programs that are none of the run"));
}

#[test]
fn trials_in_two_groups_are_told() {
    let (directory, mut results) = sample();
    let cell = results
        .cells
        .iter_mut()
        .find(|cell| cell.road == "vxlan")
        .unwrap();
    for trial in &mut cell.trials {
        trial.value *= f64::from(1 + trial.round % 2);
    }
    let told = "the trials fall into two groups, and the median stands for neither";
    let page = report::html(directory, &results).unwrap();
    assert!(page.contains(&format!("<li id=\"note-1\">{told}")));
    assert!(report::markdown(directory, &results).contains(&format!("on vxlan: {told}")));
}

#[test]
fn files_that_cannot_be_read_are_named_and_the_rest_is_shown() {
    let (directory, results) = fresh();
    fs::remove_file(directory.path().join("redis-1-bridge-4.hdr")).unwrap();
    fs::write(directory.path().join("redis-1-vxlan-5.trace.gz"), "no gzip").unwrap();
    let page = report::html(directory.path(), &results).unwrap();
    assert!(page.contains("redis-1-bridge-4.hdr cannot be read"));
    assert!(page.contains("redis-1-vxlan-5.trace.gz breaks off or is no gzip"));
    assert!(page.contains("redis on bridge: "));
}

#[test]
fn a_road_that_is_not_listed_is_an_error() {
    let (directory, mut results) = sample();
    results.cells[0].road = "elsewhere".to_owned();
    let error = report::html(directory, &results).unwrap_err();
    assert!(format!("{error:#}").contains("\"elsewhere\""));
}

#[test]
fn results_without_a_cell_make_a_page_without_charts() {
    let nothing = Results {
        schema: SCHEMA,
        millrace: "0.1.0".to_owned(),
        started: String::new(),
        plan: Plan::default(),
        machine: Vec::new(),
        roads: Vec::new(),
        cells: Vec::new(),
        warnings: Vec::new(),
    };
    let page = report::html(Path::new("/nonexistent"), &nothing).unwrap();
    assert!(!page.contains("data-chart="));
    assert!(page.contains("All trials count."));
    assert_eq!(report::csv(&nothing).lines().count(), 1);
    assert!(report::markdown(Path::new("/nonexistent"), &nothing).starts_with("| |"));
}

#[test]
fn what_does_not_vary_has_no_chart() {
    let (directory, mut results) = sample();
    results.cells.retain(|cell| cell.scenario == "ping-pong");
    let page = report::html(directory, &results).unwrap();
    assert_eq!(page.matches("data-chart=").count(), 1);
    assert!(!page.contains("Against "));
    assert!(!page.contains("Latency over time<"));
}

#[test]
fn csv_has_a_line_for_each_trial_and_markdown_a_row_for_each_set_of_parameters() {
    let (directory, results) = sample();
    let trials: usize = results.cells.iter().map(|cell| cell.trials.len()).sum();
    let csv = report::csv(&results);
    assert_eq!(csv.lines().count(), 1 + trials);
    assert_eq!(csv.matches(",failed,").count(), make::ROUNDS as usize);
    assert_eq!(csv.matches(",void,").count(), 1);
    let markdown = report::markdown(directory, &results);
    let (summary, _) = markdown.split_once("\n###").unwrap();
    let rows = summary.lines().filter(|line| line.starts_with('|'));
    // Below the summary, a row for each road against each other that it stands against.
    let standing = 2 + (4 + 1 + 4) * (1 + 1 + 2);
    assert_eq!(rows.count(), 2 + 4 + 1 + 4 + standing);
    assert!(!markdown.contains("<script"));
}

#[test]
fn latency_is_told_as_a_table_with_deviation_and_percentiles_on_the_page_and_in_markdown() {
    let (directory, results) = sample();
    let page = report::html(directory, &results).unwrap();
    let markdown = report::markdown(directory, &results);
    let (_, table) = markdown.split_once(": latency\n\n").unwrap();
    let lines: Vec<&str> = table.lines().take_while(|l| l.starts_with('|')).collect();
    for name in [
        "requests",
        "min",
        "90\u{a0}%",
        "95\u{a0}%",
        "99\u{a0}%",
        "99.9\u{a0}%",
        "99.99\u{a0}%",
        "max",
        "mean",
        "deviation",
    ] {
        assert!(
            lines[0].contains(&format!("| {name} ")),
            "{name}: {}",
            lines[0]
        );
        assert!(
            page.contains(&format!("<th scope=\"col\">{name}</th>")),
            "{name}"
        );
    }
    let cells = results.cells.iter().filter(|cell| cell.scenario == "redis");
    assert_eq!(lines.len(), 2 + cells.count());
    let figures: Vec<&str> = lines[2].split('|').map(str::trim).skip(3).collect();
    assert!(figures[1].ends_with('s'), "{:?}", lines[2]);
    assert!(page.contains(&format!("<td>{}</td>", figures[1])));
}

#[test]
fn idle_connections_have_a_table_with_the_share_of_each_program() {
    let (directory, mut results) = sample();
    assert!(
        !report::html(directory, &results)
            .unwrap()
            .contains("What idle connections cost")
    );
    let share = |memory_bytes| Share {
        processor_s: 0.001,
        memory_bytes,
    };
    let idle = Idle {
        connections: 1000,
        seconds: 2.0,
        server: share(4_096_000),
        client: share(2_048_000),
        agent: share(1_024_000),
        kernel_bytes: None,
    };
    results.cells[0]
        .trials
        .iter_mut()
        .for_each(|trial| trial.idle = Some(idle));
    let page = report::html(directory, &results).unwrap();
    let markdown = report::markdown(directory, &results);
    for figure in [
        "4\u{a0}KiB",
        "2\u{a0}KiB",
        "1\u{a0}KiB",
        "7\u{a0}KiB",
        "0.050\u{a0}%",
        "–",
    ] {
        assert!(page.contains(&format!("<td>{figure}</td>")), "{figure}");
        assert!(markdown.contains(&format!("| {figure} ")), "{figure}");
    }
}

/// What a trial finds whose rate without loss is `rate`.
fn packets(rate: f64) -> Packets {
    let at = |share: f64, p99| PacketLatency {
        share,
        rate: share * rate,
        loss: 0.0,
        latency: Latency {
            count: 1_000_000,
            min_ns: 2_300,
            max_ns: 77_000,
            mean_ns: 4_600.0,
            deviation_ns: 1_900.0,
            percentiles: vec![(50.0, 4_000), (99.0, p99), (99.9, 31_000)],
        },
    };
    Packets {
        sizes: "64".to_owned(),
        rates: [(0.0, rate), (0.005, 9.25e6)]
            .map(|(loss, rate)| PacketRate { loss, rate })
            .to_vec(),
        most: 12.5e6,
        most_loss: 0.25,
        own: 21.5e6,
        latencies: vec![at(0.1, 6_100), at(0.5, 7_300), at(0.9, 15_700)],
        runs: 20,
        disturbed: 0,
    }
}

#[test]
fn packets_have_rates_by_the_share_that_is_lost_and_latencies_by_the_share_of_the_rate() {
    let (directory, mut results) = sample();
    let (rates, latencies) = (
        "highest rates",
        "latency at shares of the rate without loss",
    );
    let page = report::html(directory, &results).unwrap();
    assert!(!page.contains(rates) && !page.contains(latencies) && !page.contains("searched"));
    let charts = page.matches("data-chart=").count();
    let cell = &mut results.cells[0];
    for (trial, rate) in cell.trials.iter_mut().zip([8.5e6, 8.0e6, 8.24e6]) {
        trial.packets = Some(packets(rate));
    }
    results.plan.width = "100/s".parse().unwrap();
    let page = report::html(directory, &results).unwrap();
    let markdown = report::markdown(directory, &results);
    assert!(page.contains(rates) && page.contains(latencies));
    assert!(page.contains("rates searched to 100 packets/s; "));
    assert!(page.contains("found by search, to 100 packets/s, and verified"));
    assert_eq!(page.matches("data-chart=").count(), charts + 1);
    assert!(markdown.contains(rates) && markdown.contains(latencies));
    for name in ["none lost", "at most 0.5\u{a0}% lost", "generator itself"] {
        assert!(
            page.contains(&format!("<th scope=\"col\">{name}</th>")),
            "{name}"
        );
        assert!(markdown.contains(&format!("| {name} ")), "{name}");
    }
    // The median of the three, and half of it.
    for figure in [
        "8.24\u{a0}M/s",
        "9.25\u{a0}M/s",
        "12.5\u{a0}M/s",
        "25.0\u{a0}%",
        "21.5\u{a0}M/s",
        "50\u{a0}%",
        "4.12\u{a0}M/s",
        "2.30\u{a0}µs",
        "4.60\u{a0}µs",
        "1.90\u{a0}µs",
        "7.30\u{a0}µs",
        "15.7\u{a0}µs",
        "31.0\u{a0}µs",
        "77.0\u{a0}µs",
    ] {
        assert!(page.contains(&format!("<td>{figure}</td>")), "{figure}");
        assert!(markdown.contains(&format!("| {figure} ")), "{figure}");
    }
    // Of a run without packets nothing is kept.
    let text = serde_json::to_string(&results.cells[1]).unwrap();
    assert!(!text.contains("\"packets\""));
}

/// The sample's cells of throughput, with another parameter in the place of their length, and these values.
fn with_parameter(name: &str, values: [u64; 4]) -> (&'static Path, Results) {
    let (directory, mut results) = sample();
    results.cells.retain(|cell| cell.scenario == "throughput");
    let mut lengths: Vec<u64> = results
        .cells
        .iter()
        .map(|cell| cell.parameters["bytes"])
        .collect();
    lengths.sort_unstable();
    lengths.dedup();
    for cell in &mut results.cells {
        let length = cell.parameters.remove("bytes").unwrap();
        let place = lengths.iter().position(|known| *known == length).unwrap();
        cell.parameters.insert(name.to_owned(), values[place]);
    }
    (directory, results)
}

#[test]
fn against_a_fixed_rate_each_figure_of_latency_has_a_chart() {
    let (directory, mut results) =
        with_parameter("rate", [100_003, 1_000_003, 2_000_003, 4_000_003]);
    let page = report::html(directory, &results).unwrap();
    let (own, more) = ("<h3>Against rate</h3>", "<h3>Latency against rate</h3>");
    assert!(page.contains(own) && !page.contains(more));
    let charts = page.matches("data-chart=").count();
    let latency = packets(8e6).latencies.remove(0).latency;
    let trials = results.cells.iter_mut().flat_map(|cell| &mut cell.trials);
    trials.for_each(|trial| trial.latency = Some(latency.clone()));
    let page = report::html(directory, &results).unwrap();
    assert!(page.contains(own) && page.contains(more));
    // Six figures, and a distribution at each of four rates.
    assert_eq!(page.matches("data-chart=").count(), charts + 6 + 4);
    let names = [
        "shortest",
        "mean",
        "99\u{a0}%",
        "99.9\u{a0}%",
        "longest",
        "deviation (jitter)",
    ];
    for name in names {
        assert!(
            page.contains(&format!("<figcaption>{name}</figcaption>")),
            "{name}"
        );
    }
}

#[test]
fn a_parameter_that_is_nothing_has_its_place_in_a_chart() {
    let (directory, results) = with_parameter("cycles", [0, 10, 100, 1000]);
    let page = report::html(directory, &results).unwrap();
    assert!(page.contains("<h3>Against cycles</h3>") && page.contains(r#""points":[[0,"#));
}

#[test]
fn ready_connections_for_each_wake_up_are_told_by_the_end_that_tells_them() {
    let (directory, mut results) = sample();
    let what = "eady connections for each wake-up";
    assert!(!report::html(directory, &results).unwrap().contains(what));
    let first = &mut results.cells[0];
    first.trials.iter_mut().for_each(|trial| {
        trial.ready_per_wake = Some(7.25);
        trial.server_ready_per_wake = Some(3.5);
    });
    let page = report::html(directory, &results).unwrap();
    let markdown = report::markdown(directory, &results);
    assert_eq!(page.matches("<td>7.25</td>").count(), 1);
    assert_eq!(markdown.matches("| 7.25 ").count(), 1);
    for end in ["generator, ", "server, "] {
        assert!(page.contains(&format!("<th scope=\"row\">{end}")), "{end}");
    }
    assert_eq!(page.matches("<td>3.50</td>").count(), 1);
    assert!(report::csv(&results).contains(",7.25,3.5,"));
    assert!(page.contains(what) && markdown.contains("ready for each wake-up"));
}

#[test]
fn csv_has_a_percentile_of_a_trial_where_a_hundred_requests_were_slower() {
    let (_, mut results) = sample();
    let told = |results: &Results| {
        let csv = report::csv(results);
        let place = |name: &str| csv.lines().next()?.split(',').position(|it| it == name);
        let (tail, median) = (place("p99.9_ns").unwrap(), place("p50_ns").unwrap());
        let line: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
        [line[median].to_owned(), line[tail].to_owned()]
    };
    for (count, wanted) in [(99_999, ["5", ""]), (100_000, ["5", "9"])] {
        results.cells[0].trials[0].latency = Some(Latency {
            count,
            percentiles: vec![(50.0, 5), (99.9, 9)],
            ..Latency::default()
        });
        assert_eq!(told(&results), wanted);
    }
}
