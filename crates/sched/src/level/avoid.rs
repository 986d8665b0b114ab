//! CPUs to avoid: paravirt (later: preferred) CPUs, and CPU hotplug for comparison.
//!
//! If the host preempts the vCPUs of a guest, the guest may do more work with fewer vCPUs. A mask, which may change at
//! any time, says which CPUs the guest should avoid. These CPUs stay online. The rules are those of "paravirt CPUs"
//! (RFC PATCH v3, September 2025), which became `cpu_preferred_mask` of Linux. The latter covers the fair class only:
//!
//! - No wake-up, no new entity and no RT push or pull goes to an avoided CPU. A sleeper that EEVDF keeps queued
//!   wakes up where it is.
//! - Avoided CPUs take no part in load balancing: nothing is pulled to them, and nothing from them.
//! - The tick of an avoided CPU pushes the *running* entity to another CPU, one per tick. A waiting entity leaves
//!   when its turn comes, or with its next sleep. So a CPU with many entities needs as many ticks.
//! - Affinity is never broken: an entity that may run on avoided CPUs only stays there, and is placed among them.
//! - Deadline entities ignore the mask, as in both kernels.
//! - A full-nohz CPU keeps its tick while it is avoided, also with one entity, as since RFC v4. Without the tick
//!   nothing would push this entity away.
//!
//! There is one difference: the kernel's stopper moves the entity to *any* allowed CPU, and leaves the rest to
//! balancing. Here the entity goes to an idle CPU, or to the least loaded.
//!
//! All entities leave an offline CPU ([`Level::set_offline`]) at once, and affinity is broken if necessary. The
//! driver charges what this costs (stopping the machine, rebuilding domains).

use super::Level;
use crate::config::{ClassId, Ns};
use crate::heap::NONE;
use crate::{CpuId, CpuSet, EntId, MaskError};

impl Level {
    /// Sets the CPUs to avoid, from now on; CPUs outside the level are dropped. Nothing moves at once: a running entity
    /// leaves at its tick, a waiting one when its turn comes.
    ///
    /// # Errors
    /// [`MaskError`] if no online CPU is left; the mask is as it was.
    pub fn set_avoided(&mut self, cpus: CpuSet) -> Result<(), MaskError> {
        let all = CpuSet::first_n(self.cpus.len() as u32);
        let avoided = cpus.and(&all);
        if all.without(&avoided).without(&self.offline).is_empty() {
            return Err(MaskError);
        }
        if avoided != self.avoided {
            self.avoided = avoided;
            self.remask();
        }
        Ok(())
    }

    /// Takes these CPUs offline, and all others online. Entities that wait there move at once; a running one moves when
    /// its CPU serves the [`Note::Kick`](crate::Note::Kick) that it gets. An entity confined to offline CPUs may run
    /// anywhere, and goes back as soon as one of its own is online again. (Linux drops the affinity, except what a
    /// cpuset restores.)
    ///
    /// # Errors
    /// [`MaskError`] if no CPU is left; nothing has changed then.
    pub fn set_offline(&mut self, now: Ns, cpus: CpuSet) -> Result<(), MaskError> {
        let all = CpuSet::first_n(self.cpus.len() as u32);
        let offline = cpus.and(&all);
        if all.without(&offline).is_empty() {
            return Err(MaskError);
        }
        if offline == self.offline {
            return Ok(());
        }
        self.fair.clock = now;
        self.offline = offline;
        if all.without(&offline).without(&self.avoided).is_empty() {
            // Only avoided CPUs are left: the mask has no meaning any more.
            self.avoided = CpuSet::EMPTY;
        }
        self.remask();
        for i in 0..self.ents.len() {
            let e = EntId(i as u32);
            let cpu = self.ents[i].cpu;
            if !self.may_stay(e, cpu) {
                self.fair.forget_delayed(e);
                self.send_away(now, e);
            }
        }
        Ok(())
    }

    /// Sets the full-nohz CPUs, on which [`Level::tick_needed`] can be false while an entity runs. A driver asks again
    /// whenever a queue's length changes.
    pub fn set_nohz_full(&mut self, cpus: &CpuSet) {
        for (i, c) in self.cpus.iter_mut().enumerate() {
            c.nohz_full = cpus.contains(CpuId(i as u32));
        }
    }

    /// Sets whether a CPU has lost the CPU of the level below that it runs on. A waking entity does not count it as
    /// idle then (`available_idle_cpu`); balancing does.
    pub fn set_away(&mut self, cpu: CpuId, away: bool) {
        if away {
            self.away.get_or_insert_default().insert(cpu);
        } else if let Some(set) = &mut self.away {
            set.remove(cpu);
        }
    }

    /// The CPUs to avoid.
    pub fn avoided(&self) -> &CpuSet {
        &self.avoided
    }

    /// The CPUs that are offline.
    pub fn offline(&self) -> &CpuSet {
        &self.offline
    }

    /// Entities pushed off avoided CPUs by ticks.
    pub fn pushed_off(&self) -> u64 {
        self.pushed_off
    }

    /// Entities moved while they ran, for any reason. Each move takes a stopper thread's time on the old CPU.
    pub fn stopped(&self) -> u64 {
        self.stopped
    }

    /// Applies another mask, whatever entities are doing.
    fn remask(&mut self) {
        let any = !self.avoided.is_empty() || !self.offline.is_empty();
        for i in 0..self.cpus.len() {
            let cpu = CpuId(i as u32);
            let closed = self.avoided.contains(cpu) || self.offline.contains(cpu);
            let c = &mut self.cpus[i];
            c.spared = closed;
            c.push = if closed { c.push } else { NONE };
        }
        let threads = self.cfg.topology.threads_per_core;
        self.open_cores = any.then(|| {
            let open = (0..self.cpus.len() as u32).filter(|&i| !self.cpus[i as usize].spared);
            open.map(|i| CpuId(i - i % threads)).collect()
        });
        for i in 0..self.ents.len() {
            self.reopen(EntId(i as u32));
        }
        for i in 0..self.cpus.len() {
            self.refresh(CpuId(i as u32));
        }
    }

    /// Recomputes where an entity should run: its affinity without CPUs to avoid, if that leaves any.
    pub(super) fn reopen(&mut self, e: EntId) {
        let own = self.masks[e.index()];
        let open = self.open_for(e, &own);
        self.open[e.index()] = open;
        self.ents[e.index()].allowed = open.len();
    }

    fn open_for(&self, e: EntId, own: &CpuSet) -> CpuSet {
        let all = CpuSet::first_n(self.cpus.len() as u32);
        let online = own.without(&self.offline);
        let base = if online.is_empty() { all.without(&self.offline) } else { online };
        let heeds = self.class(e) != ClassId::Dl;
        let open = if heeds { base.without(&self.avoided) } else { base };
        if open.is_empty() { base } else { open }
    }

    /// The same after a change of class, which decides whether the mask applies.
    #[inline]
    pub(super) fn reopen_class(&mut self, e: EntId) {
        if !self.avoided.is_empty() {
            self.reopen(e);
        }
    }

    /// Whether an entity may stay where it is: affinity counts, the mask does not.
    #[inline]
    pub(super) fn may_stay(&self, e: EntId, cpu: CpuId) -> bool {
        self.may_use(e, cpu) || self.may_remain(e, cpu)
    }

    #[cold]
    fn may_remain(&self, e: EntId, cpu: CpuId) -> bool {
        let own = &self.masks[e.index()];
        let given_way = || own.without(&self.offline).is_empty();
        !self.offline.contains(cpu) && (own.contains(cpu) || given_way())
    }

    /// The tick of an avoided CPU: pushes off the running entity, if it may leave. No balancing.
    #[cold]
    pub(super) fn push_off(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        self.update_averages(now, cpu);
        if !self.may_use(e, cpu) {
            self.cpus[cpu.index()].push = e.0;
            self.kick(cpu, true);
        }
    }

    /// New CPU for `e`, which is runnable and which the tick wanted pushed off, if it still has to go: policy,
    /// affinity, mask and idle CPUs may have changed since.
    #[cold]
    pub(super) fn pushed_to(&mut self, now: Ns, cpu: CpuId, e: EntId) -> Option<CpuId> {
        if !self.cpus[cpu.index()].spared {
            return self.better_cpu(now, cpu, e);
        }
        let goes = !self.may_use(e, cpu);
        self.pushed_off += u64::from(goes);
        goes.then(|| self.new_home(e))
    }
}
