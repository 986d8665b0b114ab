//! The two-level vCPU scheduling simulator.
//!
//! [`run`] takes one plan and a seed ([`Run`]) and returns one [`Recording`]. The same plan and seed give the same
//! recording on any machine, except for the CPU time that the run took.
//!
//! Plans are made from scenarios, the built-in ones or texts of your own:
//!
//! ```
//! use vcoop_model::builtin::builtin_scenario;
//! use vcoop_model::capture::NoCaptures;
//! use vcoop_model::run::Run;
//! use vcoop_model::scenario::{Scenario, Set};
//!
//! let text = builtin_scenario("busy-host-1").expect("it is built in");
//! let short = [Set::of("duration", "200ms"), Set::of("warmup", "50ms")];
//! let scenario = Scenario::parse("busy-host-1", text, &short, &NoCaptures)?;
//! for plan in scenario.plans(None)? {
//!     let recording = vcoop_sim::run(Run::new(&plan, 1))?;
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
//! `examples/ratio_study.rs` of the repository is a study of some fifty lines.
//!
//! The files of the crate, from the ground up. A file uses only files of its own paragraph and of those before.
//!
//! Parts have their own state in private fields, and unit tests that build them alone:
//!
//! ```text
//! clock          what time it is, and what happens next
//! queue          one pending event per timer-owning entity, in a timing wheel
//! inline_queue   queues that mostly hold one item
//! ticks          when scheduler ticks come
//! price          what mechanisms cost, each time anew where it varies
//! program        what a task does next, on either level
//! host           scheduler: which hypervisor schedules, Linux, or credit1 or PowerVM from crates of their own
//!                smt: siblings of a core; host_ticks: when pCPUs tick; idle_governor; devices: their interrupts
//! guest          exit: why vCPUs leave guest mode; lock: who holds which lock; spin_vcpu, vm_sync: who spins for it
//!                sleeping_lock, barrier: who waits there
//!                vcpu_virt: how a VM is virtualised; counters: what KVM counts
//!                halt_poll: polling; halt_times: how long halts and polls are
//! interrupts     guest_timers: what a guest waits for; deadline: of a vCPU; hv_range: what VMX' timer can hold
//!                ipi_vcpu: IPIs under way; devices: of VMs
//! messages       call: who calls whom; mailbox: messages within a level
//! policy_driver  page: the shared page; page_checks: holds it against the protocol; event_counts: by time
//!                preferred: the vCPUs that a guest keeps off
//! attribution    track: where the time of a latency sample went; probe: samples into histograms
//! observe        spans: who watches a run, and when
//! xen            only for the Xen study. storm: VMs that come while the run goes on; fairness: of shares
//!                intervals: who ran when on one pCPU; ratelimit_driver: on credit1
//! ```
//!
//! The state of a run consists of these parts:
//!
//! ```text
//! machine        what a machine is made of, and what its parts can be doing
//! world          the state of a run
//! ```
//!
//! Methods of `World` carry an event from part to part. They are grouped by subject:
//!
//! ```text
//! host           what a pCPU does next. wake: sleeping and waking; idle: pCPUs at rest; nohz: CPUs without ticks
//!                speed: siblings slow each other down
//! guest          what a vCPU does next. vmx: VM entries and exits; idle: idle vCPUs that do not sleep
//!                spin: spinning for a lock, and what the host does about that
//!                acquire: taking sleeping locks; barrier_wait: coming to barriers
//! interrupts     inject: on their way into a guest; ipi: from vCPU to vCPU; guest_timer: a guest's tick and sleeps
//!                lapic: the timer behind a guest's deadline; hv_timer: the VMX preemption timer
//! messages       delivery: on their way
//! policy_driver  drives vcoop-policy on simulated threads and a simulated page; govern: drives governors
//! xen            toolstack: storms, views of intervals, ratelimits
//! observe        tells an observer what happens
//! result         counters into a recording
//! run            the loop from event to event
//! setup          from a plan to a world at time zero; host/noise: what takes pCPUs though no plan asks for it
//! ```

mod attribution;
mod clock;
mod guest;
mod host;
mod inline_queue;
mod interrupts;
mod machine;
mod messages;
mod observe;
mod policy_driver;
mod price;
pub mod program;
pub mod queue;
mod result;
mod run;
mod setup;
mod ticks;
mod world;
mod xen;

use vcoop_abi::conformance::Limits;
use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;

pub use policy_driver::page_checks::PageReport;
pub use vcoop_sched::ConfigError;

/// Runs a plan. An observer does not change the recording, except that its windows may end the run.
///
/// # Errors
/// A level of the plan cannot be built: more CPUs than a level can hold, or a group that it does not have. Plans from
/// scenarios are checked before.
pub fn run(run: Run<'_>) -> Result<Recording, ConfigError> {
    let before = cpu_time_ns();
    let noisy = host::noise::with_noise(run.plan);
    let mut world = setup::build(&noisy, run.seed, run.plan.housekeeping())?;
    world.start()?;
    if let Some(observer) = run.observer {
        world.spans = observe::spans::Spans::new(observer);
        world.span_cast();
    }
    let (start, end) = world.run(run.stop);
    Ok(world.finish(&start, &end, cpu_time_ns() - before))
}

/// Runs a plan, and checks the use of each vCPU's page by guest and host against the protocol
/// ([`vcoop_abi::conformance`]), under policies with the guest's help.
///
/// # Errors
/// As [`run`].
pub fn check_pages(
    plan: &Plan,
    seed: u64,
    limits: Limits,
) -> Result<(Recording, Vec<PageReport>), ConfigError> {
    let before = cpu_time_ns();
    let noisy = host::noise::with_noise(plan);
    let mut world = setup::build(&noisy, seed, plan.housekeeping())?;
    world.watch_pages(limits);
    world.start()?;
    let (start, end) = world.run(&|| false);
    let reports = world.page_reports();
    Ok((world.finish(&start, &end, cpu_time_ns() - before), reports))
}

/// CPU time (user + system) of the calling thread, in nanoseconds.
pub fn cpu_time_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
