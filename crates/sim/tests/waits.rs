//! Waits of vCPUs for a pCPU after wake-ups, as `vcoop observe` measures them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::*;
use vcoop_model::plan::{Dist, Ns, Plan, Program, Step};
use vcoop_model::recording::{LatencyRecord, Part, Recording};
use vcoop_model::run::Run;
use vcoop_model::trace_event::{Observer, SampleEvent};
use vcoop_sched::config::{Bandwidth, Policy, RtGuard};

/// A vCPU that sleeps most of the time, on a pCPU with two hogs.
fn sleeper(policy: Policy) -> Plan {
    let mut p = plan(eevdf(1), free());
    p.duration_ns = 4 * S;
    for i in 0..2 {
        p.host_tasks.push(task(&format!("hog/{i}"), hog(), Policy::NORMAL, &[]));
    }
    let rt = task("rt", cyclictest(5 * MS, 200 * US), Policy::Fifo(80), &[]);
    let mut guest = vm("g", eevdf(1), vec![rt]);
    guest.vcpu_policy = vec![policy];
    guest.waits = true;
    p.vms = vec![guest];
    probe_all(&mut p);
    p
}

fn of<'r>(r: &'r Recording, probe: &str, metric: &str) -> &'r LatencyRecord {
    let found = r.latencies.iter().find(|l| l.probe == probe && l.metric == metric);
    found.unwrap_or_else(|| panic!("no {probe} {metric}"))
}

fn run(p: &Plan) -> Recording {
    vcoop_sim::run(Run::new(p, 1)).unwrap()
}

#[test]
fn a_vcpus_waits_are_what_its_guests_samples_wait_for_a_pcpu() {
    let r = run(&sleeper(Policy::NORMAL));
    let (waits, samples) = (of(&r, "g.vcpu0", "wait"), of(&r, "g.rt", "latency"));
    assert!(samples.hist.len() > 700 && waits.hist.len() >= samples.hist.len());
    assert_eq!(waits.parts_sum.iter().sum::<u128>(), waits.sum_ns);
    let part = |l: &LatencyRecord, part: Part| l.parts_sum[part as usize];
    let (waited, of_samples) = (part(waits, Part::WakeToRun), part(samples, Part::WakeToRun));
    assert!(waited >= of_samples && waited < of_samples * 11 / 10, "{waited}, {of_samples}");
    assert_eq!(part(waits, Part::PreemptedToRun), 0, "what follows a preemption is none of it");
    // One pCPU, and both hogs want it.
    let hogs: u128 = waits.ran_instead.values().sum();
    assert!(waited > 0 && hogs >= waited * 9 / 10, "{hogs} of {waited}: {:?}", waits.ran_instead);
    assert!(waits.worst[0].latency_ns == waits.max_ns && !waits.worst[0].ran_instead.is_empty());

    let boosted = run(&sleeper(Policy::Fifo(1)));
    let boosted = of(&boosted, "g.vcpu0", "wait");
    assert!(boosted.sum_ns * 10 < waits.sum_ns, "{} {}", boosted.sum_ns, waits.sum_ns);
}

/// Names of the samples' series.
#[derive(Debug, Default)]
struct Told(BTreeSet<String>);

impl Observer for Told {
    fn sample(&mut self, _at: Ns, sample: &SampleEvent<'_>) {
        self.0.insert(sample.probe.to_owned());
    }
}

#[test]
fn a_task_with_the_name_of_a_vcpu_has_samples_of_its_own() {
    let mut p = sleeper(Policy::NORMAL);
    p.vms[0].tasks[0].name = "vcpu0".to_owned();
    p.vms[0].tasks[0].label = "vcpu0".to_owned();
    p.probes.clear();
    probe_all(&mut p);
    let mut told = Told::default();
    vcoop_sim::run(Run::new(&p, 1).watched(&mut told)).unwrap();
    assert_eq!(told.0, BTreeSet::from(["g.vcpu0".to_owned(), "g.vcpu0 wait".to_owned()]));
}

#[test]
fn who_does_not_ask_has_none_and_the_rest_is_the_same() {
    let with = sleeper(Policy::NORMAL);
    let mut without = with.clone();
    without.vms[0].waits = false;
    let (with, without) = (run(&with), run(&without));
    assert_eq!((with.latencies.len(), without.latencies.len()), (2, 1));
    assert_eq!(of(&with, "g.rt", "latency").sum_ns, of(&without, "g.rt", "latency").sum_ns);
    assert_eq!(with.scalars, without.scalars);
}

#[test]
fn a_wait_that_the_end_cuts_off_counts() {
    let mut p = sleeper(Policy::NORMAL);
    // It never gets the pCPU.
    p.host_tasks[0].policy = Policy::Fifo(50);
    p.host.sched.linux_mut().unwrap().rt_guard = vcoop_sched::config::RtGuard::Off;
    p.duration_ns = S;
    let r = run(&p);
    let waits = of(&r, "g.vcpu0", "wait");
    assert_eq!(waits.hist.len(), 1);
    assert!(waits.max_ns > 900 * MS, "{}", waits.max_ns);
}

#[test]
fn what_a_vcpus_thread_did_is_played_as_a_whole() {
    let steps = Arc::new(vec![Step::Run(300 * US), Step::Sleep(MS)]);
    let played = |of_vcpu| {
        let mut costs = dear();
        costs.cstates.truncate(1);
        let mut p = plan(eevdf(2), costs);
        p.duration_ns = 4 * S;
        let program = Program::Script { steps: Arc::clone(&steps), repeat: true };
        let mut vcpu = task("vcpu0", program, Policy::NORMAL, &[]);
        vcpu.of_vcpu = of_vcpu;
        p.vms = vec![vm("g", eevdf(1), vec![vcpu])];
        scalar(&run(&p), "g", "cpu")
    };
    let (alone, whole) = (played(false), played(true));
    // Exits and the guest's kernel are in the 300 us, and not beside them.
    let share = 0.3 / 1.3;
    assert!((whole / share - 1.0).abs() < 0.02, "{whole} of {share}");
    assert!(alone > whole * 1.02, "{alone} and {whole}");
}

#[test]
fn what_a_vcpus_thread_did_begins_when_it_did() {
    let mut p = plan(eevdf(1), free());
    p.duration_ns = 4 * S;
    p.host_tasks.push(task("rt", cyclictest(4_700 * US, 300 * US), Policy::Fifo(80), &[]));
    let steps = Arc::new(vec![Step::Run(300 * US), Step::Sleep(700 * US)]);
    let program = Program::Script { steps, repeat: true };
    let wakeups = |of_vcpu| {
        let mut p = p.clone();
        let mut vcpu = task("vcpu0", program.clone(), Policy::NORMAL, &[]);
        vcpu.of_vcpu = of_vcpu;
        let mut guest = vm("g", eevdf(1), vec![vcpu]);
        guest.waits = true;
        p.vms = vec![guest];
        of(&run(&p), "g.vcpu0", "wait").hist.len()
    };
    let (thread, task) = (wakeups(true), wakeups(false));
    // The host's task holds it up some 500 times, and the guest's timers ring all the same.
    assert!((3_990..=4_001).contains(&thread), "{thread}");
    assert!(task < 3_980, "{task}");
}

#[test]
fn a_vcpu_that_is_throttled_on_an_idle_pcpu_is_stolen_from() {
    let throttled = RtGuard::Throttle(Bandwidth { runtime_ns: S / 2, period_ns: S });
    for (policy, cpu) in [
        (Policy::Fifo(50), 0.5),
        (Policy::Deadline { runtime_ns: 3 * MS, deadline_ns: 10 * MS, period_ns: 10 * MS }, 0.3),
    ] {
        let mut host = eevdf(1);
        host.rt_guard = throttled;
        let mut p = plan(host, free());
        p.duration_ns = 4 * S;
        let mut guest = vm("g", eevdf(1), vec![task("hog", hog(), Policy::NORMAL, &[])]);
        guest.vcpu_policy = vec![policy];
        p.vms = vec![guest];
        let r = run(&p);
        let [had, steal] = ["cpu", "steal"].map(|metric| scalar(&r, "g", metric));
        assert!((had - cpu).abs() < 0.01, "{policy:?}: {had}");
        assert!((steal - (1.0 - cpu) * 100.0).abs() < 1.0, "{policy:?}: {steal} %");
    }
}

#[test]
fn the_way_out_of_an_idle_state_is_no_steal() {
    let mut p = sleeper(Policy::NORMAL);
    p.host_tasks.clear();
    p.host.costs.cstates = dear().cstates;
    let r = run(&p);
    let sample = latency(&r, "g.rt");
    assert!(sample.parts_sum[Part::CState as usize] > 60_000 * 700, "it takes C6");
    assert!(scalar(&r, "g", "steal") < 0.01, "{}", scalar(&r, "g", "steal"));
}

/// A guest that computes, beside a real-time hog that has the pCPU from a time on until another.
fn taken_away(from: u64, until: u64) -> Plan {
    let mut p = plan(unguarded(eevdf(1)), free());
    (p.warmup_ns, p.duration_ns) = (S, S);
    let once = cycle(Dist::Const(until - from), Dist::Const(100 * S));
    let mut rt = task("rt", once, Policy::Fifo(90), &[]);
    rt.start_ns = from;
    let probe = task("probe", cyclictest(MS, 0), Policy::NORMAL, &[]);
    p.host_tasks = vec![rt, probe];
    p.vms = vec![vm("g", eevdf(1), vec![task("hog", hog(), Policy::NORMAL, &[])])];
    probe_all(&mut p);
    p
}

#[test]
fn steal_and_missed_periods_are_those_of_the_measured_time() {
    // The wait begins in the warm-up, or goes on at the end, or both.
    for (from, until, stolen) in [
        (500 * MS, 1_500 * MS, 50.0),
        (1_500 * MS, 2_500 * MS, 50.0),
        (500 * MS, 2_500 * MS, 100.0),
    ] {
        let r = run(&taken_away(from, until));
        let (steal, cpu) = (scalar(&r, "g", "steal"), scalar(&r, "g", "cpu"));
        assert!((steal - stolen).abs() < 1.0, "{from} to {until}: {steal} %");
        assert!((cpu * 100.0 + steal - 100.0).abs() < 1.0, "{from} to {until}: {cpu} CPU");
        let missed = of(&r, "host.probe", "latency").missed as f64;
        assert!((missed / 10.0 - stolen).abs() < 1.0, "{from} to {until}: {missed} of 1000");
    }
}

#[test]
fn a_probe_that_has_to_wait_for_its_first_turn_has_missed_periods() {
    let mut p = taken_away(1, 1_800 * MS);
    p.host_tasks[1].start_ns = MS;
    let missed = of(&run(&p), "host.probe", "latency").missed;
    assert!((795..=805).contains(&missed), "{missed} of 1000");
}
