//! Keeps the certificates: in a Secret, so that all replicas have the same, and their authorities where API servers look for them.
//!
//! Each look reads both objects. A Secret whose certificate will not last is written anew; of several replicas that try, one is first
//! (`resourceVersion`), and the others take what it wrote. A new certificate is shown at the first look that finds its authority in the
//! configuration already, so that API servers have had the time between two looks to hear of it. The configuration is read before the
//! Secret and changed only if nobody else has changed it since: so nobody puts an older bundle in the place of a newer one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tracing::{error, info, warn};

use crate::api::{Api, Call, Failure};
use crate::certificates::{Material, Shown};

/// How often it is tried again at once, when others were first.
const ATTEMPTS: usize = 4;
/// When it is looked again after something was wrong or was changed.
const SOON: Duration = Duration::from_secs(5);

/// What the objects are called.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) namespace: String,
    pub(crate) service: String,
    pub(crate) secret: String,
    pub(crate) configuration: String,
}

impl Names {
    /// The name by which API servers ask for the Service.
    fn server(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    fn secret_path(&self) -> String {
        format!(
            "/api/v1/namespaces/{}/secrets/{}",
            self.namespace, self.secret
        )
    }

    fn configuration_path(&self) -> String {
        format!(
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{}",
            self.configuration
        )
    }
}

/// What the server and its keeper share.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) shown: Arc<Shown>,
    /// Whether API servers have been told whom to believe.
    ready: AtomicBool,
}

impl State {
    /// Whether API servers can ask here.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Says so.
    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }
}

/// What a look has come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// All is as it should be.
    InPlace,
    /// Something was changed, and is to be looked at soon.
    Changed,
}

/// Who looks after the certificates of a replica.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) api: Api,
    pub(crate) names: Names,
    pub(crate) lifetime: Duration,
    pub(crate) state: Arc<State>,
}

impl Keeper {
    /// Looks, again and again.
    pub(crate) async fn keep(&self, period: Duration) {
        let mut complaint = String::new();
        loop {
            let pause = match self.look(SystemTime::now()).await {
                Ok(found) => {
                    complaint.clear();
                    if found == Found::InPlace {
                        period
                    } else {
                        period.min(SOON)
                    }
                }
                Err(error) => {
                    let text = format!("{error:#}");
                    if text != complaint {
                        error!("{text}; trying again");
                        complaint = text;
                    }
                    period.min(SOON)
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Looks once.
    pub(crate) async fn look(&self, now: SystemTime) -> anyhow::Result<Found> {
        for _ in 0..ATTEMPTS {
            match self.attempt(now).await {
                Ok(found) => return Ok(found),
                Err(Failure::Conflict) => {}
                Err(Failure::Other(error)) => return Err(error),
                Err(Failure::Missing) => {
                    return Err(anyhow!(
                        "there is no MutatingWebhookConfiguration {} or no Secret {} in namespace {}: apply \
                         deploy/kubernetes/webhook again, \
                         which has both",
                        self.names.configuration,
                        self.names.secret,
                        self.names.namespace
                    ));
                }
            }
        }
        Err(anyhow!(
            "others change the Secret {} or the MutatingWebhookConfiguration {} all the time: is there \
             another installation with these names?",
            self.names.secret,
            self.names.configuration
        ))
    }

    async fn attempt(&self, now: SystemTime) -> Result<Found, Failure> {
        let configuration = self
            .api
            .call(&self.names.configuration_path(), Call::Get)
            .await?;
        let material = self.material(now).await?;
        let server = self.names.server();
        let key = material
            .checked(&server, now)
            .context("the new certificate")?;
        let operations = self.operations(&configuration, &material)?;
        let found = if operations.is_empty() {
            Found::InPlace
        } else {
            let patch = Call::Patch(&Value::Array(operations));
            self.api
                .call(&self.names.configuration_path(), patch)
                .await?;
            info!(
                "{}: the authorities of {server} are in place",
                self.names.configuration
            );
            Found::Changed
        };
        let shown = self.state.shown.now();
        // Whoever shows nothing yet cannot be believed less.
        if shown.is_none() || found == Found::InPlace {
            if shown.is_none_or(|shown| shown.cert != key.cert) {
                info!("a new certificate for {server} is shown");
            }
            self.state.shown.show(key);
        }
        self.state.set_ready(true);
        Ok(found)
    }

    /// What the Secret has, renewed where it is time.
    async fn material(&self, now: SystemTime) -> Result<Material, Failure> {
        let server = self.names.server();
        let secret = self.api.call(&self.names.secret_path(), Call::Get).await?;
        let stored = stored(&secret);
        // Now, by this machine's clock, and when a third of its life is left, in which renewing may fail many times.
        let later = now + self.lifetime / 3;
        let lasts = |stored: &Material| {
            stored.checked(&server, now)?;
            stored.checked(&server, later)
        };
        let wrong = match stored.as_ref().map(|stored| (stored, lasts(stored))) {
            None => "there was none".to_owned(),
            Some((stored, Ok(_))) => return Ok(stored.clone()),
            Some((_, Err(error))) => format!("the one before: {error:#}"),
        };
        let renewed = Material::make(&server, now, self.lifetime, stored.as_ref())?;
        let call = self
            .api
            .call(
                &self.names.secret_path(),
                Call::Put(&with(secret, &renewed)),
            )
            .await;
        match (call, stored) {
            (Ok(_), _) => {
                info!(
                    "Secret {}: a new certificate for {server} ({wrong})",
                    self.names.secret
                );
                Ok(renewed)
            }
            (Err(Failure::Other(error)), Some(stored)) if stored.checked(&server, now).is_ok() => {
                warn!("the certificate is to be renewed, and was not: {error:#}");
                Ok(stored)
            }
            (Err(failure), _) => Err(failure),
        }
    }

    /// What makes API servers believe in these authorities; nothing where they do.
    fn operations(&self, configuration: &Value, material: &Material) -> anyhow::Result<Vec<Value>> {
        let bundle = STANDARD.encode(&material.authorities);
        let mut operations = Vec::new();
        let mut ours = false;
        let webhooks = configuration["webhooks"].as_array().into_iter().flatten();
        for (index, webhook) in webhooks.enumerate() {
            let client = &webhook["clientConfig"];
            let service = &client["service"];
            if service["name"] != self.names.service || service["namespace"] != self.names.namespace
            {
                continue;
            }
            ours = true;
            if client["caBundle"] != bundle {
                let path = format!("/webhooks/{index}/clientConfig/caBundle");
                operations.push(json!({ "op": "add", "path": path, "value": bundle }));
            }
        }
        if !ours {
            return Err(anyhow!(
                "no webhook of the MutatingWebhookConfiguration {} leads to the Service {} of namespace {}: \
                 --configuration and --service are what deploy/kubernetes/webhook has",
                self.names.configuration,
                self.names.service,
                self.names.namespace
            ));
        }
        if !operations.is_empty() {
            let version = &configuration["metadata"]["resourceVersion"];
            let test =
                json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version });
            operations.insert(0, test);
        }
        Ok(operations)
    }
}

/// What a Secret has; none where something is missing.
fn stored(secret: &Value) -> Option<Material> {
    let text = |name: &str| {
        let bytes = STANDARD.decode(secret["data"][name].as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    Some(Material {
        authorities: text("ca.crt")?,
        certificate: text("tls.crt")?,
        key: text("tls.key")?,
    })
}

/// The Secret with other contents, and everything else as it was.
fn with(mut secret: Value, material: &Material) -> Value {
    secret["data"] = json!({
        "ca.crt": STANDARD.encode(&material.authorities),
        "tls.crt": STANDARD.encode(&material.certificate),
        "tls.key": STANDARD.encode(&material.key),
    });
    secret
}
