//! `vcoop observe` of a stock guest.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use vcoop_stock::{Hogs, Options};
use vcoop_testing::{Outcome, Skip, Trouble, test, twice};
use vcoop_threads::allowed_cpus;

use crate::vcoop::{VCOOP, guest, vcoop};

fn value(document: &Value, probe: &str, metric: &str) -> f64 {
    let series = document["series"].as_array().unwrap();
    let found = series.iter().find(|s| s["probe"] == probe && s["metric"] == metric);
    let found = found.unwrap_or_else(|| panic!("no {probe} {metric}"));
    found.get("value").or(found.get("mean")).unwrap().as_f64().unwrap()
}

test!("qemu", a_guest_among_hogs_is_observed_as_schedstat_says, || -> Outcome {
    let cpus = allowed_cpus().unwrap();
    let cpu = *cpus.last().unwrap();
    let options =
        Options { name: "watched".to_owned(), vcpu_cpus: vec![cpu], ..Options::default() };
    let vm = guest(&options)?;
    let _hogs = Hogs::start(2, cpu).unwrap();
    // A guest that computes: its vCPU wants its CPU all the time.
    let control = vm.control().clone();
    let busy = thread::spawn(move || {
        let _ = control.run("while :; do :; done", Duration::from_secs(20));
    });
    thread::sleep(Duration::from_millis(500));
    let outcome = twice(|| -> Result<(), Trouble> {
        let output = vcoop(&["observe", "watched", "--for", "4s", "--json"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(3) {
            return Err(Skip::because(error).into());
        }
        assert!(output.status.success(), "{error}");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&document["schema"], &document["backends"][0]),
            (&Value::from("vcoop.result/1"), &Value::from("vm"),)
        );
        let time = |metric| value(&document, "watched.vcpu0", metric);
        let (steal, counted) = (time("steal"), time("run_delay"));
        let (running, cost) = (time("running"), value(&document, "observe", "cpu"));
        let told = format!("steal {steal} %, schedstat {counted} %; {cost} % of a CPU");
        eprintln!("{told}");
        let near = (steal / counted - 1.0).abs() < 0.02 && steal > 20.0;
        let whole = (steal + running + time("halted") - 100.0).abs() < 0.01;
        if near && whole && cost < 3.0 { Ok(()) } else { Err(told.into()) }
    });
    drop(vm);
    let _ = busy.join();
    outcome
});

test!("qemu", a_scenario_of_a_guest_says_how_long_it_waits, || -> Outcome {
    let cpu = *allowed_cpus().unwrap().last().unwrap();
    let options = Options { name: "asked".to_owned(), vcpu_cpus: vec![cpu], ..Options::default() };
    let vm = guest(&options)?;
    let _hogs = Hogs::start(2, cpu).unwrap();
    // Mostly asleep.
    let control = vm.control().clone();
    let wakes = thread::spawn(move || {
        let _ = control.run("while :; do sleep 0.005; done", Duration::from_secs(25));
    });
    thread::sleep(Duration::from_millis(500));
    let dir = std::env::temp_dir().join(format!("vcoop-{}-asked", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("asked.toml");
    let file = file.to_str().unwrap();
    let outcome = twice(|| -> Result<(), Trouble> {
        let args = ["observe", "asked", "--for", "6s", "--json", "--scenario", file];
        let output = vcoop(&args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(3) {
            return Err(Skip::because(error).into());
        }
        assert!(output.status.success() && error.contains("vcoop run "), "{error}");
        let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
        let args = ["run", file, "--backend", "sim", "--policy", "vanilla", "--json"];
        let output = vcoop(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let simulated: Value = serde_json::from_slice(&output.stdout).unwrap();
        let waits = [&seen, &simulated].map(|d| value(d, "asked.vcpu0", "wait"));
        let hogs = value(&simulated, "host.sh", "throughput");
        let told = format!("mean wait {} us, simulated {} us; hogs {hogs} CPU", waits[0], waits[1]);
        eprintln!("{told}");
        let ratio = waits[1] / waits[0];
        if (0.25..4.0).contains(&ratio) && hogs > 0.5 { Ok(()) } else { Err(told.into()) }
    });
    // It answers what would help, at this host's costs, too.
    let costs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/epyc-pvm.toml");
    let limit = "asked.vcpu0.wait.p99 < 500us";
    let args =
        ["--calibration", costs, "--trials", "8", "--confirm", "2", "--repeats", "2", "--json"];
    let output = vcoop(&[&["tune", file, "--slo", limit], &args[..]].concat());
    if outcome.is_ok() {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{error}");
        let tuned: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(!tuned["confirmed"].as_array().unwrap().is_empty(), "{tuned}");
        assert!(
            error.contains("pinned was left out: `pinned` pins vCPUs, and VM `asked` has"),
            "{error}"
        );
    }
    // Where real vCPUs are there, the real host is left alone all the same.
    let output = vcoop(&["run", file, "--backend", "kvm"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stdout));
    fs::remove_dir_all(&dir).unwrap();
    drop(vm);
    let _ = wakes.join();
    outcome
});

test!("qemu", an_interrupt_ends_an_observation_with_what_there_is, || -> Outcome {
    let vm = guest(&Options { name: "left".to_owned(), ..Options::default() })?;
    let out = std::env::temp_dir().join(format!("vcoop-{}-observe", std::process::id()));
    let mut command = Command::new(VCOOP);
    command.args(["observe", &vm.pid().to_string(), "--for", "1h", "--out"]).arg(&out);
    let child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
    thread::sleep(Duration::from_millis(1500));
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let (text, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    if output.status.code() == Some(3) {
        return Err(Skip::because(error));
    }
    assert!(sent.success());
    assert_eq!(output.status.code(), Some(130), "{error}");
    assert!(text.contains("Interrupted: it was observed for less") && text.contains("left.vcpu0"));
    for name in ["report.html", "report.txt", "result.json", "scenario.toml", "trace.perfetto"] {
        assert!(fs::metadata(out.join(name)).unwrap().len() > 100, "{name}");
    }
    let twin = guest(&Options { name: "left".to_owned(), ..Options::default() })?;
    let output = vcoop(&["observe", "left"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(&twin.pid().to_string()), "the process tells them apart: {error}");
    fs::remove_dir_all(out).unwrap();
    Ok(())
});
