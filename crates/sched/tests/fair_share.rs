//! Fair entities share CPUs in proportion to their weights.

use crate::driver::{HOG, MS, Machine, US, Work, assert_ratio, eevdf, fairs, nice};
use vcoop_sched::config::{
    Bandwidth, EevdfRelease, Fair, GroupConfig, LevelConfig, Policy, RtGuard, Topology,
};
use vcoop_sched::{Attr, CpuId, CpuSet};
use vcoop_testing::{GROUP_SHARES, GroupShare};

#[test]
fn nice_weights_on_one_cpu() {
    for cfg in fairs(1) {
        let mut m = Machine::new(&cfg);
        let a = m.spawn(nice(0), HOG);
        let b = m.spawn(nice(5), HOG);
        let c = m.spawn(nice(-5), HOG);
        m.run_for(20_000 * MS);
        assert_ratio(m.exec(a), m.exec(b), 1024.0 / 335.0, 1.0);
        assert_ratio(m.exec(c), m.exec(a), 3121.0 / 1024.0, 1.0);
    }
}

#[test]
fn idle_policy_gets_the_crumbs() {
    for cfg in fairs(1) {
        let mut m = Machine::new(&cfg);
        let a = m.spawn(nice(0), HOG);
        let b = m.spawn(Policy::Idle, HOG);
        m.run_for(100_000 * MS);
        assert_ratio(m.exec(a), m.exec(b), 1024.0 / 3.0, 3.0);
    }
}

#[test]
fn balancing_keeps_the_shares_on_four_cpus() {
    for cfg in fairs(4) {
        let mut m = Machine::new(&cfg);
        let light: Vec<_> = (0..4).map(|_| m.spawn(nice(5), HOG)).collect();
        let heavy: Vec<_> = (0..4).map(|_| m.spawn(nice(0), HOG)).collect();
        m.run_for(30_000 * MS);
        let sum = |m: &mut Machine, es: &[_]| es.iter().map(|&e| m.exec(e)).sum::<u64>();
        let (h, l) = (sum(&mut m, &heavy), sum(&mut m, &light));
        assert_eq!(h + l, 4 * 30_000 * MS, "no CPU idles");
        assert_ratio(h, l, 1024.0 / 335.0, 2.0);
        for &e in &heavy {
            assert_ratio(m.exec(e) * 4, h, 1.0, 3.0);
        }
    }
}

#[test]
fn hogs_that_do_not_divide_by_cpus_take_turns() {
    // Hogs, CPUs an LLC, LLCs. Five on three CPUs and seven on four are not among them: without noise some of them meet
    // in step for ever.
    for (hogs, cores_per_llc, llcs) in
        [(3, 2, 1), (5, 4, 1), (6, 4, 1), (12, 8, 1), (8, 2, 3), (11, 4, 2)]
    {
        let topology = Topology { threads_per_core: 1, cores_per_llc, llcs };
        for cfg in fairs(cores_per_llc * llcs) {
            let mut m = Machine::new(&LevelConfig { topology, ..cfg });
            let all: Vec<_> = (0..hogs).map(|_| m.spawn(nice(0), HOG)).collect();
            m.run_for(20_000 * MS);
            for &e in &all {
                let share = f64::from(cores_per_llc * llcs) / f64::from(hogs);
                assert_ratio(m.exec(e), 20_000 * MS, share, 13.0);
            }
        }
    }
}

#[test]
fn pinned_hogs_do_not_keep_others_from_taking_turns() {
    for cfg in fairs(4) {
        let mut m = Machine::new(&cfg);
        let pinned = [(); 3].map(|()| m.pinned(nice(0), 0, HOG));
        let free = [(); 5].map(|()| m.spawn(nice(0), HOG));
        m.run_for(12_000 * MS);
        for e in pinned {
            assert_ratio(m.exec(e), 12_000 * MS, 1.0 / 3.0, 1.0);
        }
        // Two of five on three CPUs may meet in step; without turns one would have a CPU of its own.
        for e in free {
            let share = m.exec(e) as f64 / (12_000 * MS) as f64;
            assert!((0.45..0.75).contains(&share), "{share}");
        }
    }
}

#[test]
fn a_cpu_that_is_busy_with_rt_takes_no_fair_entity_from_another_since_6_6() {
    for mut cfg in fairs(4).filter(|cfg| matches!(cfg.fair, Fair::Eevdf(_))) {
        let bandwidth = Bandwidth { runtime_ns: 50 * MS, period_ns: 1_000 * MS };
        cfg.rt_guard = RtGuard::FairServer(bandwidth);
        let mut m = Machine::new(&cfg);
        (0..4).for_each(|cpu| _ = m.pinned(Policy::Fifo(1), cpu, HOG));
        let fair = [(); 2].map(|()| m.spawn(nice(0), HOG));
        m.run_for(8_000 * MS);
        // Each is served on the CPU where it waits; a move would begin that CPU's wait for its period anew.
        for e in fair {
            assert!(m.level.stats(e).migrations <= 1, "{:?}", m.level.stats(e));
            assert_ratio(m.exec(e), 8_000 * MS, 0.05, 14.0);
        }
    }
}

#[test]
fn groups_share_by_their_weight() {
    for mut cfg in fairs(1) {
        cfg.groups = [1024, 2048].map(GroupConfig::new).to_vec();
        let mut m = Machine::new(&cfg);
        let member = |m: &mut Machine, g, n| -> Vec<_> {
            let attr = Attr { policy: nice(0), cpus: CpuSet::EMPTY, group: g };
            (0..n).map(|_| m.start(attr.clone(), 0, HOG)).collect()
        };
        let a = member(&mut m, Some(0), 5);
        let b = member(&mut m, Some(1), 1);
        let root = member(&mut m, None, 1);
        m.run_for(40_000 * MS);
        let sum = |m: &mut Machine, es: &[_]| es.iter().map(|&e| m.exec(e)).sum::<u64>();
        assert_ratio(sum(&mut m, &a), 40_000 * MS, 0.25, 1.0);
        assert_ratio(sum(&mut m, &b), 40_000 * MS, 0.50, 1.0);
        assert_ratio(sum(&mut m, &root), 40_000 * MS, 0.25, 1.0);
        for &e in &a {
            assert_ratio(m.exec(e), 40_000 * MS, 0.05, 2.0);
        }
        m.level.set_group_weight(m.now, 0, 9216);
        let before = sum(&mut m, &a);
        m.run_for(40_000 * MS);
        assert_ratio(sum(&mut m, &a) - before, 40_000 * MS, 0.75, 1.0);
    }
}

#[test]
fn a_group_splits_its_weight_over_cpus() {
    // Group 0 has a member on each of two CPUs, group 1 one on CPU 0: half of group 0's weight
    // competes there, so it gets a third of the CPU.
    for mut cfg in fairs(2) {
        cfg.groups = [1024, 1024].map(GroupConfig::new).to_vec();
        let mut m = Machine::new(&cfg);
        let on = |cpu, g| Attr { policy: nice(0), cpus: CpuSet::one(CpuId(cpu)), group: Some(g) };
        let a = m.start(on(0, 0), 0, HOG);
        let other = m.start(on(1, 0), 1, HOG);
        let b = m.start(on(0, 1), 0, HOG);
        m.run_for(20_000 * MS);
        assert_ratio(m.exec(a), 20_000 * MS, 1.0 / 3.0, 1.0);
        assert_ratio(m.exec(b), 20_000 * MS, 2.0 / 3.0, 1.0);
        assert_eq!(m.exec(other), 20_000 * MS);
    }
}

/// A group in another.
fn inside(parent: u16, weight: u64) -> GroupConfig {
    GroupConfig { parent: Some(parent), ..GroupConfig::new(weight) }
}

#[test]
fn groups_in_groups_share_what_theirs_has() {
    // In group 0: a group with one member, one with another group, and a member of its own.
    for mut cfg in fairs(1) {
        cfg.groups =
            vec![GroupConfig::new(1024), inside(0, 1024), inside(0, 2048), inside(2, 1024)];
        let mut m = Machine::new(&cfg);
        let of = |g| Attr { policy: nice(0), cpus: CpuSet::EMPTY, group: g };
        let parts = [(None, 0.5), (Some(0), 0.125), (Some(1), 0.125), (Some(3), 0.25)];
        let all = parts.map(|(g, part)| (m.start(of(g), 0, HOG), part));
        m.run_for(40_000 * MS);
        for (e, part) in all {
            assert_ratio(m.exec(e), 40_000 * MS, part, 1.0);
        }
        // Its nice value is nothing to those outside its group.
        let before = m.exec(all[3].0);
        m.set_policy(all[3].0, nice(-20));
        m.run_for(40_000 * MS);
        assert_ratio(m.exec(all[3].0) - before, 40_000 * MS, 0.25, 1.0);
    }
}

#[test]
fn a_group_in_a_group_splits_its_weight_over_cpus() {
    // Group 1 has members on two CPUs, group 2 one on CPU 0, both in group 0: that has 3/2 of 2 there. In Linux 7.3 it
    // has its weight twice, as more than two of it run.
    for mut cfg in fairs(2) {
        let twice = matches!(cfg.fair, Fair::Eevdf(t) if t.release >= EevdfRelease::V7_3);
        let (of_0, of_3) = if twice { (0.6, 0.4) } else { (3.0 / 7.0, 4.0 / 7.0) };
        cfg.groups = vec![GroupConfig::new(1024), inside(0, 1024), inside(0, 1024)];
        cfg.groups.push(GroupConfig::new(1024));
        let mut m = Machine::new(&cfg);
        let on = |cpu, g| Attr { policy: nice(0), cpus: CpuSet::one(CpuId(cpu)), group: Some(g) };
        let parts = [(1, of_0 / 3.0), (2, of_0 * 2.0 / 3.0), (3, of_3)];
        let all = parts.map(|(g, part)| (m.start(on(0, g), 0, HOG), part));
        m.start(on(1, 1), 1, HOG);
        m.run_for(20_000 * MS);
        for (e, part) in all {
            assert_ratio(m.exec(e), 20_000 * MS, part, 1.5);
        }
    }
}

#[test]
fn sleepers_do_not_gain_by_sleeping() {
    // 1 ms of work every 2 ms against a hog: at most half the CPU, and not much less.
    for cfg in fairs(1) {
        let mut m = Machine::new(&cfg);
        let hog = m.spawn(nice(0), HOG);
        let duty = m.spawn(nice(0), Work { run: MS, sleep: MS });
        m.run_for(20_000 * MS);
        let share = m.exec(duty) as f64 / (20_000 * MS) as f64;
        assert!((0.28..=0.51).contains(&share), "{share}");
        assert_eq!(m.exec(hog) + m.exec(duty), 20_000 * MS);
    }
}

#[test]
fn stolen_time_is_not_charged() {
    let mut m = Machine::new(&eevdf(1));
    let a = m.spawn(nice(0), HOG);
    m.run_for(300 * US);
    m.level.stolen(CpuId(0), 100 * US);
    assert_eq!(m.exec(a), 200 * US);
    m.run_for(100 * US);
    assert_eq!(m.exec(a), 300 * US);
}

/// A loop's share of CPU 1 beside that of another group, while a thread of its group works and sleeps on CPU 0.
#[test]
fn a_sleeper_weighs_in_its_group_on_other_cpus_as_measured_in_linux() {
    for mut cfg in fairs(2) {
        let measured: fn(&GroupShare) -> [f64; 2] = match cfg.fair {
            Fair::Cfs(_) => |of| of.linux_6_1,
            Fair::Eevdf(t) if t.release == EevdfRelease::V6_12 => |of| of.linux_6_12,
            Fair::Eevdf(t) if t.release == EevdfRelease::V7_3 => |of| of.linux_7_3,
            Fair::Eevdf(_) => continue,
        };
        cfg.tick_ns = 4 * MS;
        cfg.groups = [1024, 1024].map(GroupConfig::new).to_vec();
        for of in &GROUP_SHARES {
            let mut m = Machine::new(&cfg);
            let on =
                |cpu, g| Attr { policy: nice(0), cpus: CpuSet::one(CpuId(cpu)), group: Some(g) };
            let (run, sleep) = (u64::from(of.on_ms) * MS, u64::from(of.off_ms) * MS);
            let worker = m.start(on(0, 0), 0, Work { run, sleep });
            let own = m.start(on(1, 0), 1, HOG);
            m.start(on(1, 1), 1, HOG);
            for _ in 0..8000 * MS / (run + sleep) {
                m.run_for(run - US);
                if of.leaves {
                    m.set_policy(worker, Policy::Fifo(1));
                }
                m.run_for(sleep + US);
                if of.leaves {
                    m.set_policy(worker, nice(0));
                }
            }
            let share = m.exec(own) as f64 * 100.0 / m.now as f64;
            let [low, high] = measured(of);
            let told = format!("{of:?}: {share:.1}, and {low} to {high} in Linux");
            println!("{told}");
            assert!((low - GroupShare::OFF..=high + GroupShare::OFF).contains(&share), "{told}");
        }
    }
}
