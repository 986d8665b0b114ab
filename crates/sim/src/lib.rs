//! The two-level vCPU scheduling simulator.
//!
//! [`run`] takes one [`Plan`] and a seed and gives back one [`Recording`]. The same plan and seed
//! give the same recording on any machine, but for the CPU time it took.
//!
//! Plans are made from scenarios, the built-in ones or texts of your own:
//!
//! ```
//! use vcoop_model::builtin::builtin_scenario;
//! use vcoop_model::capture::NoCaptures;
//! use vcoop_model::scenario::{Scenario, Set};
//!
//! let text = builtin_scenario("busy-host-1").expect("it is built in");
//! let short = [Set::of("duration", "200ms"), Set::of("warmup", "50ms")];
//! let scenario = Scenario::parse("busy-host-1", text, &short, &NoCaptures)?;
//! for plan in scenario.plans(None)? {
//!     let recording = vcoop_sim::run(&plan, 1, &|| false)?;
//!     for record in &recording.latencies {
//!         let p99_us = record.hist.value_at_quantile(0.99) as f64 / 1e3;
//!         println!("{} {}: p99 {p99_us} us", plan.policy_name, record.probe);
//!         // The parts of all samples add up to all samples, to the nanosecond.
//!         assert_eq!(record.parts_sum.iter().sum::<u128>(), record.sum_ns);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/ratio_study.rs` of the repository is a study of some fifty lines. What the crate holds:
//!
//! ```text
//! queue    what happens next: one pending event per timer-owning entity
//! machine  what a machine is made of, and what its parts can be doing
//! world    the state of a run, and its loop
//! host     pCPUs and host threads; wake: sleeping and waking; idle: pCPUs at rest
//! vmx      VM entries and exits; inject: interrupts on their way into a guest
//! guest    vCPUs and guest tasks; guest_timer: their tick and sleeps
//! lapic    the timer behind a guest's deadline; hv_timer: the VMX preemption timer
//! few      queues that mostly hold one
//! poll     idle vCPUs that do not sleep; halts: how long they and their polls are
//!          cold: what most vCPUs do not need; counters
//! lock     locks of a guest, spinning, and what the host does about it; ipi: function calls
//! call     requests and answers between tasks of any level; mail: messages within a level
//! storm    VMs that come while the run goes on; view: who ran when on one pCPU
//! nohz     CPUs without ticks; noise: devices of the host; smt: siblings of a core
//! govern   drives governors; mask: the vCPUs that a guest keeps off
//! boost    drives vcoop-policy on simulated threads and a simulated page; tune: on credit1
//! program  what a task does next, on either level
//! track    attribution: where the time of a latency sample went
//! span     tells an observer of it all
//! probe    samples into histograms; result: counters into a recording; fairness: of shares
//! ```

mod boost;
mod call;
mod cold;
mod counters;
mod fairness;
mod few;
mod govern;
mod guest;
mod guest_timer;
mod halts;
mod host;
mod hv_timer;
mod idle;
mod in_use;
mod inject;
mod ipi;
mod lapic;
mod lock;
mod machine;
mod mail;
mod mask;
mod nohz;
mod noise;
mod poll;
pub mod probe;
pub mod program;
pub mod queue;
mod result;
mod setup;
mod smt;
mod span;
mod storm;
pub mod track;
mod tune;
mod view;
mod vmx;
mod wake;
mod world;

use vcoop_abi::conformance::Limits;
use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;
use vcoop_model::trace_event::Observer;

pub use boost::PageReport;
pub use vcoop_sched::ConfigError;

/// Runs a plan with a seed; `stop` is asked now and then and ends the run early when it answers
/// true (what was measured until then is in the recording).
///
/// # Errors
/// When a level of the plan cannot be built: more CPUs than a level can hold, or a group it does
/// not have. Plans made from scenarios are checked before.
pub fn run(plan: &Plan, seed: u64, stop: &dyn Fn() -> bool) -> Result<Recording, ConfigError> {
    let before = cpu_time_ns();
    let mut world = setup::build(plan, seed)?;
    world.start()?;
    let (start, end) = world.run(stop);
    Ok(world.finish(&start, &end, cpu_time_ns() - before))
}

/// [`run`], and holds what guest and host do with each vCPU's page against the protocol
/// ([`vcoop_abi::conformance`]), under policies that the guest takes part in.
///
/// # Errors
/// As [`run`].
pub fn check_pages(
    plan: &Plan,
    seed: u64,
    limits: Limits,
) -> Result<(Recording, Vec<PageReport>), ConfigError> {
    let before = cpu_time_ns();
    let mut world = setup::build(plan, seed)?;
    world.watch_pages(limits);
    world.start()?;
    let (start, end) = world.run(&|| false);
    let reports = world.page_reports();
    Ok((world.finish(&start, &end, cpu_time_ns() - before), reports))
}

/// [`run`], and tells an observer what happens. The recording is the same, but for a run that ends
/// with its observer's windows.
///
/// # Errors
/// As [`run`].
pub fn observe<'p>(
    plan: &'p Plan,
    seed: u64,
    stop: &dyn Fn() -> bool,
    observer: &'p mut dyn Observer,
) -> Result<Recording, ConfigError> {
    let before = cpu_time_ns();
    let mut world = setup::build(plan, seed)?;
    world.start()?;
    world.spans = span::Spans::new(observer);
    world.span_cast();
    let (start, end) = world.run(stop);
    Ok(world.finish(&start, &end, cpu_time_ns() - before))
}

/// CPU time (user + system) of the calling thread, in nanoseconds.
pub fn cpu_time_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
