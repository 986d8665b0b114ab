//! The content of the dashboard.

use std::collections::BTreeMap;

use vcoop_experiment::repeat_summary::RepeatSummary;
use vcoop_experiment::runner::{Progress, RunId};
use vcoop_experiment::{format, params};
use vcoop_model::plan::{Ns, Plan};
use vcoop_statistics::bins::{Bins, bucket_top};
use vcoop_statistics::carries;

/// Number of parts of the measured time that have a bar each.
pub(super) const PARTS: u64 = 60;

/// Measurements of one probe since the last update of the board.
#[derive(Clone, Debug)]
pub(super) struct ProbeUpdate {
    pub(super) probe: String,
    pub(super) bins: Bins,
    pub(super) max: Ns,
    /// 99 % quantiles of the finished parts of the measured time.
    pub(super) bars: Vec<Ns>,
    /// The current part: its number and its samples.
    part: (u64, Bins),
}

impl ProbeUpdate {
    pub(super) fn new(probe: &str) -> Self {
        let (bins, part) = (Bins::default(), (0, Bins::default()));
        Self { probe: probe.to_owned(), bins, max: 0, bars: Vec::new(), part }
    }

    /// Adds a sample that was due in this part of the measured time.
    pub(super) fn book(&mut self, part: u64, latency: Ns) {
        if part > self.part.0 {
            let bins = std::mem::take(&mut self.part.1);
            if !bins.is_empty() {
                self.bars.push(bins.quantile(P99));
            }
            self.part.0 = part;
        }
        let top = bucket_top(latency, Bins::DIGITS);
        self.bins.add(top, 1);
        self.part.1.add(top, 1);
        self.max = self.max.max(latency);
    }
}

/// The quantile that bars show, in millionths.
const P99: u64 = 990_000;

/// Maximum number of bars in a line.
const MOST_BARS: usize = 200;

/// All measurements so far.
#[derive(Clone, Debug)]
pub(super) struct Board {
    pub(super) title: String,
    pub(super) progress: Progress,
    /// By plan: policy and cell.
    names: Vec<String>,
    /// Sorted by backend, plan and probe.
    pub(super) entries: Vec<Entry>,
    /// Runs in progress: measured time so far, and its total.
    running: BTreeMap<(usize, usize, u32), (Ns, Ns)>,
    /// Bars are parts of a repeat, because there is only one.
    pub(super) by_time: bool,
}

/// Samples by latency.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    bins: Bins,
    max: Ns,
}

/// One probe under one policy on one backend.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    key: (usize, usize, usize),
    pub(super) policy: String,
    pub(super) probe: String,
    /// Finished repeats.
    done: Tally,
    /// Repeats in progress.
    running: BTreeMap<u32, Tally>,
    /// 99 % quantile of each repeat, in order of completion; or of each part of the only repeat.
    p99: Vec<Ns>,
    repeats: u32,
    /// Sums over repeats.
    boosted_pct: f64,
    throttles: f64,
    denied: f64,
}

impl Board {
    pub(super) fn new(title: &str, plans: &[Plan], runs: usize) -> Self {
        let name = |plan: &Plan| {
            let cell = params::words(&params::short(&plan.params));
            if cell.is_empty() {
                plan.policy_name.clone()
            } else {
                format!("{}, {cell}", plan.policy_name)
            }
        };
        Self {
            title: title.to_owned(),
            progress: Progress { done: 0, total: runs },
            names: plans.iter().map(name).collect(),
            entries: Vec::new(),
            running: BTreeMap::new(),
            by_time: plans.iter().all(|plan| plan.repeats <= 1),
        }
    }

    fn entry(&mut self, run: RunId, p: usize, probe: &str) -> &mut Entry {
        let key = (run.column, run.plan, p);
        let at = self.entries.partition_point(|e| e.key < key);
        if self.entries.get(at).is_none_or(|e| e.key != key) {
            let policy = format!("{} {}", run.backend, self.names[run.plan]);
            self.entries.insert(at, Entry::new(key, policy, probe.to_owned()));
        }
        &mut self.entries[at]
    }

    /// Adds the new measurements of a run in progress, which is at this time of the measurement.
    pub(super) fn see(&mut self, run: RunId, (at, of): (Ns, Ns), seen: &mut [ProbeUpdate]) {
        self.running.insert((run.column, run.plan, run.repeat), (at.min(of), of));
        let by_time = self.by_time;
        for (p, seen) in seen.iter_mut().enumerate().filter(|(_, seen)| !seen.bins.is_empty()) {
            let entry = self.entry(run, p, &seen.probe);
            let tally = entry.running.entry(run.repeat).or_default();
            tally.max = tally.max.max(seen.max);
            tally.bins.merge(&std::mem::take(&mut seen.bins));
            if by_time {
                let room = MOST_BARS.saturating_sub(entry.p99.len());
                entry.p99.extend(seen.bars.drain(..).take(room));
            }
        }
    }

    /// The number of finished runs, and those in progress.
    pub(super) fn going(&self) -> String {
        let (done, total) = (self.progress.done, self.progress.total);
        let total = format::count(total as u64, "run");
        let seconds = |ns: Ns| ns as f64 / 1e9;
        match self.running.values().collect::<Vec<_>>().as_slice() {
            [(at, of)] => {
                let (at, of) = (seconds(*at), seconds(*of));
                format!("{done} of {total}, {at:.1} of {of:.1} s of the next")
            }
            _ => format!("{done} of {total}"),
        }
    }

    /// Progress of everything, from 0 to 1.
    pub(super) fn share(&self) -> f64 {
        let going = self.running.values().map(|(at, of)| *at as f64 / (*of).max(1) as f64);
        let all = self.progress.total.max(1) as f64;
        ((self.progress.done as f64 + going.sum::<f64>()) / all).clamp(0.0, 1.0)
    }

    /// Adds a finished repeat.
    pub(super) fn book(&mut self, run: RunId, digest: &RepeatSummary) {
        let scalar = |metric: &str| {
            let of = digest.recording.scalars.iter().filter(|((_, m), _)| m == metric);
            of.map(|(_, s)| s.value).sum::<f64>()
        };
        let (boosted, throttles, denied) =
            (scalar("boosted"), scalar("throttles"), scalar("denied"));
        self.running.remove(&(run.column, run.plan, run.repeat));
        let by_time = self.by_time;
        for (p, latency) in digest.latencies.iter().enumerate() {
            let entry = self.entry(run, p, &latency.probe);
            entry.running.remove(&run.repeat);
            let done = &mut entry.done;
            done.bins.merge(&latency.bins);
            done.max = done.max.max(latency.max_ns);
            // A single repeat has bars over time instead.
            let bars = if by_time { 0 } else { MOST_BARS };
            if latency.count > 0 && entry.p99.len() < bars {
                entry.p99.push(latency.bins.quantile(P99));
            }
            entry.repeats += 1;
            entry.boosted_pct += boosted;
            entry.throttles += throttles;
            entry.denied += denied;
        }
    }

    /// Number of lines of bars.
    pub(super) fn policies(&self) -> usize {
        self.sparklines().len().clamp(1, 12)
    }

    /// Bars of each policy's first guest probe.
    pub(super) fn sparklines(&self) -> Vec<(String, &[u64])> {
        let mut sparks: Vec<((usize, usize), String, &[u64])> = Vec::new();
        for entry in self.entries.iter().filter(|e| !e.probe.starts_with("host.")) {
            let plan = (entry.key.0, entry.key.1);
            if sparks.last().is_none_or(|s| s.0 != plan) {
                let name = format!("{} {}", entry.policy, entry.probe);
                sparks.push((plan, name, &entry.p99));
            }
        }
        sparks.into_iter().map(|(_, name, bars)| (name, bars)).collect()
    }
}

impl Entry {
    fn new(key: (usize, usize, usize), policy: String, probe: String) -> Self {
        Self { key, policy, probe, ..Self::default() }
    }

    /// Samples, quantiles, largest, boosted time, budget: as text. A quantile needs 10 samples beyond it; actions of
    /// policies are known when a repeat has ended.
    pub(super) fn cells(&self) -> Vec<String> {
        let mut bins = self.done.bins.clone();
        self.running.values().for_each(|tally| bins.merge(&tally.bins));
        let max = self.running.values().map(|tally| tally.max).fold(self.done.max, Ns::max);
        let count = bins.count();
        let time = |ns: Ns| format::time(ns as f64 / 1e3);
        let at = |ppm: u64| {
            if carries(count, ppm) { time(bins.quantile(ppm)) } else { "n/a".to_owned() }
        };
        let mut cells = vec![count.to_string(), at(500_000), at(P99), at(999_000), time(max)];
        if self.repeats == 0 {
            cells.extend(["n/a".to_owned(), "n/a".to_owned()]);
            return cells;
        }
        let mean = |sum: f64| sum / f64::from(self.repeats);
        let budget = match (mean(self.throttles), mean(self.denied)) {
            (0.0, 0.0) => "not used up".to_owned(),
            (throttles, _) => format!("{} times/s", format::digits(throttles)),
        };
        cells.push(format!("{} %", format::digits(mean(self.boosted_pct))));
        cells.push(budget);
        cells
    }
}

#[cfg(test)]
mod tests {
    use vcoop_experiment::runner::RunId;

    use super::{Board, ProbeUpdate};

    #[test]
    fn a_run_that_goes_on_is_shown_and_counted_once() {
        let mut board = Board::new("t", &[], 2);
        board.names = vec!["dynamic".to_owned()];
        let run = RunId { backend: "kvm", column: 0, plan: 0, repeat: 0, seed: 1 };
        let mut seen = vec![ProbeUpdate::new("guest.cyclictest")];
        let mut see = |board: &mut Board, at, ns: &[u64]| {
            ns.iter().for_each(|ns| seen[0].book(0, *ns));
            board.see(run, (at, 4_000_000_000), &mut seen);
        };
        see(&mut board, 1_000_000_000, &[1_000; 600]);
        see(&mut board, 2_000_000_000, &[9_000; 400]);
        let cells = board.entries[0].cells();
        assert_eq!(cells[..3], ["1000", "1.00 us", "9.01 us"]);
        assert_eq!((cells[3].as_str(), cells[5].as_str()), ("n/a", "n/a"), "not known yet");
        assert_eq!(board.going(), "0 of 2 runs, 2.0 of 4.0 s of the next");
        assert!((board.share() - 0.25).abs() < 1e-9);
        // The final result replaces what was seen during the run.
        let digest = vcoop_experiment::repeat_summary::RepeatSummary::new(Default::default(), true);
        board.book(run, &digest);
        assert_eq!(board.going(), "0 of 2 runs");
    }
}
