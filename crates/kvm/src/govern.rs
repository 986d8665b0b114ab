//! Governors on real vCPUs: a thread that looks at each governed VM once an interval.
//!
//! What a vCPU ran and what was stolen from it are its thread's run time and run delay, as
//! `/proc/self/task/TID/schedstat` has them: a wait that is not over is in neither. The steal is
//! published in the vCPU's host area first; then the VM's [`Governor`], the very type that the
//! simulator drives, says how many vCPUs to use, and the mask in the host areas follows.
//!
//! A governor that goes by steal would be the guest's own. Here all of them sit in the VMM, which has
//! the same numbers; none of them costs the guest anything but the look at its page.

use std::sync::atomic::Ordering;

use vcoop_model::plan::{Ns, Plan};
use vcoop_policy::govern::{Claim, CpuTime, Governor, Grant, Kind, Member, Seen, grant};
use vcoop_sched::config::Policy;
use vcoop_threads::clock::{monotonic, sleep_until};
use vcoop_threads::{Attributes, run_time, set_timer_slack};

use crate::driver::{Common, VcpuDriver, VmDriver};
use crate::error::{Error, Whom};
use crate::host_task::Progress;
use crate::mask;

/// Longest time between two looks whether the run is over.
const LOOK_NS: Ns = 50_000_000;

/// Real-time priority of the thread: below the injector's. Its looks must come in time where the VMs
/// have all the CPUs, and take some ten microseconds a vCPU.
const PRIORITY: u8 = 90;

/// The governor of one VM.
#[derive(Debug)]
struct One {
    vm: usize,
    governor: Governor,
    interval_ns: Ns,
    next: Ns,
    by_host: bool,
    last_at: Ns,
    /// Counters of its vCPUs at the last look, and what came since.
    last: Vec<CpuTime>,
    since: Vec<CpuTime>,
    /// Of each VM, and of the host's own threads.
    pool: Vec<CpuTime>,
    host_ran: Ns,
}

/// The governors of a run.
#[derive(Debug)]
pub(crate) struct Governors<'a> {
    common: &'a Common,
    plan: &'a Plan,
    vms: &'a [VmDriver],
    host: &'a [Progress],
    all: Vec<One>,
}

impl<'a> Governors<'a> {
    /// Those of the plan; `None` if nobody has one.
    pub(crate) fn new(
        common: &'a Common,
        plan: &'a Plan,
        vms: &'a [VmDriver],
        host: &'a [Progress],
    ) -> Option<Self> {
        let of = |vm: usize| {
            let config = plan.governor(vm)?;
            let vcpus = vms[vm].vcpus.len();
            let threads = plan.vms[vm].level.topology.threads_per_core;
            Some(One {
                vm,
                governor: Governor::new(&config, vcpus as u32, threads),
                interval_ns: config.interval_ns,
                next: config.interval_ns,
                by_host: matches!(config.kind, Kind::Entitlement | Kind::HostHint),
                last_at: 0,
                last: vec![CpuTime::default(); vcpus],
                since: vec![CpuTime::default(); vcpus],
                pool: vec![CpuTime::default(); vms.len()],
                host_ran: 0,
            })
        };
        let all: Vec<One> = (0..vms.len()).filter_map(of).collect();
        (!all.is_empty()).then_some(Self { common, plan, vms, host, all })
    }

    /// Runs until the run is over.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let whom = Whom::Thread("governor".to_owned());
        Attributes::from_policy(&Policy::Fifo(PRIORITY)).set(0).map_err(Error::refused(&whom))?;
        set_timer_slack(1);
        while !self.common.is_over() {
            let now = self.common.clock.now();
            for i in 0..self.all.len() {
                if self.all[i].next <= now {
                    self.look(i);
                    let one = &mut self.all[i];
                    // Absolute: a late look does not shift those after it.
                    one.next += one.interval_ns * ((now - one.next) / one.interval_ns + 1);
                }
            }
            let next = self.all.iter().map(|one| one.next).min().unwrap_or(now + LOOK_NS);
            let now = self.common.clock.now();
            let wait = next.saturating_sub(now).min(LOOK_NS);
            sleep_until(monotonic() + wait);
        }
        Ok(())
    }

    /// One governor looks, and its word is carried out.
    fn look(&mut self, i: usize) {
        let (now, vms) = (self.common.clock.now(), self.vms);
        let one = &mut self.all[i];
        let vm = &vms[one.vm];
        let elapsed_ns = now - one.last_at;
        one.last_at = now;
        for ((n, v), (last, since)) in
            (0..).zip(&vm.vcpus).zip(one.last.iter_mut().zip(&mut one.since))
        {
            let time = v.cpu_time();
            vm.machine.host_area(n).steal_ns.store(time.steal_ns, Ordering::Release);
            *since = time.since(std::mem::replace(last, time));
        }
        let grant = one.by_host.then(|| self.grant(i, elapsed_ns));
        let one = &mut self.all[i];
        let seen = Seen { elapsed_ns, cpus: &one.since, grant };
        if let Some(width) = one.governor.on(&seen) {
            vm.prefer(now, mask::first(width));
        }
    }

    /// What the host can give a VM: it knows what each of them ran and waited for.
    fn grant(&mut self, i: usize, elapsed_ns: Ns) -> Grant {
        let one = &mut self.all[i];
        let mut members = Vec::with_capacity(self.vms.len());
        for ((vm, plan), before) in self.vms.iter().zip(&self.plan.vms).zip(&mut one.pool) {
            let now: CpuTime = vm.vcpus.iter().map(VcpuDriver::cpu_time).sum();
            let vcpus = vm.vcpus.len() as u32;
            let govern = &plan.virt.govern;
            members.push(Member {
                used: now.since(std::mem::replace(before, now)),
                width: vm.masked().map_or(vcpus, |mask| mask.width()),
                vcpus,
                // The lab makes no cgroups: threads are alike.
                weight: None,
                entitled: govern.entitled.unwrap_or(0),
                folds: govern.kind.is_some() && govern.takes_part,
            });
        }
        let ran = |p: &Progress| run_time(p.tid.load(Ordering::Acquire)).ran_ns;
        let ran: Ns = self.host.iter().map(ran).sum();
        let others = ran.saturating_sub(std::mem::replace(&mut one.host_ran, ran));
        let pcpus = u64::from(self.plan.host.sched.cpus());
        let capacity = (pcpus * elapsed_ns).saturating_sub(others);
        let mut claims = vec![Claim::default(); members.len()];
        grant(&members, one.vm, capacity, elapsed_ns, &mut claims)
    }
}
