//! Keys of a guest's IPIs and of its spinning.

use super::{set, shared_keys};
use crate::plan::virt::{GuestIdle, IpiPath, SpinLocks, Told, Virt};
use crate::toml_read::units::{Span1, Time};
use crate::toml_read::value::{Int, choice};

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

choice! {
    /// The bare-metal way, or the paravirtual one.
    pub(crate) enum Way {
        /// As on bare metal.
        Native = "native",
        /// Paravirtual.
        Pv = "pv",
    }
}

shared_keys! {
    /// Hints to a guest.
    pub(crate) struct HintKeys {
        /// Hint to the guest about its pCPUs: `shared` (pv spinlocks, pv TLB shootdown, pv yield)
        /// or `dedicated` (none of these, and guest_idle = "haltpoll"). Each effect can be set by its
        /// own key as well. Default: neither; everything native, and the guest halts.
        hints: HintKind,
    }
}

impl HintKeys {
    pub(super) fn apply(&self, virt: &mut Virt) {
        let Some(hint) = &self.hints else { return };
        let shared = hint.value == HintKind::Shared;
        virt.dedicated = !shared;
        virt.spin.locks = if shared { SpinLocks::Pv } else { SpinLocks::Queued };
        virt.ipi.pv_tlb = shared;
        virt.ipi.pv_yield = shared;
        virt.idle.guest = if shared { GuestIdle::Hlt } else { GuestIdle::Haltpoll };
    }
}

shared_keys! {
    /// A guest's IPIs and its spinning.
    pub(crate) struct SpinKeys {
        /// How IPIs are sent: `icr`, `cluster`, `pv` (to several targets; to one as `icr`) or `posted`.
        /// Default: icr.
        ipi: IpiPath,
        /// An IPI to all other vCPUs is one ICR write, whatever `ipi` says, as guests since Linux 5.4 send it. False:
        /// as `ipi` says, as before. Default: false.
        ipi_shorthand: bool,
        /// Spinlocks: waiters spin until they have the lock, in the order of their arrival (`native`); or the first
        /// that sees the lock free takes it (`test-and-set`, as Linux in a VM without `pv` and without the dedicated
        /// hint); or waiters halt after a while and are kicked (`pv`, or `pv-ticket` in the order of their arrival, as
        /// in guests from Linux 3.12 to 4.1). Default: native, or as `hints` says.
        spinlocks: SpinLocks,
        /// Longest time that a waiter spins at a pv spinlock. Default: `pv_spin` of the profile.
        spin_threshold: Span1,
        /// TLB shootdown: an IPI to every vCPU concerned, or (`pv`) to those that are loaded. Default:
        /// native, or as `hints` says.
        tlb_shootdown: Way,
        /// Whether a TLB shootdown also interrupts vCPUs that became idle with the address space loaded (lazy TLB
        /// mode), once for each time that they do: those of guests until Linux 4.13, and since then those that free
        /// page tables. Default: false.
        tlb_shootdown_lazy: bool,
        /// A vCPU that has sent a function call to several vCPUs yields to one that is preempted. Default:
        /// false, or as `hints` says.
        pv_sched_yield: bool,
        /// How long a vCPU spins before it exits, to yield to another of the VM; see
        /// `disable_exits = ["pause"]`. Default: 4096 cycles of the
        /// profile's time-stamp counter; on AMD's CPUs since Zen, 3000 PAUSEs, each a 32768th of the profile's
        /// `pv_spin`.
        ple_window: Span1,
        /// Factor by which each PAUSE exit makes the window longer, until the vCPU is loaded anew.
        /// Default: 2.
        ple_grow: Int<1, 16>,
        /// A PAUSE exit yields to a preempted vCPU only if this was preempted in its kernel, as since
        /// Linux 4.14; false: to any preempted vCPU. Default: true.
        yield_in_kernel: bool,
        /// A PAUSE exit also yields to a vCPU that an interrupt woke and that has not run since, as since Linux
        /// 5.3. Default: true.
        yield_woken: bool,
        /// A vCPU with an interrupt pending counts as in its kernel, as since Linux 5.13; needs posted interrupts, by
        /// which KVM knows. Default: true.
        yield_interrupted: bool,
        /// A vCPU that releases a paravirtual spinlock and kicks the next in line yields to that vCPU, as since Linux
        /// 5.4; with spinlocks = "pv" or "pv-ticket". Default: true.
        yield_queue_heads: bool,
        /// A hypercall that asks to yield (`pv_sched_yield`, `yield_queue_heads`) does so also where its caller is
        /// alone on its pCPU, as before Linux 5.13. Default: false.
        yield_alone: bool,
        /// Whether the guest knows which of its vCPUs are preempted, from the page of steal time. If it does, no task
        /// spins for a mutex or rwsem whose owner is preempted, and a wake-up does not take a preempted vCPU for an
        /// idle one. Default: true. Linux knows it since 4.10 with spinlocks = "pv", and since 5.18 with all.
        vcpu_is_preempted: bool,
        /// Which vCPUs the page of steal time calls preempted: those that lost their pCPU when an interrupt of the host
        /// had made them leave guest mode (`interrupted`, KVM since 5.19), or all that have no pCPU, halted ones as
        /// well (`away`, before). It decides for `vcpu_is_preempted`, `tlb_shootdown = "pv"` and `pv_sched_yield`.
        /// Default: interrupted.
        preempted_flag: Told,
        /// A waiter for a pv spinlock halts also if the vCPU of the one before it in line is preempted, as in guests
        /// from Linux 4.11 to 5.3. Default: false.
        wait_early_preempted: bool,
        /// Time until a vCPU that spins sees the write of another vCPU. Default: 100ns.
        spin_handoff: Time,
    }
}

impl SpinKeys {
    pub(super) fn apply(&self, virt: &mut Virt) {
        set(&self.ipi, &mut virt.ipi.path, |path| *path);
        set(&self.ipi_shorthand, &mut virt.ipi.shorthand, |on| *on);
        set(&self.spinlocks, &mut virt.spin.locks, |locks| *locks);
        set(&self.spin_threshold, &mut virt.spin.threshold_ns, |time| Some(time.0));
        set(&self.tlb_shootdown, &mut virt.ipi.pv_tlb, |way| *way == Way::Pv);
        set(&self.tlb_shootdown_lazy, &mut virt.ipi.lazy_tlb, |on| *on);
        set(&self.pv_sched_yield, &mut virt.ipi.pv_yield, |on| *on);
        set(&self.ple_window, &mut virt.spin.ple_window_ns, |time| Some(time.0));
        set(&self.ple_grow, &mut virt.spin.ple_grow, |times| times.get32());
        set(&self.vcpu_is_preempted, &mut virt.spin.preempted_unseen, |known| !*known);
        set(&self.preempted_flag, &mut virt.spin.told, |told| *told);
        set(&self.wait_early_preempted, &mut virt.spin.early_if_preempted, |on| *on);
        let to = &mut virt.spin.candidates;
        set(&self.yield_in_kernel, &mut to.in_kernel, |on| *on);
        set(&self.yield_woken, &mut to.woken, |on| *on);
        set(&self.yield_interrupted, &mut to.interrupted, |on| *on);
        set(&self.yield_queue_heads, &mut to.queue_heads, |on| *on);
        set(&self.yield_alone, &mut to.not_alone, |alone| !*alone);
        set(&self.spin_handoff, &mut virt.spin.handoff_ns, |time| time.0);
    }
}
