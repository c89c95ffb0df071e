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

impl Resource {
    /// Packet ports, by the name of the switch's device. It is there as long as the program: there are no more of them than names that the
    /// switch has ever had.
    pub(crate) fn of_packets(device: &str) -> &'static Resource {
        let kept = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
        // One that needs no choice.
        let name = match device {
            DEFAULT => "packet".to_owned(),
            other => format!("packet-{other}"),
        };
        Box::leak(Box::new(Resource {
            name: kept(format!("millrace.dev/{name}")),
            device: kept(format!("millrace.dev/packet={device}")),
            socket: kept(format!("millrace.dev-{name}.sock")),
        }))
    }
}

/// The device of packet ports that pods get who do not say which.
const DEFAULT: &str = "default";

/// Those of connections.
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
