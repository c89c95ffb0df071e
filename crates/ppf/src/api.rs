//! What can be asked of a function, and changed: `docs/ppf-openapi.json` describes it, and is tested against the answers.

use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::numbered::Numbered;
use crate::bearer::BearerId;
use crate::http::{Answer, JSON, JSON_LINES, Question, Said, TEXT};
use crate::metrics;
use crate::registry::ChangeError;
use crate::report::{Added, BearerList, Refusal};
use crate::running::Running;
use crate::spec::BearerSpec;

mod numbered;
mod observe;

/// The document that describes the API, as it is served.
pub const OPENAPI: &str = include_str!("../../../docs/ppf-openapi.json");

/// Bearers of an answer, unless it is said how many, and at most.
const LIMIT: usize = 1000;
const LIMIT_MAX: usize = 100_000;
/// One may be lost, and more than some say nothing more.
const END_MARKERS_MAX: u32 = 8;
/// Of so many refusals the reason is told.
const REFUSALS_MAX: usize = 100;
/// Lines of a question, at most: more than bearers have room in the longest. Each costs memory, whatever is in it.
const LINES_MAX: usize = 1 << 20;

/// A function that can be asked.
#[derive(Debug)]
pub struct Api {
    running: Running,
}

/// Bearers that are to be removed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Removal {
    ids: Vec<u32>,
}

type Answered = Result<Answer, Answer>;

impl Api {
    /// Of a function that runs.
    #[must_use]
    pub fn new(running: Running) -> Api {
        Api { running }
    }

    /// The function.
    #[must_use]
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Answers a question; what comes piece by piece when all of it has come.
    #[must_use]
    pub fn answer(&self, question: &Question) -> Answer {
        match self.say(question) {
            Said::Whole(answer) => answer,
            Said::Pieces(kind, pieces) => Answer::new(200, kind, pieces.flatten().collect()),
        }
    }

    /// Answers a question.
    pub(crate) fn say(&self, question: &Question) -> Said {
        if !is_own_host(&question.host) {
            // A page in somebody's browser, whose name leads to this machine.
            return Said::Whole(Answer::error(403, "this host is asked by another name"));
        }
        let path = question.path.strip_prefix("/v1/");
        let words: Vec<&str> = path.unwrap_or_default().split('/').collect();
        if let ("GET", ["bearers", id, "trace"]) = (question.method.as_str(), words.as_slice()) {
            return self.trace(id, question).unwrap_or_else(Said::Whole);
        }
        let answer = self.route(question, &words);
        Said::Whole(answer.unwrap_or_else(|refused| refused))
    }

    fn route(&self, question: &Question, words: &[&str]) -> Answered {
        match (question.method.as_str(), words) {
            ("GET", ["status"]) => json(200, &self.running.status()),
            ("GET", ["neighbours"]) => match self.running.neighbours() {
                Ok(neighbours) => json(200, &neighbours),
                Err(workers) => Err(unanswered(&workers)),
            },
            ("GET", ["events"]) => self.events(question),
            ("GET", ["paths"]) => self.paths(question),
            ("GET", ["graph"]) => self.graph(question),
            ("GET", ["bearers"]) => self.list(question),
            ("POST", ["bearers"]) => self.add(question),
            ("PUT", ["bearers"]) => self.put(question),
            ("POST", ["bearers", "remove"]) => self.remove(question),
            ("GET", ["bearers", id]) => {
                let bearer = self.running.bearer(id_of(id)?);
                json(200, &bearer.ok_or_else(unknown)?)
            }
            ("PUT", ["bearers", id]) => self.change(id_of(id)?, question),
            ("DELETE", ["bearers", id]) => {
                let gone = self.running.remove(&[id_of(id)?]);
                let gone = gone.map_err(|error| not_done(&error))?;
                json(200, gone.first().ok_or_else(unknown)?)
            }
            (_, ["ues"] | ["ues", _]) => self.ues(question, &words[1..]),
            (
                _,
                ["status" | "neighbours" | "events" | "paths" | "graph"] | ["bearers", _, "trace"],
            ) => Err(otherwise("GET")),
            (_, ["bearers"]) => Err(otherwise("GET, POST, PUT")),
            (_, ["bearers", "remove"]) => Err(otherwise("POST")),
            (_, ["bearers", _]) => Err(otherwise("GET, PUT, DELETE")),
            ("GET", _) => self.document(&question.path),
            _ => Err(nothing_there()),
        }
    }

    fn ues(&self, question: &Question, words: &[&str]) -> Answered {
        let spec = || {
            media(question)?;
            let spec = serde_json::from_slice(&question.body);
            spec.map_err(|error| Answer::error(400, &error.to_string()))
        };
        let ue = || {
            words
                .first()
                .and_then(|word| word.parse().ok())
                .ok_or_else(unknown)
        };
        let running = &self.running;
        match (question.method.as_str(), words.len()) {
            ("GET", 0) => {
                let (from, limit) = page(question)?;
                json(
                    200,
                    &running.ues(u32::try_from(from).unwrap_or(u32::MAX), limit),
                )
            }
            ("POST", 0) => json(
                201,
                &running.add_ue(spec()?).map_err(|error| not_done(&error))?,
            ),
            ("GET", 1) => json(200, &running.ue(ue()?).ok_or_else(unknown)?),
            ("PUT", 1) => json(
                200,
                &running
                    .change_ue(ue()?, spec()?)
                    .map_err(|error| not_done(&error))?,
            ),
            ("DELETE", 1) => json(
                200,
                &running.remove_ue(ue()?).map_err(|error| not_done(&error))?,
            ),
            (_, 0) => Err(otherwise("GET, POST")),
            _ => Err(otherwise("GET, PUT, DELETE")),
        }
    }

    fn document(&self, path: &str) -> Answered {
        match path {
            "/metrics" => {
                let status = self.running.status();
                if !status.unanswered.is_empty() {
                    // Counters without a worker's part would go back, and jump when it answers again.
                    return Err(unanswered(&status.unanswered));
                }
                let text = metrics::render(&status);
                Ok(Answer::new(200, TEXT, text.into_bytes()))
            }
            "/openapi.json" => Ok(Answer::new(200, JSON, OPENAPI.as_bytes().to_vec())),
            _ => Err(nothing_there()),
        }
    }

    fn list(&self, question: &Question) -> Answered {
        let (from, limit) = page(question)?;
        json(200, &self.running.bearers(from, limit))
    }

    fn add(&self, question: &Question) -> Answered {
        match media(question)? {
            Media::One => {
                let spec = spec_of(&question.body)?;
                let added = self.running.add(&[spec]);
                let added = added.map_err(|error| not_done(&error))?;
                let id = match added.first() {
                    Some(Ok(id)) => *id,
                    Some(Err(why)) => return Err(Answer::error(409, why)),
                    None => return Err(unknown()),
                };
                let bearer = self.running.bearer(id);
                json(201, &bearer.ok_or_else(unknown)?)
            }
            Media::Lines => self.put_lines(&question.body, 0, unnumbered),
        }
    }

    /// Has bearers be so that have a number, and adds the others, each a line.
    fn put(&self, question: &Question) -> Answered {
        if matches!(media(question)?, Media::One) {
            let why =
                format!("the Content-Type is {JSON_LINES}, or a bearer is asked for by its number");
            return Err(Answer::error(415, &why));
        }
        let markers = number_of(question, "end_markers", 0..=END_MARKERS_MAX)?.unwrap_or(0);
        self.put_lines(&question.body, markers, numbered)
    }

    fn put_lines(&self, body: &[u8], markers: u32, parse: Parse) -> Answered {
        let lines = (1..).zip(body.split(|byte| *byte == b'\n'));
        let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
        let (mut wanted, mut parsed, mut refused) = (Vec::new(), Vec::new(), 0);
        for (number, line) in lines {
            if parsed.len() == LINES_MAX {
                let why = format!("there are more than {LINES_MAX} lines: give them in pieces");
                return Err(Answer::error(413, &why));
            }
            let outcome = parse(line).map(|one| wanted.push(one));
            refused += usize::from(outcome.is_err());
            // What nobody is told is not kept.
            let is_told = refused <= REFUSALS_MAX;
            parsed.push((number, outcome.map_err(|why| is_told.then_some(why))));
        }
        let wanted: Vec<_> = wanted.iter().map(|(id, spec)| (*id, spec)).collect();
        let put = self.running.put(&wanted, markers);
        let mut put = put.map_err(|error| not_done(&error))?.into_iter();
        let mut answer = Added {
            ids: Vec::with_capacity(parsed.len()),
            ..Added::default()
        };
        for (line, parsed) in parsed {
            let outcome = match parsed {
                Ok(()) => put.next().map(|put| put.map_err(|error| error.to_string())),
                Err(why) => Some(Err(why.unwrap_or_default())),
            };
            match outcome {
                Some(Ok(put)) => {
                    let is_new = put.before.is_none();
                    answer.added += u64::from(is_new);
                    answer.changed += u64::from(!is_new);
                    answer.ids.push(Some(put.id.number()));
                }
                refused => {
                    answer.refused += 1;
                    answer.ids.push(None);
                    let error = refused.and_then(Result::err).unwrap_or_default();
                    if answer.refusals.len() < REFUSALS_MAX {
                        answer.refusals.push(Refusal { line, error });
                    }
                }
            }
        }
        json(200, &answer)
    }

    fn remove(&self, question: &Question) -> Answered {
        media(question)?;
        let removal: Removal = serde_json::from_slice(&question.body)
            .map_err(|error| Answer::error(400, &error.to_string()))?;
        let ids = removal.ids.into_iter().filter_map(BearerId::checked);
        let ids: Vec<BearerId> = ids.collect();
        let gone = self.running.remove(&ids);
        let bearers = gone.map_err(|error| not_done(&error))?;
        let next = None;
        json(200, &BearerList { bearers, next })
    }

    fn change(&self, id: BearerId, question: &Question) -> Answered {
        media(question)?;
        let spec = spec_of(&question.body)?;
        let markers = number_of(question, "end_markers", 0..=END_MARKERS_MAX)?.unwrap_or(0);
        let changed = self.running.change(id, &spec, markers);
        json(200, &changed.map_err(|error| not_done(&error))?)
    }
}

fn otherwise(allow: &'static str) -> Answer {
    let why = "this can be asked in another way only: see /openapi.json";
    Answer {
        allow,
        ..Answer::error(405, why)
    }
}

/// Why a change was not made.
fn not_done(error: &ChangeError) -> Answer {
    let status = match error {
        ChangeError::Unknown => 404,
        ChangeError::Refused(_) => 409,
        ChangeError::Store(_) => 507,
        ChangeError::Busy => 503,
    };
    Answer::error(status, &error.to_string())
}

/// What workers have not said is not known.
fn unanswered(workers: &[usize]) -> Answer {
    let why = format!("workers {workers:?} have not answered in time: try again");
    Answer::error(503, &why)
}

/// Which part of a list is asked for.
fn page(question: &Question) -> Result<(usize, usize), Answer> {
    let limit = number_of(question, "limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT);
    let from = number_of(question, "from", 0..=usize::MAX)?.unwrap_or(0);
    Ok((from, limit))
}

enum Media {
    One,
    Lines,
}

/// What a body is said to be. A page in a browser cannot say that it is JSON without asking first, which nobody here answers.
fn media(question: &Question) -> Result<Media, Answer> {
    let media = question.content_type.split(';').next();
    match media.unwrap_or_default().trim() {
        JSON => Ok(Media::One),
        JSON_LINES => Ok(Media::Lines),
        _ => {
            let why = format!("the Content-Type is {JSON}, or {JSON_LINES} for several bearers");
            Err(Answer::error(415, &why))
        }
    }
}

fn is_own_host(host: &str) -> bool {
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.is_loopback();
    }
    let name = match host.rsplit_once(':') {
        // An address of IPv6 with a port has brackets.
        Some((name, port))
            if !name.ends_with(':') && port.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            name
        }
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: IpAddr| address.is_loopback();
    // Whoever says none is no browser.
    name.is_empty()
        || name.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(is_loopback)
}

/// What a question's parameter says, if it is there.
fn number_of<N: FromStr + PartialOrd + Display>(
    question: &Question,
    name: &str,
    range: RangeInclusive<N>,
) -> Result<Option<N>, Answer> {
    let Some(text) = question.parameter(name) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        Ok(_) => {
            let why = format!("{name} is from {} to {}", range.start(), range.end());
            Err(Answer::error(400, &why))
        }
        Err(_) => Err(Answer::error(400, &format!("{name} is a number"))),
    }
}

fn id_of(word: &str) -> Result<BearerId, Answer> {
    let number = word.parse().ok();
    number.and_then(BearerId::checked).ok_or_else(unknown)
}

/// How a line says a bearer, and its number.
type Parse = fn(&[u8]) -> Result<(Option<BearerId>, BearerSpec), String>;

fn unnumbered(line: &[u8]) -> Result<(Option<BearerId>, BearerSpec), String> {
    Ok((None, BearerSpec::parse(line)?))
}

/// The number is beside what the bearer is to be; without one it is to be added.
fn numbered(line: &[u8]) -> Result<(Option<BearerId>, BearerSpec), String> {
    let said: Numbered = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let Numbered { number, spec } = said;
    spec.check()?;
    let Some(number) = number else {
        return Ok((None, spec));
    };
    let id = number.as_u64().and_then(|number| number.try_into().ok());
    let id = id.and_then(BearerId::checked);
    let id = id.ok_or_else(|| format!("{number} is no bearer's number"))?;
    Ok((Some(id), spec))
}

fn spec_of(body: &[u8]) -> Result<BearerSpec, Answer> {
    BearerSpec::parse(body).map_err(|why| Answer::error(400, &why))
}

fn unknown() -> Answer {
    Answer::error(404, "there is no such bearer")
}

fn nothing_there() -> Answer {
    Answer::error(404, "there is nothing here: see /openapi.json")
}

fn json(status: u16, what: &impl Serialize) -> Answered {
    match serde_json::to_vec(what) {
        Ok(body) => Ok(Answer::new(status, JSON, body)),
        Err(error) => Err(Answer::error(500, &error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_s_names_are_answered() {
        for own in [
            "",
            "localhost",
            "localhost:9470",
            "127.0.0.1:80",
            "[::1]:9470",
            "::1",
        ] {
            assert!(is_own_host(own), "{own}");
        }
        for other in [
            "example.org",
            "example.org:9470",
            "192.0.2.1",
            "localhost.example.org",
        ] {
            assert!(!is_own_host(other), "{other}");
        }
    }
}
