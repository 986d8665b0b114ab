//! Collects samples into a [`LatencyRecord`], with memory that does not grow with their number.

use vcoop_model::plan::{Plan, ViewPlan};
use vcoop_model::recording::{LatencyRecord, Parts, Scatter, WorstSample};
use vcoop_model::trace_event::SampleEvent;

use crate::attribution::track::{NONE, Sample};
use crate::observe::spans::Spans;
use crate::program::MissedPeriods;
use crate::queue::Ns;

const WORST: usize = LatencyRecord::WORST;

/// Collects the samples of one probe.
#[derive(Debug)]
struct Probe {
    /// Index into the plan's probes.
    index: usize,
    /// When the measurement starts; samples due earlier are warm-up.
    start: Ns,
    record: LatencyRecord,
    ran_instead: Box<[u128]>,
    /// invariant: sorted by latency, largest first; at most [`WORST`].
    worst: Vec<WorstEntry>,
    /// Every sample (due, latency), if a view needs them, and the most that are kept.
    every: Option<(Vec<(Ns, Ns)>, usize)>,
    dropped: u64,
}

/// One of the worst samples.
#[derive(Debug)]
struct WorstEntry {
    latency: Ns,
    due: Ns,
    parts: Parts,
    ran_instead: Box<[Ns]>,
}

impl Probe {
    /// An empty probe; `keep`: how many samples it keeps singly.
    fn new(index: usize, name: &str, start: Ns, labels: usize, keep: Option<u32>) -> Self {
        Self {
            index,
            start,
            record: LatencyRecord::new(name),
            ran_instead: vec![0; labels].into_boxed_slice(),
            worst: Vec::with_capacity(WORST + 1),
            every: keep.map(|most| (Vec::new(), most as usize)),
            dropped: 0,
        }
    }

    /// The same probe, but for waits for a pCPU instead of a task's latency.
    fn of_waits(mut self) -> Self {
        self.record.metric = LatencyRecord::WAIT;
        self
    }

    /// Whether it is for waits.
    fn is_of_waits(&self) -> bool {
        self.record.metric == LatencyRecord::WAIT
    }

    /// Also keeps series over time, in so many slices of the measured time; none if 0.
    fn sliced(mut self, slices: u32, duration: Ns) -> Self {
        self.record = self.record.sliced(slices, duration);
        self
    }

    /// Its name in the plan.
    fn name(&self) -> &str {
        &self.record.probe
    }

    /// Whether a sample due at this time belongs to the measurement.
    fn counts(&self, due: Ns) -> bool {
        due >= self.start
    }

    /// Reports a sample to the observer of the run.
    #[inline]
    fn tell(
        &self,
        labels: &[String],
        sample: &Sample<'_>,
        open: bool,
        now: Ns,
        to: &mut Spans<'_>,
    ) {
        let Some(observer) = to.observer() else { return };
        // Of two that ran as long the first: labels are in the order of the plan.
        let mut most = (0, 0);
        for (i, &ns) in sample.ran_instead.iter().enumerate() {
            if ns > most.1 {
                most = (i, ns);
            }
        }
        let label = labels.get(most.0).map_or("(idle)", String::as_str);
        let told = SampleEvent {
            probe: &LatencyRecord::name(self.name(), self.record.metric),
            due_ns: sample.due,
            latency_ns: sample.latency,
            parts: sample.parts,
            behind: (most.1 > 0).then_some((label, most.1)),
            counts: open || self.counts(sample.due),
            open,
        };
        observer.sample(now, &told);
    }

    /// Adds a sample, unless it belongs to the warm-up.
    fn record(&mut self, sample: &Sample<'_>) {
        if self.counts(sample.due) {
            self.record_open(sample);
        }
    }

    /// Adds a sample that the end of the run cut off, whenever it was due.
    fn record_open(&mut self, sample: &Sample<'_>) {
        self.record.book(sample.latency, sample.parts);
        if let Some(slices) = &mut self.record.slices {
            slices.book(sample.due.saturating_sub(self.start), sample.latency);
        }
        for (sum, &ns) in self.ran_instead.iter_mut().zip(sample.ran_instead) {
            *sum += u128::from(ns);
        }
        if let Some((every, most)) = &mut self.every {
            if every.len() < *most {
                every.push((sample.due.saturating_sub(self.start), sample.latency));
            } else {
                self.dropped += 1;
            }
        }
        let at = self.worst.partition_point(|w| w.latency >= sample.latency);
        if at < WORST {
            self.worst.truncate(WORST - 1);
            let kept = WorstEntry {
                latency: sample.latency,
                due: sample.due.saturating_sub(self.start),
                parts: *sample.parts,
                ran_instead: sample.ran_instead.into(),
            };
            self.worst.insert(at, kept);
        }
    }

    /// Counts periods without a sample that are in the measured time.
    fn missed(&mut self, missed: MissedPeriods) {
        self.record.missed += missed.since(self.start);
    }

    /// The single samples, if a view needs them.
    fn scatter(&mut self) -> Option<Scatter> {
        let (points, _) = self.every.take()?;
        Some(Scatter { probe: self.record.probe.clone(), points, dropped: self.dropped })
    }

    /// The record, with labels by name.
    fn finish(self, labels: &[String]) -> LatencyRecord {
        let mut r = self.record;
        r.ran_instead = named(labels, &self.ran_instead).collect();
        r.worst = self
            .worst
            .iter()
            .map(|kept| {
                let mut ran_instead: Vec<(String, Ns)> = named(labels, &kept.ran_instead).collect();
                ran_instead.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
                WorstSample {
                    due_ns: kept.due,
                    latency_ns: kept.latency,
                    parts: kept.parts,
                    ran_instead,
                }
            })
            .collect();
        r
    }
}

/// All probes of a run, and the labels of threads that can have run instead.
#[derive(Debug)]
pub(crate) struct Probes {
    probes: Vec<Probe>,
    labels: Vec<String>,
    warmup_ns: Ns,
    slices: u32,
    duration_ns: Ns,
}

impl Probes {
    /// No probes yet.
    pub(crate) fn new(plan: &Plan, labels: Vec<String>) -> Self {
        let (slices, duration_ns) = (plan.slices, plan.duration_ns);
        Self { probes: Vec::new(), labels, warmup_ns: plan.warmup_ns, slices, duration_ns }
    }

    /// The labels, without that of an idle pCPU.
    pub(crate) fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The probe at this index of a plan. Copies of a VM share one. Probes are made in the order of the tasks, and
    /// sorted into the plan's order at the end.
    pub(crate) fn of_task(&mut self, plan: &Plan, index: usize) -> u32 {
        let name = &plan.probes[index].probe;
        let kept = plan.views.iter().find_map(|view| match view {
            ViewPlan::Scatter { probe, most } if probe == name => Some(*most),
            _ => None,
        });
        self.named(name, false, |start, labels| Probe::new(index, name, start, labels, kept))
    }

    /// The probe with this name for waits for a pCPU.
    pub(crate) fn of_waits(&mut self, plan: &Plan, name: &str) -> u32 {
        // Behind those of the plan, in their own order.
        let index = plan.probes.len() + self.probes.len();
        let of = |start, labels| Probe::new(index, name, start, labels, None).of_waits();
        self.named(name, true, of)
    }

    fn named(&mut self, name: &str, waits: bool, new: impl FnOnce(Ns, usize) -> Probe) -> u32 {
        let same = self.probes.iter().position(|p| p.is_of_waits() == waits && p.name() == name);
        let place = same.unwrap_or_else(|| {
            let probe = new(self.warmup_ns, self.labels.len() + 1);
            self.probes.push(probe.sliced(self.slices, self.duration_ns));
            self.probes.len() - 1
        });
        place as u32
    }

    /// Counts periods without a sample. A task without a probe has [`NONE`].
    pub(crate) fn missed(&mut self, probe: u32, missed: MissedPeriods) {
        if probe != NONE {
            self.probes[probe as usize].missed(missed);
        }
    }

    /// Adds a sample, and reports it to the observer of the run.
    pub(crate) fn record(&mut self, probe: u32, sample: &Sample<'_>, now: Ns, to: &mut Spans<'_>) {
        if probe != NONE {
            let probe = &mut self.probes[probe as usize];
            probe.tell(&self.labels, sample, false, now, to);
            probe.record(sample);
        }
    }

    /// The same of a sample that the end of the run cut off.
    pub(crate) fn record_open(
        &mut self,
        probe: u32,
        sample: &Sample<'_>,
        now: Ns,
        to: &mut Spans<'_>,
    ) {
        let probe = &mut self.probes[probe as usize];
        probe.tell(&self.labels, sample, true, now, to);
        probe.record_open(sample);
    }

    /// The records in the order of the plan, and the scatters for its views.
    pub(crate) fn finish(mut self, plan: &Plan) -> (Vec<LatencyRecord>, Vec<Scatter>) {
        self.probes.sort_by_key(|p| p.index);
        let of_view = |view: &ViewPlan| match view {
            ViewPlan::Scatter { probe, .. } => Some(probe.clone()),
            ViewPlan::Intervals { .. } => None,
        };
        let scatters = plan.views.iter().filter_map(of_view).filter_map(|probe| {
            self.probes.iter_mut().find(|p| *p.name() == probe).and_then(Probe::scatter)
        });
        let scatters = scatters.collect();
        let records = self.probes.into_iter().map(|p| p.finish(&self.labels)).collect();
        (records, scatters)
    }
}

/// The times that are not zero, by label. The last entry is an idle pCPU.
fn named<'a, T: Copy + PartialEq + From<u8>>(
    labels: &'a [String],
    times: &'a [T],
) -> impl Iterator<Item = (String, T)> + 'a {
    let ran = move |(_, ns): &(_, &T)| **ns != T::from(0);
    let names = labels.iter().map(String::as_str).chain(std::iter::once("(idle)"));
    names.zip(times).filter(ran).map(|(l, ns)| (l.to_owned(), *ns))
}

#[cfg(test)]
mod tests {
    use vcoop_model::recording::Part;

    use super::*;
    use vcoop_testing::rig::builtin;

    #[test]
    fn a_probe_takes_in_what_was_due_after_the_warm_up() {
        let plan = Plan {
            warmup_ns: 100,
            duration_ns: 1_000,
            ..builtin("busy-host-1", &[], &[]).remove(0)
        };
        let mut probes = Probes::new(&plan, vec!["load".into()]);
        let mut nobody = Spans::off();
        let probe = probes.of_waits(&plan, "vm.vcpu0");
        assert_eq!(probes.of_waits(&plan, "vm.vcpu0"), probe, "copies have one series");
        let mut parts = Parts::default();
        parts[Part::WakeToRun as usize] = 30;
        for due in [50, 150, 200] {
            let sample = Sample { due, latency: 30, parts: &parts, ran_instead: &[20, 10] };
            probes.record(probe, &sample, due + 30, &mut nobody);
        }
        // The third is of the warm-up, until 100.
        probes.missed(probe, MissedPeriods { n: 3, last: 120, every: 20 });
        probes.missed(probe, MissedPeriods { n: 1, last: 90, every: 20 });
        probes.missed(NONE, MissedPeriods { n: 1, last: 110, every: 20 });
        let (records, scatters) = probes.finish(&plan);
        let [record] = &records[..] else { panic!("{records:?}") };
        assert_eq!((record.hist.len(), record.missed), (2, 2));
        let others = [("load".to_owned(), 40), ("(idle)".to_owned(), 20)];
        assert_eq!(record.ran_instead, others.into());
        assert_eq!(record.worst[0].due_ns, 50, "counted from the end of the warm-up");
        assert!(scatters.is_empty());
    }
}
