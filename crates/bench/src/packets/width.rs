//! How narrow the range becomes in which a search looks for a rate.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

const SHARES: [f64; 2] = [0.000_001, 0.5];
const RATES: [f64; 2] = [1.0, 1e6];
/// What a number of packets a second ends with.
const A_SECOND: &str = "/s";

/// As a share of the rate, `0.01`, or as packets a second, `100/s`: whatever the rate is, so that what is slow and what is fast are told
/// to the same number of packets, as steps of a generator by hardware are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Width {
    /// Of the rate, above which packets were lost.
    Share(f64),
    /// Packets a second.
    Rate(f64),
}

impl Width {
    /// How far two rates may be apart of which one holds and `lost` does not.
    pub(super) fn of(self, lost: f64) -> f64 {
        match self {
            Width::Share(share) => share * lost,
            Width::Rate(rate) => rate,
        }
    }

    /// For people: `1 %`, of the rate, or `100 packets/s`.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            // What is a whole number of millionths has four decimals as a percentage.
            Width::Share(share) => {
                let percent = format!("{:.4}", share * 100.0);
                let percent = percent.trim_end_matches('0').trim_end_matches('.');
                format!("{percent} %")
            }
            Width::Rate(rate) => format!("{rate} packets/s"),
        }
    }
}

impl Default for Width {
    fn default() -> Width {
        Width::Share(0.01)
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Width::Share(share) => write!(f, "{share}"),
            Width::Rate(rate) => write!(f, "{rate}{A_SECOND}"),
        }
    }
}

impl FromStr for Width {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Width> {
        let (number, [least, most]) = match text.strip_suffix(A_SECOND) {
            Some(number) => (number, RATES),
            None => (text, SHARES),
        };
        let number = number.parse().unwrap_or(f64::NAN);
        ensure!(
            (least..=most).contains(&number),
            "a width is a share of the rate from {} to {}, as 0.01, or packets a second from {} to {}, as 100/s, and not {text}",
            SHARES[0],
            SHARES[1],
            RATES[0],
            RATES[1]
        );
        Ok(match most == RATES[1] {
            true => Width::Rate(number),
            false => Width::Share(number),
        })
    }
}

impl From<Width> for String {
    fn from(width: Width) -> String {
        width.to_string()
    }
}

impl TryFrom<String> for Width {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Width> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_width_is_a_share_or_packets_a_second_and_is_read_as_it_is_written() {
        for (text, width, words) in [
            ("0.01", Width::Share(0.01), "1 %"),
            ("0.000001", Width::Share(1e-6), "0.0001 %"),
            ("0.5", Width::Share(0.5), "50 %"),
            ("100/s", Width::Rate(100.0), "100 packets/s"),
            ("1e6/s", Width::Rate(1e6), "1000000 packets/s"),
        ] {
            let read: Width = text.parse().unwrap();
            assert_eq!((read, read.words().as_str()), (width, words));
            assert_eq!(read.to_string().parse::<Width>().unwrap(), read);
            let kept = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Width>(&kept).unwrap(), read);
        }
        for wrong in [
            "",
            "/s",
            "1",
            "0",
            "-0.1",
            "nan",
            "0.0000001",
            "100",
            "0.5/s",
            "1e7/s",
            "inf/s",
            "100 /s",
            "1%",
        ] {
            let told = wrong.parse::<Width>().unwrap_err().to_string();
            assert!(
                told.ends_with(&format!("as 100/s, and not {wrong}")),
                "{told}"
            );
        }
        assert_eq!(Width::default().of(2e6), 2e4);
        assert_eq!(Width::Rate(100.0).of(2e6), 100.0);
    }
}
