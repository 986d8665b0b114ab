//! Run queues and scheduling levels: deadline, RT, CFS, EEVDF, one code for host and guest.
//!
//! A [`Level`] is one scheduler: a set of CPUs, the entities that want to run on them, and the
//! kernel's rules for who runs where. It is sans-I/O: a driver owns the clock, tells the level
//! what happened ([`Level::wake`], [`Level::schedule`], [`Level::tick`], ...) and drains what
//! the level wants done ([`Level::pop_note`]). A level does not know whether its entities are
//! threads on pCPUs or tasks on vCPUs; the host and every guest are instances of this one type.
//!
//! # Example
//!
//! One CPU, a fair entity that runs, and a real-time one that wakes up:
//!
//! ```
//! use vcoop_sched::config::{
//!     Balance, DlConfig, EevdfTunables, Fair, LevelConfig, Policy, RtGuard, Topology,
//! };
//! use vcoop_sched::{Attr, CpuId, LeaveReason, Level, Note};
//!
//! /// What a driver does after each call; here an interrupt is served at once.
//! fn serve(level: &mut Level, now: u64) {
//!     while let Some(note) = level.pop_note() {
//!         if let Note::Kick { cpu, .. } = note {
//!             level.schedule(now, cpu, LeaveReason::Preempted);
//!         }
//!     }
//! }
//!
//! let mut level = Level::new(&LevelConfig {
//!     topology: Topology::flat(1),
//!     tick_ns: 4_000_000,
//!     fair: Fair::Eevdf(EevdfTunables::for_cpus(1)),
//!     rr_slice_ns: 100_000_000,
//!     rt_guard: RtGuard::Off,
//!     dl: DlConfig::default(),
//!     balance: Balance::default(),
//!     groups: vec![],
//! })?;
//! let fair = level.add(Attr::anywhere(Policy::NORMAL), CpuId(0));
//! let urgent = level.add(Attr::anywhere(Policy::Fifo(10)), CpuId(0));
//!
//! level.wake(0, fair, None);
//! serve(&mut level, 0);
//! assert_eq!(level.current(CpuId(0)), Some(fair));
//!
//! level.wake(1_000_000, urgent, None);
//! serve(&mut level, 1_000_000);
//! assert_eq!(level.current(CpuId(0)), Some(urgent));
//!
//! // It goes to sleep, and the other one goes on.
//! level.schedule(1_200_000, CpuId(0), LeaveReason::Blocked);
//! assert_eq!(level.current(CpuId(0)), Some(fair));
//! # Ok::<(), vcoop_sched::ConfigError>(())
//! ```
//!
//! # The contract of a driver
//!
//! - Time given to calls never decreases.
//! - After every call that takes `&mut self`, drain [`Level::pop_note`] until it is `None`.
//! - A [`Note::Kick`] means: call [`Level::schedule`] on that CPU once it can be interrupted,
//!   with [`LeaveReason::Preempted`] if an entity runs there. A kicked CPU is not kicked again before
//!   it has scheduled, except when a lazy kick becomes an eager one.
//! - A [`Note::Woken`] means: interrupt that CPU, and have it call [`Level::take_woken`] until none is left.
//! - Call [`Level::tick`] every [`LevelConfig::tick_ns`](config::LevelConfig) on CPUs where
//!   [`Level::tick_needed`] holds, and [`Level::on_deadline`] at [`Level::deadline`].
//! - Time in which a CPU did not execute (steal) is reported by [`Level::stolen`] before the
//!   next charge, and is then not charged to the current entity.
#![no_std]
extern crate alloc;

mod class;
pub mod config;
mod cpuset;
mod dl;
mod fair;
mod guard;
mod heap;
mod level;
mod notes;
mod rt;
mod types;

pub use cpuset::{CpuSet, MAX_CPUS};
pub use dl::check_reservation;
pub use level::Level;
pub use notes::Notes;
pub use types::{
    Attr, ConfigError, CpuId, DirectedYield, EntId, EntStats, LeaveReason, MaskError, Note,
    Refusal, Waker,
};
