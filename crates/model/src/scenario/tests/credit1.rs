//! Hosts under Xen's credit1.

use vcoop_credit1::{BoostPreempts, Burn, Domain, Patch, Patches, XenVersion};

use super::refusals::{check, check_marked};
use super::*;
use crate::plan::{HostSched, PolicyPlan};

/// dom0 and a guest on four pCPUs.
const XEN: &str = r#"name = "xen"
title = "For tests"

[host]
pcpus = 4

[host.sched]
class = "credit1"

[host.credit1]
version = "4.2"
ratelimit = "500us"

[host.credit1.patches]
boost_preempts_ratelimit = "v2"

[[vm]]
name = "dom0"
dom0 = true
vcpus = 2

[[vm.task]]
name = "toolstack"
kind = "hog"

[[vm]]
name = "guest"
vcpus = 1
weight = 512
cap = 50

[[vm.task]]
name = "hog"
kind = "hog"
"#;

#[track_caller]
fn refused(from: &str, to: &str, message: &str, help: &str) {
    assert!(XEN.contains(from), "{from}");
    check_marked(&XEN.replacen(from, to, 1), message, help);
}

#[test]
fn tables_become_a_configuration() {
    let plan = plan_of(XEN);
    let cfg = plan.host.sched.credit1().expect("credit1");
    assert_eq!((cfg.version, cfg.burn), (XenVersion::V4_2, Burn::Exact));
    assert_eq!((cfg.tslice_ns, cfg.ratelimit_ns), (30_000_000, 500_000));
    assert_eq!(cfg.patches.boost_preempts_ratelimit, BoostPreempts::V2);
    let guest = Domain { weight: 512, cap_pct: 50, privileged: false };
    assert_eq!(cfg.domains, [Domain::DOM0, guest]);
    assert_eq!((plan.vms[0].group, plan.vms[1].group), (Some(0), Some(1)));
    assert_eq!(plan.host.sched.cpus(), 4);
}

#[test]
fn nothing_but_vanilla_is_compared_unless_written() {
    let scenario = parse(XEN).expect("valid");
    let plans = scenario.plans(None).expect("valid");
    assert_eq!(plans.len(), 1);
    assert_eq!(plans[0].policy, PolicyPlan::Vanilla);
    let found = scenario.plans(Some(&["dynamic".to_owned()])).unwrap_err().to_string();
    assert!(found.contains("boosts Linux threads"), "{found}");
    let tail = "\n[compare]\npolicy = [\"vanilla\", \"dynamic\"]\n";
    let help = "there are vanilla, pinned, ratelimit-auto, and policies with `patches`";
    check(&format!("{XEN}{tail}"), "\"dynamic\"", "boosts Linux threads", help);
}

#[test]
fn a_preset_and_patches_of_ones_own() {
    let text = XEN.replace(
        "boost_preempts_ratelimit = \"v2\"",
        "preset = \"xpin-like\"\nkeep_dom0_boost = \"as-meant\"",
    );
    let want = Patches { keep_dom0_boost: Patch::AsMeant, ..Patches::xpin_like() };
    assert_eq!(plan_of(&text).host.sched.credit1().expect("credit1").patches, want);
}

#[test]
fn dom0_can_be_pinned_alone_or_to_the_exclusion_of_others() {
    let pinned = |how: &str| {
        plan_of(&XEN.replacen("pcpus = 4", &format!("pcpus = 4\ndom0_pin = \"{how}\""), 1))
            .vms
            .into_iter()
            .map(|vm| vm.vcpu_cpus)
            .collect::<Vec<Vec<Vec<u32>>>>()
    };
    assert_eq!(pinned("nopin"), [vec![Vec::<u32>::new(); 2], vec![Vec::<u32>::new()]]);
    assert_eq!(pinned("pin"), [vec![vec![0], vec![1]], vec![Vec::<u32>::new()]]);
    assert_eq!(pinned("xpin"), [vec![vec![0], vec![1]], vec![vec![2, 3]]]);
}

#[test]
fn numbers_out_of_xens_ranges() {
    refused("weight = 512", "weight = «0»", "out of range", "from 1 to 65535");
    refused("weight = 512", "weight = «65536»", "out of range", "from 1 to 65535");
    refused("cap = 50", "cap = «101»", "more than its vCPUs can use", "up to 100");
    let from = "ratelimit = \"500us\"";
    refused(from, "timeslice = «\"2s\"»", "`timeslice` cannot be 2s", "1ms to 1s");
    refused(from, "ratelimit = «\"50us\"»", "`ratelimit` cannot be 50us", "0us (off), or 100");
    refused(from, "ratelimit = «\"31ms\"»", "above the timeslice 30ms", "up to the timeslice");
    let to = "migration_delay = «\"200ms\"»";
    refused(from, to, "`migration_delay` cannot be 200ms", "100ms");
    refused(from, "burn = «\"x\"»", "`x` is not known", "exact");
    refused("= \"v2\"", "= «\"v3\"»", "`v3` is not known", "v1");
}

#[test]
fn dom0s() {
    refused("weight = 512", "dom0 = «true»", "two dom0s: `dom0`", "");
    refused("vcpus = 2", "vcpus = «0»", "0 is out of range", "from 1 to 256");
    let xpin = "pcpus = 4\ndom0_pin = \"xpin\"";
    let none = XEN.replacen("pcpus = 4", xpin, 1).replacen("dom0 = true\n", "", 1);
    check(&none, "\"xpin\"", "there is no dom0 to pin", "dom0 = true");
    let full = XEN.replacen("pcpus = 4", &xpin.replace('4', "2"), 1);
    check(&full, "\"xpin\"", "`guest` has no pCPU left", "fewer vCPUs");
    let pin = XEN.replacen("pcpus = 4", xpin, 1).replacen("weight = 512", "pin = \"0-1\"", 1);
    check(&pin, "\"0-1\"", "`guest` has no pCPU left", "another `pin`");
    let twice =
        XEN.replacen("pcpus = 4", xpin, 1).replacen("vcpus = 2", "vcpus = 2\npin = \"3\"", 1);
    check(&twice, "\"3\"", "pinned twice", "take one");
}

#[test]
fn what_means_nothing_under_the_scheduler() {
    let credit1 = "class = \"credit1\"";
    let to = format!("{credit1}\n«fair» = \"cfs\"");
    refused(credit1, &to, "a tunable of Linux", "class = \"linux\"");
    refused("pcpus = 4", "pcpus = 4\n«tick_hz» = 250", "needs Linux's scheduler", "");
    let (from, fifo) = ("weight = 512", "vcpu_policy = «\"fifo 1\"»");
    refused(from, fifo, "`vcpu_policy` needs Linux", "");
    refused(from, "means = «\"fifo 1\"»", "`means` needs Linux", "");
    refused(from, "timer = «\"exitless\"»", "`timer = \"exitless\"` needs Linux", "");
    let load = "\n[[load]]\nname = \"build\"\nkind = \"hog\"\n";
    check(&format!("{XEN}{load}"), "\"build\"", "Xen has no threads", "a task of dom0");
    let guest = "[vm.sched]\nclass = \"credit1\"\n";
    check(&format!("{XEN}{guest}"), "\"credit1\"", "a guest's scheduler is Linux's", "take");
    // The other way round.
    let small = |to: &str| SMALL.replacen("weight = 2048", to, 1);
    check(&small("cap = 10"), "10", "`cap` needs Xen's scheduler", "class = \"credit1\"");
    check(&small("dom0 = true"), "true", "`dom0` needs Xen's scheduler", "class = \"credit1\"");
    let pin = SMALL.replacen("[host]", "[host]\ndom0_pin = \"xpin\"", 1);
    check(&pin, "\"xpin\"", "`dom0_pin` needs Xen's scheduler", "");
    let table = SMALL.replacen("[[load]]", "[host.credit1]\nburn = \"exact\"\n\n[[load]]", 1);
    check(&table, "burn", "a tunable of credit1", "class = \"credit1\"");
}

/// A patched scheduler and a tuned one beside vanilla.
const ROWS: &str = r#"
[policy.v1]
base = "vanilla"
patches = ["boost-preempts-ratelimit-v1", "migrate-if-blocked-as-posted"]

[policy.xpin]
base = "v1"
patches = ["keep-dom0-boost-as-meant"]
preset = "xpin-like"

[policy.none]
base = "vanilla"
patches = []

[policy.ratelimit-auto]
max_ratelimit = "50ms"
brief = "50us"

[compare]
policy = ["vanilla", "v1", "xpin", "none", "ratelimit-auto"]
"#;

#[test]
fn patches_and_ratelimits_are_rows_of_one_table() {
    let scenario = parse(&format!("{XEN}{ROWS}")).unwrap_or_else(|found| panic!("{found}"));
    let plans = scenario.plans(None).expect("what it compares");
    let patches = |i: usize| plans[i].host.sched.credit1().expect("credit1").patches;
    let v2 = Patches { boost_preempts_ratelimit: BoostPreempts::V2, ..Patches::default() };
    assert_eq!(patches(0), v2, "those of the host");
    let v1 = Patches {
        boost_preempts_ratelimit: BoostPreempts::V1,
        migrate_if_blocked: Patch::AsPosted,
        ..Patches::default()
    };
    assert_eq!(patches(1), v1);
    let xpin = Patches { keep_dom0_boost: Patch::AsMeant, ..Patches::xpin_like() };
    assert_eq!(patches(2), xpin);
    assert_eq!(patches(3), Patches::default());
    assert_eq!(patches(4), v2, "the tuner leaves patches alone");
    let PolicyPlan::RatelimitAuto(config) = plans[4].policy else { panic!("a tuner") };
    assert_eq!((config.min_ns, config.max_ns), (100_000, 30_000_000), "at most a timeslice");
    let HostSched::Credit1(credit1) = &plans[4].host.sched else { panic!("credit1") };
    assert_eq!(credit1.short_run_ns, 50_000, "short to the scheduler is brief to the policy");
}

#[test]
fn wrong_patches_and_ratelimits() {
    let wrong = |from: &str, to: &str, message: &str, help: &str| {
        assert!(ROWS.contains(from), "{from}");
        check_marked(&format!("{XEN}{}", ROWS.replacen(from, to, 1)), message, help);
    };
    let name = "keep-dom0-boost-as-meant";
    wrong(
        "\"keep-dom0-boost-as-meant\"",
        "«\"keep-dom0-boost-as-ment\"»",
        "there is no patch",
        name,
    );
    let both = "as-posted\", «\"migrate-if-blocked-as-meant\"»";
    wrong("as-posted\"", both, "`migrate-if-blocked` is patched twice", "");
    let from = "max_ratelimit = \"50ms\"";
    wrong(from, "max_ratelimit = «\"501ms\"»", "cannot be 501ms", "100us to 500ms");
    wrong(from, "min_ratelimit = «\"99us\"»", "cannot be 99us", "0us (off), or");
    let tuner = format!("ratelimit-auto]\n{from}");
    let tuned = |key: &str, message: &str, help: &str| {
        wrong(&tuner, &format!("«ratelimit-auto»]\n{key}"), message, help);
    };
    tuned("min_ratelimit = \"2ms\"", "is above `max_ratelimit`", "");
    tuned("busy = \"49us\"", "`brief` is above `busy`", "at most");
    tuned("calm = 21", "`calm` is above `pressed`", "at most");
    wrong(from, "run = «\"1ms\"»", "`run` means nothing to `ratelimit-auto`", "confirm");
    let dynamic = "[policy.dynamic]\npatches = «[\"waker-local\"]»\n\n[policy.none]";
    wrong("[policy.none]", dynamic, "means nothing to `dynamic`", "means");
}

#[test]
fn linux_has_no_ratelimits_and_no_patches_of_xens() {
    let small = |policy: &str| {
        let own = "[policy.patched]\nbase = \"vanilla\"\npatches = [\"waker-local\"]";
        format!("{SMALL}\n{own}\n\n[compare]\npolicy = [\"vanilla\", \"{policy}\"]\n")
    };
    let needs = "class = \"credit1\"";
    check(&small("ratelimit-auto"), "\"ratelimit-auto\"", "Linux's scheduler has none", needs);
    check(&small("patched"), "\"patched\"", "patches Xen's scheduler", needs);
    let scenario = parse(SMALL).expect("valid");
    let found = scenario.plans(Some(&["ratelimit-auto".to_owned()])).unwrap_err().to_string();
    assert!(found.contains("Linux's scheduler has none"), "{found}");
}
