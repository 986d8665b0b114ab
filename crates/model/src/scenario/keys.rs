//! The tables of a scenario file.
//!
//! The declarations here and below are the file format: reader, `--set`, JSON schema and reference are made from them.
//! The use of the keys is elsewhere.

pub(crate) mod credit1;
pub(crate) mod pinning;
pub(crate) mod powervm;
pub(crate) mod sched;
pub(crate) mod storm;
pub(crate) mod texts;
pub(crate) mod virt;
pub(crate) mod workload;

use crate::diagnostic::Collector;
use crate::limits::{MAX_PCPUS, MAX_VCPUS};
use crate::plan::Dist;
use crate::plan::{CoreScheduling, Preemption};
use crate::toml_read::Node;
use crate::toml_read::Placed;
use crate::toml_read::table::{NamedTables, SharedKeys, SubTable, table};
use crate::toml_read::units::{AtLeast, CpuList, NohzCpus, Percent, Span1, Speeds, Time};
use crate::toml_read::value::{Int, Name, OneOrEach, choice};
use crate::topology::TopologyTable;
use credit1::{Credit1Keys, Dom0Pin, PresetKind};
use pinning::{LoadCpus, Pin};
use powervm::PowerVmKeys;
use sched::SchedKeys;
use storm::{StormKeys, ViewKeys};
use texts::CpuMax;
use vcoop_policy::config::Means;
use vcoop_sched::config::Policy;
use virt::VirtKeys;
use workload::{AfterBoot, GuestTask, HostLoad, Kind, Workload};

table! {
    /// A scenario: one experiment, run for each policy compared and each cell of the matrix.
    pub(crate) struct ScenarioKeys {
        /// Name, as results show it.
        name: Placed<Name>,
        /// One line for lists.
        title: Placed<String>,
        /// What the experiment is and why it is shaped like this.
        about: Placed<String> = "''",
        /// Assumptions about what is neither published nor measured, one sentence each.
        assumptions: Placed<Vec<Placed<String>>> = "[]",
        /// Measured time, after the warm-up.
        duration: Placed<AtLeast<1_000_000>> = "5s",
        /// Time at the start of each run that is not measured.
        warmup: Placed<Time> = "500ms",
        /// Independent repeats, each with a seed of its own.
        repeats: Placed<Int<1, 10_000>> = "10",
        /// Seed of the first repeat.
        seed: Placed<Int<0, { i64::MAX }>> = "1",
        /// The machine and its kernel.
        host: SubTable<HostKeys>,
        /// Control groups of a Linux host, which loads and VMs name.
        group: Vec<GroupKeys>,
        /// Threads of the host that are not vCPUs: loads and probes.
        load: Vec<HostLoad>,
        /// Virtual machines.
        vm: Vec<VmKeys>,
        /// Parameters of built-in policies, and policies of the user's own.
        policy: NamedTables<PolicyKeys>,
        /// Which policies to compare.
        compare: SubTable<CompareKeys>,
        /// What to report; without any, every task that measures.
        probe: Vec<ProbeKeys>,
        /// Fields to vary: path (as in `--set`) = list of values. Every combination is run; paths
        /// joined by a comma in one key change together, to one value or each to its own of a list.
        matrix: Option<Placed<Node>>,
        /// Changes at times of the run.
        at: Vec<AtKeys>,
        /// VMs created during the run.
        storm: Vec<StormKeys>,
        /// Views of single runs.
        view: Vec<ViewKeys>,
    }
}

impl ScenarioKeys {
    /// Whether a probe names something that is there but switched off.
    pub(crate) fn switches_off(&self, probe: &str) -> bool {
        let Some((level, task)) = probe.split_once('.') else { return false };
        let base = task.split('/').next().unwrap_or(task);
        let is_named = |w: &Workload| w.common.name.value.0 == base;
        if level == "host" {
            return self.load.iter().any(|w| is_named(&w.0) && !w.0.common.enabled.value);
        }
        let label = level.split('/').next().unwrap_or(level);
        self.vm.iter().filter(|vm| vm.name.value.0 == label).any(|vm| {
            vm.task.iter().any(|t| is_named(&t.0) && !(vm.enabled.value && vm.runs(&t.0)))
        })
    }
}

choice! {
    /// Whether costs vary.
    pub(crate) enum CostsKind {
        /// Those vary of which the profile has a distribution.
        Drawn = "drawn",
        /// None does: each takes the constant that the profile has beside it.
        Constant = "constant",
    }
}

table! {
    /// The host.
    pub(crate) struct HostKeys {
        /// Machine profile: a built-in name, or a profile file relative to the scenario's.
        profile: Placed<String> = "xeon-server",
        /// Simulated only: whether costs vary as the profile says (those of `epyc-pvm` and of `vcoop calibrate` vary;
        /// the others are constants).
        costs: Placed<CostsKind> = "drawn",
        /// Simulated only: whether interrupts and kernel threads take pCPUs at times, as the profile says.
        /// `celeron-n4500`, `epyc-pvm` and profiles of `vcoop calibrate` have the noise of a host that was idle; the
        /// other profiles have none.
        noise: Placed<bool> = "true",
        /// Number of pCPUs. Default: those of the topology, else of the profile.
        pcpus: Option<Placed<Int<1, MAX_PCPUS>>>,
        /// Topology: which pCPUs share cores and caches. Default: the profile's, where `pcpus` fits its cores and
        /// caches; else one cache for all.
        topology: Option<Placed<TopologyTable>>,
        /// Ticks a second.
        tick_hz: Placed<Int<10, 10_000>> = "250",
        /// Kernel preemption.
        preemption: Placed<Preemption> = "voluntary",
        /// Longest exit latency that an idle state may have, as a process requests it by `/dev/cpu_dma_latency`. Deeper
        /// states are not entered. With "0us" idle pCPUs poll. Default: no limit.
        cpu_dma_latency: Option<Placed<Time>>,
        /// pCPUs that have no periodic tick while one thread runs there (`nohz_full`); one pCPU has to keep the tick.
        /// Timers that are set on them fire on a housekeeping pCPU, which also takes their device interrupts. Default:
        /// "none".
        nohz_full: Option<Placed<NohzCpus>>,
        /// Speed of a thread's or guest's own work while another hardware thread of its core is busy, as a share of its
        /// speed on a core alone: "60%". For a core of more than two threads, the speeds beside one, two and more busy
        /// threads: "70%, 50%, 40%"; the last one also holds for more busy threads. Handlers, exits and switches take
        /// as long as always. Simulated only. Default: 100%.
        smt_speed: Option<Placed<Speeds>>,
        /// Linux: core scheduling. Which vCPUs may run on the hardware threads of a core at the same time. The host's
        /// other threads may run beside each other, but beside no vCPU. Simulated only.
        core_scheduling: Placed<CoreScheduling> = "off",
        /// Devices that interrupt pCPUs.
        interrupt: Vec<InterruptKeys>,
        /// Scheduler.
        sched: SubTable<SchedKeys>,
        /// credit1: its tunables.
        credit1: SubTable<Credit1Keys>,
        /// powervm: the pool.
        powervm: SubTable<PowerVmKeys>,
        /// credit1: where dom0 runs. Default: as its `pin` says.
        dom0_pin: Option<Placed<Dom0Pin>>,
    }
}

table! {
    /// A device of the host that interrupts pCPUs: a network card with a queue for each of them, a disk. Its handlers
    /// take time, and vCPUs that run on these pCPUs exit. Its data is not modelled. Simulated only.
    pub(crate) struct InterruptKeys {
        /// Name.
        name: Placed<Name>,
        /// False: it is left out of the scenario. A matrix can vary it.
        enabled: Placed<bool> = "true",
        /// Time from one interrupt to the next, on each of its pCPUs.
        period: Placed<Dist>,
        /// CPU time of handler and softirq. Default: `device_irq` of the profile.
        work: Option<Placed<Dist>>,
        /// pCPUs that take them.
        cpus: Placed<CpuList> = "all",
    }
}

table! {
    /// A control group of a Linux host, with the CPU controller.
    pub(crate) struct GroupKeys {
        /// Name.
        name: Placed<Name>,
        /// The `[[group]]` that contains it, which must stand before it in the file. Default: none.
        group: Option<Placed<Name>>,
        /// Weight of all its threads on all CPUs together, compared with the threads and groups beside it (1024: as a
        /// thread of nice 0, and `cpu.weight` 100). It is divided between CPUs as the group's load is. With eevdf-7.3 the
        /// group has it for each runnable thread, but at most for each CPU.
        weight: Placed<Int<2, 262_144>> = "1024",
        /// Most CPU time of its fair threads and those of groups in it, on all CPUs together, in each period. Threads
        /// under `fifo`, `rr` and `deadline`, and so vCPUs with a boost of that kind, run even if it is used up.
        /// Simulated only. Default: no limit.
        cpu_max: Option<Placed<CpuMax>>,
        /// Most unused time of `cpu_max` that may be used later; at most `cpu_max`.
        cpu_max_burst: Placed<Time> = "0us",
    }
}

table! {
    /// A virtual machine.
    pub(crate) struct VmKeys {
        /// Name.
        name: Placed<Name>,
        /// False: it is left out of the scenario. A matrix can vary it.
        enabled: Placed<bool> = "true",
        /// Copies, named NAME/0, NAME/1, ... when there are several. Series and numbers of all are shown
        /// as one, under NAME.
        count: Placed<Int<1, 1024>> = "1",
        /// Number of vCPUs.
        vcpus: Placed<Int<1, MAX_VCPUS>>,
        /// pCPUs the vCPUs may use: one list for all, or one each.
        pin: Placed<OneOrEach<CpuList>> = "all",
        /// Linux: weight of a control group for this VM alone, 2 to 262144, as that of a `[[group]]`, and in its
        /// `group`; default: no group. credit1: weight of each of its active vCPUs, 1 to 65535; default: 256. powervm:
        /// weight in what others leave, 0 (capped) to 255; default: 128.
        weight: Option<Placed<Int<0, 262_144>>>,
        /// Linux: the `[[group]]` that its vCPU threads are in, or its own group, if it has `weight` or `cpu_max`.
        group: Option<Placed<Name>>,
        /// Linux: most CPU time of its vCPU threads, as that of a `[[group]]`; the VM then has a group of its own.
        /// Default: no limit.
        cpu_max: Option<Placed<CpuMax>>,
        /// Linux: each vCPU thread is in a group of its own, of weight 1024, in the VM's group, as libvirt makes them.
        /// The thread's nice value then has no effect, because the thread is alone in its group.
        vcpu_groups: Placed<bool> = "false",
        /// Linux: most CPU time of each vCPU thread, as `<quota>` of libvirt sets it; each then has a group of its own.
        /// Default: no limit.
        vcpu_cpu_max: Option<Placed<CpuMax>>,
        /// Linux: most unused time of `cpu_max` that may be used later; at most `cpu_max`. Default: 0us.
        cpu_max_burst: Option<Placed<Time>>,
        /// credit1: the VM's cap: its largest CPU time in percent of one pCPU, up to 100 for each vCPU. 0: no cap.
        /// Default: 0.
        cap: Option<Placed<Int<0, 25_600>>>,
        /// powervm: the VM gets no time beyond its entitlement. Default: false.
        capped: Option<Placed<bool>>,
        /// credit1: this VM is dom0, to which `dom0_pin` and the rules of patches apply.
        dom0: Option<Placed<bool>>,
        /// Scheduling policy of vCPU threads when not boosted: one for all, or one each.
        vcpu_policy: Placed<OneOrEach<Policy>> = "other",
        /// Means of boosting, instead of the policy's: one for all, or one each.
        means: Option<Placed<OneOrEach<Means>>>,
        /// Topology of the vCPUs, as the guest sees it. Default: one cache for all, no SMT.
        topology: Option<Placed<TopologyTable>>,
        /// Ticks a second of the guest.
        tick_hz: Placed<Int<10, 10_000>> = "250",
        /// Preemption of the guest's kernel.
        preemption: Placed<Preemption> = "voluntary",
        /// The guest takes part in the boost protocol.
        cooperative: Placed<bool> = "true",
        /// Simulated only: each vCPU has a series of its waits, VM.vcpuN with the metric `wait`. A wait is the time
        /// from a wake-up of the vCPU's thread until it runs. It counts as a guest's latency, like the waits that
        /// `vcoop observe` measures.
        waits: Placed<bool> = "false",
        /// How it is virtualised.
        virt: SharedKeys<VirtKeys>,
        /// The guest's scheduler.
        sched: SubTable<SchedKeys>,
        /// Tasks of the guest.
        task: Vec<GuestTask>,
        /// Devices that interrupt it.
        device: Vec<DeviceKeys>,
    }
}

impl VmKeys {
    pub(crate) fn is_dom0(&self) -> bool {
        self.dom0.as_ref().is_some_and(|k| k.value)
    }

    /// Whether a task of it runs, at some time, if it does.
    pub(crate) fn runs(&self, task: &Workload) -> bool {
        task.common.enabled.value && !(task.common.start.value.login && self.never_logs_in())
    }

    /// Whether tasks that start at login never do, because its boot program goes on with something else: they are
    /// left out.
    pub(crate) fn never_logs_in(&self) -> bool {
        self.task.iter().any(|task| match &task.0.kind {
            Kind::Boot(boot) => task.0.common.enabled.value && boot.then.value != AfterBoot::Tasks,
            _ => false,
        })
    }
}

table! {
    /// A device that interrupts a guest.
    pub(crate) struct DeviceKeys {
        /// Name.
        name: Placed<Name>,
        /// Time between interrupts.
        period: Placed<Dist>,
        /// vCPU that takes it.
        vcpu: Placed<Int<0, 255>> = "0",
        /// Injected as an NMI.
        nmi: Placed<bool> = "false",
        /// CPU time of the guest's softirq half.
        softirq: Placed<Dist> = "0us",
        /// Guest task it wakes.
        wakes: Option<Placed<Name>>,
    }
}

/// Kinds of policies that have a boost with a budget.
const BOOSTING: &[&str] = &["dynamic", "wake-boost"];
/// All kinds of policies with parameters, and `vanilla` for those without.
const EVERY: &[&str] = &["static", "dynamic", "wake-boost", "ratelimit-auto", "vanilla"];

/// Declares the parameters of policies, all optional, and the kinds of policies that have each of them.
macro_rules! policy_keys {
    ($( $(#[doc = $doc:literal])+ $key:ident : $type:ty => $kinds:expr ),+ $(,)?) => {
        table! {
            /// A policy. A built-in one (`vanilla`, `dynamic`, `step` and the others of `vcoop list policies`) keeps
            /// what is not given here; one of another name starts from its `base`.
            pub(crate) struct PolicyKeys {
                /// Policy this one starts from.
                base: Option<Placed<String>>,
                $( $(#[doc = $doc])+ $key: Option<Placed<$type>>, )+
                /// Every policy: virtualisation of all VMs under this policy, instead of their own keys.
                virt: SharedKeys<VirtKeys>,
            }
        }

        impl PolicyKeys {
            /// These parameters, and what they lack from `under`.
            pub(crate) fn over(self, under: Self) -> Self {
                let virt = SharedKeys(self.virt.0.over(under.virt.0));
                Self { base: None, $( $key: self.$key.or(under.$key), )+ virt }
            }

            /// Refuses parameters that mean nothing to a policy of this kind.
            pub(crate) fn refuse_foreign(&self, kind: &str, errors: &Collector) {
                let like = if EVERY.contains(&kind) { kind } else { "vanilla" };
                let all = [$( (stringify!($key), Placed::span_of(&self.$key), $kinds.contains(&like)) ),+];
                let own = all.iter().filter(|(.., own)| *own).map(|(key, ..)| *key);
                let help = format!("parameters of `{kind}`: {}", own.collect::<Vec<_>>().join(", "));
                for (key, span, _) in all.iter().filter(|(.., own)| !own) {
                    if let Some(span) = *span {
                        let message = format!("`{key}` means nothing to `{kind}`");
                        errors.error_help(span, message, help.as_str());
                    }
                }
            }
        }
    };
}

policy_keys! {
    /// Means of a boost: class and priority, nice value or slice (`static`: those of vCPU threads all the time).
    means: Means => &["static", "dynamic", "wake-boost"],
    /// Boosted time a vCPU can use at once.
    vcpu_burst: Span1 => BOOSTING,
    /// Boosted time a vCPU gains, as a share of elapsed time.
    vcpu_refill: Percent<100> => BOOSTING,
    /// Boosted time the vCPUs of a VM can use together at once.
    vm_burst: Span1 => BOOSTING,
    /// Boosted time a VM gains, as a share of one CPU; several vCPUs can use more than one.
    vm_refill: Percent<4000> => BOOSTING,
    /// dynamic: longest boost at once. Boosted time adds to an account, and time without a boost takes from it; a
    /// full account ends the boost. Boosts may exceed this for a two-hundredth of the time. 0: no such limit.
    longest_boost: Time => &["dynamic"],
    /// dynamic: longest boost for one preempt-disabled section.
    max_preempt_off: Span1 => &["dynamic"],
    /// dynamic, wake-boost: boost when an interrupt is injected. For a real VM without a driver this needs KVM's
    /// own events: a build with the feature `bpf`.
    boost_on_injection: bool => BOOSTING,
    /// dynamic: boost a vCPU that is not running when another one sends it an IPI. With posted
    /// IPIs the sender then asks by a hypercall.
    boost_receiver: bool => &["dynamic"],
    /// dynamic: act on the guest's request at VM exits.
    boost_on_request: bool => &["dynamic"],
    /// dynamic: boost the vCPU when it halts, so that it is boosted already when it wakes up.
    boost_across_idle: bool => &["dynamic"],
    /// dynamic and wake-boost: a vCPU gives back the CPU time that it gains by boosts: its thread has a nice
    /// value below its baseline while it is not boosted. So a boost costs others less CPU time, and the
    /// VM's background work gets less.
    repay: bool => BOOSTING,
    /// dynamic and wake-boost: EEVDF slice of a vCPU's thread while it is not boosted, 100us to 100ms; 0us: as
    /// `vcpu_policy` says. With a short slice other fair threads that wake up on its pCPU wait less.
    rest_slice: Time => BOOSTING,
    /// wake-boost: longest boost of a vCPU after a wake-up.
    run: Span1 => &["wake-boost"],
    /// vanilla and ratelimit-auto, on a credit1 host: patches of the scheduler by name, in
    /// place of those in `[host.credit1.patches]`. `vcoop list policies` has the names.
    patches: Vec<Placed<String>> => &["ratelimit-auto", "vanilla"],
    /// Likewise: patches to start from.
    preset: PresetKind => &["ratelimit-auto", "vanilla"],
    /// ratelimit-auto: interval at which a domain is examined.
    interval: AtLeast<1_000_000> => &["ratelimit-auto"],
    /// ratelimit-auto: least ratelimit, 0us (off) or 100us to 500ms.
    min_ratelimit: Time => &["ratelimit-auto"],
    /// ratelimit-auto: largest ratelimit, 100us to 500ms. It is bounded by the timeslice.
    max_ratelimit: Time => &["ratelimit-auto"],
    /// ratelimit-auto: a domain runs briefly if its mean run from wake-up to block is at most this. A wake-up is
    /// short by the same limit.
    brief: Span1 => &["ratelimit-auto"],
    /// ratelimit-auto: a domain does not run briefly any more if its mean run reaches this.
    busy: Span1 => &["ratelimit-auto"],
    /// ratelimit-auto: a domain's ratelimit is lowered from this average number of short wake-ups of others a
    /// second.
    pressed: Int<1, 1_000_000> => &["ratelimit-auto"],
    /// ratelimit-auto: the ratelimit is raised again if there are at most this number of short wake-ups a second.
    calm: Int<0, 1_000_000> => &["ratelimit-auto"],
    /// ratelimit-auto: number of intervals in a row that must show the same phase before it is confirmed.
    confirm: Int<1, 100> => &["ratelimit-auto"],
    /// Every policy: pCPUs that vCPUs may use under it, as `pin` of a VM: one list for all, or one each.
    /// "own": a pCPU that no other vCPU is pinned to, the first of those left. VMs must have no `pin`
    /// of their own.
    pin: OneOrEach<Pin> => EVERY,
    /// Every policy: pCPUs that the host's loads may use under it; "others": those that no vCPU is
    /// pinned to. A load that has `cpus` stays there, as do a kernel's threads that are bound to a CPU.
    load_cpus: LoadCpus => EVERY,
}

table! {
    /// What to compare.
    pub(crate) struct CompareKeys {
        /// Policies, in the order of the report.
        policy: Placed<Vec<Placed<String>>> = "['vanilla', 'wake-boost', 'dynamic', 'static']",
        /// Policy that ratios are taken to. Default: vanilla if it is compared, else the first.
        baseline: Option<Placed<String>>,
    }
}

table! {
    /// A series to report.
    pub(crate) struct ProbeKeys {
        /// `host.LOAD` or `VM.TASK`; of several copies `host.LOAD/0`, or all of them without the
        /// number. All copies of a VM are one series, `VM/3.TASK` is that of one.
        task: Placed<String>,
    }
}

choice! {
    /// On or off.
    pub(crate) enum Switch {
        /// On.
        On = "on",
        /// Off.
        Off = "off",
    }
}

table! {
    /// A change during the run: `boost`, `policy` of a vCPU, or vCPUs to `prefer`.
    pub(crate) struct AtKeys {
        /// When, counted from the start of the warm-up.
        time: Placed<Time>,
        /// Switch boosting, for `vm` or for all.
        boost: Option<Placed<Switch>>,
        /// VM.
        vm: Option<Placed<String>>,
        /// vCPU whose `policy` changes.
        vcpu: Option<Placed<Int<0, 255>>>,
        /// New scheduling policy of the vCPU thread when not boosted.
        policy: Option<Placed<Policy>>,
        /// vCPUs that the guest of `vm` prefers from now on: it keeps its tasks off the others. If the VM has a
        /// governor, the governor's next decision replaces this.
        prefer: Option<Placed<CpuList>>,
    }
}
