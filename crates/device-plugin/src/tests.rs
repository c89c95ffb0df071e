//! The plugin and a kubelet that is made here, by real gRPC over real sockets.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_agent::{Agent, Config, Options};
use millrace_switch::{Config as SwitchConfig, Options as SwitchOptions, Server as SwitchServer};
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::interface::device_plugin_client::DevicePluginClient;
use crate::interface::device_plugin_server::DevicePluginServer;
use crate::interface::registration_server::{Registration, RegistrationServer};
use crate::interface::{
    AllocateRequest, ContainerRequest, DeviceList, Empty, HEALTHY, RegisterRequest, UNHEALTHY,
};
use crate::kubelet::{connect, socket_in};
use crate::resources::RESOURCES;
use crate::run::{Settings, serve};
use crate::service::Service;

/// For what comes at once on a machine that is not busy.
const LONG: Duration = Duration::from_secs(60);

/// What the kubelet under test was told, and what it says to that.
struct Told {
    requests: mpsc::UnboundedSender<RegisterRequest>,
    version: &'static str,
}

#[tonic::async_trait]
impl Registration for Told {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let known = request.version == self.version;
        let _ = self.requests.send(request);
        if known {
            Ok(Response::new(Empty {}))
        } else {
            Err(Status::unknown("the API version is not supported"))
        }
    }
}

/// A kubelet in its directory. Like the real one it removes every socket when it starts.
struct Kubelet {
    server: JoinHandle<()>,
    requests: mpsc::UnboundedReceiver<RegisterRequest>,
}

impl Kubelet {
    fn start(directory: &Path, version: &'static str) -> Kubelet {
        for entry in std::fs::read_dir(directory).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let listener = UnixListener::bind(socket_in(directory)).unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let told = Told {
            requests: sender,
            version,
        };
        let server = Server::builder().serve_with_incoming(
            RegistrationServer::new(told),
            UnixListenerStream::new(listener),
        );
        let server = tokio::spawn(async move { server.await.unwrap() });
        Kubelet { server, requests }
    }

    async fn next(&mut self) -> RegisterRequest {
        let next = tokio::time::timeout(LONG, self.requests.recv()).await;
        next.expect("nobody registers").unwrap()
    }

    /// Both resources, by their names.
    async fn both(&mut self) -> Vec<RegisterRequest> {
        let mut both = vec![self.next().await, self.next().await];
        both.sort_by(|a, b| a.resource_name.cmp(&b.resource_name));
        both
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A directory for a kubelet and an agent, and what the plugin is told of them.
fn world() -> (tempfile::TempDir, Settings) {
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("kubelet")).unwrap();
    let settings = Settings {
        kubelet: place.path().join("kubelet"),
        agent: place.path().join("agent/agent.sock"),
        switch: place.path().join("switch.sock"),
        count: 3,
        patience: Duration::from_millis(1),
    };
    (place, settings)
}

fn plugin(settings: &Settings) -> JoinHandle<anyhow::Result<()>> {
    let settings = settings.clone();
    tokio::spawn(async move { serve(&settings).await })
}

/// A real agent, until the other end of the pipe is dropped.
fn agent(socket: PathBuf) -> (UnixStream, std::thread::JoinHandle<()>) {
    let (stop, stopped) = UnixStream::pair().unwrap();
    let (ready, started) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let options = Options {
            socket,
            others: Vec::new(),
            config: Config::default(),
            background: false,
        };
        let agent = Agent::start(options, std::os::fd::AsFd::as_fd(&stopped)).unwrap();
        ready.send(()).unwrap();
        agent.serve().unwrap();
    });
    started.recv().unwrap();
    (stop, thread)
}

async fn client(settings: &Settings, endpoint: &str) -> DevicePluginClient<Channel> {
    DevicePluginClient::new(connect(&settings.kubelet.join(endpoint)).await.unwrap())
}

async fn next_list(lists: &mut Streaming<DeviceList>) -> Option<DeviceList> {
    let next = tokio::time::timeout(LONG, lists.message()).await;
    next.expect("no list").unwrap_or_default()
}

fn health(list: &DeviceList) -> Vec<(&str, &str)> {
    list.devices
        .iter()
        .map(|device| (device.id.as_str(), device.health.as_str()))
        .collect()
}

fn ask(containers: &[&[&str]]) -> AllocateRequest {
    let container = |ids: &&[&str]| ContainerRequest {
        device_ids: ids.iter().map(|&id| id.to_owned()).collect(),
    };
    AllocateRequest {
        containers: containers.iter().map(container).collect(),
    }
}

#[tokio::test]
async fn both_resources_are_registered_and_answered_with_their_cdi_devices() {
    let (_place, settings) = world();
    let mut kubelet = Kubelet::start(&settings.kubelet, "v1beta1");
    let plugin = plugin(&settings);
    let registered = kubelet.both().await;
    for (request, resource) in registered.iter().zip(&RESOURCES) {
        assert_eq!(request.resource_name, resource.name);
        let mut client = client(&settings, &request.endpoint).await;
        let options = client.options(Empty {}).await.unwrap().into_inner();
        assert!(!options.pre_start_required && !options.preferred_allocation_available);
        // One device or more of them, for each container an answer in its place, and nothing for who asked for nothing.
        let answer = client.allocate(ask(&[&["0"], &[], &["2", "1"]])).await;
        let names: Vec<Vec<String>> = answer
            .unwrap()
            .into_inner()
            .containers
            .iter()
            .map(|each| {
                each.cdi_devices
                    .iter()
                    .map(|device| device.name.clone())
                    .collect()
            })
            .collect();
        assert_eq!(
            names,
            [vec![resource.device], vec![], vec![resource.device]]
        );
        for unknown in ["3", "-1", "01", "", "all", "99999999999999999999"] {
            let refused = client.allocate(ask(&[&["0"], &[unknown]])).await;
            assert_eq!(refused.unwrap_err().code(), Code::NotFound, "{unknown}");
        }
    }
    plugin.abort();
}

#[tokio::test]
async fn devices_are_healthy_while_the_agent_answers() {
    let (_place, settings) = world();
    let mut kubelet = Kubelet::start(&settings.kubelet, "v1beta1");
    let plugin = plugin(&settings);
    let endpoint = kubelet.both().await.remove(0).endpoint;
    let mut client = client(&settings, &endpoint).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let expected = |said| vec![("0", said), ("1", said), ("2", said)];
    let list = next_list(&mut lists).await.unwrap();
    assert_eq!(health(&list), expected(UNHEALTHY));
    for _ in 0..2 {
        let (stop, thread) = agent(settings.agent.clone());
        let mut list = next_list(&mut lists).await.unwrap();
        // What was said before anything changed may come again.
        while health(&list) != expected(HEALTHY) {
            list = next_list(&mut lists).await.unwrap();
        }
        drop(stop);
        thread.join().unwrap();
        let list = next_list(&mut lists).await.unwrap();
        assert_eq!(health(&list), expected(UNHEALTHY));
    }
    plugin.abort();
}

/// A real switch, until the other end of the pipe is dropped.
fn switch(control: PathBuf, config: &str) -> (UnixStream, std::thread::JoinHandle<()>) {
    let (stop, stopped) = UnixStream::pair().unwrap();
    let (ready, started) = std::sync::mpsc::channel();
    let config = SwitchConfig::parse(config).unwrap();
    let thread = std::thread::spawn(move || {
        let options = SwitchOptions { control, config };
        let stop = std::os::fd::AsFd::as_fd(&stopped);
        let server = SwitchServer::start(options, stop).unwrap();
        ready.send(()).unwrap();
        server.serve().unwrap();
    });
    started.recv().unwrap();
    (stop, thread)
}

#[tokio::test]
async fn packet_ports_are_offered_where_a_switch_has_them_and_while_it_answers() {
    let (_place, settings) = world();
    let mut kubelet = Kubelet::start(&settings.kubelet, "v1beta1");
    let config = "[[device]]\nname = \"default\"\ncontainers = 2\nmemif = {}\n\
                  [[device]]\nname = \"fast\"\nvhost_user = {}";
    let (stop, thread) = switch(settings.switch.clone(), config);
    let plugin = plugin(&settings);
    let mut registered = Vec::new();
    for _ in 0..4 {
        registered.push(kubelet.next().await);
    }
    let of = |name: &str| {
        let found = registered.iter().find(|one| one.resource_name == name);
        found
            .unwrap_or_else(|| panic!("{name}: {registered:?}"))
            .endpoint
            .clone()
    };
    let mut fast = client(&settings, &of("millrace.dev/packet-fast")).await;
    let answer = fast.allocate(ask(&[&["2"]])).await.unwrap().into_inner();
    let device = &answer.containers[0].cdi_devices[0];
    assert_eq!(device.name, "millrace.dev/packet=fast");
    let mut usual = client(&settings, &of("millrace.dev/packet")).await;
    let answer = usual.allocate(ask(&[&["1"]])).await.unwrap().into_inner();
    let device = &answer.containers[0].cdi_devices[0];
    assert_eq!(device.name, "millrace.dev/packet=default");
    let too_many = usual.allocate(ask(&[&["2"]])).await;
    assert_eq!(too_many.unwrap_err().code(), Code::NotFound);

    let expected = |said| vec![("0", said), ("1", said)];
    let mut lists = usual.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(
        health(&next_list(&mut lists).await.unwrap()),
        expected(HEALTHY)
    );
    drop(stop);
    thread.join().unwrap();
    let mut list = next_list(&mut lists).await.unwrap();
    // What was said before anything changed may come again.
    while health(&list) != expected(UNHEALTHY) {
        list = next_list(&mut lists).await.unwrap();
    }
    let (stop, thread) = switch(settings.switch.clone(), config);
    while health(&list) != expected(HEALTHY) {
        list = next_list(&mut lists).await.unwrap();
    }
    drop(stop);
    thread.join().unwrap();
    plugin.abort();
}

#[tokio::test]
async fn a_kubelet_that_starts_again_is_told_again() {
    let (_place, settings) = world();
    let mut kubelet = Kubelet::start(&settings.kubelet, "v1beta1");
    let plugin = plugin(&settings);
    let endpoint = kubelet.both().await.remove(0).endpoint;
    let mut old = client(&settings, &endpoint).await;
    let mut lists = old.list_and_watch(Empty {}).await.unwrap().into_inner();
    next_list(&mut lists).await.unwrap();
    drop(kubelet);
    // The new one removes the plugin's sockets.
    let mut kubelet = Kubelet::start(&settings.kubelet, "v1beta1");
    for request in kubelet.both().await {
        let mut client = client(&settings, &request.endpoint).await;
        client.options(Empty {}).await.unwrap();
    }
    // The old stream has ended: what it says would be of yesterday.
    while next_list(&mut lists).await.is_some() {}
    assert!(!plugin.is_finished());
    plugin.abort();
}

#[tokio::test]
async fn a_kubelet_of_another_version_is_asked_until_one_agrees() {
    let (_place, settings) = world();
    let mut kubelet = Kubelet::start(&settings.kubelet, "v2");
    let plugin = plugin(&settings);
    for _ in 0..4 {
        assert_eq!(kubelet.next().await.version, "v1beta1");
    }
    drop(kubelet);
    let mut kubelet = Kubelet::start(&settings.kubelet, "v1beta1");
    kubelet.both().await;
    plugin.abort();
}

#[tokio::test]
async fn what_is_no_kubelet_is_said_to_be_none() {
    let (_place, settings) = world();
    let socket = socket_in(&settings.kubelet);
    let (_healthy, watched) = tokio::sync::watch::channel(true);
    let another = Service {
        resource: &RESOURCES[0],
        count: 1,
        healthy: watched,
    };
    let listener = UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(Server::builder().serve_with_incoming(
        DevicePluginServer::new(another),
        UnixListenerStream::new(listener),
    ));
    let refused = crate::kubelet::register(&settings.kubelet, &RESOURCES[0]).await;
    assert!(format!("{:#}", refused.unwrap_err()).contains("Kubernetes 1.29"));
    server.abort();
    let _ = server.await;
    let refused = crate::kubelet::register(&settings.kubelet, &RESOURCES[0]).await;
    assert!(format!("{:#}", refused.unwrap_err()).contains("nobody answers at"));
}

#[tokio::test]
async fn what_waiting_does_not_mend_ends_it_with_a_word() {
    let (_place, mut settings) = world();
    let refusal = async |settings: &Settings| {
        let outcome = tokio::time::timeout(LONG, serve(settings)).await;
        format!("{:#}", outcome.unwrap().unwrap_err())
    };
    let socket = settings.kubelet.join(RESOURCES[1].socket);
    std::fs::write(&socket, "").unwrap();
    let said = refusal(&settings).await;
    assert!(
        said.contains("is in the way") && said.contains("remove it"),
        "{said}"
    );
    std::fs::remove_file(&socket).unwrap();
    settings.kubelet.push("elsewhere");
    let said = refusal(&settings).await;
    assert!(said.contains("--kubelet"), "{said}");
}

#[tokio::test]
async fn of_two_plugins_the_first_stays_and_nothing_is_left_of_either() {
    let (_place, settings) = world();
    // A killed plugin's socket is in nobody's way.
    let killed = std::os::unix::net::UnixListener::bind(settings.kubelet.join(RESOURCES[0].socket));
    drop(killed.unwrap());
    let first = plugin(&settings);
    let socket = settings.kubelet.join(RESOURCES[1].socket);
    while UnixStream::connect(&socket).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let outcome = tokio::time::timeout(LONG, serve(&settings)).await;
    let said = format!("{:#}", outcome.unwrap().unwrap_err());
    assert!(said.contains("another device plugin serves"), "{said}");
    assert!(!first.is_finished());
    client(&settings, RESOURCES[0].socket)
        .await
        .options(Empty {})
        .await
        .unwrap();
    first.abort();
    let _ = first.await;
    assert_eq!(std::fs::read_dir(&settings.kubelet).unwrap().count(), 0);
}

#[tokio::test]
async fn a_plugin_whose_place_is_taken_makes_way() {
    let (_place, settings) = world();
    let plugin = plugin(&settings);
    let socket = settings.kubelet.join(RESOURCES[0].socket);
    while !socket.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    std::fs::remove_file(&socket).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let outcome = tokio::time::timeout(LONG, plugin).await.unwrap().unwrap();
    assert!(format!("{:#}", outcome.unwrap_err()).contains("another device plugin"));
    // It is the other's, and stays.
    assert!(socket.exists());
}

#[test]
fn messages_are_on_the_wire_as_the_interface_has_them() {
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: "e".to_owned(),
        resource_name: "r".to_owned(),
        options: None,
    };
    assert_eq!(
        request.encode_to_vec(),
        b"\x0a\x07v1beta1\x12\x01e\x1a\x01r"
    );
    let answer = crate::interface::ContainerResponse {
        cdi_devices: vec![crate::interface::CdiDevice {
            name: "a.b/c=d".to_owned(),
        }],
    };
    assert_eq!(answer.encode_to_vec(), b"\x2a\x09\x0a\x07a.b/c=d");
    // Fields that are not ours, such as mounts and annotations, are passed over.
    let list = DeviceList::decode(&b"\x0a\x0d\x0a\x010\x12\x04Well\x1a\x02\x0a\x00"[..]).unwrap();
    assert_eq!(health(&list), [("0", "Well")]);
    assert!(AllocateRequest::decode(&b"\x0a\xff"[..]).is_err());
}
