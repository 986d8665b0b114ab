//! A report fits its 100 columns whatever people name things, and says what it must.

use std::fmt::Write as _;

use vcoop_experiment::deploy::Deployment;
use vcoop_experiment::result::{Document, LatencySeries, RatioIntervals, Ratios, Series, Verdict};
use vcoop_report::{Style, render, render_html};

#[test]
fn the_table_of_latencies_fits_narrow_terminals() {
    let document = crate::support::measured("");
    for (width, head, left_out) in [
        (60, "mean p99 max p99 ratio", "intervals, p50, p99.9, missed"),
        (80, "mean p99 p99.9 max missed p99 / vanilla", "intervals, p50"),
        (100, "mean p50 p99 p99.9 max missed p99 / vanilla", ""),
    ] {
        let text = render(&document, Style { width, ..Style::default() });
        let table = text.lines().skip_while(|line| *line != "Latency").skip(1);
        let table: Vec<&str> = table.take_while(|line| line.starts_with(' ')).collect();
        let words: Vec<&str> = table[0].split_whitespace().collect();
        assert_eq!(words.join(" "), head, "{text}");
        assert!(table.iter().all(|line| line.chars().count() <= width), "{text}");
        let note = format!("  left out on a terminal as narrow as this: {left_out}");
        assert!(left_out.is_empty() || text.replace("\n  ", " ").contains(note.trim()), "{text}");
    }
}

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
    document.repeats = 10;
    let text = |document: &Document| render(document, Style::default()).replace("\n  ", " ");
    let said = "each policy has 5 of 10 repeats. A ratio is of those that both policies have.";
    assert!(text(&document).contains(said) && render_html(&document).contains(said));
    for series in &mut document.series {
        let key = match series {
            Series::Latency(series) => &mut series.key,
            Series::Scalar(series) => &mut series.key,
        };
        key.repeats -= u32::from(key.policy == "dynamic");
    }
    assert!(text(&document).contains("each policy has 4 to 5 of 10 repeats."));
    document.series.clear();
    assert!(render(&document, Style::default()).contains("Nothing was measured"));
}

#[test]
fn parts_of_a_mean_add_up_to_all_of_it() {
    let report = render(&crate::support::measured(""), Style::default());
    let rows = report.lines().skip_while(|line| !line.contains("guest.rt mean"));
    let rows: Vec<&str> = rows.skip(1).take_while(|line| line.contains(" %")).collect();
    for column in 0..2 {
        let percents = rows.iter().filter(|row| !row.contains("ran instead")).map(|row| {
            row.split(" %")
                .nth(column)
                .unwrap()
                .split(' ')
                .next_back()
                .unwrap()
                .parse::<u32>()
                .unwrap()
        });
        let sum: u32 = percents.sum();
        assert!((97..=103).contains(&sum), "{sum} %\n{report}");
    }
}

#[test]
fn parts_that_are_all_shown_leave_nothing_to_others() {
    let mut document = crate::support::measured("");
    let shown = [2.3, 1.5, 1.4, 1.16, 1.0];
    for series in &mut document.series {
        if let Series::Latency(series) = series {
            let other = if series.key.policy == "dynamic" { 0.08 } else { 0.0 };
            let names =
                ["host_switch", "entry_exit", "guest_irq", "host_irq", "guest_switch", "delivery"];
            let values = shown.into_iter().chain([other]);
            series.parts_mean = names.into_iter().map(str::to_owned).zip(values).collect();
            series.mean = Some(shown.iter().sum::<f64>() + other);
        }
    }
    let report = render(&document, Style::default());
    let row = report.lines().find(|line| line.starts_with("    other")).expect(&report);
    assert!(row.contains(" 0 us   0 %"), "{row}");
}

#[test]
fn what_is_measured_decides_what_is_to_be_typed_and_limits_are_said_once() {
    let mut document = crate::support::measured("");
    let limits = document.limits.words();
    let verdict = |backend: &str, best: Option<&str>, text: String| Verdict {
        backend: backend.to_owned(),
        best: best.map(str::to_owned),
        text,
        ..document.verdicts[0].clone()
    };
    let sim = verdict("sim", Some("dynamic"), "dynamic".to_owned());
    let none = format!("none within the limits. {}", limits.trim_end_matches('.'));
    let kvm = verdict("kvm", None, none);
    document.deployments = vec![Deployment {
        policy: "dynamic".to_owned(),
        lines: vec!["vcoop attach".to_owned()],
        ..Deployment::default()
    }];
    document.verdicts = vec![sim.clone()];
    let text = |document: &Document| render(document, Style::default()).replace("\n  ", " ");
    assert!(text(&document).contains("vcoop attach"));
    document.verdicts = vec![sim, kvm];
    let said = text(&document);
    assert!(!said.contains("vcoop attach"), "{said}");
    assert_eq!(said.matches("Limits of what").count(), 1, "{said}");
}

#[test]
fn who_misses_more_periods_is_not_marked_as_better() {
    let mut document = crate::support::measured("");
    let dynamic = |document: &mut Document, change: fn(&mut LatencySeries)| {
        for series in &mut document.series {
            if let Series::Latency(series) = series
                && series.key.policy == "dynamic"
            {
                change(series);
            }
        }
    };
    let sign = |document: &Document| {
        let report = render(document, Style::default());
        let row = report.lines().skip_while(|line| line.trim() != "guest.rt").nth(2);
        row.unwrap().trim_end().chars().next_back().unwrap()
    };
    dynamic(&mut document, |series| {
        let half = Some(0.5);
        series.ratio_to_baseline = Some(Ratios { p99: half, mean: half, ..Ratios::default() });
        let interval = Some([0.4, 0.6]);
        series.ratio_ci95 =
            Some(RatioIntervals { p99: interval, mean: interval, ..RatioIntervals::default() });
    });
    assert_eq!(sign(&document), '+');
    dynamic(&mut document, |series| series.missed += series.count);
    assert_ne!(sign(&document), '+');
}
