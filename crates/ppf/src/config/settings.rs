//! What the configuration says of the function itself: supervision of paths, errors, what paused bearers hold, outer
//! packets in parts.

use std::net::IpAddr;

use serde::Deserialize;

use super::Config;
use crate::bearer::Side;
use crate::function::Settings;
use crate::hold::HoldLimits;
use crate::paths::Supervision;
use crate::reassembly::ReassemblyLimits;

/// The standard's least time between two questions (TS 29.281, 7.2.1), and what can be asked for.
pub(crate) const INTERVAL_S: u64 = 60;
const INTERVAL_S_MAX: u64 = 86_400;
const RESPONSE_MS_MAX: u64 = 60_000;
const REQUESTS_MAX: u32 = 16;
const ERRORS_PER_SECOND_MAX: u32 = 1_000_000;
const HELD_PACKETS_MAX: u32 = 1 << 24;
/// Bytes of memory have numbers of 32 bits, and what is asked for is there from the beginning.
const HELD_BYTES_MAX: u32 = 1 << 31;
const HELD_MS_MAX: u64 = 3_600_000;

/// Outer packets that come in parts. A packet of IPv4 has a number of 16 bits, and more than those are told apart by nobody.
const PARTED_PACKETS_MAX: usize = 65_536;
/// Bytes of their parts: at least those of one packet.
const PARTED_BYTES_MIN: usize = 65_536;
const PARTED_BYTES_MAX: usize = 1 << 30;
/// And how long they wait: as long as RFC 8200 has it, at most (4.5).
const PARTED_SECONDS_MAX: u64 = 60;

/// What is kept of outer packets of which not all parts have come, by each worker and of each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReassemblyConfig {
    /// So many packets; 0: none is put together.
    pub packets: usize,
    /// Bytes of their parts.
    pub bytes: usize,
    /// How long the first part waits for the last.
    pub seconds: u64,
}

impl Default for ReassemblyConfig {
    fn default() -> ReassemblyConfig {
        let limits = ReassemblyLimits::default();
        ReassemblyConfig {
            packets: limits.packets,
            bytes: limits.bytes,
            seconds: limits.age_ns / 1_000_000_000,
        }
    }
}

impl ReassemblyConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.packets > PARTED_PACKETS_MAX {
            return Err(format!(
                "reassembly: packets is at most {PARTED_PACKETS_MAX}"
            ));
        }
        if !(PARTED_BYTES_MIN..=PARTED_BYTES_MAX).contains(&self.bytes) {
            return Err(format!(
                "reassembly: bytes is from {PARTED_BYTES_MIN} to {PARTED_BYTES_MAX}"
            ));
        }
        if !(1..=PARTED_SECONDS_MAX).contains(&self.seconds) {
            return Err(format!(
                "reassembly: seconds is from 1 to {PARTED_SECONDS_MAX}"
            ));
        }
        Ok(())
    }

    /// The same as the function has it. It has been checked.
    #[must_use]
    pub fn limits(&self) -> ReassemblyLimits {
        ReassemblyLimits {
            packets: self.packets,
            bytes: self.bytes,
            age_ns: self.seconds.saturating_mul(1_000_000_000),
            ..ReassemblyLimits::default()
        }
    }
}

/// How paths are supervised. Without the section they are not: a peer need not answer echoes to be a peer, and one that does not would be
/// said to be down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SupervisionConfig {
    interval_s: u64,
    response_ms: u64,
    requests: u32,
}

impl Default for SupervisionConfig {
    fn default() -> Self {
        let usual = Supervision::default();
        SupervisionConfig {
            interval_s: usual.interval_ns / 1_000_000_000,
            response_ms: usual.response_ns / 1_000_000,
            requests: usual.requests,
        }
    }
}

impl SupervisionConfig {
    fn check(self) -> Result<(), String> {
        let of =
            |name: &str, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
                true => Ok(()),
                false => Err(format!(
                    "supervision.{name} is {value}; it is from {least} to {most}"
                )),
            };
        of("interval_s", self.interval_s, 1, INTERVAL_S_MAX)?;
        of("response_ms", self.response_ms, 1, RESPONSE_MS_MAX)?;
        of("requests", self.requests.into(), 1, REQUESTS_MAX.into())?;
        let asked_ms = self.response_ms * u64::from(self.requests);
        if asked_ms > self.interval_s * 1000 {
            return Err(format!(
                "supervision: {} requests of {} ms each take longer than interval_s, which is {}",
                self.requests, self.response_ms, self.interval_s
            ));
        }
        Ok(())
    }

    /// Whether peers are asked more often than the standard has it.
    pub(crate) fn is_hasty(self) -> bool {
        self.interval_s < INTERVAL_S
    }

    fn supervision(self) -> Supervision {
        Supervision {
            interval_ns: self.interval_s * 1_000_000_000,
            response_ns: self.response_ms * 1_000_000,
            requests: self.requests,
        }
    }
}

/// What paused bearers hold, of the whole function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HoldConfig {
    packets: u32,
    bytes: u32,
    packets_per_bearer: u32,
    bytes_per_bearer: u32,
    age_ms: u64,
}

impl Default for HoldConfig {
    fn default() -> Self {
        let usual = HoldLimits::default();
        HoldConfig {
            packets: usual.packets,
            bytes: usual.bytes,
            packets_per_bearer: usual.packets_per_bearer,
            bytes_per_bearer: usual.bytes_per_bearer,
            age_ms: usual.age_ns / 1_000_000,
        }
    }
}

impl HoldConfig {
    fn check(self) -> Result<(), String> {
        let of = |name: &str, value: u64, most: u64| match value <= most {
            true => Ok(()),
            false => Err(format!("hold.{name} is {value}; it is at most {most}")),
        };
        of("packets", self.packets.into(), HELD_PACKETS_MAX.into())?;
        of("bytes", self.bytes.into(), HELD_BYTES_MAX.into())?;
        of("age_ms", self.age_ms, HELD_MS_MAX)
    }

    /// A worker's part of it: what is of all bearers is shared among workers, as bearers are.
    fn limits(self, workers: u32) -> HoldLimits {
        HoldLimits {
            packets: self.packets / workers,
            bytes: self.bytes / workers,
            packets_per_bearer: self.packets_per_bearer,
            bytes_per_bearer: self.bytes_per_bearer,
            age_ns: self.age_ms * 1_000_000,
        }
    }
}

impl Config {
    pub(super) fn check_settings(&self) -> Result<(), String> {
        let errors = self.errors_per_second;
        if errors > ERRORS_PER_SECOND_MAX {
            return Err(format!(
                "errors_per_second is {errors}; it is at most {ERRORS_PER_SECOND_MAX}"
            ));
        }
        for (name, address) in [
            ("gateway_v4", self.gateway_v4.map(IpAddr::from)),
            ("gateway_v6", self.gateway_v6.map(IpAddr::from)),
        ] {
            let Some(address) = address else { continue };
            let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
            if address.is_unspecified() || address.is_multicast() || is_broadcast {
                return Err(format!("{name} is {address}, which is nobody's address"));
            }
        }
        self.hold.check()?;
        self.supervision.map_or(Ok(()), SupervisionConfig::check)
    }

    /// What each worker's function is told. It has been checked.
    #[must_use]
    pub fn settings(&self) -> Settings {
        // 16 at most.
        let workers = self.workers() as u32;
        let gateways = [
            self.gateway_v4.map(IpAddr::from),
            self.gateway_v6.map(IpAddr::from),
        ];
        let own = [self.own_gateway(true), self.own_gateway(false)];
        Settings {
            errors_per_second: self.errors_per_second.div_ceil(workers),
            gateways: [gateways[0].or(own[0]), gateways[1].or(own[1])],
            supervision: self.supervision.map(SupervisionConfig::supervision),
            hold: self.hold.limits(workers),
            ..Settings::default()
        }
    }

    /// An address of a family that users may know the function by: one on the core network's side, where the data network is, or else any.
    fn own_gateway(&self, is_v4: bool) -> Option<IpAddr> {
        let on = |side: Side| {
            let ports = self.port.iter().filter(move |port| port.on() == side);
            let mut own = ports.flat_map(|port| &port.addresses);
            own.find(|own| own.address.is_ipv4() == is_v4)
                .map(|own| own.address)
        };
        on(Side::Core).or_else(|| on(Side::Radio))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: &str = r#"
        [[port]]
        name = "n3"
        side = "radio"
        memif = { path = "/run/n3.sock" }
        addresses = ["192.0.2.1/24", "2001:db8::1/64"]
        [[port]]
        name = "n6"
        side = "core"
        memif = { path = "/run/n6.sock" }
        addresses = ["203.0.113.1/24"]
    "#;

    fn settings(text: &str) -> Result<Settings, String> {
        Config::parse(&format!("{text}\n{PORTS}")).map(|config| config.settings())
    }

    #[test]
    fn without_a_word_it_is_as_functions_are() {
        let found = settings("").unwrap();
        let usual = Settings {
            gateways: [
                Some([203, 0, 113, 1].into()),
                Some("2001:db8::1".parse().unwrap()),
            ],
            ..Settings::default()
        };
        assert_eq!(found, usual);
        let asked = settings("[supervision]").unwrap();
        assert_eq!(asked.supervision, Some(Supervision::default()));
    }

    #[test]
    fn what_the_file_says_is_what_workers_are_told() {
        let text = r#"
            processors = [0, 1]
            errors_per_second = 5
            gateway_v4 = "192.0.2.254"
            [supervision]
            interval_s = 90
            response_ms = 1500
            requests = 4
            [hold]
            packets = 1000
            bytes = 1000000
            packets_per_bearer = 10
            bytes_per_bearer = 20000
            age_ms = 250
        "#;
        let found = settings(text).unwrap();
        assert_eq!(found.errors_per_second, 3);
        assert_eq!(found.gateways[0], Some([192, 0, 2, 254].into()));
        let wanted = Supervision {
            interval_ns: 90_000_000_000,
            response_ns: 1_500_000_000,
            requests: 4,
        };
        assert_eq!(found.supervision, Some(wanted));
        let wanted = HoldLimits {
            packets: 500,
            bytes: 500_000,
            packets_per_bearer: 10,
            bytes_per_bearer: 20_000,
            age_ns: 250_000_000,
        };
        assert_eq!(found.hold, wanted);
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (text, why) in [
            ("errors_per_second = 10000000", "at most 1000000"),
            ("errors_per_second = -1", "errors_per_second"),
            ("gateway_v4 = \"224.0.0.1\"", "nobody's"),
            ("gateway_v4 = \"2001:db8::1\"", "gateway_v4"),
            ("gateway_v6 = \"::\"", "nobody's"),
            ("[supervision]\ninterval_s = 0", "interval_s is 0"),
            ("[supervision]\nrequests = 0", "requests is 0"),
            ("[supervision]\nresponse_ms = 0", "response_ms is 0"),
            ("[supervision]\ninterval_s = 5", "longer than interval_s"),
            ("[supervision]\ncolour = 5", "colour"),
            ("[hold]\npackets = 100000000", "packets is"),
            ("[hold]\nbytes = 4000000000", "bytes is"),
            ("[hold]\nage_ms = 4000000", "age_ms is"),
        ] {
            let error = settings(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    /// What the documented file shows as defaults is what there is without.
    #[test]
    fn documented_defaults_are_the_defaults() {
        let text = include_str!("../../ppf.toml");
        let shown = Config::parse(text).unwrap();
        let usual = Config::default();
        assert_eq!(shown.errors_per_second, usual.errors_per_second);
        assert_eq!((shown.hold, shown.supervision), (usual.hold, None));
        let lines = text.lines().map(|line| match line {
            "# [supervision]" | "# interval_s = 60" | "# response_ms = 3000" | "# requests = 3" => {
                &line[2..]
            }
            other => other,
        });
        let asked: Vec<&str> = lines.collect();
        let asked = Config::parse(&asked.join("\n")).unwrap();
        assert_eq!(asked.supervision, Some(SupervisionConfig::default()));
        assert!(text.contains("# interval_s = 60") && text.contains("# requests = 3"));
    }
}
