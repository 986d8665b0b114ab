//! The best policy of a cell of a map.

use std::collections::BTreeSet;

use vcoop_experiment::judge::{Change, Effect, Judgement, LEAST_REPEATS, SeriesOwner};
use vcoop_experiment::result::{Interval, Limits};
use vcoop_experiment::verdict::LEAST_LOAD;

use super::{AS_GOOD, Cell, geometric, points};
use crate::manifest::Unreadable;
use crate::parquet_reader::Record;

/// Columns that the verdict needs.
pub(super) const JUDGED: [&str; 6] =
    ["ratio", "ratio_lo", "ratio_hi", "ratio_p99", "ratio_p99_lo", "ratio_p99_hi"];

/// Checks that a sweep keeps what the verdict needs.
pub(super) fn judgeable(all: &[Record]) -> Result<(), Unreadable> {
    for ratio in ["ratio", "ratio_p99"] {
        let has = |r: &Record, end: &str| r.numbers.contains_key(&format!("{ratio}{end}"));
        let mut settled = all.iter().filter(|r| r.repeats >= LEAST_REPEATS);
        let ends = ["_lo", "_hi"].map(|end| all.iter().any(|r| has(r, end)));
        if settled.any(|r| has(r, "")) && ends != [true, true] {
            return Err(Unreadable(format!(
                "which policy is best is told from intervals, and the sweep does not keep them: add \
                 {} to the columns of [keep]",
                JUDGED.join(", ")
            )));
        }
    }
    Ok(())
}

/// A policy's effect on a ratio of one series at a point.
fn change(record: &Record, column: &str, name: &str) -> Option<Change> {
    let number = |end: &str| record.numbers.get(&format!("{column}{end}")).copied();
    let interval = || -> Option<Interval> { Some([number("_lo")?, number("_hi")?]) };
    let name = format!("{} {name}", record.probe);
    Some(Change { ratio: number("")?, interval: interval(), name, values: None })
}

/// A policy's effects at a point, on each series that the baseline has.
fn effects(point: &[&Record], policy: &str, baseline: &str) -> Vec<Effect> {
    let vm = |name: &str| name.split_once('.').map(|(vm, _)| vm.to_owned());
    let measured =
        |load: &Record| point.iter().any(|r| r.is_of_a_guest() && vm(&r.probe) == vm(&load.probe));
    let share = |r: &Record| r.missed as f64 / (r.missed + r.count).max(1) as f64;
    let mut effects = Vec::new();
    for base in point.iter().filter(|r| r.policy == baseline) {
        let same =
            |r: &&&Record| r.policy == policy && r.probe == base.probe && r.metric == base.metric;
        let own = point.iter().find(same);
        let repeats = own.map_or(0, |r| r.repeats);
        let of = |whose| Effect::new(base.probe.clone(), whose, repeats);
        match base.metric.as_str() {
            "latency" => {
                let whose =
                    if base.is_of_a_guest() { SeriesOwner::Guest } else { SeriesOwner::Others };
                effects.push(Effect {
                    // Older datasets leave a series without samples out.
                    missed: [share(base), own.map_or(1.0, |own| share(own))],
                    mean: own.and_then(|own| change(own, "ratio", "mean")),
                    p99: own.and_then(|own| change(own, "ratio_p99", "p99")),
                    ..of(whose)
                });
            }
            "throughput" => {
                let probe = point.iter().any(|r| r.metric == "latency" && r.probe == base.probe);
                let idle = base.numbers.get("value").is_some_and(|value| *value < LEAST_LOAD);
                if let (Some(own), false) = (own, probe || idle) {
                    let others = base.probe.starts_with("host.") || !measured(base);
                    let whose = if others { SeriesOwner::Others } else { SeriesOwner::Own };
                    effects.push(Effect { work: change(own, "ratio", "work"), ..of(whose) });
                }
            }
            _ => {}
        }
    }
    effects
}

/// The best policy of a cell, by the rule of all verdicts.
pub(super) fn best(
    records: &[&Record],
    policies: &[String],
    baseline: &str,
    limits: &Limits,
) -> Cell {
    let mut cell = Cell { points: points(records), ..Cell::default() };
    let numbers: BTreeSet<u32> = records.iter().map(|r| r.point).collect();
    let of = |point: &u32| records.iter().copied().filter(|r| r.point == *point).collect();
    let each: Vec<Vec<&Record>> = numbers.iter().map(of).collect();
    let mut found: Vec<(f64, &str, [Option<f64>; 2])> = Vec::new();
    for policy in policies.iter().filter(|policy| *policy != baseline) {
        let all: Vec<_> = each.iter().map(|point| effects(point, policy, baseline)).collect();
        let effects = Effect::together(&all);
        if effects.iter().any(|effect| (1..LEAST_REPEATS).contains(&effect.repeats)) {
            cell.few = true;
            return cell;
        }
        let judged = Judgement::new(&effects, baseline, limits);
        let Some(gain) = judged.gain.filter(|_| judged.improves) else { continue };
        if judged.too_much().is_empty() {
            let of = |whose: SeriesOwner, change: fn(&Effect) -> Option<&Change>| {
                let own = effects.iter().filter(|effect| effect.whose == whose);
                geometric(&own.filter_map(change).map(|c| c.ratio).collect::<Vec<f64>>())
            };
            let host = of(SeriesOwner::Others, |effect| effect.mean.as_ref());
            found.push((gain, policy, [host, of(SeriesOwner::Own, |effect| effect.work.as_ref())]));
        }
    }
    // Stable: of equals the one that the sweep names first.
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((gain, policy, [cost, own])) = found.first().copied() {
        cell.best = Some(policy.to_owned());
        (cell.value, cell.cost, cell.own) = (Some(gain), cost, own);
        let ties = found[1..].iter().take_while(|(other, ..)| *other <= gain * AS_GOOD);
        cell.ties = ties.map(|(_, policy, _)| (*policy).to_owned()).collect();
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;

    fn work(policy: &str, probe: &str, ratio: f64) -> Record {
        let metric = "throughput".to_owned();
        Record { metric, count: 0, ..record(policy, probe, ratio, ratio, 0) }
    }

    fn best_of(records: &[Record]) -> Cell {
        let policies = ["vanilla", "a", "b", "c"].map(str::to_owned);
        let records: Vec<&Record> = records.iter().collect();
        best(&records, &policies, "vanilla", &Limits::default())
    }

    #[test]
    fn the_best_is_the_lowest_that_others_can_bear() {
        let mut all = vec![
            record("vanilla", "guest.t", 1.0, 1.0, 0),
            record("vanilla", "host.t", 1.0, 1.0, 0),
            record("a", "guest.t", 0.01, 0.02, 0),
            record("a", "host.t", 1.0, 1.2, 0),
            record("b", "guest.t", 0.20, 0.2, 0),
            record("b", "host.t", 1.2, 1.05, 0),
            record("c", "guest.t", 0.205, 0.2, 0),
            record("c", "host.t", 1.0, 1.0, 0),
        ];
        let cell = best_of(&all);
        assert_eq!((cell.best.as_deref(), cell.cost), (Some("b"), Some(1.05)), "a is too dear");
        assert_eq!(cell.ties, ["c"]);
        let works = |probe: &str, b: f64| {
            [("vanilla", 1.0), ("a", 1.0), ("b", b), ("c", 1.0)].map(|(p, x)| work(p, probe, x))
        };
        let with = |more: [Record; 4]| best_of(&[all.clone(), more.to_vec()].concat());
        assert_eq!(with(works("host.build", 0.9)).best.as_deref(), Some("c"), "b stops the build");
        let own = with(works("guest.build", 0.5));
        assert_eq!((own.best.as_deref(), own.own), (Some("b"), Some(0.5)), "the guest's bargain");
        assert_eq!(with(works("other.build", 0.9)).best.as_deref(), Some("c"), "another VM's");
        all[4].missed = 10;
        assert_eq!(best_of(&all).best.as_deref(), Some("c"), "b loses the worst samples");
        all[7].missed = 1_000_000;
        assert_eq!(best_of(&all).best, None, "c starves the host's probe");
        all.remove(7);
        assert_eq!(best_of(&all).best, None, "so that it is not there");
        all.iter_mut().for_each(|r| r.repeats = LEAST_REPEATS - 1);
        assert!(best_of(&all).few);
    }

    #[test]
    fn a_round_trip_of_the_host_through_a_guest_is_the_guests_latency() {
        let ping = |policy, x| Record { guest: Some(true), ..record(policy, "host.ping", x, x, 0) };
        let all = [ping("vanilla", 1.0), ping("a", 0.5), ping("b", 2.0)];
        assert_eq!(best_of(&all).best.as_deref(), Some("a"));
        let older: Vec<Record> = all.iter().map(|r| Record { guest: None, ..r.clone() }).collect();
        assert_eq!(best_of(&older).best, None, "by its name it is the host's");
    }
}
