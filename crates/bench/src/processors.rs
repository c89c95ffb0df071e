//! What the kernel tells of its processors: how fast they may be and are, who may use them, and whether they were slowed for their heat.
//!
//! Files of the kernel's CPUFreq and x86 thermal documentation, below `/sys/devices/system/cpu`. A virtual machine has few of them.

use std::fs;
use std::path::PathBuf;

use crate::results::{Fact, Trial};

const NOT_TOLD: &str = "not told here";
/// Where frequencies differ by more than this share within a run, figures do.
const FREQUENCY_CHANGE_MAX: f64 = 0.1;
/// What warnings of a run begin with: they are made anew when it goes on.
pub(crate) const WARNINGS: [&str; 2] = [
    "the frequency of the processors",
    "the processors were slowed",
];

/// Where the kernel tells it.
#[derive(Clone, Debug)]
pub(crate) struct Processors(PathBuf);

impl Processors {
    pub(crate) fn here() -> Processors {
        Processors(PathBuf::from("/sys/devices/system/cpu"))
    }

    /// What holds for a whole run.
    pub(crate) fn facts(&self, used: &[usize]) -> Vec<Fact> {
        let fact = |name: &str, value: Option<String>| Fact {
            name: name.to_owned(),
            value: value.unwrap_or_else(|| NOT_TOLD.to_owned()),
        };
        vec![
            fact("governor", self.governor(used)),
            fact("frequency range", self.range(used)),
            fact("turbo", self.turbo()),
            fact("isolated processors", self.list("isolated")),
            fact("processors without ticks", self.list("nohz_full")),
            fact("threads of a core", self.siblings()),
        ]
    }

    fn governor(&self, used: &[usize]) -> Option<String> {
        let mut names: Vec<String> = used
            .iter()
            .filter_map(|number| self.read(&format!("cpu{number}/cpufreq/scaling_governor")))
            .collect();
        names.dedup();
        let driver = self.read(&format!("cpu{}/cpufreq/scaling_driver", used.first()?));
        let driver = driver.map_or(String::new(), |name| format!(", by {name}"));
        (!names.is_empty()).then(|| names.join(" and ") + &driver)
    }

    fn range(&self, used: &[usize]) -> Option<String> {
        let of = |name: &str| {
            let each = used.iter();
            let each = each.filter_map(|number| self.megahertz(*number, name));
            each.reduce(if name.contains("min") {
                f64::min
            } else {
                f64::max
            })
        };
        let (least, most) = (of("cpuinfo_min_freq")?, of("cpuinfo_max_freq")?);
        Some(format!("{least:.0} to {most:.0} MHz"))
    }

    fn turbo(&self) -> Option<String> {
        let is_on = match (
            self.read("cpufreq/boost"),
            self.read("intel_pstate/no_turbo"),
        ) {
            (Some(boost), _) => boost == "1",
            (None, no_turbo) => no_turbo? == "0",
        };
        Some(if is_on { "on" } else { "off" }.to_owned())
    }

    /// A list of processors, which may be empty.
    fn list(&self, name: &str) -> Option<String> {
        let text = fs::read_to_string(self.0.join(name)).ok()?;
        Some(match text.trim() {
            "" | "(null)" => "none".to_owned(),
            list => list.to_owned(),
        })
    }

    fn siblings(&self) -> Option<String> {
        let is_active = self.read("smt/active")? == "1";
        let control = self
            .read("smt/control")
            .map_or(String::new(), |word| format!(" ({word})"));
        Some(if is_active { "in use" } else { "not in use" }.to_owned() + &control)
    }

    /// How fast these are now, the slowest and the fastest, in MHz.
    pub(crate) fn speeds(&self, used: &[usize]) -> Option<[f64; 2]> {
        let each = used.iter();
        let each = each.filter_map(|number| self.megahertz(*number, "scaling_cur_freq"));
        each.map(|speed| [speed; 2]).reduce(wider)
    }

    /// How often these have been slowed for their heat since the machine started.
    pub(crate) fn slowed(&self, used: &[usize]) -> u64 {
        let counts = used.iter().flat_map(|number| {
            ["core", "package"].map(|part| {
                let count = self.read(&format!(
                    "cpu{number}/thermal_throttle/{part}_throttle_count"
                ));
                count.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
            })
        });
        counts.sum()
    }

    fn megahertz(&self, processor: usize, name: &str) -> Option<f64> {
        let kilohertz = self.read(&format!("cpu{processor}/cpufreq/{name}"))?;
        Some(kilohertz.parse::<f64>().ok()? / 1e3)
    }

    fn read(&self, name: &str) -> Option<String> {
        let text = fs::read_to_string(self.0.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }
}

/// A range that holds both.
pub(crate) fn wider(one: [f64; 2], other: [f64; 2]) -> [f64; 2] {
    [one[0].min(other[0]), one[1].max(other[1])]
}

/// What a reader has to know of the processors during all these trials.
pub(crate) fn warnings<'a>(trials: impl Iterator<Item = &'a Trial> + Clone) -> Vec<String> {
    let mut found = Vec::new();
    let speeds = trials.clone().filter_map(|trial| trial.processor.megahertz);
    if let Some([least, most]) = speeds.reduce(wider)
        && most > least * (1.0 + FREQUENCY_CHANGE_MAX)
    {
        let [what, _] = WARNINGS;
        found.push(format!(
            "{what} of server and client was between {least:.0} and {most:.0} MHz during the trials: what ran when they were slow looks \
             slower. The governor `performance`, and no turbo, hold it"
        ));
    }
    let slowed: u64 = trials.map(|trial| trial.processor.slowed_for_heat).sum();
    if slowed > 0 {
        let [_, what] = WARNINGS;
        found.push(format!(
            "{what} for their heat {slowed} times during the trials"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Processor;

    /// A machine that tells these files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Processors) {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        let processors = Processors(directory.path().to_owned());
        (directory, processors)
    }

    fn values(processors: &Processors) -> Vec<String> {
        let facts = processors.facts(&[0, 1]).into_iter();
        facts.map(|fact| fact.value).collect()
    }

    #[test]
    fn a_machine_of_metal_tells_governor_range_turbo_isolation_and_siblings() {
        let (_directory, processors) = machine(&[
            ("cpu0/cpufreq/scaling_governor", "powersave"),
            ("cpu0/cpufreq/scaling_driver", "intel_pstate"),
            ("cpu0/cpufreq/cpuinfo_min_freq", "800000"),
            ("cpu0/cpufreq/cpuinfo_max_freq", "3600000"),
            ("cpu0/cpufreq/scaling_cur_freq", "3400000"),
            ("cpu0/thermal_throttle/core_throttle_count", "3"),
            ("cpu1/cpufreq/scaling_governor", "performance"),
            ("cpu1/cpufreq/cpuinfo_min_freq", "400000"),
            ("cpu1/cpufreq/cpuinfo_max_freq", "4700000"),
            ("cpu1/cpufreq/scaling_cur_freq", "1200000"),
            ("cpu1/thermal_throttle/package_throttle_count", "4"),
            ("intel_pstate/no_turbo", "0"),
            ("isolated", ""),
            ("nohz_full", "2-3"),
            ("smt/active", "1"),
            ("smt/control", "on"),
        ]);
        let expected = [
            "powersave and performance, by intel_pstate",
            "400 to 4700 MHz",
            "on",
            "none",
            "2-3",
            "in use (on)",
        ];
        assert_eq!(values(&processors), expected);
        assert_eq!(processors.speeds(&[0, 1]), Some([1200.0, 3400.0]));
        assert_eq!(
            (processors.slowed(&[0, 1]), processors.slowed(&[0])),
            (7, 3)
        );
    }

    #[test]
    fn a_machine_that_tells_nothing_is_no_error() {
        let (_directory, processors) = machine(&[("cpufreq/boost", "0")]);
        let mut told = values(&processors);
        assert_eq!(told.remove(2), "off");
        assert!(told.iter().all(|value| value == NOT_TOLD), "{told:?}");
        assert_eq!(
            (processors.speeds(&[0, 1]), processors.slowed(&[0])),
            (None, 0)
        );
    }

    #[test]
    fn changes_of_frequency_and_heat_are_warnings() {
        let trial = |megahertz, slowed_for_heat| Trial {
            processor: Processor {
                megahertz,
                slowed_for_heat,
                ..Processor::default()
            },
            ..Trial::begun(1)
        };
        let steady = [
            trial(Some([3000.0, 3100.0]), 0),
            trial(Some([2900.0, 3100.0]), 0),
            trial(None, 0),
        ];
        assert!(warnings(steady.iter()).is_empty());
        let moved = [
            trial(Some([3000.0, 3100.0]), 0),
            trial(Some([1200.0, 3000.0]), 2),
        ];
        let found = warnings(moved.iter());
        assert!(found[0].contains("between 1200 and 3100 MHz"), "{found:?}");
        assert!(found[1].contains("for their heat 2 times"), "{found:?}");
        assert!(
            found
                .iter()
                .zip(WARNINGS)
                .all(|(line, begin)| line.starts_with(begin))
        );
    }
}
