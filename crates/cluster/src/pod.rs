//! What a pod asks for by its label, and the patch that asks the kubelet for it.
//!
//! Only what decides is read of a pod: everything else of it, known to this program or not, stays as it is.

use std::collections::HashSet;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// The label, and the resource that it stands for.
const SOCKET: &str = "millrace.dev/socket";
/// The resource for images with musl.
const VARIABLE: &str = "millrace.dev/socket-variable";
/// The annotation that names the containers which get it; all, when there is none.
const CONTAINERS: &str = "millrace.dev/containers";
/// What of somebody's text is repeated to them.
const REPEATED_CHARS: usize = 64;

/// A pod, as an API server shows it to webhooks.
#[derive(Debug, Deserialize)]
pub(crate) struct Pod {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    labels: Option<Labels>,
    annotations: Option<Annotations>,
}

#[derive(Debug, Deserialize)]
struct Labels {
    #[serde(rename = "millrace.dev/socket")]
    socket: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Annotations {
    #[serde(rename = "millrace.dev/containers")]
    containers: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    restart_policy: Option<String>,
    resources: Option<Resources>,
}

#[derive(Debug, Deserialize)]
struct Resources {
    limits: Option<Asked>,
    requests: Option<Asked>,
}

/// Which of the resources somebody names.
#[derive(Debug, Deserialize)]
struct Asked {
    #[serde(rename = "millrace.dev/socket")]
    socket: Option<IgnoredAny>,
    #[serde(rename = "millrace.dev/socket-variable")]
    variable: Option<IgnoredAny>,
}

impl Container {
    /// Whether it asks already, for whichever of the resources.
    fn asks(&self) -> bool {
        let Some(resources) = &self.resources else {
            return false;
        };
        let named = |asked: &Asked| asked.socket.is_some() || asked.variable.is_some();
        [&resources.limits, &resources.requests]
            .into_iter()
            .flatten()
            .any(named)
    }

    /// The operation that has it ask for a resource; `place` is where the container is in the pod.
    fn operation(&self, place: &str, resource: &str) -> Value {
        let one = json!({ resource: "1" });
        let (path, value) = match &self.resources {
            None => ("resources".to_owned(), json!({ "limits": one })),
            Some(Resources { limits: None, .. }) => ("resources/limits".to_owned(), one),
            // RFC 6901: a slash in a name is ~1.
            Some(_) => (
                format!("resources/limits/{}", resource.replace('/', "~1")),
                json!("1"),
            ),
        };
        json!({ "op": "add", "path": format!("{place}/{path}"), "value": value })
    }
}

/// What becomes of a pod: operations of a JSON patch (RFC 6902), and words to who made it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) patch: Vec<Value>,
    pub(crate) warnings: Vec<String>,
}

/// Has each container of a pod with the label ask for the resource, but for those that ask already; so the second time changes nothing.
pub(crate) fn outcome(pod: &Pod) -> Outcome {
    let mut outcome = Outcome::default();
    let label = pod.metadata.labels.as_ref();
    let resource = match label.and_then(|labels| labels.socket.as_deref()) {
        None => return outcome,
        Some("true") => SOCKET,
        Some("variable") => VARIABLE,
        Some(other) => {
            outcome.warnings.push(format!(
                "the label {SOCKET}={} is neither \"true\" nor \"variable\" (for images with musl): the pod is left as it is",
                repeated(other)
            ));
            return outcome;
        }
    };
    let wanted = wanted(pod);
    // Who asks says how many names and containers there are: each is looked up at once.
    let chosen: Option<HashSet<&str>> = wanted
        .as_ref()
        .map(|wanted| wanted.iter().copied().collect());
    let mut named: HashSet<&str> = HashSet::new();
    for (container, place) in running(&pod.spec) {
        let name = container.name.as_str();
        if chosen.as_ref().is_some_and(|chosen| !chosen.contains(name)) {
            continue;
        }
        named.insert(name);
        if !container.asks() {
            outcome.patch.push(container.operation(&place, resource));
        }
    }
    match wanted {
        Some(wanted) if wanted.is_empty() => outcome.warnings.push(format!(
            "the annotation {CONTAINERS} names no container: the pod is left as it is; remove it for all of them"
        )),
        Some(wanted) => {
            let strangers: Vec<&str> = wanted.into_iter().filter(|name| !named.contains(name)).collect();
            if !strangers.is_empty() {
                outcome.warnings.push(format!(
                    "the annotation {CONTAINERS} names what is no container of the pod that goes on running: {}",
                    repeated(&strangers.join(", "))
                ));
            }
        }
        None => {}
    }
    outcome
}

/// The containers that the annotation names; none where there is no annotation.
fn wanted(pod: &Pod) -> Option<Vec<&str>> {
    let text = pod.metadata.annotations.as_ref()?.containers.as_deref()?;
    let names = text.split(',').map(str::trim);
    Some(names.filter(|name| !name.is_empty()).collect())
}

/// Containers that run as long as the pod does, sidecars among them, and where they are. Others are over before it begins.
fn running(spec: &Spec) -> impl Iterator<Item = (&Container, String)> {
    let sidecars = spec.init_containers.iter().flatten().enumerate();
    let sidecars = sidecars
        .filter(|(_, container)| container.restart_policy.as_deref() == Some("Always"))
        .map(|(index, container)| (container, format!("/spec/initContainers/{index}")));
    let ordinary = spec.containers.iter().flatten().enumerate();
    let ordinary =
        ordinary.map(|(index, container)| (container, format!("/spec/containers/{index}")));
    sidecars.chain(ordinary)
}

/// Somebody's text, in quotation marks and not longer than a warning should be.
fn repeated(text: &str) -> String {
    let short: String = text.chars().take(REPEATED_CHARS).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("{short:?}{dots}")
}
