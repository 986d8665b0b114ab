//! Programs of this host.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::StockError;

/// Path of a program, from the search path and the folders of system administration programs.
///
/// # Errors
///
/// [`StockError::Missing`] with the Debian package that contains it.
pub fn program(name: &str, package: &str) -> Result<PathBuf, StockError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let runs = |path: &PathBuf| {
        path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    folders.map(|folder| folder.join(name)).find(runs).ok_or_else(|| {
        let remedy = format!("apt-get install {package}");
        StockError::missing(format!("`{name}` is not installed"), remedy)
    })
}

/// A command whose process gets `signal` (`KILL`, `TERM`) when the calling *thread* ends in any way, but not the Ctrl-C
/// of the caller's terminal. It keeps its process id, and its stdin is empty.
pub fn dies_with_caller(signal: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal, "--"]).arg(program);
    command.process_group(0).stdin(Stdio::null());
    command
}

/// The stdout of a command; an error contains `what` and its stderr.
pub(crate) fn output(command: &mut Command, what: &str) -> Result<String, StockError> {
    raw_output(command, what).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// As [`output`], in bytes.
pub(crate) fn raw_output(command: &mut Command, what: &str) -> Result<Vec<u8>, StockError> {
    let failed = StockError::io(what);
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = format!("{}: {}", output.status, said.trim());
            Err(failed(std::io::Error::other(said)))
        }
        Err(error) => Err(failed(error)),
    }
}
