//! A report fits its 100 columns whatever people name things, and says what it must.

use std::fmt::Write as _;

use vcoop_experiment::result::Document;
use vcoop_report::{Style, render};

/// A scenario with long names and more policies than fit side by side.
fn scenario() -> String {
    let mut text = r#"
name = "names"
title = "A scenario whose author likes long names, and whose title goes on until it has to be broken"
duration = "60ms"
warmup = "5ms"
repeats = 5
[host]
profile = "zero"
pcpus = 1
[host.sched]
fair = "eevdf"
[[load]]
name = "a-load-of-the-host-with-a-very-long-name"
kind = "hog"
[[load]]
name = "a-probe-of-the-host-with-a-very-long-name"
kind = "cyclictest"
[[vm]]
name = "a-guest-with-a-very-long-name"
vcpus = 1
[[vm.task]]
name = "a-probe-of-the-guest-with-a-very-long-name"
kind = "cyclictest"
policy = "fifo 80"
[[vm.task]]
name = "background"
kind = "hog"
[[vm]]
name = "a-group-of-guests-with-a-name-as-long-as-can-be"
count = 12
vcpus = 1
[[vm.task]]
name = "boot"
kind = "boot"
rounds = 5
[[storm]]
name = "boots"
vm = "a-group-of-guests-with-a-name-as-long-as-can-be"
next = "start"
gap = "300us"
[compare]
policy = ["vanilla", "p0-with-a-very-long-name-indeed", "p1", "p2", "p3", "p4", "dynamic"]
[policy.p0-with-a-very-long-name-indeed]
base = "static"
means = "fifo 50"
"#
    .to_owned();
    for i in 1..5 {
        let _ = write!(text, "[policy.p{i}]\nbase = \"static\"\nmeans = \"nice -{i}\"\n");
    }
    text
}

fn measured() -> Document {
    crate::support::simulated("names", &scenario(), 0)
}

#[test]
fn nothing_is_wider_than_a_hundred_columns() {
    let report = render(&measured(), Style::default());
    assert!(!report.contains('\u{1b}'));
    for line in report.lines() {
        assert!(line.chars().count() <= 100, "{} {line}", line.chars().count());
        assert_eq!(line.trim_end(), line, "no spaces at the end");
    }
    for policy in ["vanilla", "p0-with-a-very-long", "p1", "p2", "p3", "p4", "dynamic"] {
        assert!(report.contains(policy), "{policy} in\n{report}");
    }
    // Twelve VMs are few enough for a column of their own, beside that of the tenth.
    let header = "a-group-of-g...g-as-can-be start";
    let line = report.lines().find(|line| line.contains(header)).expect("a table of the starts");
    assert_eq!(line.split("  ").filter(|s| s.contains("VM ")).count(), 2, "{line}");
    assert!(report.contains(" of 12"), "{report}");
    assert!(report.ends_with("Again: vcoop run names\n"));
}

#[test]
fn an_interrupted_run_says_so() {
    let mut document = measured();
    document.interrupted = true;
    assert!(render(&document, Style::default()).contains("Interrupted"));
    document.series.clear();
    assert!(render(&document, Style::default()).contains("Nothing was measured"));
}
