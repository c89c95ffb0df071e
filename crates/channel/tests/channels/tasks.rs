//! Participants in tokio's loop, as docs/channels.md has it.

use millrace_channel::{Client, Server, Subscriber};
use tokio::task::LocalSet;

use crate::agent::Running;
use crate::sys::watch;
use crate::waiting::ask;
use crate::{A_WHILE, SOON, channel, send};

const MESSAGES: u64 = 2000;
const REQUESTS: u8 = 100;

/// Runs tasks that lend out what is not `Sync`.
fn run(tasks: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let tasks = async { tokio::time::timeout(4 * SOON, LocalSet::new().run_until(tasks)).await };
    runtime.block_on(tasks).unwrap();
}

/// Takes messages until there were so many; returns what they say.
async fn take(subscriber: Subscriber, count: usize) -> Vec<u64> {
    let news = watch(subscriber);
    let mut numbers = Vec::new();
    loop {
        while let Some(message) = news.get_ref().pop() {
            numbers.push(message.u64_at(0).unwrap());
        }
        if numbers.len() >= count {
            return numbers;
        }
        news.readable().await.unwrap().clear_ready();
    }
}

#[test]
fn tasks_of_one_thread_take_all_messages_in_order() {
    let agent = Running::start();
    let channel = channel(&agent, "tasks").slots(16);
    let publisher = channel.publisher().unwrap();
    let subscribers: Vec<_> = (0..3).map(|_| channel.subscriber().unwrap()).collect();
    assert!(publisher.wait_for_subscribers(3, SOON));
    let publishing = std::thread::spawn(move || {
        for number in 0..MESSAGES {
            if number % 500 == 0 {
                // They sleep by then.
                std::thread::sleep(A_WHILE);
            }
            send(&publisher, number);
        }
        publisher.drain(SOON)
    });
    run(async {
        let takings = subscribers
            .into_iter()
            .map(|subscriber| tokio::task::spawn_local(take(subscriber, MESSAGES as usize)));
        for taking in takings.collect::<Vec<_>>() {
            assert!(taking.await.unwrap().into_iter().eq(0..MESSAGES));
        }
    });
    assert!(publishing.join().unwrap());
}

/// Answers each request with its own byte and one more.
async fn serve(server: Server) {
    let news = watch(server);
    loop {
        while let Some(request) = news.get_ref().pop() {
            let mut asked = [0; 1];
            request.message().copy_to(0, &mut asked);
            request.send(&[asked[0], asked[0] + 1]).unwrap();
        }
        news.readable().await.unwrap().clear_ready();
    }
}

async fn ask_one_by_one(client: Client) {
    let news = watch(client);
    for value in 0..REQUESTS {
        ask(news.get_ref(), 1, value);
        let reply = loop {
            if let Some(reply) = news.get_ref().pop() {
                break reply.unwrap().to_vec();
            }
            news.readable().await.unwrap().clear_ready();
        };
        assert_eq!(reply, [value, value + 1]);
    }
}

#[test]
fn a_client_and_its_server_are_tasks_of_one_thread() {
    let agent = Running::start();
    let channel = channel(&agent, "asking");
    let (client, server) = (channel.client().unwrap(), channel.server().unwrap());
    assert!(server.wait_for_clients(1, SOON) && client.wait_for_servers(1, SOON));
    run(async {
        let serving = tokio::task::spawn_local(serve(server));
        ask_one_by_one(client).await;
        assert!(!serving.is_finished());
        serving.abort();
    });
}
