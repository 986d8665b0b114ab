use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::recording::Part;
use vcoop_model::run::Run;
use vcoop_model::trace_event::{
    Event, GuestWork, Left, Observer, SampleEvent, ThreadName, ThreadNames, Work,
};
use vcoop_testing::rig::builtin;

use super::Trace;
use super::schema::{Data, KernelEvent as Kernel, Trace as File, Type};

fn plan(scenario: &str, policy: &str, sets: &[&str]) -> Plan {
    builtin(scenario, &[policy], sets).remove(0)
}

fn traced(plan: &Plan, window: (Ns, Ns)) -> Vec<u8> {
    let mut trace = Trace::new(Vec::new(), plan.warmup_ns, window);
    vcoop_sim::run(Run::new(plan, plan.seed).watched(&mut trace)).expect("a valid plan");
    trace.finish().expect("memory takes all").1
}

/// A decoded trace, as a reader sees it.
#[derive(Default)]
struct Read {
    /// Track to its events: time, type, name.
    tracks: BTreeMap<String, Vec<(u64, Type, String)>>,
    /// CPU to its switches: time, from, to.
    switches: BTreeMap<u32, Vec<(u64, String, String)>>,
    wakes: Vec<(u64, String)>,
    /// Arrows that begin or go on somewhere, and that end.
    flows: BTreeSet<u64>,
    ended: Vec<u64>,
}

fn read(bytes: &[u8]) -> Read {
    let file = File::decode(bytes).expect("a trace is its schema's message");
    let (mut read, mut tracks, mut names) = (Read::default(), BTreeMap::new(), BTreeMap::new());
    for packet in file.packet {
        for name in packet.interned_data.iter().flat_map(|d| &d.event_names) {
            names.insert(name.iid, name.name.clone().unwrap_or_default());
        }
        match packet.data.expect("no packet is empty") {
            Data::TrackDescriptor(t) => {
                let thread = t.thread.and_then(|t| t.thread_name);
                let process = t.process.and_then(|p| p.process_name);
                let name = t.name.or(thread).or(process).expect("a track has a name");
                assert!(tracks.insert(t.uuid, name).is_none(), "a track is described once");
            }
            Data::TrackEvent(e) => {
                let name = e.name.clone().or_else(|| names.get(&e.name_iid).cloned());
                read.flows.extend(&e.flow_ids);
                for ended in &e.terminating_flow_ids {
                    assert!(read.flows.contains(ended), "an arrow begins before it ends");
                    read.ended.push(*ended);
                }
                let events = read.tracks.entry(tracks[&e.track_uuid].clone()).or_default();
                let at = packet.timestamp.expect("an event has a time");
                events.push((at, e.r#type(), name.unwrap_or_default()));
            }
            Data::FtraceEvents(bundle) => {
                let cpu = bundle.cpu();
                for event in bundle.event {
                    let at = event.timestamp.expect("an event has a time");
                    match event.event.expect("no event is empty") {
                        Kernel::SchedSwitch(s) => {
                            let switches = read.switches.entry(cpu).or_default();
                            switches.push((at, s.prev_comm().into(), s.next_comm().into()));
                        }
                        Kernel::SchedWaking(w) => read.wakes.push((at, w.comm().into())),
                    }
                }
            }
            Data::ProcessTree(_) => {}
        }
    }
    read
}

/// Slices nest, end, and time never goes back on a track; scheduling spans tile each CPU.
fn check(read: &Read) {
    for (track, events) in &read.tracks {
        let (mut open, mut last) = (0u32, 0);
        for (at, r#type, _) in events {
            assert!(*at >= last, "{track}: time goes back at {at}");
            last = *at;
            match r#type {
                Type::SliceBegin => open += 1,
                Type::SliceEnd => {
                    open =
                        open.checked_sub(1).unwrap_or_else(|| panic!("{track}: no slice at {at}"));
                }
                _ => {}
            }
        }
        assert_eq!(open, 0, "{track}: every slice ends");
    }
    for (cpu, switches) in &read.switches {
        assert_eq!(switches[0].1, "swapper", "cpu {cpu} begins with what is known");
        for pair in switches.windows(2) {
            assert!(pair[0].0 <= pair[1].0, "cpu {cpu}: time goes back");
            assert_eq!(pair[0].2, pair[1].1, "cpu {cpu}: who had it gives it back");
        }
    }
}

#[test]
fn built_in_scenarios_give_well_formed_traces() {
    let short: &[&str] = &["warmup=\"50ms\"", "duration=\"300ms\""];
    for (scenario, policy, sets) in [
        ("busy-host", "dynamic", short),
        ("busy-host", "vanilla", short),
        ("xen-vmping", "vanilla", &[]),
    ] {
        let plan = plan(scenario, policy, sets);
        let read = read(&traced(&plan, (20_000_000, 300_000_000)));
        check(&read);
        assert!(!read.switches.is_empty(), "{scenario}: somebody ran");
        assert!(!read.ended.is_empty(), "{scenario}: an interrupt woke a task");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let mut plan = plan("busy-host", "dynamic", &["warmup=\"50ms\"", "duration=\"100ms\""]);
    let window = (0, 100_000_000);
    let bytes = traced(&plan, window);
    assert_eq!(bytes, traced(&plan, window));
    plan.seed += 1;
    assert_ne!(bytes, traced(&plan, window));
}

#[test]
fn watching_changes_nothing_in_the_run() {
    let plan = plan("busy-host", "dynamic", &["warmup=\"50ms\"", "duration=\"200ms\""]);
    let alone = vcoop_sim::run(Run::new(&plan, 1)).expect("a valid plan");
    let mut trace = Trace::new(std::io::sink(), plan.warmup_ns, (0, plan.duration_ns));
    let watched = vcoop_sim::run(Run::new(&plan, 1).watched(&mut trace)).expect("a valid plan");
    assert_eq!(alone.scalars, watched.scalars);
    for (a, b) in alone.latencies.iter().zip(&watched.latencies) {
        assert_eq!((a.sum_ns, a.max_ns, a.hist.len()), (b.sum_ns, b.max_ns, b.hist.len()));
    }
}

/// One pCPU, a load, and a VM with one vCPU and one task: a timer interrupt preempts the load.
#[test]
fn known_answer() {
    let names = ThreadNames {
        pcpus: 1,
        threads: vec![
            ThreadName { name: "load".into(), vcpu: None },
            ThreadName { name: "vm/vcpu0".into(), vcpu: Some((0, 0)) },
        ],
        vms: vec!["vm".into()],
        tasks: vec![vec!["audio".into()]],
        labels: vec!["load".into(), "vm".into(), "(idle)".into()],
    };
    let mut trace = Trace::new(Vec::new(), 1000, (0, 1000));
    assert_eq!(trace.windows(), [(1000, 2000)]);
    trace.thread_names(&names);
    trace.opens(1000);
    let (load, vcpu) = (Some(0), Some(1));
    let (task, by, pcpu) = (Some(0), 0, 0);
    for (at, event) in [
        (1000, Event::Switch { pcpu, from: None, to: load, left: Left::Blocked }),
        (1000, Event::Begin { pcpu, work: Work::User }),
        (1100, Event::Begin { pcpu, work: Work::Irq("guest timer") }),
        (1110, Event::Inject { thread: 1, what: "timer", by }),
        (1110, Event::Wake { thread: 1, pcpu, by }),
        (1110, Event::Boost { thread: 1, what: "boost", budget_ns: 70 }),
        (1110, Event::Switch { pcpu, from: load, to: vcpu, left: Left::Preempted }),
        (1110, Event::Begin { pcpu, work: Work::Switch }),
        (1120, Event::Begin { pcpu, work: Work::Entry }),
        (1130, Event::Begin { pcpu, work: Work::Guest(GuestWork::Irq("timer")) }),
        (1140, Event::TaskWake { thread: 1, task: 0, by: 1 }),
        (1150, Event::TaskSwitch { thread: 1, task, left: Left::Blocked }),
        (1150, Event::Begin { pcpu, work: Work::Guest(GuestWork::Task) }),
    ] {
        trace.event(at, &event);
    }
    let mut parts = [0; Part::COUNT];
    parts[Part::WakeToRun as usize] = 40;
    parts[Part::TimerSlack as usize] = 10;
    let sample = SampleEvent {
        probe: "vm.audio",
        due_ns: 1100,
        latency_ns: 50,
        parts: &parts,
        behind: Some(("load", 10)),
        counts: true,
        open: false,
    };
    trace.sample(1150, &sample);
    trace.closes(2000);
    let read = read(&trace.finish().expect("memory takes all").1);
    check(&read);
    let (begin, end, now) = (Type::SliceBegin, Type::SliceEnd, Type::Instant);
    let of = |track: &str| {
        let events = read.tracks[track].iter();
        events.map(|(at, t, name)| (*at, *t, name.as_str())).collect::<Vec<_>>()
    };
    assert_eq!(
        of("pcpu0"),
        [
            (100, begin, "guest timer"),
            (110, now, "inject timer into vm/vcpu0"),
            (110, end, ""),
            (110, begin, "switch"),
            (120, end, ""),
        ]
    );
    assert_eq!(
        of("vm/vcpu0"),
        [
            (120, begin, "entry"),
            (130, end, ""),
            (130, begin, "guest mode"),
            (130, begin, "irq timer"),
            (150, end, ""),
            (150, begin, "audio"),
            (1000, end, ""),
            (1000, end, ""),
        ]
    );
    assert_eq!(
        of("task audio"),
        [(140, begin, "runnable"), (150, end, ""), (150, begin, "on vm/vcpu0"), (1000, end, ""),]
    );
    assert_eq!(of("vm/vcpu0 boost"), [(110, begin, "boosted"), (1000, end, "")]);
    assert_eq!(
        of("vm.audio"),
        [(100, begin, "sample 0: 50.0 ns, 40.0 ns host wait behind load"), (150, end, "")]
    );
    assert_eq!(
        read.switches[&0],
        [(0, "swapper".into(), "load".into()), (110, "load".into(), "vm/vcpu0".into())]
    );
    assert_eq!(read.wakes, [(110, "vm/vcpu0".into())]);
    assert_eq!(read.ended, [1], "from the injection to the first instruction");
}

#[test]
fn samples_that_overlap_have_lanes_of_their_own() {
    let mut trace = Trace::new(Vec::new(), 0, (0, 1000));
    trace.thread_names(&ThreadNames::default());
    trace.opens(0);
    let parts = [0; Part::COUNT];
    for (due_ns, latency_ns) in [(0, 100), (50, 70), (110, 5)] {
        let sample = SampleEvent {
            probe: "p",
            due_ns,
            latency_ns,
            parts: &parts,
            behind: None,
            counts: true,
            open: false,
        };
        trace.sample(due_ns + latency_ns, &sample);
    }
    trace.closes(1000);
    let file = File::decode(&*trace.finish().expect("memory takes all").1).expect("a trace");
    let of = |p: super::schema::TracePacket| match p.data {
        Some(Data::TrackEvent(e)) if e.r#type() == Type::SliceBegin => e.track_uuid,
        _ => None,
    };
    let tracks: Vec<u64> = file.packet.into_iter().filter_map(of).collect();
    assert_eq!(tracks[0], tracks[2]);
    assert_ne!(tracks[0], tracks[1]);
}

/// A VM with four vCPUs: the window opens with two in use, all come back, one stays.
#[test]
fn masks_are_slices_while_vcpus_are_kept_off() {
    let vcpu = |n| ThreadName { name: format!("vm/vcpu{n}"), vcpu: Some((0, n)) };
    let names = ThreadNames {
        pcpus: 1,
        threads: (0..4).map(vcpu).collect(),
        vms: vec!["vm".into()],
        tasks: vec![Vec::new()],
        labels: Vec::new(),
    };
    let mut trace = Trace::new(Vec::new(), 0, (0, 1000));
    trace.thread_names(&names);
    trace.opens(0);
    for (at, vcpus) in [(0, 2), (100, 4), (300, 1), (400, 1)] {
        trace.event(at, &Event::Mask { vm: 0, vcpus });
    }
    trace.closes(1000);
    let read = read(&trace.finish().expect("memory takes all").1);
    check(&read);
    let (begin, end, now) = (Type::SliceBegin, Type::SliceEnd, Type::Instant);
    let told: Vec<_> =
        read.tracks["vm mask"].iter().map(|(at, t, name)| (*at, *t, name.as_str())).collect();
    assert_eq!(
        told,
        [
            (0, begin, "uses 2 of 4 vCPUs"),
            (100, end, ""),
            (100, now, "mask: 2 to 4 vCPUs"),
            (300, begin, "uses 1 of 4 vCPUs"),
            (300, now, "mask: 4 to 1 vCPUs"),
            (400, end, ""),
            (400, begin, "uses 1 of 4 vCPUs"),
            (400, now, "mask: another 1 vCPUs"),
            (1000, end, ""),
        ]
    );
}
