//! Suites: words for scenarios and the roads on which they answer a question together, each one a file in `suites/`.

use anyhow::{Context, Result};
use serde::Deserialize;

const FILES: &[(&str, &str)] = &[
    ("all", include_str!("../suites/all.toml")),
    ("containers", include_str!("../suites/containers.toml")),
    ("overlay", include_str!("../suites/overlay.toml")),
    ("switches", include_str!("../suites/switches.toml")),
];

/// Scenarios, and roads for them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// The file's name.
    #[serde(skip)]
    pub name: String,
    /// What it answers.
    pub about: String,
    /// As [`crate::scenario::choose`] takes them; none: all.
    #[serde(default)]
    pub scenarios: Vec<String>,
    /// As [`crate::roads::choose`] takes them, the baseline first; none: those where nothing is named.
    #[serde(default)]
    pub roads: Vec<String>,
}

impl Suite {
    fn parse(name: &str, text: &str) -> Result<Suite> {
        let suite: Suite = toml::from_str(text).with_context(|| format!("the suite {name}"))?;
        Ok(Suite {
            name: name.to_owned(),
            ..suite
        })
    }
}

/// All suites.
///
/// # Panics
/// Never: a test reads every file.
#[must_use]
pub fn all() -> Vec<Suite> {
    let read =
        |(name, text): &(&str, &str)| Suite::parse(name, text).expect("the files are tested");
    FILES.iter().map(read).collect()
}

/// Puts scenarios in the place of words for suites. With them come the roads of these suites; none, where they have none.
#[must_use]
pub fn expand(words: &[String]) -> (Vec<String>, Vec<String>) {
    let known = all();
    let (mut scenarios, mut roads) = (Vec::new(), Vec::new());
    let add = |all: &mut Vec<String>, more: &[String]| {
        for word in more {
            if !all.contains(word) {
                all.push(word.clone());
            }
        }
    };
    for word in words {
        match known.iter().find(|suite| suite.name == *word) {
            // Of everything nothing is left out.
            Some(suite) if suite.scenarios.is_empty() => return (Vec::new(), suite.roads.clone()),
            Some(suite) => {
                add(&mut scenarios, &suite.scenarios);
                add(&mut roads, &suite.roads);
            }
            None => add(&mut scenarios, std::slice::from_ref(word)),
        }
    }
    (scenarios, roads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{roads, scenario};

    #[test]
    fn every_suite_has_scenarios_and_roads_that_there_are_and_no_scenario_s_name() {
        let scenarios = scenario::all();
        for suite in all() {
            let chosen = scenario::choose(&suite.scenarios).unwrap();
            let on = roads::choose(&suite.roads).unwrap();
            for scenario in &chosen {
                let takes = on.iter().any(|road| scenario.takes(road));
                let is_of_messages = !scenario.roads.is_empty();
                assert!(takes != is_of_messages, "{} {}", suite.name, scenario.name);
            }
            assert!(scenarios.iter().all(|scenario| scenario.name != suite.name));
        }
    }

    #[test]
    fn words_for_suites_become_their_scenarios_on_their_roads() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            expand(&words)
        };
        let (scenarios, on) = of(&["containers"]);
        assert_eq!(scenarios, ["redis/mix", "proxy"]);
        assert_eq!((on.len(), on[0].as_str()), (6, "bridge"));
        let (scenarios, on) = of(&["containers", "redis/mix", "idle"]);
        assert_eq!(scenarios, ["redis/mix", "proxy", "idle"]);
        assert_eq!(on.len(), 6);
        let (scenarios, on) = of(&["overlay", "switches"]);
        assert_eq!(scenarios.len(), 3);
        assert_eq!((on.len(), on[0].as_str()), (9, "vxlan"));
        assert_eq!(of(&["redis"]), (vec!["redis".to_owned()], Vec::new()));
        assert_eq!(of(&["redis", "all"]), (Vec::new(), Vec::new()));
        assert_eq!(of(&[]), (Vec::new(), Vec::new()));
    }
}
