use vcoop_sched::config::{Bandwidth, CfsRelease, EevdfRelease, EevdfTunables};
use vcoop_testing::Tree;

use super::*;

fn read(tree: &Tree, allowed: &[u32], tick: Option<Ns>) -> HostFacts {
    HostFacts::read(tree.root(), allowed, tick)
}

fn fair(files: &[(&str, &str)]) -> Fair {
    read(&Tree::with(files), &[0, 1], None).fair.value
}

fn eevdf(files: &[(&str, &str)]) -> EevdfTunables {
    match fair(files) {
        Fair::Eevdf(tunables) => tunables,
        Fair::Cfs(_) => panic!("{files:?}"),
    }
}

/// A two-socket machine as Linux numbers it: the second threads of all cores come last.
fn two_sockets() -> Vec<(String, String)> {
    (0..8)
        .flat_map(|cpu| {
            let (core, socket) = (cpu % 4, cpu % 4 / 2);
            let dir = format!("sys/devices/system/cpu/cpu{cpu}");
            let (a, b) = (socket * 2, socket * 2 + 1);
            [
                (format!("{dir}/topology/core_cpus_list"), format!("{core},{}\n", core + 4)),
                (format!("{dir}/cache/index0/level"), "1\n".to_owned()),
                (format!("{dir}/cache/index0/shared_cpu_list"), format!("{core},{}\n", core + 4)),
                (format!("{dir}/cache/index3/level"), "3\n".to_owned()),
                (
                    format!("{dir}/cache/index3/shared_cpu_list"),
                    format!("{a}-{b},{}-{}\n", a + 4, b + 4),
                ),
            ]
        })
        .collect()
}

#[test]
fn cpus_are_renumbered_core_by_core() {
    let files = two_sockets();
    let facts = read(&Tree::with(&files), &[0, 1, 2, 3, 4, 5, 6, 7], None);
    let shape = Topology { threads_per_core: 2, cores_per_llc: 2, llcs: 2 };
    assert_eq!((facts.topology.value, facts.topology.read), (shape, true));
    assert_eq!(facts.cpus, [0, 4, 1, 5, 2, 6, 3, 7]);
    // A process that may use three of them has no regular machine.
    let facts = read(&Tree::with(&files), &[0, 4, 1], None);
    assert_eq!((facts.topology.value, facts.topology.read), (Topology::flat(3), false));
}

#[test]
fn an_old_kernel_is_known_by_its_release() {
    let dir = Tree::with(&[
        ("proc/sys/kernel/osrelease", "6.1.0-28-amd64\n"),
        ("proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian\n"),
        ("proc/sys/kernel/sched_rt_runtime_us", "-1\n"),
        ("proc/sys/kernel/sched_rt_period_us", "1000000\n"),
        (
            "boot/config-6.1.0-28-amd64",
            "# CONFIG_PREEMPT_NONE is not set\nCONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_HZ=1000\n",
        ),
        ("proc/cmdline", "quiet preempt=full\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
    ]);
    let facts = read(&dir, &[], None);
    assert_eq!(facts.fair.value, Fair::Cfs(vcoop_sched::config::CfsTunables::for_cpus(4)));
    assert_eq!(facts.rt_guard.value, RtGuard::Off);
    assert_eq!((facts.hz(), facts.tick_ns.read), (1000, true));
    assert_eq!(facts.preemption.value, Preemption::Full, "the boot option wins");
    assert_eq!(facts.cpus, [0, 1, 2, 3]);
}

#[test]
fn debugfs_wins_where_it_can_be_read() {
    let dir = Tree::with(&[
        ("proc/sys/kernel/osrelease", "6.18.44\n"),
        ("proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC\n"),
        ("proc/cmdline", "preempt=none\n"),
        ("sys/kernel/debug/sched/preempt", "none voluntary full (lazy)\n"),
        ("sys/kernel/debug/sched/base_slice_ns", "3000000\n"),
        ("sys/kernel/debug/sched/fair_server/cpu0/runtime", "20000000\n"),
        ("sys/kernel/debug/sched/fair_server/cpu0/period", "500000000\n"),
    ]);
    let facts = read(&dir, &[0, 1], Some(4_000_000));
    assert_eq!(facts.preemption.value, Preemption::Lazy);
    let Fair::Eevdf(eevdf) = facts.fair.value else { panic!("EEVDF since 6.6") };
    assert_eq!((eevdf.base_slice_ns, eevdf.delay_dequeue), (3_000_000, true));
    let guard = RtGuard::FairServer(Bandwidth { runtime_ns: 20_000_000, period_ns: 500_000_000 });
    assert_eq!((facts.rt_guard.value, facts.rt_guard.read), (guard, true));
    assert_eq!(facts.hz(), 250);
}

#[test]
fn a_kernel_with_rt_groups_throttles_beside_its_fair_server() {
    let files = [
        ("proc/sys/kernel/osrelease", "6.18.44\n"),
        ("proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
        ("proc/sys/kernel/sched_rt_period_us", "1000000\n"),
        ("boot/config-6.18.44", "CONFIG_RT_GROUP_SCHED=y\n"),
    ];
    let of = |files: &[(&str, &str)]| read(&Tree::with(files), &[0], None).rt_guard.value;
    let rt = Bandwidth { runtime_ns: 950_000_000, period_ns: 1_000_000_000 };
    assert_eq!(of(&files), RtGuard::Both(rt));
    let server = ("sys/kernel/debug/sched/fair_server/cpu0/runtime", "0\n");
    let without = [&files[..], &[server]].concat();
    assert_eq!(of(&without), RtGuard::Throttle(rt));
    let fair = RtGuard::FairServer(Bandwidth { runtime_ns: 50_000_000, ..rt });
    assert_eq!(of(&files[..3]), fair, "without groups the sysctl does not throttle");
}

#[test]
fn slices_and_features_follow_the_release() {
    let of = |release: &str| {
        let e = eevdf(&[("proc/sys/kernel/osrelease", release)]);
        (e.release, e.base_slice_ns, e.preempt_short)
    };
    let cfs = |release: &str| match fair(&[("proc/sys/kernel/osrelease", release)]) {
        Fair::Cfs(tunables) => tunables.release,
        Fair::Eevdf(_) => panic!("{release}"),
    };
    assert_eq!(cfs("5.10.0-30-amd64"), CfsRelease::V5_15);
    assert_eq!(cfs("5.15.167"), CfsRelease::V5_15);
    assert_eq!(cfs("5.16"), CfsRelease::V6_5);
    assert_eq!(of("6.6.9"), (EevdfRelease::V6_6, 1_500_000, false));
    assert_eq!(of("6.11.0-9-generic"), (EevdfRelease::V6_6, 1_500_000, false));
    assert_eq!(of("6.12.1"), (EevdfRelease::V6_12, 1_500_000, true));
    assert_eq!(of("6.15-rc1"), (EevdfRelease::V6_15, 1_400_000, true));
    assert_eq!(of("6.18"), (EevdfRelease::V6_18_0, 1_400_000, true));
    assert_eq!(of("6.18.9"), (EevdfRelease::V6_18_0, 1_400_000, true));
    assert_eq!(of("6.18.44-fc"), (EevdfRelease::V6_18, 1_400_000, true));
    assert_eq!(of("7.0.0-1-amd64"), (EevdfRelease::V6_18, 1_400_000, true));
    assert_eq!(of("7.2.9"), (EevdfRelease::V6_18, 1_400_000, true));
    assert_eq!(of("7.3.4+deb13-cloud-amd64"), (EevdfRelease::V7_3, 1_400_000, true));
    assert_eq!(of("8.0.1"), (EevdfRelease::V7_3, 1_400_000, true));
}

#[test]
fn requests_end_in_time_since_7_1_unless_the_feature_is_off() {
    let hrtick = |files: &[(&str, &str)]| eevdf(files).hrtick;
    let release = |release| ("proc/sys/kernel/osrelease", release);
    let features = |list| ("sys/kernel/debug/sched/features", list);
    assert!(!hrtick(&[release("7.0.12")]) && hrtick(&[release("7.1.0")]));
    assert!(hrtick(&[release("6.18.44"), features("PLACE_LAG HRTICK NO_HRTICK_DL\n")]));
    assert!(!hrtick(&[release("7.3.4"), features("PLACE_LAG NO_HRTICK HRTICK_DL\n")]));
}

#[test]
fn stable_updates_changed_what_a_yield_gives_up() {
    let forfeits = |release: &str| eevdf(&[("proc/sys/kernel/osrelease", release)]).yield_forfeits;
    for before in ["6.6.119", "6.8.0-90-generic", "6.12.62", "6.16.12", "6.17.12", "6.18.1"] {
        assert!(!forfeits(before), "{before}");
    }
    for since in
        ["6.6.120", "6.12.63+deb13-amd64", "6.17.13", "6.18.2", "6.18.40", "6.19.0", "7.0.1"]
    {
        assert!(forfeits(since), "{since}");
    }
}

#[test]
fn idle_states_keep_their_order() {
    let state = |i: u32, file: &str| format!("sys/devices/system/cpu/cpu0/cpuidle/state{i}/{file}");
    let files = [
        (state(0, "name"), "POLL"),
        (state(0, "latency"), "0"),
        (state(0, "residency"), "0"),
        (state(1, "name"), "C6"),
        (state(1, "desc"), "MWAIT 0x20"),
        (state(1, "latency"), "170"),
        (state(1, "residency"), "600"),
        (state(1, "disable"), "1"),
    ];
    let tree = Tree::with(&files);
    tree.put("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle");
    let idle = read(&tree, &[0], None).idle;
    assert_eq!(idle.driver.as_deref(), Some("intel_idle"));
    assert!(idle.states[0].is_poll() && !idle.states[0].disabled);
    let c6 = &idle.states[1];
    assert_eq!((c6.exit_ns, c6.residency_ns, c6.disabled), (170_000, 600_000, true));
}

#[test]
fn an_empty_machine_is_still_described() {
    let dir = Tree::with(&[("x", "")]);
    let facts = read(&dir, &[], None);
    assert_eq!((facts.cpus.as_slice(), facts.topology.value.cpus()), (&[0][..], 1));
    assert!(!facts.tick_ns.read && !facts.preemption.read && facts.idle.states.is_empty());
}

#[test]
fn a_cpu_list_that_was_never_set_is_none() {
    let dir = Tree::with(&[
        ("sys/devices/system/cpu/online", "(null)\n"),
        ("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "  (null)\n"),
        ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0\n"),
    ]);
    let facts = read(&dir, &[], None);
    assert_eq!((facts.cpus.as_slice(), facts.topology.read), (&[0][..], true));
}

#[test]
fn a_sched_ext_scheduler_is_known_by_what_it_takes() {
    let of = |files: &[(&str, &str)]| read(&Tree::with(files), &[0], None).sched_ext;
    let loaded = |switch_all| {
        of(&[
            ("sys/kernel/sched_ext/state", "enabled\n"),
            ("sys/kernel/sched_ext/switch_all", switch_all),
            ("sys/kernel/sched_ext/nr_rejected", "0\n"),
            ("sys/kernel/sched_ext/enable_seq", "3\n"),
            ("sys/kernel/sched_ext/root/ops", "scx_lavd_1.0.13\n"),
        ])
    };
    let takes = |takes_fair| Some(SchedExt { ops: "scx_lavd_1.0.13".to_owned(), takes_fair });
    assert_eq!(loaded("1\n"), takes(true));
    assert_eq!(loaded("0\n"), takes(false));
    assert_eq!(takes(true).unwrap().to_string(), "scx_lavd_1.0.13, all fair threads");
    let unloaded =
        [("sys/kernel/sched_ext/state", "disabled\n"), ("sys/kernel/sched_ext/switch_all", "0\n")];
    assert_eq!(of(&unloaded), None);
    assert_eq!(of(&[("x", "")]), None);
}

#[test]
fn how_kvm_polls_is_its_modules_word() {
    let files = |shrink| {
        Tree::with(&[
            ("sys/module/kvm/parameters/halt_poll_ns", "50000\n"),
            ("sys/module/kvm/parameters/halt_poll_ns_grow", "3\n"),
            ("sys/module/kvm/parameters/halt_poll_ns_grow_start", "20000\n"),
            ("sys/module/kvm/parameters/halt_poll_ns_shrink", shrink),
        ])
    };
    let own =
        HostPollConfig { max_ns: 50_000, grow: 3, grow_start_ns: 20_000, shrink: 0, fixed: false };
    let facts = read(&files("0\n"), &[], None);
    assert_eq!((facts.halt_poll.value, facts.halt_poll.read), (own, true));
    let facts = read(&files("?\n"), &[], None);
    assert_eq!((facts.halt_poll.value, facts.halt_poll.read), (HostPollConfig::KVM, false));
}

#[test]
fn cpu_lists() {
    assert_eq!(topology::list("0-2,5,8-9"), [0, 1, 2, 5, 8, 9]);
    assert_eq!(topology::list("x,7-,0-99999999"), Vec::<u32>::new());
}

#[test]
fn this_host_has_cpus_and_a_release() {
    let facts = host_facts();
    assert!(!facts.cpus.is_empty() && facts.version() > Release::new(2, 6));
    assert_eq!(facts.topology.value.cpus() as usize, facts.cpus.len());
    assert!((10..=10_000).contains(&facts.hz()));
}
