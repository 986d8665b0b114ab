//! Copies of VMs, storms and views.

use vcoop_sched::config::GroupConfig;

use super::*;
use crate::plan::{
    DensityPlan, Dist, Milestone, Program, Score, StormPlan, Target, ViewPlan, ViewStart,
};

/// A dom0 with servers, and three desktops that come.
const STORM: &str = r#"name = "storm"
title = "For tests"
duration = "2s"
warmup = "100ms"
repeats = 1

[host]
profile = "celeron-n4500"

[[vm]]
name = "dom0"
vcpus = 2

[[vm.task]]
name = "toolstack"
kind = "server"
work = "5ms"

[[vm.task]]
name = "backend"
kind = "server"
count = 2
wait = "100us"

[[vm]]
name = "desktop"
count = 3
vcpus = 1
weight = 512

[[vm.task]]
name = "boot"
kind = "boot"
server = "dom0.backend"

[[vm.task]]
name = "office"
kind = "desktop"
server = "dom0.backend/1"
start = "login + 2s"

[[vm.task]]
name = "own"
kind = "server"

[[vm.task]]
name = "asks"
kind = "ping"
server = "desktop.own"

[[storm]]
name = "boots"
vm = "desktop"
batch = 2
gap = "1ms"
toolstack = "dom0.toolstack"
devices = 3
backend = "dom0.backend"
limit = "500ms"

[[view]]
kind = "intervals"
at = "start 2"

[[view]]
kind = "scatter"
probe = "desktop.asks"
"#;

fn at(vm: u32, task: u32) -> Target {
    Target::Guest { vm, task }
}

#[test]
fn copies_are_vms_of_one_label() {
    let plan = plan_of(STORM);
    let names: Vec<(&str, &str)> = plan.vms.iter().map(|v| (&*v.name, &*v.label)).collect();
    let copies = ["desktop/0", "desktop/1", "desktop/2"].map(|name| (name, "desktop"));
    assert_eq!(names[0], ("dom0", "dom0"));
    assert_eq!(names[1..], copies);
    // A cgroup each.
    assert_eq!(plan.vms[1..].iter().map(|vm| vm.group).collect::<Vec<_>>(), [0, 1, 2].map(Some));
    assert_eq!(plan.host.sched.linux().unwrap().groups, [GroupConfig::new(512); 3]);
    // Copy n calls server n modulo their number, unless one is named, or its own VM has one.
    for (i, vm) in plan.vms[1..].iter().enumerate() {
        let servers: Vec<_> =
            vm.tasks.iter().flat_map(|task| task.program.servers().collect::<Vec<_>>()).collect();
        let (boots, own) = (at(0, 1 + i as u32 % 2), at(1 + i as u32, 2));
        assert_eq!(servers, [boots, at(0, 2), own]);
    }
    // One series for all of them.
    let probes: Vec<&str> = plan.probes.iter().map(|p| p.probe.as_str()).collect();
    let all = ["desktop.office", "desktop.asks"];
    assert_eq!(probes, [all, all, all].concat());
    let one = STORM.to_owned()
        + "[[probe]]\ntask = \"desktop/1.office\"\n[[probe]]\ntask = \"desktop.asks\"\n";
    let plan = plan_of(&one);
    assert_eq!(plan.probes[0].probe, "desktop/1.office");
    assert_eq!(plan.probes[0].target, at(2, 1));
    assert_eq!(plan.probes.len(), 4);
}

#[test]
fn a_storm_becomes_what_it_says() {
    let plan = plan_of(STORM);
    let density = DensityPlan { limit_ns: 500_000_000, score: Score::P95, window_ns: None };
    assert_eq!(
        plan.storms,
        [StormPlan {
            label: "desktop".into(),
            vms: vec![1, 2, 3],
            batch: 2,
            next: Milestone::Login,
            rolling: false,
            begin_ns: 100_000_000,
            gap_ns: 1_000_000,
            toolstack: vec![at(0, 0)],
            devices: 3,
            backend: vec![at(0, 1), at(0, 2)],
            density: Some(density),
        }]
    );
    let reached = ViewStart::Reached { storm: 0, milestone: Milestone::Start, number: 2 };
    assert_eq!(
        plan.views,
        [
            ViewPlan::Intervals { pcpu: None, at: reached, length_ns: 20_000_000 },
            ViewPlan::Scatter { probe: "desktop.asks".into(), most: 100_000 },
        ]
    );
    let office = &plan.vms[1].tasks[1];
    assert!(office.after_login && office.start_ns == 2_000_000_000 && office.timer_slack_ns == 0);
    let Program::Serve { wait, .. } = plan.vms[0].tasks[1].program else { panic!() };
    assert_eq!(wait, Dist::Const(100_000));
    let with = |from: &str, to: &str| plan_of(&STORM.replacen(from, to, 1));
    assert!(
        with("vm = \"desktop\"", "vm = \"desktop\"\nstart = \"1s\"").storms[0].begin_ns
            == 1_000_000_000
    );
}

#[test]
fn what_follows_the_boot_is_chosen_by_its_program() {
    let then = |word: &str| {
        let key = format!("kind = \"boot\"\nthen = \"{word}\"");
        plan_of(&STORM.replacen("kind = \"boot\"", &key, 1))
    };
    for (word, hogs, tasks) in [("tasks", false, 4), ("hog", true, 3), ("none", false, 3)] {
        let plan = then(word);
        let vm = &plan.vms[1];
        let Program::Boot { hog, .. } = vm.tasks[0].program else { panic!() };
        assert_eq!((hog, vm.tasks.len()), (hogs, tasks), "{word}");
    }
}

#[test]
fn sets_reach_storms_by_name() {
    let sets = ["storm.boots.batch=1", "storm.boots.next=start", "vm.desktop.count=2"];
    let sets: Vec<Set> = sets.iter().map(|s| Set::parse(s).unwrap()).collect();
    let scenario = Scenario::parse("s", STORM, &sets, &Stub).unwrap_or_else(|e| panic!("{e}"));
    let storm = &scenario.plans(None).unwrap()[0].storms[0];
    assert_eq!((storm.batch, storm.next, storm.vms.len()), (1, Milestone::Start, 2));
    let off = [Set::parse("vm.desktop.enabled=false").unwrap()];
    let scenario = Scenario::parse("s", STORM, &off, &Stub).unwrap_or_else(|e| panic!("{e}"));
    let plan = &scenario.plans(None).unwrap()[0];
    assert!(plan.storms.is_empty() && plan.views.len() == 1);
}

/// Replaces `from` in [`STORM`] and expects one error with these texts.
#[track_caller]
fn refused(from: &str, to: &str, message: &str, help: &str) {
    assert!(STORM.contains(from), "{from}");
    refused_in(&STORM.replacen(from, to, 1), message, help);
}

#[track_caller]
fn refused_in(text: &str, message: &str, help: &str) {
    let found = Scenario::parse("s", text, &[], &Stub).map(|_| ()).unwrap_err();
    assert_eq!(found.0.len(), 1, "{found}");
    assert!(found.0[0].message.contains(message), "{found}");
    assert!(found.0[0].help.as_deref().unwrap_or_default().contains(help), "{found}");
}

#[test]
fn storms_that_cannot_be_are_refused() {
    refused("vm = \"desktop\"", "vm = \"desktp\"", "there is no VM `desktp`", "`desktop`?");
    refused("\"dom0.toolstack\"", "\"dom0.tool\"", "no task `dom0.tool`", "");
    refused("backend = \"dom0.backend\"", "backend = \"desktop.own\"", "cannot build itself", "");
    refused("backend = \"dom0.backend\"\n", "", "nobody sets these devices up", "add `backend");
    let boot = "[[vm.task]]
name = \"boot\"
kind = \"boot\"
server = \"dom0.backend\"
";
    let text = STORM.replacen(boot, "", 1).replacen("start = \"login + 2s\"\n", "", 1);
    refused_in(&text, "no VM `desktop` will ever log in", "next = \"start\"");
    refused("kind = \"boot\"", "kind = \"boot\"\ncount = 2", "a VM boots once", "");
    refused("gap = \"1ms\"", "start = \"50ms\"", "before anything is measured", "at least 100ms");
    refused("gap = \"1ms\"", "start = \"5s\"", "the run ends at 2100ms", "");
    refused("at = \"start 2\"", "at = \"start 4\"", "the storm has 3 VMs", "");
    refused("at = \"start 2\"", "at = \"start 0\"", "does not say which VM", "");
    refused("at = \"start 2\"", "at = \"1s\"", "which pCPU this shows", "add `pcpu");
    refused("at = \"start 2\"", "at = \"start 2\"\nstorm = \"rain\"", "no storm `rain`", "");
    refused("\"desktop.asks\"", "\"desktop.ask\"", "there is no series `desktop.ask`", "");
    refused("limit = \"500ms\"", "limit = \"0s\"", "cannot be 0", "");
    refused("count = 3", "count = 0", "out of range", "1 to 1024");
    let twice = "[[storm]]\nname = \"two\"\nvm = \"desktop\"\n\n[[view]]\nkind = \"intervals\"";
    let message = "comes in two storms";
    let text = STORM.replacen("[[view]]\nkind = \"intervals\"", twice, 1);
    let text = text.replacen("at = \"start 2\"", "at = \"start 2\"\nstorm = \"two\"", 1);
    let found = Scenario::parse("s", &text, &[], &Stub).map(|_| ()).unwrap_err();
    assert!(found.to_string().contains(message), "{found}");
}

#[test]
fn the_host_neither_boots_nor_logs_in() {
    let load = |rest: &str| format!("[[load]]\nname = \"l\"\n{rest}\n\n[[vm]]\nname = \"dom0\"");
    let boot = load("kind = \"boot\"");
    refused("[[vm]]\nname = \"dom0\"", &boot, "no kind `boot` on the host", "");
    let login = load("kind = \"hog\"\nstart = \"login\"");
    refused("[[vm]]\nname = \"dom0\"", &login, "the host logs in nowhere", "");
    refused("work = \"5ms\"", "work = \"5ms\"\nstart = \"login\"", "never logs in", "boot");
}
