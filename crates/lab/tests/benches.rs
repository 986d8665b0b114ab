//! Microbenchmarks of timers, IPIs and calls as payloads of the lab's guest, and what it is told. Without
//! a `/dev/kvm`, every test is skipped.

use crate::support::{Outcome, assert_refused, latency, plan, run, scalar, scenario, twice};
use vcoop_model::plan::Plan;
use vcoop_model::plan::virt::{GuestIdle, IpiPath};
use vcoop_model::recording::Part;

/// A VM of three vCPUs on two pCPUs, without a task.
const VM: &str = scenario!(
    "duration = '600ms'\nwarmup = '200ms'",
    r#"
[[vm]]
name = "guest"
vcpus = 3
pin = ["0", "1", "1"]
"#
);

/// The VM; `task` is all that its guest does.
fn guest(task: &str) -> Plan {
    under("vanilla", task, &[])
}

fn under(policy: &str, task: &str, set: &[&str]) -> Plan {
    plan(&format!("{VM}{task}\n"), policy, set)
}

const IPI: &str = r#"
[[vm.task]]
name = "ipi"
kind = "ipi-bench"
gap = "1ms"
cpus = "0"
"#;

live!(a_timer_bench_takes_a_sample_each_period, || -> Outcome {
    let text = "[[vm.task]]\nname = 'timer'\nkind = 'timer-bench'\ninterval = '1ms'\ncpus = '0'";
    twice(|| {
        let r = run(&guest(text));
        let (l, interrupt) = (latency(&r, "guest.timer"), latency(&r, "guest.timer.interrupt"));
        let taken = l.hist.len();
        assert_eq!(interrupt.hist.len(), taken);
        assert!(interrupt.min_ns < l.min_ns && interrupt.sum_ns < l.sum_ns);
        let (seen, rate) = (taken + l.missed, scalar(&r, "guest.timer", "rate") * 0.6);
        let near = (rate - taken as f64).abs() < 30.0;
        let told = format!("{taken} samples, {} missed of 600 periods, {rate} rounds", l.missed);
        if (530..=670).contains(&seen) && taken > 100 && near { Ok(()) } else { Err(told) }
    })?;
    // A wait that keeps the vCPU busy is another program.
    let busy = guest(&text.replace("cpus", "wait = 'busy'\ncpus"));
    assert_refused(&busy, "", "guest_idle");
    Ok(())
});

live!(an_ipi_reaches_all_and_a_multicast_takes_one_exit, || {
    let mut icr = guest(IPI);
    let mut pv = icr.clone();
    pv.vms[0].virt.ipi.path = IpiPath::Pv;
    let mut shorthand = pv.clone();
    shorthand.vms[0].virt.ipi.shorthand = true;
    for (plan, exits) in [(&icr, 0.0), (&pv, 1.0), (&shorthand, 0.0)] {
        let r = run(plan);
        let l = latency(&r, "guest.ipi");
        assert!(l.hist.len() > 10, "{} rounds", l.hist.len());
        assert_eq!(l.parts_sum[Part::CallWait as usize], l.sum_ns);
        let rate = scalar(&r, "guest.ipi", "rate");
        let multicasts = scalar(&r, "guest", "exits.multicast");
        // A round may be cut off at either end.
        let close = (multicasts - exits * rate).abs() * 0.6 <= 2.0;
        assert!(close, "{multicasts} exits in {rate} rounds");
    }
    icr.vms[0].virt.ipi.path = IpiPath::Posted;
    assert_refused(&icr, "ipi", "");
});

live!(a_request_that_goes_with_a_multicast_boosts_its_receivers, || -> Outcome {
    let text = format!("{IPI}\n[[vm.task]]\nname = 'hog'\nkind = 'hog'\ncount = 2\ncpus = '1-2'");
    twice(|| {
        let boosts = |receiver: bool| {
            let set = [
                "policy.dynamic.boost_on_injection=false".to_owned(),
                "policy.dynamic.boost_on_request=false".to_owned(),
                "policy.dynamic.boost_across_idle=false".to_owned(),
                "policy.dynamic.ipi=\"pv\"".to_owned(),
                format!("policy.dynamic.boost_receiver={receiver}"),
            ];
            let set: Vec<&str> = set.iter().map(String::as_str).collect();
            let r = run(&under("dynamic", &text, &set));
            ["boosts", "exits.multicast", "throttles"].map(|metric| scalar(&r, "guest", metric))
        };
        let [off, ..] = boosts(false);
        let [on, multicasts, throttles] = boosts(true);
        let told = format!(
            "{off} boosts without, {on} with, {multicasts} multicasts, {throttles} throttles"
        );
        // A receiver that was throttled before it took the interrupt is boosted once more.
        let most = 2.0 * multicasts + throttles + 5.0;
        if off == 0.0 && on > 10.0 && on <= most { Ok(()) } else { Err(told) }
    })
});

live!(a_client_calls_its_server_again_and_again, || -> Outcome {
    let text = "[[vm.task]]\nname = 'client'\nkind = 'client'\nserver = 'guest.serve'\nwork = '5us'\n\
                cpus = '0'\n[[vm.task]]\nname = 'serve'\nkind = 'server'\nwork = '5us'\ncpus = '1'";
    twice(|| {
        let r = run(&guest(text));
        let l = latency(&r, "guest.client");
        let service = l.parts_sum[Part::Service as usize];
        assert!(service > 0 && service < l.sum_ns, "{service} of {}", l.sum_ns);
        assert_eq!(scalar(&r, "lab", "samples_invalid"), 0.0);
        let rate = scalar(&r, "guest.client", "rate") * 0.6;
        assert!((rate / l.hist.len() as f64 - 1.0).abs() < 0.2, "{rate} of {}", l.hist.len());
        if l.hist.len() > 200 { Ok(()) } else { Err(format!("{} round trips", l.hist.len())) }
    })
});

live!(a_guest_polls_because_it_is_told_that_its_pcpus_are_its_own, || {
    // Haltpoll learns from waits of at most 200 us, and from no longer ones.
    let text = "[[vm.task]]\nname = 't'\nkind = 'cyclictest'\ninterval = '150us'\ncpus = '0'";
    let dedicated = guest(&text.replace("[[vm.task]]", "hints = 'dedicated'\n[[vm.task]]"));
    assert!(dedicated.vms[0].virt.dedicated);
    assert_eq!(dedicated.vms[0].virt.idle.guest, GuestIdle::Haltpoll);
    let r = run(&dedicated);
    let polls = scalar(&r, "guest", "guest_polls.won") + scalar(&r, "guest", "guest_polls.lost");
    assert!(polls > 1.0, "it did not find the hint in CPUID: {polls}");
    assert_eq!(run(&guest(text)).scalar("guest", "guest_polls.won"), None);
});
