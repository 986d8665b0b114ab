//! Axes: scales, units, ticks.

use vcoop_experiment::format;

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it shows.
    pub label: String,
    /// How values become positions.
    pub scale: Scale,
    /// Unit of the values.
    pub unit: Unit,
    /// The end nearer to the origin; larger than the other end if the axis is reversed.
    pub min: f64,
    /// The other end.
    pub max: f64,
    /// Positions with labels, instead of the scale's own.
    pub ticks: Option<Vec<(f64, String)>>,
    /// Whether ticks have lines across the chart.
    pub grid: bool,
}

/// How values become positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In proportion.
    Linear,
    /// By their logarithm.
    Log,
}

/// Unit of values, and how ticks show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds, written in the unit that suits the value.
    Us,
    /// Seconds, likewise.
    S,
    /// Shares of one, written as per cent.
    Share,
    /// Ratios.
    Ratio,
    /// Numbers.
    Count,
    /// Events a second.
    PerSecond,
}

impl Unit {
    /// A value, as short as possible.
    pub fn short(self, v: f64) -> String {
        match self {
            Self::Us | Self::S if v == 0.0 => "0".to_owned(),
            Self::Us => trim(&format::time(v)),
            Self::S => trim(&format::time(v * 1e6)),
            Self::Share => format!("{} %", trim(&format::digits(v * 100.0))),
            Self::Ratio => format!("{}x", trim(&format::digits(v))),
            Self::Count => trim(&format::digits(v)),
            Self::PerSecond => format!("{} /s", trim(&format::digits(v))),
        }
    }
}

/// Removes needless zeros: `1.00 ms` becomes `1 ms`.
fn trim(text: &str) -> String {
    let (number, unit) = text.split_once(' ').map_or((text, ""), |(n, u)| (n, u));
    let number = if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    };
    if unit.is_empty() { number.to_owned() } else { format!("{number} {unit}") }
}

impl Axis {
    /// An axis of `count` rows (at least one) from top to bottom, labelled by these ticks.
    pub fn rows(count: f64, ticks: Vec<(f64, String)>) -> Self {
        Self::labelled(count.max(1.0), 0.0, ticks)
    }

    /// A linear axis without a title and a grid, labelled by these ticks.
    pub(crate) fn labelled(min: f64, max: f64, ticks: Vec<(f64, String)>) -> Self {
        let (label, scale, unit) = (String::new(), Scale::Linear, Unit::Count);
        Self { label, scale, unit, min, max, ticks: Some(ticks), grid: false }
    }

    /// An axis from 0, or from a power of ten if it is logarithmic, that includes all of these values.
    pub fn over(
        label: &str,
        unit: Unit,
        scale: Scale,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        let fits = |v: &f64| v.is_finite() && (scale == Scale::Linear || *v > 0.0);
        let (mut lo, mut hi) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.into_iter().filter(fits) {
            (lo, hi) = (lo.min(v), hi.max(v));
        }
        let (min, max) = match scale {
            _ if lo > hi => (1.0, 10.0),
            Scale::Linear => (lo.min(0.0), if hi > 0.0 { hi * 1.05 } else { 1.0 }),
            Scale::Log => {
                // Whole halves of a decade, so that a few far values do not squeeze the others.
                let down = (libm::log10(lo) * 2.0).floor() / 2.0;
                let up = (libm::log10(hi) * 2.0).ceil() / 2.0;
                (libm::exp10(down), libm::exp10(if up > down { up } else { up + 0.5 }))
            }
        };
        Self { label: label.to_owned(), scale, unit, min, max, ticks: None, grid: true }
    }

    /// Position of a value between the ends: 0 to 1, or beyond.
    pub fn place(&self, v: f64) -> f64 {
        let of = |v: f64| match self.scale {
            Scale::Linear => v,
            Scale::Log => libm::log10(v.max(f64::MIN_POSITIVE)),
        };
        let span = of(self.max) - of(self.min);
        if span == 0.0 { 0.0 } else { (of(v) - of(self.min)) / span }
    }

    /// Ticks on so many pixels, as far as labels have room: position and label.
    pub(crate) fn words(&self, pixels: f64, across: bool) -> Vec<(f64, String)> {
        let values = match (&self.ticks, self.scale) {
            (Some(ticks), _) => return ticks.clone(),
            (None, Scale::Linear) => linear(self.min, self.max, pixels, across),
            (None, Scale::Log) => log(self.min, self.max, pixels, across),
        };
        values.into_iter().map(|v| (v, self.unit.short(v))).collect()
    }
}

/// Pixels that a tick needs: labels are side by side on one axis, and above each other on the other.
fn room(across: bool) -> f64 {
    if across { 64.0 } else { 34.0 }
}

fn linear(min: f64, max: f64, pixels: f64, across: bool) -> Vec<f64> {
    let most = (pixels / room(across)).clamp(1.0, 10.0);
    let rough = (max - min).abs() / most;
    if rough <= 0.0 || !rough.is_finite() {
        return vec![min];
    }
    let power = libm::exp10(libm::log10(rough).floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|f| f * power).into_iter().find(|s| *s >= rough);
    let step = step.unwrap_or(10.0 * power);
    let (lo, hi) = (min.min(max), min.max(max));
    let first = (lo / step).ceil() as i64;
    (first..).map(|i| i as f64 * step).take_while(|v| *v <= hi * (1.0 + 1e-9)).take(20).collect()
}

fn log(min: f64, max: f64, pixels: f64, across: bool) -> Vec<f64> {
    let (lo, hi) = (min.min(max), min.max(max));
    let decades = libm::log10(hi / lo).max(1e-9);
    let each = pixels / decades;
    let within = |v: &f64| *v >= lo * (1.0 - 1e-9) && *v <= hi * (1.0 + 1e-9);
    let first = libm::log10(lo).floor() as i32;
    let last = libm::log10(hi).ceil() as i32;
    let room = room(across);
    let factors: &[f64] = match each {
        _ if each > 6.0 * room => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
        _ if each > 3.5 * room => &[1.0, 2.0, 5.0],
        _ if each > 2.2 * room => &[1.0, 3.0],
        _ => &[1.0],
    };
    let skip = (room / each).ceil().max(1.0) as i32;
    let powers = (first..=last).filter(|p| p.rem_euclid(skip) == 0);
    powers
        .flat_map(|p| factors.iter().map(move |f| f * libm::exp10(f64::from(p))))
        .filter(within)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_short_and_have_units() {
        assert_eq!(Unit::Us.short(1000.0), "1 ms");
        assert_eq!(Unit::Us.short(0.5), "500 ns");
        assert_eq!(Unit::S.short(0.0), "0");
        assert_eq!(Unit::S.short(20.0), "20 s");
        assert_eq!(Unit::Share.short(0.5), "50 %");
        assert_eq!(Unit::Ratio.short(0.01), "0.01x");
        assert_eq!(Unit::Count.short(100.0), "100");
        assert_eq!(Unit::Count.short(0.0), "0");
    }

    #[test]
    fn ticks_lie_within_and_apart() {
        for (scale, lo, hi) in
            [(Scale::Linear, 0.0, 7.3), (Scale::Log, 3.0, 4e6), (Scale::Log, 10.0, 31.0)]
        {
            let axis = Axis::over("x", Unit::Us, scale, [lo, hi]);
            for pixels in [200.0, 700.0] {
                let words = axis.words(pixels, true);
                assert!((2..=14).contains(&words.len()), "{scale:?} {lo} {hi}: {words:?}");
                let places: Vec<f64> = words.iter().map(|(v, _)| axis.place(*v)).collect();
                assert!(places.iter().all(|p| (-1e-6..=1.0 + 1e-6).contains(p)));
                assert!(places.windows(2).all(|w| (w[1] - w[0]) * pixels > 25.0), "{words:?}");
            }
        }
    }

    #[test]
    fn nothing_to_show_still_has_an_axis() {
        let axis = Axis::over("x", Unit::Us, Scale::Log, [0.0, f64::NAN]);
        assert!(axis.min < axis.max);
    }
}
