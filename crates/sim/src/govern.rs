//! The driver of governors: looks at a VM once an interval, and has its guest use more or fewer vCPUs.
//!
//! A governor that goes by steal is the guest's own: it costs vCPU 0 a tick's time, and sees what the
//! guest's kernel sees (run time and run delay of each vCPU; a wait that is not over is in neither).
//! One that goes by the host's word costs a pCPU a timer interrupt, and for each mask written what a
//! change of a thread's policy costs, which is more work.

use vcoop_model::plan::{HostSched, Plan, TimelineAction};
use vcoop_policy::govern::{Claim, CpuTime, Governor, Grant, Kind, Member, Seen, grant};
use vcoop_sched::{CpuId, EntId};

use crate::machine::Irq;
use crate::queue::Ns;
use crate::tune::MASTER;
use crate::world::World;

/// The governor of one VM.
#[derive(Debug)]
pub(crate) struct Driver {
    governor: Governor,
    interval_ns: Ns,
    /// Goes by the host's word.
    by_host: bool,
    /// Counters of each vCPU at the last look, and room for what came since.
    last: Vec<CpuTime>,
    since: Vec<CpuTime>,
    last_at: Ns,
    /// Of each VM, if it goes by the host's word; and of the host's own threads.
    pool: Vec<CpuTime>,
    host_ran: Ns,
}

impl Driver {
    /// The governors of a plan, by VM, and when each looks first.
    pub(crate) fn all(plan: &Plan) -> Vec<Option<Self>> {
        (0..plan.vms.len()).map(|vm| Self::of(plan, vm)).collect()
    }

    fn of(plan: &Plan, vm: usize) -> Option<Self> {
        let config = plan.governor(vm)?;
        let topology = &plan.vms[vm].level.topology;
        let (vcpus, threads) = (topology.cpus(), topology.threads_per_core);
        let by_host = matches!(config.kind, Kind::Entitlement | Kind::HostHint);
        Some(Self {
            governor: Governor::new(&config, vcpus, threads),
            interval_ns: config.interval_ns,
            by_host,
            last: vec![CpuTime::default(); vcpus as usize],
            since: vec![CpuTime::default(); vcpus as usize],
            last_at: 0,
            pool: vec![CpuTime::default(); if by_host { plan.vms.len() } else { 0 }],
            host_ran: 0,
        })
    }

    /// When it looks for the first time.
    pub(crate) fn first(&self) -> Ns {
        self.interval_ns
    }
}

impl World<'_> {
    /// The interval of a VM's governor is over.
    pub(crate) fn govern_due(&mut self, vm: u32) {
        let Some(driver) = &self.governors[vm as usize] else { return };
        self.queue.set(self.slots.govern + vm, self.now + driver.interval_ns);
        if driver.by_host {
            return self.interrupt(MASTER, Irq::Govern(vm));
        }
        let first = self.vms[vm as usize].first;
        self.vcpus[first as usize].extra += self.costs.guest_tick_ns;
        self.govern(vm);
    }

    /// A governor looks, and its word is carried out.
    pub(crate) fn govern(&mut self, vm: u32) {
        let m = vm as usize;
        if !self.vms[m].started {
            return;
        }
        self.charge_all();
        let Some(mut driver) = self.governors[m].take() else { return };
        let elapsed_ns = self.now - driver.last_at;
        driver.last_at = self.now;
        let first = self.vms[m].first;
        for (v, (last, since)) in (first..).zip(driver.last.iter_mut().zip(&mut driver.since)) {
            let now = self.time_of(v);
            *since = now.since(*last);
            *last = now;
        }
        let grant = driver.by_host.then(|| self.grant(m, &mut driver, elapsed_ns));
        let seen = Seen { elapsed_ns, cpus: &driver.since, grant };
        let width = driver.governor.on(&seen);
        let by_host = driver.by_host;
        self.governors[m] = Some(driver);
        if let Some(width) = width {
            if by_host {
                self.pcpus[MASTER as usize].extra += self.costs.setattr_ns;
            }
            self.fold(vm, width);
        }
    }

    /// Run time and run delay of a vCPU since its thread began.
    pub(crate) fn time_of(&self, v: u32) -> CpuTime {
        let stats = self.host.stats(EntId(self.vcpus[v as usize].thread));
        CpuTime { busy_ns: stats.exec_ns, steal_ns: stats.wait_ns }
    }

    /// What the host can give a VM: it knows what each of them ran and waited for.
    fn grant(&self, vm: usize, driver: &mut Driver, elapsed_ns: Ns) -> Grant {
        let sched = &self.plan.host.sched;
        let weight = |group: usize| match sched {
            HostSched::Linux(level) => level.groups.get(group).copied(),
            HostSched::Pool(pool) => pool.partitions.get(group).map(|p| u64::from(p.weight)),
            HostSched::Credit1(_) => None,
        };
        let mut members = Vec::with_capacity(self.vms.len());
        for (m, (state, plan)) in self.vms.iter().zip(&self.plan.vms).enumerate() {
            let vcpus = plan.level.topology.cpus();
            let own = state.first..state.first + vcpus;
            let now: CpuTime = own.map(|v| self.time_of(v)).sum();
            let govern = &plan.virt.govern;
            members.push(Member {
                used: now.since(std::mem::replace(&mut driver.pool[m], now)),
                width: self.masks[m].width,
                vcpus,
                weight: plan.group.and_then(|g| weight(usize::from(g))),
                entitled: govern.entitled.unwrap_or(0),
                folds: govern.kind.is_some() && govern.takes_part,
            });
        }
        let own = 0..self.plan.host_tasks.len() as u32;
        let ran: Ns = own.map(|t| self.host.stats(EntId(t)).exec_ns).sum();
        let others = ran - std::mem::replace(&mut driver.host_ran, ran);
        let capacity = (self.pcpus.len() as u64 * elapsed_ns).saturating_sub(others);
        let mut claims = vec![Claim::default(); members.len()];
        grant(&members, vm, capacity, elapsed_ns, &mut claims)
    }

    /// A switch of the timeline that sets a mask by hand.
    pub(crate) fn prefer(&mut self, action: &TimelineAction) {
        if let TimelineAction::Prefer { vm, vcpus } = action {
            let preferred = vcpus.iter().map(|&c| CpuId(c)).collect();
            self.set_mask(*vm, &preferred);
        }
    }
}
