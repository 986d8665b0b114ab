//! Differences of a run's counters between two moments.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use vcoop_guest::layout::{STATS, TaskStats};
use vcoop_model::plan::virt::GuestIdle;
use vcoop_model::plan::{Ns, Plan, Program, VmPlan};
use vcoop_model::recording::Recording;
use vcoop_sources::trace::{Meter, Recorder, Tid};
use vcoop_threads::tsc::Clock;
use vcoop_threads::{RunTime, preemptions, run_time};

use crate::host_task::Progress;
use crate::lab_vm::LabVm;
use crate::rates::Rates;
use crate::vcpu::Exits;
use crate::virt::is_exitless;

/// Sources of the counters.
#[derive(Debug)]
pub(crate) struct Counters<'a> {
    pub(crate) progress: &'a [Progress],
    pub(crate) exits: &'a [Exits],
    pub(crate) vms: &'a [LabVm],
    pub(crate) plan: &'a Plan,
    pub(crate) injector: &'a AtomicI32,
    pub(crate) rates: &'a Rates,
}

/// A counter whose growth is a scalar of the result.
#[derive(Clone, Copy, Debug)]
struct Total {
    count: f64,
    /// What one of it counts for in the result's unit.
    weight: f64,
    unit: &'static str,
}

/// Counters at one moment; a result is the difference of two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    now: Ns,
    /// By probe and metric.
    all: BTreeMap<(String, String), Total>,
    /// Times of each VM's vCPUs together.
    vms: Vec<RunTime>,
}

impl Totals {
    /// Adds to what is counted for a metric of a probe.
    fn add(&mut self, probe: &str, metric: &str, unit: &'static str, weight: f64, count: u64) {
        let new = Total { count: 0.0, weight, unit };
        self.all.entry((probe.to_owned(), metric.to_owned())).or_insert(new).count += count as f64;
    }
}

/// Compares the trace with what the kernel counted for the vCPUs' threads in the same time.
pub(crate) fn compare(
    plan: &Plan,
    (a, b): (&Totals, &Totals),
    trace: &Recorder,
    (vcpus, clock): (&[Vec<Tid>], &Clock),
    recording: &mut Recording,
) {
    let [first, last] = trace.timeline().meters() else { return };
    let (mut exec, mut wait) = ([0, 0], [0, 0]);
    let since = |read: fn(&Meter) -> u64, tid: &Tid| {
        let at = |meters: &BTreeMap<Tid, Meter>| meters.get(tid).map_or(0, read);
        clock.to_ns(at(last).saturating_sub(at(first)))
    };
    for (i, (vm, tids)) in plan.vms.iter().zip(vcpus).enumerate() {
        let waited: Ns = tids.iter().map(|tid| since(|m| m.wait, tid)).sum();
        let ns = (b.now - a.now).max(1) as f64 * tids.len().max(1) as f64;
        recording.put(&vm.name, "steal_trace", "%", 100.0 * waited as f64 / ns);
        wait[0] += waited;
        exec[0] += tids.iter().map(|tid| since(|m| m.exec, tid)).sum::<Ns>();
        wait[1] += b.vms[i].waited_ns.saturating_sub(a.vms[i].waited_ns);
        exec[1] += b.vms[i].ran_ns.saturating_sub(a.vms[i].ran_ns);
    }
    for (metric, [trace, schedstat]) in
        [("trace_vs_schedstat_exec", exec), ("trace_vs_schedstat_wait", wait)]
    {
        if schedstat > 0 {
            recording.put("lab", metric, "%", 100.0 * trace as f64 / schedstat as f64);
        }
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn cpu(tid: i32) -> RunTime {
    if tid == 0 { RunTime::default() } else { run_time(tid) }
}

impl Counters<'_> {
    /// What is counted until now.
    pub(crate) fn totals(&self, now: Ns) -> Totals {
        let mut totals = Totals { now, ..Totals::default() };
        let injector = cpu(self.injector.load(Ordering::Acquire));
        totals.add("lab", "injector_cpu", "%", 1.0, injector.ran_ns);
        let tasks = &self.plan.host_tasks;
        for (task, progress) in tasks.iter().zip(self.progress) {
            let probe = format!("host.{}", task.label);
            let serves = matches!(task.program, Program::Serve { .. });
            if serves || task.program.servers().next().is_some() {
                let metric = if serves { "served" } else { "calls" };
                totals.add(&probe, metric, "1/s", 1.0, load(&progress.calls));
            }
            let ran_ns = cpu(progress.tid.load(Ordering::Acquire)).ran_ns;
            totals.add(&probe, "throughput", "cpu", 1.0, ran_ns);
            // Work done also depends on caches and clock rates, which CPU time does not show. A stressor does not
            // report its work.
            if !tasks.iter().any(|t| t.label == task.label && t.stress_ng.is_some()) {
                totals.add(&probe, "work", "1/s", 1e-6, load(&progress.done));
            }
        }
        for ((vm, exits), plan) in self.vms.iter().zip(self.exits).zip(&self.plan.vms) {
            self.of_vm(&mut totals, vm, exits, plan);
        }
        totals
    }

    fn of_vm(&self, totals: &mut Totals, vm: &LabVm, exits: &Exits, plan: &VmPlan) {
        let name = plan.name.as_str();
        let share = 1.0 / plan.vcpu_cpus.len().max(1) as f64;
        let mut time = RunTime::default();
        for v in &vm.vcpus {
            let own = cpu(v.tid());
            time.ran_ns += own.ran_ns;
            time.waited_ns += own.waited_ns;
            totals.add(name, "preemptions", "1/s", 1.0, preemptions(v.tid()));
            let s = v.stats();
            totals.add(name, "boosts", "1/s", 1.0, s.boosts);
            totals.add(name, "throttles", "1/s", 1.0, s.throttles);
            totals.add(name, "denied", "1/s", 1.0, s.denied);
            totals.add(name, "notified", "1/s", 1.0, s.notified);
            totals.add(name, "boosted", "%", share, v.boosted_ns(own));
            if self.plan.policy.repays() {
                totals.add(name, "lowered", "levels", share, s.lowered_ns);
            }
        }
        totals.add(name, "exitless_timer", "count", 1.0, is_exitless(self.plan, plan).into());
        totals.add(name, "cpu", "cpu", 1.0, time.ran_ns);
        totals.vms.push(time);
        let mask = vm.masked();
        if let Some(mask) = mask {
            totals.add(name, "mask_changes", "1/min", 1.0, mask.changes);
            totals.add(name, "vcpus_used", "vcpu", 1.0, mask.used_ns(totals.now));
        }
        let polls = matches!(plan.virt.idle.guest, GuestIdle::Poll | GuestIdle::Haltpoll);
        for words in &vm.control().vcpu[..vm.vcpus.len()] {
            if polls {
                totals.add(name, "guest_polls.won", "1/s", 1.0, load(&words.polls_won));
                totals.add(name, "guest_polls.lost", "1/s", 1.0, load(&words.polls_lost));
            }
            if mask.is_some() {
                totals.add(name, "pushed_off", "1/s", 1.0, load(&words.pushed));
            }
        }
        for (exit, counter) in exits.by_name() {
            totals.add(name, &format!("exits.{exit}"), "1/s", 1.0, load(counter));
        }
        let per_ms = self.rates.per_ms.max(1) as f64;
        for (task, t) in plan.tasks.iter().zip(0..) {
            let at = STATS + t * size_of::<TaskStats>() as u64;
            let stats: &TaskStats = vm.machine.ram.at(at);
            let probe = format!("{name}.{}", task.label);
            // Nanoseconds that so many iterations take with the CPU to themselves.
            totals.add(&probe, "throughput", "cpu", 1e6 / per_ms, load(&stats.done));
            if matches!(task.program, Program::Audio { .. }) {
                totals.add(&probe, "glitches", "1/min", 1.0, load(&stats.glitches));
            }
            if task.program.counts() {
                totals.add(&probe, "rate", "1/s", 1.0, load(&stats.rounds));
            }
        }
    }
}

/// Scalars from the difference of two snapshots.
pub(crate) fn scalars_between(plan: &Plan, a: &Totals, b: &Totals, recording: &mut Recording) {
    let ns = (b.now - a.now).max(1) as f64;
    for (key, &Total { count, weight, unit }) in &b.all {
        let grown = (count - a.all.get(key).map_or(0.0, |before| before.count)).max(0.0);
        let value = weight
            * match unit {
                "count" => count,
                "1/s" => grown * 1e9 / ns,
                "1/min" => grown * 60e9 / ns,
                "%" => 100.0 * grown / ns,
                _ => grown / ns,
            };
        recording.put(&key.0, &key.1, unit, value);
    }
    for (vm, (a, b)) in plan.vms.iter().zip(a.vms.iter().zip(&b.vms)) {
        // The kernel counts a wait whole when it ends, also one that began before the window.
        let all = ns * vm.vcpu_cpus.len().max(1) as f64;
        let most = (all - b.ran_ns.saturating_sub(a.ran_ns) as f64).max(0.0);
        let steal = (b.waited_ns.saturating_sub(a.waited_ns) as f64).min(most);
        recording.put(&vm.name, "steal", "%", 100.0 * steal / all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait of 400 ms that ends 100 ms into a window of 300 ms.
    #[test]
    fn steal_is_no_more_than_the_time_that_a_vcpu_did_not_run() {
        let plan = vcoop_testing::rig::builtin("busy-host-1", &["vanilla"], &[]).remove(0);
        let at = |now, ran_ns, waited_ns| Totals {
            now,
            vms: vec![RunTime { ran_ns, waited_ns }],
            ..Totals::default()
        };
        let (a, b) = (at(0, 0, 0), at(300_000_000, 75_000_000, 400_000_000));
        let mut recording = Recording::default();
        scalars_between(&plan, &a, &b, &mut recording);
        assert_eq!(recording.scalar(&plan.vms[0].name, "steal"), Some(75.0));
    }
}
