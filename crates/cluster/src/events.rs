//! Events on pods whose connections cannot take the fast road, and why: `kubectl describe pod` shows them.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use millrace_agent::{ConnectionsReport, EndReport};
use millrace_wire::Reason;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::{info, warn};

use crate::api::{Api, Call, Failure};

/// How long the agent may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// The same is not said of a pod again for so long: API servers forget events after an hour.
const AGAIN: Duration = Duration::from_secs(3600);
/// The same where it could not be said: others come before it then.
const RETRY: Duration = Duration::from_secs(300);
/// No more at a time. What is left comes the next time.
const AT_A_TIME: usize = 32;

/// A pod, by its unique id, and why connections of it are not accelerated. Nothing that a pod could make as many of as it likes.
type Finding = (String, Reason);

/// One end of such a connection.
#[derive(Debug, Clone)]
struct Example {
    namespace: String,
    pod: String,
    program: String,
}

/// Tells of what the agent of this node finds, for ever.
#[derive(Debug)]
pub(crate) struct Teller {
    api: Api,
    /// The agent's socket.
    agent: PathBuf,
    node: String,
    period: Duration,
    /// Until when nothing more is said of it.
    rests: HashMap<Finding, Instant>,
}

impl Teller {
    pub(crate) fn new(api: Api, agent: PathBuf, node: String, period: Duration) -> Teller {
        Teller {
            api,
            agent,
            node,
            period,
            rests: HashMap::new(),
        }
    }

    pub(crate) async fn tell(&mut self) {
        let mut complaint = String::new();
        loop {
            let outcome = self.look().await;
            let text = outcome
                .err()
                .map_or_else(String::new, |error| format!("{error:#}"));
            if text != complaint {
                if text.is_empty() {
                    info!("events are written again");
                } else {
                    warn!("{text}; trying again");
                }
                complaint = text;
            }
            tokio::time::sleep(self.period).await;
        }
    }

    /// One look at all connections.
    async fn look(&mut self) -> anyhow::Result<()> {
        let agent = self.agent.clone();
        let asked = move || millrace_agent::connections(&agent, ANSWER);
        let report = tokio::task::spawn_blocking(asked).await??;
        for (finding, example) in self.due(findings(&report), Instant::now()) {
            let path = format!("/api/v1/namespaces/{}/events", example.namespace);
            let event = event(&finding, &example, &self.node, OffsetDateTime::now_utc());
            let written = self.api.call(&path, Call::Post(&event)).await;
            let rest = if written.is_ok() { AGAIN } else { RETRY };
            self.rests.insert(finding, Instant::now() + rest);
            if let Err(Failure::Other(error)) = written {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Those of which nobody was told lately.
    fn due(&mut self, found: BTreeMap<Finding, Example>, now: Instant) -> Vec<(Finding, Example)> {
        self.rests.retain(|_, until| now < *until);
        let is_new = |(finding, _): &(Finding, Example)| !self.rests.contains_key(finding);
        found.into_iter().filter(is_new).take(AT_A_TIME).collect()
    }
}

/// What keeps connections of pods from the fast road for as long as nobody does anything.
fn findings(report: &ConnectionsReport) -> BTreeMap<Finding, Example> {
    let ends = report
        .connections
        .iter()
        .flat_map(|connection| &connection.ends);
    ends.filter_map(finding).collect()
}

fn finding(end: &EndReport) -> Option<(Finding, Example)> {
    let (namespace, pod) = end.pod_name.as_ref()?.split_once('/')?;
    let reason = Reason::ALL
        .iter()
        .find(|reason| reason.as_str() == end.reason)?;
    let example = Example {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        program: end.program.clone(),
    };
    is_lasting(*reason).then_some(((end.pod.clone()?, *reason), example))
}

/// Not what passes, nor what is the usual course of things.
fn is_lasting(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::None
            | Reason::NotBothEnds
            | Reason::TooShort
            | Reason::NoAgent
            | Reason::AgentLost
            | Reason::NotEstablished
            | Reason::Sleeping
            | Reason::Overflow
            | Reason::Unseen
            | Reason::Exec
            | Reason::PassedFd
            | Reason::Forked
    )
}

/// An Event of the core API.
fn event((uid, reason): &Finding, example: &Example, node: &str, now: OffsetDateTime) -> Value {
    let (namespace, name) = (&example.namespace, &example.pod);
    let now = now.format(&Rfc3339).unwrap_or_default();
    let (program, reason, why) = (&example.program, reason.as_str(), reason.explanation());
    let message = format!("Connections of {program} take the kernel's road, {reason}: {why}");
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        // Names of events may be as long as that.
        "metadata": {"namespace": namespace, "generateName": format!("{}.", name.get(..200).unwrap_or(name))},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid,
        },
        "type": "Normal",
        "reason": "NotAccelerated",
        "message": message,
        "source": {"component": "millrace", "host": node},
        "reportingComponent": "millrace.dev/events",
        "reportingInstance": node,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ends: &[(&str, Option<&str>, &str)]) -> ConnectionsReport {
        let direction =
            json!({"kernel_bytes": 0, "kernel_messages": 0, "shm_bytes": 0, "shm_messages": 0});
        let end = |(uid, pod, reason): &(&str, Option<&str>, &str)| {
            json!({
                "pid": 7, "uid": 0, "program": "redis-server", "pod": uid, "pod_name": pod, "fd": 3, "active": true,
                "local": "10.0.0.1:1", "remote": "10.0.0.2:2", "road": "kernel", "reason": reason, "since_ns": 0, "holders": 1,
                "sent": direction, "received": direction,
            })
        };
        let connections: Vec<Value> = ends
            .iter()
            .map(|each| json!({"id": null, "ends": [end(each)]}))
            .collect();
        serde_json::from_value(json!({"now_ns": 0, "truncated": false, "connections": connections}))
            .unwrap()
    }

    fn teller() -> Teller {
        let api = Api {
            host: "localhost".to_owned(),
            port: 1,
            account: PathBuf::new(),
        };
        Teller::new(api, PathBuf::new(), "node-1".to_owned(), Duration::ZERO)
    }

    #[test]
    fn what_lasts_is_told_once_an_hour_for_each_pod() {
        let found = findings(&report(&[
            ("uid-1", Some("shop/cache"), "quota"),
            ("uid-1", Some("shop/cache"), "quota"),
            ("uid-1", Some("shop/cache"), "sleeping"),
            ("uid-2", Some("shop/web"), "not_both_ends"),
            ("uid-3", None, "quota"),
            ("uid-4", Some("shop/db"), "of a later version"),
        ]));
        assert_eq!(found.len(), 1);
        let (mut teller, now) = (teller(), Instant::now());
        let due = teller.due(found.clone(), now);
        assert_eq!(due.len(), 1);
        teller.rests.insert(due[0].0.clone(), now + AGAIN);
        assert!(teller.due(found.clone(), now).is_empty());
        assert_eq!(teller.due(found, now + AGAIN).len(), 1);
    }

    #[test]
    fn many_findings_are_told_a_few_at_a_time() {
        let names: Vec<String> = (0..100)
            .map(|number| format!("shop/cache-{number}"))
            .collect();
        let ends: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), Some(name.as_str()), "shaped"))
            .collect();
        let found = findings(&report(&ends));
        assert_eq!(teller().due(found, Instant::now()).len(), AT_A_TIME);
    }

    #[test]
    fn an_event_says_which_pod_and_why() {
        let found = findings(&report(&[("uid-1", Some("shop/cache"), "untraceable")]));
        let (finding, example) = found.first_key_value().unwrap();
        let event = event(finding, example, "node-1", OffsetDateTime::UNIX_EPOCH);
        assert_eq!(event["involvedObject"]["uid"], "uid-1");
        assert_eq!(event["metadata"]["namespace"], "shop");
        assert_eq!(event["metadata"]["generateName"], "cache.");
        assert_eq!(event["firstTimestamp"], "1970-01-01T00:00:00Z");
        let message = event["message"].as_str().unwrap();
        assert!(
            message.starts_with(
                "Connections of redis-server take the kernel's road, untraceable: The agent may not"
            ),
            "{message}"
        );
    }
}
