//! The server: HTTP/1.1 over TLS, `POST /mutate` and `GET /ready`.
//!
//! Anybody who can reach the Service can connect, so everything has a limit: connections and memory of an address (`guests`), the length
//! of a question, and the time for each step. Whoever exceeds one is answered by a word, or by an end of the connection.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tracing::{debug, warn};

use crate::guests::{Guest, Guests};
use crate::keeper::State;
use crate::review;

/// The limit of API servers themselves.
pub(crate) const QUESTION_BYTES: usize = 3 << 20;
/// What a request's head may be.
const HEAD_BYTES: usize = 64 << 10;

/// For how long things may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// To agree on TLS, and to send a question: API servers wait for their answer for 2 s.
    pub(crate) step: Duration,
    /// Until the next request begins; API servers connect again.
    pub(crate) idle: Duration,
    /// From the beginning of a connection to its end, whatever it does.
    pub(crate) connection: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            step: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            connection: Duration::from_secs(600),
        }
    }
}

/// Serves until it is dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    state: Arc<State>,
    times: Times,
) -> anyhow::Result<()> {
    let tls = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(state.shown.clone());
    let tls = TlsAcceptor::from(Arc::new(tls));
    let guests = Guests::default();
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most often there are too many open files, and some are closed soon.
                warn!("no connection can be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(guest) = guests.enter(address.ip()) else {
            debug!("{address} has too many connections");
            continue;
        };
        tokio::spawn(connection(stream, tls.clone(), state.clone(), guest, times));
    }
}

/// One connection, from its beginning to its end.
async fn connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    state: Arc<State>,
    guest: Guest,
    times: Times,
) {
    let stream = match tokio::time::timeout(times.step, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!("no TLS: {error}"),
        Err(_) => return debug!("TLS took longer than {:?}", times.step),
    };
    let answer = service_fn(|request| {
        let (state, guest) = (&state, &guest);
        async move { Ok::<_, Infallible>(answer(request, state, guest, times).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.idle)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), answer);
    let mut served = std::pin::pin!(served);
    let outcome = tokio::select! {
        outcome = served.as_mut() => outcome,
        () = tokio::time::sleep(times.connection) => {
            // What is being answered is answered, if it is read.
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(times.step, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = outcome {
        debug!("a connection ended: {error}");
    }
}

/// What a request is answered with.
async fn answer(
    request: Request<Incoming>,
    state: &State,
    guest: &Guest,
    times: Times,
) -> Response<Full<Bytes>> {
    let (method, path) = (request.method(), request.uri().path());
    match (method, path) {
        (&Method::GET, "/ready") if state.is_ready() => text(StatusCode::OK, "ready"),
        (&Method::GET, "/ready") => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "API servers were not told yet whom to believe: the log of this pod says why",
        ),
        (&Method::POST, "/mutate") => mutate(request.into_body(), guest, times).await,
        (_, "/ready" | "/mutate") => text(
            StatusCode::METHOD_NOT_ALLOWED,
            "GET /ready, or POST /mutate with an AdmissionReview",
        ),
        _ => text(
            StatusCode::NOT_FOUND,
            "there is GET /ready and POST /mutate",
        ),
    }
}

/// The answer to a review, in time and within bounds.
async fn mutate(body: Incoming, guest: &Guest, times: Times) -> Response<Full<Bytes>> {
    let mut held = guest.hold();
    let mut question = Vec::new();
    let mut body = body;
    let read = async {
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Err((StatusCode::BAD_REQUEST, "the question ends too early"));
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if question.len() + data.len() > QUESTION_BYTES {
                return Err((
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "a question has 3 MiB at most",
                ));
            }
            if !held.grow(data.len()) {
                return Err((
                    StatusCode::SERVICE_UNAVAILABLE,
                    "this address asks too much at a time",
                ));
            }
            question.extend_from_slice(&data);
        }
        Ok(())
    };
    match tokio::time::timeout(times.step, read).await {
        Ok(Ok(())) => {}
        Ok(Err((status, said))) => return text(status, said),
        Err(_) => {
            return text(
                StatusCode::REQUEST_TIMEOUT,
                "the question takes too long to come",
            );
        }
    }
    match review::answer(&question) {
        Ok(answer) => {
            let mut response = text(StatusCode::OK, answer.to_string());
            let json = hyper::header::HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
        Err(said) => {
            // Anybody can send garbage; who asks in earnest logs the answer.
            debug!("a question that is none: {said}");
            text(StatusCode::BAD_REQUEST, said)
        }
    }
}

fn text(status: StatusCode, said: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(said.into()));
    *response.status_mut() = status;
    response
}
