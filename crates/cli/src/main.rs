//! The vcoop command.

mod args;
mod calibrate;
mod capture;
mod doctor;
mod explain;
mod failure;
mod folder;
mod interrupt;
mod list;
mod map;
mod output;
mod progress;
mod report;
mod reproduce;
mod run;
mod scenario;
mod search;
mod shell;
mod single;
mod sweep;
mod trace;
mod validate;
#[cfg(target_os = "linux")]
mod vms;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Report(args) => report::run(&args),
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
        #[cfg(target_os = "linux")]
        Command::Vms(args) => vms::run(&args),
        #[cfg(not(target_os = "linux"))]
        Command::Vms(_) => {
            let why = "VMs are found on Linux hosts only\n  remedy: run it on the host of the VMs";
            Err(failure::Failure::Missing(why.to_owned()))
        }
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    };
    done.map_or_else(failure::Failure::report, |()| ExitCode::SUCCESS)
}
