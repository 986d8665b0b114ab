//! Quotas of groups (`cpu.max`).

use vcoop_sched::config::{GroupConfig, LevelConfig, Ns, Policy, Quota};
use vcoop_sched::{Attr, CpuId, CpuSet, EntId};

use crate::driver::*;

/// A group with this quota in each 100 ms.
fn group(runtime_ms: u64) -> GroupConfig {
    let quota =
        Quota { runtime_ns: runtime_ms * MS, period_ns: 100 * MS, burst_ns: 0, phase_ns: 0 };
    GroupConfig { quota: Some(quota), ..GroupConfig::new(1024) }
}

fn machines(cpus: u32, groups: &[GroupConfig]) -> impl Iterator<Item = Machine> {
    let with = |mut cfg: LevelConfig| {
        cfg.groups = groups.to_vec();
        Machine::new(&cfg)
    };
    fairs(cpus).map(with)
}

fn member(m: &mut Machine, cpu: u32, work: Work) -> EntId {
    let cpus = CpuSet::one(CpuId(cpu));
    m.start(Attr { policy: Policy::NORMAL, cpus, group: Some(0) }, cpu, work)
}

fn all(m: &mut Machine, ents: &[EntId]) -> Ns {
    ents.iter().map(|&e| m.exec(e)).sum()
}

#[test]
fn a_group_has_its_quota_wherever_it_runs() {
    // On one CPU, beside a hog, and on four at once.
    for mut m in machines(1, &[group(30)]) {
        let (own, other) = (member(&mut m, 0, HOG), m.spawn(Policy::NORMAL, HOG));
        m.run_for(10_000 * MS);
        // Time that is charged late is paid later: it has no more than that of each period.
        assert_ratio(m.exec(own), 10_000 * MS, 0.30, 1.0);
        assert_ratio(m.exec(other), 10_000 * MS, 0.70, 1.0);
    }
    for mut m in machines(4, &[group(200)]) {
        let own: Vec<EntId> = (0..4).map(|cpu| member(&mut m, cpu, HOG)).collect();
        m.run_for(10_000 * MS);
        assert_ratio(all(&mut m, &own), 10_000 * MS, 2.0, 1.0);
        // They use it up in the first half of each period, and then wait together.
        let waits = m.level.stats(own[0]).wait_ns;
        assert_ratio(waits, 10_000 * MS, 0.5, 2.0);
        assert!((300..=500).contains(&m.throttles), "{} in 100 periods", m.throttles);
    }
}

#[test]
fn fewer_members_than_the_quota_has_cpus_never_wait() {
    for mut m in machines(4, &[group(200)]) {
        let own = [member(&mut m, 0, HOG), member(&mut m, 1, HOG)];
        m.run_for(10_000 * MS);
        // A tick's worth is taken from the next period now and then.
        assert_ratio(all(&mut m, &own), 10_000 * MS, 2.0, 1.5);
    }
}

#[test]
fn an_overrun_is_paid_in_the_next_period() {
    // It runs for 10 ms at a time between ticks that come every 10 ms, and has 12 ms of each 100.
    let mut cfg = eevdf(1);
    (cfg.groups, cfg.tick_ns) = (vec![group(12)], 10 * MS);
    let mut m = Machine::new(&cfg);
    let own = member(&mut m, 0, HOG);
    m.run_for(3_000 * MS);
    let spent = m.exec(own);
    assert!((350 * MS..=372 * MS).contains(&spent), "{spent} of {}", 360 * MS);
}

#[test]
fn a_quota_counts_those_of_groups_in_the_group() {
    // Group 0 has 60 ms of each 100, of which group 1 may have 10; group 2 has no quota of its own.
    let inside = |group| GroupConfig { parent: Some(0), ..group };
    let groups = [group(60), inside(group(10)), inside(GroupConfig::new(1024))];
    for mut m in machines(1, &groups) {
        let [few, others] = [1, 2]
            .map(|g| m.start(Attr { group: Some(g), ..Attr::anywhere(Policy::NORMAL) }, 0, HOG));
        let root = m.spawn(nice(10), HOG);
        m.run_for(10_000 * MS);
        assert_ratio(m.exec(few), 10_000 * MS, 0.10, 1.0);
        assert_ratio(m.exec(others), 10_000 * MS, 0.50, 1.0);
        assert_ratio(m.exec(root), 10_000 * MS, 0.40, 1.0);
        // With both quotas used up, one becomes urgent and fair again: it runs until the CPU schedules.
        while !m.level.is_throttled(few) || !m.level.is_throttled(others) {
            m.run_for(MS);
        }
        m.set_policy(few, Policy::Fifo(10));
        assert!(m.level.is_running(few) && !m.level.is_throttled(few));
        m.set_policy(few, Policy::NORMAL);
        assert!(m.level.is_throttled(few) && m.level.is_running(root));
    }
    // As libvirt limits single vCPUs: each on a CPU of its own has its part, and gives none to the other.
    let groups = [GroupConfig::new(1024), inside(group(30)), inside(group(50))];
    for mut m in machines(2, &groups) {
        let vcpus = [0, 1].map(|cpu| {
            let cpus = CpuSet::one(CpuId(cpu));
            m.start(Attr { policy: Policy::NORMAL, cpus, group: Some(cpu as u16 + 1) }, cpu, HOG)
        });
        m.run_for(10_000 * MS);
        for (vcpu, part) in vcpus.into_iter().zip([0.3, 0.5]) {
            assert_ratio(m.exec(vcpu), 10_000 * MS, part, 1.0);
        }
    }
}

#[test]
fn what_was_not_used_is_lost_but_for_the_burst() {
    // 40 ms of each 200: in its period of work it has the quota, and what the burst kept of the one before.
    for (burst_ms, most) in [(0, 20), (10, 30), (20, 40)] {
        let mut own = group(20);
        own.quota.as_mut().unwrap().burst_ns = burst_ms * MS;
        for mut m in machines(1, &[own]) {
            let e = member(&mut m, 0, Work { run: 40 * MS, sleep: 200 * MS });
            m.run_for(1_000 * MS);
            let longest = m.log.windows(2).filter(|two| two[0].2 == Some(e));
            let longest = longest.map(|two| two[1].0 - two[0].0).max().unwrap();
            let range = (most - 1) * MS..=(most + 2) * MS;
            assert!(range.contains(&longest), "{longest} of {most} ms");
        }
    }
}

#[test]
fn urgent_members_run_whatever_is_left() {
    for mut m in machines(1, &[group(20)]) {
        let (fair, urgent) = (member(&mut m, 0, HOG), member(&mut m, 0, HOG));
        m.run_for(50 * MS);
        assert!(m.level.is_throttled(fair) && m.level.is_throttled(urgent));
        let before = m.exec(urgent);
        // A boost takes it off the queue that waits.
        m.set_policy(urgent, Policy::Fifo(10));
        assert!(m.level.is_running(urgent) && !m.level.is_throttled(urgent));
        m.run_for(20 * MS);
        assert_eq!(m.exec(urgent), before + 20 * MS);
        // And its end puts it back there, although it runs.
        m.set_policy(urgent, Policy::NORMAL);
        assert!(m.level.is_throttled(urgent) && m.level.is_throttled(fair));
        assert_eq!(m.current(0), None);
        m.run_for(1_000 * MS);
        let spent = all(&mut m, &[fair, urgent]);
        assert_ratio(spent, 1_070 * MS, (20.0 * 11.0 + 20.0) / 1070.0, 3.0);
    }
}

#[test]
fn idle_cpus_give_back_what_they_took() {
    // Each of seven wakes up on a CPU of its own, works for 1 ms, and leaves the rest of its slice of 5 ms. A hog has
    // what they do not use: without that, some 30 ms would be out of reach in each period.
    for mut m in machines(8, &[group(50)]) {
        let work = Work { run: MS, sleep: 50 * MS };
        let few: Vec<EntId> = (1..8).map(|cpu| member(&mut m, cpu, work)).collect();
        let hog = member(&mut m, 0, HOG);
        m.run_for(10_000 * MS);
        let spent = all(&mut m, &few) + m.exec(hog);
        assert_ratio(spent, 10_000 * MS, 0.5, 3.0);
    }
}

#[test]
fn a_wait_for_the_quota_is_a_wait() {
    for mut m in machines(1, &[group(20)]) {
        let e = member(&mut m, 0, HOG);
        m.run_for(2_000 * MS);
        let waits = m.level.stats(e).wait_ns;
        assert_ratio(waits, 2_000 * MS, 0.8, 3.0);
    }
}
