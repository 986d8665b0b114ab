//! IPIs from vCPU to vCPU: function calls, TLB shootdowns, and the ways they are sent.
//!
//! ```text
//! icr      an exit for each target
//! cluster  an exit for all targets of a cluster of 16 vCPUs
//! pv       a hypercall for all targets within 128 vCPUs; a single target as icr
//! to all others, by a shorthand: an exit for all (`ipi_shorthand`)
//! posted   no exit: a vCPU that runs takes the interrupt when its notification is there, one that halts is woken by
//! the
//!          pCPU where it ran last, one that was preempted finds it when it is entered, or is sent it
//!          by a hypercall that asks to boost it (`boost_receiver`)
//! ```
//!
//! A function call is put into the target's queue first. If the target's queue was not empty, an interrupt is
//! already on its way, and the target gets no other.
//!
//! Each target costs several cache lines that another CPU wrote last. The sender's kernel waits for two: the
//! target's call data and its queue (`smp_call_function_many_cond` of `kernel/smp.c`). In a multicast KVM waits for
//! two more: the target's posted interrupts and its mode (`__apic_accept_irq`). It also delivers an IPI to each. If an
//! exit has one target, all this is part of its handling. A delivery takes what an ICR write takes more than an EOI,
//! the write to the APIC that does least.

use vcoop_model::plan::virt::IpiPath;
use vcoop_model::plan::{IpiTo, Mode};
use vcoop_model::profile::CostKey;
use vcoop_policy::{GuestEvent, Injection};

use crate::attribution::track::NONE;
use crate::guest::exit::Exit;
use crate::guest::spin_vcpu::Spin;
use crate::guest::vm_sync::Count;
use crate::machine::{Irq, Segment, Vcpu, vector};
use crate::queue::Ns;
use crate::world::World;

/// vCPUs of a cluster in x2APIC's logical mode.
const CLUSTER: u32 = 16;
/// vCPUs that one hypercall reaches: a bitmap of two words.
const HYPERCALL: u32 = 128;
/// Cache lines of a target that the sender's kernel touches; KVM touches as many again.
const LINES: Ns = 2;

impl World<'_> {
    /// A task makes other vCPUs call a function.
    pub(crate) fn call_function(&mut self, v: u32, t: u32, to: IpiTo, wait: bool) {
        let vm = self.vcpus[v as usize].vm as usize;
        let (first, n) = (self.vms[vm].first, self.plan.vms[vm].level.topology.cpus());
        let next = first + (v - first + 1) % n;
        let mut mask = self.vcpus[v as usize].ipis.take_mask();
        match to {
            // The kernel calls the function itself, without an interrupt (`generic_exec_single` of `kernel/smp.c`).
            IpiTo::Own => {}
            IpiTo::Next => mask.extend((next != v).then_some(next)),
            IpiTo::Others => mask.extend((first..first + n).filter(|c| *c != v)),
        }
        self.send_calls(v, t, mask, wait);
    }

    /// A task has changed its address space: other vCPUs that have it loaded flush their TLBs.
    pub(crate) fn shoot_down(&mut self, v: u32, t: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let (first, n) = (self.vms[vm].first, self.plan.vms[vm].level.topology.cpus());
        let mut mask = self.vcpus[v as usize].ipis.take_mask();
        let tasks = &self.vms[vm].tasks;
        let space = tasks[t as usize].space;
        // An idle vCPU has no address space loaded, or the one of `lazy_space`.
        mask.extend((first..first + n).filter(|&c| {
            let Vcpu { current, lazy_space, .. } = self.vcpus[c as usize];
            let loaded = if current == NONE { lazy_space } else { tasks[current as usize].space };
            c != v && loaded == space
        }));
        self.tally(vm, Count::Shootdowns, 1);
        if self.vms[vm].sync.ipi.pv_tlb {
            let before = mask.len();
            // The preempted ones flush when they are loaded.
            mask.retain(|&c| !self.is_told_away(c));
            self.tally(vm, Count::ShootdownsDeferred, (before - mask.len()) as u64);
        }
        mask.iter().for_each(|&c| self.vcpus[c as usize].lazy_space = NONE);
        self.send_calls(v, t, mask, true);
    }

    /// Sends function calls, and spins until they are done if `wait`. `mask` is in ascending order.
    fn send_calls(&mut self, v: u32, t: u32, mut mask: Vec<u32>, wait: bool) {
        let vm = self.vcpus[v as usize].vm as usize;
        let waiter = if wait { v } else { NONE };
        let called = mask.len() as u32;
        let line = |&to: &u32| self.line(self.vcpus[to as usize].home);
        let lines = LINES * mask.iter().map(line).sum::<Ns>();
        mask.retain(|&c| self.vcpus[c as usize].ipis.call(waiter));
        let multicast = mask.len() > 1;
        if multicast {
            self.tally(vm, Count::Multicasts, 1);
        }
        self.vcpus[v as usize].extra += lines;
        match mask[..] {
            [to] if self.guest_watches(to) => self.guest_flags(v, to),
            _ => self.send_to(v, &mask),
        }
        let yields = self.vms[vm].sync.ipi.pv_yield && multicast;
        let waits = if wait { called } else { 0 };
        self.vcpus[v as usize].ipis.sent(mask, waits, yields);
        if waits > 0 {
            let was = self.vms[vm].tasks[t as usize].mode;
            self.vms[vm].tasks[t as usize].mode = Mode::PreemptOff;
            self.spin(vm, t, Spin::Calls);
            if was != Mode::PreemptOff {
                self.guest_event(v, GuestEvent::PreemptOff);
            }
        }
    }

    /// Interrupts vCPUs, in the way of their VM.
    fn send_to(&mut self, v: u32, targets: &[u32]) {
        let vm = self.vcpus[v as usize].vm as usize;
        let (path, first) = (self.vms[vm].sync.ipi.path, self.vms[vm].first);
        let n = targets.len() as u64;
        let others = u64::from(self.plan.vms[vm].level.topology.cpus() - 1);
        match (path, targets) {
            _ if self.vms[vm].sync.ipi.shorthand && n > 1 && n == others => {
                self.tally(vm, Count::IpisShorthand, n);
                self.multicast(v, targets, false);
            }
            (IpiPath::Posted, _) => {
                self.tally(vm, Count::IpisPosted, n);
                targets.iter().for_each(|&to| self.post_ipi(v, to));
            }
            (IpiPath::Icr, _) | (IpiPath::Pv, [_]) => {
                self.tally(vm, Count::IpisIcr, n);
                let exits = &mut self.vcpus[v as usize].exits;
                exits.extend(targets.iter().map(|&to| Exit::Ipi(to)));
            }
            (IpiPath::Cluster, _) => {
                self.tally(vm, Count::IpisCluster, n);
                let together = |a: &u32, b: &u32| (a - first) / CLUSTER == (b - first) / CLUSTER;
                for group in targets.chunk_by(together) {
                    self.multicast(v, group, false);
                }
            }
            (IpiPath::Pv, _) => {
                self.tally(vm, Count::IpisPv, n);
                let mut rest = targets;
                while let Some(&low) = rest.first() {
                    let (group, others) =
                        rest.split_at(rest.partition_point(|&to| to - low < HYPERCALL));
                    self.multicast(v, group, true);
                    rest = others;
                }
            }
        }
    }

    fn multicast(&mut self, v: u32, group: &[u32], hypercall: bool) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.ipis.multicast(group);
        vcpu.exits.push_back(Exit::Multicast { targets: group.len() as u32, hypercall });
    }

    /// The host's work for a multicast. `by_apic`: its APIC sends it, and not the guest by a hypercall.
    pub(crate) fn multicast_sent(&mut self, v: u32, targets: u32, by_apic: bool) {
        let costs = &self.plan.host.costs;
        let delivery = costs.handle_icr_ns.saturating_sub(costs.handle_eoi_ns);
        for n in 0..targets {
            let Some(to) = self.vcpus[v as usize].ipis.next_target() else { return };
            let line = self.line(self.vcpus[to as usize].home);
            let handled = by_apic && n == 0;
            self.pay(LINES * line + if handled { 0 } else { delivery });
            if by_apic && targets == 1 {
                self.ipi_delivered(v, to);
            }
            self.inject(to, vector::IPI, Injection::Ipi);
        }
    }

    /// Cache lines of the only target of an exit are part of its handling, except for the distance to another LLC.
    pub(crate) fn pays_for_distance(&mut self, to: u32) {
        let far = self.crossing(self.vcpus[to as usize].home);
        self.pay(LINES * far);
    }

    /// Time that a cache line written by another pCPU takes to the executing one.
    pub(crate) fn line(&mut self, from: u32) -> Ns {
        self.costs.of(CostKey::CacheLine) + self.crossing(from)
    }

    /// The guest's kernel on vCPU `v` makes another vCPU look at its run queue.
    pub(crate) fn resched_ipi(&mut self, v: u32, to: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let vm = vcpu.vm as usize;
        if self.vms[vm].sync.ipi.path == IpiPath::Posted {
            self.tally(vm, Count::IpisPosted, 1);
            return self.post_ipi(v, to);
        }
        let ipi = Exit::Ipi(to);
        if !vcpu.exits.contains(&ipi) {
            vcpu.exits.push_back(ipi);
        }
    }

    /// The hardware of vCPU `v` sends an IPI without an exit; the host learns of it only if it has to wake the target.
    fn post_ipi(&mut self, v: u32, to: u32) {
        if self.asks_host(to) {
            self.tally(self.vcpus[v as usize].vm as usize, Count::IpisAsked, 1);
            let ask = Exit::Ask(to);
            let exits = &mut self.vcpus[v as usize].exits;
            if !exits.contains(&ask) {
                exits.push_back(ask);
            }
            return;
        }
        let own = self.vcpus[v as usize].pcpu;
        self.vcpus[v as usize].extra += self.costs.of(CostKey::IpiSend);
        let sent = self.vcpus[v as usize].extra;
        let target = &mut self.vcpus[to as usize];
        let (p, home, track) = (target.pcpu, target.home, target.track);
        if target.halted {
            if home == own {
                self.pcpus[own as usize].irqs.push_back(Irq::Posted(to));
                self.vcpus[v as usize].exits.push_back(Exit::Interrupt);
            } else {
                self.event_on_its_way(track, home);
                self.post_interrupt(to, vector::IPI, sent, sent);
            }
            return;
        }
        target.virt.counters.injections += 1;
        target.virt.counters.posted += 1;
        self.post_interrupt(to, vector::IPI, sent, sent);
        if p != NONE && self.pcpus[p as usize].segment == Segment::Poll {
            self.poll_sees_in(p, sent);
        }
    }

    /// A vCPU has taken an IPI: it calls the functions in its queue.
    pub(crate) fn calls_done(&mut self, v: u32) {
        while let Some(waiter) = self.vcpus[v as usize].ipis.next_call() {
            if waiter == NONE {
                continue;
            }
            let waiter = &mut self.vcpus[waiter as usize];
            if !waiter.ipis.acked() {
                continue;
            }
            let (vm, t) = (waiter.vm as usize, waiter.current);
            if t != NONE && self.vms[vm].tasks[t as usize].spin == Spin::Calls {
                self.spin_ends(vm, t);
            }
        }
    }

    /// Asks to yield to the first called vCPU that is preempted and not idle; false if there is none.
    pub(crate) fn wants_yield(&mut self, v: u32) -> bool {
        let preempted = |&&c: &&u32| self.is_told_away(c) && self.vcpus[c as usize].current != NONE;
        let Some(&to) = self.vcpus[v as usize].ipis.called().iter().find(preempted) else {
            return false;
        };
        self.vcpus[v as usize].exits.push_back(Exit::Yield(to));
        true
    }
}
