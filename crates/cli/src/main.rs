//! The vcoop command.

mod args;
#[cfg(target_os = "linux")]
mod attach;
mod calibrate;
mod capture;
#[cfg(target_os = "linux")]
mod compare;
#[cfg(target_os = "linux")]
mod conformance;
#[cfg(target_os = "linux")]
mod daemon;
mod diff;
mod doctor;
mod explain;
mod fail_if;
mod failure;
mod folder;
#[cfg(target_os = "linux")]
mod guest;
mod interrupt;
mod list;
#[cfg(target_os = "linux")]
mod living;
mod map;
#[cfg(target_os = "linux")]
mod observe;
mod output;
mod progress;
mod report;
mod reproduce;
mod run;
mod scenario;
#[cfg(target_os = "linux")]
mod scx;
mod search;
mod shell;
mod single_run;
mod sweep;
#[cfg(target_os = "linux")]
mod top;
mod trace;
mod validate;
#[cfg(target_os = "linux")]
mod vms;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use failure::Failure;

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Map(args) => map::run(&args),
        Command::Tune(args) => search::run_tune(&args),
        Command::Capacity(args) => search::run_capacity(&args),
        Command::List(args) => list::run(&args),
        Command::Schema => output::print(&list::schema()),
        Command::Capture(args) => capture::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
        command => of_host(command),
    };
    done.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

/// The commands about VMs that others run.
#[cfg(target_os = "linux")]
fn of_host(command: Command) -> Result<(), Failure> {
    match command {
        Command::Vms(args) => vms::run(&args),
        Command::Observe(args) => observe::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Attach(args) => attach::attach(&args),
        Command::Detach(args) => attach::detach(&args),
        Command::Restore(args) => attach::restore(&args),
        Command::Daemon(args) => daemon::run(&args),
        Command::Scx(args) => scx::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Guest(args) => guest::run(&args),
        Command::Keeper(args) => vcoop_daemon::keeper::run(&args.journal).map_err(Failure::run),
        other => unreachable!("{other:?} is not about VMs that others run"),
    }
}

#[cfg(not(target_os = "linux"))]
fn of_host(_: Command) -> Result<(), Failure> {
    let why = "VMs are found on Linux hosts only\n  remedy: run it on the host of the VMs";
    Err(Failure::Missing(why.to_owned()))
}
