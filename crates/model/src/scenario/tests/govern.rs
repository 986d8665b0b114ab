//! Governors: who has which, and what is refused.

use vcoop_policy::govern::{GovernorConfig, Kind};

use super::*;
use crate::plan::{Plan, TimelineAction};

fn plans(vm: &str, policies: &[&str], rest: &str) -> Vec<Plan> {
    let scenario = with(vm, rest).unwrap_or_else(|e| panic!("{e}"));
    let names: Vec<String> = policies.iter().map(|p| (*p).to_owned()).collect();
    scenario.plans(Some(&names)).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_built_in_governor_is_a_policy() {
    let names = ["vanilla", "step", "proportional", "entitlement", "host-hint", "hotplug"];
    let plans = plans("", &names, "");
    let kinds: Vec<Option<Kind>> =
        plans.iter().map(|p| p.governor(0).map(|config| config.kind)).collect();
    let expect = [Kind::Step, Kind::Proportional, Kind::Entitlement, Kind::HostHint];
    let expect: Vec<Option<Kind>> =
        [None].into_iter().chain(expect.map(Some)).chain([Some(Kind::Entitlement)]).collect();
    assert_eq!(kinds, expect);
    assert_eq!(plans[1].governor(0).map(|c| c.interval_ns), Some(1_000_000_000), "as merged");
    assert!(plans[5].vms[0].virt.govern.means.hotplug);
}

#[test]
fn keys_arrive_and_a_vm_can_stay_out() {
    let vm = "governor_floor = 2\nentitled = 1\n";
    let rest = "[policy.quick]\nbase = 'vanilla'\ngovernor = 'step'\ngovernor_interval = '100ms'\n\
        steal_high = '10%'\nsteal_low = '1.5%'\n";
    let all = plans(vm, &["quick"], rest);
    let want = GovernorConfig {
        interval_ns: 100_000_000,
        high_bp: 1000,
        low_bp: 150,
        floor: 2,
        entitled: 1,
        ..GovernorConfig::new(Kind::Step)
    };
    assert_eq!(all[0].governor(0), Some(want));
    let group = all[0].vms[0].group.map(usize::from);
    let weight = group.and_then(|g| all[0].host.sched.linux().map(|l| l.groups[g].weight));
    assert_eq!(weight, Some(1024), "an entitlement is a weight");
    let out = plans("takes_part = false\n", &["step"], "");
    assert_eq!(out[0].governor(0), None);
}

#[test]
fn a_mask_on_the_timeline() {
    let rest = "[[at]]\ntime = '1s'\nvm = 'guest'\nprefer = '1'\n";
    let all = plans("", &["vanilla"], rest);
    let action = TimelineAction::Prefer { vm: 0, vcpus: vec![1] };
    assert!(all[0].timeline.iter().any(|event| event.action == action));
    refused("", "[[at]]\ntime = '1s'\nvm = 'guest'\nprefer = '0-7'\n", "prefer = '0-7'", "no vCPU");
    refused("", "[[at]]\ntime = '1s'\nvm = 'guest'\nprefer = ''\n", "prefer = ''", "CPU");
    refused("", "[[at]]\ntime = '1s'\nprefer = '0'\n", "prefer = '0'", "which VM gets this mask");
    let both = "[[at]]\ntime = '1s'\nvm = 'guest'\nprefer = '0'\nboost = 'on'\n";
    refused("", both, "prefer = '0'", "one thing");
}

#[test]
fn bad_governors_are_refused() {
    let floor = "governor_floor = 200\n";
    refused(floor, "", "governor_floor = 200", "a floor of 200 for");
    let high = "governor = 'step'\nsteal_high = '2%'\n";
    refused(high, "", "steal_high = '2%'", "`steal_low` (2.00%) is not below `steal_high` (2.00%)");
    let low = "governor = 'step'\nsteal_low = '50%'\n";
    refused(low, "", "steal_low = '50%'", "is not below `steal_high`");
    for wrong in ["99ms", "101s"] {
        let interval = format!("governor_interval = '{wrong}'\n");
        refused(&interval, "", &interval.replace('\n', ""), "a governor cannot look every");
    }
    refused("entitled = 200\n", "", "entitled = 200", "entitled to 200 pCPUs with");
    let policy = "[policy.bad]\nbase = 'step'\ngovernor_floor = 99\n";
    refused("", policy, "governor_floor = 99", "a floor of 99 for");
}

#[test]
fn more_than_the_capacity_cannot_be_promised() {
    let text = r#"
name = "promises"
title = "Too many"
[host]
pcpus = 4
[[vm]]
name = "a"
vcpus = 4
entitled = 3
[[vm.task]]
name = "hog"
kind = "hog"
[[vm]]
name = "b"
vcpus = 4
entitled = 2
[[vm.task]]
name = "hog"
kind = "hog"
"#;
    let error = parse(text).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("VMs are entitled to 5 pCPUs of 4"), "{error}");
    assert!(error.contains("entitled = 2"), "{error}");
    assert!(parse(&text.replace("entitled = 2", "entitled = 1")).is_ok());
}

#[test]
fn xen_has_none() {
    let text = r#"
name = "xen"
title = "Xen"
[host]
pcpus = 2
[host.sched]
class = "credit1"
[[vm]]
name = "a"
vcpus = 2
[[vm.task]]
name = "hog"
kind = "hog"
[compare]
policy = ["vanilla", "step"]
"#;
    let error = parse(text).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("goes by the steal of a Linux host"), "{error}");
    assert!(parse(&text.replace(", \"step\"", "")).is_ok());
}
