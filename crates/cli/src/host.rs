//! The commands about running VMs of this host, and about this guest.

mod attach;
mod compare;
mod conformance;
mod daemon;
mod guest;
mod observe;
mod owner;
mod scx;
mod top;
mod vms;

use crate::args::Command;
use crate::failure::Failure;

/// Executes one of these commands.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
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
