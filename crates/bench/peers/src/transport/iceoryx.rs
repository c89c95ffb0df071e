//! The crate iceoryx2, as its own benchmarks have it: its service for processes (`ipc`), publish-subscribe of slices, buffers that are not
//! initialised, and sinks that ask until something is there. A round trip has a buffer of one message that may be overwritten, as there.
//!
//! Streams wait for room instead (`RetryUntilDelivered`). It has no batches: messages are made visible and taken one by one. It has no
//! distribution of work: each worker has a service of its own, and the source fills them in turn. Who sleeps is woken by its events.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, anyhow};
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use iceoryx2::sample_mut_uninit::SampleMutUninit;

use super::{Sink, Source, Transport};
use crate::head::Head;
use crate::sys;
use crate::trial::Lane;

type Service = ipc::Service;
type Buffer = SampleMutUninit<Service, [MaybeUninit<u8>], ()>;

/// See the module.
pub(crate) struct Iceoryx;

/// A publisher for each sink.
pub(crate) struct Publishers {
    publishers: Vec<Publisher<Service, [u8], ()>>,
    services: Vec<PubSub>,
    turn: usize,
    bytes: usize,
    prepared: Option<Buffer>,
    bell: Option<Notifier<Service>>,
    _node: Node<Service>,
}

/// A subscriber for all sources.
pub(crate) struct Subscription {
    subscriber: Subscriber<Service, [u8], ()>,
    service: PubSub,
    sources: usize,
    bell: Option<Listener<Service>>,
    _node: Node<Service>,
}

fn node(lane: &Lane<'_>) -> Result<Node<Service>> {
    set_log_level(LogLevel::Error);
    let mut config = Config::default();
    let root = format!("{}/iceoryx2", lane.trial.directory);
    let root = Path::new(root.as_bytes()).map_err(|error| anyhow!("{root}: {error:?}"))?;
    config.global.set_root_path(&root);
    let prefix = shared_memory_prefix(lane.trial.directory.as_ref());
    config.global.prefix =
        FileName::new(prefix.as_bytes()).map_err(|error| anyhow!("{prefix}: {error:?}"))?;
    Ok(NodeBuilder::new().config(&config).create::<Service>()?)
}

/// What the names of its shared memory begin with, of trials that have their files in this directory.
pub(crate) fn shared_memory_prefix(directory: &std::path::Path) -> String {
    let name = directory.file_name().unwrap_or_default();
    format!("{}-", name.to_string_lossy())
}

type PubSub = iceoryx2::service::port_factory::publish_subscribe::PortFactory<Service, [u8], ()>;
type Events = iceoryx2::service::port_factory::event::PortFactory<Service>;

/// The service of a sink.
fn service(lane: &Lane<'_>, node: &Node<Service>, sink: usize) -> Result<PubSub> {
    let name = ServiceName::new(&format!("{}-{sink}", lane.name))?;
    let service = node
        .service_builder(&name)
        .publish_subscribe::<[u8]>()
        .max_publishers(lane.sources)
        .max_subscribers(1)
        .max_nodes(lane.sources + lane.sinks)
        .history_size(0)
        .subscriber_max_buffer_size(if lane.spins { 1 } else { lane.trial.depth })
        .enable_safe_overflow(lane.spins);
    Ok(service.open_or_create()?)
}

fn events(lane: &Lane<'_>, node: &Node<Service>) -> Result<Events> {
    let name = ServiceName::new(&format!("{}-bell", lane.name))?;
    Ok(node.service_builder(&name).event().open_or_create()?)
}

impl Transport for Iceoryx {
    type Source = Publishers;
    type Sink = Subscription;

    fn make(_: &Lane<'_>) -> Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }

    fn source(lane: &Lane<'_>, _: Vec<OwnedFd>, _: usize) -> Result<Publishers> {
        let node = node(lane)?;
        let publisher = |service: &PubSub| -> Result<_> {
            let publisher = service
                .publisher_builder()
                .initial_max_slice_len(lane.trial.bytes)
                .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
                .create()?;
            Ok(publisher)
        };
        let bell = || -> Result<_> { Ok(events(lane, &node)?.notifier_builder().create()?) };
        let services = (0..lane.sinks).map(|sink| service(lane, &node, sink));
        let services: Vec<PubSub> = services.collect::<Result<_>>()?;
        Ok(Publishers {
            publishers: services.iter().map(publisher).collect::<Result<_>>()?,
            services,
            turn: 0,
            bytes: lane.trial.bytes,
            prepared: None,
            bell: lane.sleeps.then(bell).transpose()?,
            _node: node,
        })
    }

    fn sink(lane: &Lane<'_>, _: Vec<OwnedFd>, index: usize) -> Result<Subscription> {
        let node = node(lane)?;
        let bell = || -> Result<_> { Ok(events(lane, &node)?.listener_builder().create()?) };
        let service = service(lane, &node, index)?;
        Ok(Subscription {
            subscriber: service.subscriber_builder().create()?,
            service,
            sources: lane.sources,
            bell: lane.sleeps.then(bell).transpose()?,
            _node: node,
        })
    }
}

impl Publishers {
    #[inline]
    fn loan(&mut self) -> Result<Buffer> {
        Ok(self.publishers[self.turn].loan_slice_uninit(self.bytes)?)
    }
}

impl Source for Publishers {
    fn meet(&mut self) -> Result<()> {
        for (publisher, service) in self.publishers.iter().zip(&self.services) {
            while service.dynamic_config().number_of_subscribers() == 0 {
                std::thread::yield_now();
            }
            publisher.update_connections()?;
        }
        Ok(())
    }

    /// Where there is one sink, the next message's buffer is known.
    #[inline]
    fn prepare(&mut self) -> Result<()> {
        if self.prepared.is_none() {
            self.prepared = Some(self.loan()?);
        }
        Ok(())
    }

    #[inline]
    fn push(&mut self, head: &Head) -> Result<bool> {
        let mut buffer = match self.prepared.take() {
            Some(buffer) => buffer,
            None => self.loan()?,
        };
        head.begin(buffer.payload_mut());
        let message = sys::as_it_is(buffer);
        message.send()?;
        if self.publishers.len() > 1 {
            self.turn = (self.turn + 1) % self.publishers.len();
        }
        Ok(true)
    }

    #[inline]
    fn publish(&mut self) -> Result<()> {
        if let Some(bell) = &self.bell {
            bell.notify()?;
        }
        Ok(())
    }

    fn finish(&mut self, stop: &Head) -> Result<()> {
        self.prepared = None;
        for turn in 0..self.publishers.len() {
            self.turn = turn;
            self.push(stop)?;
        }
        self.publish()
    }
}

impl Sink for Subscription {
    /// A publisher takes a buffer for nobody's that is full, as long as its subscriber has not seen it.
    fn meet(&mut self) -> Result<()> {
        while self.service.dynamic_config().number_of_publishers() < self.sources {
            std::thread::yield_now();
        }
        Ok(self.subscriber.update_connections()?)
    }

    #[inline]
    fn pop(&mut self, most: usize, take: &mut impl FnMut(&Head)) -> Result<Option<usize>> {
        let mut taken = 0;
        while taken < most {
            let Some(message) = self.subscriber.receive()? else {
                break;
            };
            take(&Head::read_from(message.payload()).context("a message is too short")?);
            taken += 1;
        }
        Ok(Some(taken))
    }

    fn wait(&mut self) -> Result<()> {
        if let Some(bell) = &self.bell {
            bell.blocking_wait(|_| {})?;
        }
        Ok(())
    }
}
