//! A calibration from beginning to end.

use std::path::Path;
use std::thread;
use std::time::SystemTime;

use kvm_ioctls::Kvm;
use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use vcoop_model::Missing;
use vcoop_model::plan::Ns;
use vcoop_model::profile::Profile;
use vcoop_sched::config::Policy;
use vcoop_threads::Attributes;
use vcoop_threads::clock::monotonic;
use vcoop_threads::tsc::{Clock, measured_khz};

use super::bench::Bench;
use super::costs::{BASE_PROFILE, RuleInput};
use super::settle::Interruptions;
use super::{CalibrateOptions, Calibration, Conditions, gaps, guest, host, noise};
use crate::environment::{NoDeepIdle, flavour, has_reliable_tsc};
use crate::error::{Error, RequestTarget};
use crate::facts::{HostFacts, Root, host_facts, timers};
use crate::run::{available, one_at_a_time, tsc_khz};

/// Most time for one measurement, in full and quick.
const BUDGET_NS: (Ns, Ns) = (1_400_000_000, 260_000_000);

/// How long noise is watched for, in full and quick.
const NOISE_NS: (Ns, Ns) = (60_000_000_000, 2_000_000_000);

/// Measures this host's costs. `stop` is called between blocks of some 40 ms; if it returns true, the result has what
/// was measured until then. `progress` gets the name of each measurement as it begins.
///
/// # Errors
///
/// [`Error::Missing`]: no KVM, and not [`CalibrateOptions::host_only`]; or no reliable TSC.
/// [`Error::Kernel`], [`Error::Guest`].
pub fn calibrate(
    options: CalibrateOptions,
    stop: &(dyn Fn() -> bool + Sync),
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Calibration, Error> {
    if !options.host_only {
        available()?;
    }
    if !has_reliable_tsc() {
        return Err(Error::Missing(Missing {
            what: "the kernel does not trust this machine's TSC as its clock".to_owned(),
            remedy: "boot with clocksource=tsc if the TSC is constant and synchronous".to_owned(),
        }));
    }
    let _alone = one_at_a_time();
    let facts = host_facts();
    // A thread of its own: its policy, its CPU and its timer slack end with it.
    thread::scope(|s| {
        let measuring = s.spawn(|| measure(options, facts, stop, progress));
        measuring.join().unwrap_or(Err(Error::Panicked(RequestTarget::Host)))
    })
}

fn measure(
    options: CalibrateOptions,
    facts: HostFacts,
    stop: &(dyn Fn() -> bool + Sync),
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Calibration, Error> {
    let begun = monotonic();
    let kvm = if options.host_only { None } else { Some(open()?) };
    let khz = match &kvm {
        Some(kvm) => tsc_khz(kvm)?,
        None => measured_khz(),
    };
    let locked = Locked::all();
    let root = Root::new(Path::new("/"));
    let load_average = root.text("proc/loadavg").unwrap_or_default();
    let steal_before = root.steal();
    let Cpus { cpu, other, near, far } = Cpus::of(&facts);
    let fifo = Attributes::from_policy(&Policy::Fifo(1)).set(0).is_ok();
    host::prepare(cpu, fifo, 0)?;
    let watch_ns = options.noise_ns.unwrap_or(if options.quick { NOISE_NS.1 } else { NOISE_NS.0 });
    let mut bench = Bench {
        clock: Clock::new(0, khz),
        cpu,
        other,
        near,
        far,
        budget: if options.quick { BUDGET_NS.1 } else { BUDGET_NS.0 },
        stop,
        progress,
        measures: Vec::new(),
        skipped: Vec::new(),
        fifo,
        halt_polling_off: true,
        floor: 0,
        interruptions: Interruptions::default(),
    };
    host::clock(&mut bench)?;
    let noise = noise::watch(&mut bench, facts.tick_ns.value, watch_ns)?;
    host::measure(&mut bench)?;
    gaps::measure(&mut bench, facts.tick_ns.value)?;
    let mut held = false;
    if let Some(kvm) = &kvm {
        // As in the lab.
        let idle = NoDeepIdle::hold();
        held = idle.is_held();
        guest::measure(&mut bench, kvm)?;
    }
    let steal = root.steal().zip(steal_before);
    let conditions = Conditions {
        fifo,
        memory_locked: locked.0,
        cpu_dma_latency_held: held,
        halt_polling_off: kvm.as_ref().map(|_| bench.halt_polling_off),
        cpu,
        other_cpu: other,
        load_average,
        steal_permille: steal.map(|((stolen, all), (stolen_before, all_before))| {
            stolen.saturating_sub(stolen_before) * 1000 / all.saturating_sub(all_before).max(1)
        }),
        took_ns: monotonic() - begun,
    };
    let complete = !stop();
    let base = Profile::load(BASE_PROFILE).map_err(|e| unreadable(&e.to_string()))?;
    let cpu_model = facts.cpu_model.as_deref().unwrap_or("an unknown CPU");
    let flavour = kvm.as_ref().map(|_| flavour().to_owned());
    let place = format!("{cpu_model}, Linux {}, {}", facts.release, today());
    let software = flavour.as_deref().is_some_and(|f| f != "vmx" && f != "svm");
    let cpu = timers::cpu(&Root::new(Path::new("/")), khz, &place);
    let known = RuleInput {
        measures: &bench.measures,
        facts: &facts,
        software,
        place: &place,
        base: &base,
        cpu: &cpu,
        noise: &noise,
        constant: options.constant,
    };
    let (costs, profile) = known.profile();
    let again = Profile::parse("calibrated", &profile.to_toml());
    if again.as_ref() != Ok(&profile) {
        let why = again.err().map_or("it reads back differently".to_owned(), |e| e.to_string());
        return Err(unreadable(&why));
    }
    let Bench { measures, skipped, .. } = bench;
    Ok(Calibration {
        facts,
        kvm: flavour,
        conditions,
        measures,
        skipped,
        noise,
        costs,
        profile,
        complete,
    })
}

fn unreadable(why: &str) -> Error {
    Error::unsupported("this host's profile", why)
}

fn open() -> Result<Kvm, Error> {
    Kvm::new().map_err(Error::kvm("open /dev/kvm", &RequestTarget::Host))
}

/// The CPU to measure, and others: see [`Bench`].
#[derive(Debug, PartialEq, Eq)]
struct Cpus {
    cpu: u32,
    other: Option<u32>,
    near: Option<u32>,
    far: Option<u32>,
}

impl Cpus {
    /// The last ones, because interrupts and most programs use the first.
    fn of(facts: &HostFacts) -> Self {
        let topology = facts.topology.value;
        let threads = if facts.topology.read { topology.threads_per_core.max(1) } else { 1 };
        let mut from_last = facts.cpus.iter().rev().copied();
        let cpu = from_last.next().unwrap_or(0);
        let other = from_last.clone().nth(threads as usize - 1).or_else(|| from_last.next());
        let near = other.filter(|_| topology.cores_per_llc > 1);
        let far = facts.cpus.first().copied().filter(|_| topology.llcs > 1);
        Self { cpu, other, near, far }
    }
}

/// Locks this process's memory while it lives.
#[derive(Debug)]
struct Locked(bool);

impl Locked {
    fn all() -> Self {
        // Refused, it only means that pages may be missing.
        Self(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).is_ok())
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.0 {
            let _ = munlockall();
        }
    }
}

/// The date, UTC, as `2026-11-20`.
fn today() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string().chars().take(10).collect()
}

#[cfg(test)]
mod tests {
    use vcoop_sched::config::Topology;

    use super::*;
    use crate::facts::Fact;

    #[test]
    fn other_cpus_are_chosen_by_core_and_cache() {
        let mut facts = HostFacts::read(Path::new("/nowhere"), &[0, 4, 1, 5, 2, 6, 3, 7], None);
        let mut of = |threads_per_core, cores_per_llc, llcs| {
            let topology = Topology { threads_per_core, cores_per_llc, llcs };
            facts.topology = Fact::read(topology, "a test");
            Cpus::of(&facts)
        };
        let (cpu, far) = (7, Some(0));
        // 3 and 7 share a core, 2, 6, 3 and 7 a cache.
        assert_eq!(of(2, 2, 2), Cpus { cpu, other: Some(6), near: Some(6), far });
        assert_eq!(of(2, 4, 1), Cpus { cpu, other: Some(6), near: Some(6), far: None });
        assert_eq!(of(2, 1, 4), Cpus { cpu, other: Some(6), near: None, far });
        assert_eq!(of(1, 8, 1).other, Some(3));
    }
}
