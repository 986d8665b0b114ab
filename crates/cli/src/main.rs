//! The vcoop command.

mod args;
mod calibrate;
mod capture;
mod diff;
mod doctor;
mod explain;
mod fail_if;
mod failure;
mod folder;
mod host;
mod interrupt;
mod list;
mod map;
mod options;
mod output;
mod progress;
mod report;
mod reproduce;
mod run;
mod scenario;
mod search;
mod shell;
mod single_run;
mod sweep;
mod trace;
mod validate;
mod watch;

use std::process::ExitCode;

use clap::CommandFactory;

use args::{Args, Command};

fn main() -> ExitCode {
    interrupt::unblock();
    let args = match args::parse() {
        Ok(args) => args,
        Err(end) => return args::end(&end),
    };
    let done = match args.command {
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
        Command::Completions(args) => shell::completions(&args, &Args::command()),
        Command::Man(args) => shell::man(&args, Args::command()),
        command => host::run(command),
    };
    done.map_or_else(output::fail, |()| ExitCode::SUCCESS)
}
