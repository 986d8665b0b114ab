//! Governors on real vCPUs: a thread that calls the governor of each VM once an interval.
//!
//! The running and stolen time of a vCPU is the run time and run delay of its thread in
//! `/proc/self/task/TID/schedstat`; a wait that is not over is in neither. First the steal is published in the vCPU's
//! host area. Then the VM's [`Governor`], the same type as in the simulator, returns how many vCPUs to use, and the
//! mask in the host areas follows.
//!
//! A governor that uses steal would run in the guest. Here all of them run in the VMM, which has the same numbers; they
//! cost the guest only the look at its page.

use std::sync::atomic::Ordering;

use vcoop_model::plan::{Ns, Plan};
use vcoop_policy::govern::{CpuTime, GovernorDriver, Host, Member};
use vcoop_sched::config::Policy;
use vcoop_threads::clock::{monotonic, sleep_until};
use vcoop_threads::{Attributes, run_time, set_timer_slack};

use crate::common::Common;
use crate::error::{Error, RequestTarget};
use crate::host_task::Progress;
use crate::lab_vm::{LabVcpu, LabVm};
use crate::preferred_mask;

/// Longest time between two checks whether the run is over.
const LOOK_NS: Ns = 50_000_000;

/// Real-time priority of the thread: below the injector's. Its looks must be in time when the VMs use all CPUs, and
/// take some ten microseconds a vCPU.
const PRIORITY: u8 = 90;

/// The governors of a run, and when each looks next.
#[derive(Debug)]
pub(crate) struct Governors<'a> {
    common: &'a Common,
    host: Pool<'a>,
    all: Vec<(GovernorDriver, Ns)>,
}

/// The host's VMs and threads, for governors.
#[derive(Debug)]
struct Pool<'a> {
    plan: &'a Plan,
    vms: &'a [LabVm],
    tasks: &'a [Progress],
}

impl Host for Pool<'_> {
    fn cpu_time(&self, vm: usize, vcpu: u32) -> CpuTime {
        self.vms[vm].vcpus[vcpu as usize].cpu_time()
    }

    fn own_ns(&self) -> Ns {
        self.tasks.iter().map(|p| run_time(p.tid.load(Ordering::Acquire)).ran_ns).sum()
    }

    fn pcpus(&self) -> u32 {
        self.plan.host.sched.cpus()
    }

    fn vms(&self) -> impl Iterator<Item = usize> {
        0..self.vms.len()
    }

    fn member(&self, vm: usize) -> Member {
        let (driver, govern) = (&self.vms[vm], &self.plan.vms[vm].virt.govern);
        let vcpus = driver.vcpus.len() as u32;
        Member {
            used: driver.vcpus.iter().map(LabVcpu::cpu_time).sum(),
            width: driver.masked().map_or(vcpus, |mask| mask.width()),
            vcpus,
            // The lab makes no cgroups: threads are alike.
            weight: None,
            quota_ns: None,
            entitled: govern.entitled.unwrap_or(0),
            folds: govern.kind.is_some() && govern.takes_part,
        }
    }

    fn publish_steal(&self, vm: usize, vcpu: u32, steal_ns: Ns) {
        self.vms[vm].machine.host_area(vcpu).steal_ns.store(steal_ns, Ordering::Release);
    }
}

impl<'a> Governors<'a> {
    /// The governors of the plan; `None` if no VM has one.
    pub(crate) fn new(
        common: &'a Common,
        plan: &'a Plan,
        vms: &'a [LabVm],
        tasks: &'a [Progress],
    ) -> Option<Self> {
        let all: Vec<_> = (0..vms.len())
            .filter_map(|vm| plan.governor_driver(vm))
            .map(|driver| {
                let first = driver.interval_ns();
                (driver, first)
            })
            .collect();
        (!all.is_empty()).then_some(Self { common, host: Pool { plan, vms, tasks }, all })
    }

    /// Runs until the run is over.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let whom = RequestTarget::Thread("governor".to_owned());
        Attributes::from_policy(&Policy::Fifo(PRIORITY)).set(0).map_err(Error::refused(&whom))?;
        set_timer_slack(1);
        while !self.common.is_over() {
            for (driver, next) in &mut self.all {
                let now = self.common.clock.now();
                if *next <= now {
                    if let Some(width) = driver.look(now, &self.host) {
                        self.host.vms[driver.vm()].prefer(now, preferred_mask::first(width));
                    }
                    // Absolute: a late look does not shift those after it.
                    let interval = driver.interval_ns();
                    *next += interval * ((now - *next) / interval + 1);
                }
            }
            let now = self.common.clock.now();
            let next = self.all.iter().map(|(_, next)| *next).min().unwrap_or(now + LOOK_NS);
            let wait = next.saturating_sub(now).min(LOOK_NS);
            sleep_until(monotonic() + wait);
        }
        Ok(())
    }
}
