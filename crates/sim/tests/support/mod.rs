//! Plans for tests: a machine where everything is free, to be made dearer where a test wants it.

pub(crate) mod virt;

use std::collections::BTreeMap;

use vcoop_abi::conformance::Limits;
use vcoop_credit1::{Credit1Config, Domain};
use vcoop_model::plan::{
    Act, CoreScheduling, DevicePlan, Dist, HostPlan, HostSched, Mode, Ns, Phase, Plan, PolicyPlan,
    Preemption, ProbePlan, Program, SampleEnd, Target, TaskPlan, Virt, VmPlan,
};
use vcoop_model::profile::{CState, Costs, Cpu, Profile};
use vcoop_model::quantiles::{LEVELS, Quantiles};
use vcoop_model::recording::Recording;
use vcoop_sched::config::{
    Balance, Bandwidth, CfsTunables, DlConfig, EevdfTunables, Fair, LevelConfig, Policy, RtGuard,
    Topology,
};
pub(crate) use vcoop_testing::rig::{latency, scalar, scalar_or_zero};

pub(crate) const US: Ns = 1_000;
pub(crate) const MS: Ns = 1_000_000;
pub(crate) const S: Ns = 1_000_000_000;

/// A cycle is a nanosecond, and the preemption timer counts every fourth.
pub(crate) const CPU: Cpu =
    Cpu { tsc_khz: 1_000_000, signature: 0x50654, preemption_timer_shift: Some(2) };

/// Everything free, no idle states.
pub(crate) fn free() -> Costs {
    let zero = Profile::load("zero").expect("it is built in");
    let costs = zero.costs.with(|_| 0);
    Costs { pv_spin_ns: 1_529 * US, voluntary_point_ns: 100 * US, cstates: vec![], ..costs }
}

/// Round numbers for every mechanism.
pub(crate) fn dear() -> Costs {
    Costs {
        tick_ns: 900,
        timer_irq_ns: 700,
        timer_program_ns: 200,
        ipi_send_ns: 300,
        ipi_flight_ns: 800,
        llc_crossing_ns: 250,
        cache_line_ns: 100,
        ipi_receive_ns: 500,
        device_irq_ns: 1_500,
        wakeup_ns: 600,
        context_switch_ns: 1_100,
        sleep_ns: 1_700,
        sleep_idle_ns: 600,
        migration_refill_ns: 5_000,
        switch_refill_ns: 1_000,
        setattr_ns: 1_300,
        exit_ns: 700,
        entry_ns: 600,
        inject_ns: 150,
        handle_timer_msr_ns: 400,
        handle_icr_ns: 500,
        handle_eoi_ns: 300,
        handle_hypercall_ns: 450,
        handle_hlt_ns: 800,
        handle_window_ns: 250,
        handle_hv_timer_ns: 350,
        set_hv_timer_ns: 150,
        arm_hv_timer_ns: 50,
        fastpath_ns: 800,
        poll_notice_ns: 120,
        vcpu_load_ns: 900,
        vcpu_put_ns: 300,
        guest_irq_ns: 1_000,
        guest_tick_ns: 1_200,
        guest_wakeup_ns: 700,
        guest_switch_ns: 1_000,
        block_ns: 400,
        guest_sleep_ns: 1_600,
        lab_sleep_ns: 300,
        pv_spin_ns: 1_529 * US,
        voluntary_point_ns: 100 * US,
        cstates: vec![
            CState { name: "C1".into(), exit_ns: 2 * US, residency_ns: 0, monitor: false },
            CState { name: "C6".into(), exit_ns: 60 * US, residency_ns: 200 * US, monitor: false },
        ],
        spread: BTreeMap::new(),
    }
}

/// The same costs, each with a distribution whose median it is: from half of it to forty times as much.
pub(crate) fn varying(costs: Costs) -> Costs {
    const TENTHS: [Ns; LEVELS] = [5, 8, 10, 13, 20, 50, 120, 400];
    let constants = costs.entries().into_iter().map(|(key, ns)| (key.to_owned(), ns));
    let exits = costs.cstates.iter().map(|s| (format!("cstate.{}", s.name), s.exit_ns));
    let spread = |(key, ns)| (key, Quantiles::ascending(TENTHS.map(|tenths| ns * tenths / 10)));
    Costs { spread: constants.chain(exits).map(spread).collect(), ..costs }
}

pub(crate) fn level(cpus: u32, fair: Fair) -> LevelConfig {
    LevelConfig {
        topology: Topology::flat(cpus),
        tick_ns: MS,
        fair,
        rr_slice_ns: 100 * MS,
        rt_guard: RtGuard::Throttle(Bandwidth { runtime_ns: 950 * MS, period_ns: S }),
        // Tests confine what they like.
        dl: DlConfig { admission: false, hrtick: false },
        balance: Balance::default(),
        groups: vec![],
    }
}

pub(crate) fn cfs(cpus: u32) -> LevelConfig {
    level(cpus, Fair::Cfs(CfsTunables::for_cpus(cpus)))
}

pub(crate) fn eevdf(cpus: u32) -> LevelConfig {
    level(cpus, Fair::Eevdf(EevdfTunables::for_cpus(cpus)))
}

pub(crate) fn plan(host: LevelConfig, costs: Costs) -> Plan {
    Plan {
        scenario: "test".into(),
        policy_name: "vanilla".into(),
        params: BTreeMap::new(),
        duration_ns: S,
        warmup_ns: 0,
        repeats: 1,
        seed: 1,
        host: HostPlan {
            profile: "test".into(),
            origin: String::new(),
            cpu: Some(CPU),
            costs,
            sched: HostSched::Linux(host),
            nohz_full: vec![],
            smt_ppm: Vec::new(),
            core_scheduling: CoreScheduling::Off,
            interrupts: vec![],
            noise: vec![],
            preemption: Preemption::Full,
        },
        host_tasks: vec![],
        vms: vec![],
        policy: PolicyPlan::Vanilla,
        probes: vec![],
        timeline: vec![],
        storms: vec![],
        views: vec![],
        slices: 0,
    }
}

pub(crate) fn task(name: &str, program: Program, policy: Policy, cpus: &[u32]) -> TaskPlan {
    TaskPlan {
        name: name.into(),
        label: name.into(),
        program,
        policy,
        cpus: cpus.to_vec(),
        start_ns: 0,
        together: false,
        after_login: false,
        timer_slack_ns: 0,
        group: None,
        process: None,
        stress_ng: None,
        of_vcpu: false,
    }
}

/// A device whose interrupts come one by one, to vCPU 0.
pub(crate) fn device(name: &str, period_ns: Ns, softirq_ns: Ns) -> DevicePlan {
    DevicePlan {
        name: name.into(),
        period: Dist::Const(period_ns),
        vcpu: 0,
        nmi: false,
        softirq: Dist::Const(softirq_ns),
        wakes: None,
    }
}

pub(crate) fn hog() -> Program {
    Program::Cycle { phases: vec![Phase::Run { time: Dist::Const(S), mode: Mode::User }] }
}

pub(crate) fn cycle(run: Dist, sleep: Dist) -> Program {
    Program::Cycle {
        phases: vec![Phase::Run { time: run, mode: Mode::User }, Phase::Sleep { time: sleep }],
    }
}

pub(crate) fn cyclictest(interval_ns: Ns, work_ns: Ns) -> Program {
    Program::Cyclictest {
        interval_ns,
        absolute: true,
        work: Dist::Const(work_ns),
        phase: Dist::Const(0),
    }
}

/// A server: this much CPU time for each call.
pub(crate) fn serve(work: Ns) -> Program {
    Program::Serve { work: Dist::Const(work), wait: Dist::Const(0), irq_vcpu: 0, section: None }
}

/// Calls a server each interval, and does nothing else.
pub(crate) fn ping(interval_ns: Ns, server: Target) -> Program {
    let (phase, work) = (Dist::Const(0), Dist::Const(0));
    Program::Ping { interval_ns, phase, server, irq_vcpu: 0, work }
}

/// Without the guard against real-time threads.
pub(crate) fn unguarded(level: LevelConfig) -> LevelConfig {
    LevelConfig { rt_guard: RtGuard::Off, ..level }
}

/// The same, and no ticks in sight.
pub(crate) fn tickless(level: LevelConfig) -> LevelConfig {
    LevelConfig { tick_ns: 100 * S, ..unguarded(level) }
}

/// VMs on a host of Xen or PowerVM, each in a group of its own.
pub(crate) fn hosted(sched: HostSched, vms: Vec<VmPlan>) -> Plan {
    let mut p = plan(eevdf(1), free());
    p.host.sched = sched;
    p.vms = vms;
    (0..).zip(&mut p.vms).for_each(|(i, vm)| vm.group = Some(i));
    probe_all(&mut p);
    p
}

/// A credit scheduler with one domain for each VM.
pub(crate) fn credit1(pcpus: u32, vms: usize) -> Credit1Config {
    Credit1Config::new(Topology::flat(pcpus), vec![Domain::default(); vms])
}

/// A VM whose vCPU never sleeps.
pub(crate) fn cpu_loop(name: &str) -> VmPlan {
    vm(name, eevdf(1), vec![task("loop", hog(), Policy::NORMAL, &[])])
}

pub(crate) fn vm(name: &str, guest: LevelConfig, tasks: Vec<TaskPlan>) -> VmPlan {
    let n = guest.topology.cpus() as usize;
    VmPlan {
        name: name.into(),
        label: name.into(),
        level: guest,
        preemption: Preemption::Full,
        vcpu_cpus: vec![vec![]; n],
        vcpu_policy: vec![Policy::NORMAL; n],
        vcpu_means: vec![None; n],
        group: None,
        vcpu_groups: Vec::new(),
        tasks,
        devices: vec![],
        cooperative: true,
        waits: false,
        virt: Virt::default(),
    }
}

/// Asks for a series of every measuring task.
pub(crate) fn probe_all(plan: &mut Plan) {
    let measures = |t: &TaskPlan| vcoop_sim::program::Runner::measures(&t.program);
    let mut probes = vec![];
    for (i, t) in plan.host_tasks.iter().enumerate().filter(|(_, t)| measures(t)) {
        let target = Target::Host(i as u32);
        let probe = format!("host.{}", t.name);
        probes.push(ProbePlan { probe, target, moment: SampleEnd::Task });
    }
    for (m, vm) in plan.vms.iter().enumerate() {
        for (i, t) in vm.tasks.iter().enumerate().filter(|(_, t)| measures(t)) {
            let target = Target::Guest { vm: m as u32, task: i as u32 };
            let probe = format!("{}.{}", vm.name, t.name);
            if t.program.times_interrupts() {
                let (probe, moment) = (format!("{probe}.interrupt"), SampleEnd::Interrupt);
                probes.push(ProbePlan { probe, target, moment });
            }
            probes.push(ProbePlan { probe, target, moment: SampleEnd::Task });
        }
    }
    plan.probes = probes;
}

/// Runs a plan. What guests and host do with their pages is held against the protocol.
pub(crate) fn run(plan: &Plan) -> Recording {
    let (recording, pages) =
        vcoop_sim::check_pages(plan, plan.seed, LIMITS).expect("a test plan can be built");
    for page in pages {
        for report in page.guest.iter().chain([&page.host]) {
            let broken: Vec<_> = report.violations().collect();
            assert!(broken.is_empty(), "{}: {broken:?}", page.vcpu);
        }
    }
    recording
}

/// A vCPU that has lost its pCPU answers late.
pub(crate) const LIMITS: Limits = Limits { grace_ns: 5 * MS, burst_ns: None, refill_ppm: 0 };

pub(crate) fn run_for(ns: Ns, mode: Mode) -> Act {
    Act::Do(Phase::Run { time: Dist::Const(ns), mode })
}

pub(crate) fn user(us: Ns) -> Act {
    run_for(us * US, Mode::User)
}

pub(crate) fn nap(us: Ns) -> Act {
    Act::Do(Phase::Sleep { time: Dist::Const(us * US) })
}

pub(crate) fn routine(acts: Vec<Act>) -> Program {
    Program::Routine { acts }
}

/// A VM on a free machine: one task for each vCPU, each on its own; vCPU `i` on pCPU `pins[i]`.
pub(crate) fn machine(pcpus: u32, pins: &[u32], tasks: Vec<Program>) -> Plan {
    let mut p = plan(eevdf(pcpus), free());
    let tasks = tasks.into_iter().enumerate().map(|(i, program)| {
        task(&format!("t{i}"), program, Policy::NORMAL, &[i as u32 % pins.len() as u32])
    });
    let mut vm = vm("guest", eevdf(pins.len() as u32), tasks.collect());
    for task in &mut vm.tasks {
        // Peers of one address space.
        task.label = "t".into();
    }
    vm.vcpu_cpus = pins.iter().map(|&pin| vec![pin]).collect();
    p.vms = vec![vm];
    probe_all(&mut p);
    p
}

pub(crate) fn mean(r: &Recording, probe: &str) -> f64 {
    let l = latency(r, probe);
    l.sum_ns as f64 / l.hist.len() as f64
}
