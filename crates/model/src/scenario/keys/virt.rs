//! Keys about how VMs are virtualised: of `[[vm]]`, and of `[policy.NAME]` for all VMs.

use vcoop_policy::config::{AdvanceConfig, HostPollConfig};
use vcoop_policy::govern::Kind;

use crate::diagnostic::Span;
use crate::plan::virt::{
    ApicVirt, ExitsOff, GuestIdle, GuestTimer, IpiPath, PreemptedReport, SpinLocks, TimerMode, Virt,
};
use crate::toml_read::Placed;
use crate::toml_read::table::table;
use crate::toml_read::units::{NohzCpus, Percent, Skew, Span1, Time};
use crate::toml_read::value::{Factor, Int, choice};

/// Declares the keys, all optional, and where the value of each belongs.
macro_rules! virt_keys {
    ($(
        $(#[doc = $doc:literal])+
        $key:ident : $type:ty => |$virt:ident, $value:ident| $put:expr
    ),+ $(,)?) => {
        table! {
            /// How a VM is virtualised.
            pub(crate) struct VirtKeys {
                $( $(#[doc = $doc])+ $key: Option<Placed<$type>>, )+
            }
        }

        impl VirtKeys {
            /// Whether this is one of the keys.
            pub(crate) fn has(key: &str) -> bool {
                [$( stringify!($key) ),+].contains(&key)
            }

            /// These keys, and what they lack from `under`.
            pub(crate) fn over(self, under: Self) -> Self {
                Self { $( $key: self.$key.or(under.$key), )+ }
            }

            /// The keys that are written, and where.
            pub(crate) fn given(&self) -> Vec<(&'static str, Span)> {
                let all = [$( (stringify!($key), Placed::span_of(&self.$key)) ),+];
                all.into_iter().filter_map(|(key, span)| Some((key, span?))).collect()
            }

            /// Puts what is written over what there is, in the order in which the keys are declared.
            pub(crate) fn apply(&self, virt: &mut Virt) {
                $( if let Some(Placed { value: $value, .. }) = &self.$key {
                    let $virt = &mut *virt;
                    $put;
                } )+
            }
        }
    };
}

choice! {
    /// Defaults of the host's KVM.
    pub(crate) enum KvmKind {
        /// As KVM of Linux 6.18 on a CPU with APICv: posted interrupts, the fast path of exits, the VMX
        /// preemption timer (where the profile's CPU has one), deadlines advanced adaptively, polling for
        /// halted vCPUs for up to 200us, and IPIs by a hypercall or a shorthand, as its Linux guests send them.
        Stock = "stock",
    }
}

impl KvmKind {
    fn apply(self, virt: &mut Virt) {
        let Self::Stock = self;
        virt.apic = ApicVirt { posted: true, fastpath: true, ..ApicVirt::default() };
        virt.timer.source = Some(GuestTimer::HvTimer);
        virt.timer.advance = AdvanceConfig::Adaptive;
        virt.idle.host_poll = Some(HostPollConfig::KVM);
        virt.ipi.path = IpiPath::Pv;
        virt.ipi.shorthand = true;
    }
}

choice! {
    /// An instruction that need not exit.
    pub(crate) enum ExitKind {
        /// HLT: an idle vCPU keeps its pCPU, which the host sees busy.
        Hlt = "hlt",
        /// MWAIT. A guest has this instruction only if it does not exit.
        Mwait = "mwait",
        /// PAUSE.
        Pause = "pause",
        /// Reads of the C-state residency counters.
        Cstate = "cstate",
    }
}

choice! {
    /// What KVM tells its guest about the pCPUs under it.
    pub(crate) enum HintKind {
        /// They are shared: paravirtual spinlocks, TLB shootdown and yield, as Linux guests of KVM use
        /// them by default.
        Shared = "shared",
        /// They are the guest's own (`KVM_HINTS_REALTIME`): native spinlocks and TLB shootdown, no
        /// yield, and the guest polls before it halts.
        Dedicated = "dedicated",
    }
}

impl HintKind {
    fn apply(self, virt: &mut Virt) {
        let shared = self == Self::Shared;
        virt.dedicated = !shared;
        virt.spin.locks = if shared { SpinLocks::Pv } else { SpinLocks::Queued };
        virt.ipi.pv_tlb = shared;
        virt.ipi.pv_yield = shared;
        virt.idle.guest = if shared { GuestIdle::Hlt } else { GuestIdle::Haltpoll };
    }
}

choice! {
    /// The bare-metal way, or the paravirtual one.
    pub(crate) enum Way {
        /// As on bare metal.
        Native = "native",
        /// Paravirtual.
        Pv = "pv",
    }
}

choice! {
    for Kind {
        /// Its entitlement, while the host's pool is contended.
        Entitlement = "entitlement",
        /// One core at a time, by steal.
        Step = "step",
        /// As many vCPUs as the steal time allows.
        Proportional = "proportional",
        /// The host's hint.
        HostHint = "host-hint",
    }
}

// KVM as a whole and a hint say several things at once: keys of one of them stand behind them.
virt_keys! {
    /// Defaults of the host's KVM: `stock` is Linux 6.18 on a CPU with APICv (simulated only). That is apicv = true,
    /// exit_fastpath = true, timer = "hv-timer" (an hrtimer where the profile's CPU has no preemption timer),
    /// timer_advance = "adaptive", halt_poll = "200us", ipi = "pv" and ipi_shorthand = true. Each can be set by its own
    /// key as well. With AMD's AVIC, KVM virtualises IPIs, too: add ipi = "posted". The mechanisms of the guest depend
    /// on `hints`: write hints = "shared" for a Linux guest with default settings. Default: nothing of these.
    kvm: KvmKind => |virt, kind| kind.apply(virt),
    /// What fires the guest's timer deadlines: `lapic` (what the host's KVM does; in the simulator an
    /// hrtimer), `hrtimer`, `hv-timer` (refused where the profile's CPU has no preemption timer, as AMD's),
    /// `posted` (simulator), `exitless`. `posted` is KVM's `pi_inject_timer` and needs APICv, `disable_exits` with
    /// "hlt" or "mwait", and a pCPU that vCPUs are kept off; it differs from `exitless` in that writing a deadline
    /// exits. Default: the policy's, else `lapic`; on real vCPUs `exitless` under policies that boost, because only
    /// the injector boosts together with the interrupt.
    timer: GuestTimer => |virt, kind| virt.timer.source = Some(*kind),
    /// Mode in which the guest programs its timer. A guest with `periodic` has no other timer than its tick, which
    /// never stops. Default: tsc-deadline.
    timer_mode: TimerMode => |virt, mode| virt.timer.mode = *mode,
    /// How early the host fires the timer, so that the guest has the interrupt when it is due: "none", a
    /// duration, or "adaptive" (KVM's `lapic_timer_advance`). Default: none.
    timer_advance: AdvanceConfig => |virt, advance| virt.timer.advance = *advance,
    /// hv-timer: an hrtimer takes the place of the preemption timer while the vCPU is preempted, so that the host
    /// sees its deadline (KVM does not have this). Default: false.
    arm_sw_on_preempt: bool => |virt, on| virt.timer.arm_sw_on_preempt = *on,
    /// vCPUs that have no periodic tick while one task runs there (`nohz_full` of the guest's kernel); one
    /// vCPU has to keep it. Default: "none".
    nohz_full: NohzCpus => |virt, cpus| virt.nohz_full = cpus.0.clone(),
    /// Cycles of the guest's TSC in one cycle of the host's. With TSC scaling it differs from 1. Default: 1.
    tsc_ratio: Factor => |virt, ratio| virt.timer.tsc_ratio_ppm = ratio.ppm,
    /// Simulated only: largest difference between the rates of the guest's clock and the host's. The rate of each VM is
    /// drawn once, evenly. The VM's ticks and the sleeps of its tasks drift by this rate. Crystals differ by some
    /// 20ppm, and NTP steers a guest's clock by at most 500ppm. Default: 0ppm.
    clock_skew: Skew => |virt, skew| virt.timer.skew_ppm = skew.ppm,
    /// APICv. True: posted interrupts, and an interrupt's end without an exit. False: neither, and
    /// an exit each time a guest becomes able to take an interrupt that waits. Default: no posted
    /// interrupts, and a paravirtual EOI, which does not exit.
    apicv: bool => |virt, on| {
        virt.apic.posted = *on;
        virt.apic.eoi_exits = !on;
        virt.apic.window_exits = !on;
    },
    /// Interrupts reach a running guest without an exit. Default: false, or as `apicv` says.
    posted_interrupts: bool => |virt, on| virt.apic.posted = *on,
    /// Writes of the TSC deadline and of the ICR take KVM's fast path. With ipi = "cluster" those of
    /// the ICR do not: KVM's fast path leaves out the logical mode. Default: false.
    exit_fastpath: bool => |virt, on| virt.apic.fastpath = *on,
    /// Instructions that do not exit (`KVM_CAP_X86_DISABLE_EXITS`), of "hlt", "mwait", "pause",
    /// "cstate". Default: none.
    disable_exits: Vec<Placed<ExitKind>> => |virt, list| {
        let off = |kind| list.iter().any(|at| at.value == kind);
        virt.exits_off = ExitsOff {
            hlt: off(ExitKind::Hlt),
            mwait: off(ExitKind::Mwait),
            pause: off(ExitKind::Pause),
            cstate: off(ExitKind::Cstate),
        };
    },
    /// Hint to the guest about its pCPUs: `shared` (pv spinlocks, pv TLB shootdown, pv yield)
    /// or `dedicated` (none of these, and guest_idle = "haltpoll"). Each effect can be set by its
    /// own key as well. Default: neither; everything native, and the guest halts.
    hints: HintKind => |virt, hint| hint.apply(virt),
    /// What a vCPU without work does: `hlt`, `poll` (for ever, `idle=poll`), `haltpoll` (for a
    /// while, then HLT: Linux's governor) or `mwait` (needs disable_exits = ["mwait"]).
    /// Default: hlt.
    guest_idle: GuestIdle => |virt, idle| virt.idle.guest = *idle,
    /// haltpoll: longest poll (`guest_halt_poll_ns`). Default: 200us.
    guest_halt_poll: Time => |virt, time| virt.idle.guest_poll.max_ns = time.0,
    /// haltpoll: factor by which it grows. Default: 2.
    guest_halt_poll_grow: Int<0, 1000> => |virt, n| virt.idle.guest_poll.grow = n.get32(),
    /// haltpoll: shortest poll, from which it grows. Default: 50us.
    guest_halt_poll_grow_start: Time => |virt, time| virt.idle.guest_poll.grow_start_ns = time.0,
    /// haltpoll: divisor by which it shrinks, 0: to nothing. Default: 2.
    guest_halt_poll_shrink: Int<0, 1000> => |virt, n| virt.idle.guest_poll.shrink = n.get32(),
    /// haltpoll: whether it shrinks. Default: true.
    guest_halt_poll_allow_shrink: bool => |virt, on| virt.idle.guest_poll.allow_shrink = *on,
    /// Longest time that the host polls for a halted vCPU (`KVM_CAP_HALT_POLL`, else
    /// `halt_poll_ns`; Linux has 200us on x86). 0us is never. Guests with guest_idle = "haltpoll" switch it off.
    /// Default: never in the simulator; on real vCPUs, and in simulations beside them, as this host's KVM does.
    halt_poll: Time =>
        |virt, time| virt.idle.host_poll = Some(HostPollConfig { max_ns: time.0, ..virt.idle.host_polls() }),
    /// Host polling: poll for the whole of `halt_poll` at every halt, as until Linux 4.2, instead of for a time that
    /// adapts to the length of halts. Simulated only. Default: false.
    halt_poll_fixed: bool => |virt, on| virt.idle.set_host_poll(|host| host.fixed = *on),
    /// Host polling: factor by which a vCPU's poll grows. Default: 2.
    halt_poll_grow: Int<0, 1000> => |virt, n| virt.idle.set_host_poll(|host| host.grow = n.get32()),
    /// Host polling: poll from which a vCPU's poll grows, and below which it shrinks to nothing. Default: 10us.
    halt_poll_grow_start: Time => |virt, time| virt.idle.set_host_poll(|host| host.grow_start_ns = time.0),
    /// Host polling: divisor by which it shrinks, 0: to nothing. Default: 2.
    halt_poll_shrink: Int<0, 1000> => |virt, n| virt.idle.set_host_poll(|host| host.shrink = n.get32()),
    /// How IPIs are sent: `icr`, `cluster`, `pv` (to several targets; to one as `icr`) or `posted`.
    /// Default: icr.
    ipi: IpiPath => |virt, path| virt.ipi.path = *path,
    /// An IPI to all other vCPUs is one ICR write, whatever `ipi` says, as guests since Linux 5.4 send it. False:
    /// as `ipi` says, as before. Default: false.
    ipi_shorthand: bool => |virt, on| virt.ipi.shorthand = *on,
    /// Spinlocks: waiters spin until they have the lock, in the order of their arrival (`native`); or the first
    /// that sees the lock free takes it (`test-and-set`, as Linux in a VM without `pv` and without the dedicated
    /// hint); or waiters halt after a while and are kicked (`pv`, or `pv-ticket` in the order of their arrival, as
    /// in guests from Linux 3.12 to 4.1). Default: native, or as `hints` says. In a PowerVM pool: waiters give their
    /// time to a vCPU that they wait for and that has no core (`confer`, the default), or spin (`native`).
    spinlocks: SpinLocks => |virt, locks| virt.spin.locks = *locks,
    /// Longest time that a waiter spins at a pv spinlock. Default: `pv_spin` of the profile.
    spin_threshold: Span1 => |virt, time| virt.spin.threshold_ns = Some(time.0),
    /// TLB shootdown: an IPI to every vCPU concerned, or (`pv`) to those that are loaded. Default:
    /// native, or as `hints` says.
    tlb_shootdown: Way => |virt, way| virt.ipi.pv_tlb = *way == Way::Pv,
    /// Whether a TLB shootdown also interrupts vCPUs that became idle with the address space loaded (lazy TLB mode), at
    /// most once each time that they become idle. All shootdowns of guests until Linux 4.13 do so, and since then those
    /// that free page tables. Default: false.
    tlb_shootdown_lazy: bool => |virt, on| virt.ipi.lazy_tlb = *on,
    /// A vCPU that has sent a function call to several vCPUs yields to one that is preempted. Default:
    /// false, or as `hints` says.
    pv_sched_yield: bool => |virt, on| virt.ipi.pv_yield = *on,
    /// How long a vCPU spins in a PAUSE loop before it exits and yields to another vCPU of the VM.
    /// `disable_exits = ["pause"]` switches these exits off. Default: 4096 cycles of the profile's time-stamp counter;
    /// on AMD's CPUs since Zen, 3000 PAUSEs, each a 32768th of the profile's `pv_spin`.
    ple_window: Span1 => |virt, time| virt.spin.ple_window_ns = Some(time.0),
    /// Factor by which each PAUSE exit makes the window longer, until the vCPU is loaded anew.
    /// Default: 2.
    ple_grow: Int<1, 16> => |virt, times| virt.spin.ple_grow = times.get32(),
    /// A PAUSE exit yields only to a vCPU that was preempted in its kernel, as since Linux 4.14. False: to any
    /// preempted vCPU. Default: true.
    yield_in_kernel: bool => |virt, on| virt.spin.candidates.in_kernel = *on,
    /// A PAUSE exit also yields to a vCPU that an interrupt woke and that has not run since, as since Linux
    /// 5.3. Default: true.
    yield_woken: bool => |virt, on| virt.spin.candidates.woken = *on,
    /// A vCPU with a pending interrupt counts as in its kernel, as since Linux 5.13. KVM knows of such interrupts only
    /// if they are posted. Default: true.
    yield_interrupted: bool => |virt, on| virt.spin.candidates.interrupted = *on,
    /// If the spinning vCPU has sent an IPI to one vCPU in the last 50 ms, its PAUSE exit also yields to that vCPU,
    /// unless KVM has seen that vCPU end an interrupt since (apicv = false). It does not yield to woken vCPUs. If it
    /// finds no target, it yields to any preempted vCPU. As posted in December 2025 ("IPI-aware directed yield"); no
    /// kernel has it. IPIs by hypercall and virtualised ones are not tracked. Default: false.
    yield_ipi: bool => |virt, on| virt.spin.candidates.ipi = *on,
    /// A vCPU that releases a paravirtual spinlock and kicks the next in line yields to that vCPU, as since Linux
    /// 5.4; with spinlocks = "pv" or "pv-ticket". Default: true.
    yield_queue_heads: bool => |virt, on| virt.spin.candidates.queue_heads = *on,
    /// A hypercall that requests a yield (`pv_sched_yield`, `yield_queue_heads`) also yields if its caller is alone on
    /// its pCPU, as before Linux 5.13. Default: false.
    yield_alone: bool => |virt, alone| virt.spin.candidates.not_alone = !*alone,
    /// Whether the guest knows which of its vCPUs are preempted, from the page of steal time. If it does, no task
    /// spins for a mutex or rwsem whose owner is preempted, and a wake-up does not take a preempted vCPU for an
    /// idle one. Default: true. Linux knows it since 4.10 with spinlocks = "pv", and since 5.18 with all.
    vcpu_is_preempted: bool => |virt, known| virt.spin.preempted_unseen = !*known,
    /// Whether the guest's scheduler leaves stolen time out of what it charges a task, and out of a vCPU's capacity
    /// (`CONFIG_PARAVIRT_TIME_ACCOUNTING`; Debian's kernels are built without it). Default: true.
    paravirt_time_accounting: bool => |virt, on| virt.charges_steal = !*on,
    /// Which vCPUs are flagged as preempted in the steal-time page: those that lost their pCPU when an interrupt of the
    /// host had made them leave guest mode (`interrupted`, KVM since 5.19), or all vCPUs without a pCPU, including
    /// halted ones (`away`, older KVM). `vcpu_is_preempted`, `tlb_shootdown = "pv"` and `pv_sched_yield` use this flag.
    /// Default: interrupted. In a PowerVM pool Linux goes by cores (`core`): if one thread of a core was preempted, all
    /// threads of the core count as preempted, including idle ones.
    preempted_flag: PreemptedReport => |virt, told| virt.spin.told = *told,
    /// A waiter for a pv spinlock halts also if the vCPU of the one before it in line is preempted, as in guests
    /// from Linux 4.11 to 5.3. Default: false.
    wait_early_preempted: bool => |virt, on| virt.spin.early_if_preempted = *on,
    /// What decides how many of its vCPUs the guest uses: `entitlement`, `step` (as merged in
    /// Linux), `proportional` or `host-hint`. Default: no governor; the guest uses all vCPUs.
    governor: Kind => |virt, kind| virt.govern.kind = Some(*kind),
    /// False: this VM has no governor, whatever a policy says. Default: true.
    takes_part: bool => |virt, on| virt.govern.takes_part = *on,
    /// Governor: interval between two decisions, 100ms to 100s. Default: 1s for `step`, 200ms for `proportional`,
    /// else 250ms.
    governor_interval: Time => |virt, time| virt.govern.interval_ns = Some(time.0),
    /// Governor: steal above which the guest folds. Default: 5%.
    steal_high: Percent<100> => |virt, share| virt.govern.high_bp = Some(share.ppm / 100),
    /// Governor: steal up to which it unfolds. Default: 2%.
    steal_low: Percent<100> => |virt, share| virt.govern.low_bp = Some(share.ppm / 100),
    /// Governor: smallest number of vCPUs in use, rounded to whole cores, and at least one core. Default: 1.
    governor_floor: Int<1, 256> => |virt, n| virt.govern.floor = Some(n.get32()),
    /// proportional: share of its CPU time at full width that the guest keeps while folded.
    /// Default: 95%.
    governor_keep: Percent<100> => |virt, share| virt.govern.keep_pct = Some(share.ppm / 10_000),
    /// proportional: intervals after which a folded guest tries its full width again. Default: 32.
    governor_patience: Int<2, 10_000> => |virt, n| virt.govern.patience = Some(n.get32()),
    /// pCPUs' worth of time that the VM is entitled to. Without `weight` it is also its weight in
    /// the pool. Default: for governors, its part of the pCPUs by the number of vCPUs.
    entitled: Int<1, 256> => |virt, n| virt.govern.entitled = Some(n.get32()),
    /// Governor: the guest takes vCPUs offline instead of avoiding them. Default: false.
    hotplug: bool => |virt, on| virt.govern.means.hotplug = *on,
    /// hotplug: time that one change takes, for any number of vCPUs. Default: 20s.
    hotplug_batch: Time => |virt, time| virt.govern.means.batch_ns = Some(time.0),
    /// hotplug: time for which each changed vCPU stops the whole guest. Default: 5ms.
    hotplug_stall: Time => |virt, time| virt.govern.means.stall_ns = Some(time.0),
    /// On real vCPUs: the guest moves its tasks between its vCPUs, as one with a governor does. (In
    /// the simulator every guest does.) Default: false, each task stays on one.
    guest_balance: bool => |virt, on| virt.govern.guest_balance = *on,
}

impl VirtKeys {
    /// Whether a housekeeping CPU posts the timers.
    pub(crate) fn is_posted(&self) -> bool {
        self.timer.as_ref().is_some_and(|timer| timer.value == GuestTimer::Posted)
    }
}
