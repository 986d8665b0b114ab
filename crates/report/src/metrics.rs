//! A result as [OpenMetrics](https://prometheus.io/docs/specs/om/open_metrics_spec/) text, for a
//! node exporter's textfile collector or a push gateway. Base units: seconds, ratios from 0 to 1.

use std::collections::BTreeMap;
use std::fmt::Write;

use vcoop_experiment::result::{Document, Key, LatencySeries};
use vcoop_experiment::rounding::significant;
use vcoop_model::recording::Part;

/// Prefix of the name of a probe for all VMs together.
const ALL: &str = "*";

/// A family of metrics: type, unit, help, and its lines.
#[derive(Debug, Default)]
struct Family {
    kind: &'static str,
    unit: &'static str,
    help: String,
    lines: Vec<String>,
}

/// The families by name: the format requires each in one piece.
#[derive(Debug, Default)]
struct Families(BTreeMap<String, Family>);

impl Families {
    fn add(
        &mut self,
        name: &str,
        kind: &'static str,
        unit: &'static str,
        help: &str,
    ) -> &mut Family {
        let new = || Family { kind, unit, help: help.to_owned(), lines: Vec::new() };
        self.0.entry(name.to_owned()).or_insert_with(new)
    }
}

/// The text.
pub fn open_metrics(document: &Document) -> String {
    let mut families = Families::default();
    let run = families.add("vcoop_run", "info", "", "What was run.");
    run.lines.push(format!(
        "vcoop_run_info{} 1",
        labels(&[
            ("version", &document.version),
            ("scenario", &document.scenario),
            ("seed", &document.seed.to_string()),
        ])
    ));
    for series in document.latencies() {
        latency(&mut families, series);
    }
    for series in document.scalars() {
        let Some(value) = series.value else { continue };
        let key = &series.key;
        let (suffix, factor) = base_unit(&key.unit);
        let unit = if suffix == "seconds" || suffix == "ratio" { suffix } else { "" };
        let metric = identifier(&key.metric);
        // A total beside what it is the total of would be counted twice in sums.
        let (scope, of_what) = match key.probe.starts_with(ALL) {
            true => ("all_vms_", " of all VMs"),
            false => ("", ""),
        };
        let name = match suffix {
            "" => format!("vcoop_{scope}{metric}"),
            suffix => format!("vcoop_{scope}{metric}_{suffix}"),
        };
        let help = format!("{}{of_what} ({}), mean over repeats.", key.metric, key.unit);
        let family = families.add(&name, "gauge", unit, &help);
        let line = format!("{name}{} {}", of(key, &[]), significant(value * factor, 9));
        family.lines.push(line);
    }
    if let Some(engine) = &document.engine {
        let name = "vcoop_engine_events";
        let family = families.add(name, "counter", "", "Model events executed.");
        family.lines.push(format!("{name}_total {}", engine.events));
    }
    let mut out = String::new();
    for (name, family) in families.0 {
        let _ = writeln!(out, "# TYPE {name} {}", family.kind);
        if !family.unit.is_empty() {
            let _ = writeln!(out, "# UNIT {name} {}", family.unit);
        }
        let _ = writeln!(out, "# HELP {name} {}", escape(&family.help));
        for line in family.lines {
            out.push_str(&line);
            out.push('\n');
        }
    }
    out.push_str("# EOF\n");
    out
}

fn latency(families: &mut Families, s: &LatencySeries) {
    // A vCPU's waits may have the probe of a task.
    let metric = Some(("metric", s.key.metric.as_str())).filter(|(_, name)| *name != "latency");
    let labels = |more: Option<(&str, &str)>| {
        of(&s.key, &metric.into_iter().chain(more).collect::<Vec<_>>())
    };
    let name = "vcoop_latency_seconds";
    let help = "Time from when a sample was due to its first instruction, all repeats pooled.";
    let family = families.add(name, "summary", "seconds", help);
    let quantiles =
        [("0.5", s.p50), ("0.9", s.p90), ("0.99", s.p99), ("0.999", s.p999), ("0.9999", s.p9999)];
    for (quantile, us) in quantiles {
        if let Some(us) = us {
            let labels = labels(Some(("quantile", quantile)));
            family.lines.push(format!("{name}{labels} {}", seconds(us)));
        }
    }
    let own = labels(None);
    let count = s.count as f64;
    family.lines.push(format!("{name}_sum{own} {}", seconds(s.mean.unwrap_or(0.0) * count)));
    family.lines.push(format!("{name}_count{own} {}", s.count));

    let name = "vcoop_latency_max_seconds";
    let family = families.add(name, "gauge", "seconds", "Largest sample that was seen: no bound.");
    family.lines.extend(s.max.map(|max| format!("{name}{own} {}", seconds(max))));

    let name = "vcoop_latency_missed";
    let family = families.add(name, "counter", "", "Periods that passed without a sample.");
    family.lines.push(format!("{name}_total{own} {}", s.missed));

    let name = "vcoop_latency_part_seconds";
    let help = "Time that samples spent in each part of their way, summed over all of them.";
    let family = families.add(name, "counter", "seconds", help);
    for part in Part::ALL {
        let us = s.parts_mean.get(part.name()).copied().unwrap_or(0.0);
        let labels = labels(Some(("part", part.name())));
        family.lines.push(format!("{name}_total{labels} {}", seconds(us * count)));
    }
}

fn seconds(us: f64) -> f64 {
    significant(us / 1e6, 12)
}

/// The suffix of a unit, and the factor to apply.
fn base_unit(unit: &str) -> (&'static str, f64) {
    match unit {
        "us" => ("seconds", 1e-6),
        "ms" => ("seconds", 1e-3),
        "s" => ("seconds", 1.0),
        "%" => ("ratio", 0.01),
        "1/s" => ("per_second", 1.0),
        "1/min" => ("per_second", 1.0 / 60.0),
        "cpu" => ("cpus", 1.0),
        _ => ("", 1.0),
    }
}

/// A name with only letters, digits and underscores.
fn identifier(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    name.chars().map(plain).collect()
}

/// The labels of a series, and further ones.
fn of(key: &Key, more: &[(&str, &str)]) -> String {
    let mut all: Vec<(String, String)> = vec![
        ("backend".to_owned(), key.backend.clone()),
        ("policy".to_owned(), key.policy.clone()),
    ];
    // Of all VMs together: the rest of the name, if any, is a task of each of them.
    let probe = match key.probe.strip_prefix(ALL) {
        Some(rest) => rest.trim_start_matches('.'),
        None => &key.probe,
    };
    if !probe.is_empty() {
        all.push(("probe".to_owned(), probe.to_owned()));
    }
    all.extend(key.cell.iter().map(|(k, v)| (format!("set_{}", identifier(k)), v.clone())));
    all.extend(more.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    let pairs: Vec<(&str, &str)> = all.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    labels(&pairs)
}

fn labels(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(k, v)| format!("{k}=\"{}\"", escape(v))).collect();
    format!("{{{}}}", pairs.join(","))
}

fn escape(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::{base_unit, escape, identifier};

    #[test]
    fn names_and_values_keep_to_the_format() {
        assert_eq!(identifier("exits.msr_timer"), "exits_msr_timer");
        assert_eq!(escape("a\"b\\c\n"), r#"a\"b\\c\n"#);
        assert_eq!(base_unit("%"), ("ratio", 0.01));
    }
}
