//! What hostile guests gain, and what they take from their host.

use super::{kept, latency, run, scalar};

#[test]
fn rogue_guest_leaves_the_host_its_latency() {
    let d = run("rogue-guest", &["repeats=3"], &["vanilla", "dynamic"]);
    for probe in ["host.cyclictest", "host.cyclictest-rt"] {
        let mean = |policy| latency(&d, probe, policy).mean.unwrap();
        let (dynamic, vanilla) = (mean("dynamic"), mean("vanilla"));
        assert!(dynamic < 1.1 * vanilla, "{probe}: {dynamic} beside {vanilla}");
    }
}

#[test]
fn rogue_guest_gains_no_more_than_its_budget() {
    let sets = ["duration=5s", "warmup=3s", "repeats=3"];
    for mode in ["forever", "toggle"] {
        let mode = format!("vm.rogue.task.rogue.mode={mode}");
        let d = run("rogue-guest", &[&sets[..], &[&mode]].concat(), &[]);
        let cpu = |policy| scalar(&d, "rogue", "cpu", policy);
        // 5 s at one CPU's worth of refill, and a burst of 12 ms.
        assert!(cpu("dynamic") - cpu("vanilla") <= 1.0 + 0.012 / 5.0, "{mode}");
        assert!(scalar(&d, "rogue", "boosted", "dynamic") <= 25.0 + 100.0 * 0.003 / 5.0, "{mode}");
        let rt = |policy| latency(&d, "host.cyclictest-rt", policy).mean.unwrap();
        assert!(rt("dynamic") < 1.1 * rt("vanilla"), "{mode}: {} {}", rt("dynamic"), rt("vanilla"));
        // Without a budget the same guest takes what RT throttling leaves.
        assert!(cpu("static") > 3.5, "{mode}: {}", cpu("static"));
        let fair = |policy| latency(&d, "host.cyclictest", policy);
        assert!(kept(fair("dynamic")) > 0.99 && kept(fair("static")) < 0.3, "{mode}");
    }
}

/// A fair thread waits for a slice of whoever runs before it: 0.7 ms times 1 + log2(4) for the scenario's four pCPUs.
const SLICE_US: f64 = 2_100.0;

/// Whatever a guest does, and with one hog on each pCPU as with two, on today's fair class: the host's tail is at most
/// twice what it is without boosts, or a slice.
#[test]
fn no_rogue_doubles_the_hosts_tail() {
    let modes = ["forever", "toggle", "scribble", "msr-flood", "hostile-gpa"];
    let named = modes.map(|mode| vec![format!("vm.rogue.task.rogue.mode={mode}")]);
    // The worst that `worst-guest` has found: by the ratio for one hog and for two, and by vanilla's p99 alone.
    let found = [
        r#"["ask", "work 400us", "end", "claim nmi", "end", "register nothing", "end"]"#,
        r#"["end", "register own", "work 3ms", "end", "halt 20us"]"#,
        r#"["halt 700us", "work 200us"]"#,
    ];
    let found = found.map(|steps| {
        let steps = format!("vm.rogue.task.rogue.steps={steps}");
        vec!["vm.rogue.task.rogue.mode=program".to_owned(), steps]
    });
    for rogue in named.into_iter().chain(found) {
        for hogs in [4, 8] {
            let hogs = format!("load.hog.count={hogs}");
            let sets = ["duration=6s", "repeats=2", "host.sched.fair=eevdf", &hogs];
            let sets: Vec<&str> =
                sets.into_iter().chain(rogue.iter().map(String::as_str)).collect();
            let d = run("rogue-guest", &sets, &["vanilla", "dynamic"]);
            let p99 = |policy| latency(&d, "host.cyclictest", policy).p99.unwrap();
            let (dynamic, vanilla) = (p99("dynamic"), p99("vanilla").max(SLICE_US));
            assert!(dynamic < 2.0 * vanilla, "{sets:?}: {dynamic} beside {vanilla}");
        }
    }
}

/// A guest can write into the words of another of its vCPUs, and where these hold the deadline, into that. It
/// wins little: nonsense that happens to end a boost is not taken for one that was given back.
#[test]
fn a_scribbled_page_is_boosted_less_and_less() {
    let sets = [
        "duration=20s",
        "warmup=2s",
        "repeats=2",
        "host.sched.fair=eevdf",
        "vm.rogue.timer=exitless",
    ];
    let sets = [&sets[..], &["vm.rogue.task.rogue.mode=scribble"]].concat();
    let d = run("rogue-guest", &sets, &["dynamic"]);
    let boosted = scalar(&d, "rogue", "boosted", "dynamic");
    assert!(boosted > 0.0 && boosted < 1.0, "{boosted} %");
}
