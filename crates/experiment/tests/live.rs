//! Experiments on this host's `/dev/kvm`. Without one, they are skipped.

use vcoop_experiment::backend::{Backend, Kvm};
use vcoop_model::builtin::builtin_scenario;
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;
use vcoop_testing::rig::{plans, scalar};
use vcoop_testing::{Outcome, Skip, main, need_kvm, test, twice};

test!("kvm", governors_run_on_real_vcpus, || -> Outcome {
    need_kvm(vcoop_lab::available())?;
    let policies = ["vanilla", "entitlement", "step", "host-hint"];
    // The neighbour computes all the time: what is compared does not hang on when a run began.
    let sets = [
        "duration=1500ms",
        "warmup=1s",
        "vm.web.governor_interval=200ms",
        "vm.neighbour.governor_interval=200ms",
        "vm.neighbour.task.compute.period=\"200ms\"",
        "vm.neighbour.task.compute.on=\"200ms\"",
    ];
    let plans = plans(builtin_scenario("governor-live").unwrap(), &policies, &sets);
    Kvm.check(&plans[0]).map_err(Skip::because)?;
    twice(|| {
        let of = |policy: &str| {
            let plan = plans.iter().find(|p| p.policy_name == policy).unwrap();
            let ran = Kvm.run(Run::new(plan, 1));
            let (recording, failure) = ran.unwrap_or_else(|e| panic!("{policy}: {e}"));
            assert_eq!(failure, None, "{policy}");
            recording
        };
        let both =
            |r: &Recording, metric| scalar(r, "web", metric) + scalar(r, "neighbour", metric);
        let vanilla = of("vanilla");
        for policy in &policies[1..] {
            let r = of(policy);
            let [used, preempted, steal] =
                ["vcpus_used", "preemptions", "steal"].map(|m| both(&r, m));
            eprintln!(
                "{policy}: {used:.2} of 4 vCPUs, {preempted:.0} preemptions a second, {steal:.0} %"
            );
            // `step` gives up one vCPU each time that it looks.
            if used > 3.4 {
                return Err(format!("{policy}: {used} vCPUs used of 4, on 2 pCPUs"));
            }
            // Generous: other processes of this host preempt vCPUs too.
            let [a, b] = ["steal", "preemptions"].map(|m| both(&r, m) / both(&vanilla, m));
            if a > 0.8 || b > 1.2 {
                return Err(format!("{policy}: {a} of the steal, {b} of the preemptions"));
            }
        }
        Ok(())
    })
});
