//! Events, paths, and traces of bearers.

use std::time::Duration;

use super::{Answered, Api, id_of, json, number_of, unknown};
use crate::http::{Answer, PCAPNG, Question, SVG, Said};

/// Events and paths of an answer, unless it is said how many, and at most.
const LIMIT: usize = 1000;
const LIMIT_MAX: usize = 10_000;
/// So long an answer may be waited for: whoever asks goes after 30 seconds.
const WAIT_S_MAX: u64 = 20;
/// So long a bearer may be looked at, unless it is said, and at most.
const TRACE_S: u64 = 60;
const TRACE_S_MAX: u64 = 86_400;

impl Api {
    pub(super) fn events(&self, question: &Question) -> Answered {
        let from = number_of(question, "from", 0..=u64::MAX)?;
        let limit = number_of(question, "limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT);
        let wait = number_of(question, "wait", 0..=WAIT_S_MAX)?.unwrap_or(0);
        let events = self.running.events(from, limit, Duration::from_secs(wait));
        let crowded = |_| Answer::error(503, "as many wait for events as may: ask without wait");
        json(200, &events.map_err(crowded)?)
    }

    pub(super) fn paths(&self, question: &Question) -> Answered {
        let from = number_of(question, "from", 0..=u64::MAX)?.unwrap_or(0);
        let limit = number_of(question, "limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT);
        json(200, &self.running.paths(from, limit))
    }

    pub(super) fn graph(&self, question: &Question) -> Answered {
        let seconds = number_of(question, "seconds", 1..=WAIT_S_MAX)?;
        let graph = self.running.graph(seconds.map(Duration::from_secs));
        Ok(Answer::new(200, SVG, graph.into_bytes()))
    }

    pub(super) fn trace(&self, id: &str, question: &Question) -> Result<Said, Answer> {
        let count = number_of(question, "count", 1..=u64::MAX)?.unwrap_or(u64::MAX);
        let seconds = number_of(question, "seconds", 0..=TRACE_S_MAX)?.unwrap_or(TRACE_S);
        let time = Duration::from_secs(seconds);
        let trace = self.running.trace(id_of(id)?, count, time);
        let crowded = |_| Answer::error(503, "as many look at bearers as may");
        let pieces = trace.ok_or_else(unknown)?.map_err(crowded)?;
        Ok(Said::Pieces(PCAPNG, Box::new(pieces)))
    }
}
