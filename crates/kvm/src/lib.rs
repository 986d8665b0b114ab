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
//! * one a *host task* of the plan: loads, and the host's latency probe;
//! * the caller's, which collects samples and watches the time.
//!
//! All of them are threads of this process, and end with it: nothing a run changes outlives it,
//! whichever way it ends. While it lives, a panic in any thread, an error, or the caller's wish ends
//! the others, takes boosts back and joins them.
//!
//! # What a sample's parts are here
//!
//! Without a trace of the host's scheduler the decomposition is coarse. With the exitless timer,
//! `timer_slack` is the injector's lateness; with the in-kernel one, nobody saw the expiry, and it
//! counts as host time. From there to the guest's kernel is host time, exits and delivery included:
//! `wake_to_run` if the vCPU was idle, `preempted_to_run` if not. From there to the task's first
//! instruction it is `guest_switch`, waiting for other tasks of the guest included.
#![cfg_attr(
    not(all(target_os = "linux", target_arch = "x86_64")),
    allow(dead_code, unused_imports, reason = "there is no lab on other targets")
)]

mod error;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod attr;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod bell;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod clock;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod collect;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod draw;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod driver;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod environment;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod host_call;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod host_task;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod injector;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod lab;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod machine;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod memory;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod pi;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod probe;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod translate;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod trip;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod vcpu;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod wiring;

pub use error::{Error, Missing, Whom};

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use environment::environment;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use lab::{available, check, run, run_with};

/// Who fires the guests' deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// KVM's in-kernel TSC-deadline timer: programming it is an exit, firing it is not seen by the
    /// lab, so no boost goes with it.
    Lapic,
    /// The injector, from the deadline in the shared page; a boost goes with it if the policy gives
    /// one.
    Exitless,
}

/// What a plan does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `None`: exitless for the policies that boost, the in-kernel timer for the others, as on a
    /// host without vcoop.
    pub timer: Option<Timer>,
    /// How early the injector sends timer interrupts, in nanoseconds, at most [`MAX_ADVANCE_NS`]:
    /// delivery overlaps with the wait, which the guest's kernel spins out. With a boost, the vCPU
    /// is boosted for that time too. `None`: [`ADVANCE_NS`] for the policies that boost, else 0.
    /// Without effect on the in-kernel timer.
    pub advance_ns: Option<u64>,
}

/// Default of [`Options::advance_ns`]: less than any delivery takes on a software-virtualised KVM,
/// and about what it takes on VMX and SVM with the vCPU halted.
pub const ADVANCE_NS: u64 = 20_000;

/// Most of [`Options::advance_ns`].
pub const MAX_ADVANCE_NS: u64 = 200_000;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod elsewhere {
    use std::collections::BTreeMap;

    use vcoop_model::plan::Plan;
    use vcoop_model::recording::Recording;

    use crate::{Error, Missing, Options};

    /// Whether the lab can run here.
    ///
    /// # Errors
    ///
    /// It cannot, on this target.
    pub fn available() -> Result<(), Missing> {
        Err(Missing {
            what: "the micro-VM lab needs x86-64 Linux with KVM".to_owned(),
            remedy: "use the simulator".to_owned(),
        })
    }

    /// Whether this plan can run here.
    ///
    /// # Errors
    ///
    /// It cannot, on this target.
    pub fn check(_: &Plan) -> Result<(), Error> {
        Ok(available()?)
    }

    /// Runs a plan once.
    ///
    /// # Errors
    ///
    /// It cannot, on this target.
    pub fn run(plan: &Plan, seed: u64, stop: &dyn Fn() -> bool) -> Result<Recording, Error> {
        run_with(plan, seed, stop, &Options::default())
    }

    /// Runs a plan once.
    ///
    /// # Errors
    ///
    /// It cannot, on this target.
    pub fn run_with(
        _: &Plan,
        _: u64,
        _: &dyn Fn() -> bool,
        _: &Options,
    ) -> Result<Recording, Error> {
        available()?;
        Ok(Recording { latencies: vec![], scalars: BTreeMap::new(), engine: None })
    }

    /// Nothing is known here.
    pub fn environment() -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub use elsewhere::{available, check, environment, run, run_with};
