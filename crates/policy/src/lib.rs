//! vCPU-scheduling policies as sans-I/O state machines, shared by simulator, lab and daemon.
//!
//! A policy owns no clock, makes no system call and allocates nothing: a driver tells it what
//! happened and when ([`Event`], with the time in nanoseconds), and it answers what to do
//! ([`Actions`]). The simulator's port carries the actions out on simulated threads, the lab's and
//! the daemon's on real ones.
//!
//! * [`driver`]: what every backend does between a policy and a vCPU's thread; a backend brings a
//!   [`driver::Port`].
//! * [`host::HostPolicy`]: the policy itself, one for each vCPU.
//! * [`VmShared`]: what the vCPUs of one VM share: switches and the VM's budget.
//! * [`thread::attributes`]: a thread's scheduling policy when boosted.
//! * [`guest::GuestHalf`]: the part of a policy inside the guest, one for each vCPU.
//! * [`ratelimit::Ratelimit`]: a ratelimit for each domain of a Xen host; it gives no boosts.
//! * [`advance::TimerAdvance`]: how early to fire a timer.
//! * [`halt_poll::HostHaltPoll`], [`halt_poll::GuestHaltPoll`]: how long to poll for a vCPU instead of
//!   sleeping.
//! * [`govern::Governor`]: how many of its vCPUs a guest should use.
//! * [`repay::Repay`]: what a boosted vCPU gives back as fair time.
//! * [`sender`]: inside the guest, whether an IPI's sender asks the host to boost its receiver.
//! * [`budget::Bucket`]: the token bucket behind every bound.
//!
//! # Example
//!
//! `wake-boost` needs no help from the guest: it boosts a vCPU while it is halted, and for a bounded time after its
//! wake-up.
//!
//! ```
//! use vcoop_abi::GuestWords;
//! use vcoop_policy::config::{Budget, Means, WakeBoostConfig};
//! use vcoop_policy::{Action, Event, HostPolicy, VmShared};
//!
//! let config = WakeBoostConfig {
//!     means: Means::Fifo(1),
//!     run_ns: 500_000,
//!     vcpu_budget: Budget { burst_ns: 3_000_000, refill_ppm: 250_000 },
//!     vm_budget: Budget { burst_ns: 3_000_000, refill_ppm: 250_000 },
//!     boost_on_injection: false,
//!     repay: false,
//!     rest_slice_ns: None,
//! };
//! let mut vm = VmShared::new(config.vm_budget, 0);
//! let mut policy = HostPolicy::wake_boost(config, 0);
//! policy.on(0, Event::Enable, &mut vm);
//!
//! let actions = policy.on(1_000_000, Event::Halted(GuestWords::SILENT), &mut vm);
//! assert!(actions.contains(&Action::Boost(Means::Fifo(1))));
//!
//! // It runs. The policy says when it wants to be called, and ends the boost after half a millisecond.
//! let mut now = 2_000_000;
//! let mut actions = policy.on(now, Event::Woken, &mut vm);
//! while let Some(Action::ArmTimer(at)) = actions.first().copied() {
//!     now = at;
//!     actions = policy.on(now, Event::Timer, &mut vm);
//! }
//! assert!(actions.contains(&Action::Restore) && now == 2_500_000);
//! ```
//!
//! A program that has vCPU threads does not call policies itself: it brings a [`driver::Port`] and calls
//! the functions of [`driver`]. `examples/vmm_loop.rs` of the repository is such a program.
//!
//! # Duties of a driver
//!
//! The [`driver`] does all of this but the first two, which are its port's:
//!
//! 1. One thread at a time calls a vCPU's policy, and the actions of a call have taken effect, in
//!    their order, before the next call for that vCPU. With several threads: a lock held over both.
//! 2. Times never go back between calls for one vCPU; an earlier time is read as the latest seen. Between vCPUs of a VM
//!    they may: an event that is reported late is charged from its own time.
//! 3. [`Event::Timer`] comes at the armed time or later, never before. Lateness is charged: it
//!    becomes debt in the bucket.
//! 4. [`Action::Ticket`] is carried out before the interrupt becomes visible to the guest.
//! 5. After [`Action::Recheck`], and for an injection after the interrupt is visible, the full fence of
//!    the handshake is run (`vcoop_abi`, "Ordering"), and the guest's words are read again and fed as
//!    [`Event::Recheck`]. Until then the boost may be one that nothing will end.
//! 6. Where [`HostPolicy::repays`], [`Event::Ran`] comes every [`repay::ACCOUNT_NS`].
//! 7. A thread has its baseline back when its driver ends, whichever way it ends (drop, panic, SIGTERM).
#![no_std]

#[cfg(feature = "alloc")]
extern crate alloc;

pub mod action;
pub mod advance;
pub mod budget;
pub mod config;
mod control;
pub mod deadline;
pub mod driver;
pub mod dynamic;
pub mod event;
pub mod govern;
pub mod guest;
pub mod halt_poll;
pub mod host;
mod meter;
pub mod ratelimit;
pub mod repay;
pub mod sender;
mod stats;
mod stretch;
pub mod thread;
mod vm_shared;
pub mod wake_boost;

pub use action::{Action, Actions, Reason, Rest};
pub use advance::TimerAdvance;
pub use event::{Event, Injection};
pub use guest::{GuestEvent, GuestHalf};
pub use halt_poll::{GuestHaltPoll, HostHaltPoll, Idle};
pub use host::HostPolicy;
pub use stats::PolicyStats;
pub use vm_shared::VmShared;
