//! The API beside the document that describes it: every path and way of asking, with the document's own examples, and each answer by its
//! schema. And what the document does not say: who sends what is not understood.

#![forbid(unsafe_code)]

mod several;

use millrace_ppf::{Answer, Api, Config, OPENAPI, Question, Running, Store};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use serde_json::{Value, json};

fn api(place: &std::path::Path) -> Api {
    api_with(place, "")
}

fn api_with(place: &std::path::Path, more: &str) -> Api {
    let path = place.display();
    let config = format!(
        r#"
        {more}
        [[port]]
        name = "n3"
        side = "radio"
        memif = {{ path = "{path}/n3.sock" }}
        addresses = ["192.0.2.1/24"]
        [[port]]
        name = "n6"
        side = "core"
        memif = {{ path = "{path}/n6.sock" }}
        addresses = ["203.0.113.1/24"]
        "#
    );
    let config = Config::parse(&config).unwrap();
    let store = Store::open(&place.join("store")).unwrap();
    Api::new(Running::start(&config, Some(store)).unwrap())
}

fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

fn asked(api: &Api, method: &str, target: &str, kind: &str, body: &Value) -> Answer {
    let body = match body {
        Value::Null => Vec::new(),
        Value::String(lines) => lines.clone().into_bytes(),
        other => other.to_string().into_bytes(),
    };
    api.answer(&Question::new(method, target, kind, body))
}

fn said(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}

fn followed<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(place) => document.pointer(place.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

/// As much of JSON Schema as the document uses.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = followed(document, schema);
    let kinds = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        other => panic!("{at}: a schema of type {other}"),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(
        kinds.contains(&kind),
        "{at} is {value}, and not of {kinds:?}"
    );
    if let Some(wanted) = schema["enum"].as_array() {
        assert!(wanted.contains(value), "{at} is {value}");
    }
    for item in value.as_array().into_iter().flatten() {
        check(document, &schema["items"], item, &format!("{at}[]"));
    }
    let Some(fields) = value.as_object() else {
        return;
    };
    for required in schema["required"].as_array().into_iter().flatten() {
        let name = required.as_str().unwrap();
        assert!(fields.contains_key(name), "{at} has no {name}");
    }
    for (name, field) in fields {
        match schema["properties"].get(name) {
            Some(of) => check(document, of, field, &format!("{at}.{name}")),
            None => assert_ne!(
                schema["additionalProperties"],
                json!(false),
                "{at} has {name}"
            ),
        }
    }
}

fn check_answer(document: &Value, operation: &Value, answer: &Answer, at: &str) {
    let status = answer.status.to_string();
    let response = operation["responses"].get(&status);
    let response = response.unwrap_or_else(|| panic!("{at}: {status} is not described"));
    let response = followed(document, response);
    let content = &response["content"][answer.content_type];
    assert!(
        content.is_object(),
        "{at}: {} is not described",
        answer.content_type
    );
    if answer.content_type == "application/json" {
        check(document, &content["schema"], &said(answer), at);
    }
}

/// The parameters that the document has examples of.
fn queried(item: &Value) -> String {
    let parameters = item["get"]["parameters"].as_array().into_iter().flatten();
    let examples = parameters.filter_map(|one| Some((one["name"].as_str()?, one.get("example")?)));
    let examples = examples.map(|(name, example)| format!("{name}={example}"));
    match examples.collect::<Vec<_>>().join("&") {
        none if none.is_empty() => none,
        some => format!("?{some}"),
    }
}

#[test]
fn every_answer_is_as_the_document_says() {
    let place = tempfile::tempdir().unwrap();
    let (api, document) = (api(place.path()), document());
    let first = asked(
        &api,
        "POST",
        "/v1/bearers",
        "application/json",
        &json!({ "core": { "address": "192.0.2.9", "teid": 1 }, "radio": { "address": "192.0.2.8", "teid": 2 } }),
    );
    assert_eq!(first.status, 201);
    let id = said(&first)["id"].to_string();
    let mut asked_ways = 0;
    // Removing it comes last.
    for methods in [&["get", "post", "put"][..], &["delete"]] {
        for (path, item) in document["paths"].as_object().unwrap() {
            let query = queried(item);
            let target = path.replace("{id}", &id).replace("{ue}", "0") + &query;
            for method in methods {
                let operation = &item[method];
                if operation.is_null() {
                    continue;
                }
                asked_ways += 1;
                let at = format!("{method} {path}");
                let upper = method.to_uppercase();
                let content = operation["requestBody"]["content"].as_object();
                for (kind, content) in content.into_iter().flatten() {
                    for (name, example) in content["examples"].as_object().unwrap() {
                        let at = format!("{at}, {name}");
                        if kind == "application/json" {
                            check(&document, &content["schema"], &example["value"], &at);
                        }
                        let answer = asked(&api, &upper, &target, kind, &example["value"]);
                        assert!(answer.status < 300, "{at}: {}", said(&answer));
                        check_answer(&document, operation, &answer, &at);
                        let wrong = asked(&api, &upper, &target, "text/plain", &json!("x"));
                        assert_eq!(wrong.status, 415, "{at}");
                        check_answer(&document, operation, &wrong, &at);
                    }
                }
                if content.is_none() {
                    let answer = asked(&api, &upper, &target, "", &Value::Null);
                    assert_eq!(answer.status, 200, "{at}");
                    check_answer(&document, operation, &answer, &at);
                }
                if path.contains("{id}") {
                    let body = json!({ "core": { "user": "10.9.9.9" }, "radio": { "address": "192.0.2.8", "teid": 2 } });
                    let target = path.replace("{id}", "7");
                    let answer = asked(&api, &upper, &target, "application/json", &body);
                    assert_eq!(answer.status, 404, "{at}");
                    check_answer(&document, operation, &answer, &at);
                }
            }
        }
    }
    assert_eq!(asked_ways, 20, "the document has other ways");
}

#[test]
fn what_became_of_packets_is_said_of_who_follows_it() {
    let place = tempfile::tempdir().unwrap();
    let (api, document) = (api(place.path()), document());
    let kind = "application/json";
    for follows in [false, true] {
        let far = |teid: u32| json!({ "address": "192.0.2.9", "teid": teid });
        let spec = json!({ "core": far(1), "radio": far(2), "follows_delivery": follows });
        let added = said(&asked(&api, "POST", "/v1/bearers", kind, &spec));
        let target = format!("/v1/bearers/{}", added["id"]);
        for method in ["GET", "DELETE"] {
            let bearer = said(&asked(&api, method, &target, "", &Value::Null));
            let schema = &document["components"]["schemas"]["Bearer"];
            check(&document, schema, &bearer, &target);
            assert_eq!(bearer["delivery"]["statuses"] == json!(0), follows);
        }
    }
}

#[test]
fn a_ue_has_bearers_and_goes_after_them() {
    let place = tempfile::tempdir().unwrap();
    let first = api(place.path());
    let kind = "application/json";
    let bearer = |ue: u32| json!({ "core": { "user": "10.0.0.1" }, "radio": { "address": "192.0.2.8", "teid": 2 }, "ue": ue });
    let limit = json!({ "to_radio": { "kbit_per_second": 8, "burst_bytes": 99 } });
    let ways = [
        ("POST", "/v1/bearers", bearer(0), 409),
        (
            "POST",
            "/v1/ues",
            json!({ "to_core": { "kbit_per_second": 0 } }),
            400,
        ),
        ("POST", "/v1/ues", limit.clone(), 201),
        ("POST", "/v1/ues", json!({}), 201),
        ("POST", "/v1/bearers", bearer(0), 201),
        ("DELETE", "/v1/ues/0", Value::Null, 409),
        ("DELETE", "/v1/ues/1", Value::Null, 200),
        ("DELETE", "/v1/ues/1", Value::Null, 404),
        ("PUT", "/v1/ues/1", json!({}), 404),
        ("PATCH", "/v1/ues", json!({}), 405),
    ];
    for (method, target, body, status) in ways {
        let answer = asked(&first, method, target, kind, &body);
        assert_eq!(
            answer.status,
            status,
            "{method} {target}: {}",
            said(&answer)
        );
    }
    drop(first);
    let second = api(place.path());
    let there = said(&asked(&second, "GET", "/v1/ues", "", &Value::Null));
    assert_eq!(
        there,
        json!({ "ues": [{ "ue": 0, "spec": limit, "bearers": 1 }], "next": null })
    );
    // Its bearers go with it to the same worker, and can leave it.
    let page = said(&asked(&second, "GET", "/v1/bearers", "", &Value::Null));
    let target = format!("/v1/bearers/{}", page["bearers"][0]["id"]);
    let mut spec = page["bearers"][0]["spec"].clone();
    spec.as_object_mut().unwrap().remove("ue");
    assert_eq!(asked(&second, "PUT", &target, kind, &spec).status, 200);
    assert_eq!(
        asked(&second, "DELETE", "/v1/ues/0", "", &Value::Null).status,
        200
    );
}

#[test]
fn what_is_refused_has_a_reason_and_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let api = api(place.path());
    let kind = "application/json";
    for (method, target, body, status) in [
        ("GET", "/", Value::Null, 404),
        ("GET", "/v1/nothing", Value::Null, 404),
        ("PATCH", "/v1/bearers", Value::Null, 405),
        ("DELETE", "/v1/status", Value::Null, 405),
        ("GET", "/v1/bearers/0", Value::Null, 404),
        ("GET", "/v1/bearers/x", Value::Null, 404),
        ("GET", "/v1/bearers?limit=0", Value::Null, 400),
        ("GET", "/v1/bearers?limit=x", Value::Null, 400),
        ("GET", "/v1/events?wait=21", Value::Null, 400),
        ("GET", "/v1/events?from=-1", Value::Null, 400),
        ("GET", "/v1/paths?limit=0", Value::Null, 400),
        ("POST", "/v1/events", json!({}), 405),
        ("GET", "/v1/bearers/0/trace", Value::Null, 404),
        ("GET", "/v1/bearers/513/trace?count=0", Value::Null, 400),
        ("DELETE", "/v1/bearers/513/trace", Value::Null, 405),
        ("POST", "/v1/bearers", json!({}), 400),
        ("POST", "/v1/bearers/remove", json!({ "ids": "all" }), 400),
    ] {
        let answer = asked(&api, method, target, kind, &body);
        assert_eq!(answer.status, status, "{method} {target}");
        assert!(said(&answer)["error"].is_string());
        assert_eq!(answer.allow.is_empty(), status != 405, "{method} {target}");
        for allowed in answer.allow.split_terminator(", ") {
            let answer = asked(&api, allowed, target, kind, &Value::Null);
            assert_ne!(answer.status, 405, "{allowed} {target}");
        }
    }
    let mut question = Question::new("GET", "/v1/status", "", Vec::new());
    question.host = "example.org".to_owned();
    assert_eq!(api.answer(&question).status, 403);
    let status = said(&asked(&api, "GET", "/v1/status", "", &Value::Null));
    assert_eq!(status["bearers"], json!(0));
}

#[test]
fn bearers_are_there_again_after_a_restart() {
    let place = tempfile::tempdir().unwrap();
    let first = api(place.path());
    let body =
        json!({ "core": { "user": "10.0.0.1" }, "radio": { "address": "192.0.2.8", "teid": 2 } });
    let added = said(&asked(
        &first,
        "POST",
        "/v1/bearers",
        "application/json",
        &body,
    ));
    drop(first);
    let second = api(place.path());
    let target = format!("/v1/bearers/{}", added["id"]);
    assert_eq!(
        said(&asked(&second, "GET", &target, "", &Value::Null)),
        added
    );
    let again = asked(&second, "POST", "/v1/bearers", "application/json", &body);
    assert_eq!(again.status, 409);
}

#[test]
fn peers_that_do_not_answer_are_events_and_paths_that_are_down() {
    let place = tempfile::tempdir().unwrap();
    // Nobody is at the ports' other ends. Two workers, where there are processors for them.
    let own = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let processors = (0..CpuSet::count()).filter(|one| own.is_set(*one).unwrap());
    let processors: Vec<usize> = processors.take(2).collect();
    let supervision = "[supervision]\ninterval_s = 60\nresponse_ms = 10\nrequests = 2";
    let api = api_with(
        place.path(),
        &format!("processors = {processors:?}\n{supervision}"),
    );
    let get = |target: &str, of: &str| {
        let answer = asked(&api, "GET", target, "", &Value::Null);
        assert_eq!(answer.status, 200, "{target}");
        let document = document();
        let schema = &document["components"]["schemas"][of];
        let said = said(&answer);
        check(&document, schema, &said, target);
        said
    };
    let none = get("/v1/events", "EventList");
    assert_eq!((&none["events"], &none["next"]), (&json!([]), &json!(0)));
    let lines: Vec<String> = (1..=20)
        .map(|teid| {
            let core = json!({ "address": format!("203.0.113.{}", 10 + teid % 5), "teid": teid });
            json!({ "core": core, "radio": { "address": "192.0.2.8", "teid": teid } }).to_string()
        })
        .collect();
    let kind = "application/x-ndjson";
    let added = asked(&api, "POST", "/v1/bearers", kind, &json!(lines.join("\n")));
    assert_eq!(said(&added)["added"], json!(20));
    let (mut from, mut down) = (json!(0), std::collections::HashSet::new());
    while down.len() < 6 {
        let list = get(
            &format!("/v1/events?from={from}&wait=20&limit=2"),
            "EventList",
        );
        assert_eq!(list["missed"], json!(0));
        for event in list["events"].as_array().unwrap() {
            assert_eq!(event["event"], json!("path_down"), "{event}");
            assert!(down.insert(event["peer"].to_string()), "{event}");
        }
        from = list["next"].clone();
    }
    let (mut place, mut seen) = (json!(0), Vec::new());
    while !place.is_null() {
        let page = get(&format!("/v1/paths?limit=2&from={place}"), "PathList");
        seen.extend(page["paths"].as_array().unwrap().clone());
        place = page["next"].clone();
    }
    assert_eq!(seen.len(), 6);
    for path in &seen {
        let wanted = if path["side"] == json!("radio") {
            20
        } else {
            4
        };
        assert_eq!(
            (&path["state"], &path["tunnels"], &path["requests"]),
            (&json!("down"), &json!(wanted), &json!(2)),
            "{path}"
        );
        assert!(down.contains(&path["peer"].to_string()));
    }
    let status = get("/v1/status", "Status");
    assert_eq!(
        (&status["paths"]["down"], &status["events"]["told"]),
        (&json!(6), &json!(6))
    );
}

#[test]
fn who_asks_when_it_has_stopped_is_answered_at_once() {
    let place = tempfile::tempdir().unwrap();
    let api = api(place.path());
    let kind = "application/json";
    let far = |teid: u32| json!({ "address": "192.0.2.9", "teid": teid });
    let bearer = json!({ "core": far(1), "radio": far(2) });
    let added = asked(&api, "POST", "/v1/bearers", kind, &bearer);
    assert_eq!(added.status, 201, "{}", said(&added));
    api.running().stop();
    let begin = std::time::Instant::now();
    for target in ["/v1/bearers", "/v1/status", "/v1/paths"] {
        let answer = asked(&api, "GET", target, "", &Value::Null);
        assert_eq!(answer.status, 200, "{target}");
    }
    let gone = asked(&api, "DELETE", "/v1/bearers/0", "", &Value::Null);
    assert_eq!(gone.status, 404);
    assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
}
