//! `vcoop calibrate`: measures the costs of mechanisms on this host.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use serde::Serialize;
use vcoop_lab::{
    BASE_PROFILE, CalibrateOptions, Calibration, Distribution, Error, Measure, MeasuredNoise,
    Origin, TOLERANCE_PERCENT, calibrate,
};
use vcoop_model::plan::Ns;
use vcoop_model::profile::NoiseBy;
use vcoop_statistics::carries;

use crate::failure::Failure;
use crate::folder::{check_writable, write};
use crate::interrupt::stop_flag;
use crate::output::{json, note, print};
use crate::progress::line;
use crate::scenario::time;

#[derive(Debug, clap::Args)]
pub(crate) struct CalibrateArgs {
    /// Write the profile into this file, for `--set host.profile=FILE`
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// How long to watch what takes the CPUs of the idle host [default: 1min, 2s with --quick]
    #[arg(long, value_name = "TIME")]
    pub(crate) noise: Option<String>,
    /// Write constants only: no cost of the profile varies, and there is no noise
    #[arg(long)]
    pub(crate) constant: bool,
    /// Take some ten seconds instead of up to two minutes; fewer measures become stable
    #[arg(long)]
    pub(crate) quick: bool,
    /// Leave guests out: the host's own costs only, without KVM
    #[arg(long)]
    pub(crate) host_only: bool,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Threads of an idle host take less than this share of its CPUs.
const BUSY_PERMILLE: u64 = 20;

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    version: &'static str,
    base_profile: &'static str,
    #[serde(flatten)]
    calibration: &'a Calibration,
    profile_toml: String,
}

pub(crate) fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    if let Some(path) = &args.output {
        check_writable("-o ", path)?;
        if path.extension().is_none_or(|e| e != "toml") {
            let path = path.display();
            return Err(Failure::usage(format!("-o {path}: a profile's name ends in .toml")));
        }
    }
    let stop = stop_flag();
    let options = CalibrateOptions {
        quick: args.quick,
        host_only: args.host_only,
        noise_ns: args.noise.as_deref().map(|text| time("--noise", text)).transpose()?,
        constant: args.constant,
    };
    let progress = |name: &str| line(args.quiet, &format!("measuring {name}"));
    let found = calibrate(options, &|| stop.load(Ordering::Relaxed), &progress);
    line(args.quiet, "");
    let found = found.map_err(failure)?;
    let toml = found.profile.to_toml();
    // The file is written also if stdout has no reader.
    let printed = if args.json {
        let document = Document {
            schema: "vcoop.calibration/1",
            version: env!("CARGO_PKG_VERSION"),
            base_profile: BASE_PROFILE,
            calibration: &found,
            profile_toml: toml.clone(),
        };
        print(&json(&document)?)
    } else {
        print(&table(&found))
    };
    if !found.complete {
        if let Some(path) = &args.output {
            note(&format!(
                "vcoop: {} was not written: the profile is not complete",
                path.display()
            ));
        }
        return Err(Failure::Interrupted);
    }
    if let Some(path) = &args.output {
        write(path, |mut file| file.write_all(toml.as_bytes()))?;
    }
    if !args.quiet {
        notes(&found, args);
    }
    printed
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Missing(missing) => {
            let or = if missing.what.contains("TSC") { "" } else { ", or --host-only" };
            Failure::Missing(format!("{}\n  remedy: {}{or}", missing.what, missing.remedy))
        }
        other => Failure::run(other),
    }
}

/// The timed mechanisms, then the results.
fn table(found: &Calibration) -> String {
    let mut text = format!(
        "{}, Linux {}, {} CPUs, KVM: {}\n\n",
        found.facts.cpu_model.as_deref().unwrap_or("an unknown CPU"),
        found.facts.release,
        found.facts.cpus.len(),
        found.kvm.as_deref().unwrap_or("left out"),
    );
    let head = ["timed, ns", "median", "p10", "p90", "p99", "max", "n", "stable"];
    text += &row(head[0], &head[1..]);
    for Measure { name, distribution: d, stable, .. } in &found.measures {
        let stable = if *stable { "yes" } else { "no" };
        text +=
            &row(name, &numbers(d).iter().map(String::as_str).chain([stable]).collect::<Vec<_>>());
    }
    for seen in &found.noise {
        let what = format!("noise of {}", seen.by.name());
        text += &row(&what, &numbers(&seen.took).each_ref().map(String::as_str));
    }
    text += &format!("\n  {:22} {:>9} {:>9}  from\n", "cost, ns", "constant", "mean");
    for cost in &found.costs {
        let word = match cost.origin {
            Origin::Measured => "measured",
            Origin::Derived => "derived",
            Origin::Assumed => cost.source.split(':').next().unwrap_or("assumed"),
        };
        let mean = cost.spread.map_or_else(String::new, |spread| spread.mean().to_string());
        text += &format!("  {:22} {:>9} {mean:>9}  {word}\n", cost.key, cost.ns);
    }
    text
}

/// The quantiles of a distribution in the table. The median needs no minimum number of samples; another quantile needs
/// ten samples beyond it.
fn numbers(d: &Distribution) -> [String; 6] {
    let quantile = |value: Ns, within: u64| {
        if carries(d.n, within) { value.to_string() } else { "n/a".to_owned() }
    };
    let (p10, p90) = (quantile(d.p10_ns, 900_000), quantile(d.p90_ns, 900_000));
    let (median, max, n) = (d.median_ns.to_string(), d.max_ns.to_string(), d.n.to_string());
    [median, p10, p90, quantile(d.p99_ns, 990_000), max, n]
}

fn row(name: &str, cells: &[&str]) -> String {
    let mut line = format!("  {name:22}");
    for cell in cells {
        line += &format!(" {cell:>9}");
    }
    line + "\n"
}

/// Notes that a reader needs to judge the numbers.
fn notes(found: &Calibration, args: &CalibrateArgs) {
    for skipped in &found.skipped {
        note(&format!("not measured: {}: {}", skipped.name, skipped.why));
    }
    let assumed: Vec<&str> = found
        .costs
        .iter()
        .filter(|c| c.source.starts_with("assumed"))
        .map(|c| c.key.as_str())
        .collect();
    if !assumed.is_empty() {
        note(&format!("assumed, as in profile {BASE_PROFILE}: {}", assumed.join(", ")));
    }
    let unstable: Vec<&str> = found.measures.iter().filter(|m| !m.stable).map(|m| m.name).collect();
    if !unstable.is_empty() {
        note(&format!(
            "the last three block medians did not agree within {TOLERANCE_PERCENT} % in the time \
             there was: {}",
            unstable.join(", ")
        ));
    }
    let c = &found.conditions;
    if !c.fifo {
        note("the measuring threads were not real-time: others ran in between");
    }
    let running = c.load_average.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    if running.is_some_and(|n| n > 0.5) {
        note(&format!(
            "the host was not idle (load average {}): idle wake-ups are wake-ups over its work",
            c.load_average
        ));
    }
    let threads = found.noise.iter().find(|seen| seen.by == NoiseBy::Threads);
    if let Some(permille) = threads.map(MeasuredNoise::permille).filter(|n| *n > BUSY_PERMILLE) {
        let percent = permille as f64 / 10.0;
        note(&format!(
            "the host was not idle: threads took {percent} % of its CPUs while noise was watched, and are in the profile's \
             noise"
        ));
    }
    if found.facts.is_guest {
        note("this host is itself a guest: its hypervisor's costs are in every number");
    }
    match &args.output {
        Some(path) => note(&format!(
            "wrote {0}; simulate this host with --set host.profile={0}",
            path.display()
        )),
        None => note("-o FILE.toml writes the profile, for --set host.profile=FILE.toml"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Distribution, numbers};

    #[test]
    fn quantiles_of_few_samples_are_not_shown() {
        let d =
            Distribution { n: 2, median_ns: 5, p10_ns: 1, max_ns: 9, ..Distribution::default() };
        assert_eq!(numbers(&d), ["5", "n/a", "n/a", "n/a", "9", "2"]);
        let d = Distribution { n: 100, p90_ns: 8, ..d };
        assert_eq!(numbers(&d), ["5", "1", "8", "n/a", "9", "100"]);
    }
}
