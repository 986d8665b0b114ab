//! The report of an observation of a VM that vcoop does not run.

use std::fs;

use vcoop_experiment::analysis::Metadata;
use vcoop_experiment::repeat_summary::RepeatSummary;
use vcoop_experiment::result::{Document, Note};
use vcoop_experiment::runner::{Measurements, PlanRuns};
use vcoop_experiment::vm::observed;
use vcoop_model::capture::NoCaptures;
use vcoop_model::plan::Plan;
use vcoop_model::recording::{LatencyRecord, Part, Parts, Recording};
use vcoop_model::running_vm::{RunningVm, plain_name};
use vcoop_model::scenario::Scenario;
use vcoop_report::data::{self, Spools};
use vcoop_report::{Style, open_metrics, render, render_html};

fn waits(probe: &str, metric: &'static str, part: Part, ns: u64) -> LatencyRecord {
    let mut record = LatencyRecord { metric, ..LatencyRecord::new(probe) };
    for i in 0..2_000 {
        let mut parts = Parts::default();
        parts[part as usize] = ns;
        let ran = [("hog", ns / 2), ("kworker", ns / 4)];
        record.take(i * 1_000_000, ns, &parts, ran.into_iter());
    }
    record
}

/// Two vCPUs for 4 s.
fn observation(name: &str) -> (Plan, Recording) {
    let living = RunningVm { name: name.to_owned(), vcpus: 2, pcpus: 2 };
    let text = living.scenario(&["vanilla".to_owned()]);
    let scenario = Scenario::parse("--", &text, &[], &NoCaptures).unwrap();
    let mut plan = scenario.plans(None).unwrap().swap_remove(0);
    plan.policy_name = "as-is".to_owned();
    plan.duration_ns = 4_000_000_000;
    let name = plain_name(name);
    let mut recording = Recording::default();
    for vcpu in 0..2 {
        let probe = format!("{name}.vcpu{vcpu}");
        recording.put(&probe, "running", "%", 12.5);
        recording.put(&probe, "halted", "%", 27.5);
        recording.put(&probe, "steal", "%", 60.0);
        recording.put(&probe, "migrations", "1/s", 3.0);
        recording.latencies.push(waits(&probe, "wait", Part::WakeToRun, 200_000));
        recording.latencies.push(waits(&probe, "preempted", Part::PreemptedToRun, 1_000_000));
    }
    recording.put(&name, "exit.HLT", "1/s", 1234.0);
    recording.put(&name, "steal", "%", 60.0);
    recording.put("host.others", "throughput", "cpu", 0.95);
    (plan, recording)
}

fn document(name: &str) -> Document {
    let (plan, recording) = observation(name);
    let note = Note { evidence: "it was dark".to_owned(), remedy: Some("a lamp".to_owned()) };
    let about = Metadata { title: "QEMU".to_owned(), notes: vec![note], ..Metadata::default() };
    observed(&plan, recording, true, about)
}

#[test]
fn where_each_vcpus_time_went_and_who_ran_instead() {
    let text = render(&document("web"), Style::default());
    let row = text.lines().find(|line| line.starts_with("  web.vcpu1 ")).expect(&text);
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(row[1..9], ["12.5", "%", "27.5", "%", "10.0", "%", "50.0", "%"], "{text}");
    assert_eq!(row[9..11], ["200", "us"], "{text}");
    for line in [
        "web: QEMU\n",
        "observed for 4.00 s\n",
        "  web.vcpu0: hog 50 %, kworker 25 %\n",
        "  Exits of web: 1230 /s: HLT 1230\n",
        "note: it was dark\n  remedy: a lamp\n",
        "host.others work",
        "web.vcpu0 preempted\n",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
    assert!(!text.contains("Best here"), "there is nothing to compare: {text}");
}

#[test]
fn what_has_no_parts_has_no_table_of_them() {
    let (plan, mut recording) = observation("web");
    let mut urgent = LatencyRecord::new("web.urgent");
    (0..2_000).for_each(|i| urgent.take(i, 30_000, &Parts::default(), std::iter::empty()));
    recording.latencies.push(urgent);
    let document = observed(&plan, recording, true, Metadata::default());
    let text = render(&document, Style::default());
    assert!(text.contains("web.urgent") && !text.contains("Where the time went"), "{text}");
}

/// A command of `vcoop compare --exec` may take longer than --each.
#[test]
fn the_shares_of_a_turn_that_lasted_longer_than_planned_add_up() {
    let mut document = document("web");
    document.duration_s = 0.5;
    let text = render(&document, Style::default());
    let row = text.lines().find(|line| line.starts_with("  web.vcpu1 ")).expect(&text);
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(row[1..9], ["12.5", "%", "27.5", "%", "10.0", "%", "50.0", "%"], "{text}");
}

#[test]
fn the_length_of_turns_is_what_was_measured() {
    let mut document = document("web");
    // A comparison, also of one policy, has a warm-up.
    document.warmup_s = 0.5;
    for (measured_s, says) in [
        (None, "1 round of 4 s after"),
        (Some([4.0, 5.25]), "1 round of 4 to 5.25 s after"),
        (Some([5.25, 5.25]), "1 round of 5.25 s after"),
    ] {
        document.measured_s = measured_s;
        let (text, page) = (render(&document, Style::default()), render_html(&document));
        assert!(text.contains(says) && page.contains(says), "{says:?} in\n{text}");
    }
}

#[test]
fn long_names_fit() {
    let text = render(&document(&"long-name-".repeat(20)), Style::default());
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn who_ran_instead_is_told_for_each_vcpu_and_policy() {
    let mut document = document("web");
    document.policies.push("dynamic".to_owned());
    let text = render(&document, Style::default());
    assert!(text.contains("  web.vcpu1 under as-is: hog 50 %, kworker 25 %\n"), "{text}");
}

#[test]
fn the_table_of_vcpus_fits_narrow_terminals() {
    let alone = document("web");
    let mut compared = document(&"long-name-".repeat(20));
    compared.policies.push("dynamic".to_owned());
    for (document, width) in [(&alone, 60), (&alone, 80), (&compared, 80)] {
        let text = render(document, Style { width, ..Style::default() });
        let own = text.lines().skip_while(|line| !line.starts_with("Where"));
        for line in own.take_while(|line| !line.starts_with("Latency")) {
            assert!(line.chars().count() <= width, "{line:?} of {width} in\n{text}");
        }
        assert!(text.contains("left out on a terminal as narrow as this: moves/s"), "{text}");
        // There are no ratios of a single policy.
        let latency =
            text.lines().find(|line| line.contains(" mean ") && !line.contains("wait mean"));
        let ratio = latency.is_some_and(|line| line.contains("p99 / ") || line.contains("ratio"));
        assert_eq!(ratio, document.policies.len() > 1, "{text}");
    }
}

#[test]
fn the_page_and_the_document_have_it_too() {
    let document = document("web");
    let page = render_html(&document);
    assert!(page.contains("<pre>") && page.contains("it was dark; remedy: a lamp"));
    let json = document.to_json();
    let again: Document = serde_json::from_str(&json).unwrap();
    assert_eq!(again, document);
    assert_eq!(again.backends, ["vm"]);
    assert_eq!(again.notes.len(), 1);
    assert!(again.verdicts.is_empty());
}

/// A vCPU has waits since wake-ups and waits since preemptions: two series of one probe.
#[test]
fn each_series_has_files_of_its_own() {
    let (plan, recording) = observation("web");
    let repeats = vec![Some(RepeatSummary::new(recording, true))];
    let runs = vec![PlanRuns { backend: "vm", host: None, plan: 0, repeats }];
    let measured = Measurements { runs, interrupted: false, failure: None, others: None };
    let folder = std::env::temp_dir().join(format!("vcoop-series-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    data::write(&folder, &Spools::new(&folder), &document("web"), &measured, &[plan]).unwrap();
    for (series, row) in [("wait", "000200 002000"), ("preempted", "001000 002000")] {
        let path = folder.join(format!("histograms/vm.web.vcpu1_{series}.txt"));
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(row) && text.contains("# Total: 000002000\n"), "{series}");
        assert!(folder.join(format!("hgrm/vm.as-is.web.vcpu1_{series}.hgrm")).exists());
    }
    let log = fs::read_to_string(folder.join("latency.hlog")).unwrap();
    assert!(log.contains("Tag=vm:as-is:web.vcpu0_preempted,"), "{log}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn each_series_has_metrics_of_its_own() {
    let text = open_metrics(&document("web"));
    let mut names: Vec<&str> = text.lines().filter_map(|l| Some(l.rsplit_once(' ')?.0)).collect();
    assert!(names.iter().any(|name| name.contains("probe=\"web.vcpu1\",metric=\"preempted\"")));
    names.sort_unstable();
    assert!(names.windows(2).all(|two| two[0] != two[1] || two[0].starts_with('#')), "{text}");
}
