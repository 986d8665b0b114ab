//! The recorder of the host's scheduler, on this host's `/dev/kvm` and tracefs. Without one of them,
//! every test that needs it is skipped.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use crate::support::{BUSY, Outcome, Skip, latency, plan, run, run_with, twice, whole};
use vcoop_lab::Options;
use vcoop_model::plan::GuestTimer;
use vcoop_model::recording::{LatencyRecord, Part};
use vcoop_model::run::Run;

/// Needs a host on which runs can be recorded.
fn traced() -> Outcome {
    let said = vcoop_lab::environment().remove("trace").unwrap_or_default();
    if said.starts_with("no: ") { Err(Skip::because(format!("trace: {said}"))) } else { Ok(()) }
}

/// The same guest without background work, on a CPU of its own.
fn idle() -> String {
    let hogs = "[[load]]\nname = \"hog\"\nkind = \"hog\"\ncount = 2\ncpus = \"0\"\n";
    BUSY.replace(hogs, "").replace("\n[[vm.task]]\nname = \"background\"\nkind = \"hog\"\n", "")
}

fn part(l: &LatencyRecord, parts: &[Part]) -> u128 {
    parts.iter().map(|p| l.parts_sum[*p as usize]).sum()
}

/// Names of this process's instances in tracefs, which may be mounted at both places.
fn instances() -> BTreeSet<OsString> {
    let roots = ["/sys/kernel/tracing/instances", "/sys/kernel/debug/tracing/instances"];
    let list = roots.iter().filter_map(|r| std::fs::read_dir(r).ok()).flatten().flatten();
    let ours = format!("vcoop-{}", std::process::id());
    list.map(|e| e.file_name()).filter(|n| n.to_string_lossy().starts_with(&ours)).collect()
}

fn assert_sums(l: &LatencyRecord) {
    assert!(l.hist.len() > 100, "{}: {}", l.probe, l.hist.len());
    assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns, "{}", l.probe);
    for w in &l.worst {
        assert_eq!(w.parts.iter().sum::<u64>(), w.latency_ns, "{}", l.probe);
        let waited = w.parts[Part::WakeToRun as usize] + w.parts[Part::PreemptedToRun as usize];
        let others: u64 = w.ran_instead.iter().map(|(_, ns)| ns).sum();
        assert!(others <= waited, "{}: {w:?}", l.probe);
    }
    let waited = part(l, &[Part::WakeToRun, Part::PreemptedToRun]);
    assert!(l.ran_instead.values().sum::<u128>() <= waited, "{}", l.probe);
}

live!(hogs_are_what_ran_instead, || -> Outcome {
    traced()?;
    twice(|| {
        let r = run(&plan(BUSY, "vanilla", &["duration=1500ms"]));
        let mut told = Vec::new();
        for probe in ["guest.cyclictest", "host.cyclictest"] {
            let l = latency(&r, probe);
            assert_sums(l);
            let hogs = l.ran_instead.get("hog").copied().unwrap_or(0);
            let others: u128 = l.ran_instead.values().sum();
            let waited = part(l, &[Part::WakeToRun, Part::PreemptedToRun]);
            // Others work on this host too, and the probe has the guest to wait for besides.
            let most = if probe.starts_with("guest") { 2 * hogs > others } else { hogs > 0 };
            // And the waits are explained, all but moments.
            if !most || 10 * others < 9 * waited || 2 * waited < l.sum_ns {
                told.push(format!("{probe}: {waited} ns waited: {:?}", l.ran_instead));
            }
        }
        let guest = latency(&r, "guest.cyclictest");
        let worst = &guest.worst[0];
        if !worst.ran_instead.iter().any(|(who, _)| who == "hog") {
            told.push(format!("the worst sample: {worst:?}"));
        }
        let coarse = r.scalar("lab", "samples_coarse").unwrap();
        if coarse > 0.01 * guest.hist.len() as f64 {
            told.push(format!("{coarse} samples without a trace"));
        }
        if told.is_empty() { Ok(()) } else { Err(told.join("; ")) }
    })
});

live!(the_trace_agrees_with_schedstat, || -> Outcome {
    traced()?;
    twice(|| {
        let r = run(&plan(BUSY, "vanilla", &["duration=3s"]));
        let of = |what: &str| r.scalar("lab", &format!("trace_vs_schedstat_{what}")).unwrap();
        let (exec, wait) = (of("exec"), of("wait"));
        assert_eq!(r.scalar("lab", "trace_lost"), Some(0.0));
        let steals = (r.scalar("guest", "steal"), r.scalar("guest", "steal_trace"));
        let near = |percent: f64| (98.0..=102.0).contains(&percent);
        let told = format!("exec {exec} %, wait {wait} %, steal {steals:?}");
        eprintln!("{told}");
        if near(exec) && near(wait) { Ok(()) } else { Err(told) }
    })
});

live!(an_idle_guest_waits_for_its_wake_up_not_for_others, || -> Outcome {
    traced()?;
    for timer in [GuestTimer::Lapic, GuestTimer::Exitless] {
        let mut plan = plan(&idle(), "vanilla", &["duration=600ms"]);
        plan.vms[0].virt.timer.source = Some(timer);
        let r = run(&plan);
        let l = latency(&r, "guest.cyclictest");
        assert_sums(l);
        assert_sums(latency(&r, "host.cyclictest"));
        // It sleeps before each sample: some of each goes to being woken, and to the timer.
        assert!(part(l, &[Part::WakeToRun, Part::CState]) > 0, "{timer:?}");
        assert!(part(l, &[Part::TimerSlack]) > 0, "{timer:?}");
        assert!(part(l, &[Part::EntryExit]) > 0, "{timer:?}");
        let coarse = r.scalar("lab", "samples_coarse").unwrap();
        assert!(coarse < 60.0, "{timer:?}: {coarse} without a trace");
    }
    Ok(())
});

live!(every_policy_is_explained, || -> Outcome {
    traced()?;
    for policy in ["dynamic", "static", "wake-boost"] {
        let r = run(&plan(BUSY, policy, &["duration=1500ms"]));
        assert_sums(latency(&r, "guest.cyclictest"));
        let (coarse, n) = (
            r.scalar("lab", "samples_coarse").unwrap(),
            latency(&r, "guest.cyclictest").hist.len() as f64,
        );
        assert!(coarse < 0.05 * n, "{policy}: {coarse} of {n} without a trace");
    }
    Ok(())
});

live!(without_a_trace_the_parts_are_coarse, || {
    let options = Options { trace: false, ..Options::default() };
    let r = run_with(&plan(BUSY, "vanilla", &["duration=500ms"]), options);
    let (guest, host) = (latency(&r, "guest.cyclictest"), latency(&r, "host.cyclictest"));
    for l in [guest, host] {
        assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns);
        assert!(l.ran_instead.is_empty());
    }
    assert_eq!(part(host, &[Part::WakeToRun]), host.sum_ns);
    let coarse = (guest.hist.len() + host.hist.len()) as f64;
    assert_eq!(r.scalar("lab", "samples_coarse"), Some(coarse));
    assert_eq!(r.scalar("lab", "trace_events"), None);
    assert!(r.scalar("guest", "steal").is_some());
});

live!(the_instance_is_there_during_a_run_and_gone_after_it, || -> Outcome {
    traced()?;
    let mut long = plan(BUSY, "vanilla", &["duration=1500ms"]);
    long.duration_ns = 60_000_000_000;
    let asked = std::cell::Cell::new(0);
    let seen = std::cell::RefCell::new(BTreeSet::new());
    // Stopped early.
    let stop = || {
        seen.borrow_mut().extend(instances());
        asked.set(asked.get() + 1);
        asked.get() > 20
    };
    let run = Run::new(&long, 1).until(&stop);
    whole(vcoop_lab::run(run, &Options::default())).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(seen.borrow().len(), 1, "{seen:?}");
    assert!(instances().is_empty(), "{:?}", instances());
    // Ended by a panic.
    let panics = || -> bool { panic!("the caller's own trouble") };
    let run = std::panic::AssertUnwindSafe(|| {
        vcoop_lab::run(Run::new(&long, 1).until(&panics), &Options::default())
    });
    assert!(std::panic::catch_unwind(run).is_err());
    assert!(instances().is_empty(), "{:?}", instances());
    Ok(())
});

live!(what_a_killed_run_has_left_is_removed, || -> Outcome {
    traced()?;
    let roots = ["/sys/kernel/tracing/instances", "/sys/kernel/debug/tracing/instances"];
    let root = roots.iter().map(Path::new).find(|r| r.is_dir()).unwrap();
    // Above the largest number of a process.
    let stale = root.join("vcoop-4194306");
    std::fs::create_dir(&stale).unwrap();
    run(&plan(BUSY, "vanilla", &["duration=300ms"]));
    assert!(!stale.exists());
    Ok(())
});
