//! Data for a report's charts besides statistics: distributions, parts by size, and series over time.

use vcoop_model::plan::{Ns, Plan, TimelineAction};
use vcoop_model::recording::{InUse, Part, PolicyEvent};
use vcoop_statistics::bins::{Bins, bucket_top};
use vcoop_statistics::carries;

use crate::repeat_summary::{Latency, RepeatSummary};
use crate::result::{
    Detail, Distribution, InUseSeries, OverTime, Place, PolicyEventSeries, SizeBand, Switch,
};
use crate::rounding::{mean_us, scalar, us};

/// Binary digits of buckets of a distribution: sixteen buckets an octave.
const DIGITS: u32 = 5;

/// Detail of a series from its repeats.
pub(super) fn of(records: &[&Latency]) -> Detail {
    Detail {
        distribution: distribution(records),
        by_size: by_size(records),
        over_time: over_time(records),
    }
}

fn distribution(records: &[&Latency]) -> Distribution {
    let all = records.iter().flat_map(|r| r.bins.iter());
    let bins: Bins = all.map(|(ns, n)| (bucket_top(ns, DIGITS), n)).collect();
    let max = records.iter().map(|r| r.max_ns).max().unwrap_or(0);
    // A histogram saturates at a minute; the maximum does not.
    let top = |ns: Ns, last: bool| us(if last { ns.min(max) } else { ns });
    let last = bins.iter().len().saturating_sub(1);
    Distribution {
        le_us: bins.iter().enumerate().map(|(i, (ns, _))| top(ns, i == last)).collect(),
        count: bins.iter().map(|(_, n)| n).collect(),
    }
}

fn by_size(records: &[&Latency]) -> Vec<SizeBand> {
    let band = |bucket: usize| {
        let of = records.iter().filter_map(|r| r.by_log2.get(&(bucket as u8)));
        let (mut count, mut sums) = (0, [0u128; Part::COUNT]);
        for (n, parts) in of {
            count += n;
            sums.iter_mut().zip(parts).for_each(|(sum, ns)| *sum += ns);
        }
        if count == 0 {
            return None;
        }
        let parts = Part::ALL.iter().zip(sums).filter(|(_, sum)| *sum > 0);
        Some(SizeBand {
            // The first octave has zero, too.
            from_us: if bucket == 0 { 0.0 } else { us(1 << bucket) },
            until_us: us(1u64.checked_shl(bucket as u32 + 1).unwrap_or(Ns::MAX)),
            count,
            parts_mean: parts.map(|(p, sum)| (p.name().to_owned(), mean_us(sum, count))).collect(),
        })
    };
    (0..64).filter_map(band).collect()
}

fn over_time(records: &[&Latency]) -> Option<OverTime> {
    let (width_ns, _) = records.iter().find_map(|r| r.slices.as_ref())?;
    let mut slices: Vec<(Ns, Bins)> = Vec::new();
    for (_, record) in records.iter().filter_map(|r| r.slices.as_ref()) {
        for (i, slice) in record.iter().enumerate() {
            if slices.len() == i {
                slices.push((0, Bins::default()));
            }
            slices[i].0 = slices[i].0.max(slice.max_ns);
            slice.bins.iter().for_each(|&(top, n)| slices[i].1.add(top, n.into()));
        }
    }
    let mut out = OverTime { width_us: us(*width_ns), ..OverTime::default() };
    for (max, bins) in slices {
        let count = bins.count();
        let quantile = |ppm: u64| carries(count, ppm).then(|| us(bins.quantile(ppm)));
        out.count.push(count);
        out.p50.push(quantile(500_000));
        out.p99.push(quantile(990_000));
        out.max.push((count > 0).then(|| us(max)));
    }
    Some(out)
}

/// Policy events over time, as means over the repeats.
pub(super) fn policy_events(
    place: impl Fn() -> Place,
    repeats: &[&RepeatSummary],
) -> Vec<PolicyEventSeries> {
    let mut all = Vec::new();
    let Some(first) = repeats.first() else { return all };
    for (index, own) in first.recording.policy_events.iter().enumerate() {
        for event in PolicyEvent::ALL {
            let mut sums = vec![0u64; own.counts.len()];
            for events in repeats.iter().filter_map(|d| d.recording.policy_events.get(index)) {
                let counts = events.counts.iter().map(|counts| u64::from(counts[event as usize]));
                sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
            }
            if sums.iter().all(|sum| *sum == 0) {
                continue;
            }
            let seconds = repeats.len() as f64 * own.width_ns as f64 / 1e9;
            all.push(PolicyEventSeries {
                place: place(),
                vm: own.vm.clone(),
                event: event.name().to_owned(),
                width_us: us(own.width_ns),
                per_s: sums.into_iter().map(|sum| scalar(sum as f64 / seconds)).collect(),
            });
        }
    }
    all
}

/// vCPUs in use over time, as means over the repeats.
pub(super) fn in_use(place: impl Fn() -> Place, repeats: &[&RepeatSummary]) -> Vec<InUseSeries> {
    let Some(first) = repeats.first() else { return Vec::new() };
    let n = repeats.len() as f64;
    let one = |(index, own): (usize, &InUse)| {
        let all = || repeats.iter().filter_map(|d| d.recording.in_use.get(index));
        let mean = |sum: u64, of: f64| scalar(sum as f64 / (n * of));
        let slices = 0..own.used_ns.len();
        let used = |i: usize| mean(all().map(|d| d.used_ns[i]).sum(), own.width_ns as f64);
        let changes = |i: usize| mean(all().map(|d| u64::from(d.changes[i])).sum(), 1.0);
        InUseSeries {
            place: place(),
            vm: own.vm.clone(),
            vcpus: own.vcpus,
            width_us: us(own.width_ns),
            used: slices.clone().map(used).collect(),
            changes: slices.map(changes).collect(),
        }
    };
    first.recording.in_use.iter().enumerate().map(one).collect()
}

/// Changes at set times of the scenario.
pub(super) fn switches(plan: &Plan) -> Vec<Switch> {
    let vm = |vm: u32| plan.vms.get(vm as usize).map_or("?", |vm| vm.name.as_str());
    let one = |event: &vcoop_model::plan::TimelineEvent| {
        let what = match &event.action {
            TimelineAction::Boost { vm: of, on } => {
                let on = if *on { "on" } else { "off" };
                of.map_or_else(|| format!("boosts {on}"), |of| format!("boosts of {} {on}", vm(of)))
            }
            TimelineAction::VcpuPolicy { vm: of, vcpu, .. } => {
                format!("{}/vcpu{vcpu} gets another baseline", vm(*of))
            }
            TimelineAction::Prefer { vm: of, vcpus } if vcpus.is_empty() => {
                format!("{} prefers all vCPUs", vm(*of))
            }
            TimelineAction::Prefer { vm: of, vcpus } => {
                format!("{} prefers {} vCPUs", vm(*of), vcpus.len())
            }
        };
        Switch { at_us: us(event.at_ns) - us(plan.warmup_ns), what }
    };
    plan.timeline.iter().map(one).collect()
}
