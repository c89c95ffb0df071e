//! A trial in which nothing is asked: what connections cost that are there, and silent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Pair, start_client};
use crate::carried::Carried;
use crate::lab::Lab;
use crate::load::Silence;
use crate::machine;
use crate::process::{Memory, Program};
use crate::results::{Idle, Processor, Share, Trial};
use crate::sys::Times;

/// How long ten thousand connections may take until they are silent, on a busy machine, too.
const OPEN_LIMIT: Duration = Duration::from_secs(600);
/// What follows a connection's last byte (rings that are closed, time-outs) is over when so long nobody has used more than this share of a
/// processor; at the latest after some time, and a note says so.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_SHARE: f64 = 0.02;
const QUIET_LIMIT: Duration = Duration::from_secs(30);
/// For fewer connections, what others do on the machine meanwhile is most of what the kernel takes more.
const KERNEL_FROM: u64 = 100;
/// What the kernel keeps sockets and their like in.
const SLABS: [&str; 8] = [
    "TCP",
    "TCPv6",
    "UNIX",
    "tw_sock_TCP",
    "sock_inode_cache",
    "shmem_inode_cache",
    "filp",
    "eventpoll_epi",
];

impl Pair<'_> {
    /// Starts a client whose connections are silent, and looks at all programs for the length of a trial.
    pub(super) fn watch(
        &self,
        lab: &Lab,
        template: &str,
        words: &BTreeMap<String, String>,
        trial: &mut Trial,
    ) -> Result<Idle> {
        let servers = self.servers()?;
        let (agent, agent_before) = lab.agent(self.road).unzip();
        let served = || servers.iter().map(Program::memory).sum::<Memory>();
        let managed = || agent.map(Program::memory).unwrap_or_default();
        let kernel_before = machine::slabs(&SLABS);
        let (mut client, line) = start_client(lab, self.road, template, words)?;
        trial.commands.insert("client".to_owned(), line);
        client.wait_until(OPEN_LIMIT, |client| silence(client).is_some())?;
        let silence = silence(&client).context("the client did not say that it is silent")?;
        let used = |client: &Program| {
            let agent = agent.map(Program::processor).unwrap_or_default();
            let servers: Times = servers.iter().map(Program::processor).sum();
            [servers, client.processor(), agent]
        };
        trial.notes.extend(settle(&mut client, used)?);
        let (before, begun) = (used(&client), Instant::now());
        pause(&mut client, Duration::from_secs_f64(self.seconds))?;
        let (after, seconds) = (used(&client), begun.elapsed().as_secs_f64());
        let memory = [served(), client.memory(), managed()];
        let kernel = machine::slabs(&SLABS).zip(kernel_before);
        // Asked last: the answer is work for the agent, and memory.
        let mut carried = Carried::at(&self.ports);
        if self.road.accelerated {
            // An agent that does not answer leaves the share unknown, which is told.
            let _ = carried.look(&lab.socket(self.road));
        }
        self.tell_road(&carried, trial);
        let at_first = [
            self.memory_before.total(),
            silence.memory_before_bytes,
            agent_before.unwrap_or_default().total(),
        ];
        let times = [0, 1, 2].map(|at| after[at].since(before[at]));
        let [server, client, agent] = [0, 1, 2].map(|at| Share {
            processor_s: times[at].total().as_secs_f64(),
            memory_bytes: memory[at].total().cast_signed() - at_first[at].cast_signed(),
        });
        trial.seconds = seconds;
        trial.processor = Processor {
            server_user_s: times[0].user.as_secs_f64(),
            server_system_s: times[0].system.as_secs_f64(),
            client_user_s: times[1].user.as_secs_f64(),
            client_system_s: times[1].system.as_secs_f64(),
            ..Processor::default()
        };
        Ok(Idle {
            connections: silence.connections,
            seconds,
            server,
            client,
            agent,
            kernel_bytes: kernel
                .filter(|_| silence.connections >= KERNEL_FROM)
                .map(|(now, before)| now.cast_signed() - before.cast_signed()),
        })
    }
}

/// What the client says when all its connections are silent.
fn silence(client: &Program) -> Option<Silence> {
    let text = client.output();
    text.lines()
        .find_map(|line| serde_json::from_str(line).ok())
}

/// Lets time pass, in which the client does not end.
fn pause(client: &mut Program, time: Duration) -> Result<()> {
    let ended = client.wait(time)?.is_some();
    ensure!(
        !ended,
        "the client ended when it was to be silent\n{}",
        client.output()
    );
    Ok(())
}

/// Waits until nobody does anything any more; a note if that takes too long.
fn settle(client: &mut Program, used: impl Fn(&Program) -> [Times; 3]) -> Result<Option<String>> {
    let total = |client: &Program| used(client).into_iter().sum::<Times>().total();
    let begun = Instant::now();
    while begun.elapsed() < QUIET_LIMIT {
        let before = total(client);
        pause(client, QUIET)?;
        if total(client).saturating_sub(before) < QUIET.mul_f64(QUIET_SHARE) {
            return Ok(None);
        }
    }
    Ok(Some(format!(
        "server, client or agent were still at work {} s after the last byte",
        QUIET_LIMIT.as_secs()
    )))
}
