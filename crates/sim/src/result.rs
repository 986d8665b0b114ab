//! Makes a [`Recording`] from a finished world.

use std::collections::BTreeMap;

use vcoop_model::plan::{CoreScheduling, Plan, Program, TaskPlan};
use vcoop_model::recording::{EngineStats, Part, Parts, Recording};
use vcoop_policy::PolicyStats;
use vcoop_policy::config::AdvanceConfig;
use vcoop_sched::EntId;

use crate::attribution::track::{NONE, Sample};
use crate::guest::counters::Counters;
use crate::guest::halt_times::HaltTimes;
use crate::guest::vm_sync::{Count, Counts};
use crate::host::noise::is_noise;
use crate::host::smt::Speed;
use crate::machine::{GuestSegment, Segment, Vcpu, Work};
use crate::program::MissedPeriods;
use crate::queue::Ns;
use crate::world::World;
use crate::xen::fairness;
use crate::xen::ratelimit_driver::RatelimitDriver;

/// Name of all VMs together in results.
const ALL: &str = "*";

/// Counters at one moment; a result is the difference of two.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    now: Ns,
    /// Own CPU time by host label.
    host_done: Vec<Ns>,
    /// Units of work by host label.
    host_units: Vec<u64>,
    idle_ns: Ns,
    slowed_ns: Ns,
    forced_idle_ns: Ns,
    switches: u64,
    /// Counters of another hypervisor's scheduler.
    scheduler: Vec<(&'static str, u64)>,
    /// Ratelimits that a policy set.
    tuned: u64,
    vms: Vec<VmTotals>,
    /// Interrupts of the host's devices and the time of their handlers, by device.
    devices: Vec<(u64, Ns)>,
    /// Calls made, by client, and answered, by server.
    calls: (Vec<u64>, Vec<u64>),
}

#[derive(Clone, Debug, Default)]
struct VmTotals {
    exec_ns: Ns,
    steal_ns: Ns,
    counters: Counters,
    /// Current advance of timers, summed over its vCPUs.
    advance_ns: Ns,
    boosts: u64,
    throttles: u64,
    denied: u64,
    boosted_ns: Ns,
    /// Time at each nice level below the baseline, times the level; and whether there can be any.
    lowered_ns: Ns,
    repays: bool,
    /// Times that a vCPU lost its pCPU while runnable.
    preempted: u64,
    /// Changes of the mask, entities that it pushed off, and vCPUs in use, summed over time.
    mask_changes: u64,
    pushed_off: u64,
    used_ns: Ns,
    counts: Counts,
    halts: Option<HaltTimes>,
    /// Own CPU time, glitches and units of work, by task.
    tasks: Vec<(Ns, u64, u64)>,
}

impl VmTotals {
    /// Steal since an earlier moment; 0 if negative: a wait that was under way then can have ended on another CPU whose
    /// accounting was behind.
    fn stolen_since(&self, before: &Self) -> Ns {
        self.steal_ns.saturating_sub(before.steal_ns)
    }

    /// Time boosted and awake since an earlier moment; 0 if negative, as [`stolen_since`](Self::stolen_since).
    fn boosted_since(&self, before: &Self) -> Ns {
        self.boosted_ns.saturating_sub(before.boosted_ns)
    }

    /// The sum of these and those of another copy, without tasks.
    fn plus(mut self, other: &Self) -> Self {
        self.exec_ns += other.exec_ns;
        self.steal_ns += other.steal_ns;
        self.counters.add(&other.counters);
        self.advance_ns += other.advance_ns;
        self.boosts += other.boosts;
        self.throttles += other.throttles;
        self.denied += other.denied;
        self.boosted_ns += other.boosted_ns;
        self.lowered_ns += other.lowered_ns;
        self.repays |= other.repays;
        match (&mut self.halts, &other.halts) {
            (Some(own), Some(other)) => own.plus(other),
            (own @ None, Some(other)) => *own = Some(other.clone()),
            (_, None) => {}
        }
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, n)| *sum += n);
        self.preempted += other.preempted;
        self.mask_changes += other.mask_changes;
        self.pushed_off += other.pushed_off;
        self.used_ns += other.used_ns;
        self
    }
}

/// Results for the time between two moments.
struct Scalars<'a> {
    start: &'a Totals,
    end: &'a Totals,
    found: Recording,
}

impl Scalars<'_> {
    fn ns(&self) -> f64 {
        (self.end.now - self.start.now).max(1) as f64
    }

    fn seconds(&self) -> f64 {
        self.ns() / 1e9
    }

    fn put(&mut self, probe: &str, metric: &str, unit: &'static str, value: f64) {
        self.found.put(probe, metric, unit, value);
    }

    /// A count as a rate.
    fn rate(&mut self, probe: &str, metric: &str, n: u64) {
        self.put(probe, metric, "1/s", n as f64 / self.seconds());
    }

    /// The time that tasks took, if all have exited.
    fn elapsed(&mut self, probe: &str, took: Option<Ns>) {
        if let Some(took) = took {
            self.put(probe, "elapsed", "s", took as f64 / 1e9);
        }
    }

    /// CPU time as a number of CPUs.
    fn cpus(&mut self, probe: &str, metric: &str, time: Ns) {
        self.put(probe, metric, "cpu", time as f64 / self.ns());
    }

    /// A time as a share of another.
    fn share(&mut self, probe: &str, metric: &str, time: Ns, of: f64) {
        self.put(probe, metric, "%", 100.0 * time as f64 / of);
    }
}

/// Time from the begin of the first of these tasks to the exit of the last, if all have exited.
fn elapsed<'w>(tasks: impl Iterator<Item = (&'w TaskPlan, &'w Work)>) -> Option<Ns> {
    let times: Option<Vec<_>> =
        tasks.map(|(task, work)| Some((task.start_ns, work.ended?))).collect();
    let (begins, ends): (Vec<Ns>, Vec<Ns>) = times?.into_iter().unzip();
    Some(ends.into_iter().max()? - begins.into_iter().min()?)
}

/// VMs by report label, in the order of their first copies.
fn groups(plan: &Plan) -> Vec<(&str, Vec<usize>)> {
    let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, vm) in plan.vms.iter().enumerate() {
        let place = *places.entry(&vm.label).or_insert(groups.len());
        if place == groups.len() {
            groups.push((&vm.label, Vec::new()));
        }
        groups[place].1.push(i);
    }
    groups
}

impl World<'_> {
    /// The counters now.
    pub(crate) fn totals(&mut self) -> Totals {
        let mut host_done = vec![0; self.probes.labels().len()];
        let mut host_units = vec![0; self.probes.labels().len()];
        let mut switches = 0;
        self.charge_all();
        for (t, thread) in self.threads.iter().enumerate() {
            host_done[thread.work.label as usize] += thread.work.done;
            host_units[thread.work.label as usize] += thread.work.units;
            switches += self.host.stats(EntId(t as u32)).switches_in;
        }
        let now = self.clock.now();
        let idle_ns = self
            .pcpus
            .iter()
            .map(|p| {
                let idle = matches!(p.segment, Segment::Idle | Segment::CState);
                p.idle_ns + if idle { now - p.since } else { 0 }
            })
            .sum();
        let mut vms: Vec<VmTotals> = self
            .vms
            .iter()
            .zip(self.preferred.totals(now))
            .map(|(vm, (mask_changes, used_ns))| VmTotals {
                halts: vm.halts.clone(),
                mask_changes,
                pushed_off: vm.level.pushed_off(),
                used_ns,
                tasks: vm.tasks.iter().map(|t| (t.done, t.glitches, t.units)).collect(),
                counts: vm.sync.counts(),
                ..VmTotals::default()
            })
            .collect();
        let mut slowed_ns = self.pcpus.iter().map(|p| p.slowed_ns).sum();
        // Work is booked when its segment ends: without ticks that can be long after now.
        for (p, pc) in (0..).zip(&self.pcpus) {
            let (since, work, done) = match pc.segment {
                Segment::User => {
                    let work = &self.threads[pc.current as usize].work;
                    (pc.since, work, &mut host_done[work.label as usize])
                }
                Segment::Guest => {
                    let vcpu = &self.vcpus[pc.vcpu as usize];
                    if vcpu.segment != GuestSegment::User {
                        continue;
                    }
                    let (vm, task) = (vcpu.vm as usize, vcpu.current as usize);
                    (vcpu.since, &self.vms[vm].tasks[task], &mut vms[vm].tasks[task].0)
                }
                _ => continue,
            };
            *done += work.under_way(self.work_so_far(p, since));
            slowed_ns += if pc.speed == Speed::FULL { 0 } else { now - since };
        }
        for v in &self.vcpus {
            let vm = &mut vms[v.vm as usize];
            let thread = EntId(v.thread);
            let stats = self.host.stats(thread);
            // A wait in progress counts up to now; its rest counts after this snapshot.
            let steal_ns = stats.wait_ns + self.host.waits_for(now, thread);
            vm.exec_ns += stats.exec_ns;
            vm.steal_ns += steal_ns;
            vm.preempted += stats.preempted;
            vm.counters.add(&self.counters_of(v));
            if let Some(halts) = &mut vm.halts {
                halts.goes_on(v.virt.host_poll.halted(now));
            }
            vm.advance_ns += v.virt.deadline.advance_ns();
            let policy = v.driver.policy();
            let PolicyStats { boosts, throttles, denied, lowered_ns, .. } = policy.stats();
            vm.lowered_ns += lowered_ns;
            vm.repays |= policy.repays();
            vm.boosts += boosts;
            vm.throttles += throttles;
            vm.denied += denied;
            vm.boosted_ns += match policy.is_boosted_for_life() {
                true => stats.exec_ns + steal_ns,
                false => policy.boosted_at(now),
            };
        }
        let tuned = self.ratelimits.as_ref().map_or(0, RatelimitDriver::changes);
        Totals {
            now,
            host_done,
            host_units,
            idle_ns,
            forced_idle_ns: self.host.forced_idle(self.clock.now()),
            slowed_ns,
            switches,
            scheduler: self.host.counts(),
            tuned,
            devices: self.lines.totals(self.plan),
            vms,
            calls: self.calls.totals(),
        }
    }

    /// The counters of a vCPU, including what is under way.
    fn counters_of(&self, v: &Vcpu) -> Counters {
        let now = self.clock.now();
        let mut counters = v.virt.counters;
        if v.exit_at != Ns::MAX {
            counters.exits[usize::from(v.exit_why)].ns += now - v.exit_at;
        }
        counters.guest_poll_ns += v.virt.guest_poll.polled(now);
        if v.segment == GuestSegment::Rest && self.is_in_guest(v) {
            counters.rest_ns += self.rests(v).0;
        }
        counters
    }

    /// The recording for the time between two moments.
    pub(crate) fn finish(mut self, start: &Totals, end: &Totals, cpu_ns: u64) -> Recording {
        let mut scalars = Scalars { start, end, found: Recording::default() };
        self.put_host(&mut scalars);
        self.put_host_tasks(&mut scalars);
        self.put_vms(&mut scalars);
        self.respond_open(end.now);
        self.storms.put_scalars(end.now, &mut scalars.found);
        self.cut_off(start.now, end.now);
        let views = std::mem::take(&mut self.views);
        let intervals = views.finish(self.plan.warmup_ns, end.now, |t| self.name_of(t));
        let (latencies, scatters) = self.probes.finish(self.plan);
        Recording {
            latencies,
            engine: Some(EngineStats { events: self.clock.events(), cpu_ns, sim_ns: end.now }),
            marks: self.storms.finish(),
            scatters,
            intervals,
            policy_events: self.event_counts.finish(),
            in_use: self.preferred.finish(self.clock.now()),
            fault: self.fault,
            ..scalars.found
        }
    }

    /// Scalars of the pCPUs, the scheduler and the host's devices.
    fn put_host(&self, scalars: &mut Scalars<'_>) {
        let Scalars { start, end, .. } = *scalars;
        let all = scalars.ns() * self.pcpus.len() as f64;
        let idle = end.idle_ns.saturating_sub(start.idle_ns) as f64;
        scalars.put("host", "cpu", "%", 100.0 * (1.0 - idle / all));
        if self.smt.is_on() {
            scalars.share("host", "slowed", end.slowed_ns - start.slowed_ns, all);
        }
        if self.plan.host.core_scheduling != CoreScheduling::Off {
            let forced = end.forced_idle_ns - start.forced_idle_ns;
            scalars.share("host", "forced_idle", forced, all);
        }
        let polled = |totals: &Totals| {
            let of = |vm: &VmTotals| vm.counters.poll_won_ns + vm.counters.poll_lost_ns;
            totals.vms.iter().map(of).sum::<Ns>()
        };
        if self.plan.vms.iter().any(|vm| vm.virt.idle.host_polls_in_force().max_ns > 0) {
            scalars.share("host", "polling", polled(end) - polled(start), all);
        }
        scalars.rate("host", "switches", end.switches - start.switches);
        for (&(metric, before), (_, after)) in start.scheduler.iter().zip(&end.scheduler) {
            scalars.rate("host", metric, after - before);
        }
        let vms = start.vms.iter().zip(&end.vms);
        let used = vms.map(|(a, b)| (b.exec_ns - a.exec_ns, b.stolen_since(a)));
        if let Some(error) = fairness::error_of(&self.host, self.plan, used, end.now - start.now) {
            scalars.put("host", "fairness_error", "%", error);
        }
        if let Some(driver) = &self.ratelimits {
            scalars.rate("host", "ratelimits_set", end.tuned - start.tuned);
            for (m, vm) in self.plan.vms.iter().enumerate() {
                scalars.put(&vm.name, "ratelimit", "us", driver.limit(m) as f64 / 1e3);
            }
        }
        let counts = start.devices.iter().zip(&end.devices);
        for (device, (a, b)) in self.plan.host.interrupts.iter().zip(counts) {
            let probe = format!("host.{}", device.name);
            scalars.rate(&probe, "interrupts", b.0 - a.0);
            let of = scalars.ns() * device.cpus.len() as f64;
            scalars.share(&probe, "interrupt_time", b.1 - a.1, of);
        }
    }

    /// Scalars of the host's own tasks, and of calls.
    fn put_host_tasks(&self, scalars: &mut Scalars<'_>) {
        let Scalars { start, end, .. } = *scalars;
        for (i, label) in self.probes.labels().iter().enumerate() {
            let of_vm = self.plan.vms.iter().any(|vm| &vm.label == label);
            if of_vm || is_noise(label) {
                continue;
            }
            let probe = format!("host.{label}");
            scalars.cpus(&probe, "throughput", end.host_done[i] - start.host_done[i]);
            let of_label = |(task, _): &(&TaskPlan, &Work)| task.label == *label;
            let works = self.threads.iter().map(|thread| &thread.work);
            let tasks = || self.plan.host_tasks.iter().zip(works.clone()).filter(of_label);
            if tasks().any(|(task, _)| task.program.counts()) {
                scalars.rate(&probe, "rate", end.host_units[i] - start.host_units[i]);
                scalars.elapsed(&probe, elapsed(tasks()));
            }
        }
        for ((probe, metric), n) in self.calls.since(self.plan, &start.calls, &end.calls) {
            scalars.rate(&probe, metric, n);
        }
    }

    /// Scalars of all VMs together, of those with one label, and of their tasks.
    fn put_vms(&self, scalars: &mut Scalars<'_>) {
        let groups = groups(self.plan);
        if groups.len() > 1 {
            self.put_all_vms(scalars);
        }
        // By label: how many VMs' tasks have it, their units of work, and the sum of the times that they took.
        let mut together: BTreeMap<&str, (u32, u64, Option<Ns>)> = BTreeMap::new();
        for (name, copies) in &groups {
            self.put_vm(name, copies, scalars);
            for (label, units, took) in self.put_tasks(name, copies, scalars) {
                let sum = together.entry(label).or_insert((0, 0, Some(0)));
                *sum = (sum.0 + 1, sum.1 + units, sum.2.zip(took).map(|(sum, took)| sum + took));
            }
        }
        for (label, (_, units, took)) in together.into_iter().filter(|(_, of)| of.0 > 1) {
            let probe = format!("{ALL}.{label}");
            scalars.rate(&probe, "rate", units);
            scalars.elapsed(&probe, took);
        }
    }

    /// Scalars of all VMs together, under a name that no VM can have.
    fn put_all_vms(&self, scalars: &mut Scalars<'_>) {
        let sum =
            |totals: &Totals| totals.vms.iter().fold(VmTotals::default(), |sum, vm| sum.plus(vm));
        let (a, b) = (&sum(scalars.start), &sum(scalars.end));
        let vcpus = self.plan.vms.iter().map(|vm| vm.level.topology.cpus()).sum::<u32>();
        let all = scalars.ns() * f64::from(vcpus);
        let exits = |totals: &VmTotals| totals.counters.exits.iter().map(|e| e.n).sum::<u64>();
        scalars.cpus(ALL, "cpu", b.exec_ns - a.exec_ns);
        scalars.share(ALL, "steal", b.stolen_since(a), all);
        scalars.rate(ALL, "preemptions", b.preempted - a.preempted);
        scalars.rate(ALL, "exits", exits(b) - exits(a));
        scalars.rate(ALL, "boosts", b.boosts - a.boosts);
        scalars.share(ALL, "boosted", b.boosted_since(a), all);
    }

    /// Scalars of the VMs with one label.
    fn put_vm(&self, name: &str, copies: &[usize], scalars: &mut Scalars<'_>) {
        let of = |totals: &Totals| {
            copies.iter().fold(VmTotals::default(), |sum, vm| sum.plus(&totals.vms[*vm]))
        };
        let (a, b) = (&of(scalars.start), &of(scalars.end));
        let of_one = |vm: &usize| self.plan.vms[*vm].level.topology.cpus();
        let vcpus = f64::from(copies.iter().map(of_one).sum::<u32>());
        let ns = scalars.ns();
        scalars.cpus(name, "cpu", b.exec_ns - a.exec_ns);
        scalars.share(name, "steal", b.stolen_since(a), ns * vcpus);
        scalars.rate(name, "preemptions", b.preempted - a.preempted);
        if copies.iter().any(|vm| self.governors[*vm].is_some()) || b.mask_changes > 0 {
            let changes = (b.mask_changes - a.mask_changes) as f64;
            scalars.put(name, "mask_changes", "1/min", changes * 60.0 / scalars.seconds());
            scalars.rate(name, "pushed_off", b.pushed_off - a.pushed_off);
            scalars.put(name, "vcpus_used", "vcpu", (b.used_ns - a.used_ns) as f64 / ns);
        }
        let virt = &self.plan.vms[copies[0]].virt;
        for (metric, unit, value) in b.counters.since(&a.counters).scalars(virt, vcpus, ns) {
            scalars.put(name, &metric, unit, value);
        }
        if let (Some(a), Some(b)) = (&a.halts, &b.halts) {
            for (metric, unit, value) in b.scalars(a, vcpus, ns) {
                scalars.put(name, &metric, unit, value);
            }
        }
        if virt.timer.advance != AdvanceConfig::None {
            scalars.put(name, "timer.advance", "us", b.advance_ns as f64 / 1e3 / vcpus);
        }
        for (count, (a, b)) in Count::ALL.iter().zip(a.counts.iter().zip(b.counts)) {
            // Only guests that call functions or take locks have these.
            if b > *a {
                scalars.rate(name, count.name(), b - a);
            }
        }
        scalars.rate(name, "boosts", b.boosts - a.boosts);
        scalars.rate(name, "throttles", b.throttles - a.throttles);
        scalars.rate(name, "denied", b.denied - a.denied);
        scalars.share(name, "boosted", b.boosted_since(a), ns * vcpus);
        if b.repays {
            let lowered = (b.lowered_ns - a.lowered_ns) as f64 / (ns * vcpus);
            scalars.put(name, "lowered", "levels", lowered);
        }
    }

    /// Scalars of the tasks of VMs with one label. Returns, by label, the units of work of tasks that count them and the
    /// time that they took.
    fn put_tasks(
        &self,
        name: &str,
        copies: &[usize],
        scalars: &mut Scalars<'_>,
    ) -> Vec<(&str, u64, Option<Ns>)> {
        // By label: CPU time, glitches, units of work, whether it is audio, whether it counts units.
        let mut by_label: BTreeMap<&str, (Ns, u64, u64, bool, bool)> = BTreeMap::new();
        for &vm in copies {
            let counts = scalars.start.vms[vm].tasks.iter().zip(&scalars.end.vms[vm].tasks);
            for (task, (x, y)) in self.plan.vms[vm].tasks.iter().zip(counts) {
                let sum = by_label.entry(&task.label).or_default();
                sum.0 += y.0 - x.0;
                sum.1 += y.1 - x.1;
                sum.2 += y.2 - x.2;
                sum.3 |= matches!(task.program, Program::Audio { .. });
                sum.4 |= task.program.counts();
            }
        }
        let mut counted = Vec::new();
        for (label, (done, glitches, units, audio, counts)) in by_label {
            let probe = format!("{name}.{label}");
            scalars.cpus(&probe, "throughput", done);
            if counts {
                let took = |vm: &usize| {
                    let tasks = self.plan.vms[*vm].tasks.iter().zip(&self.vms[*vm].tasks);
                    elapsed(tasks.filter(|(task, _)| task.label == label))
                };
                let took = copies.iter().map(took).sum();
                scalars.rate(&probe, "rate", units);
                scalars.elapsed(&probe, took);
                counted.push((label, units, took));
            }
            if audio {
                let a_minute = glitches as f64 * 60.0 / scalars.seconds();
                scalars.put(&probe, "glitches", "1/min", a_minute);
            }
        }
        counted
    }

    /// Samples and periods that are open when the run ends. A task that is late then must not look like one that was
    /// never late, nor one that never ran like one that did not exist.
    fn cut_off(&mut self, start: Ns, end: Ns) {
        let hosts = self
            .threads
            .iter()
            .zip(&self.plan.host_tasks)
            .map(|(thread, task)| (&thread.work, Some(task.start_ns), Part::WakeToRun));
        let storms = &self.storms;
        let guests = self.vms.iter().zip(&self.plan.vms).flat_map(|(vm, plan)| {
            vm.tasks.iter().zip(&plan.tasks).map(move |(work, task)| {
                let from = storms.begun(vm.birth, task.after_login);
                (work, from.map(|from| from + task.start_ns), Part::GuestWait)
            })
        });
        for (work, begun, waits) in hosts.chain(guests) {
            let (Some(runner), true) = (&work.runner, work.probe != NONE) else { continue };
            let Some(begun) = begun else { continue };
            let open = runner.open(begun, start, end);
            // All of them are of the measured time.
            let missed = MissedPeriods { n: open.missed, last: end, every: 1 };
            let probes = [(work.sampler, work.probe), (work.irq_sampler, work.irq_probe)];
            for (sampler, probe) in probes.into_iter().filter(|(_, probe)| *probe != NONE) {
                self.probes.missed(probe, missed);
                // A sample that is late by less than a period is left out, like every open one.
                if open.late
                    && let Some(sample) = self.tracks.close(sampler, end)
                {
                    self.probes.record_open(probe, &sample, end, &mut self.spans);
                } else if let Some(due) = open.never {
                    // It was not tracked: all of it counts as a wait for its CPU.
                    let mut parts = Parts::default();
                    parts[waits as usize] = end - due;
                    let nobody = vec![0; self.probes.labels().len() + 1];
                    let (latency, ran_instead) = (end - due, &nobody[..]);
                    let sample = Sample { due, latency, parts: &parts, ran_instead };
                    self.probes.record_open(probe, &sample, end, &mut self.spans);
                }
            }
        }
        for work in self.threads.iter().filter(|t| t.vcpu != NONE).map(|t| &t.work) {
            if work.sampler != NONE
                && let Some(sample) = self.tracks.close(work.sampler, end)
            {
                self.probes.record_open(work.probe, &sample, end, &mut self.spans);
            }
        }
    }
}
