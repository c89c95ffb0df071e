//! Registration with the kubelet, which then connects to the plugin's socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::interface::registration_client::RegistrationClient;
use crate::interface::{PluginOptions, RegisterRequest, VERSION};
use crate::resources::Resource;

/// How long a kubelet may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The kubelet's socket in its directory.
pub(crate) fn socket_in(directory: &Path) -> PathBuf {
    directory.join("kubelet.sock")
}

/// A connection to a gRPC server at a socket.
pub(crate) async fn connect(socket: &Path) -> anyhow::Result<Channel> {
    let path = socket.to_owned();
    let dial = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The name says nothing to anybody: the connector above knows where to go.
    let endpoint = Endpoint::from_static("http://localhost")
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE);
    endpoint
        .connect_with_connector(dial)
        .await
        .with_context(|| format!("nobody answers at {}", socket.display()))
}

/// Tells the kubelet of a resource, and of the socket at which it is served.
pub(crate) async fn register(directory: &Path, resource: &Resource) -> anyhow::Result<()> {
    let socket = socket_in(directory);
    let mut kubelet = RegistrationClient::new(connect(&socket).await?);
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: resource.socket.to_owned(),
        resource_name: resource.name.to_owned(),
        options: Some(PluginOptions::default()),
    };
    match kubelet.register(request).await {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::Unimplemented => bail!(
            "{} speaks no device plugin interface {VERSION}: is it a kubelet's, of Kubernetes 1.29 or later?",
            socket.display()
        ),
        Err(status) => Err(anyhow!(
            "the kubelet at {} refused {}: {} (interface {VERSION})",
            socket.display(),
            resource.name,
            status.message()
        )),
    }
}
