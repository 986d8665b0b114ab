//! Checks whether this host's kernel accepts the reservations of a plan, before anything is built.
//!
//! Linux refuses SCHED_DEADLINE to a thread that may not use every CPU of its root domain (EPERM), and when the total
//! bandwidth would exceed `sched_rt_runtime_us` of `sched_rt_period_us`, less that of fair servers (EBUSY). Both depend
//! on the machine: cpusets, other deadline threads, the kernel. So the kernel is asked: as many threads as the plan has
//! permanent reservations take them at the same time, on the CPUs they will have; for temporary ones, one thread after
//! the other.

use std::sync::Barrier;
use std::thread;

use vcoop_model::Missing;
use vcoop_model::plan::{Plan, PolicyPlan};
use vcoop_policy::Rest;
use vcoop_policy::config::Means;
use vcoop_policy::thread::attributes;
use vcoop_sched::config::Policy;
use vcoop_threads::{Attributes, pin};

use crate::error::{Error, RequestTarget};

/// One thread that will have a reservation.
#[derive(Debug)]
struct ReservationRequest {
    attr: Attributes,
    cpus: Vec<u32>,
    whom: RequestTarget,
    /// Permanent, or only while boosted.
    stays: bool,
    /// It comes from the policy under test, not from the scenario.
    by_policy: bool,
}

/// Requests what the plan reserves; `real` maps CPUs of the plan to the host's.
///
/// # Errors
///
/// [`Error::PolicyMissing`] for the means of the policy, [`Error::Missing`] for loads and baselines.
pub(crate) fn check(plan: &Plan, real: &dyn Fn(&[u32]) -> Vec<u32>) -> Result<(), Error> {
    let wanted = wanted(plan, real);
    let (stay, pass): (Vec<_>, Vec<_>) = wanted.iter().partition(|w| w.stays);
    // The scenario's own, then all that stay, then each that comes and goes beside them.
    let own: Vec<&ReservationRequest> = stay.iter().copied().filter(|w| !w.by_policy).collect();
    probe(&own).and_then(|()| probe(&stay)).map_err(|refused| refused.of(plan))?;
    for w in pass {
        let mut all = stay.clone();
        all.push(w);
        probe(&all).map_err(|refused| refused.of(plan))?;
    }
    Ok(())
}

fn wanted(plan: &Plan, real: &dyn Fn(&[u32]) -> Vec<u32>) -> Vec<ReservationRequest> {
    let mut all = Vec::new();
    let mut own = |policy: &Policy, cpus: &[u32], whom| {
        if policy.is_deadline() {
            let attr = Attributes::from_policy(policy);
            all.push(ReservationRequest {
                attr,
                cpus: real(cpus),
                whom,
                stays: true,
                by_policy: false,
            });
        }
    };
    for task in &plan.host_tasks {
        own(&task.policy, &task.cpus, RequestTarget::Thread(task.name.clone()));
    }
    for vm in &plan.vms {
        for (n, (policy, cpus)) in vm.vcpu_policy.iter().zip(&vm.vcpu_cpus).enumerate() {
            own(policy, cpus, RequestTarget::Vcpu(vm.name.clone(), n as u32));
        }
    }
    let stays = matches!(plan.policy, PolicyPlan::Static { .. });
    for (m, vm) in plan.vms.iter().enumerate() {
        for (n, cpus) in vm.vcpu_cpus.iter().enumerate() {
            let driver = plan.vcpu_driver(m, n);
            if let Some(means @ Means::Deadline { .. }) = driver.means() {
                let boosted = attributes(driver.baseline(), Some(means), Rest::default());
                all.push(ReservationRequest {
                    attr: Attributes::from_policy(&boosted),
                    cpus: real(cpus),
                    whom: RequestTarget::Vcpu(vm.name.clone(), n as u32),
                    stays,
                    by_policy: true,
                });
            }
        }
    }
    all
}

/// A thread that did not get its reservation.
struct Refused<'a> {
    wanted: &'a ReservationRequest,
    error: Error,
}

impl Refused<'_> {
    fn of(self, plan: &Plan) -> Error {
        let remedy = match &self.error {
            Error::Kernel { source, .. } => match source.raw_os_error() {
                Some(libc::EPERM) => {
                    "take out the pinning (all CPUs of the root domain), or run in an exclusive \
                     cpuset of just these CPUs without load balancing above it, or set \
                     sched_rt_runtime_us to -1; needs CAP_SYS_NICE in any case"
                }
                Some(libc::EBUSY) => {
                    "reserve less, end other deadline threads, or set sched_rt_runtime_us to -1"
                }
                Some(libc::EINVAL) => "see sched_deadline_period_min_us and _max_us",
                _ => "use other means",
            },
            _ => return self.error,
        };
        let what = format!("the kernel takes no deadline: {}", self.error);
        let missing = Missing { what, remedy: remedy.to_owned() };
        if self.wanted.by_policy {
            Error::PolicyMissing { policy: plan.policy_name.clone(), missing }
        } else {
            Error::Missing(missing)
        }
    }
}

/// Starts a thread for each, which takes its reservation beside the others.
fn probe<'a>(wanted: &[&'a ReservationRequest]) -> Result<(), Refused<'a>> {
    let together = Barrier::new(wanted.len());
    let together = &together;
    thread::scope(|scope| {
        let threads: Vec<_> = wanted
            .iter()
            .map(|&w| {
                let take = move || {
                    let taken = pin(&w.cpus).and_then(|()| w.attr.set(0));
                    together.wait();
                    taken.map_err(|e| Refused { wanted: w, error: Error::refused(&w.whom)(e) })
                };
                scope.spawn(take)
            })
            .collect();
        let mut first = Ok(());
        for (thread, w) in threads.into_iter().zip(wanted) {
            let panicked = |_| Err(Refused { wanted: w, error: Error::Panicked(w.whom.clone()) });
            let taken = thread.join().unwrap_or_else(panicked);
            first = first.and(taken);
        }
        first
    })
}
