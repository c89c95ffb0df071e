//! The answers to the kubelet.

use std::pin::Pin;

use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};
use tracing::debug;

use crate::interface::device_plugin_server::DevicePlugin;
use crate::interface::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerRequest, ContainerResponse, Device,
    DeviceList, Empty, HEALTHY, PluginOptions, UNHEALTHY,
};
use crate::resources::Resource;

/// Serves a resource.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) resource: &'static Resource,
    pub(crate) count: u32,
    /// Whether devices can be had. Streams end with its sender.
    pub(crate) healthy: watch::Receiver<bool>,
}

impl Service {
    /// What one container gets. One device is all of Millrace, so more of them are no more.
    fn answer(&self, request: &ContainerRequest) -> Result<ContainerResponse, Status> {
        let unknown = request
            .device_ids
            .iter()
            .find(|id| index_of(id).is_none_or(|index| index >= self.count));
        if let Some(id) = unknown {
            return Err(Status::not_found(format!(
                "{} has no device {id:?}; it has {} from 0 on",
                self.resource.name, self.count
            )));
        }
        let devices = (!request.device_ids.is_empty()).then(|| CdiDevice {
            name: self.resource.device.to_owned(),
        });
        Ok(ContainerResponse {
            cdi_devices: devices.into_iter().collect(),
        })
    }
}

/// The number that a device's name says, as [`list`] writes it.
fn index_of(id: &str) -> Option<u32> {
    let index = id.parse::<u32>().ok()?;
    (index.to_string() == id).then_some(index)
}

/// All devices of a resource.
fn list(count: u32, healthy: bool) -> DeviceList {
    let health = if healthy { HEALTHY } else { UNHEALTHY };
    let device = |index: u32| Device {
        id: index.to_string(),
        health: health.to_owned(),
    };
    DeviceList {
        devices: (0..count).map(device).collect(),
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<DeviceList, Status>> + Send>>;

    async fn options(&self, _: Request<Empty>) -> Result<Response<PluginOptions>, Status> {
        Ok(Response::new(PluginOptions::default()))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        debug!("{}: the kubelet watches", self.resource.name);
        let count = self.count;
        let lists = WatchStream::new(self.healthy.clone());
        Ok(Response::new(Box::pin(
            lists.map(move |healthy| Ok(list(count, healthy))),
        )))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let containers = &request.get_ref().containers;
        let answers: Result<Vec<_>, _> = containers.iter().map(|each| self.answer(each)).collect();
        debug!(
            "{}: asked for {} containers",
            self.resource.name,
            containers.len()
        );
        Ok(Response::new(AllocateResponse {
            containers: answers?,
        }))
    }
}
