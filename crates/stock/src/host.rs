//! Programs of this host.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::StockError;

/// Where a program is, by the search path and the folders of the administrator's programs.
///
/// # Errors
///
/// [`StockError::Missing`] with the Debian package that has it.
pub fn program(name: &str, package: &str) -> Result<PathBuf, StockError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let runs = |path: &PathBuf| {
        path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    folders.map(|folder| folder.join(name)).find(runs).ok_or_else(|| StockError::Missing {
        what: format!("`{name}` is not installed"),
        remedy: format!("apt-get install {package}"),
    })
}

/// A command whose process gets `signal` (`KILL`, `TERM`) when the calling *thread* ends in any
/// way, and not the Ctrl-C of the caller's terminal. It keeps its process id and reads nothing.
pub fn dies_with_caller(signal: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal, "--"]).arg(program);
    command.process_group(0).stdin(Stdio::null());
    command
}

/// What a command says on stdout; `what` and stderr are in the error.
pub(crate) fn output(command: &mut Command, what: &str) -> Result<String, StockError> {
    let failed = StockError::io(what);
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => output,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = format!("{}: {}", output.status, said.trim());
            return Err(failed(std::io::Error::other(said)));
        }
        Err(error) => return Err(failed(error)),
    };
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
