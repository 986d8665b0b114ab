//! Numbers for readers: three significant digits, and the unit that suits the size.

use crate::rounding::significant;

/// Three significant digits without an exponent: `1.25`, `12.5`, `125`, `1250`, `0.0125`.
pub fn digits(x: f64) -> String {
    let x = significant(x, 3);
    if x == 0.0 || !x.is_finite() {
        return format!("{x}");
    }
    let (mut decimals, mut bound) = (2usize, 10.0);
    while decimals > 0 && x.abs() >= bound {
        decimals -= 1;
        bound *= 10.0;
    }
    let mut bound = 1.0;
    while x.abs() < bound && decimals < 9 {
        decimals += 1;
        bound /= 10.0;
    }
    format!("{x:.decimals$}")
}

/// Microseconds: `850 ns`, `12.5 us`, `2.06 ms`, `1.73 s`.
pub fn time(us: f64) -> String {
    let size = significant(us.abs(), 3);
    let (value, unit) = match size {
        0.0 => (us, "us"),
        _ if size < 1.0 => (us * 1e3, "ns"),
        _ if size < 1e3 => (us, "us"),
        _ if size < 1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    format!("{} {unit}", digits(value))
}

/// The same, `n/a` for `None`.
pub fn maybe_time(us: Option<f64>) -> String {
    maybe(us, time)
}

/// `show` of a value, `n/a` for `None`.
pub fn maybe<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "n/a".to_owned(), show)
}

/// Nanoseconds without rounding, for settings: `100 ns`, `500 us`, `1.5 ms`, `4 s`.
pub fn exact_time(ns: f64) -> String {
    // The last digits are lost if the value was converted from another unit.
    let ns = significant(ns, 12);
    let (size, unit) = match ns.abs() {
        0.0 => (1.0, "us"),
        ..1e3 => (1.0, "ns"),
        ..1e6 => (1e3, "us"),
        ..1e9 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{} {unit}", ns / size)
}

/// A ratio: `0.0122x`, `1.04x`, `12.3x`; below a thousandth and above 99 999 only that.
pub fn ratio(x: f64) -> String {
    match x {
        0.0 => "0x".to_owned(),
        _ if x < 0.001 => "<0.001x".to_owned(),
        // Near 1 two decimals say enough.
        _ if (0.1..10.0).contains(&x) => format!("{x:.2}x"),
        _ if x < 100.0 => format!("{}x", digits(x)),
        _ if x < 99_999.5 => format!("{:.0}x", significant(x, 3)),
        _ => ">99999x".to_owned(),
    }
}

/// A bound of a ratio's interval: like [`ratio`], but shorter if small, and without the `x`.
pub fn bound(x: f64) -> String {
    let text = if (0.001..0.1).contains(&x) { format!("{}", significant(x, 2)) } else { ratio(x) };
    text.trim_end_matches('x').to_owned()
}

/// A value with the unit of its series; microseconds scale.
pub fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "ns" => time(value / 1e3),
        "us" => time(value),
        "ms" => time(value * 1e3),
        _ => format!("{} {}", digits(value), unit_word(unit)),
    }
}

/// The unit of a series, for readers.
pub fn unit_word(unit: &str) -> &str {
    match unit {
        "cpu" => "CPU",
        "1/s" => "/s",
        "1/min" => "/min",
        other => other,
    }
}

/// A count with its noun: `1 repeat`, `5 repeats`.
pub fn count(n: u64, one: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {one}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        let cases = [
            (1.25, "1.25"),
            (12.46, "12.5"),
            (99.96, "100"),
            (1254.0, "1250"),
            (0.012_45, "0.0124"),
            (0.5, "0.500"),
            (0.0, "0"),
            (-3.0, "-3.00"),
        ];
        for (x, text) in cases {
            assert_eq!(digits(x), text);
        }
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!([0, 1, 2].map(|n| count(n, "run")), ["0 runs", "1 run", "2 runs"]);
    }

    #[test]
    fn times_take_their_unit() {
        assert_eq!(time(0.85), "850 ns");
        assert_eq!(time(999.9), "1.00 ms");
        assert_eq!(time(12.34), "12.3 us");
        assert_eq!(time(1_730_000.0), "1.73 s");
        assert_eq!(time(0.0), "0 us");
    }

    #[test]
    fn settings_are_not_rounded() {
        let cases = [
            (0.0, "0 us"),
            (100.0, "100 ns"),
            (2.001 * 1e3, "2.001 us"),
            (500e3, "500 us"),
            (1.5e6, "1.5 ms"),
            (1_234_567.0, "1.234567 ms"),
            (4e9, "4 s"),
            (240e9, "240 s"),
        ];
        for (ns, text) in cases {
            assert_eq!(exact_time(ns), text);
        }
    }

    #[test]
    fn ratios() {
        assert_eq!(ratio(0.012_21), "0.0122x");
        assert_eq!(ratio(1.041), "1.04x");
        assert_eq!(ratio(123.4), "123x");
        assert_eq!(ratio(0.0), "0x");
        assert_eq!(ratio(0.000_4), "<0.001x");
        assert_eq!(ratio(1e9), ">99999x");
        assert_eq!([bound(0.012_21), bound(1.041), bound(0.0)], ["0.012", "1.04", "0"]);
    }
}
