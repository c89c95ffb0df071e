//! Runs a plan: every cell again and again, the roads of one comparison in turn, results kept after each.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::begin::{begin, cautions, roads_here, unproved, with_programs};
use crate::closing;
use crate::compare::{self, Row};
use crate::groups::{Group, groups};
use crate::lab::{Lab, Pinning};
use crate::results::{Outcome, Plan, Results, Trial, Unit};
use crate::roads::Road;
use crate::scenario::{Parameters, Scenario};
use crate::stats::generator::Generator;
use crate::sys;
use crate::trial::{Paces, Pair};

/// A group with a disturbed trial is measured again so often at most.
const REPEATS_OF_VOID: u32 = 2;
/// When a quick run has taken so long, nothing is: it is to be over in three minutes on a busy machine, too.
const QUICK_PATIENCE: Duration = Duration::from_secs(60);
/// After so many groups in a row that were disturbed to the last, one is measured once only, until one is not disturbed.
const HOPELESS: u32 = 2;
/// What is told then.
const TOO_BUSY: &str = "the machine was too busy: trials count that were disturbed, since those made in their place were, too";
/// A cell that failed so often in a row is left out of the rounds that follow.
const FAILURES_MAX: usize = 2;
/// Results are kept so often at most: of many short trials, writing them all each time would be most of the work.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// Keeps the seeds of groups apart.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which scenarios.
    pub scenarios: Vec<Scenario>,
    /// On which roads, the baseline first.
    pub roads: Vec<Road>,
    /// How much, and how.
    pub plan: Plan,
    /// Which processors.
    pub pinning: Pinning,
    /// Where results go.
    pub directory: PathBuf,
    /// What is there already is taken away.
    pub anew: bool,
    /// The files of the build that is measured.
    pub build: Vec<PathBuf>,
}

/// How far a run has come.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Trials behind us, of how many.
    pub done: usize,
    /// All of them.
    pub total: usize,
    /// What is measured now.
    pub now: String,
    /// What was measured last, if something was.
    pub last: Option<(Unit, Outcome, f64)>,
    /// What is left, by the pace so far.
    pub left: Duration,
}

/// Runs a plan; `show` hears of each trial before it begins. After an interrupt it returns with what there is.
///
/// # Errors
/// Nothing can be measured: a road or a scenario is wrong, or the directory has results of another plan.
pub fn run(request: &Request, show: &mut dyn FnMut(&Progress)) -> Result<Results> {
    let processors = request.pinning.processors()?;
    fs::create_dir_all(&request.directory)
        .with_context(|| format!("cannot make {}", request.directory.display()))?;
    let mut missing = Vec::new();
    let mut roads = roads_here(&request.roads, &mut missing);
    let lab = Lab::open(&mut roads, &mut missing, processors)?;
    let request = &Request {
        roads,
        ..request.clone()
    };
    ensure!(
        !request.roads.is_empty(),
        "there is no road to measure: {}",
        missing.join("; ")
    );
    let mut results = begin(request)?;
    let scenarios: Vec<Scenario> = request
        .scenarios
        .iter()
        .filter(|scenario| request.roads.iter().any(|road| scenario.takes(road)))
        .filter_map(|scenario| with_programs(scenario, &mut missing))
        .collect();
    for line in missing.iter().cloned().chain(cautions(&request.roads)) {
        warn(&mut results, line);
    }
    if let Some(line) = unproved(&request.roads) {
        warn(&mut results, line);
    }
    let groups = groups(&scenarios, request, &mut results);
    check_work(&groups, !scenarios.is_empty(), &missing)?;
    let mut course = Course {
        request,
        lab,
        results,
        paces: Paces::default(),
        done: 0,
        total: groups.iter().map(|group| group.cells.len()).sum::<usize>()
            * request.plan.repeats as usize,
        measured: 0,
        servers: 0,
        lost: 0,
        until: None,
        wanted: None,
        last: None,
        begun: Instant::now(),
        kept: None,
    };
    let made = course.rounds(&scenarios, &groups, show);
    let results = course.finish()?;
    made.map(|()| results)
}

/// Whether there is something to measure; if not, says why.
fn check_work(groups: &[Group<'_>], takes_some: bool, missing: &[String]) -> Result<()> {
    ensure!(
        groups.iter().any(|group| !group.cells.is_empty()),
        "there is nothing to measure: {}",
        if !missing.is_empty() {
            missing.join("; ")
        } else if groups.is_empty() && takes_some {
            "a quick run leaves these cases out; give --repeat 3 --time 1 instead of --quick"
                .to_owned()
        } else {
            "none of these scenarios can take any of these roads".to_owned()
        }
    );
    Ok(())
}

fn warn(results: &mut Results, line: String) {
    if !results.warnings.contains(&line) {
        results.warnings.push(line);
    }
}

/// The cells of which further rounds would tell more, and those that they are held against.
fn undecided(results: &Results) -> BTreeSet<usize> {
    let standing = compare::standing(results);
    let place = |row: &Row, road: &str| {
        results.cells.iter().position(|cell| {
            cell.road == road && cell.scenario == row.scenario && cell.parameters == row.parameters
        })
    };
    let places = standing
        .undecided()
        .flat_map(|row| [place(row, &row.road), place(row, &row.baseline_road)]);
    places.flatten().collect()
}

/// A run under way.
struct Course<'a> {
    request: &'a Request,
    lab: Lab,
    results: Results,
    paces: Paces,
    done: usize,
    total: usize,
    /// Trials made here; others were there before.
    measured: usize,
    /// Servers started.
    servers: usize,
    /// Groups in a row that were disturbed to the last.
    lost: u32,
    /// When the run ends, if it goes on until then.
    until: Option<Duration>,
    /// The cells that are measured, by their index; None: all.
    wanted: Option<BTreeSet<usize>>,
    last: Option<(Unit, Outcome, f64)>,
    begun: Instant,
    /// When results were written last.
    kept: Option<Instant>,
}

impl Course<'_> {
    /// All rounds.
    fn rounds(
        &mut self,
        scenarios: &[Scenario],
        groups: &[Group<'_>],
        show: &mut dyn FnMut(&Progress),
    ) -> Result<()> {
        for round in 1..=self.request.plan.repeats {
            self.round(scenarios, groups, round, show)?;
        }
        self.go_on(scenarios, groups, show)
    }

    /// One round of all scenarios, as far as no interrupt comes.
    fn round(
        &mut self,
        scenarios: &[Scenario],
        groups: &[Group<'_>],
        round: u32,
        show: &mut dyn FnMut(&Progress),
    ) -> Result<()> {
        for scenario in scenarios {
            let is_its = |group: &&Group<'_>| std::ptr::eq(group.scenario, scenario);
            let here: Vec<&Group<'_>> = groups.iter().filter(is_its).collect();
            if !here.is_empty() && !sys::interrupted() {
                self.scenario(scenario, &here, round, show)?;
            }
        }
        Ok(())
    }

    /// Further rounds of the cells that are not decided, until the time is up that the plan has for it.
    fn go_on(
        &mut self,
        scenarios: &[Scenario],
        groups: &[Group<'_>],
        show: &mut dyn FnMut(&Progress),
    ) -> Result<()> {
        let Some(minutes) = self.request.plan.minutes_max else {
            return Ok(());
        };
        let limit = Duration::from_secs_f64(60.0 * minutes);
        let trials = self.results.cells.iter().flat_map(|cell| &cell.trials);
        let last = trials.map(|trial| trial.round).max().unwrap_or(0);
        for round in last.max(self.request.plan.repeats) + 1.. {
            let mut wanted = undecided(&self.results);
            // A cell that fails cannot be decided.
            wanted.retain(|cell| self.is_open(*cell, round));
            if wanted.is_empty() || self.begun.elapsed() >= limit || sys::interrupted() {
                break;
            }
            self.total += wanted.len();
            self.until = Some(limit);
            self.wanted = Some(wanted);
            self.round(scenarios, groups, round, show)?;
        }
        Ok(())
    }

    /// One round of a scenario. The servers of all roads run beside each other; those that nobody asks cost nothing.
    fn scenario(
        &mut self,
        scenario: &Scenario,
        groups: &[&Group<'_>],
        round: u32,
        show: &mut dyn FnMut(&Progress),
    ) -> Result<()> {
        let cells = groups.iter().flat_map(|group| &group.cells);
        let wanted = cells.filter(|(cell, _)| self.is_wanted(*cell));
        let open: Vec<&str> = wanted
            .clone()
            .filter(|(cell, _)| self.is_open(*cell, round))
            .map(|(_, road)| road.name.as_str())
            .collect();
        if open.is_empty() {
            self.done += wanted.count();
            return Ok(());
        }
        let mut pairs = Vec::new();
        for road in &self.request.roads {
            if open.contains(&road.name.as_str()) {
                self.servers += 1;
                pairs.push(Pair::start(
                    &self.lab,
                    scenario,
                    road,
                    self.servers,
                    &self.request.plan,
                    &self.request.directory,
                )?);
            }
        }
        for (index, group) in groups.iter().enumerate() {
            let turn = self.turn(group, (round, index));
            self.group(group, &turn, &pairs, round, show)?;
            if sys::interrupted() {
                break;
            }
        }
        Ok(())
    }

    /// The cells of a group in an order of their own: a road that always came behind another would have its heat, or its noise.
    fn turn<'g>(&self, group: &Group<'g>, (round, index): (u32, usize)) -> Vec<(usize, &'g Road)> {
        let cells = group.cells.iter();
        let mut turn: Vec<_> = cells
            .filter(|(cell, _)| self.is_wanted(*cell))
            .copied()
            .collect();
        let place = u64::from(round) << 32 | index as u64;
        let mut chance = Generator::new(self.request.plan.seed ^ place.wrapping_mul(ODD));
        // Fisher and Yates.
        for end in (2..=turn.len()).rev() {
            turn.swap(end - 1, chance.below(end));
        }
        turn
    }

    fn group(
        &mut self,
        group: &Group<'_>,
        turn: &[(usize, &Road)],
        pairs: &[Pair<'_>],
        round: u32,
        show: &mut dyn FnMut(&Progress),
    ) -> Result<()> {
        let is_late = self.request.plan.quick && self.begun.elapsed() > QUICK_PATIENCE;
        let repeats = if self.lost >= HOPELESS || is_late {
            0
        } else {
            REPEATS_OF_VOID
        };
        for attempt in 0..=repeats {
            let mut trials: Vec<(usize, Trial)> = Vec::new();
            for (cell, road) in turn {
                if !self.is_open(*cell, round) {
                    continue;
                }
                let now = format!(
                    "round {round}, {} {} on {}",
                    self.results.cells[*cell].scenario,
                    show_parameters(&group.parameters),
                    road.name
                );
                show(&self.progress(now));
                let pair = pairs.iter().find(|pair| pair.road.name == road.name);
                let pair = pair.with_context(|| format!("{} has no server", road.name))?;
                let trial = pair.measure(
                    &self.lab,
                    group.case,
                    &group.parameters,
                    (round, *cell),
                    &mut self.paces,
                );
                if sys::interrupted() {
                    return Ok(());
                }
                self.measured += 1;
                self.last = Some((group.case.unit, trial.outcome.clone(), trial.value));
                trials.push((*cell, trial));
            }
            if self.keep(trials, attempt == repeats)? {
                break;
            }
        }
        self.done += turn.len();
        Ok(())
    }

    /// Takes the trials of a group into the results, and says whether that was all: none was disturbed, or it was the last attempt.
    fn keep(&mut self, trials: Vec<(usize, Trial)>, is_last: bool) -> Result<bool> {
        let disturbed = trials.iter().find_map(|(_, trial)| match &trial.outcome {
            Outcome::Void(why) => Some(why.clone()),
            _ => None,
        });
        for (cell, mut trial) in trials {
            if let (Some(why), false, Outcome::Counts) = (&disturbed, is_last, &trial.outcome) {
                trial.outcome = Outcome::Void(format!("{}: {why}", closing::ANOTHER_ROAD));
            } else if let (Outcome::Void(why), true, false) =
                (&trial.outcome, is_last, trial.seconds > 0.0)
            {
                // There are no figures that could count.
                trial.outcome = Outcome::Failed(why.clone());
            } else if let (Outcome::Void(why), true) = (&trial.outcome, is_last) {
                trial.notes.push(format!(
                    "{}, as others before it were: {why}",
                    closing::COUNTS_ALTHOUGH
                ));
                trial.outcome = Outcome::Counts;
            }
            self.results.cells[cell].trials.push(trial);
        }
        match (&disturbed, is_last) {
            (None, _) => self.lost = 0,
            (Some(_), true) => self.lost += 1,
            (Some(_), false) => {}
        }
        if self.lost >= HOPELESS {
            warn(&mut self.results, TOO_BUSY.to_owned());
        }
        if self.kept.is_none_or(|kept| kept.elapsed() >= KEEP_EVERY) {
            self.results.write(&self.request.directory)?;
            self.kept = Some(Instant::now());
        }
        Ok(disturbed.is_none() || is_last)
    }

    /// The results, with what a reader has to know of all trials together.
    fn finish(mut self) -> Result<Results> {
        for line in closing::warnings(&self.results, sys::interrupted()) {
            warn(&mut self.results, line);
        }
        self.results.write(&self.request.directory)?;
        Ok(self.results)
    }

    fn is_wanted(&self, cell: usize) -> bool {
        let wanted = self.wanted.as_ref();
        wanted.is_none_or(|wanted| wanted.contains(&cell))
    }

    /// Whether a cell has no trial of this round yet that counts or failed, and has not failed too often.
    fn is_open(&self, cell: usize, round: u32) -> bool {
        let trials = &self.results.cells[cell].trials;
        let is_done = trials
            .iter()
            .any(|trial| trial.round == round && !matches!(trial.outcome, Outcome::Void(_)));
        let failed = trials
            .iter()
            .rev()
            .take_while(|trial| matches!(trial.outcome, Outcome::Failed(_)));
        !is_done && failed.count() < FAILURES_MAX
    }

    fn progress(&self, now: String) -> Progress {
        let each = self
            .begun
            .elapsed()
            .checked_div(self.measured.max(1) as u32)
            .unwrap_or_default();
        let each = if self.measured == 0 {
            Duration::from_secs_f64(self.request.plan.seconds + 1.0)
        } else {
            each
        };
        Progress {
            done: self.done,
            total: self.total,
            now,
            last: self.last.clone(),
            left: match self.until {
                None => each * (self.total - self.done.min(self.total)) as u32,
                Some(until) => until.saturating_sub(self.begun.elapsed()),
            },
        }
    }
}

/// As `clients=50 bytes=1024`.
#[must_use]
pub fn show_parameters(parameters: &Parameters) -> String {
    let pairs: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    pairs.join(" ")
}
