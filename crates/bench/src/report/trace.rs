//! Each request of a trial, and which of them are drawn.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::read::MultiGzDecoder;

use super::latency::beside;

/// Equal slices of time of which the slowest and the fastest request are kept: more than a chart has pixels across.
const SLICES: usize = 2000;
/// Part of what is drawn that goes to the slowest of all.
const SLOWEST_PART: usize = 5;

/// A request: when it was to be sent, from the trial's beginning, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) at_ns: u64,
    pub(super) took_ns: u64,
}

/// What is drawn of a trace, in sending order.
pub(super) struct Thinned {
    pub(super) requests: Vec<Request>,
    /// Requests that there were.
    pub(super) of: usize,
}

/// Reads a trace, in sending order.
pub(super) fn read(directory: &Path, name: &str) -> Result<Vec<Request>> {
    let path = beside(directory, name)?;
    let file = File::open(path).with_context(|| format!("{name} cannot be read"))?;
    let mut reader = BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file));
    let mut requests = Vec::new();
    let mut line = String::new();
    loop {
        line.clear();
        let read = reader.read_line(&mut line);
        let number = requests.len() + 1;
        if read.with_context(|| format!("{name} breaks off or is no gzip, at line {number}"))? == 0
        {
            break;
        }
        let request = parse(&line);
        requests.push(request.with_context(|| {
            format!("{name}, line {number}: two numbers are expected, not {line:?}")
        })?);
    }
    // Connections write in turn; a chart needs one order of time.
    requests.sort_by_key(|request| request.at_ns);
    Ok(requests)
}

fn parse(line: &str) -> Option<Request> {
    let (at, took) = line.trim_end().split_once(' ')?;
    Some(Request {
        at_ns: at.parse().ok()?,
        took_ns: took.parse().ok()?,
    })
}

/// Into how many slices of time a trace is cut of which `most` requests are drawn.
pub(super) fn slices(most: usize) -> usize {
    SLICES.min(most / 5)
}

/// How many of these are the slowest of all.
pub(super) fn slowest(most: usize) -> usize {
    most / SLOWEST_PART
}

/// At most about `most` of them: the slowest and the fastest in each slice of time, the slowest of all, and every n-th of the rest. So no
/// extreme is lost, and where points are dense, requests were.
pub(super) fn thin(requests: &[Request], most: usize) -> Thinned {
    let of = requests.len();
    if of <= most {
        let requests = requests.to_vec();
        return Thinned { requests, of };
    }
    let mut kept = vec![false; of];
    keep_extremes(requests, slices(most), &mut kept);
    let mut by_time_taken: Vec<usize> = (0..of).collect();
    let slower = |index: &usize| std::cmp::Reverse(requests[*index].took_ns);
    by_time_taken.select_nth_unstable_by_key(slowest(most).min(of - 1), slower);
    by_time_taken
        .iter()
        .take(slowest(most))
        .for_each(|index| kept[*index] = true);
    let left = most
        .saturating_sub(kept.iter().filter(|kept| **kept).count())
        .max(1);
    for index in (0..of).step_by(of.div_ceil(left)) {
        kept[index] = true;
    }
    let kept = requests.iter().zip(&kept).filter(|(_, kept)| **kept);
    Thinned {
        requests: kept.map(|(request, _)| *request).collect(),
        of,
    }
}

/// Marks the slowest and the fastest request of each of `slices` equal slices of time.
fn keep_extremes(requests: &[Request], slices: usize, kept: &mut [bool]) {
    let (Some(first), Some(last)) = (requests.first(), requests.last()) else {
        return;
    };
    let length = (last.at_ns - first.at_ns) / slices.max(1) as u64 + 1;
    let mut start = 0;
    for slice in requests
        .chunk_by(|a, b| (a.at_ns - first.at_ns) / length == (b.at_ns - first.at_ns) / length)
    {
        let indices = start..start + slice.len();
        let took = |index: &usize| requests[*index].took_ns;
        for extreme in [indices.clone().max_by_key(took), indices.min_by_key(took)] {
            extreme.into_iter().for_each(|index| kept[index] = true);
        }
        start += slice.len();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn requests(count: u64) -> Vec<Request> {
        let one = |i: u64| Request {
            at_ns: i * 1000,
            took_ns: 500 + i * 7919 % 101,
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn few_requests_are_all_drawn() {
        assert_eq!(thin(&requests(5000), 5000).requests, requests(5000));
        assert!(thin(&[], 100).requests.is_empty());
    }

    #[test]
    fn thinning_keeps_every_extreme_and_the_order() {
        let mut all = requests(300_000);
        all[123_456].took_ns = 100_000_000;
        all[123_457].took_ns = 1;
        // A burst of slow ones within one slice of time: all of them are among the slowest.
        (200_000..200_500).for_each(|index| all[index].took_ns = 5_000_000);
        let thinned = thin(&all, 20_000);
        assert_eq!(thinned.of, 300_000);
        assert!(
            (12_000..=20_001).contains(&thinned.requests.len()),
            "{}",
            thinned.requests.len()
        );
        assert!(thinned.requests.is_sorted_by_key(|request| request.at_ns));
        for index in (200_000..200_500).chain([123_456, 123_457]) {
            assert!(thinned.requests.contains(&all[index]), "{index}");
        }
    }

    #[test]
    fn requests_at_one_instant_are_thinned_too() {
        let all = vec![
            Request {
                at_ns: 7,
                took_ns: 9
            };
            50_000
        ];
        let thinned = thin(&all, 1000);
        assert!(thinned.requests.len() <= 1001);
    }

    #[test]
    fn a_trace_is_sorted_and_a_bad_line_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let mut file = GzEncoder::new(
                File::create(directory.path().join(name)).unwrap(),
                Compression::fast(),
            );
            file.write_all(text.as_bytes()).unwrap();
            file.finish().unwrap();
        };
        write("good", "20 5\n10 6\n");
        write("bad", "1 2\n3\n");
        let read = |name| read(directory.path(), name);
        let at: Vec<u64> = read("good")
            .unwrap()
            .iter()
            .map(|request| request.at_ns)
            .collect();
        assert_eq!(at, [10, 20]);
        let error = format!("{:#}", read("bad").unwrap_err());
        assert!(error.contains("bad, line 2"), "{error}");
        assert!(read("missing").is_err());
    }
}
