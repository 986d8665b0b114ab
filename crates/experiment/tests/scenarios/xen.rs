//! The Xen study: rate limits, a pinned dom0, storms of desktops.

use std::sync::LazyLock;

use vcoop_experiment::result::{Document, Key};

use super::{latencies, run, scalar};
use crate::common::value;

/// What two tests look at.
static RATELIMIT: LazyLock<Document> = LazyLock::new(|| {
    let sets = ["duration=600ms", "warmup=300ms", "repeats=3"];
    run("xen-ratelimit", &sets, &["vanilla", "ratelimit-auto"])
});

/// A scalar in the cell of `xen-ratelimit` with these coordinates.
fn in_cell(d: &Document, at: [&str; 3], probe: &str, metric: &str, policy: &str) -> f64 {
    value(d, metric, |k| k.probe == probe && k.policy == policy && is_cell(&k.cell, at))
}

fn is_cell(cell: &std::collections::BTreeMap<String, String>, at: [&str; 3]) -> bool {
    let paths = ["host.dom0_pin", "host.credit1.version", "host.credit1.ratelimit"];
    paths.iter().zip(at).all(|(path, value)| cell[*path].trim_matches('"') == value)
}

/// A vCPU that wakes up behind a CPU loop waits for its ratelimit: today for what is left of it, in 4.2 for
/// all of it again (and once more where another wake-up comes in between), and without one not at all.
#[test]
fn a_ratelimit_bounds_the_wait_by_the_rules_of_its_version() {
    let d = &*RATELIMIT;
    let max = |at, policy| {
        let all = latencies(d, "timer.cyclictest", policy);
        all.iter().find(|s| is_cell(&s.key.cell, at)).unwrap().max.unwrap()
    };
    for (limit, us) in [("100us", 100.0), ("1ms", 1000.0)] {
        // Other short work and costs come on top.
        let new = max(["nopin", "current", limit], "vanilla");
        let old = max(["nopin", "4.2", limit], "vanilla");
        assert!((0.8 * us..us + 100.0).contains(&new), "{limit}: {new} today");
        assert!((1.1 * us..2.0 * us + 100.0).contains(&old), "{limit}: {old} in 4.2");
    }
    for version in ["4.2", "current"] {
        let off = max(["nopin", version, "0us"], "vanilla");
        assert!(off < 200.0, "{version}: {off} without");
        let holds = in_cell(d, ["nopin", version, "0us"], "host", "ratelimit_holds", "vanilla");
        assert_eq!(holds, 0.0);
        let auto = max(["nopin", version, "1ms"], "ratelimit-auto");
        assert!(auto < 300.0, "{version}: {auto} tuned");
    }
}

/// The Xen study's puzzle, and its answer. A booting VM and its backend in an unpinned dom0 come to share a
/// pCPU: each runs where the other blocks. With dom0 on pCPUs of its own a CPU loop runs in between,
/// for a ratelimit each time; without ratelimits the difference is gone.
#[test]
fn an_exclusively_pinned_dom0_makes_each_io_wait_a_ratelimit() {
    let d = &*RATELIMIT;
    for version in ["4.2", "current"] {
        let io = |pin, limit, policy| {
            in_cell(d, [pin, version, limit], "dom0.backend", "served", policy)
        };
        let xpin = io("xpin", "1ms", "vanilla");
        assert!((800.0..1_500.0).contains(&xpin), "{version}: {xpin} a second, one a ratelimit");
        assert!(io("nopin", "1ms", "vanilla") > 5.0 * xpin, "{version}: chunks on one pCPU");
        let (off, off_nopin) = (io("xpin", "0us", "vanilla"), io("nopin", "0us", "vanilla"));
        assert!(off > off_nopin && off > 5.0 * xpin, "{version}: {off} and {off_nopin}");
        // The tuner gives most of it back, from wherever it starts, for a few percent of the loops.
        let tuned = [io("xpin", "1ms", "ratelimit-auto"), io("xpin", "0us", "ratelimit-auto")];
        assert!(tuned.iter().all(|io| *io > 4.0 * xpin), "{version}: {tuned:?}");
        let loops = ["vanilla", "ratelimit-auto"]
            .map(|p| in_cell(d, ["xpin", version, "1ms"], "load.loop", "throughput", p));
        assert!(loops[1] > 0.95 * loops[0], "{version}: {loops:?}");
        for limit in ["0us", "1ms"] {
            let at = ["xpin", version, limit];
            assert_eq!(in_cell(d, at, "load", "ratelimit", "ratelimit-auto"), 100.0);
        }
    }
    // Without load no vCPU runs that a ratelimit could protect.
    let idle = ["duration=300ms", "warmup=100ms", "repeats=2", "vm.load.enabled=false"];
    let d = run("xen-ratelimit", &idle, &["vanilla"]);
    let io = |limit| in_cell(&d, ["nopin", "current", limit], "dom0.backend", "served", "vanilla");
    let ratio = io("0us") / io("1ms");
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

/// The scalar of a storm's VMs in every cell in which all of `at` are (path and value).
fn storm(d: &Document, metric: &str, policy: &str, at: &[(&str, &str)]) -> f64 {
    let is_at = |k: &Key| at.iter().all(|(path, value)| k.cell[*path] == *value);
    value(d, metric, |k| k.probe == "desktop" && k.policy == policy && is_at(k))
}

const NOPIN: (&str, &str) = ("host.dom0_pin", "nopin");
const XPIN: (&str, &str) = ("host.dom0_pin", "xpin");

/// The Xen study's second cluster: a dom0 that shares its pCPUs meets the ratelimit of a loop that it let in.
#[test]
fn a_ping_from_dom0_meets_a_ratelimit_only_without_exclusive_pinning() {
    let d = run("xen-vmping", &["repeats=2"], &[]);
    let [nopin, xpin] = latencies(&d, "dom0.vmping", "vanilla")[..] else { panic!("two cells") };
    assert_eq!(nopin.key.cell["host.dom0_pin"], "nopin");
    assert!((10.0..40.0).contains(&nopin.p50.unwrap()), "{:?}", nopin.p50);
    assert!((100.0..2_000.0).contains(&nopin.p99.unwrap()), "{:?}", nopin.p99);
    assert!(xpin.p99.unwrap() < 40.0, "{:?}", xpin.p99);
    // 60 loops came, and each has its mark beside the pings.
    assert_eq!(d.scatters[0].marks.iter().filter(|m| m.event == "start").count(), 60);
}

/// Under CPU loops each I/O of a boot waits for a ratelimit where dom0 has pCPUs of its own, and
/// where it has not as soon as the disk takes time; without load none does.
#[test]
fn a_storm_waits_for_ratelimits() {
    let matrix = r#"matrix={"vm.desktop.task.boot.then"=["none","hog"],"host.dom0_pin"=["nopin","xpin"],"host.credit1.ratelimit"=["0us","1ms"],"vm.dom0.task.backend.wait"=["0us","100us"]}"#;
    let d = run("xen-bootstorm", &["repeats=1", matrix], &[]);
    let took = |then, pin, limit, wait| {
        let axes = [
            ("vm.desktop.task.boot.then", then),
            pin,
            ("host.credit1.ratelimit", limit),
            ("vm.dom0.task.backend.wait", wait),
        ];
        assert_eq!(storm(&d, "logged_in", "vanilla", &axes), 60.0);
        storm(&d, "login_total", "vanilla", &axes)
    };
    for wait in ["0us", "100us"] {
        let (limited, free) = (took("hog", XPIN, "1ms", wait), took("hog", XPIN, "0us", wait));
        assert!(free < 0.5 * limited, "{wait}: {free} of {limited}");
        let nopin = took("hog", NOPIN, "0us", wait);
        assert!((0.75..1.25).contains(&(free / nopin)), "{wait}: {free} beside {nopin}");
        for pin in [NOPIN, XPIN] {
            let ratio = took("none", pin, "0us", wait) / took("none", pin, "1ms", wait);
            assert!((0.99..1.01).contains(&ratio), "{wait}: {ratio}");
        }
    }
    let ratio = |wait| took("hog", NOPIN, "1ms", wait) / took("hog", XPIN, "1ms", wait);
    assert!(ratio("0us") < 0.6 && ratio("100us") > 0.8, "{} {}", ratio("0us"), ratio("100us"));
}

/// What a posted patch cannot do it does not do, to the bit; what can help does.
#[test]
fn patches_that_do_nothing_do_nothing() {
    let policies =
        ["vanilla", "migrate-as-posted", "dom0-preempts-as-meant", "boost-v1", "ratelimit-auto"];
    let d = run("xen-patches", &["repeats=1"], &policies);
    let took = |policy| storm(&d, "login_total", policy, &[]);
    let vanilla = took("vanilla");
    assert_eq!(took("migrate-as-posted"), vanilla);
    assert!(took("dom0-preempts-as-meant") < 0.7 * vanilla);
    assert!(took("boost-v1") < 0.5 * vanilla);
    assert!(took("ratelimit-auto") < 0.85 * vanilla);
    // They take what they gain from no other VM.
    for policy in policies {
        let error = scalar(&d, "host", "fairness_error", policy);
        assert!(error < 10.0, "{policy}: {error}");
    }
}

/// A start in few goes is compute: what it waits for are timeslices, as dom0 is out of credit. One in
/// many steps wakes up behind loops that it has just let in, and waits for their ratelimits.
#[test]
fn starts_wait_for_credit_or_for_ratelimits() {
    let policies = ["vanilla", "dom0-preempts-as-posted", "dom0-front"];
    let one = r#"matrix={"host.dom0_pin"=["nopin","xpin"]}"#;
    let with = |more: &[&str], policies: &[&str]| {
        let sets = [&["duration=30s", "repeats=1", one][..], more].concat();
        run("xen-vmstart", &sets, policies)
    };
    let d = with(&[], &policies);
    let took = |policy, pin| storm(&d, "start_total", policy, &[pin]);
    assert!(took("vanilla", NOPIN) > 1.1 * took("vanilla", XPIN));
    for policy in &policies[1..] {
        assert_eq!(took(policy, XPIN), took("vanilla", XPIN), "{policy}");
        assert!(took(policy, NOPIN) > 0.9 * took("vanilla", NOPIN), "{policy}");
    }
    let rich = with(&["vm.dom0.weight=4096"], &policies[..1]);
    let ratio = storm(&rich, "start_total", "vanilla", &[NOPIN]) / took("vanilla", XPIN);
    assert!((0.9..1.05).contains(&ratio), "{ratio}");

    let steps = [
        "vm.dom0.task.toolstack.work=20ms",
        "vm.dom0.task.setup.work=500us",
        "vm.dom0.task.setup.wait=500us",
        "storm.boots.devices=200",
    ];
    let d = with(&steps, &policies);
    let took = |policy, pin| storm(&d, "start_total", policy, &[pin]);
    assert!(took("dom0-preempts-as-posted", NOPIN) < 0.85 * took("vanilla", NOPIN));
    assert!(took("dom0-front", NOPIN) > 0.9 * took("vanilla", NOPIN));
    // Credit is not what they wait for.
    let rich = with(&[&steps[..], &["vm.dom0.weight=4096"]].concat(), &policies[..1]);
    let ratio = storm(&rich, "start_total", "vanilla", &[NOPIN]) / took("vanilla", NOPIN);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
    // With two milliseconds in between, a loop's ratelimit has passed when dom0 is back.
    let late = [steps[0], steps[1], "vm.dom0.task.setup.wait=2ms", steps[3], "duration=60s"];
    let late = with(&late, &policies[..2]);
    let took = |policy| storm(&late, "start_total", policy, &[NOPIN]);
    let ratio = took("dom0-preempts-as-posted") / took("vanilla");
    assert!((0.95..1.05).contains(&ratio), "{ratio}");
}

/// A small host misses the pCPUs that dom0 keeps, once a boot computes; a large one does not. Where loops
/// follow, the largest host gains most, as long as it has as many of them for a pCPU.
#[test]
fn pinning_costs_a_small_host() {
    let hosts = r#"matrix={"host.pcpus,vm.dom0.vcpus,vm.desktop.count,vm.dom0.task.backend.count"=[[8,4,20,20],[24,6,60,60],[48,8,120,120]],"host.dom0_pin"=["nopin","xpin"]}"#;
    let ratios = |more: &[&str]| {
        let d =
            run("xen-pinning", &[&["duration=40s", "repeats=2", hosts][..], more].concat(), &[]);
        ["8", "24", "48"].map(|pcpus| {
            let at = |pin| storm(&d, "login_total", "vanilla", &[("host.pcpus", pcpus), pin]);
            at(XPIN) / at(NOPIN)
        })
    };
    let quiet = ratios(&["vm.desktop.task.boot.every=4", "vm.desktop.task.boot.then=none"]);
    assert!(quiet[0] > 1.3, "{quiet:?}");
    assert!(quiet[1..].iter().all(|r| (0.95..1.05).contains(r)), "{quiet:?}");
    // The smallest host depends most on when its loops begin.
    let loops = ratios(&["vm.desktop.task.boot.then=hog", "repeats=6"]);
    assert!(loops[2] < loops[0].min(loops[1]) && loops[1] < 0.95, "{loops:?}");
    assert!(loops[2] < 0.9, "{loops:?}");
    // 60 loops are few for 48 pCPUs.
    let few = [
        "duration=40s",
        "repeats=1",
        r#"matrix={"host.dom0_pin"=["nopin","xpin"]}"#,
        "host.pcpus=48",
        "vm.desktop.task.boot.then=hog",
    ];
    let d = run("xen-pinning", &few, &[]);
    let took = |pin| storm(&d, "login_total", "vanilla", &[pin]);
    assert!(took(XPIN) > 1.1 * took(NOPIN), "{} of {}", took(XPIN), took(NOPIN));
}

/// The host is full at some number of desktops, which no ratelimit moves much.
#[test]
fn a_host_is_full_of_desktops() {
    let d = run("xen-density", &["repeats=1"], &["vanilla", "boost-v1"]);
    for policy in ["vanilla", "boost-v1"] {
        assert_eq!(storm(&d, "limit_passed", policy, &[]), 1.0);
        let density = storm(&d, "density", policy, &[]);
        assert!((40.0..100.0).contains(&density), "{policy}: {density}");
    }
}
