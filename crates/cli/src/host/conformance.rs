//! `vcoop conformance`: checks a guest's driver against the protocol.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use vcoop_abi::conformance::{Rule, SampledCheck, Violation};
use vcoop_abi::window::Doorbell;
use vcoop_experiment::format;
use vcoop_text::{about, quoted};
use vcoop_window::{ExaminedVcpu, Window, examine};

use crate::args::host::ConformanceArgs;
use crate::failure::Failure;
use crate::host::owner;
use crate::interrupt::stop_flag;
use crate::output::{json, note, print_at_end, style};
use crate::scenario::{length, time};

#[derive(Debug, Serialize)]
struct Document {
    schema: &'static str,
    version: &'static str,
    for_s: f64,
    grace_us: f64,
    vcpus: Vec<Vcpu>,
    /// The rules that were judged.
    rules: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Vcpu {
    index: u64,
    changes: u64,
    boosts: u64,
    answers: u64,
    gone: bool,
    broken: Vec<Broken>,
}

#[derive(Debug, Serialize)]
struct Broken {
    rule: String,
    after_s: f64,
}

pub(crate) fn run(args: &ConformanceArgs) -> Result<(), Failure> {
    let stop = stop_flag();
    let lasts = Duration::from_nanos(length("--for", &args.time)?);
    let grace = Duration::from_nanos(time("--grace", &args.grace)?);
    if lasts < 10 * grace {
        let (time, grace) = (&args.time, &args.grace);
        return Err(Failure::usage(format!(
            "--for {time}: it has to be ten times --grace at least, which is {grace}; else little \
             could be judged"
        )));
    }
    let (name, window) = window(args)?;
    if window.is_in_use() {
        let why = format!(
            "{name}: a host cooperates with this guest already\n  remedy: {}",
            about("vcoop detach", &name, "")
        );
        return Err(Failure::Run(why));
    }
    if !window.has_host() {
        window.offer(Doorbell::default());
    }
    if !args.quiet {
        let time = format::time(lasts.as_nanos() as f64 / 1e3);
        note(&format!("vcoop: being the host of {name} for {time}; no thread is changed"));
    }
    let found = examine(&window, lasts, grace, || stop.load(Ordering::Relaxed));
    let document = Document {
        schema: "vcoop.conformance/1",
        version: env!("CARGO_PKG_VERSION"),
        for_s: lasts.as_secs_f64(),
        grace_us: grace.as_nanos() as f64 / 1e3,
        vcpus: found.iter().map(vcpu).collect(),
        rules: SampledCheck::RULES.iter().map(|rule| format!("{rule:?}")).collect(),
    };
    let text = if args.json { json(&document)? } else { document.render(&name) };
    print_at_end(&text, verdict(&name, &found))
}

/// The window of a VM, or a window file.
fn window(args: &ConformanceArgs) -> Result<(String, Window), Failure> {
    if let Some(path) = &args.window {
        let name = path.display().to_string();
        let file = OpenOptions::new().read(true).write(true).open(path);
        let window = file.and_then(|file| Window::map(&file, 0));
        let window = window.map_err(|e| Failure::usage(format!("{name}: {e}")))?;
        if !window.guest_side().is_registered() {
            let remedy = "load a driver in the guest";
            let why = format!("{name}: no guest has registered there\n  remedy: {remedy}");
            return Err(Failure::Missing(why));
        }
        return Ok((name, window));
    }
    let vm = owner::find(args.vm.as_deref().unwrap_or_default())?;
    let found = vcoop_window::find(vm.pid).map_err(Failure::run)?;
    let window = found.ok_or_else(|| {
        let name = &vm.name;
        Failure::Missing(format!(
            "no driver says anything in {name}\n  remedy: vcoop vms --how {}",
            quoted(name)
        ))
    })?;
    Ok((vm.name, window))
}

/// Violations of the judged rules.
fn broken(of: &ExaminedVcpu) -> impl Iterator<Item = Violation> + '_ {
    of.report.violations().filter(|violation| SampledCheck::RULES.contains(&violation.rule))
}

fn vcpu(of: &ExaminedVcpu) -> Vcpu {
    let one = |Violation { rule, at, .. }: Violation| Broken {
        rule: format!("{rule:?}"),
        after_s: at as f64 / 1e9,
    };
    let &ExaminedVcpu { slot: index, changes, boosts, answers, gone, .. } = of;
    Vcpu { index, changes, boosts, answers, gone, broken: broken(of).map(one).collect() }
}

fn verdict(name: &str, found: &[ExaminedVcpu]) -> Result<(), Failure> {
    let rules: BTreeSet<Rule> = found.iter().flat_map(|of| broken(of).map(|v| v.rule)).collect();
    if !rules.is_empty() {
        let list: Vec<String> = rules.iter().map(|rule| format!("{rule:?}")).collect();
        return Err(Failure::Run(format!("{name} does not conform: {}", list.join(", "))));
    }
    if found.iter().all(|of| of.changes == 0) {
        return Err(Failure::Run(format!("{name} has said nothing: nothing could be judged")));
    }
    Ok(())
}

impl Document {
    fn render(&self, name: &str) -> String {
        let mut text = format!("{name}: {}\n", format::count(self.vcpus.len() as u64, "vCPU"));
        text += "  vCPU  words changed  boosts shown  ended by it\n";
        for Vcpu { index, changes, boosts, answers, gone, broken } in &self.vcpus {
            let left = if *gone { "  went away" } else { "" };
            text += &format!("  {index:<4}  {changes:>13}  {boosts:>12}  {answers:>11}{left}\n");
            for Broken { rule, after_s } in broken {
                text += &format!("    broke {rule} after {after_s:.3} s\n");
            }
        }
        text + &style().wrap(&format!("  rules judged: {}", self.rules.join(", ")), 4)
    }
}
