//! What pods can ask for.

/// A resource, and the CDI device that a container gets for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// As a pod names it.
    pub(crate) name: &'static str,
    /// As the container runtime knows it: one of those that `millrace cdi list` shows.
    pub(crate) device: &'static str,
    /// The plugin's socket for it, in the kubelet's directory.
    pub(crate) socket: &'static str,
}

/// All of them.
pub(crate) const RESOURCES: [Resource; 2] = [
    Resource {
        name: "millrace.dev/socket",
        device: "millrace.dev/socket=all",
        socket: "millrace.dev-socket.sock",
    },
    Resource {
        name: "millrace.dev/socket-variable",
        device: "millrace.dev/socket=variable",
        socket: "millrace.dev-socket-variable.sock",
    },
];
