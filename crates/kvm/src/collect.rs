//! From a run's rings and counters to a [`Recording`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};

use vcoop_guest::layout::{RING_STRIDE, RINGS, STATS, TaskStats};
use vcoop_guest::ring::{Reader, Ring, Sample};
use vcoop_model::plan::{Ns, Plan, Program, Target};
use vcoop_model::recording::{LatencyRecord, Part, Parts, Recording, Scalar};
use vcoop_policy::PolicyStats;

use crate::clock::{Clock, tsc};
use crate::driver::VmDriver;
use crate::environment::schedstat;
use crate::host_task::Progress;
use crate::lab::interval;
use crate::probe::{Probe, Window};
use crate::translate::{Rates, places};
use crate::trip::{Other, Trip};
use crate::vcpu::Exits;

/// Where counters are.
#[derive(Debug)]
pub(crate) struct Counters<'a> {
    pub(crate) progress: &'a [Progress],
    pub(crate) exits: &'a [Exits],
    pub(crate) vms: &'a [VmDriver],
    pub(crate) plan: &'a Plan,
    pub(crate) injector: &'a AtomicI32,
    pub(crate) rates: &'a Rates,
}

/// Counters at one moment; a result is the difference of two.
#[derive(Clone, Debug, Default)]
struct Totals {
    now: Ns,
    /// CPU time and iterations of each host thread.
    host: Vec<(Ns, u64)>,
    /// Calls made or served by each host thread.
    calls: Vec<u64>,
    /// Rings that no message came with.
    spurious: u64,
    injector_ns: Ns,
    vms: Vec<VmTotals>,
    per_ms: u64,
}

#[derive(Clone, Debug, Default)]
struct VmTotals {
    exec_ns: Ns,
    wait_ns: Ns,
    policy: PolicyStats,
    /// Exits by name.
    exits: [u64; 6],
    /// Iterations and glitches of each task.
    tasks: Vec<(u64, u64)>,
}

const EXIT_NAMES: [&str; 6] = ["doorbell", "notify", "register", "refused", "mmio", "send"];

/// One guest probe.
#[derive(Debug)]
struct GuestProbe {
    vm: usize,
    ring: u64,
    reader: Reader,
    probe: Probe,
    invalid: u64,
    /// Its samples are round trips to a server there.
    server: Option<Other>,
}

/// Collects a run.
#[derive(Debug)]
pub(crate) struct Collector<'a> {
    plan: &'a Plan,
    clock: Clock,
    origin: u64,
    /// By index of the plan's probes; `None` for host probes.
    guests: Vec<Option<GuestProbe>>,
    first: Option<Totals>,
    last: Option<Totals>,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(plan: &'a Plan, vms: &[VmDriver], clock: Clock, window: Window) -> Self {
        let guests = plan.probes.iter().map(|p| {
            let Target::Guest { vm, task } = p.target else { return None };
            let program = &plan.vms[vm as usize].tasks[task as usize].program;
            let ring = vms[vm as usize].control().task[task as usize].ring;
            Some(GuestProbe {
                vm: vm as usize,
                ring,
                reader: Reader::new(),
                probe: Probe::new(&p.probe, window, interval(program)),
                invalid: 0,
                server: server(plan, p.target),
            })
        });
        let guests = guests.collect();
        Self { plan, clock, origin: clock.tsc_at(0), guests, first: None, last: None }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// The warm-up is over.
    pub(crate) fn begin(&mut self, now: Ns, counters: &Counters<'_>) {
        self.first = Some(counters.totals(now));
    }

    /// The measurement is over.
    pub(crate) fn end(&mut self, now: Ns, counters: &Counters<'_>) {
        self.last = Some(counters.totals(now));
    }

    /// Takes in what the guests have written since the last time.
    pub(crate) fn collect(&mut self, vms: &[VmDriver]) {
        let (clock, origin) = (self.clock, self.origin);
        for g in self.guests.iter_mut().flatten() {
            let ring: &Ring = vms[g.vm].machine.ram.at(RINGS + g.ring * RING_STRIDE);
            let GuestProbe { reader, probe, invalid, server, .. } = g;
            reader.read(ring, |s| {
                // Guest-written: a time that cannot be is no sample.
                if s.due < origin || s.taken < s.due || s.taken > tsc() {
                    *invalid += 1;
                    return;
                }
                let latency = clock.to_ns(s.taken - s.due);
                let parts = match *server {
                    None => parts(&clock, &s, latency),
                    Some(server) => {
                        let Sample { due: called, served, taken: back, .. } = s;
                        let (woken, server) = (Some((s.woken, s.from_idle)), Some(server));
                        Trip { called, served, woken, back, server }.parts(&clock, latency)
                    }
                };
                probe.record(clock.ns_at(s.due), latency, &parts, s.missed);
            });
        }
    }

    /// The recording; `ended`: when the run did.
    pub(crate) fn finish(self, host: Vec<Option<Probe>>, ended: Ns, exitless: bool) -> Recording {
        let mut scalars = BTreeMap::new();
        let mut put = |probe: &str, metric: &str, unit: &'static str, value: f64| {
            scalars.insert((probe.to_owned(), metric.to_owned()), Scalar { unit, value });
        };
        let mut lost = 0;
        let mut invalid = 0;
        for g in self.guests.iter().flatten() {
            lost += g.reader.lost();
            invalid += g.invalid;
        }
        put("lab", "samples_lost", "count", lost as f64);
        put("lab", "samples_invalid", "count", invalid as f64);
        put("lab", "exitless_timer", "count", f64::from(u8::from(exitless)));
        if let (Some(a), Some(b)) = (&self.first, &self.last) {
            scalars_between(self.plan, a, b, &mut put);
        }
        let mut host = host;
        for (i, p) in self.plan.probes.iter().enumerate() {
            let probe = match p.target {
                Target::Host(i) => host.get(i as usize).and_then(Option::as_ref),
                Target::Guest { .. } => self.guests[i].as_ref().map(|g| &g.probe),
            };
            if let Some(mean) = probe.and_then(Probe::mean_with_missed) {
                put(&p.probe, "mean_with_missed", "us", mean / 1e3);
            }
        }
        let latencies: Vec<LatencyRecord> = self
            .plan
            .probes
            .iter()
            .zip(self.guests)
            .filter_map(|(p, guest)| match (p.target, guest) {
                (Target::Host(i), _) => host.get_mut(i as usize)?.take().map(|p| p.finish(ended)),
                (_, guest) => guest.map(|g| g.probe.finish(ended)),
            })
            .collect();
        Recording { latencies, scalars, engine: None }
    }
}

/// Where the server of a guest's ping is.
fn server(plan: &Plan, ping: Target) -> Option<Other> {
    let Target::Guest { vm, task } = ping else { return None };
    let guest = &plan.vms[vm as usize];
    let Program::Ping { server, .. } = &guest.tasks[task as usize].program else { return None };
    Some(match *server {
        Target::Host(_) => Other::Host,
        Target::Guest { task: server, .. } => {
            let places = places(guest);
            let here = places[task as usize] == places[server as usize];
            if here { Other::Here } else { Other::Vcpu }
        }
    })
}

/// Where the time of a sample went, as far as it can be told without a trace (see the crate's
/// documentation). Guest-written times out of order count as the earlier one.
fn parts(clock: &Clock, s: &Sample, latency: Ns) -> Parts {
    let mut parts = [0; Part::COUNT];
    let woken = s.woken.clamp(s.due, s.taken);
    // A firing that is not of this period says nothing about it.
    let fired = if (s.due..=woken).contains(&s.fired) { s.fired } else { s.due };
    let injector = clock.to_ns(fired - s.due).min(latency);
    let guest = clock.to_ns(s.taken - woken).min(latency - injector);
    let waited = if s.from_idle { Part::WakeToRun } else { Part::PreemptedToRun };
    parts[Part::TimerSlack as usize] = injector;
    parts[Part::GuestSwitch as usize] = guest;
    parts[waited as usize] = latency - injector - guest;
    parts
}

/// A count as a scalar.
pub(crate) fn count(n: u64) -> Scalar {
    Scalar { unit: "count", value: n as f64 }
}

impl Counters<'_> {
    fn totals(&self, now: Ns) -> Totals {
        let cpu = |tid: i32| if tid == 0 { (0, 0) } else { schedstat(tid) };
        let host = self
            .progress
            .iter()
            .map(|p| (cpu(p.tid.load(Ordering::Acquire)).0, p.done.load(Ordering::Relaxed)));
        let vms = self.vms.iter().zip(self.exits).zip(&self.plan.vms).map(|((vm, exits), plan)| {
            let mut totals = VmTotals::default();
            for v in &vm.vcpus {
                let (exec, wait) = cpu(v.tid());
                totals.exec_ns += exec;
                totals.wait_ns += wait;
                let s = v.stats();
                let sum = &mut totals.policy;
                sum.boosts += s.boosts;
                sum.notified += s.notified;
                sum.throttles += s.throttles;
                sum.denied += s.denied;
                sum.raced += s.raced;
                sum.boosted_ns += s.boosted_ns;
            }
            let n = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
            totals.exits = [
                &exits.doorbell,
                &exits.notify,
                &exits.register,
                &exits.refused,
                &exits.mmio,
                &exits.send,
            ]
            .map(n);
            totals.tasks = (0..plan.tasks.len() as u64)
                .map(|t| {
                    let at = STATS + t * size_of::<TaskStats>() as u64;
                    let stats: &TaskStats = vm.machine.ram.at(at);
                    (n(&stats.done), n(&stats.glitches))
                })
                .collect();
            totals
        });
        Totals {
            now,
            host: host.collect(),
            calls: self.progress.iter().map(|p| p.calls.load(Ordering::Relaxed)).collect(),
            spurious: self.progress.iter().map(|p| p.spurious.load(Ordering::Relaxed)).sum(),
            injector_ns: cpu(self.injector.load(Ordering::Acquire)).0,
            vms: vms.collect(),
            per_ms: self.rates.per_ms,
        }
    }
}

fn scalars_between(
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
    put("lab", "rings_without_message", "count", since(b.spurious, a.spurious));
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
        // CPU time says who had the CPU; work done also says what it was worth, caches and all.
        put(&probe, "work", "1/s", done / 1e6 / seconds);
    }
    for (vm, (a, b)) in plan.vms.iter().zip(a.vms.iter().zip(&b.vms)) {
        let name = &vm.name;
        let vcpus = vm.vcpu_cpus.len().max(1) as f64;
        let (p, q) = (&a.policy, &b.policy);
        put(name, "cpu", "cpu", since(b.exec_ns, a.exec_ns) / ns);
        put(name, "steal", "%", 100.0 * since(b.wait_ns, a.wait_ns) / (ns * vcpus));
        put(name, "boosts", "1/s", since(q.boosts, p.boosts) / seconds);
        put(name, "throttles", "1/s", since(q.throttles, p.throttles) / seconds);
        put(name, "denied", "1/s", since(q.denied, p.denied) / seconds);
        put(name, "notified", "1/s", since(q.notified, p.notified) / seconds);
        put(name, "raced", "1/s", since(q.raced, p.raced) / seconds);
        put(name, "boosted", "%", 100.0 * since(q.boosted_ns, p.boosted_ns) / (ns * vcpus));
        for (exit, (a, b)) in EXIT_NAMES.iter().zip(a.exits.iter().zip(b.exits)) {
            put(name, &format!("exits.{exit}"), "1/s", since(b, *a) / seconds);
        }
        let mut by_label: BTreeMap<&str, (f64, f64, bool)> = BTreeMap::new();
        for (task, (x, y)) in vm.tasks.iter().zip(a.tasks.iter().zip(&b.tasks)) {
            let sum = by_label.entry(&task.label).or_default();
            sum.0 += since(y.0, x.0);
            sum.1 += since(y.1, x.1);
            sum.2 |= matches!(task.program, Program::Audio { .. });
        }
        for (label, (done, glitches, audio)) in by_label {
            let probe = format!("{name}.{label}");
            let cpu_ns = done * 1e6 / per_ms;
            put(&probe, "throughput", "cpu", cpu_ns / ns);
            if audio {
                put(&probe, "glitches", "1/min", glitches * 60.0 / seconds);
            }
        }
    }
}
