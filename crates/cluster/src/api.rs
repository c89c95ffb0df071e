//! The little of a client of API servers that is needed: one object at a time, as the account of the pod.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How long an API server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// No object of an API server is larger.
const OBJECT_BYTES: usize = 4 << 20;

/// Where the API server is, and who asks.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The directory with the account's token and the certificates of the API server, which are renewed while the program runs.
    pub(crate) account: PathBuf,
}

/// Why there is no object.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Somebody else has changed it since it was read.
    Conflict,
    /// There is none of this name.
    Missing,
    /// Anything else, for a person.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Other(error)
    }
}

/// What is to be done with an object.
pub(crate) enum Call<'a> {
    Get,
    /// A new one, below a collection.
    Post(&'a Value),
    /// In place of the one with the same `resourceVersion`.
    Put(&'a Value),
    /// By operations of RFC 6902.
    Patch(&'a Value),
}

impl Api {
    /// The API server of the pod that this program runs in.
    pub(crate) fn in_cluster(account: &Path) -> anyhow::Result<Api> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (Some(host), Some(port)) = (
            variable("KUBERNETES_SERVICE_HOST"),
            variable("KUBERNETES_SERVICE_PORT"),
        ) else {
            return Err(anyhow!(
                "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this program runs in a pod (deploy/kubernetes)"
            ));
        };
        let port = port
            .parse()
            .with_context(|| format!("KUBERNETES_SERVICE_PORT={port} is no port"))?;
        let account = account.to_owned();
        Ok(Api {
            host,
            port,
            account,
        })
    }

    /// Asks for an object, or for a change of it; the object as it is then.
    pub(crate) async fn call(&self, path: &str, call: Call<'_>) -> Result<Value, Failure> {
        let (method, content, body) = match call {
            Call::Get => (Method::GET, "application/json", None),
            Call::Post(object) => (Method::POST, "application/json", Some(object)),
            Call::Put(object) => (Method::PUT, "application/json", Some(object)),
            Call::Patch(operations) => (
                Method::PATCH,
                "application/json-patch+json",
                Some(operations),
            ),
        };
        let what = format!("{method} {path}");
        let body = body.map_or_else(String::new, Value::to_string);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.authority())
            .header(
                AUTHORIZATION,
                format!("Bearer {}", self.read("token")?.trim()),
            )
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, content)
            .header(
                USER_AGENT,
                concat!("millrace-cluster/", env!("CARGO_PKG_VERSION")),
            )
            .body(Full::new(Bytes::from(body)))
            .with_context(|| what.clone())?;
        let exchange = tokio::time::timeout(PATIENCE, self.exchange(request)).await;
        let exchange =
            exchange.unwrap_or_else(|_| Err(anyhow!("no answer within {} s", PATIENCE.as_secs())));
        let (status, answer) =
            exchange.with_context(|| format!("the API server at {}", self.authority()))?;
        if status.is_success() {
            let object = serde_json::from_slice(&answer);
            return Ok(object.with_context(|| format!("{what}: the answer is no JSON"))?);
        }
        Err(refusal(&what, status, &answer))
    }

    /// One question and its answer, on a connection of its own.
    async fn exchange(&self, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.read("ca.crt")?.as_bytes()) {
            roots.add(certificate.context("ca.crt of the account")?)?;
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let name = ServerName::try_from(self.host.clone())?;
        let stream = TlsConnector::from(Arc::new(tls))
            .connect(name, stream)
            .await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let answer = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), OBJECT_BYTES)
                .collect()
                .await;
            let body = body.map_err(|error| anyhow!(error))?;
            anyhow::Ok((status, body.to_bytes()))
        };
        let answer = answer.await;
        connection.abort();
        answer
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// A file of the account.
    fn read(&self, name: &str) -> anyhow::Result<String> {
        let path = self.account.join(name);
        std::fs::read_to_string(&path).with_context(|| {
            format!(
                "{}: the pod needs the token of its account (automountServiceAccountToken)",
                path.display()
            )
        })
    }
}

/// What an API server says when it does not do what it is asked to.
fn refusal(what: &str, status: StatusCode, answer: &[u8]) -> Failure {
    let said: Value = serde_json::from_slice(answer).unwrap_or_default();
    let said = said["message"].as_str().unwrap_or("it says no more");
    let advice = match status {
        StatusCode::CONFLICT => return Failure::Conflict,
        // An operation "test" that failed.
        StatusCode::UNPROCESSABLE_ENTITY if what.starts_with("PATCH") => return Failure::Conflict,
        StatusCode::NOT_FOUND => return Failure::Missing,
        StatusCode::UNAUTHORIZED => "; is the account of the pod still there?",
        StatusCode::FORBIDDEN => {
            "; the account lacks a right that deploy/kubernetes (and the chart) gives it: apply it again"
        }
        _ => "",
    };
    Failure::Other(anyhow!(
        "{what}: the API server answers {status}: {said}{advice}"
    ))
}
