//! Bearers, as the command line says them: each word is a value of the JSON that the API takes, by its place in it.

use anyhow::{Context, bail, ensure};
use millrace_ppf::BearerSpec;
use serde_json::{Map, Value, json};

pub(super) const KEYS: &str = "Keys:
  core, radio             ADDRESS/TEID: the tunnel's far end on that side, and by what number it knows the tunnel
  core.user, radio.user   ADDRESS: no tunnel on that side; packets come and go as they are, and are this user's
  user_v6                 ADDRESS: the user's other one, of which the first 64 bits count
  gates                   the sides that packets pass to: core, radio, core,radio or none; core,radio

What is done with what goes towards the radio network; to_core has the same towards the core network:
  to_radio.paused         true: packets are held
  to_radio.flow           QoS flow: kept, removed, or 0 to 63; to_radio.flow.N=M: M for those that come with N
  to_radio.rqi, .ppi      true, and 0 to 7: what containers of that flow say as well that are written here; not in to_core
  to_radio.dscp           of outer headers: 0 to 63, or copied from the user's packet
  to_radio.limit.KEY      kbit_per_second and burst_bytes, packets_per_second and burst_packets

  report.bytes, .packets, .seconds    from how much on usage is reported
  forwards_numbers        true: sequence and N-PDU numbers are handed on
  follows_delivery        true: what became of packets on the radio is followed
  ue                      NUMBER: limited with all others of this user equipment; `millrace ppf ue` adds them

Examples:
  millrace ppf bearer add core=192.0.2.10/4711 radio=198.51.100.20/815
  millrace ppf bearer add core.user=10.45.0.7 radio=2001:db8::20/816 gates=none
  millrace ppf bearer add core.user=10.45.0.8 radio=198.51.100.20/817 to_radio.flow=9 to_radio.limit.kbit_per_second=50000";

/// A bearer.
pub(super) fn bearer(words: &[String]) -> anyhow::Result<BearerSpec> {
    let mut said = Map::new();
    for word in words {
        put_word(&mut said, word)?;
    }
    spec(said)
}

/// Adds what a word says.
pub(super) fn put_word(said: &mut Map<String, Value>, word: &str) -> anyhow::Result<()> {
    let (key, value) = word
        .split_once('=')
        .with_context(|| format!("{word:?} is not KEY=VALUE"))?;
    put(said, key, value)
}

/// What was said, as a bearer.
pub(super) fn spec(said: Map<String, Value>) -> anyhow::Result<BearerSpec> {
    for side in ["core", "radio"] {
        ensure!(
            said.contains_key(side),
            "{side}=ADDRESS/TEID or {side}.user=ADDRESS is missing"
        );
    }
    let said = Value::Object(said).to_string();
    BearerSpec::parse(said.as_bytes()).map_err(anyhow::Error::msg)
}

/// Adds a value by its place.
pub(super) fn put(said: &mut Map<String, Value>, key: &str, value: &str) -> anyhow::Result<()> {
    let read = match key {
        "core" | "radio" => tunnel(value),
        "gates" => gates(value),
        _ => Ok(read(value)),
    };
    let read = read.with_context(|| format!("{key}={value}"))?;
    let mut names = key.split('.');
    let last = names.next_back().unwrap_or_default();
    let mut place = said;
    for name in names {
        let below = place
            .entry(name)
            .or_insert_with(|| Value::Object(Map::new()));
        place = match below {
            Value::Object(below) => below,
            _ => bail!("{name} is given twice"),
        };
    }
    ensure!(
        place.insert(last.to_owned(), read).is_none(),
        "{key} is given twice"
    );
    Ok(())
}

/// A number, true or false, or a text.
fn read(value: &str) -> Value {
    match serde_json::from_str(value) {
        Ok(read @ (Value::Number(_) | Value::Bool(_))) => read,
        _ => value.into(),
    }
}

fn tunnel(value: &str) -> anyhow::Result<Value> {
    let (address, teid) = value.split_once('/').context("a tunnel is ADDRESS/TEID")?;
    let teid = match teid.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => teid.parse(),
    };
    let teid = teid.context("a TEID has 32 bits")?;
    Ok(json!({ "address": address, "teid": teid }))
}

/// The sides that are named.
fn gates(value: &str) -> anyhow::Result<Value> {
    let (mut core, mut radio) = (false, false);
    let named = value.split([',', '+']).filter(|_| value != "none");
    for side in named {
        match side {
            "core" => core = true,
            "radio" => radio = true,
            _ => bail!("core, radio, core,radio or none"),
        }
    }
    Ok(json!({ "core": core, "radio": radio }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_ppf::{FarEnd, Flows, Gates, Limit, Marking};

    fn words(text: &str) -> anyhow::Result<BearerSpec> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        bearer(&words)
    }

    #[test]
    fn words_say_a_bearer() {
        let spec = words("core.user=10.0.0.1 radio=2001:db8::1/0x10 gates=radio").unwrap();
        assert_eq!(spec.core, FarEnd::User([10, 0, 0, 1].into()));
        let radio = FarEnd::Tunnel("2001:db8::1".parse().unwrap(), 16);
        assert_eq!(spec.radio, radio);
        assert!(!spec.gates.core && spec.gates.radio);
        let open = words("core=192.0.2.1/1 radio=192.0.2.2/2").unwrap();
        assert_eq!(open.gates, Gates::default());
    }

    #[test]
    fn words_say_what_is_done() {
        let spec = words(
            "core.user=10.0.0.1 radio=192.0.2.2/2 user_v6=2001:db8:1:: to_core.paused=true to_core.dscp=copied to_radio.flow.1=9 \
             to_radio.flow.2=5 to_radio.limit.kbit_per_second=8 report.bytes=1000 follows_delivery=true",
        )
        .unwrap();
        let said =
            "core=192.0.2.1/1 radio=192.0.2.2/2 to_radio.flow=9 to_radio.rqi=true to_radio.ppi=5";
        let treatment = words(said).unwrap().to_radio.unwrap();
        assert_eq!((treatment.rqi, treatment.ppi), (true, Some(5)));
        let (up, down) = (spec.to_core.unwrap(), spec.to_radio.unwrap());
        assert!(up.paused && up.dscp == Marking::Copied && spec.follows_delivery);
        let Flows::Mapped(map) = down.flow else {
            panic!("{:?}", down.flow)
        };
        assert_eq!((map[1], map[2], map[3]), (Some(9), Some(5), None));
        assert_eq!(down.limit, Limit::bytes(1000));
        assert_eq!(
            (spec.report.unwrap().bytes, spec.user_v6.is_some()),
            (1000, true)
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("core=192.0.2.1/1", "radio=ADDRESS/TEID"),
            ("core=192.0.2.1 radio=192.0.2.2/2", "ADDRESS/TEID"),
            ("core=192.0.2.1/x radio=192.0.2.2/2", "32 bits"),
            ("core=192.0.2/1 radio=192.0.2.2/2", "invalid IP address"),
            (
                "core=192.0.2.1/1 core.user=10.0.0.1 radio=192.0.2.2/2",
                "an address and a teid, or",
            ),
            ("core=192.0.2.1/1 core=192.0.2.1/1", "twice"),
            ("gates=none gates.core=true gates=none", "twice"),
            ("core=192.0.2.1/1 radio=192.0.2.2/2 colour=7", "colour"),
            (
                "core=192.0.2.1/1 radio=192.0.2.2/2 to_core.flow=64",
                "no QoS flow",
            ),
            ("core", "KEY=VALUE"),
            ("gates=all", "core,radio or none"),
        ] {
            let error = format!("{:#}", words(text).unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
