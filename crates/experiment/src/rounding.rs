//! Rounds exact integers to numbers in files, the same on every machine.

/// Nanoseconds as microseconds, with at most three decimals.
pub fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Nanoseconds with a fraction (a mean, an interval bound) as microseconds, rounded to whole
/// nanoseconds.
pub fn us_f(ns: f64) -> f64 {
    ns.round() / 1000.0
}

/// `sum / count` nanoseconds as microseconds, rounded to whole nanoseconds; the sum may be larger
/// than a float can hold exactly.
pub fn mean_us(sum_ns: u128, count: u64) -> f64 {
    let count = u128::from(count.max(1));
    us(u64::try_from((sum_ns + count / 2) / count).unwrap_or(u64::MAX))
}

/// Rounds to `digits` significant digits through the decimal text, which Rust prints exactly.
pub fn significant(x: f64, digits: usize) -> f64 {
    if !x.is_finite() {
        return x;
    }
    let text = format!("{x:.*e}", digits.saturating_sub(1));
    text.parse().unwrap_or(x)
}

/// Digits of a ratio.
const RATIO_DIGITS: usize = 4;
/// Digits of a scalar.
const SCALAR_DIGITS: usize = 6;

/// A ratio, rounded for files.
pub fn ratio(x: f64) -> f64 {
    significant(x, RATIO_DIGITS)
}

/// A scalar, rounded for files.
pub fn scalar(x: f64) -> f64 {
    significant(x, SCALAR_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_have_three_decimals_at_most() {
        assert_eq!(us(1_234_567), 1234.567);
        assert_eq!(us_f(1_234_567.4), 1234.567);
        assert_eq!(mean_us(10, 4), 0.003);
        assert_eq!(mean_us(u128::from(u64::MAX) * 3, 3), us(u64::MAX));
    }

    #[test]
    fn significant_digits() {
        assert_eq!(significant(0.005_678_91, 4), 0.005_679);
        assert_eq!(significant(123_456.0, 4), 123_500.0);
        assert_eq!(significant(-1.0, 4), -1.0);
        assert_eq!(significant(0.0, 4), 0.0);
        assert!(significant(f64::INFINITY, 4).is_infinite());
    }
}
