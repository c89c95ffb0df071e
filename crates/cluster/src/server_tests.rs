//! The webhook and its clients, by real TLS over real sockets.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::certificates::Material;
use crate::keeper::State;
use crate::pod_tests::review;
use crate::server::{QUESTION_BYTES, Times, serve};

const NAME: &str = "millrace-admission.millrace.svc";
const LIFETIME: Duration = Duration::from_secs(3600);
/// For what comes at once on a machine that is not busy.
const LONG: Duration = Duration::from_secs(60);

fn roots(authorities: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    Arc::new(roots)
}

/// Whether a client that trusts these authorities believes a certificate at this time.
pub(crate) fn believed(
    authorities: &str,
    certificate: &CertificateDer<'_>,
    name: &str,
    at: SystemTime,
) -> bool {
    let verifier = WebPkiServerVerifier::builder_with_provider(
        roots(authorities),
        Arc::new(default_provider()),
    );
    let name = ServerName::try_from(name).unwrap();
    let at = UnixTime::since_unix_epoch(at.duration_since(UNIX_EPOCH).unwrap());
    let verified = verifier
        .build()
        .unwrap()
        .verify_server_cert(certificate, &[], &name, &[], at);
    verified.is_ok()
}

/// A webhook with a certificate, and what its clients trust.
struct Webhook {
    address: SocketAddr,
    state: Arc<State>,
    material: Material,
}

impl Webhook {
    async fn start(times: Times) -> Webhook {
        let now = SystemTime::now();
        let material = Material::make(NAME, now, LIFETIME, None).unwrap();
        let state = Arc::new(State::default());
        state.shown.show(material.checked(NAME, now).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = state.clone();
        tokio::spawn(async move { serve(listener, served, times).await.unwrap() });
        Webhook {
            address,
            state,
            material,
        }
    }

    /// A client's connection; from an address of its own.
    async fn connect(&self, from: [u8; 4]) -> std::io::Result<TlsStream<TcpStream>> {
        let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots(&self.material.authorities))
            .with_no_client_auth();
        let stream = self.dial(from).await?;
        let name = ServerName::try_from(NAME).unwrap();
        TlsConnector::from(Arc::new(tls))
            .connect(name, stream)
            .await
    }

    async fn dial(&self, from: [u8; 4]) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((IpAddr::from(from), 0)))?;
        socket.connect(self.address).await
    }

    async fn client<B>(&self) -> SendRequest<B>
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
    {
        let stream = self.connect([127, 0, 0, 1]).await.unwrap();
        let (client, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// A question and its answer.
    async fn ask(&self, method: Method, path: &str, body: impl Into<Bytes>) -> (StatusCode, Bytes) {
        let body = Full::new(body.into());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", NAME);
        let answer = self
            .client()
            .await
            .send_request(request.body(body).unwrap())
            .await
            .unwrap();
        let status = answer.status();
        (
            status,
            answer.into_body().collect().await.unwrap().to_bytes(),
        )
    }
}

/// A body that begins, and never ends.
struct Half(bool);

impl Body for Half {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if std::mem::take(&mut self.0) {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"{")))))
        } else {
            Poll::Pending
        }
    }
}

fn question() -> String {
    review(
        Some("true"),
        None,
        &json!({ "containers": [{ "name": "c" }] }),
    )
    .to_string()
}

#[tokio::test]
async fn a_review_is_answered_with_a_patch() {
    let webhook = Webhook::start(Times::default()).await;
    let (status, answer) = webhook
        .ask(Method::POST, "/mutate?timeout=2s", question())
        .await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["response"]["allowed"], json!(true));
    assert_eq!(answer["response"]["patchType"], "JSONPatch");
    // One connection has many questions.
    let mut client = webhook.client().await;
    for _ in 0..3 {
        let request = Request::post("/mutate").body(Full::new(Bytes::from(question())));
        let answer = client.send_request(request.unwrap()).await.unwrap();
        assert_eq!(answer.headers()["content-type"], "application/json");
        answer.into_body().collect().await.unwrap();
    }
}

#[tokio::test]
async fn it_is_ready_when_it_is_said_to_be() {
    let webhook = Webhook::start(Times::default()).await;
    let (status, _) = webhook.ask(Method::GET, "/ready", "").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    webhook.state.set_ready(true);
    let (status, _) = webhook.ask(Method::GET, "/ready", "").await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn garbage_is_answered_with_a_word() {
    let webhook = Webhook::start(Times::default()).await;
    let long = "x".repeat(QUESTION_BYTES + 1);
    for (method, path, body, expected) in [
        (Method::POST, "/mutate", "{}", StatusCode::BAD_REQUEST),
        (Method::POST, "/mutate", "", StatusCode::BAD_REQUEST),
        (
            Method::POST,
            "/mutate",
            &long,
            StatusCode::PAYLOAD_TOO_LARGE,
        ),
        (Method::GET, "/mutate", "", StatusCode::METHOD_NOT_ALLOWED),
        (Method::POST, "/ready", "", StatusCode::METHOD_NOT_ALLOWED),
        (Method::GET, "/", "", StatusCode::NOT_FOUND),
    ] {
        let (status, said) = webhook.ask(method, path, body.to_owned()).await;
        assert_eq!(status, expected, "{path}");
        assert!(said.len() > 10 && said.is_ascii());
    }
    let (status, _) = webhook.ask(Method::POST, "/mutate", question()).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn new_connections_see_a_new_certificate() {
    let mut webhook = Webhook::start(Times::default()).await;
    let mut old = webhook.client().await;
    let now = SystemTime::now();
    webhook.material = Material::make(NAME, now, LIFETIME, Some(&webhook.material)).unwrap();
    // Both are believed by who trusts the new bundle.
    webhook.connect([127, 0, 0, 1]).await.unwrap();
    let key = webhook.material.checked(NAME, now).unwrap();
    webhook.state.shown.show(key.clone());
    let stream = webhook.connect([127, 0, 0, 1]).await.unwrap();
    assert_eq!(stream.get_ref().1.peer_certificates().unwrap(), key.cert);
    let request = Request::post("/mutate").body(Full::new(Bytes::from(question())));
    let answer = old.send_request(request.unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    // Whoever trusts nobody of them is refused by their own side.
    webhook.material = Material::make(NAME, now, LIFETIME, None).unwrap();
    assert!(webhook.connect([127, 0, 0, 1]).await.is_err());
}

#[tokio::test]
async fn nobody_is_answered_before_there_is_a_certificate() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let webhook = Webhook {
        address: listener.local_addr().unwrap(),
        state: Arc::default(),
        material: Material::make(NAME, SystemTime::now(), LIFETIME, None).unwrap(),
    };
    tokio::spawn(serve(listener, webhook.state.clone(), Times::default()));
    assert!(webhook.connect([127, 0, 0, 1]).await.is_err());
}

#[tokio::test]
async fn who_is_slow_is_sent_away() {
    let times = Times {
        step: Duration::from_millis(200),
        idle: Duration::from_millis(200),
        connection: Duration::from_secs(3600),
    };
    let webhook = Webhook::start(times).await;
    let began = Instant::now();
    // No TLS, no request, and half a question.
    let silent = webhook.dial([127, 0, 0, 1]).await.unwrap();
    let idle = webhook.connect([127, 0, 0, 1]).await.unwrap();
    let ended = async |stream: &TcpStream| {
        stream.readable().await.unwrap();
        while matches!(stream.try_read(&mut [0; 4096]), Ok(read) if read > 0) {
            stream.readable().await.unwrap();
        }
    };
    tokio::time::timeout(LONG, ended(&silent)).await.unwrap();
    tokio::time::timeout(LONG, ended(idle.get_ref().0))
        .await
        .unwrap();
    let request = Request::post("/mutate").body(Half(true)).unwrap();
    let answer = webhook.client().await.send_request(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    assert!(began.elapsed() >= Duration::from_millis(400));
}

#[tokio::test]
async fn who_takes_all_that_an_address_may_have_harms_nobody_else() {
    let webhook = Webhook::start(Times::default()).await;
    let mut hostile = Vec::new();
    for _ in 0..400 {
        hostile.push(webhook.dial([127, 0, 0, 9]).await.unwrap());
    }
    assert!(webhook.connect([127, 0, 0, 9]).await.is_err());
    let (status, _) = webhook.ask(Method::POST, "/mutate", question()).await;
    assert_eq!(status, StatusCode::OK);
    drop(hostile);
    let end = Instant::now() + LONG;
    while webhook.connect([127, 0, 0, 9]).await.is_err() {
        assert!(Instant::now() < end, "what was taken is not given back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
