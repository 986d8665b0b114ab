//! `cargo xtask guest`: runs a command in a running stock guest, for benchmarks of `vcoop compare`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use vcoop_stock::Control;

/// Time limit of a command.
const LIMIT: Duration = Duration::from_secs(300);

/// A command in the guest of a demo
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Socket of the guest's control line
    socket: String,
    /// A line of shell
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs a line of shell in the guest behind a socket, and passes on its output and status.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let output = Control::new(&args.socket).run(&args.command.join(" "), LIMIT)?;
    std::io::stdout().write_all(output.stdout.as_bytes())?;
    std::io::stderr().write_all(output.stderr.as_bytes())?;
    Ok(ExitCode::from(u8::try_from(output.status).unwrap_or(1)))
}
