//! Several bearers in one question, each a line.

use super::*;

#[test]
fn several_are_added_each_if_it_can_be() {
    let place = tempfile::tempdir().unwrap();
    let api = api(place.path());
    let line = |user: u32, teid: u32| {
        let user = std::net::Ipv4Addr::from_bits(0x0a00_0000 + user);
        format!(r#"{{"core":{{"user":"{user}"}},"radio":{{"address":"192.0.2.8","teid":{teid}}}}}"#)
    };
    let mut lines: Vec<String> = (1..=1000).map(|number| line(number, number)).collect();
    lines[10] = "nonsense".to_owned();
    lines[20] = line(1, 7);
    lines.push(String::new());
    let kind = "application/x-ndjson";
    let answer = asked(&api, "POST", "/v1/bearers", kind, &json!(lines.join("\n")));
    let answer = said(&answer);
    assert_eq!(
        (&answer["added"], &answer["refused"]),
        (&json!(998), &json!(2))
    );
    assert_eq!(answer["ids"].as_array().unwrap().len(), 1000);
    let refusals = answer["refusals"].as_array().unwrap();
    assert_eq!(
        (&refusals[0]["line"], &refusals[1]["line"]),
        (&json!(11), &json!(21))
    );
    // All of them, page by page.
    let (mut from, mut seen) = (json!(0), std::collections::HashSet::new());
    while !from.is_null() {
        let page = asked(
            &api,
            "GET",
            &format!("/v1/bearers?limit=77&from={from}"),
            "",
            &Value::Null,
        );
        let page = said(&page);
        for bearer in page["bearers"].as_array().unwrap() {
            assert!(seen.insert(bearer["id"].to_string()));
        }
        from = page["next"].clone();
    }
    assert_eq!(seen.len(), 998);
    let some = json!({ "ids": answer["ids"].as_array().unwrap()[..5] });
    let gone = asked(
        &api,
        "POST",
        "/v1/bearers/remove",
        "application/json",
        &some,
    );
    assert_eq!(said(&gone)["bearers"].as_array().unwrap().len(), 5);
    let again = asked(
        &api,
        "POST",
        "/v1/bearers/remove",
        "application/json",
        &some,
    );
    assert_eq!(said(&again)["bearers"].as_array().unwrap().len(), 0);
}

#[test]
fn several_are_changed_and_others_are_added() {
    let place = tempfile::tempdir().unwrap();
    let first = api(place.path());
    let kind = "application/x-ndjson";
    let line = |id: Option<u64>, user: u32, gate: bool| {
        let user = std::net::Ipv4Addr::from_bits(0x0a00_0000 + user);
        let radio = json!({ "address": "192.0.2.8", "teid": 7 });
        let mut spec = json!({ "core": { "user": user }, "radio": radio, "gates": { "core": gate, "radio": true } });
        if let Some(id) = id {
            spec["id"] = json!(id);
        }
        spec.to_string()
    };
    let ask = |method: &str, lines: &[String]| {
        let lines = json!(lines.join("\n"));
        let answer = asked(&first, method, "/v1/bearers", kind, &lines);
        assert_eq!(answer.status, 200, "{}", said(&answer));
        said(&answer)
    };
    let lines: Vec<String> = (1..=500).map(|user| line(None, user, true)).collect();
    let ids = ask("POST", &lines)["ids"].clone();
    let id = |at: usize| ids[at].as_u64();
    // Each user becomes the next bearer's, from the last one on; two are added; and some cannot be.
    let mut lines: Vec<String> = (0..500)
        .rev()
        .map(|at| line(id(at), 2 + at as u32, false))
        .collect();
    lines.push(line(None, 1, true));
    lines.push(line(Some(7 << 20 | 1), 600, true));
    lines.push(line(Some(u64::MAX), 600, true));
    lines.push(line(id(3), 601, true));
    lines.push(line(None, 300, true));
    lines.push(line(None, 600, true).replace("gates", "colour"));
    lines.push(line(None, 600, true));
    let answer = ask("PUT", &lines);
    let counts = ["changed", "added", "refused"].map(|name| answer[name].as_u64());
    assert_eq!(counts, [Some(500), Some(2), Some(5)], "{answer}");
    let back: Vec<Value> = answer["ids"].as_array().unwrap()[..500].to_vec();
    assert!(back.iter().rev().eq(ids.as_array().unwrap()));
    let refusals = answer["refusals"].as_array().unwrap();
    for (refusal, (number, why)) in refusals.iter().zip([
        (502, "no such one"),
        (503, "no bearer's number"),
        (504, "changed before"),
        (505, "has the user 10.0.1.44 already"),
        (506, "colour"),
    ]) {
        assert_eq!(refusal["line"], json!(number));
        assert!(
            refusal["error"].as_str().unwrap().contains(why),
            "{refusal}"
        );
    }
    let seen =
        |api: &Api| said(&asked(api, "GET", "/v1/bearers", "", &Value::Null))["bearers"].clone();
    let before = seen(&first);
    assert_eq!(before.as_array().unwrap().len(), 502);
    assert_eq!(before[0]["spec"]["core"]["user"], json!("10.0.0.2"));
    assert_eq!(before[0]["spec"]["gates"]["core"], json!(false));
    drop(first);
    assert_eq!(seen(&api(place.path())), before, "it is kept");
}

/// Whoever writes a field twice meant one of them, and nobody knows which.
#[test]
fn a_field_that_is_there_twice_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let api = api(place.path());
    let (lines, one) = ("application/x-ndjson", "application/json");
    let core = r#""core":{"user":"10.0.0.1"}"#;
    let radio = r#""radio":{"address":"192.0.2.8","teid":7}"#;
    let other = radio.replace(":7", ":8");
    let flow = |pairs: &str| format!(r#"{{{core},{radio},"to_radio":{{"flow":{{{pairs}}}}}}}"#);
    let (id, twice) = (r#""id":513"#, r#""address":"192.0.2.8","teid":7,"teid":8"#);
    for (line, field) in [
        (format!("{{{core},{radio},{other}}}"), "`radio`"),
        (format!("{{{core},\"radio\":{{{twice}}}}}"), "`teid`"),
        (flow(r#""1":2,"1":3"#), "flow 1 "),
        (flow(r#""1":2,"01":3"#), "flow 1 "),
        (format!("{{{id},{core},{radio},{id}}}"), "`id`"),
    ] {
        // Another bearer's line has no fault.
        let body = json!(format!(
            "\n{line}\n{{{radio},\"core\":{{\"user\":\"10.0.0.2\"}}}}"
        ));
        for method in ["PUT", "POST"] {
            let answer = said(&asked(&api, method, "/v1/bearers", lines, &body));
            let refusal = &answer["refusals"][0];
            assert_eq!(refusal["line"], json!(2), "{method} {line}: {answer}");
            let why = refusal["error"].as_str().unwrap();
            let is_known = method == "PUT" || field != "`id`";
            assert!(!is_known || why.contains(field), "{method} {line}: {why}");
            if answer["added"] == json!(1) {
                let gone = json!({ "ids": [answer["ids"][1]] });
                asked(&api, "POST", "/v1/bearers/remove", one, &gone);
            }
        }
        for (method, target) in [("POST", "/v1/bearers"), ("PUT", "/v1/bearers/513")] {
            let question = Question::new(method, target, one, line.clone().into_bytes());
            assert_eq!(api.answer(&question).status, 400, "{method} {line}");
        }
    }
    assert_eq!(api.running().count(), 0);
}

#[test]
fn lines_without_an_end_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let api = api(place.path());
    let kind = "application/x-ndjson";
    let add = |count: usize| {
        asked(
            &api,
            "POST",
            "/v1/bearers",
            kind,
            &json!("1\n".repeat(count)),
        )
    };
    let answer = add((1 << 20) + 1);
    assert_eq!(answer.status, 413);
    assert!(said(&answer)["error"].is_string());
    let answer = said(&add(1000));
    assert_eq!(
        (&answer["added"], &answer["refused"]),
        (&json!(0), &json!(1000))
    );
    assert_eq!(answer["refusals"].as_array().unwrap().len(), 100);
    assert!(answer["refusals"].to_string().contains("invalid type"));
}
