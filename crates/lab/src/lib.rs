//! The micro-VM lab: real vCPUs on `/dev/kvm`.
//!
//! [`run`] runs a [`Plan`](vcoop_model::plan::Plan) on this host, with the guest of `vcoop-guest`
//! and the policies of `vcoop-policy`, and gives back the same
//! [`Recording`](vcoop_model::recording::Recording) as the simulator. No kernel patch, module or
//! guest image is needed.
//!
//! Threads of a run:
//!
//! * one a *vCPU*, on the plan's CPUs, at the plan's policy unless boosted;
//! * the *injector*, away from the vCPUs' CPUs where the host has others: timers, devices, boosts;
//! * the *governor*, if a VM has one: how many of its vCPUs it should use;
//! * one a *host task* of the plan: loads, and the host's latency probe;
//! * the caller's, which collects samples and ends the run in time.
//!
//! All of them are threads of this process and end with it: nothing that a run changes outlives it, however it ends. A
//! panic in any thread, an error, or the caller's stop ends the other threads, restores boosted threads and joins all.
//!
//! # What a sample's parts are here
//!
//! With a trace of the host's scheduler (see [`Options::trace`]), a sample is cut wherever the state
//! of its thread changes, and the parts add up to it exactly:
//!
//! | part | a guest's sample | a host thread's |
//! | --- | --- | --- |
//! | `timer_slack` | exitless timer: the injector's lateness; in-kernel timer: vCPU halted, until KVM wakes its thread | asleep until it is woken |
//! | `cstate` | woken, and its CPU idles still | the same |
//! | `wake_to_run` | woken, another thread has its CPU | the same |
//! | `preempted_to_run` | taken off its CPU, wants it | the same |
//! | `delivery` | halted, though the injector has fired, or in guest mode, until the guest's kernel has the interrupt | |
//! | `entry_exit` | on a CPU, outside of guest mode | |
//! | `host_switch` | | on its CPU, until it has taken the sample |
//! | `guest_switch` | from the guest's kernel to the task's first instruction, other tasks of the guest included | |
//!
//! If KVM does not trace entries and exits (a software-virtualised one may not), it is not known whether a vCPU on a
//! CPU is in guest mode: before the guest's kernel has the interrupt all such time is `entry_exit`, delivery included,
//! and afterwards all of it is `guest_switch`. A vCPU's halt for which KVM polls counts as halted. Throttling by the
//! host cannot be told from preemption. The context switch itself, from the scheduler's decision on, is part of what
//! follows it.
//!
//! The thread on the CPU during `wake_to_run` and `preempted_to_run` is booked by label: loads and VMs by their names,
//! the lab's own threads as `injector` and `collector`, others by the thread's name up to a space or a slash.
//!
//! Without a trace, or in a gap of the trace (`lab.samples_coarse` counts such samples), the decomposition is coarse.
//! With the exitless timer, `timer_slack` is the injector's lateness; with the in-kernel timer the expiry is not seen,
//! and counts as host time. From there to the guest's kernel is host time, exits and delivery included: `wake_to_run`
//! if the vCPU was idle, `preempted_to_run` if not. From there to the task's first instruction is `guest_switch`. All
//! of a host thread's sample is `wake_to_run`.
//!
//! The trace does not explain a call's round trip, in which two or more threads take part: it always counts as coarse.
//! Its parts lie between its own times: the call, the server's wake-up, the begin and end of service, the caller's
//! wake-up, and the return. `service` is the server's time. The way to a thread of the host is `wake_to_run`. The way
//! to a guest's kernel is `wake_to_run` if the vCPU was idle and `preempted_to_run` if not; the latter also has all of
//! the way to a guest's server that was busy with another call. The way from a guest's kernel to its task, and between
//! tasks of one vCPU, is `guest_switch`.

mod calibrate;
mod channels;
mod collect;
mod common;
mod counters;
mod doctor;
mod environment;
mod error;
mod event_signal;
mod facts;
#[cfg(test)]
mod fault_injection;
mod govern;
mod host_call;
mod host_task;
mod inbox;
mod injector;
mod lab_vm;
mod machine;
mod memory;
mod page_check;
mod policy_driver;
mod policy_log;
mod port;
mod preferred_mask;
mod probe;
mod rates;
mod reservation;
mod rogue;
mod round_trip;
mod routine;
mod run;
mod samples;
mod stress_ng;
mod trace;
mod translate;
mod vcpu;
mod virt;
mod widths;
mod work;

pub use calibrate::{
    BASE_PROFILE, CalibrateOptions, Calibration, Conditions, Cost, Distribution, Measure,
    MeasuredNoise, Origin, Skipped, TOLERANCE_PERCENT, calibrate,
};
pub use doctor::{Finding, State, cpu_limit, survey};
pub use environment::environment;
pub use error::{Error, RequestTarget};
pub use facts::{Fact, HostFacts, IdleFacts, IdleState, Release, SchedExt, host_facts};
pub use run::{available, can_trace, check, run};

/// Settings of a run that a plan does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How early the injector sends timer interrupts, in nanoseconds, at most
    /// [`MOST_INJECTOR_ADVANCE_NS`](vcoop_policy::config::MOST_INJECTOR_ADVANCE_NS):
    /// delivery overlaps with the wait, which the guest's kernel spins out. With a boost, the vCPU
    /// is boosted for that time too. `None`: learned
    /// ([`INJECTOR`](vcoop_policy::config::AdvanceConfig::INJECTOR)) for the policies that boost, else 0.
    /// Without effect on the in-kernel timer.
    pub advance_ns: Option<u64>,
    /// Record the host's scheduler through tracefs, if this host allows it, to decompose samples. Default: yes.
    pub trace: bool,
    /// Check each vCPU's page against the protocol ([`vcoop_abi::conformance`]), as far as the host sees it: its own
    /// stores as they happen, the guest's words whenever the policy reads them. A violation fails the run. A rogue
    /// guest's side is not checked. For tests; default: no.
    pub check_pages: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { advance_ns: None, trace: true, check_pages: false }
    }
}
