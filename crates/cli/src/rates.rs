//! Rates: what has come between two reports. No I/O.

use std::collections::HashMap;

use millrace_agent::{ChannelsReport, FlowReport};
use serde::Serialize;

use crate::channels::{Line, lines};

/// What a count that has grown by so much in so long grows by in a second; 0: no time has passed.
pub(crate) fn per_second(passed: u64, passed_ns: u64) -> u64 {
    let rate = (u128::from(passed) * 1_000_000_000).checked_div(u128::from(passed_ns));
    u64::try_from(rate.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// What goes by a link of a channel in a second, in the direction of messages, or of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LinkRate {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
}

/// What the links of channels had carried at the last report, by their numbers, and their rates since the one before.
#[derive(Debug, Default)]
pub(crate) struct LinkRates {
    at_ns: u64,
    counts: HashMap<String, FlowReport>,
    rates: HashMap<String, LinkRate>,
}

impl LinkRates {
    /// Takes a report in. A link that is new has no rate, and none has one where the clock stands still.
    pub(crate) fn update(&mut self, report: &ChannelsReport) {
        let passed_ns = report.now_ns.saturating_sub(self.at_ns);
        let before = std::mem::take(&mut self.counts);
        self.rates.clear();
        for line in lines(report) {
            let (Some(id), Some(now)) = (line.id(), line.flow) else {
                continue;
            };
            if let Some(then) = before.get(id).filter(|_| passed_ns > 0) {
                let rate = |count: fn(&FlowReport) -> u64| {
                    per_second(count(&now).saturating_sub(count(then)), passed_ns)
                };
                let rate = LinkRate {
                    messages: rate(|flow| flow.messages),
                    bytes: rate(|flow| flow.bytes),
                    dropped: rate(|flow| flow.dropped),
                };
                self.rates.insert(id.to_owned(), rate);
            }
            self.counts.insert(id.to_owned(), now);
        }
        self.at_ns = report.now_ns;
    }

    /// That of a line's link.
    pub(crate) fn of(&self, line: &Line<'_>) -> Option<LinkRate> {
        self.of_link(line.id()?)
    }

    /// That of a link, by its number.
    pub(crate) fn of_link(&self, id: &str) -> Option<LinkRate> {
        self.rates.get(id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::tests::news;

    fn rate(rates: &LinkRates, report: &ChannelsReport) -> Option<LinkRate> {
        rates.of(&lines(report)[0])
    }

    #[test]
    fn a_link_has_a_rate_when_it_was_there_before() {
        let mut rates = LinkRates::default();
        let [first, second] = [news(100, 1_000_000_000), news(300, 1_500_000_000)];
        rates.update(&first);
        assert_eq!(rate(&rates, &first), None);
        rates.update(&second);
        let expected = LinkRate {
            messages: 400,
            bytes: 40_000,
            dropped: 0,
        };
        assert_eq!(rate(&rates, &second), Some(expected));
        assert_eq!(rates.of(&lines(&second)[1]), None, "nobody is linked there");
        rates.update(&ChannelsReport::default());
        assert_eq!(rate(&rates, &second), None, "it is over");
    }

    #[test]
    fn clocks_that_stand_still_give_no_rate_and_counts_that_go_back_none_at_all() {
        let mut rates = LinkRates::default();
        for now_ns in [5, 5, 4] {
            rates.update(&news(now_ns, now_ns));
            assert_eq!(rate(&rates, &news(0, 0)), None);
        }
        rates.update(&news(0, 9));
        assert_eq!(rate(&rates, &news(0, 0)), Some(LinkRate::default()));
        assert_eq!(per_second(u64::MAX, 1), u64::MAX);
    }
}
