//! Boot storms from the file to the document: curves, views, and what is left out.

use crate::common::{simulated, value};
use vcoop_experiment::result::{Curve, Document};
use vcoop_testing::rig::plans;

/// Four VMs come one by one and boot in some 20 ms; the host pings the first one.
const STORM: &str = r#"name = "storm"
title = "For tests"
duration = "500ms"
warmup = "20ms"
repeats = 3

[host]
profile = "xeon-server"
pcpus = 4

[compare]
policy = ["vanilla", "wake-boost"]

[[load]]
name = "backend"
kind = "server"
work = "20us"

[[load]]
name = "ping"
kind = "ping"
server = "desktop/0.pong"
interval = "1ms"

[[vm]]
name = "desktop"
count = 4
vcpus = 1

[[vm.task]]
name = "boot"
kind = "boot"
rounds = 100
burst = "exp 100us"
server = "host.backend"
then = "hog"

[[vm.task]]
name = "pong"
kind = "server"
policy = "fifo 9"

[[storm]]
name = "boots"
vm = "desktop"
devices = 2
backend = "host.backend"
gap = "10ms"

[[view]]
kind = "scatter"
probe = "host.ping"
most = 50

[[view]]
kind = "intervals"
at = "login 2"
length = "5ms"
"#;

fn run(text: &str, sets: &[&str], jobs: usize) -> Document {
    simulated(&plans(text, &[], sets), jobs)
}

fn curve<'d>(d: &'d Document, policy: &str, event: &str) -> &'d Curve {
    d.curves.iter().find(|c| c.place.policy == policy && c.event == event).expect("a curve")
}

fn scalar(d: &Document, policy: &str, metric: &str) -> f64 {
    value(d, metric, |k| k.policy == policy && k.probe == "desktop")
}

#[test]
fn curves_rise_over_the_vms_and_agree_with_the_scalars() {
    let d = run(STORM, &[], 2);
    assert_eq!(d.curves.len(), 4);
    for policy in ["vanilla", "wake-boost"] {
        let (start, login) = (curve(&d, policy, "start"), curve(&d, policy, "login"));
        for curve in [start, login] {
            assert_eq!((curve.planned, curve.points.len()), (4, 4));
            assert_eq!(curve.reached, [4, 4, 4]);
            assert!(curve.points.windows(2).all(|w| w[0].mean_s < w[1].mean_s));
            for point in &curve.points {
                let [low, high] = point.mean_s_ci95.expect("three repeats");
                assert!(low <= point.mean_s && point.mean_s <= high);
            }
        }
        // One at a time: the next one starts a gap after the last one's login.
        for (login, start) in login.points.iter().zip(&start.points[1..]) {
            assert!(start.mean_s > login.mean_s + 0.010);
        }
        assert_eq!(login.points[3].mean_s, scalar(&d, policy, "login_total"));
        assert_eq!(start.points[3].mean_s, scalar(&d, policy, "start_total"));
        assert_eq!(scalar(&d, policy, "logged_in"), 4.0);
    }
}

#[test]
fn a_storm_that_is_cut_off_says_how_far_it_got() {
    let d = run(STORM, &["duration=60ms", "compare.policy=[\"vanilla\"]"], 1);
    let login = curve(&d, "vanilla", "login");
    let least = *login.reached.iter().min().unwrap();
    assert!((1..4).contains(&least), "{:?}", login.reached);
    assert_eq!(login.points.len(), least as usize);
    // A lower bound: to the end of the run.
    assert_eq!(scalar(&d, "vanilla", "login_total"), 0.06);
}

#[test]
fn views_are_those_of_the_first_repeat() {
    let d = run(STORM, &[], 2);
    assert_eq!((d.scatters.len(), d.intervals.len()), (2, 2));
    let scatter = &d.scatters[0];
    assert_eq!((scatter.due_us.len(), scatter.latency_us.len()), (50, 50));
    let one = run(STORM, &["repeats=1"], 1);
    let all = one.latencies().find(|l| l.key.policy == "vanilla").unwrap();
    assert_eq!(scatter.dropped + 50, all.count);
    assert_eq!(one.scatters, d.scatters);
    // Four VMs, each with a start and a login, in order of time.
    let marks = &scatter.marks;
    assert_eq!(marks.len(), 8);
    assert!(marks.windows(2).all(|w| w[0].at_us <= w[1].at_us));
    let view = &d.intervals[0];
    let second = marks.iter().find(|m| m.event == "login" && m.number == 2).unwrap();
    assert_eq!((view.at.as_str(), view.from_us), ("login 2", second.at_us));
    assert_eq!(view.until_us, view.from_us + 5_000.0);
    assert!(view.pcpu.is_some() && !view.spans.is_empty());
    assert_eq!(view.spans[0].who, "desktop/1/vcpu0");
    assert!(view.spans.iter().all(|s| s.from_us < s.until_us && s.until_us <= 5_000.0));
}

#[test]
fn the_document_is_the_same_with_any_number_of_jobs_and_reads_back() {
    let (one, two) = (run(STORM, &[], 1).without_timing(), run(STORM, &[], 2).without_timing());
    assert_eq!(one.to_json(), two.to_json());
    let back: Document = serde_json::from_str(&one.to_json()).unwrap();
    assert_eq!(back, one);
}

#[test]
fn nothing_is_added_where_nothing_is_asked_for() {
    let text = STORM.split("[[storm]]").next().unwrap();
    let d = run(text, &["compare.policy=[\"vanilla\"]", "repeats=1"], 1);
    let json: serde_json::Value = serde_json::from_str(&d.to_json()).unwrap();
    for key in ["curves", "scatters", "intervals"] {
        assert!(json.get(key).is_none(), "{key}");
    }
    assert!(!d.scalars().any(|s| s.key.metric == "started"));
}
