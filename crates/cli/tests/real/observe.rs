//! `vcoop observe` of a stock guest.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use vcoop_stock::{Hogs, Options};
use vcoop_testing::{
    CheckFailure, Outcome, ProgramOutput, Skip, awaits_interrupt_handler, send, test, twice,
};
use vcoop_threads::{AffinityGuard, allowed_cpus};

use crate::cooperate::{Daemon, doorbell, driver};
use crate::rush::stopped;
use crate::vcoop::{VCOOP, guest, needs_tracefs, vcoop};

const SHORT: Duration = Duration::from_secs(10);

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
    let outcome = twice(|| -> Result<(), CheckFailure> {
        let document = vcoop(&["observe", "watched", "--for", "4s", "--json"]).or_skip()?.json();
        assert_eq!(document["schema"], "vcoop.result/1");
        assert_eq!(document["backends"][0], "vm");
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

/// A series under a policy.
fn under<'d>(document: &'d Value, policy: &str, probe: &str, metric: &str) -> &'d Value {
    let series = document["series"].as_array().unwrap();
    let own = |s: &&Value| s["probe"] == probe && s["metric"] == metric && s["policy"] == policy;
    series.iter().find(own).unwrap_or_else(|| panic!("no {probe} {metric} under {policy}"))
}

/// Statistics of the waits of vCPU 0 after its wake-ups, by policy.
fn waits(document: &Value, policy: &str) -> (f64, f64) {
    let found = under(document, policy, "asked.vcpu0", "wait");
    (found["mean"].as_f64().unwrap(), found["p99"].as_f64().unwrap_or(f64::NAN))
}

/// A guest that is throttled more often a second is too slow for its budget: the simulated guest is never throttled. It
/// has 200 deadlines a second.
const MOST_THROTTLES: f64 = 2.0;

test!("qemu", a_scenario_of_a_guest_predicts_what_compare_measures, || -> Outcome {
    let cpus = allowed_cpus().unwrap();
    let (&cpu, others) = cpus.split_last().unwrap();
    let daemon = Daemon::start();
    let options = Options {
        name: "asked".to_owned(),
        vcpu_cpus: vec![cpu],
        emulator_cpus: others.to_vec(),
        modules: vec![driver()?],
        qemu_args: doorbell(&daemon),
        ..Options::default()
    };
    let vm = guest(&options)?;
    vm.run("insmod /lib/modules/vcoop.ko", SHORT).unwrap();
    let _hogs = Hogs::start(2, cpu).unwrap();
    // Mostly asleep.
    vm.run("(timeout 300 cyclictest -q -m -p 80 -i 5000 -d 0 -t 1 >/dev/null 2>&1 &)", SHORT)
        .unwrap();
    thread::sleep(Duration::from_millis(500));
    let dir = std::env::temp_dir().join(format!("vcoop-{}-predicts", std::process::id()));
    // Of an attempt before.
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("asked.toml");
    let file = file.to_str().unwrap();
    let run = |args: &[&str]| -> Result<Value, CheckFailure> {
        let began = Instant::now();
        let said = daemon.run(args);
        eprintln!("{}: {:.0} s", args[0], began.elapsed().as_secs_f64());
        Ok(said.or_skip()?.json())
    };
    if !others.is_empty() {
        let _elsewhere = AffinityGuard::on(others);
        let refused = vcoop(&["observe", "asked", "--for", "1s", "--scenario", file]);
        refused.fails(2, &[&format!("may use CPU {cpu}, which vcoop may not")]);
        assert!(!fs::exists(file).unwrap(), "nothing was written");
    }
    // An emulated vCPU takes ten times as long for an interrupt and a switch of tasks as one under KVM.
    let policies =
        ["--policy", "vanilla,wake-boost,dynamic", "--set", "policy.dynamic.longest_boost=2ms"];
    let costs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/epyc-pvm.toml");
    let outcome = twice(|| -> Result<(), CheckFailure> {
        let args = ["observe", "asked", "--for", "8s", "--json", "--scenario", file];
        run(&[&args[..], &["--calibration", costs]].concat())?;
        let text = fs::read_to_string(file).unwrap();
        let is_urgent = text.contains("cooperative = true")
            && text.contains("policy = \"fifo 50\"")
            && text.contains("policy = [\"vanilla\", \"wake-boost\", \"dynamic\", ");
        assert!(text.contains("timer = \"exitless\"") && text.contains("of_vcpu = true"), "{text}");
        assert!(is_urgent, "{text}");
        // The CPU that wakes it is in the scenario, too.
        let pcpus = format!("pcpus = {}\n", allowed_cpus().unwrap().len());
        assert!(text.contains(&pcpus) && !text.contains("pin = [\"all\"]"), "{text}");
        let args = ["run", file, "--backend", "sim", "--json"];
        let simulated = run(&[&args[..], &policies].concat())?;
        // The thread that measures what others wait is on the vCPU's CPU, and was not when it was observed.
        let args = ["compare", "asked", "--rounds", "4", "--each", "2s", "--no-probe", "--json"];
        let measured = run(&[&args[..], &policies].concat())?;
        let of = |policy| [waits(&simulated, policy), waits(&measured, policy)];
        let [sim, real] = of("vanilla");
        let (mean, p99) = (sim.0 / real.0, sim.1 / real.1);
        let mut told = format!("vanilla {sim:?} {real:?}, ratios {mean:.2} and {p99:.2}");
        let within = |ratio: f64, most: f64| ratio < most && ratio > 1.0 / most;
        let mut holds = within(mean, 2.0) && within(p99, 2.0);
        for policy in ["wake-boost", "dynamic"] {
            let [boosted, really] = of(policy);
            let gain = (boosted.0 / sim.0) / (really.0 / real.0);
            told += &format!("; {policy} {boosted:?} {really:?}, of the gains {gain:.2}");
            // The load beside it is another one while it is compared than it was while it was observed.
            holds &= boosted.0 < 0.5 * sim.0 && really.0 < 0.5 * real.0 && within(gain, 2.0);
        }
        let throttles =
            under(&measured, "dynamic", "asked", "throttles")["value"].as_f64().unwrap();
        told += &format!("; {throttles:.2} throttles a second under dynamic");
        eprintln!("simulated and measured, mean and p99 in us: {told}");
        if !holds && throttles > MOST_THROTTLES {
            return Err(
                Skip::because(format!("the guest is too slow for its budget: {told}")).into()
            );
        }
        if holds { Ok(()) } else { Err(told.into()) }
    });
    // A longest boost that is too short for the urgent work is reported.
    let args = ["compare", "asked", "--policy", "vanilla,dynamic", "--rounds", "1", "--each", "2s"];
    let short = ["--set", "policy.dynamic.longest_boost=50us", "--no-probe", "--json"];
    if let Ok(told) = run(&[&args[..], &short].concat()) {
        let notes = told["notes"].to_string();
        let said =
            notes.contains("dynamic was throttled") && notes.contains("larger longest_boost");
        assert!(said, "{notes}");
    }
    if outcome.is_ok() {
        // It answers what would help, at this host's costs, too.
        let limit = "asked.vcpu0.wait.p99 < 500us";
        let args =
            ["--calibration", costs, "--trials", "8", "--confirm", "2", "--repeats", "2", "--json"];
        let said = vcoop(&[&["tune", file, "--slo", limit], &args[..]].concat()).well();
        let tuned = said.json();
        assert!(!tuned["confirmed"].as_array().unwrap().is_empty(), "{tuned}");
        // The vCPU and the hogs have one pCPU.
        assert!(said.err.contains("isolated was left out: "), "{said}");
        // Where real vCPUs are there, the real host is left alone all the same.
        vcoop(&["run", file, "--backend", "kvm"]).fails(3, &[]);
    }
    fs::remove_dir_all(&dir).unwrap();
    outcome
});

test!("qemu", an_interrupt_ends_an_observation_with_what_there_is, || -> Outcome {
    let vm = guest(&Options { name: "left".to_owned(), ..Options::default() })?;
    let out = std::env::temp_dir().join(format!("vcoop-{}-observe", std::process::id()));
    needs_tracefs()?;
    // What could not begin leaves nothing behind that is taken for somebody else's.
    let (pid, mut blind) = (vm.pid().to_string(), Command::new("unshare"));
    let umount = "umount -a -t tracefs,debugfs && exec \"$0\" observe \"$1\" --out \"$2\"";
    blind.args(["-m", "sh", "-c", umount, VCOOP, &pid]).arg(&out);
    ProgramOutput::by(&mut blind).fails(3, &["remedy: mount -t tracefs"]);
    let mut command = Command::new(VCOOP);
    command.args(["observe", &pid, "--for", "1h", "--out"]).arg(&out);
    let child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
    awaits_interrupt_handler(child.id());
    // It has something to show then.
    thread::sleep(Duration::from_secs(1));
    send(child.id(), Signal::INT);
    let said = ProgramOutput::from(child.wait_with_output().unwrap());
    if said.code == Some(3) {
        return Err(Skip::because(said.err));
    }
    said.fails(130, &[]);
    for text in ["Interrupted: it was observed for less", "left.vcpu0"] {
        assert!(said.out.contains(text), "{said}");
    }
    for name in ["report.html", "report.txt", "result.json", "scenario.toml", "trace.perfetto"] {
        assert!(fs::metadata(out.join(name)).unwrap().len() > 100, "{name}");
    }
    let twin = stopped("left", &[]);
    // The process tells them apart.
    vcoop(&["observe", "left"]).fails(2, &[&twin.pid().to_string()]);
    fs::remove_dir_all(out).unwrap();
    Ok(())
});
