//! The keeper and an API server that is made here, by real TLS; `server_tests` has the webhook itself.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;

use crate::api::Api;
use crate::certificates::Material;
use crate::keeper::{Found, Keeper, Names, State};

const LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);
const SERVER: &str = "millrace-admission.millrace.svc";
const SECRET: &str = "/api/v1/namespaces/millrace/secrets/millrace-admission";
const CONFIGURATION: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/millrace-admission";

/// What the API server has, and how it behaves.
#[derive(Default)]
struct Store {
    secret: Value,
    configuration: Value,
    version: u64,
    /// What another replica writes just before the next `PUT` comes.
    rival: Option<Material>,
    /// Somebody changes the configuration just before each `PATCH`.
    restless: bool,
    /// The method that the account has no right to.
    forbidden: Option<Method>,
}

impl Store {
    fn write(&mut self, material: &Material) {
        self.secret["data"] = json!({
            "ca.crt": STANDARD.encode(&material.authorities),
            "tls.crt": STANDARD.encode(&material.certificate),
            "tls.key": STANDARD.encode(&material.key),
        });
        self.version += 1;
        self.secret["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let refused =
            |status, message: &str| (status, json!({ "kind": "Status", "message": message }));
        if self.forbidden.as_ref() == Some(method) {
            return refused(StatusCode::FORBIDDEN, "User \"u\" cannot do this");
        }
        match (method, path) {
            (&Method::GET, SECRET) if !self.secret.is_null() => {
                (StatusCode::OK, self.secret.clone())
            }
            (&Method::GET, CONFIGURATION) => (StatusCode::OK, self.configuration.clone()),
            (&Method::PUT, SECRET) => {
                if let Some(material) = self.rival.take() {
                    self.write(&material);
                }
                if body["metadata"]["resourceVersion"] != self.secret["metadata"]["resourceVersion"]
                {
                    return refused(StatusCode::CONFLICT, "the object has been modified");
                }
                self.version += 1;
                self.secret = body.clone();
                self.secret["metadata"]["resourceVersion"] = json!(self.version.to_string());
                (StatusCode::OK, self.secret.clone())
            }
            (&Method::PATCH, CONFIGURATION) => {
                self.version += u64::from(self.restless);
                if self.restless {
                    self.configuration["metadata"]["resourceVersion"] =
                        json!(self.version.to_string());
                }
                for operation in body.as_array().unwrap() {
                    let path = operation["path"].as_str().unwrap();
                    if operation["op"] == "test" {
                        if self.configuration.pointer(path) != Some(&operation["value"]) {
                            return refused(
                                StatusCode::UNPROCESSABLE_ENTITY,
                                "testing value failed",
                            );
                        }
                        continue;
                    }
                    let (place, name) = path.rsplit_once('/').unwrap();
                    self.configuration.pointer_mut(place).unwrap()[name] =
                        operation["value"].clone();
                }
                self.version += 1;
                self.configuration["metadata"]["resourceVersion"] = json!(self.version.to_string());
                (StatusCode::OK, self.configuration.clone())
            }
            _ => refused(StatusCode::NOT_FOUND, "not found"),
        }
    }
}

/// An API server, and an account on it.
struct World {
    store: Arc<Mutex<Store>>,
    account: tempfile::TempDir,
    port: u16,
}

impl World {
    async fn new() -> World {
        let client =
            |service: &str| json!({ "service": { "name": service, "namespace": "millrace" } });
        let store = Store {
            secret: json!({ "kind": "Secret", "metadata": { "resourceVersion": "0", "labels": { "a": "b" } } }),
            configuration: json!({
                "metadata": { "resourceVersion": "7" },
                "webhooks": [
                    { "name": "other", "clientConfig": client("other") },
                    { "name": "ours", "clientConfig": client("millrace-admission") },
                ],
            }),
            version: 10,
            ..Store::default()
        };
        let store = Arc::new(Mutex::new(store));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let material = Material::make("127.0.0.1", SystemTime::now(), LIFETIME, None).unwrap();
        let account = tempfile::tempdir().unwrap();
        std::fs::write(account.path().join("ca.crt"), &material.authorities).unwrap();
        std::fs::write(account.path().join("token"), "secret\n").unwrap();
        let shown = State::default().shown;
        shown.show(material.checked("127.0.0.1", SystemTime::now()).unwrap());
        let tls = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(shown);
        let tls = TlsAcceptor::from(Arc::new(tls));
        let kept = store.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, store) = (tls.clone(), kept.clone());
                tokio::spawn(async move {
                    let stream = tls.accept(stream).await?;
                    let service =
                        hyper::service::service_fn(move |request| serve(request, store.clone()));
                    let served = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    served.await.map_err(std::io::Error::other)
                });
            }
        });
        World {
            store,
            account,
            port,
        }
    }

    /// A replica of the webhook.
    fn keeper(&self) -> Keeper {
        Keeper {
            api: Api {
                host: "127.0.0.1".to_owned(),
                port: self.port,
                account: self.account.path().to_owned(),
            },
            names: Names {
                namespace: "millrace".to_owned(),
                service: "millrace-admission".to_owned(),
                secret: "millrace-admission".to_owned(),
                configuration: "millrace-admission".to_owned(),
            },
            lifetime: LIFETIME,
            state: Arc::default(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Store)) {
        change(&mut self.store.lock().unwrap());
    }

    /// What is where everybody sees it.
    fn authorities(&self) -> String {
        let store = self.store.lock().unwrap();
        let bundle = store.configuration["webhooks"][1]["clientConfig"]["caBundle"].as_str();
        String::from_utf8(STANDARD.decode(bundle.unwrap()).unwrap()).unwrap()
    }

    /// Whether API servers believe what a replica shows.
    fn believes(&self, keeper: &Keeper, at: SystemTime) -> bool {
        let shown = keeper.state.shown.now().unwrap();
        crate::server_tests::believed(&self.authorities(), &shown.cert[0], SERVER, at)
    }
}

async fn serve(
    request: Request<Incoming>,
    store: Arc<Mutex<Store>>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let (status, answer) = if head.headers["authorization"] == "Bearer secret" {
        store
            .lock()
            .unwrap()
            .answer(&head.method, head.uri.path(), &body)
    } else {
        (
            StatusCode::UNAUTHORIZED,
            json!({ "message": "Unauthorized" }),
        )
    };
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
    *response.status_mut() = status;
    Ok(response)
}

/// The certificate that a replica shows.
fn shown(keeper: &Keeper) -> Vec<u8> {
    keeper.state.shown.now().unwrap().cert[0].to_vec()
}

async fn refusal(keeper: &Keeper) -> String {
    format!("{:#}", keeper.look(SystemTime::now()).await.unwrap_err())
}

#[tokio::test]
async fn the_first_certificate_is_made_told_and_shown() {
    let world = World::new().await;
    let keeper = world.keeper();
    let now = SystemTime::now();
    assert!(!keeper.state.is_ready() && keeper.state.shown.now().is_none());
    assert_eq!(keeper.look(now).await.unwrap(), Found::Changed);
    assert!(keeper.state.is_ready() && world.believes(&keeper, now));
    let first = shown(&keeper);
    assert_eq!(keeper.look(now).await.unwrap(), Found::InPlace);
    assert_eq!(shown(&keeper), first);
    world.change(|store| {
        assert_eq!(store.secret["metadata"]["labels"]["a"], "b");
        assert!(store.configuration["webhooks"][0]["clientConfig"]["caBundle"].is_null());
        // Whatever somebody puts there instead is put right.
        store.configuration["webhooks"][1]["clientConfig"]["caBundle"] = json!("");
    });
    assert_eq!(keeper.look(now).await.unwrap(), Found::Changed);
    assert!(world.believes(&keeper, now));
}

#[tokio::test]
async fn of_two_replicas_both_show_what_the_first_wrote() {
    let world = World::new().await;
    let now = SystemTime::now();
    let rival = Material::make(SERVER, now, LIFETIME, None).unwrap();
    world.change(|store| store.rival = Some(rival.clone()));
    let keeper = world.keeper();
    keeper.look(now).await.unwrap();
    assert_eq!(world.authorities(), rival.authorities);
    let one = World::new().await;
    let replicas = [one.keeper(), one.keeper(), one.keeper()];
    let [a, b, c] = &replicas;
    let (a, b, c) = tokio::join!(a.look(now), b.look(now), c.look(now));
    assert!(a.is_ok() && b.is_ok() && c.is_ok(), "{a:?} {b:?} {c:?}");
    for each in &replicas {
        assert_eq!(shown(each), shown(&replicas[0]));
        assert!(one.believes(each, now));
    }
}

#[tokio::test]
async fn a_renewal_is_believed_all_the_time_by_whichever_replica() {
    let world = World::new().await;
    let (one, other) = (world.keeper(), world.keeper());
    let mut now = SystemTime::now();
    for keeper in [&one, &other] {
        keeper.look(now).await.unwrap();
    }
    for _ in 0..3 {
        let before = shown(&one);
        assert_eq!(
            one.look(now + LIFETIME * 65 / 100).await.unwrap(),
            Found::InPlace
        );
        assert_eq!(shown(&one), before);
        now += LIFETIME * 67 / 100;
        // Told first, and shown at the next look.
        assert_eq!(one.look(now).await.unwrap(), Found::Changed);
        assert_eq!(shown(&one), before);
        assert!(world.believes(&one, now) && world.believes(&other, now));
        assert_eq!(one.look(now).await.unwrap(), Found::InPlace);
        assert_ne!(shown(&one), before);
        assert_eq!(shown(&other), before);
        assert!(world.believes(&one, now) && world.believes(&other, now));
        assert_eq!(other.look(now).await.unwrap(), Found::InPlace);
        assert_eq!(shown(&other), shown(&one));
        assert!(world.believes(&other, now));
    }
}

#[tokio::test]
async fn what_somebody_has_spoilt_is_made_again() {
    let world = World::new().await;
    let keeper = world.keeper();
    let now = SystemTime::now();
    keeper.look(now).await.unwrap();
    for (name, value) in [
        ("tls.key", "AAAA"),
        ("tls.crt", ""),
        ("ca.crt", "?"),
        ("tls.crt", "/w=="),
    ] {
        world.change(|store| store.secret["data"][name] = json!(value));
        keeper.look(now).await.unwrap();
        keeper.look(now).await.unwrap();
        assert!(world.believes(&keeper, now), "{name}");
    }
    // A certificate for another name, as of a copy of the namespace.
    let other = Material::make("other.millrace.svc", now, LIFETIME, None).unwrap();
    world.change(|store| store.write(&other));
    keeper.look(now).await.unwrap();
    assert!(!world.authorities().is_empty() && world.authorities() != other.authorities);
}

/// Nobody would believe it for a day, nor would a replica with the right time be ready.
#[tokio::test]
async fn what_a_clock_has_made_that_is_ahead_is_made_again() {
    let world = World::new().await;
    let (keeper, now) = (world.keeper(), SystemTime::now());
    let ahead = now + Duration::from_secs(24 * 3600);
    world.keeper().look(ahead).await.unwrap();
    keeper.look(now).await.unwrap();
    assert!(keeper.state.is_ready() && world.believes(&keeper, now));
    // Whoever is ahead has no reason to make another one.
    assert_eq!(world.keeper().look(ahead).await.unwrap(), Found::InPlace);
}

#[tokio::test]
async fn what_is_wrong_is_said_with_advice() {
    let world = World::new().await;
    let keeper = world.keeper();
    world.change(|store| store.forbidden = Some(Method::PUT));
    let said = refusal(&keeper).await;
    assert!(
        said.contains("User \"u\" cannot do this") && said.contains("apply it again"),
        "{said}"
    );
    assert!(!keeper.state.is_ready());
    world.change(|store| store.forbidden = None);
    world.change(|store| store.restless = true);
    assert!(refusal(&keeper).await.contains("another installation"));
    world.change(|store| store.restless = false);
    world.change(|store| store.configuration["webhooks"] = json!([]));
    assert!(refusal(&keeper).await.contains("leads to the Service"));
    world.change(|store| store.secret = Value::Null);
    assert!(
        refusal(&keeper)
            .await
            .contains("no Secret millrace-admission in namespace millrace")
    );
    std::fs::write(world.account.path().join("token"), "old").unwrap();
    let said = refusal(&keeper).await;
    assert!(said.contains("401") && said.contains("account"), "{said}");
    std::fs::remove_file(world.account.path().join("token")).unwrap();
    assert!(
        refusal(&keeper)
            .await
            .contains("automountServiceAccountToken")
    );
}

#[tokio::test]
async fn a_certificate_that_cannot_be_renewed_serves_to_its_end() {
    let world = World::new().await;
    let now = SystemTime::now();
    world.keeper().look(now).await.unwrap();
    world.change(|store| store.forbidden = Some(Method::PUT));
    let late = world.keeper();
    assert_eq!(
        late.look(now + LIFETIME * 9 / 10).await.unwrap(),
        Found::InPlace
    );
    assert!(late.state.is_ready() && world.believes(&late, now + LIFETIME * 9 / 10));
    assert!(late.look(now + LIFETIME * 2).await.is_err());
}

#[tokio::test]
async fn an_api_server_that_is_not_the_clusters_gets_no_token() {
    let world = World::new().await;
    let other = Material::make("127.0.0.1", SystemTime::now(), LIFETIME, None).unwrap();
    std::fs::write(world.account.path().join("ca.crt"), other.authorities).unwrap();
    let said = refusal(&world.keeper()).await;
    assert!(
        said.contains("the API server at 127.0.0.1") && said.contains("certificate"),
        "{said}"
    );
}
