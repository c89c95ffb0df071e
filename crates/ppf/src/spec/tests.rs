use super::*;

fn spec(text: &str) -> Result<BearerSpec, String> {
    BearerSpec::parse(text.as_bytes())
}

const RELAY: &str =
    r#"{"core":{"address":"192.0.2.1","teid":7},"radio":{"address":"2001:db8::1","teid":8}}"#;

#[test]
fn a_bearer_is_read_as_it_is_written() {
    let plain = r#"{"core":{"user":"10.0.0.1"},"radio":{"address":"192.0.2.9","teid":9},"gates":{"core":false}}"#;
    let all = concat!(
        r#"{"core":{"user":"10.0.0.1"},"radio":{"address":"192.0.2.9","teid":9},"user_v6":"2001:db8::","gates":{"core":true,"radio":false},"#,
        r#""to_core":{"paused":true,"flow":"removed","dscp":"copied","limit":{"kbit_per_second":8000,"burst_bytes":20000,"#,
        r#""packets_per_second":100,"burst_packets":10}},"to_radio":{"flow":{"1":9,"63":0},"dscp":46},"#,
        r#""report":{"packets":7,"bytes":8,"seconds":9},"forwards_numbers":true,"follows_delivery":true,"ue":7}"#,
    );
    let least = concat!(
        r#"{"core":{"user":"10.0.0.1"},"radio":{"address":"192.0.2.9","teid":9},"#,
        r#""to_radio":{"flow":0,"limit":{"kbit_per_second":1}}}"#
    );
    let said = RELAY.replace(
        "}}",
        r#"},"to_radio":{"flow":9,"rqi":true,"ppi":7},"to_core":{"flow":9}}"#,
    );
    for text in [RELAY, plain, all, least, &said] {
        let read = spec(text).unwrap();
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(spec(&written).as_ref(), Ok(&read), "{written}");
        assert_eq!(BearerSpec::of(&read.bearer()), read);
    }
}

#[test]
fn what_cannot_be_is_said() {
    let end = r#"{"address":"192.0.2.1","teid":7}"#;
    for (core, why) in [
        (r#"{"address":"192.0.2.1","teid":0}"#, "from 1 to"),
        (r#"{"address":"192.0.2.1"}"#, "an address and a teid"),
        (r#"{"user":"10.0.0.1","teid":7}"#, "an address and a teid"),
        (r#"{"user":"0.0.0.0"}"#, "nobody's"),
        (r#"{"user":"ff02::1"}"#, "nobody's"),
        (r#"{"user":"10.0.0.1","colour":7}"#, "colour"),
    ] {
        let error = spec(&format!(r#"{{"core":{core},"radio":{end}}}"#)).unwrap_err();
        assert!(error.contains(why), "{core}: {error}");
    }
    for (treatment, why) in [
        (r#""to_core":{"flow":9,"rqi":true}"#, "radio network only"),
        (r#""to_core":{"flow":9,"ppi":0}"#, "radio network only"),
        (r#""to_radio":{"rqi":true}"#, "missing"),
        (r#""to_radio":{"flow":"removed","ppi":1}"#, "missing"),
        (r#""to_radio":{"flow":{"1":2},"ppi":1}"#, "missing"),
        (r#""to_radio":{"flow":9,"ppi":8}"#, "from 0 to 7"),
    ] {
        let error = spec(&RELAY.replace("}}", &format!("}},{treatment}}}"))).unwrap_err();
        assert!(error.contains(why), "{treatment}: {error}");
    }
    let user = r#"{"user":"10.0.0.1"}"#;
    let error = spec(&format!(r#"{{"core":{user},"radio":{user}}}"#)).unwrap_err();
    assert!(error.contains("one side"), "{error}");
}

#[test]
fn what_is_usual_takes_no_room() {
    let spec = spec(&RELAY.replace(
        "}}",
        r#"},"to_core":{"paused":false,"flow":"kept","dscp":0,"limit":{}},"report":{"bytes":0}}"#,
    ));
    let spec = spec.unwrap();
    assert!(spec.to_core.is_none() && spec.report.is_none());
    assert_eq!(
        serde_json::to_string(&spec).unwrap(),
        RELAY.replace("}}", r#"},"gates":{"core":true,"radio":true}}"#)
    );
}

#[test]
fn rates_are_of_kilobits() {
    let limited = |limit: &str| {
        let text = format!(r#"{{"limit":{limit}}}"#);
        serde_json::from_str::<Treatment>(&text).map(|treatment| treatment.limit)
    };
    let limit = limited(r#"{"kbit_per_second":10000}"#).unwrap();
    assert_eq!(limit, Limit::bytes(1_250_000));
    let limit = limited(r#"{"packets_per_second":1000,"burst_packets":3}"#).unwrap();
    assert_eq!(
        (
            limit.packets_per_second,
            limit.burst_packets,
            limit.bytes_per_second
        ),
        (1000, 3, 0)
    );
    for (text, why) in [
        (r#"{"kbit_per_second":0}"#, "at least 1"),
        (r#"{"burst_bytes":9}"#, "kbit_per_second, which is missing"),
        (r#"{"kbit_per_second":1,"burst_bytes":0}"#, "at least 1"),
        (
            r#"{"burst_packets":9}"#,
            "packets_per_second, which is missing",
        ),
        (r#"{"kbit_per_second":18446744073709551615}"#, "too high"),
    ] {
        let error = limited(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn treatments_that_cannot_be_are_said() {
    for (treatment, why) in [
        (r#"{"flow":64}"#, "no QoS flow"),
        (r#"{"flow":"best"}"#, "\"kept\""),
        (r#"{"flow":{"1":64}}"#, "no QoS flow"),
        (r#"{"flow":{"x":6}}"#, "no number"),
        (r#"{"flow":[1]}"#, "flow is"),
        (r#"{"dscp":64}"#, "0 to 63"),
        (r#"{"dscp":"high"}"#, "\"copied\""),
        (r#"{"colour":7}"#, "colour"),
    ] {
        let error = spec(&RELAY.replace("}}", &format!(r#"}},"to_core":{treatment}}}"#)));
        let error = error.unwrap_err();
        assert!(error.contains(why), "{treatment}: {error}");
    }
    let error = spec(&RELAY.replace("}}", r#"},"user_v6":"2001:db8::1"}"#)).unwrap_err();
    assert!(error.contains("second address"), "{error}");
}
