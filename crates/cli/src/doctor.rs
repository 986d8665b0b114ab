//! `vcoop doctor`: what works on this host.

use serde::Serialize;
use vcoop_experiment::backend::{Backend, Kvm};
use vcoop_lab::{Finding, HostFacts, State, host_facts, survey};

use crate::failure::Failure;
use crate::output::{json, print_at_end, style};
use crate::scenario::cpus;

/// What must work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Requirement {
    /// The micro-VM lab on /dev/kvm
    Kvm,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Exit with 3 if this does not work
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) require: Option<Requirement>,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
}

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    version: &'static str,
    findings: &'a [Finding],
    host: &'a HostFacts,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let host = host_facts();
    let mut findings = vec![simulator()];
    findings.extend(survey(&host));
    findings.extend([interrupts()].into_iter().chain(boosts_in_kernel()));
    let text = if args.json {
        let (schema, version) = ("vcoop.doctor/1", env!("CARGO_PKG_VERSION"));
        json(&Document { schema, version, findings: &findings, host: &host })?
    } else {
        findings.iter().map(show).collect()
    };
    let end = match args.require {
        None => Ok(()),
        Some(Requirement::Kvm) => Kvm.available().map_err(|why| Failure::Missing(why.to_string())),
    };
    print_at_end(&text, end)
}

/// Columns before a finding's text.
const INDENT: usize = 11;

fn show(finding: &Finding) -> String {
    let state = match finding.state {
        State::Ok => "ok",
        State::Limited => "limited",
        State::Missing => "missing",
    };
    let Finding { facility, evidence, remedy, .. } = finding;
    // The first line starts where the others do; its state goes before.
    let wrapped = style().wrap(&format!("{}{facility}: {evidence}", " ".repeat(INDENT)), INDENT);
    let mut text = format!("  {state:9}{}", wrapped.get(INDENT..).unwrap_or_default());
    if let Some(remedy) = remedy {
        text += &style().wrap(&format!("{}remedy: {remedy}", " ".repeat(INDENT)), INDENT + 2);
    }
    text
}

/// The sources of events for policies: a VM's interrupts, and its sleeps.
fn interrupts() -> Finding {
    use vcoop_bpf::{Events, Unsupported};

    let facility = "interrupts of VMs".to_owned();
    let limited = |Unsupported { what, remedy }, sleeps| Finding {
        facility: facility.clone(),
        state: State::Limited,
        evidence: format!(
            "{what}; boosts on wake-ups, of which {sleeps} tells, and by a guest's driver need none"
        ),
        remedy: Some(remedy.to_owned()),
    };
    let events = match Events::open() {
        Ok(events) => events,
        Err(why) => return limited(why, "perf"),
    };
    match events.interrupts() {
        Ok(name) => {
            let evidence = format!("heard by {name} (boost_on_injection); sleeps of vCPUs by BPF");
            Finding { facility: facility.clone(), state: State::Ok, evidence, remedy: None }
        }
        Err(why) => limited(why.clone(), "BPF"),
    }
}

/// The policies that can be decided in the kernel, if this build and the kernel support the scheduler and none is
/// loaded.
fn boosts_in_kernel() -> Option<Finding> {
    use vcoop_bpf::Scheduler;

    let state = std::fs::read_to_string("/sys/kernel/sched_ext/state").unwrap_or_default();
    if !cfg!(feature = "bpf") || state.trim() != "disabled" {
        return None;
    }
    let facility = "boosts in the kernel".to_owned();
    let (what, refused) = match (Scheduler::available(), Scheduler::answers_guests()) {
        (Err(why), _) => ("none (means ext)", why),
        (_, Err(why)) => ("wake-boost (means ext), and dynamic is refused", why),
        _ => {
            let evidence = "wake-boost and dynamic (means ext)".to_owned();
            return Some(Finding { facility, state: State::Ok, evidence, remedy: None });
        }
    };
    let evidence = format!("{what}: {}", refused.what);
    Some(Finding {
        facility,
        state: State::Limited,
        evidence,
        remedy: Some(refused.remedy.to_owned()),
    })
}

fn simulator() -> Finding {
    let jobs = cpus();
    Finding {
        facility: "simulator".to_owned(),
        state: State::Ok,
        evidence: format!("works everywhere; {jobs} at the same time here (--jobs)"),
        remedy: None,
    }
}
