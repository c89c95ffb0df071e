//! When questions are answered: an answer looks at every board of the machine, and anybody may ask for one as often as he likes.
//!
//! A tenant's questions take a tenth of the agent's time at most: a twentieth for what there may be very much of, and another for the
//! agent's state, for which a program that starts waits only shortly. Now and then there may be some at once. One that comes too early is
//! kept, one of a client, and answered when its turn has come; until then nothing else is heard of who asked it. Whoever could stop the
//! agent is answered at once.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use millrace_wire::Query;

use crate::distant::processor_time;
use crate::offers::ClientId;
use crate::server::Server;
use crate::tenant::Tenant;

/// For every moment of processor time that an answer takes, so many pass until the tenant's next of its kind…
const REST_FACTOR: u32 = 20;
/// …but for this: answers of 50 ms, when there were none for a while.
const REST_OWED_MAX: Duration = Duration::from_secs(1);

/// Whose questions, and of which kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Account {
    tenant: Tenant,
    is_of_state: bool,
}

impl Account {
    fn of(tenant: Tenant, query: Query) -> Account {
        Account {
            tenant,
            is_of_state: matches!(query, Query::Status | Query::StatusAndStay),
        }
    }
}

#[derive(Debug)]
struct Turn {
    again_at: Instant,
    /// Who waits for an answer, the longest first.
    kept: VecDeque<ClientId>,
}

/// Those that wait for their answers.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    turns: HashMap<Account, Turn>,
}

impl Questions {
    /// Keeps a question that comes too early. False: it is to be answered now.
    fn keep(&mut self, account: Account, client: ClientId, now: Instant) -> bool {
        let Some(turn) = self.turns.get_mut(&account) else {
            return false;
        };
        let is_early = now < turn.again_at || !turn.kept.is_empty();
        if is_early {
            turn.kept.push_back(client);
        }
        is_early
    }

    /// An answer has taken so long.
    fn spend(&mut self, account: Account, now: Instant, took: Duration) {
        if account.tenant.may_stop_agent() {
            return;
        }
        let rested = now.checked_sub(REST_OWED_MAX).unwrap_or(now);
        self.turns
            .retain(|_, turn| rested < turn.again_at || !turn.kept.is_empty());
        let turn = self.turns.entry(account).or_insert_with(|| Turn {
            again_at: rested,
            kept: VecDeque::new(),
        });
        turn.again_at = turn.again_at.max(rested) + took * REST_FACTOR;
    }

    /// Those whose turn has come: one of each account.
    fn due(&mut self, now: Instant) -> Vec<ClientId> {
        let turns = self.turns.values_mut();
        turns
            .filter(|turn| turn.again_at <= now)
            .filter_map(|turn| turn.kept.pop_front())
            .collect()
    }

    fn forget(&mut self, account: Account, client: ClientId) {
        if let Some(turn) = self.turns.get_mut(&account) {
            turn.kept.retain(|kept| *kept != client);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let waited_for = self.turns.values().filter(|turn| !turn.kept.is_empty());
        waited_for.map(|turn| turn.again_at).min()
    }
}

impl Server {
    /// A client asks: it is answered, now or later.
    pub(crate) fn handle_query(&mut self, asker: ClientId, query: Query) {
        self.metrics.queries += 1;
        let account = Account::of(self.tenant_of(asker), query);
        if !self.questions.keep(account, asker, Instant::now()) {
            return self.answer_in_turn(asker, query);
        }
        if let Some(client) = self.clients.get_mut(&asker) {
            client.question = Some(query);
            self.set_client_interest(asker);
        }
    }

    /// Answers those whose turn has come.
    pub(crate) fn answer_kept(&mut self, now: Instant) {
        for asker in self.questions.due(now) {
            let client = self.clients.get_mut(&asker);
            if let Some(query) = client.and_then(|client| client.question.take()) {
                self.answer_in_turn(asker, query);
                self.set_client_interest(asker);
            }
        }
    }

    fn answer_in_turn(&mut self, asker: ClientId, query: Query) {
        let spent = processor_time();
        self.answer_query(asker, query);
        let took = processor_time().saturating_sub(spent);
        let account = Account::of(self.tenant_of(asker), query);
        self.questions.spend(account, Instant::now(), took);
    }

    /// A client that is gone waits for nothing.
    pub(crate) fn forget_question(&mut self, client: ClientId) {
        let tenant = self.tenant_of(client);
        let client_asks = self.clients.get_mut(&client);
        if let Some(query) = client_asks.and_then(|client| client.question.take()) {
            self.questions.forget(Account::of(tenant, query), client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTIONS: Account = Account {
        tenant: Tenant::User(1),
        is_of_state: false,
    };

    #[test]
    fn questions_of_a_tenant_take_a_part_of_the_time_and_each_is_answered_in_turn() {
        let mut questions = Questions::default();
        let start = Instant::now() + REST_OWED_MAX;
        let took = REST_OWED_MAX / REST_FACTOR;
        let asks = |questions: &mut Questions, client, now| {
            !questions.keep(CONNECTIONS, ClientId(client), now)
        };
        for _ in 0..2 {
            assert!(asks(&mut questions, 1, start), "some at once");
            questions.spend(CONNECTIONS, start, took);
        }
        for client in 2..4 {
            assert!(!asks(&mut questions, client, start), "too early");
        }
        for other in [
            Account::of(Tenant::User(1), Query::Status),
            Account::of(Tenant::User(2), Query::Connections),
        ] {
            assert!(!questions.keep(other, ClientId(9), start), "{other:?}");
        }
        let rested = start + took * REST_FACTOR;
        assert_eq!(questions.next_deadline(), Some(rested));
        assert!(questions.due(rested - took).is_empty());
        assert!(!asks(&mut questions, 4, rested), "others came before");
        assert_eq!(questions.due(rested), [ClientId(2)]);
        questions.spend(CONNECTIONS, rested, took);
        assert!(questions.due(rested).is_empty(), "one in a turn");
        questions.forget(CONNECTIONS, ClientId(3));
        let rested = rested + took * REST_FACTOR;
        assert_eq!(questions.due(rested), [ClientId(4)]);
        questions.spend(CONNECTIONS, rested, took);
        assert_eq!(questions.next_deadline(), None);
        let later = rested + took * REST_FACTOR;
        assert!(asks(&mut questions, 5, later));
        let other = Account::of(Tenant::User(3), Query::Channels);
        questions.spend(other, later + REST_OWED_MAX, took);
        assert_eq!(questions.turns.len(), 1, "what is over is forgotten");
        let root = Account::of(Tenant::User(0), Query::Connections);
        questions.spend(root, later, REST_OWED_MAX);
        assert!(!questions.keep(root, ClientId(6), later), "root waits");
    }
}
