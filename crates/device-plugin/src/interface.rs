//! The messages of the kubelet's device plugin interface.
//!
//! Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto of Kubernetes 1.31, but for what is not used here: topology, mounts,
//! device nodes, preferred allocations, and calls before a container starts.

use prost::Message;

/// The interface's version.
pub(crate) const VERSION: &str = "v1beta1";
/// A device that may be given to containers.
pub(crate) const HEALTHY: &str = "Healthy";
/// A device that may not.
pub(crate) const UNHEALTHY: &str = "Unhealthy";

/// Nothing.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Empty {}

/// A plugin makes itself known.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    /// The name of its socket, in the kubelet's directory.
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    #[prost(string, tag = "3")]
    pub(crate) resource_name: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) options: Option<PluginOptions>,
}

/// What the kubelet is to ask beside the necessary.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PluginOptions {
    #[prost(bool, tag = "1")]
    pub(crate) pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub(crate) preferred_allocation_available: bool,
}

/// All devices, whenever one has changed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeviceList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<Device>,
}

/// One that a container can have.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Device {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub(crate) health: String,
}

/// What do the containers of a pod get?
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<ContainerRequest>,
}

/// The devices of one container.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerRequest {
    #[prost(string, repeated, tag = "1")]
    pub(crate) device_ids: Vec<String>,
}

/// An answer for each container, in the order of the request.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<ContainerResponse>,
}

/// What the container runtime is to do for a container.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerResponse {
    #[prost(message, repeated, tag = "5")]
    pub(crate) cdi_devices: Vec<CdiDevice>,
}

/// A device by its qualified name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CdiDevice {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    reason = "made by build.rs; the kubelet's halves are for tests"
)]
mod made {
    pub(crate) mod registration {
        include!(concat!(env!("OUT_DIR"), "/v1beta1.Registration.rs"));
    }
    pub(crate) mod plugin {
        include!(concat!(env!("OUT_DIR"), "/v1beta1.DevicePlugin.rs"));
    }
}

pub(crate) use made::plugin::device_plugin_server;
pub(crate) use made::registration::registration_client;
#[cfg(test)]
pub(crate) use made::{plugin::device_plugin_client, registration::registration_server};
