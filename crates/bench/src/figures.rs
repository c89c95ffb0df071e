//! Figures as people read them: three significant digits and a prefix, alike in tables, reports and charts.

use crate::results::Unit;

/// What stands where there is no figure.
pub const NOTHING: &str = "–";

/// Digits that a reader can tell apart at a glance, and more than a trial repeats to.
const DIGITS: usize = 3;
/// From here on a figure in its largest unit is written with an exponent.
const EXPONENT_FROM: f64 = 1e6;

/// A unit to write figures in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// A figure is divided by it.
    pub divisor: f64,
    /// Follows the figure, as `µs` or `k/s`; empty never.
    pub suffix: &'static str,
}

/// The scales of a unit, rising; the first is also for all that is smaller.
const fn scales(unit: Unit) -> &'static [Scale] {
    const fn scale(divisor: f64, suffix: &'static str) -> Scale {
        Scale { divisor, suffix }
    }
    const KIB: f64 = 1024.0;
    match unit {
        Unit::OperationsPerSecond => {
            const {
                &[
                    scale(1.0, "/s"),
                    scale(1e3, "k/s"),
                    scale(1e6, "M/s"),
                    scale(1e9, "G/s"),
                ]
            }
        }
        Unit::BitsPerSecond => {
            const {
                &[
                    scale(1.0, "b/s"),
                    scale(1e3, "kb/s"),
                    scale(1e6, "Mb/s"),
                    scale(1e9, "Gb/s"),
                    scale(1e12, "Tb/s"),
                ]
            }
        }
        Unit::Nanoseconds => {
            const {
                &[
                    scale(1.0, "ns"),
                    scale(1e3, "µs"),
                    scale(1e6, "ms"),
                    scale(1e9, "s"),
                ]
            }
        }
        // 0.5 is half of one processor, and two whole ones are 200 %, as top and pidstat write it.
        Unit::ProcessorShare => const { &[scale(0.01, "%")] },
        Unit::Bytes => {
            const {
                &[
                    scale(1.0, "B"),
                    scale(KIB, "KiB"),
                    scale(KIB * KIB, "MiB"),
                    scale(KIB * KIB * KIB, "GiB"),
                    scale(KIB * KIB * KIB * KIB, "TiB"),
                ]
            }
        }
    }
}

/// The scale that suits a figure. For an axis or a column, that of its largest figure suits all.
#[must_use]
pub fn scale(unit: Unit, value: f64) -> Scale {
    let all = scales(unit);
    let mut best = all[0];
    for pair in all.windows(2) {
        // What rounding would carry over is the next one's: 999 960 ns are 1.00 ms and not 1000 µs.
        let step = pair[1].divisor / pair[0].divisor;
        if value.abs() / pair[0].divisor < step - 0.5 {
            break;
        }
        best = pair[1];
    }
    best
}

/// A figure with its unit, as `1.23 M/s`, `9.41 Gb/s`, `12.3 µs`, `85.0 %`, `4.00 KiB`; [`NOTHING`] for what is no number.
#[must_use]
pub fn show(unit: Unit, value: f64) -> String {
    if !value.is_finite() {
        return NOTHING.to_owned();
    }
    let scale = scale(unit, value);
    format!(
        "{} {}",
        significant(value / scale.divisor, unit == Unit::Bytes),
        scale.suffix
    )
}

/// A ratio, as `1.23×`; [`NOTHING`] for what is no number.
#[must_use]
pub fn ratio(value: f64) -> String {
    if value.is_finite() {
        format!("{}×", significant(value, false))
    } else {
        NOTHING.to_owned()
    }
}

/// Three significant digits, but never fewer than stand before the point, and three behind it at most.
fn significant(value: f64, whole: bool) -> String {
    let size = value.abs();
    if size == 0.0 || (whole && value.fract() == 0.0 && size < 1024.0) {
        return format!("{value:.0}");
    }
    if size >= EXPONENT_FROM {
        return format!("{value:.2e}");
    }
    // The digits before the point after rounding, which may carry: 9.996 is 10.0.
    let carried = |decimals: usize| format!("{size:.decimals$}").find('.');
    let before = (1..DIGITS).find(|&before| carried(DIGITS - before) == Some(before));
    match before {
        Some(1) if size < 0.9995 => format!("{value:.3}"),
        Some(before) => format!("{value:.*}", DIGITS - before),
        None => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_the_unit_that_suits() {
        use Unit::{BitsPerSecond, Bytes, Nanoseconds, OperationsPerSecond, ProcessorShare};
        let cases = [
            (OperationsPerSecond, 0.0, "0 /s"),
            (OperationsPerSecond, 7.0, "7.00 /s"),
            (OperationsPerSecond, 812.4, "812 /s"),
            (OperationsPerSecond, 12_345.0, "12.3 k/s"),
            (OperationsPerSecond, 1_234_567.0, "1.23 M/s"),
            (BitsPerSecond, 9.414e9, "9.41 Gb/s"),
            (BitsPerSecond, 123.0e6, "123 Mb/s"),
            (Nanoseconds, 0.5, "0.500 ns"),
            (Nanoseconds, 0.0123, "0.012 ns"),
            (Nanoseconds, 850.0, "850 ns"),
            (Nanoseconds, 12_340.0, "12.3 µs"),
            (Nanoseconds, 1.5e6, "1.50 ms"),
            (Nanoseconds, 3.6e12, "3600 s"),
            (ProcessorShare, 0.85, "85.0 %"),
            (ProcessorShare, 2.0, "200 %"),
            (ProcessorShare, 0.0004, "0.040 %"),
            (Bytes, 64.0, "64 B"),
            (Bytes, 1000.0, "1000 B"),
            (Bytes, 4096.0, "4 KiB"),
            (Bytes, 1536.0, "1.50 KiB"),
            (Bytes, 3.0e9, "2.79 GiB"),
            (OperationsPerSecond, -1500.0, "-1.50 k/s"),
            (OperationsPerSecond, f64::NAN, NOTHING),
            (Nanoseconds, f64::INFINITY, NOTHING),
            (OperationsPerSecond, 1e20, "1.00e11 G/s"),
        ];
        for (unit, value, text) in cases {
            assert_eq!(show(unit, value), text, "{value} in {unit:?}");
        }
    }

    #[test]
    fn what_rounding_carries_over_is_written_in_the_next_unit() {
        assert_eq!(show(Unit::Nanoseconds, 999.4), "999 ns");
        assert_eq!(show(Unit::Nanoseconds, 999.6), "1.00 µs");
        assert_eq!(show(Unit::Nanoseconds, 9.996), "10.0 ns");
        assert_eq!(show(Unit::Nanoseconds, 99.96), "100 ns");
        assert_eq!(show(Unit::Bytes, 1024.0 * 1023.7), "1.00 MiB");
    }

    #[test]
    fn shown_figures_are_within_half_of_their_last_digit() {
        let mut value = 1.0;
        while value < 1e12 {
            let shown = show(Unit::Nanoseconds, value);
            let (number, suffix) = shown.split_once(' ').expect("a number and its unit");
            let scale = scale(Unit::Nanoseconds, value);
            assert_eq!(suffix, scale.suffix);
            let read = number.parse::<f64>().expect("a number") * scale.divisor;
            assert!((read / value - 1.0).abs() <= 0.005_1, "{value} as {shown}");
            value *= 1.0137;
        }
    }

    #[test]
    fn ratios_are_figures_without_unit() {
        assert_eq!(ratio(1.0), "1.00×");
        assert_eq!(ratio(12.34), "12.3×");
        assert_eq!(ratio(0.954), "0.954×");
        assert_eq!(ratio(0.9996), "1.00×");
        assert_eq!(ratio(f64::NAN), NOTHING);
    }
}
