//! The command line.

pub(crate) mod host;

use std::any::TypeId;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};

use crate::calibrate::CalibrateArgs;
use crate::capture::CaptureArgs;
use crate::diff::DiffArgs;
use crate::doctor::DoctorArgs;
use crate::explain::ExplainArgs;
use crate::failure::Failure;
use crate::list::ListArgs;
use crate::map::MapArgs;
use crate::output::{fail, note};
use crate::report::ReportArgs;
use crate::reproduce::ReproduceArgs;
use crate::run::RunArgs;
use crate::search::{CapacityArgs, TuneArgs};
use crate::shell::{CompletionsArgs, ManArgs};
use crate::sweep::SweepArgs;
use crate::trace::TraceArgs;
use crate::validate::ValidateArgs;

use host::{
    AttachArgs, CompareArgs, ConformanceArgs, DaemonArgs, DetachArgs, GuestArgs, KeeperArgs,
    ObserveArgs, RestoreArgs, ScxArgs, TopArgs, VmsArgs,
};

const EXIT: &str = "\
Exit codes:
    0  done
    1  the run failed
    2  bad usage or bad scenario
    3  a needed facility is missing
    4  a condition of --fail-if is true
    5  some points of a sweep failed; their rows say why
  130  interrupted; what was measured is printed (tune and capacity have nothing)";

/// Cooperative vCPU scheduling: what each policy does to guest latency, and what the host pays.
#[derive(Debug, Parser)]
#[command(name = "vcoop", version = vcoop_build_id::BUILD, after_help = EXIT, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The arguments of this process. An option's value may begin with `-`: what reads a negative number has the better
/// message. The name of a file may not, because it is more likely an option whose neighbour lacks a value.
pub(crate) fn parse() -> Result<Args, clap::Error> {
    let with_values = |arg: clap::Arg| {
        let takes = arg.get_action().takes_values() && !arg.is_positional();
        let hyphens = takes && arg.get_value_parser().type_id() != TypeId::of::<PathBuf>();
        arg.allow_hyphen_values(hyphens)
    };
    let program = Args::command().mut_subcommands(|command| command.mut_args(with_values));
    program.try_get_matches().and_then(|matches| Args::from_arg_matches(&matches))
}

/// Ends without a command: prints help, the version, or errors in the arguments.
pub(crate) fn end(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(e) if !error.use_stderr() && e.kind() != io::ErrorKind::BrokenPipe => {
            return fail(Failure::Run(format!("cannot write to stdout: {e}")));
        }
        _ => {}
    }
    if error.kind() == ErrorKind::InvalidUtf8 {
        for arg in std::env::args_os().filter(|arg| arg.to_str().is_none()) {
            let bytes = arg.as_encoded_bytes().escape_ascii();
            note(&format!("  note: it is '{bytes}'; name a file in UTF-8"));
        }
    }
    if let Some(variable) = variable_of(error) {
        note(&format!("  note: the value is that of the environment variable {variable}"));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// The environment variable that a wrong value comes from: that of an option that was not given.
fn variable_of(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else { return None };
    let option = wrong.split([' ', '=']).next()?;
    let given = |arg: OsString| arg.to_string_lossy().split('=').next() == Some(option);
    if std::env::args_os().any(given) {
        return None;
    }
    let program = Args::command();
    let mut options = program.get_subcommands().flat_map(clap::Command::get_arguments);
    let arg = options.find(|arg| arg.get_env().is_some() && arg.get_long() == option.get(2..))?;
    Some(arg.get_env()?.to_string_lossy().into_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scenario and compare policies.
    Run(RunArgs),
    /// Show what made the worst samples late, one by one and by cause.
    Explain(ExplainArgs),
    /// Write a run as a Perfetto trace: what ran where and when, and what made samples late.
    Trace(TraceArgs),
    /// Draw report.html again from a folder that --out wrote.
    Report(ReportArgs),
    /// Compare two results: show what differs beyond noise, and what only one of them has.
    Diff(DiffArgs),
    /// Compare the simulator with published tables and claims.
    Reproduce(ReproduceArgs),
    /// Run scenarios on real vCPUs and in the simulator, and show how far the two are apart.
    Validate(ValidateArgs),
    /// Run a scenario at many points and keep the results as Parquet.
    Sweep(SweepArgs),
    /// Draw a heat map of a sweep: the best policy, or a number, over two axes.
    Map(MapArgs),
    /// Search for the policy and settings that hold limits at the least cost.
    Tune(TuneArgs),
    /// Find how many VMs, or which ratio of vCPUs to pCPUs, fit before a limit breaks.
    Capacity(CapacityArgs),
    /// List scenarios, profiles, policies, published tables and claims.
    List(ListArgs),
    /// Print the JSON schema of scenario files, for editors.
    Schema,
    /// Show which threads a capture becomes, and which events could not be converted.
    Capture(CaptureArgs),
    /// Measure what mechanisms cost on this host, and write a profile for the simulator.
    Calibrate(CalibrateArgs),
    /// Show what works on this host, what is missing, and how to get it.
    Doctor(DoctorArgs),
    /// Show the VMs that run on this host, and the threads of their vCPUs.
    Vms(VmsArgs),
    /// Show how long a running VM's vCPUs wait for a CPU, and what runs instead. Changes nothing.
    Observe(ObserveArgs),
    /// Compare policies on a running VM, in turns.
    Compare(CompareArgs),
    /// Check the driver in a running VM's guest against the protocol of the shared page.
    Conformance(ConformanceArgs),
    /// Apply a policy to a running VM until Ctrl-C, --for, or `vcoop detach`.
    Attach(AttachArgs),
    /// Remove the policy from a running VM.
    Detach(DetachArgs),
    /// Undo what a killed vcoop left changed. It can be repeated.
    Restore(RestoreArgs),
    /// Apply policies by rules to the VMs of this host, as they come and go.
    Daemon(DaemonArgs),
    /// Schedule this host's fair threads by vcoop's sched_ext scheduler until Ctrl-C or --for (experimental).
    Scx(ScxArgs),
    /// Show steal, boosts and budgets of VMs and vCPUs, kept up to date; keys apply policies.
    Top(TopArgs),
    /// In a Linux guest: use fewer vCPUs while the host takes CPU time away (steal).
    Guest(GuestArgs),
    /// Take boosts back when their owner dies; started by the owner.
    #[command(hide = true)]
    Keeper(KeeperArgs),
    /// Print shell completions.
    Completions(CompletionsArgs),
    /// Write man pages into a folder, or print the first one.
    Man(ManArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcoop_experiment::deploy;

    /// Examples in outputs are valid: clap accepts each line that begins with `vcoop`.
    #[test]
    fn printed_lines_are_taken() {
        let all = deploy::builtin();
        let lines = all.iter().flat_map(|one| &one.lines).filter(|line| line.starts_with("vcoop "));
        let mut taken = 0;
        for line in lines {
            let words = line.split(" #").next().unwrap_or(line).split_whitespace();
            let read = Args::try_parse_from(words);
            assert!(read.is_ok(), "{line}: {:?}", read.err());
            taken += 1;
        }
        assert!(taken >= 6, "{taken} lines");
    }
}
