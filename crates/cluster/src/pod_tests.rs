//! Pods and what becomes of them, as a table; and reviews.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::review;

/// A review of a pod with this label, and what is in `spec`.
pub(crate) fn review(label: Option<&str>, named: Option<&str>, spec: &Value) -> Value {
    let mut metadata = json!({ "name": "p", "labels": { "app": "a" } });
    if let Some(label) = label {
        metadata["labels"]["millrace.dev/socket"] = json!(label);
    }
    if let Some(named) = named {
        metadata["annotations"] = json!({ "millrace.dev/containers": named, "other": "x" });
    }
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "operation": "CREATE",
            "object": { "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec },
        },
    })
}

/// The operations and the warnings of an answer.
fn read(answer: &Value) -> (Vec<Value>, Vec<String>) {
    let response = &answer["response"];
    assert_eq!(response["allowed"], json!(true));
    assert_eq!(response["uid"], "705ab4f5-6393-11e8-b7cc-42010a800002");
    let patch = response["patch"].as_str().map_or(Vec::new(), |text| {
        assert_eq!(response["patchType"], "JSONPatch");
        serde_json::from_slice(&STANDARD.decode(text).unwrap()).unwrap()
    });
    let warnings = response.get("warnings").cloned().unwrap_or(json!([]));
    (patch, serde_json::from_value(warnings).unwrap())
}

fn asked(review: &Value) -> (Vec<Value>, Vec<String>) {
    read(&review::answer(review.to_string().as_bytes()).unwrap())
}

/// What a JSON patch of `add` operations does.
fn patched(object: &Value, operations: &[Value]) -> Value {
    let mut object = object.clone();
    for operation in operations {
        assert_eq!(operation["op"], "add");
        let (place, name) = operation["path"]
            .as_str()
            .unwrap()
            .rsplit_once('/')
            .unwrap();
        let parent = object.pointer_mut(place).unwrap().as_object_mut().unwrap();
        let name = name.replace("~1", "/").replace("~0", "~");
        parent.insert(name, operation["value"].clone());
    }
    object
}

fn add(path: &str, value: Value) -> Value {
    json!({ "op": "add", "path": path, "value": value })
}

#[test]
fn containers_ask_by_the_label() {
    let one = json!({ "millrace.dev/socket": "1" });
    let place = "/spec/containers/0/resources";
    let escaped = "/spec/containers/0/resources/limits/millrace.dev~1socket";
    let table: &[(&str, Value, Vec<Value>)] = &[
        (
            "nothing is there",
            json!({ "name": "c" }),
            vec![add(place, json!({ "limits": one }))],
        ),
        (
            "null is nothing",
            json!({ "name": "c", "resources": null }),
            vec![add(place, json!({ "limits": one }))],
        ),
        (
            "resources are empty",
            json!({ "name": "c", "resources": {} }),
            vec![add(&format!("{place}/limits"), one.clone())],
        ),
        (
            "limits are null",
            json!({ "name": "c", "resources": { "limits": null } }),
            vec![add(&format!("{place}/limits"), one.clone())],
        ),
        (
            "requests only",
            json!({ "name": "c", "resources": { "requests": { "cpu": "1" } } }),
            vec![add(&format!("{place}/limits"), one.clone())],
        ),
        (
            "other limits stay",
            json!({ "name": "c", "resources": { "limits": { "cpu": 1 } } }),
            vec![add(escaped, json!("1"))],
        ),
        (
            "it asks already",
            json!({ "name": "c", "resources": { "limits": { "millrace.dev/socket": "1" } } }),
            vec![],
        ),
        (
            "it asks already, by a number",
            json!({ "name": "c", "resources": { "limits": { "millrace.dev/socket": 1 } } }),
            vec![],
        ),
        (
            "it asks for the other one",
            json!({ "name": "c", "resources": { "limits": { "millrace.dev/socket-variable": "1" } } }),
            vec![],
        ),
        (
            "it asks by a request",
            json!({ "name": "c", "resources": { "requests": { "millrace.dev/socket": "1" } } }),
            vec![],
        ),
    ];
    for (what, container, expected) in table {
        let mut review = review(Some("true"), None, &json!({ "containers": [container] }));
        assert_eq!(asked(&review), (expected.clone(), vec![]), "{what}");
        // The second time there is nothing left to do.
        review["request"]["object"] = patched(&review["request"]["object"], expected);
        assert_eq!(asked(&review), (vec![], vec![]), "{what}, again");
    }
}

#[test]
fn the_label_chooses_the_resource_and_every_other_value_is_answered_with_advice() {
    let spec = json!({ "containers": [{ "name": "c", "resources": { "limits": {} } }] });
    let path = "/spec/containers/0/resources/limits/millrace.dev~1socket-variable";
    let (patch, warnings) = asked(&review(Some("variable"), None, &spec));
    assert_eq!((patch, warnings), (vec![add(path, json!("1"))], vec![]));
    assert_eq!(asked(&review(None, None, &spec)), (vec![], vec![]));
    for value in ["", "yes", "True", "false", "1", "musl", "\"\n"] {
        let (patch, warnings) = asked(&review(Some(value), None, &spec));
        assert_eq!(patch, Vec::<Value>::new());
        assert_eq!(warnings.len(), 1, "{value}");
        assert!(
            warnings[0].contains("\"variable\"") && warnings[0].contains(&format!("{value:?}"))
        );
        assert!(warnings[0].len() < 256);
    }
    let (_, warnings) = asked(&review(Some(&"x".repeat(100_000)), None, &spec));
    assert!(warnings[0].len() < 256, "{}", warnings[0]);
}

#[test]
fn sidecars_ask_too_and_what_ends_before_the_pod_begins_does_not() {
    let spec = json!({
        "initContainers": [
            { "name": "setup", "resources": {} },
            { "name": "proxy", "restartPolicy": "Always", "resources": {} },
        ],
        "containers": [{ "name": "a" }, { "name": "b", "resources": {} }],
        "ephemeralContainers": [{ "name": "look" }],
    });
    let paths = |named: Option<&str>| {
        let (patch, warnings) = asked(&review(Some("true"), named, &spec));
        let text = |each: &Value| each["path"].as_str().unwrap().to_owned();
        (patch.iter().map(text).collect::<Vec<_>>(), warnings)
    };
    let proxy = "/spec/initContainers/1/resources/limits";
    let (a, b) = (
        "/spec/containers/0/resources",
        "/spec/containers/1/resources/limits",
    );
    assert_eq!(
        paths(None),
        (vec![proxy.into(), a.into(), b.into()], vec![])
    );
    assert_eq!(paths(Some("b")), (vec![b.into()], vec![]));
    assert_eq!(
        paths(Some(" b , proxy,")),
        (vec![proxy.into(), b.into()], vec![])
    );
    let (found, warnings) = paths(Some("a,setup,nobody"));
    assert_eq!(found, [a]);
    assert!(warnings[0].contains("\"setup, nobody\""), "{warnings:?}");
    let (found, warnings) = paths(Some(" , "));
    assert_eq!(found.len(), 0);
    assert!(warnings[0].contains("names no container"), "{warnings:?}");
}

#[test]
fn what_is_deleted_is_let_go() {
    let mut review = review(Some("true"), None, &json!({}));
    assert_eq!(asked(&review), (vec![], vec![]));
    review["request"]["object"] = Value::Null;
    assert_eq!(asked(&review), (vec![], vec![]));
}

#[test]
fn what_is_no_review_is_said_to_be_none() {
    let good = review(Some("true"), None, &json!({ "containers": [] }));
    let mut old = good.clone();
    old["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let mut other = good.clone();
    other["kind"] = json!("Pod");
    let mut nameless = good.clone();
    nameless["request"]["uid"] = json!("");
    let mut long = good.clone();
    long["request"]["uid"] = json!("x".repeat(1000));
    let mut wrong = good;
    wrong["request"]["object"]["spec"]["containers"] = json!([{ "name": 1 }]);
    for (bad, said) in [
        (old, "admissionReviewVersions"),
        (other, "only an AdmissionReview"),
        (nameless, "request.uid"),
        (long, "request.uid"),
        (wrong, "no AdmissionReview of a pod"),
    ] {
        let error = review::answer(bad.to_string().as_bytes()).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    let deep = "[".repeat(1_000_000);
    for garbage in ["", "{", "null", "\u{0}", "[]", deep.as_str()] {
        let error = review::answer(garbage.as_bytes()).unwrap_err();
        assert!(error.contains("no AdmissionReview"), "{error}");
        assert!(error.len() < 400, "{error}");
    }
}

/// A thread serves all: it must not go through all names for each container.
#[test]
fn the_longest_question_is_answered_as_others_are() {
    let named = "a,".repeat(700_000);
    let containers = vec![json!({ "name": "b" }); 110_000];
    let longest = review(
        Some("true"),
        Some(&named),
        &json!({ "containers": containers }),
    );
    assert!(longest.to_string().len() > 2 << 20);
    let (patch, warnings) = asked(&longest);
    assert!(
        patch.is_empty() && warnings[0].contains("no container"),
        "{warnings:?}"
    );
}
