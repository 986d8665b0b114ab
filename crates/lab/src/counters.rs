//! Differences of a run's counters between two moments.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};

use vcoop_guest::layout::{STATS, TaskStats};
use vcoop_model::plan::virt::GuestIdle;
use vcoop_model::plan::{Ns, Plan, Program};
use vcoop_model::recording::Scalar;
use vcoop_policy::PolicyStats;
use vcoop_sources::trace::{Meter, Recorder, Tid};
use vcoop_threads::tsc::Clock;
use vcoop_threads::{RunTime, preemptions, run_time};

use crate::host_task::Progress;
use crate::lab_vm::LabVm;
use crate::rates::Rates;
use crate::vcpu::Exits;
use crate::virt::is_exitless;

const EXIT_NAMES: [&str; 7] =
    ["doorbell", "notify", "register", "refused", "mmio", "send", "multicast"];

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

/// Counters at one moment; a result is the difference of two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    now: Ns,
    /// CPU time and iterations of each host thread.
    host: Vec<(Ns, u64)>,
    /// Calls made or served by each host thread.
    calls: Vec<u64>,
    injector_ns: Ns,
    vms: Vec<VmTotals>,
    per_ms: u64,
}

#[derive(Clone, Debug, Default)]
struct VmTotals {
    exec_ns: Ns,
    wait_ns: Ns,
    preempted: u64,
    policy: PolicyStats,
    /// Exits by name.
    exits: [u64; 7],
    /// Iterations, glitches and units of work of each task.
    tasks: Vec<(u64, u64, u64)>,
    /// Polls of its idle loop, won and lost.
    guest_polls: (u64, u64),
    /// Changes of its mask, vCPUs in use summed over time, tasks pushed off vCPUs.
    mask: (u64, Ns, u64),
}

/// Compares the trace with what the kernel counted for the vCPUs' threads in the same time.
pub(crate) fn compare(
    plan: &Plan,
    (a, b): (&Totals, &Totals),
    trace: &Recorder,
    (vcpus, clock): (&[Vec<Tid>], &Clock),
    put: &mut dyn FnMut(&str, &str, &'static str, f64),
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
        put(&vm.name, "steal_trace", "%", 100.0 * waited as f64 / ns);
        wait[0] += waited;
        exec[0] += tids.iter().map(|tid| since(|m| m.exec, tid)).sum::<Ns>();
        wait[1] += b.vms[i].wait_ns.saturating_sub(a.vms[i].wait_ns);
        exec[1] += b.vms[i].exec_ns.saturating_sub(a.vms[i].exec_ns);
    }
    for (metric, [trace, schedstat]) in
        [("trace_vs_schedstat_exec", exec), ("trace_vs_schedstat_wait", wait)]
    {
        if schedstat > 0 {
            put("lab", metric, "%", 100.0 * trace as f64 / schedstat as f64);
        }
    }
}

/// A count as a scalar.
pub(crate) fn count(n: u64) -> Scalar {
    Scalar { unit: "count", value: n as f64 }
}

impl Counters<'_> {
    pub(crate) fn totals(&self, now: Ns) -> Totals {
        let cpu = |tid: i32| if tid == 0 { RunTime::default() } else { run_time(tid) };
        let host = self
            .progress
            .iter()
            .map(|p| (cpu(p.tid.load(Ordering::Acquire)).ran_ns, p.done.load(Ordering::Relaxed)));
        let vms = self.vms.iter().zip(self.exits).zip(&self.plan.vms).map(|((vm, exits), plan)| {
            let mut totals = VmTotals::default();
            for v in &vm.vcpus {
                let time = cpu(v.tid());
                totals.exec_ns += time.ran_ns;
                totals.wait_ns += time.waited_ns;
                totals.preempted += preemptions(v.tid());
                let s = v.stats();
                let sum = &mut totals.policy;
                sum.boosts += s.boosts;
                sum.notified += s.notified;
                sum.throttles += s.throttles;
                sum.denied += s.denied;
                sum.boosted_ns += s.boosted_ns;
                sum.lowered_ns += s.lowered_ns;
            }
            let n = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
            for words in &vm.control().vcpu[..vm.vcpus.len()] {
                let (won, lost) = totals.guest_polls;
                // Guest-written: sums may overflow.
                let sum = |a: u64, c| a.wrapping_add(n(c));
                totals.guest_polls = (sum(won, &words.polls_won), sum(lost, &words.polls_lost));
                totals.mask.2 = sum(totals.mask.2, &words.pushed);
            }
            if let Some(mask) = vm.masked() {
                (totals.mask.0, totals.mask.1) = (mask.changes, mask.used_ns(now));
            }
            totals.exits = [
                &exits.doorbell,
                &exits.notify,
                &exits.register,
                &exits.refused,
                &exits.mmio,
                &exits.send,
                &exits.multicast,
            ]
            .map(n);
            totals.tasks = (0..plan.tasks.len() as u64)
                .map(|t| {
                    let at = STATS + t * size_of::<TaskStats>() as u64;
                    let stats: &TaskStats = vm.machine.ram.at(at);
                    (n(&stats.done), n(&stats.glitches), n(&stats.rounds))
                })
                .collect();
            totals
        });
        Totals {
            now,
            host: host.collect(),
            calls: self.progress.iter().map(|p| p.calls.load(Ordering::Relaxed)).collect(),
            injector_ns: cpu(self.injector.load(Ordering::Acquire)).ran_ns,
            vms: vms.collect(),
            per_ms: self.rates.per_ms,
        }
    }
}

pub(crate) fn scalars_between(
    plan: &Plan,
    a: &Totals,
    b: &Totals,
    put: &mut dyn FnMut(&str, &str, &'static str, f64),
) {
    let ns = (b.now - a.now).max(1) as f64;
    let seconds = ns / 1e9;
    let per_ms = b.per_ms.max(1) as f64;
    let since = |b: u64, a: u64| b.saturating_sub(a) as f64;
    put("lab", "injector_cpu", "%", 100.0 * since(b.injector_ns, a.injector_ns) / ns);
    let mut calls: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for (task, (a, b)) in plan.host_tasks.iter().zip(a.calls.iter().zip(&b.calls)) {
        let serves = matches!(task.program, Program::Serve { .. });
        if serves || task.program.servers().next().is_some() {
            let metric = if serves { "served" } else { "calls" };
            *calls.entry((&task.label, metric)).or_default() += since(*b, *a);
        }
    }
    for ((label, metric), n) in calls {
        put(&format!("host.{label}"), metric, "1/s", n / seconds);
    }
    let mut loads: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (task, (a, b)) in plan.host_tasks.iter().zip(a.host.iter().zip(&b.host)) {
        let sum = loads.entry(&task.label).or_default();
        sum.0 += since(b.0, a.0);
        sum.1 += since(b.1, a.1);
    }
    for (label, (cpu, done)) in loads {
        let probe = format!("host.{label}");
        put(&probe, "throughput", "cpu", cpu / ns);
        // Work done also depends on caches and clock rates, which CPU time does not show. A stressor does not report
        // its work.
        if !plan.host_tasks.iter().any(|t| t.label == *label && t.stress_ng.is_some()) {
            put(&probe, "work", "1/s", done / 1e6 / seconds);
        }
    }
    for (vm, (a, b)) in plan.vms.iter().zip(a.vms.iter().zip(&b.vms)) {
        let name = &vm.name;
        let vcpus = vm.vcpu_cpus.len().max(1) as f64;
        let (p, q) = (&a.policy, &b.policy);
        put(name, "exitless_timer", "count", f64::from(u8::from(is_exitless(plan, vm))));
        put(name, "cpu", "cpu", since(b.exec_ns, a.exec_ns) / ns);
        // The kernel counts a wait whole when it ends, also one that began before the window.
        let most = (ns * vcpus - since(b.exec_ns, a.exec_ns)).max(0.0);
        let steal = since(b.wait_ns, a.wait_ns).min(most);
        put(name, "steal", "%", 100.0 * steal / (ns * vcpus));
        put(name, "preemptions", "1/s", since(b.preempted, a.preempted) * 1e9 / ns);
        put(name, "boosts", "1/s", since(q.boosts, p.boosts) / seconds);
        put(name, "throttles", "1/s", since(q.throttles, p.throttles) / seconds);
        put(name, "denied", "1/s", since(q.denied, p.denied) / seconds);
        put(name, "notified", "1/s", since(q.notified, p.notified) / seconds);
        put(name, "boosted", "%", 100.0 * since(q.boosted_ns, p.boosted_ns) / (ns * vcpus));
        if plan.policy.repays() {
            put(name, "lowered", "levels", since(q.lowered_ns, p.lowered_ns) / (ns * vcpus));
        }
        if matches!(vm.virt.idle.guest, GuestIdle::Poll | GuestIdle::Haltpoll) {
            let (p, q) = (a.guest_polls, b.guest_polls);
            put(name, "guest_polls.won", "1/s", since(q.0, p.0) / seconds);
            put(name, "guest_polls.lost", "1/s", since(q.1, p.1) / seconds);
        }
        if b.mask.1 > 0 {
            let (p, q) = (a.mask, b.mask);
            put(name, "mask_changes", "1/min", since(q.0, p.0) * 60.0 / seconds);
            put(name, "vcpus_used", "vcpu", since(q.1, p.1) / ns);
            put(name, "pushed_off", "1/s", since(q.2, p.2) / seconds);
        }
        for (exit, (a, b)) in EXIT_NAMES.iter().zip(a.exits.iter().zip(b.exits)) {
            put(name, &format!("exits.{exit}"), "1/s", since(b, *a) / seconds);
        }
        let mut by_label: BTreeMap<&str, (f64, f64, bool, Option<f64>)> = BTreeMap::new();
        for (task, (x, y)) in vm.tasks.iter().zip(a.tasks.iter().zip(&b.tasks)) {
            let sum = by_label.entry(&task.label).or_default();
            sum.0 += since(y.0, x.0);
            sum.1 += since(y.1, x.1);
            sum.2 |= matches!(task.program, Program::Audio { .. });
            if task.program.counts() {
                *sum.3.get_or_insert_default() += since(y.2, x.2);
            }
        }
        for (label, (done, glitches, audio, rounds)) in by_label {
            let probe = format!("{name}.{label}");
            let cpu_ns = done * 1e6 / per_ms;
            put(&probe, "throughput", "cpu", cpu_ns / ns);
            if audio {
                put(&probe, "glitches", "1/min", glitches * 60.0 / seconds);
            }
            if let Some(rounds) = rounds {
                put(&probe, "rate", "1/s", rounds / seconds);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait of 400 ms that ends 100 ms into a window of 300 ms.
    #[test]
    fn steal_is_no_more_than_the_time_that_a_vcpu_did_not_run() {
        let plan = vcoop_testing::rig::builtin("busy-host-1", &["vanilla"], &[]).remove(0);
        let at = |now, exec_ns, wait_ns| Totals {
            now,
            vms: vec![VmTotals { exec_ns, wait_ns, ..VmTotals::default() }],
            ..Totals::default()
        };
        let (a, b) = (at(0, 0, 0), at(300_000_000, 75_000_000, 400_000_000));
        let mut steal = None;
        scalars_between(&plan, &a, &b, &mut |_, metric, _, value| {
            steal = if metric == "steal" { Some(value) } else { steal };
        });
        assert_eq!(steal, Some(75.0));
    }
}
