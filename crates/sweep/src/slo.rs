//! Objectives: `guest.cyclictest.p999 < 100us`, `host.cpu`.
//!
//! Possible names come from a run, not from a list: each series of the scenario is a name, with statistics as suffixes.

use vcoop_experiment::format;
use vcoop_experiment::judge::LimitResult;
use vcoop_experiment::result::{
    Document, Interval, LatencySeries, ScalarSeries, Series, Statistic,
};
use vcoop_model::diagnostic::{Diagnostic, Diagnostics};

/// Statistics of a latency, as suffixes of names.
pub const STATISTICS: [&str; 9] =
    ["mean", "p50", "p90", "p99", "p999", "p9999", "max", "min", "missed"];

/// Units that are multiples of another: unit, unit of series, factor.
const UNITS: [(&str, &str, f64); 13] = [
    ("ns", "us", 1e-3),
    ("us", "us", 1.0),
    ("µs", "us", 1.0),
    ("ms", "us", 1e3),
    ("s", "us", 1e6),
    ("x", "ratio", 1.0),
    ("%", "%", 1.0),
    ("cpu", "cpu", 1.0),
    ("1/s", "1/s", 1.0),
    ("/s", "1/s", 1.0),
    ("1/min", "1/min", 1.0),
    ("/min", "1/min", 1.0),
    ("", "count", 1.0),
];

/// On which side of a limit a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `<`, `<=`: for floats the difference does not matter.
    Below,
    /// `>`, `>=`.
    Above,
}

/// A number of a result: a statistic of a latency, or a scalar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// Its whole name.
    pub name: String,
    /// Unit of its values.
    pub unit: String,
    probe: String,
    metric: String,
    /// Set for a latency.
    statistic: Option<&'static str>,
}

/// A limit that must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Slo {
    /// As the user wrote it.
    pub text: String,
    /// The quantity that is compared with the limit.
    pub quantity: Quantity,
    /// On which side it must be.
    pub side: Side,
    /// The limit, in the quantity's unit.
    pub limit: f64,
}

/// A quantity's value in a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Value, in the quantity's unit.
    pub value: f64,
    /// Its 95 % interval, if there is one.
    pub interval: Option<Interval>,
}

/// All quantities of a result, in its order.
pub fn quantities(document: &Document) -> Vec<Quantity> {
    let mut found: Vec<Quantity> = Vec::new();
    let mut add = |q: Quantity| {
        if !found.iter().any(|known| known.name == q.name) {
            found.push(q);
        }
    };
    for series in &document.series {
        let key = series.key();
        let (probe, metric) = (key.probe.clone(), key.metric.clone());
        match series {
            Series::Latency(_) => {
                let stem = match metric.as_str() {
                    "latency" => probe.clone(),
                    other => format!("{probe}.{other}"),
                };
                for statistic in STATISTICS {
                    let unit = if statistic == "missed" { "count" } else { &key.unit };
                    add(Quantity {
                        name: format!("{stem}.{statistic}"),
                        unit: unit.to_owned(),
                        probe: probe.clone(),
                        metric: metric.clone(),
                        statistic: Some(statistic),
                    });
                }
            }
            Series::Scalar(_) => add(Quantity {
                name: format!("{probe}.{metric}"),
                unit: key.unit.clone(),
                probe,
                metric,
                statistic: None,
            }),
        }
    }
    found
}

impl Quantity {
    /// Finds a name among known ones. `option`: where it was written.
    ///
    /// # Errors
    ///
    /// There is no such quantity; with the nearest names.
    pub fn find(option: &str, name: &str, known: &[Self]) -> Result<Self, Diagnostics> {
        let name = name.trim();
        if let Some(found) = known.iter().find(|q| q.name == name) {
            return Ok(found.clone());
        }
        let names: Vec<&str> = known.iter().map(|q| q.name.as_str()).collect();
        // The name of a probe alone gets a help of its own.
        let prefix = format!("{name}.");
        let inside: Vec<&str> =
            names.iter().copied().filter(|n| n.starts_with(&prefix)).take(20).collect();
        let help = if inside.is_empty() {
            near(name, &names)
        } else {
            format!("name what of it: {}", inside.join(", "))
        };
        Err(wrong(option, name, name, format!("the scenario measures no `{name}`"), help))
    }

    /// Its value under a policy; `None` if it has none, like a quantile of too few samples.
    pub fn read(&self, document: &Document, policy: &str) -> Option<Reading> {
        let is = |key: &vcoop_experiment::result::Key| {
            key.policy == policy && key.probe == self.probe && key.metric == self.metric
        };
        match self.statistic {
            Some(statistic) => {
                let series = document.latencies().find(|s| is(&s.key))?;
                statistic_of(series, statistic)
            }
            None => {
                let ScalarSeries { value, value_ci95, .. } =
                    document.scalars().find(|s| is(&s.key))?;
                Some(Reading { value: (*value)?, interval: *value_ci95 })
            }
        }
    }

    /// A value with its unit.
    pub fn show(&self, value: f64) -> String {
        match self.unit.as_str() {
            "us" => format::time(value),
            "count" => format::digits(value),
            unit => format::with_unit(value, unit),
        }
    }
}

fn statistic_of(s: &LatencySeries, statistic: &str) -> Option<Reading> {
    let (value, interval) = match statistic {
        "max" => (s.max, None),
        "min" => (s.min, None),
        "missed" => (Some(s.missed as f64), None),
        word => s.statistic(Statistic::ALL.into_iter().find(|of| of.name() == word)?),
    };
    value.map(|value| Reading { value, interval })
}

impl Slo {
    /// Parses `NAME < LIMIT`. `option`: where it was written.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what is allowed.
    pub fn parse(option: &str, text: &str, known: &[Quantity]) -> Result<Self, Diagnostics> {
        let shape = "write NAME < LIMIT, like 'guest.cyclictest.p999 < 100us'";
        let Some(at) = text.find(['<', '>']) else {
            let message = "it has no `<` or `>`".to_owned();
            return Err(wrong(option, text, text, message, shape.to_owned()));
        };
        let side = if text[at..].starts_with('<') { Side::Below } else { Side::Above };
        let quantity = Quantity::find(option, &text[..at], known).map_err(|mut e| {
            e.0.iter_mut().for_each(|d| d.snippet = text.to_owned());
            e
        })?;
        let rest = text[at + 1..].trim_start_matches('=').trim();
        let split = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-'));
        let (number, unit) = rest.split_at(split.unwrap_or(rest.len()));
        let unit = unit.trim();
        let Some(number) = number.parse::<f64>().ok().filter(|x| x.is_finite()) else {
            let message = format!("`{rest}` is no limit");
            return Err(wrong(option, text, rest, message, shape.to_owned()));
        };
        // Counts can be 0, times cannot.
        let zero = side == Side::Above || quantity.unit == "count";
        if quantity.statistic.is_some() && (number < 0.0 || number == 0.0 && !zero) {
            let message = format!("{} is never below that", quantity.name);
            return Err(wrong(option, text, rest, message, "give a limit above zero".to_owned()));
        }
        let fits: Vec<&str> =
            UNITS.iter().filter(|(_, of, _)| *of == quantity.unit).map(|(u, ..)| *u).collect();
        let factor = UNITS.iter().find(|(u, of, _)| *u == unit && *of == quantity.unit);
        let Some((_, _, factor)) = factor else {
            let message = match unit {
                "" => format!("`{rest}` has no unit"),
                _ => format!("`{unit}` does not fit: {} is in {}", quantity.name, quantity.unit),
            };
            let listed = match fits.as_slice() {
                [""] => "write a number without a unit".to_owned(),
                units => format!("units of it: {}", units.join(", ")),
            };
            return Err(wrong(option, text, rest, message, listed));
        };
        Ok(Self { text: text.trim().to_owned(), quantity, side, limit: number * factor })
    }

    /// Whether a reading meets the limit.
    pub fn held(&self, reading: Reading) -> LimitResult {
        let good = |x: f64| match self.side {
            Side::Below => x < self.limit,
            Side::Above => x > self.limit,
        };
        LimitResult::of(reading.value, reading.interval, good)
    }

    /// Refuses a lower limit on the total of a VM's copies if `path` is their number: more copies may meet a limit that
    /// fewer break. `option`: where the limit was written.
    ///
    /// # Errors
    ///
    /// It is such a limit.
    pub fn refuse_total(&self, option: &str, path: &str) -> Result<(), Diagnostics> {
        let vm = path.strip_prefix("vm.").and_then(|path| path.strip_suffix(".count"));
        let Quantity { name, unit, probe, statistic, .. } = &self.quantity;
        let own =
            vm.is_some_and(|vm| probe.split('.').next().is_some_and(|of| [vm, "*"].contains(&of)));
        let is_sum = match statistic {
            Some(statistic) => *statistic == "missed",
            None => ["cpu", "1/s", "1/min", "count"].contains(&unit.as_str()),
        };
        if !own || !is_sum || self.side == Side::Below {
            return Ok(());
        }
        let message = format!(
            "{name} is a total over all copies: with more of them ({path}) it may hold where it is broken \
             with fewer"
        );
        let help =
            "limit a latency or a share, or keep the number of copies: --vary host.pcpus=16..1";
        Err(wrong(option, &self.text, name, message, help.to_owned()))
    }

    /// How far a value is beyond the limit, as the natural logarithm of the ratio; at most zero if it holds. A value
    /// without a ratio (zero, or another sign) counts by its distance.
    pub fn excess(&self, value: f64) -> f64 {
        let sign = if self.side == Side::Below { 1.0 } else { -1.0 };
        if value > 0.0 && self.limit > 0.0 {
            return sign * libm::log(value / self.limit);
        }
        sign * (value - self.limit)
    }
}

fn wrong(option: &str, text: &str, part: &str, message: String, help: String) -> Diagnostics {
    let column = text.find(part).map_or(0, |at| text[..at].chars().count());
    Diagnostic {
        file: option.to_owned(),
        line: 1,
        column: column as u32 + 1,
        snippet: text.to_owned(),
        length: part.chars().count().max(1) as u32,
        message,
        help: Some(help),
    }
    .into()
}

/// The names most like a word.
fn near(word: &str, known: &[&str]) -> String {
    let mut sorted: Vec<(usize, &str)> =
        known.iter().map(|name| (strsim::damerau_levenshtein(word, name), *name)).collect();
    sorted.sort();
    let names: Vec<&str> = sorted.iter().take(8).map(|(_, name)| *name).collect();
    format!("nearest: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<Quantity> {
        let one = |name: &str, unit: &str, statistic| Quantity {
            name: name.to_owned(),
            unit: unit.to_owned(),
            probe: "guest.cyclictest".to_owned(),
            metric: "latency".to_owned(),
            statistic,
        };
        vec![
            one("guest.cyclictest.p99", "us", Some("p99")),
            one("guest.cyclictest.missed", "count", Some("missed")),
            one("host.cpu", "%", None),
        ]
    }

    #[test]
    fn limits_are_read_in_the_unit_of_what_they_limit() {
        let slo = Slo::parse("--slo", "guest.cyclictest.p99 < 0.1ms", &known()).unwrap();
        assert_eq!((slo.limit, slo.side), (100.0, Side::Below));
        let slo = Slo::parse("--slo", "host.cpu>=12.5 %", &known()).unwrap();
        assert_eq!((slo.limit, slo.side), (12.5, Side::Above));
        assert_eq!(
            Slo::parse("--slo", "guest.cyclictest.missed < 3", &known()).unwrap().limit,
            3.0
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_could() {
        for (text, message) in [
            ("guest.cyclictst.p99 < 1ms", "nearest: guest.cyclictest.p99"),
            ("guest.cyclictest < 1ms", "name what of it: guest.cyclictest.p99"),
            ("guest.cyclictest.p99 = 1ms", "no `<`"),
            ("guest.cyclictest.p99 < 100", "has no unit"),
            ("guest.cyclictest.p99 < 5%", "`%` does not fit"),
            ("host.cpu < 5ms", "units of it: %"),
            ("guest.cyclictest.missed < 3us", "without a unit"),
            ("host.cpu < x", "is no limit"),
            ("guest.cyclictest.p99 < -1us", "never below that"),
            ("guest.cyclictest.p99 < 0us", "never below that"),
            ("guest.cyclictest.missed < -1", "never below that"),
        ] {
            let found = Slo::parse("--slo", text, &known()).unwrap_err().to_string();
            assert!(found.contains(message) && found.starts_with("--slo:1:"), "{text}: {found}");
        }
    }

    #[test]
    fn lower_limits_of_totals_do_not_go_with_more_copies() {
        let mut known = known();
        let total = Quantity {
            name: "guest.work.throughput".to_owned(),
            unit: "cpu".to_owned(),
            ..known.remove(2)
        };
        let total =
            Quantity { probe: "guest.work".to_owned(), metric: "throughput".to_owned(), ..total };
        let known = [
            total.clone(),
            Quantity { name: "host.cpu".to_owned(), probe: "host".to_owned(), ..total },
        ];
        let refused = |text: &str, path: &str| {
            let slo = Slo::parse("--slo", text, &known).unwrap();
            slo.refuse_total("--slo", path).err().map(|found| found.to_string())
        };
        let found = refused("guest.work.throughput > 0.5cpu", "vm.guest.count").unwrap();
        assert!(found.starts_with("--slo:1:1: guest.work.throughput is a total"), "{found}");
        assert_eq!(refused("guest.work.throughput > 0.5cpu", "host.pcpus"), None);
        assert_eq!(refused("guest.work.throughput > 0.5cpu", "vm.other.count"), None);
        assert_eq!(refused("guest.work.throughput < 4cpu", "vm.guest.count"), None);
        assert_eq!(refused("host.cpu > 0.5cpu", "vm.guest.count"), None);
    }

    #[test]
    fn intervals_decide_how_sure_it_is() {
        let slo = Slo::parse("--slo", "guest.cyclictest.p99 < 100us", &known()).unwrap();
        let held = |value, interval| slo.held(Reading { value, interval });
        assert_eq!(held(90.0, Some([80.0, 95.0])), LimitResult::Yes);
        assert_eq!(held(90.0, Some([80.0, 105.0])), LimitResult::Likely);
        assert_eq!(held(90.0, None), LimitResult::Likely);
        assert_eq!(held(110.0, Some([95.0, 120.0])), LimitResult::Unlikely);
        assert_eq!(held(110.0, Some([105.0, 120.0])), LimitResult::No);
        assert!(slo.excess(50.0) < 0.0 && slo.excess(200.0) > 0.0);
    }
}
