//! `cargo xtask guest`: a command in a stock guest that runs, for benchmarks of `vcoop compare`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use vcoop_stock::Control;

/// Time for a command.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a line of shell in the guest behind a socket; its output and status are this program's.
pub(crate) fn run(args: &[String]) -> anyhow::Result<ExitCode> {
    let Some((socket, command)) = args.split_first().filter(|(_, command)| !command.is_empty())
    else {
        anyhow::bail!("usage: cargo xtask guest SOCKET COMMAND...");
    };
    let output = Control::new(socket).run(&command.join(" "), LIMIT)?;
    std::io::stdout().write_all(output.stdout.as_bytes())?;
    std::io::stderr().write_all(output.stderr.as_bytes())?;
    Ok(ExitCode::from(u8::try_from(output.status).unwrap_or(1)))
}
