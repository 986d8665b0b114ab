//! Short names with units for matrix cells, from paths and texts of the scenario.

use std::collections::BTreeMap;

use serde_json::{Number, Value};

use crate::format;
use crate::result::Params;

/// Time units and how many nanoseconds they have.
const TIMES: [(&str, f64); 5] = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];

/// Other units: suffix of names, and symbol.
const UNITS: [(&str, &str); 3] = [("percent", "%"), ("hz", "Hz"), ("frames", "frames")];

/// Keys that are ambiguous without the name before them.
const GENERIC: [&str; 4] = ["enabled", "count", "means", "policy"];

/// Short names for the coordinates of a cell: the last key of each path, or as many as needed to distinguish the axes,
/// with the unit of the value: `vm.guest.task.rt.interval` = `500us` becomes `interval_us` = 500.
pub fn short(cell: &BTreeMap<String, String>) -> Params {
    let paths: Vec<&str> = cell.keys().map(String::as_str).collect();
    let mut params = Params::new();
    for (path, text) in cell {
        let (suffix, value) = typed(text);
        params.insert(format!("{}{suffix}", unique_end(path, &paths)), value);
    }
    params
}

/// The shortest end of `path`, in whole keys, that no other path ends with.
pub fn unique_end(path: &str, paths: &[&str]) -> String {
    let keys: Vec<&str> = path.split('.').collect();
    // A generic key has no meaning without its parent.
    let least = if keys.last().is_some_and(|key| GENERIC.contains(key)) { 2 } else { 1 };
    for n in least..keys.len() {
        let end = &keys[keys.len() - n..];
        let ends_so = |other: &&&str| other.split('.').collect::<Vec<_>>().ends_with(end);
        if paths.iter().filter(ends_so).count() == 1 {
            return end.join("_");
        }
    }
    keys.join("_")
}

/// A value as text: unit to add to the name, and value.
pub fn typed(text: &str) -> (String, Value) {
    let text = text.trim().trim_matches('"');
    if let Ok(flag) = text.parse::<bool>() {
        return (String::new(), Value::Bool(flag));
    }
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let as_text = || (String::new(), Value::String(text.to_owned()));
    let Ok(value) = number.parse::<f64>() else { return as_text() };
    if unit.is_empty() {
        return (String::new(), plain(value));
    }
    if let Some((_, ns)) = TIMES.iter().find(|(name, _)| *name == unit) {
        return ("_us".to_owned(), plain((value * ns).round() / 1e3));
    }
    if unit == "%" {
        return ("_percent".to_owned(), plain(value));
    }
    if unit.chars().all(|c| c.is_ascii_alphabetic()) {
        return (format!("_{unit}"), plain(value));
    }
    as_text()
}

/// Integers without a decimal point.
fn plain(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Value::Number(Number::from(value as i64));
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// Name and value of a coordinate for readers. A unit at the end of the name moves to the value: `period_us` = 4000000
/// becomes `period` and `4 s`.
pub fn label(name: &str, value: &Value) -> (String, String) {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if let (Some((stem, end)), Some(number)) = (name.rsplit_once('_'), value.as_f64()) {
        if let Some((_, ns)) = TIMES.iter().find(|(unit, _)| *unit == end) {
            return (stem.to_owned(), format::exact_time(number * ns));
        }
        if let Some((_, unit)) = UNITS.iter().find(|(known, _)| *known == end) {
            return (stem.to_owned(), format!("{text} {unit}"));
        }
    }
    (name.to_owned(), text)
}

/// A cell in words: `interval 500 us, vcpus 4`; empty without a matrix.
pub fn words(params: &Params) -> String {
    let word = |(name, value): (&String, &Value)| {
        let (name, value) = label(name, value);
        format!("{name} {value}")
    };
    params.iter().map(word).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> String {
        let cell = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        serde_json::to_string(&short(&cell)).unwrap()
    }

    #[test]
    fn units_go_into_names() {
        assert_eq!(of(&[("vm.guest.task.rt.interval", "500us")]), r#"{"interval_us":500}"#);
        assert_eq!(of(&[("a.period", "1.5ms")]), r#"{"period_us":1500}"#);
        assert_eq!(of(&[("a.slice", "100ns")]), r#"{"slice_us":0.1}"#);
        assert_eq!(of(&[("a.buffer", "96 frames")]), r#"{"buffer_frames":96}"#);
        assert_eq!(of(&[("a.util", "25%")]), r#"{"util_percent":25}"#);
        assert_eq!(of(&[("a.on", "true"), ("b.n", "4")]), r#"{"n":4,"on":true}"#);
        let means = of(&[("policy.dynamic.means", "rr 8")]);
        assert_eq!(means, r#"{"dynamic_means":"rr 8"}"#);
    }

    #[test]
    fn people_read_units_with_the_value() {
        let said = |pairs: &[(&str, &str)]| {
            let cell = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            words(&short(&cell))
        };
        assert_eq!(said(&[("vm.a.period", "4s"), ("vm.a.vcpus", "4")]), "period 4 s, vcpus 4");
        assert_eq!(
            said(&[("a.buffer", "96 frames"), ("b.util", "1%")]),
            "buffer 96 frames, util 1 %"
        );
        assert_eq!(
            said(&[("costs.exit_ns", "1500"), ("host.tick_hz", "250")]),
            "exit 1.5 us, tick 250 Hz"
        );
        assert_eq!(said(&[("a.slice", "100ns"), ("b.limit", "0us")]), "limit 0 us, slice 100 ns");
        let words = said(&[("b.enabled", "true"), ("c.gap", "exp 5ms"), ("d.version", "4.2")]);
        assert_eq!(words, "b_enabled true, gap exp 5ms, version 4.2");
    }

    #[test]
    fn axes_that_end_alike_get_longer_names() {
        let names = of(&[("load.a.interval", "1ms"), ("vm.g.task.b.interval", "2ms")]);
        assert_eq!(names, r#"{"a_interval_us":1000,"b_interval_us":2000}"#);
    }
}
