//! A quick calibration of this host: with KVM, and of the host alone.
//!
//! The host may be busy with anything: no test asserts a time, only what must be larger than what.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{CheckFailure, Outcome, Skip, twice};
use vcoop_lab::{CalibrateOptions, Calibration, Distribution, Error, calibrate};
use vcoop_model::profile::Profile;
use vcoop_testing::test;

fn median(found: &Calibration, name: &str) -> Option<u64> {
    found.measures.iter().find(|m| m.name == name).map(|m| m.distribution.median_ns)
}

live!(what_takes_more_takes_longer, || -> Outcome { judge(false) });

test!("", what_takes_more_takes_longer_on_the_host_alone, || judge(true));

fn judge(host_only: bool) -> Outcome {
    let noise_ns = Some(300_000_000);
    let options = CalibrateOptions { quick: true, host_only, noise_ns, ..Default::default() };
    // A host under load may turn one pair round; not twice.
    twice(|| -> Result<(), CheckFailure> {
        let found = measured(calibrate(options, &|| false, &|_| {}))?;
        assert!(found.complete);
        structure(&found, host_only);
        let wrong = pairs(&found);
        if wrong.is_empty() { Ok(()) } else { Err(CheckFailure::Wrong(format!("{wrong:?}"))) }
    })
}

/// What was found, on a host that can be measured.
fn measured(found: Result<Calibration, Error>) -> Result<Calibration, Skip> {
    found.map_err(|e| match e {
        Error::Missing(missing) => Skip::because(missing),
        e => panic!("{e}"),
    })
}

fn structure(found: &Calibration, host_only: bool) {
    for m in &found.measures {
        let Distribution { n, min_ns, p10_ns, median_ns, p90_ns, p99_ns, max_ns, .. } =
            m.distribution;
        let ordered = [min_ns, p10_ns, median_ns, p90_ns, p99_ns, max_ns];
        assert!(n > 0 && ordered.is_sorted(), "{m:?}");
        assert!(median_ns > 0 || m.name.ends_with("clock"), "{m:?}");
    }
    let names = |name: &str| found.measures.iter().filter(|m| m.name == name).count();
    assert!(found.measures.iter().all(|m| names(m.name) == 1));
    assert_eq!(found.kvm.is_none(), host_only);
    if !host_only {
        for name in ["exit-cpuid", "exit-user-port", "timer-halted", "timer-running"] {
            assert!(median(found, name).is_some(), "{name}");
        }
    }
    let again = Profile::parse("again", &found.profile.to_toml()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again, found.profile);
    assert_eq!(again.topology.cpus() as usize, found.facts.cpus.len());
    let varies = |key: &str| found.profile.costs.spread.contains_key(key);
    assert!(varies("timer_irq") && varies("timer_program"), "{:?}", found.profile.costs.spread);
    for noise in &found.noise {
        let share = noise.took.mean_ns * noise.took.n;
        assert!(share < noise.watched_ns && !noise.cpus.is_empty(), "{noise:?}");
    }
    let cpu = again.cpu.expect("the timers' part");
    assert!((100_000..20_000_000).contains(&cpu.tsc_khz), "{cpu:?}");
}

/// Pairs of which the second must not take less; those that do.
fn pairs(found: &Calibration) -> Vec<(&'static str, &'static str)> {
    let pairs = [
        ("clock", "syscall"),
        ("syscall", "futex-wake-nobody"),
        ("syscall", "setattr-own"),
        ("syscall", "switch-pair"),
        ("switch-pair", "eventfd-round-trip"),
        ("guest-clock", "guest-gate"),
        ("exit-cpuid", "exit-user-port"),
        ("exit-icr", "exit-user-msr"),
        ("exit-icr", "self-interrupt"),
        // Not running against halted: where leaving guest mode is dear, a halted vCPU has it sooner.
        ("msi-call-running", "msi-running"),
        ("msi-call-halted", "msi-halted"),
    ];
    let less = |(small, large): &(&'static str, &'static str)| matches!((median(found, small), median(found, large)), (Some(a), Some(b)) if b < a);
    pairs.into_iter().filter(less).collect()
}

test!("", the_callers_wish_ends_it, || -> Outcome {
    let asked = AtomicU32::new(0);
    let stop = || asked.fetch_add(1, Ordering::Relaxed) >= 3;
    let host_only = vcoop_lab::available().is_err();
    let options = CalibrateOptions { quick: true, host_only, ..Default::default() };
    let found = measured(calibrate(options, &stop, &|_| {}))?;
    assert!(!found.complete && found.measures.len() <= 1, "{:?}", found.measures);
    assert!(found.costs.iter().all(|c| !c.source.is_empty()));
    Ok(())
});
