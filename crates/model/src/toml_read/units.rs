//! Quantities in files: durations, percentages, CPU lists.

use super::node::{Node, NodeValue};
use super::value::Text;
use crate::dist::{Dist, Ns};

/// A duration in the pattern of a [`Text`].
macro_rules! time_pattern {
    () => {
        r"[0-9]+(\.[0-9]+)?\s*(ns|us|µs|ms|s|m|min|h)"
    };
}

/// A list of CPUs in the pattern of a [`Text`].
macro_rules! cpus_pattern {
    () => {
        r"[0-9]+(\s*-\s*[0-9]+)?(\s*,\s*[0-9]+(\s*-\s*[0-9]+)?)*"
    };
}

pub(crate) use {cpus_pattern, time_pattern};

/// Longest duration accepted: sums of a few of them stay far below 64 bits.
const MAX_DURATION: Ns = 30 * 86_400 * 1_000_000_000;
/// Highest CPU number of a list.
pub(crate) const MAX_CPU: u32 = 1023;

/// A duration of at least `MIN` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AtLeast<const MIN: Ns>(pub(crate) Ns);

/// Any duration, including zero.
pub(crate) type Time = AtLeast<0>;
/// A duration that cannot be zero.
pub(crate) type Span1 = AtLeast<1>;
/// A period. Below a microsecond, events of one task would fill a simulation, and no timer fires that often.
pub(crate) type Period = AtLeast<1_000>;

impl<const MIN: Ns> AtLeast<MIN> {
    /// The shortest.
    pub(crate) const LEAST: Ns = MIN;
}

impl<const MIN: Ns> Text for AtLeast<MIN> {
    const WHAT: &'static str =
        "a duration with its unit, like \"500us\", \"10ms\", \"2.5s\" or \"5m\"";
    const PATTERN: &'static str = concat!(r"^\s*", time_pattern!(), r"\s*$");

    fn parse(text: &str) -> Result<Self, String> {
        let ns = duration(text)?;
        if ns < MIN {
            let least = show(MIN);
            return Err(if ns == 0 {
                "it cannot be 0 here".to_owned()
            } else {
                format!("`{}` is too short: at least {least}", text.trim())
            });
        }
        Ok(Self(ns))
    }
}

/// Nanoseconds of a duration as scenarios write them: `500us`, `2.5ms`, `10s`.
///
/// # Errors
///
/// Why it is not a duration.
pub fn duration(text: &str) -> Result<Ns, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim_start());
    if number.is_empty() {
        return Err(format!("`{text}` is not a duration"));
    }
    let scale: Ns = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" => return Err(format!("`{text}` has no unit")),
        other => return Err(format!("`{other}` is not a unit of time")),
    };
    decimal(number, scale)
        .filter(|ns| *ns <= MAX_DURATION)
        .ok_or_else(|| format!("`{text}` is not a duration from 0 to 30 days in whole nanoseconds"))
}

/// `number * scale` exactly; `None` if it is not a number, not whole after scaling, or too large.
fn decimal(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit()) && !s.is_empty();
    if !digits(whole) || !digits(fraction) || fraction.len() > 18 {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    let ten = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale);
    if part % ten != 0 {
        return None;
    }
    whole.checked_add(u64::try_from(part / ten).ok()?)
}

/// A duration as scenarios write it, in the largest unit that keeps it whole.
pub fn show(ns: Ns) -> String {
    for (scale, unit) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")] {
        if ns >= scale && ns.is_multiple_of(scale) {
            return format!("{}{unit}", ns / scale);
        }
    }
    format!("{ns}ns")
}

/// The first of `values` that equals an earlier one, and a message about it.
pub(crate) fn twice(values: &[Node]) -> Option<(&Node, String)> {
    let earlier = |i: usize| values[..i].iter().find(|other| same(other, &values[i]));
    let (node, other) = (0..values.len()).find_map(|i| Some((&values[i], earlier(i)?)))?;
    let (text, other) = (node.toml(), other.toml());
    let also = if text == other { String::new() } else { format!(", also as {other}") };
    Some((node, format!("{text} is there twice{also}")))
}

/// Whether two values are equal, like "1ms" and "1000us".
fn same(a: &Node, b: &Node) -> bool {
    match (&a.value, &b.value) {
        (NodeValue::Array(a), NodeValue::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (NodeValue::String(x), NodeValue::String(y)) if x != y => {
            let both = |x: Option<Dist>, y: Option<Dist>| x.is_some() && x == y;
            let time = |text: &str| Dist::parse(text).ok();
            let share = |text: &str| Percent::<{ u32::MAX }>::parse(text).ok();
            both(time(x), time(y)) || share(x).is_some_and(|x| share(y) == Some(x))
        }
        (NodeValue::Integer(Some(i)), NodeValue::Float(x))
        | (NodeValue::Float(x), NodeValue::Integer(Some(i))) => *i as f64 == *x,
        _ => a.toml() == b.toml(),
    }
}

/// A share from 0 to `MAX` percent, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percent<const MAX: u32> {
    /// Millionths (100 % is a million).
    pub(crate) ppm: u32,
}

impl<const MAX: u32> Text for Percent<MAX> {
    const WHAT: &'static str = "a percentage, like \"25%\" or \"2.5%\"";
    const PATTERN: &'static str = r"^\s*[0-9]+(\.[0-9]+)?\s*%\s*$";

    fn parse(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let number = trimmed
            .strip_suffix('%')
            .ok_or_else(|| format!("`{trimmed}` lacks its percent sign"))?
            .trim_end();
        let ppm = decimal(number, 10_000).ok_or_else(|| format!("`{trimmed}` is no percentage"))?;
        if ppm > u64::from(MAX) * 10_000 {
            return Err(format!("`{trimmed}` is more than {MAX}%"));
        }
        u32::try_from(ppm).map(|ppm| Self { ppm }).map_err(|_| format!("`{trimmed}` is too large"))
    }
}

/// Shares of up to 100 %, separated by commas, in millionths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Speeds(pub(crate) Vec<u32>);

impl Text for Speeds {
    const WHAT: &'static str = "percentages, like \"60%\" or \"70%, 50%, 40%\"";
    const PATTERN: &'static str = r"^\s*[0-9]+(\.[0-9]+)?\s*%\s*(,\s*[0-9]+(\.[0-9]+)?\s*%\s*)*$";

    fn parse(text: &str) -> Result<Self, String> {
        let speed = |part: &str| Percent::<100>::parse(part).map(|share| share.ppm);
        text.split(',').map(speed).collect::<Result<_, _>>().map(Self)
    }
}

/// Largest difference between the rates of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skew {
    /// Millionths.
    pub(crate) ppm: u32,
}

impl Skew {
    /// `MAXFREQ` of Linux's `include/linux/timex.h`: the most by which a clock is steered.
    const MAX_PPM: u32 = 500;
}

impl Text for Skew {
    const WHAT: &'static str = "parts per million, like \"20ppm\"";
    const PATTERN: &'static str = r"^\s*[0-9]+\s*ppm\s*$";

    fn parse(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let number =
            trimmed.strip_suffix("ppm").ok_or_else(|| format!("`{trimmed}` lacks its `ppm`"))?;
        let ppm = number.trim_end().parse().map_err(|_| format!("`{trimmed}` is no number"))?;
        if ppm > Self::MAX_PPM {
            return Err(format!("Linux steers no clock by more than {}ppm", Self::MAX_PPM));
        }
        Ok(Self { ppm })
    }
}

/// A set of CPUs, ascending; empty means all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList(pub(crate) Vec<u32>);

impl Text for CpuList {
    const WHAT: &'static str = "a CPU list like \"0\", \"0,2-5\" or \"all\"";
    const PATTERN: &'static str = concat!(r"^\s*(all|", cpus_pattern!(), r")\s*$");
    const INTEGERS: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        if text.trim() == "all" {
            return Ok(Self(Vec::new()));
        }
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let part = part.trim();
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |s: &str| {
                s.trim().parse::<u32>().map_err(|_| format!("`{part}` is no CPU number or range"))
            };
            let (first, last) = (number(first)?, number(last)?);
            if last > MAX_CPU {
                return Err(format!("CPU {last} is above {MAX_CPU}, the highest there can be"));
            }
            if first > last {
                return Err(format!("the range `{part}` runs backwards"));
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

/// CPUs without a periodic tick, ascending; empty means none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NohzCpus(pub(crate) Vec<u32>);

impl Text for NohzCpus {
    const WHAT: &'static str = "a CPU list like \"1\" or \"1-7\", or \"none\"";
    const PATTERN: &'static str = concat!(r"^\s*(none|", cpus_pattern!(), r")\s*$");
    const INTEGERS: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "none" => Ok(Self(Vec::new())),
            "all" => Err("one CPU has to keep the time".to_owned()),
            list => CpuList::parse(list).map(|cpus| Self(cpus.0)),
        }
    }
}

impl Text for Dist {
    const WHAT: &'static str = "a duration (\"5us\"), a uniform range (\"5us..20us\") or an exponential \
         (\"exp 4ms\", cut at 10 times its mean, or \"exp 4ms max 20ms\")";
    const PATTERN: &'static str = concat!(
        r"^\s*(exp\s+",
        time_pattern!(),
        r"(\s+max\s+",
        time_pattern!(),
        r")?|",
        time_pattern!(),
        r"(\s*\.\.\s*",
        time_pattern!(),
        r")?)\s*$"
    );

    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(rest) = text.strip_prefix("exp ") {
            let (mean, max) = match rest.split_once(" max ") {
                Some((mean, max)) => (duration(mean)?, duration(max)?),
                None => {
                    let mean = duration(rest)?;
                    (mean, mean.saturating_mul(10).min(MAX_DURATION))
                }
            };
            if mean == 0 {
                return Err("an exponential time cannot have mean 0".to_owned());
            }
            if max < mean {
                return Err(format!("the cut {} is below the mean {}", show(max), show(mean)));
            }
            return Ok(Self::Exp { mean_ns: mean, max_ns: max });
        }
        if let Some((low, high)) = text.split_once("..") {
            let (low, high) = (duration(low)?, duration(high)?);
            if low > high {
                return Err(format!("the range {text} runs backwards"));
            }
            return Ok(Self::Uniform(low, high));
        }
        duration(text).map(Self::Const)
    }
}
