//! The effect of each patch of the study, and that patches without an effect have none.

use vcoop_credit1::{BoostPreempts, Credit1Config, Patch, Patches};
use vcoop_credit1::{Decision, Pri};
use vcoop_sched::{CpuId, CpuSet, EntId, LeaveReason, Waker};

use crate::driver::{HOG, MS, Machine, US, Work, config};

const SLEEPER: Work = Work { run: 50 * US, sleep: 3_600_000 * MS };

fn with(cpus: u32, guests: usize, f: impl FnOnce(&mut Patches)) -> Credit1Config {
    let mut cfg = config(cpus, guests);
    f(&mut cfg.patches);
    cfg
}

/// A hog of `domain` on CPU 0, switched in now, without boost unless the patches keep it.
fn hog_since_now(cfg: &Credit1Config, domain: u16) -> (Machine, EntId) {
    let mut cfg = cfg.clone();
    let limit = std::mem::replace(&mut cfg.ratelimit_ns, 0);
    let mut m = Machine::new(&cfg);
    let hog = m.start(domain, &[0], HOG);
    m.run_for(12 * MS);
    m.start(2, &[0], SLEEPER);
    m.run_for(50 * US);
    for d in 0..cfg.domains.len() as u16 {
        let dom0 = cfg.domains[usize::from(d)].privileged;
        let own = cfg.patches.dom0_ratelimit_ns.filter(|_| dom0);
        m.credit.set_ratelimit(d, Some(own.unwrap_or(limit)));
    }
    assert_eq!(m.current(0), Some(hog));
    (m, hog)
}

/// Waiting time of a vCPU of `domain` that wakes 300 us after a guest's hog was switched in.
fn wait(cfg: &Credit1Config, domain: u16, by: Waker) -> u64 {
    let (mut m, _) = hog_since_now(cfg, 1);
    let e = m.add(domain, &[0], SLEEPER);
    // It must not be its first wake-up.
    m.wake(e);
    m.run_for(5 * MS);
    m.start(2, &[0], SLEEPER);
    m.run_for(350 * US);
    let start = m.now;
    m.wake_by(e, by);
    m.run_for(5 * MS);
    m.ran_at(e, start).unwrap() - start
}

const NOBODY: Waker = Waker { cpu: None, ent: None, io: false, sync: false };
const IO: Waker = Waker { io: true, ..NOBODY };

#[test]
fn dom0_preempts_within_the_ratelimit() {
    for (patch, dom0) in [(Patch::Off, 700 * US), (Patch::AsPosted, 0), (Patch::AsMeant, 0)] {
        let cfg = with(1, 3, |p| p.dom0_preempts_ratelimit = patch);
        assert_eq!(wait(&cfg, 0, NOBODY), dom0);
        assert_eq!(wait(&cfg, 3, NOBODY), 700 * US, "guests wait as before");
    }
}

/// The posted line does not test whether dom0 will run: a dom0 vCPU without credit goes on waiting, and the running
/// guest has lost its protection for nothing.
#[test]
fn as_posted_a_dom0_without_credit_ends_a_ratelimit_and_does_not_run() {
    for (patch, holds) in [(Patch::Off, 1), (Patch::AsPosted, 0), (Patch::AsMeant, 1)] {
        let mut cfg = with(1, 1, |p| p.dom0_preempts_ratelimit = patch);
        (cfg.domains[0].weight, cfg.domains[1].weight) = (1, 60_000);
        let mut m = Machine::new(&cfg);
        let (guest, dom0) = (m.start(1, &[0], HOG), m.start(0, &[0], HOG));
        m.run_for(300 * MS);
        // The guest sleeps for a moment and takes its CPU back.
        m.schedule(0, LeaveReason::Blocked);
        m.run_for(2 * MS);
        m.wake(guest);
        m.run_for(300 * US);
        assert_eq!((m.current(0), m.credit.pri(dom0)), (Some(guest), Pri::Over));
        assert_eq!(m.queue(0), [dom0]);
        m.decisions.clear();
        m.schedule(0, LeaveReason::Preempted);
        assert_eq!((m.current(0), m.count(Decision::RatelimitHold)), (Some(guest), holds));
    }
}

/// Two CPUs; a guest vCPU that ran on CPU 0 a moment ago wakes behind a pinned hog, CPU 1 is idle.
fn hot_beside_an_idler(cfg: &Credit1Config) -> (Machine, EntId) {
    let mut cfg = cfg.clone();
    cfg.migration_delay_ns = 50 * MS;
    let mut m = Machine::new(&cfg);
    let e = m.start(2, &[0], SLEEPER);
    m.run_for(MS);
    m.credit.set_cpus(m.now, e, CpuSet::EMPTY);
    m.start(1, &[0], HOG);
    m.run_for(12 * MS);
    m.wake(e);
    m.run_for(100 * MS);
    (m, e)
}

#[test]
fn a_blocked_vcpu_migrates_while_hot_as_meant_and_nothing_changes_as_posted() {
    let run = |patch| hot_beside_an_idler(&with(2, 2, |p| p.migrate_if_blocked = patch));
    let (off, e) = run(Patch::Off);
    let (posted, _) = run(Patch::AsPosted);
    assert_eq!((&off.log, &off.decisions), (&posted.log, &posted.decisions));
    assert_eq!(off.credit.cpu_of(e), CpuId(0));
    let (meant, e) = run(Patch::AsMeant);
    assert_eq!(meant.credit.cpu_of(e), CpuId(1));
}

#[test]
fn a_guest_woken_by_dom0_goes_to_dom0s_cpu() {
    for (on, cpu) in [(false, 0), (true, 1)] {
        let mut m = Machine::new(&with(2, 2, |p| p.waker_local = on));
        let guest = m.start(2, &[], SLEEPER);
        m.run_for(MS);
        assert_eq!(m.credit.cpu_of(guest), CpuId(0));
        m.start(1, &[0], HOG);
        let dom0 = m.start(0, &[1], HOG);
        m.wake_by(guest, Waker { ent: Some(dom0), ..IO });
        assert_eq!(m.credit.cpu_of(guest), CpuId(cpu));
    }
}

#[test]
fn a_boost_preempts_within_the_ratelimit() {
    let versions = [BoostPreempts::Off, BoostPreempts::V1, BoostPreempts::V2];
    for (version, guest) in versions.into_iter().zip([700 * US, 0, 0]) {
        let cfg = with(1, 3, |p| p.boost_preempts_ratelimit = version);
        assert_eq!(wait(&cfg, 3, NOBODY), guest);
    }
    // Only v1 also ends the ratelimit of a boosted entity (and then runs that first all the same: it was interrupted
    // and goes behind its equals).
    for (version, holds) in versions.into_iter().zip([1, 0, 1]) {
        let mut m = Machine::new(&with(1, 2, |p| p.boost_preempts_ratelimit = version));
        m.start(1, &[0], HOG);
        let second = m.start(2, &[0], HOG);
        m.run_for(300 * US);
        m.decisions.clear();
        m.schedule(0, LeaveReason::Preempted);
        assert_eq!(m.count(Decision::RatelimitHold), holds);
        assert_eq!(m.current(0) == Some(second), version == BoostPreempts::V1);
    }
}

#[test]
fn an_io_wakeup_ends_the_ratelimit_as_meant_and_only_a_bringup_as_posted() {
    let cfg = |patch| with(1, 3, |p: &mut Patches| p.io_wake_ignores_ratelimit = patch);
    assert_eq!(wait(&cfg(Patch::AsMeant), 3, IO), 0);
    assert_eq!(wait(&cfg(Patch::AsMeant), 3, NOBODY), 700 * US);
    // I/O wake-ups are handled as without the patch.
    assert_eq!(wait(&cfg(Patch::AsPosted), 3, IO), wait(&cfg(Patch::Off), 3, IO));
    let (mut m, _) = hog_since_now(&cfg(Patch::AsPosted), 1);
    let e = m.add(3, &[0], SLEEPER);
    m.run_for(300 * US);
    m.wake(e);
    assert_eq!(m.current(0), Some(e), "at its first wake-up");
}

#[test]
fn dom0_keeps_its_boost_until_the_accounting_as_posted_and_beyond_as_meant() {
    let at = [12, 32].map(|ms| ms * MS);
    for (patch, pris) in [
        (Patch::Off, [Pri::Under, Pri::Under]),
        (Patch::AsPosted, [Pri::Boost, Pri::Under]),
        (Patch::AsMeant, [Pri::Boost, Pri::Boost]),
    ] {
        let mut m = Machine::new(&with(1, 1, |p| p.keep_dom0_boost = patch));
        let dom0 = m.start(0, &[0], HOG);
        for (at, pri) in at.into_iter().zip(pris) {
            m.run_for(at - m.now);
            assert_eq!(m.credit.pri(dom0), pri, "{patch:?} at {at}");
        }
    }
}

#[test]
fn a_vcpu_alone_runs_ten_slices_and_ticks_on_as_posted() {
    let run = |patch| {
        let mut m = Machine::new(&with(2, 2, |p| p.long_slice_alone = patch));
        m.start(1, &[1], HOG);
        let schedules = m.schedules;
        let mut ticks = 0;
        let mut at = m.credit.deadline(CpuId(1));
        while m.now < 3000 * MS {
            m.run_for(MS);
            ticks += u64::from(at != m.credit.deadline(CpuId(1)));
            at = m.credit.deadline(CpuId(1));
        }
        (m.schedules - schedules, ticks)
    };
    assert_eq!(run(Patch::Off), (100, 300));
    assert_eq!(run(Patch::AsPosted), (10, 300));
    assert_eq!(run(Patch::AsMeant), (10, 30));
}

#[test]
fn company_ends_the_slow_tick() {
    let mut m = Machine::new(&with(2, 2, |p| p.long_slice_alone = Patch::AsMeant));
    m.start(1, &[1], HOG);
    m.run_for(12 * MS);
    assert_eq!(m.credit.deadline(CpuId(1)), Some(100 * MS));
    m.start(2, &[1], HOG);
    assert_eq!(m.credit.deadline(CpuId(1)), Some(20 * MS));
}

#[test]
fn dom0_vcpus_keep_apart() {
    for (on, cpu) in [(false, 0), (true, 1)] {
        let mut m = Machine::new(&with(2, 1, |p| p.spread_dom0 = on));
        m.start(0, &[0], HOG);
        m.start(1, &[1], HOG);
        let second = m.start(0, &[], HOG);
        assert_eq!(m.credit.cpu_of(second), CpuId(cpu));
    }
    // A dom0 vCPU is not stolen to a CPU with another one either.
    for on in [false, true] {
        let mut m = Machine::new(&with(2, 1, |p| p.spread_dom0 = on));
        let waits = m.add(0, &[0], HOG);
        m.start(1, &[0], HOG);
        let stays = m.start(0, &[1], HOG);
        let leaves = m.start(1, &[1], HOG);
        m.wake(waits);
        m.run_for(32 * MS);
        m.credit.set_cpus(m.now, waits, CpuSet::EMPTY);
        let _ = (stays, leaves);
        m.run_for(300 * MS);
        let both = m.decisions.iter().any(|d| d.1 == Decision::Steal.name() && d.2 == waits);
        assert!(!(on && both), "stolen to a CPU with a dom0 vCPU");
    }
}

#[test]
fn dom0_goes_to_the_front_of_a_queue() {
    for on in [false, true] {
        let mut m = Machine::new(&with(1, 3, |p| p.dom0_front = on));
        m.start(1, &[0], HOG);
        let boosted = m.start(2, &[0], HOG);
        let dom0 = m.start(0, &[0], HOG);
        let queue = if on { vec![dom0, boosted] } else { vec![boosted, dom0] };
        assert_eq!(m.queue(0), queue);
    }
}

#[test]
fn the_xpin_like_preset_is_its_five_points() {
    let mut cfg = config(1, 2);
    cfg.patches = Patches { boost_preempts_ratelimit: BoostPreempts::V1, ..Patches::xpin_like() };
    let mut m = Machine::new(&cfg);
    let dom0 = m.start(0, &[0], HOG);
    m.run_for(12 * MS);
    let guest = m.start(1, &[0], SLEEPER);
    m.run_for(87 * MS);
    assert_eq!(m.current(0), Some(dom0), "no guest preempts it for 100 ms, not even a boosted one");
    m.run_for(2 * MS);
    assert!(m.ran_at(guest, 0).is_some_and(|at| at >= 100 * MS));
    m.run_for(500 * MS);
    assert_eq!(m.credit.pri(dom0), Pri::Boost);
    assert!(m.credit.credit(dom0) >= 0);
    assert_eq!(m.credit.ratelimit_of(guest), MS);
}
