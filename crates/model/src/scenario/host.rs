//! Resolves `[host]` and `[[vm]]` to the plan's host and VMs.

use vcoop_policy::config::Means;
use vcoop_sched::config::{Policy, Topology};

use super::captures::Captures;
use super::credit1;
use super::expand::{Expanded, Place, check_cpus, expand, locks_of};
use super::group::{self, Shares};
use super::keys::sched::{ClassKind, LevelShape, SchedKeys, tick_ns};
use super::keys::workload::{Kind, Workload};
use super::keys::{CostsKind, HostKeys, InterruptKeys, VmKeys};
use super::powervm;
use super::virt;
use crate::diagnostic::{Collector, Span, nearest};
use crate::limits::MAX_VCPUS;
use crate::plan::{
    CoreScheduling, DevicePlan, Dist, HostPlan, HostSched, InterruptPlan, LockKind, Ns, TaskPlan,
    VmPlan,
};
use crate::profile::{Costs, Cpu, Profile};
use crate::toml_read::table::SubTable;
use crate::toml_read::value::OneOrEach;
use crate::toml_read::{Placed, Value};
use crate::topology::topology;

/// The host of a plan, without groups.
pub(crate) fn host(
    keys: &SubTable<HostKeys>,
    profile: &Profile,
    errors: &Collector,
) -> Option<HostPlan> {
    let host = &keys.value;
    let pcpus = host.pcpus.as_ref().map(|p| p.value.get32());
    let topology = match &host.topology {
        Some(given) => topology(given, pcpus.map(|n| (n, "host.pcpus")), errors)?,
        None => fit(profile.topology, pcpus.unwrap_or_else(|| profile.topology.cpus())),
    };
    powervm::refuse_unused(host, errors);
    let class = host.sched.value.class.value;
    let linux = |(key, _): &&(String, Span)| matches!(key.as_str(), "tick_hz" | "preemption");
    let given = keys.given.iter().filter(linux);
    given.for_each(|(key, span)| ClassKind::Linux.only(class, key, *span, errors));
    let shape = LevelShape { topology, tick_ns: tick_ns(&host.tick_hz) };
    let mut costs = profile.costs.clone();
    if host.costs.value == CostsKind::Constant {
        costs.spread.clear();
    }
    if let Some(limit) = &host.cpu_dma_latency {
        costs.limit_idle(limit.value.0);
    }
    let place = Place { cpus: topology.cpus(), guest: false };
    if let Some(cpus) = &host.nohz_full {
        virt::check_nohz(&cpus.value.0, cpus.span, place, errors);
        ClassKind::Linux.only(class, "nohz_full", cpus.span, errors);
    }
    if let Some(speed) = &host.smt_speed {
        let siblings = topology.threads_per_core as usize - 1;
        let speeds = &speed.value.0;
        if siblings == 0 {
            refuse_siblings(speed.span, errors);
        } else if speeds.len() > siblings {
            let message =
                format!("a thread has {siblings} sibling(s), and here are {} speeds", speeds.len());
            errors.error_help(speed.span, message, "give one for each number of busy siblings");
        }
        if speeds.iter().any(|ppm| *ppm < LEAST_SPEED_PPM) {
            errors.error_help(speed.span, "nothing would ever get done", "at least 10%");
        }
        if !speeds.is_sorted_by(|fewer, more| fewer >= more) {
            let message = "a thread would be faster beside more busy ones";
            errors.error_help(speed.span, message, "begin with the speed beside one");
        }
    }
    if host.core_scheduling.value != CoreScheduling::Off {
        let span = host.core_scheduling.span;
        ClassKind::Linux.only(class, "core_scheduling", span, errors);
        if topology.threads_per_core < 2 {
            refuse_siblings(span, errors);
        }
    }
    let speeds = host.smt_speed.as_ref().map_or(&[][..], |speed| &speed.value.0);
    let is_slower = speeds.iter().any(|ppm| *ppm < FULL_SPEED_PPM);
    Some(HostPlan {
        smt_ppm: if is_slower { speeds.to_vec() } else { Vec::new() },
        core_scheduling: host.core_scheduling.value,
        nohz_full: host.nohz_full.as_ref().map_or_else(Vec::new, |cpus| cpus.value.0.clone()),
        interrupts: interrupts(&host.interrupt, place, &costs, errors),
        noise: if host.noise.value { profile.noise.clone() } else { Vec::new() },
        profile: profile.name.clone(),
        origin: profile.origin(),
        cpu: profile.cpu,
        costs,
        sched: match class {
            ClassKind::Linux => HostSched::Linux(host.sched.value.level(shape, errors)),
            ClassKind::Credit1 => HostSched::Credit1(host.credit1.value.resolve(topology, errors)),
            ClassKind::PowerVm => HostSched::Pool(host.powervm.value.resolve(topology, errors)),
        },
        preemption: host.preemption.value,
    })
}

/// Refuses a key about siblings on a host without siblings.
fn refuse_siblings(span: Span, errors: &Collector) {
    let help = "give `topology` with threads_per_core = 2, or take it out";
    errors.error_help(span, "this host's cores have one thread each", help);
}

/// Full speed of a core, and the least speed of a thread on it, in millionths.
const FULL_SPEED_PPM: u32 = 1_000_000;
const LEAST_SPEED_PPM: u32 = 100_000;

/// Least time between interrupts of a device.
const MIN_PERIOD_NS: Ns = 1_000;

/// Refuses a device that interrupts without end.
fn check_period(period: &Placed<Dist>, errors: &Collector) {
    if period.value.mean() < MIN_PERIOD_NS {
        let message = "the device interrupts too often";
        errors.error_help(period.span, message, "at least 1us apart on average");
    }
}

/// The devices that interrupt pCPUs.
fn interrupts(
    all: &[InterruptKeys],
    place: Place,
    costs: &Costs,
    errors: &Collector,
) -> Vec<InterruptPlan> {
    errors.distinct(all.iter().map(|device| (device.name.value.0.as_str(), device.name.span)));
    let mut plans = Vec::new();
    for device in all {
        check_cpus(&device.cpus.value.0, device.cpus.span, place, errors);
        check_period(&device.period, errors);
        let own = device.work.as_ref().map(|work| work.value);
        if let Some(work) = &device.work
            && work.value.mean() >= device.period.value.mean()
        {
            let message = "its handlers take longer than the time between two of them";
            errors.error_help(work.span, message, "less than `period`");
        }
        let cpus = match device.cpus.value.0.as_slice() {
            [] => (0..place.cpus).collect(),
            some => some.to_vec(),
        };
        if device.enabled.value {
            plans.push(InterruptPlan {
                name: device.name.value.0.clone(),
                period: device.period.value,
                work: own.map_or(Dist::Const(costs.device_irq_ns), |work| work),
                cpus,
            });
        }
    }
    plans
}

/// The profile's machine with another number of CPUs: whole caches if they divide it, else whole cores in one cache if
/// they do, else single threads in one cache.
fn fit(machine: Topology, cpus: u32) -> Topology {
    let Topology { threads_per_core, cores_per_llc, .. } = machine;
    let per_llc = threads_per_core * cores_per_llc;
    if cpus.is_multiple_of(per_llc) {
        Topology { llcs: cpus / per_llc, ..machine }
    } else if cpus.is_multiple_of(threads_per_core) {
        Topology { threads_per_core, cores_per_llc: cpus / threads_per_core, llcs: 1 }
    } else {
        Topology::flat(cpus)
    }
}

/// Facts of the host that VMs need.
#[derive(Debug)]
pub(crate) struct HostFacts {
    /// The host's CPUs.
    pub(crate) place: Place,
    /// Whether the host's fair class knows slices.
    pub(crate) slices: bool,
    /// Scheduler of the host.
    pub(crate) class: ClassKind,
    /// Threads of each of its cores.
    pub(crate) threads: u32,
    /// Timers of its CPU.
    pub(crate) cpu: Option<Cpu>,
}

/// Resolves one VM; adds its weight to `shares`.
pub(crate) fn vm(
    keys: &VmKeys,
    host: &HostFacts,
    shares: &mut Shares,
    captures: &mut Captures<'_>,
    errors: &Collector,
) -> Option<VmPlan> {
    let vcpus = keys.vcpus.value.get32();
    let place = Place { cpus: vcpus, guest: true };
    let topology = match &keys.topology {
        Some(given) => {
            let path = format!("vm.{}.vcpus", keys.name.value.0);
            topology(given, Some((vcpus, &path)), errors)?
        }
        None if host.class == ClassKind::PowerVm => powervm::topology(vcpus, host.threads),
        None => Topology::flat(vcpus),
    };
    debug_assert!(i64::from(vcpus) <= MAX_VCPUS);
    let shape = LevelShape { topology, tick_ns: tick_ns(&keys.tick_hz) };
    let level = keys.sched.value.level(shape, errors);

    let pins = each(&keys.pin, vcpus, errors);
    let vcpu_cpus: Vec<Vec<u32>> = pins
        .into_iter()
        .map(|(list, span)| {
            check_cpus(&list.0, span, host.place, errors);
            list.0
        })
        .collect();
    let vcpu_policy: Vec<Policy> = each(&keys.vcpu_policy, vcpus, errors)
        .into_iter()
        .map(|(policy, span)| {
            check_policy_slice(policy, span, host.slices, "host", errors);
            policy
        })
        .collect();
    let vcpu_means = match &keys.means {
        None => vec![None; vcpus as usize],
        Some(means) => each(means, vcpus, errors)
            .into_iter()
            .map(|(means, span)| {
                if matches!(means, Means::Slice(_)) && !host.slices {
                    refuse_slice(span, "host", errors);
                }
                if means == Means::Ext {
                    refuse_ext(span, errors);
                }
                Some(means)
            })
            .collect(),
    };
    check_boot(keys, errors);
    let mut tasks: Vec<Workload> = keys.task.iter().map(|task| task.0.clone()).collect();
    tasks.iter_mut().for_each(|task| task.common.enabled.value = keys.runs(task));
    let workloads: Vec<&Workload> = tasks.iter().collect();
    let Expanded { tasks, mut devices, .. } =
        workloads_of(&workloads, place, &keys.sched.value, &[], captures, errors);
    explicit_devices(keys, place, &workloads, &tasks, &mut devices, errors);
    if keys.sched.value.class.value != ClassKind::Linux {
        let message = "a guest's scheduler is Linux's";
        errors.error_help(keys.sched.value.class.span, message, "take `class` out");
    }
    if host.class != ClassKind::Linux {
        refuse_linux_keys(keys, &vcpu_policy, host.class, errors);
    }
    virt::refuse_foreign(&keys.virt.0, host.class, errors);
    ClassKind::Linux.only(host.class, "group", Placed::span_of(&keys.group), errors);
    ClassKind::Linux.only(host.class, "cpu_max", Placed::span_of(&keys.cpu_max), errors);
    ClassKind::Linux.only(host.class, "vcpu_cpu_max", Placed::span_of(&keys.vcpu_cpu_max), errors);
    let own = Some(keys.vcpu_groups.span).filter(|_| keys.vcpu_groups.value);
    ClassKind::Linux.only(host.class, "vcpu_groups", own, errors);
    ClassKind::PowerVm.only(host.class, "capped", Placed::span_of(&keys.capped), errors);
    ClassKind::Credit1.only(host.class, "cap", Placed::span_of(&keys.cap), errors);
    ClassKind::Credit1.only(host.class, "dom0", Placed::span_of(&keys.dom0), errors);
    let (group, vcpu_groups) = match host.class {
        ClassKind::Linux => group::of_vm(keys, shares, errors),
        ClassKind::Credit1 => {
            shares.domains.push(credit1::domain(keys, errors));
            (u16::try_from(shares.domains.len() - 1).ok(), Vec::new())
        }
        ClassKind::PowerVm => {
            if vcpu_cpus.iter().any(|cpus| !cpus.is_empty()) {
                let help = "take `pin` out: whoever is next gets whatever core is free";
                errors.error_help(keys.pin.span, "a shared pool pins nobody", help);
            }
            shares.partitions.push(powervm::partition(keys, topology, host.threads, errors));
            (u16::try_from(shares.partitions.len() - 1).ok(), Vec::new())
        }
    };
    Some(VmPlan {
        name: keys.name.value.0.clone(),
        label: keys.name.value.0.clone(),
        level,
        preemption: keys.preemption.value,
        vcpu_cpus,
        vcpu_policy,
        vcpu_means,
        group,
        vcpu_groups,
        tasks,
        devices,
        cooperative: keys.cooperative.value,
        waits: keys.waits.value,
        virt: virt::resolve(keys, host.class, host.cpu, errors),
    })
}

/// Refuses policies of vCPU threads and boosts, which Xen and PowerVM do not have.
fn refuse_linux_keys(keys: &VmKeys, policies: &[Policy], has: ClassKind, errors: &Collector) {
    if policies.iter().any(|policy| *policy != Policy::NORMAL) {
        ClassKind::Linux.only(has, "vcpu_policy", keys.vcpu_policy.span, errors);
    }
    ClassKind::Linux.only(has, "means", Placed::span_of(&keys.means), errors);
}

/// Checks that a VM has at most one boot program, and one if something waits for its end.
fn check_boot(keys: &VmKeys, errors: &Collector) {
    let mut boots = keys.task.iter().filter(|t| matches!(t.0.kind, Kind::Boot(_)));
    let first = boots.next();
    for common in first.iter().map(|t| &t.0.common).filter(|c| c.count.value.get() > 1) {
        errors.error(common.count.span, "a VM boots once");
    }
    for other in boots {
        errors.error(other.0.common.name.span, "a VM boots once: this is its second boot program");
    }
    let starts = keys.task.iter().map(|t| &t.0.common.start).filter(|start| start.value.login);
    for start in starts.filter(|_| first.is_none_or(|boot| !boot.0.common.enabled.value)) {
        let help = "add a [[vm.task]] of kind = \"boot\"";
        errors.error_help(start.span, "this VM never logs in: it has no boot program", help);
    }
}

/// Tasks of a level, after checks that names differ and that slices exist.
pub(crate) fn workloads_of(
    workloads: &[&Workload],
    place: Place,
    sched: &SchedKeys,
    groups: &[String],
    captures: &mut Captures<'_>,
    errors: &Collector,
) -> Expanded {
    let level = if place.guest { "guest" } else { "host" };
    errors.distinct(workloads.iter().map(|w| &w.common.name).map(|n| (n.value.0.as_str(), n.span)));
    let mut out = Expanded::default();
    let locks: Vec<_> = workloads.iter().flat_map(|workload| locks_of(workload)).collect();
    for (i, (lock, kind, span)) in locks.iter().enumerate() {
        let class = |kind: LockKind| match kind {
            LockKind::Write => LockKind::Read,
            other => other,
        };
        let mixed = |(other, as_kind, _): &&(u64, LockKind, Span)| {
            other == lock && class(*as_kind) != class(*kind)
        };
        if locks[..i].iter().any(|other| mixed(&other)) {
            let message = format!("lock {lock} is of another kind elsewhere in this VM");
            errors.error_help(*span, message, "give it another number");
        }
    }
    for workload in workloads {
        let start = &workload.common.start;
        if let (Some(process), false) = (&workload.common.process, place.guest) {
            let help = "take it out: only guests flush TLBs here";
            errors.error_help(process.span, "processes are those of guests", help);
        }
        if start.value.login && !place.guest {
            errors.error_help(start.span, "the host logs in nowhere", "give a time");
        }
        if let Some(policy) = &workload.common.policy {
            let slices = sched.fair.value.has_slices();
            check_policy_slice(policy.value, policy.span, slices, level, errors);
        }
        let first = out.tasks.len();
        expand(workload, place, captures, &mut out, errors);
        match &workload.common.group {
            None => {}
            Some(group) if place.guest => {
                let help = "take it out: guests have no control groups here";
                errors.error_help(group.span, "groups are those of the host's threads", help);
            }
            Some(group) => {
                let group = group::number(group, groups, errors);
                out.tasks[first..].iter_mut().for_each(|task| task.group = group);
            }
        }
    }
    out
}

fn explicit_devices(
    keys: &VmKeys,
    place: Place,
    workloads: &[&Workload],
    tasks: &[TaskPlan],
    devices: &mut Vec<DevicePlan>,
    errors: &Collector,
) {
    let taken: Vec<(String, Span)> =
        devices.iter().map(|d| (d.name.clone(), keys.name.span)).collect();
    let own = keys.device.iter().map(|d| (d.name.value.0.as_str(), d.name.span));
    errors.distinct(taken.iter().map(|(name, span)| (name.as_str(), *span)).chain(own));
    for device in &keys.device {
        let vcpu = device.vcpu.value.get32();
        check_cpus(&[vcpu], device.vcpu.span, place, errors);
        check_period(&device.period, errors);
        let wakes = device.wakes.as_ref().and_then(|wakes| {
            let name = wakes.value.0.as_str();
            if !workloads.iter().any(|w| w.common.name.value.0 == name) {
                let message = format!("there is no task `{name}` in this VM");
                let names = workloads.iter().map(|w| &w.common.name.value.0);
                errors.error_help(wakes.span, message, nearest(name, "tasks", names));
            }
            // A task that is not enabled is not there to be woken.
            tasks.iter().position(|task| task.label == name).and_then(|i| u32::try_from(i).ok())
        });
        devices.push(DevicePlan {
            name: device.name.value.0.clone(),
            period: device.period.value,
            vcpu,
            nmi: device.nmi.value,
            softirq: device.softirq.value,
            wakes,
        });
    }
}

/// One value for each vCPU, and the place of the key.
fn each<T: Value + Clone>(
    given: &Placed<OneOrEach<T>>,
    vcpus: u32,
    errors: &Collector,
) -> Vec<(T, Span)> {
    match &given.value {
        OneOrEach::One(value) => vec![(value.clone(), given.span); vcpus as usize],
        OneOrEach::Each(values) => {
            if values.len() != vcpus as usize {
                let message = format!("a list of {} for {vcpus} vCPUs", values.len());
                errors.error_help(given.span, message, "one entry for each vCPU, or one for all");
            }
            values.iter().map(|at| (at.value.clone(), at.span)).collect()
        }
    }
}

/// Refuses a slice of its own under a fair class that has none.
pub(crate) fn check_policy_slice(
    policy: Policy,
    span: Span,
    slices: bool,
    level: &str,
    errors: &Collector,
) {
    if matches!(policy, Policy::Normal { slice_ns: Some(_), .. }) && !slices {
        refuse_slice(span, level, errors);
    }
}

/// Refuses means that only running VMs can have.
pub(crate) fn refuse_ext(span: Span, errors: &Collector) {
    let message =
        "`ext` is decided in the kernel of the host that a VM runs on; nobody simulates that";
    errors.error_help(
        span,
        message,
        "\"fifo 1\" here, and `vcoop attach VM --set policy.wake-boost.means=ext` for a VM that runs",
    );
}

/// Refuses a slice under a fair class without slices.
pub(crate) fn refuse_slice(span: Span, level: &str, errors: &Collector) {
    let help = format!(
        "set fair = \"eevdf\" in [{}.sched], or choose another policy",
        match level {
            "host" => "host",
            _ => "vm",
        }
    );
    errors.error_help(
        span,
        format!("the {level}'s fair class has no slices: cfs and eevdf-6.6 have none"),
        help,
    );
}
