//! Runs a command during a measurement, and reads its output.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use vcoop_model::recording::Scalar;

use crate::result::{EXEC, EXEC_METRIC};

/// A command that takes this much longer than the measurement hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most bytes that are read of its output.
const MOST_BYTES: u64 = 1 << 20;
/// Most values.
const MOST_VALUES: usize = 256;

/// A running command, which is killed on drop.
#[derive(Debug)]
pub(super) struct Exec {
    child: Child,
    line: String,
    /// Files, so that a command with much output does not block.
    stdout: File,
    stderr: File,
    until: Instant,
}

impl Exec {
    /// Starts a shell command, with the VM's name, the policy and the length of the measurement in seconds in
    /// `VCOOP_VM`, `VCOOP_POLICY` and `VCOOP_EACH_S`.
    pub(super) fn start(
        line: &str,
        vm: &str,
        policy: &str,
        each: Duration,
    ) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("--exec {line:?}: {e}");
        let (stdout, stderr) = (tempfile::tempfile(), tempfile::tempfile());
        let (stdout, stderr) = (stdout.map_err(failed)?, stderr.map_err(failed)?);
        let mut command = Command::new("sh");
        command.arg("-c").arg(line).env("VCOOP_VM", vm).env("VCOOP_POLICY", policy);
        command.env("VCOOP_EACH_S", each.as_secs_f64().to_string());
        command.stdin(Stdio::null()).stdout(stdout.try_clone().map_err(failed)?);
        // A process group of its own: Ctrl-C comes to this process only, and the whole group can be ended.
        let child = command.stderr(stderr.try_clone().map_err(failed)?).process_group(0).spawn();
        let child = child.map_err(failed)?;
        let until = Instant::now() + each + PATIENCE;
        Ok(Self { child, line: line.to_owned(), stdout, stderr, until })
    }

    /// Whether it still runs.
    ///
    /// # Errors
    ///
    /// It hangs.
    pub(super) fn is_running(&mut self) -> Result<bool, String> {
        let over = self.child.try_wait().map_err(|e| e.to_string())?.is_some();
        if !over && Instant::now() > self.until {
            let line = &self.line;
            return Err(format!("--exec {line:?} does not end; it was killed"));
        }
        Ok(!over)
    }

    /// Its output, once it has ended: `NAME=NUMBER`, one a line, and the first line that looks like that without a
    /// number. Other lines are ignored.
    ///
    /// # Errors
    ///
    /// It failed, or printed no number.
    pub(super) fn end(mut self) -> Result<(Values, Option<String>), String> {
        let status = self.child.wait().map_err(|e| e.to_string())?;
        let line = &self.line;
        if !status.success() {
            let said = text(&mut self.stderr);
            let last = said.lines().rfind(|line| !line.trim().is_empty());
            let last = last.map_or_else(String::new, |last| format!(": {last}"));
            return Err(format!("--exec {line:?}: {status}{last}"));
        }
        let (values, passed_over) = values(&text(&mut self.stdout));
        if values.is_empty() {
            let instead = passed_over.map_or_else(String::new, |said| format!(", but {said:?}"));
            return Err(format!("--exec {line:?} printed no NAME=NUMBER{instead}"));
        }
        Ok((values, passed_over))
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.take(MOST_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// By probe and metric.
type Values = BTreeMap<(String, String), Scalar>;

/// The values of a text, and the first line `NAME=...` without one. The unit is the end of the name.
fn values(text: &str) -> (Values, Option<String>) {
    let mut values = BTreeMap::new();
    let mut passed_over = None;
    for line in text.lines() {
        let Some((name, number)) = line.split_once('=') else { continue };
        let name = name.trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let named = !name.is_empty() && name.len() <= 64 && name.chars().all(plain);
        let number = number.trim().parse::<f64>().ok().filter(|n| n.is_finite());
        let (true, Some(value)) = (named && values.len() < MOST_VALUES, number) else {
            if named && passed_over.is_none() {
                passed_over = Some(line.trim().chars().take(80).collect());
            }
            continue;
        };
        let unit = ["us", "ns", "ms", "s"].into_iter().find(|unit| {
            name.strip_suffix(unit)
                .is_some_and(|rest| rest.ends_with('_') && !rest.ends_with("per_"))
        });
        let scalar = Scalar { unit: unit.unwrap_or("count"), value };
        values.insert((format!("{EXEC}{name}"), EXEC_METRIC.to_owned()), scalar);
    }
    (values, passed_over)
}

#[cfg(test)]
mod tests {
    use super::{Exec, values};
    use std::time::Duration;

    fn run(line: &str) -> Result<Vec<(String, &'static str, f64)>, String> {
        let mut exec = Exec::start(line, "web", "vanilla", Duration::from_secs(1))?;
        while exec.is_running()? {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (values, _) = exec.end()?;
        Ok(values.into_iter().map(|((probe, _), s)| (probe, s.unit, s.value)).collect())
    }

    #[test]
    fn what_is_printed_is_taken() {
        let line = "echo noise; echo p99_us=12.5; echo rate_per_s=3; echo ' n = 2'; echo bad=x; \
                    echo \"$VCOOP_VM-$VCOOP_POLICY-$VCOOP_EACH_S\"; echo inf=inf";
        let own = |name: &str, unit, value| (format!("exec.{name}"), unit, value);
        assert_eq!(
            run(line).unwrap(),
            [own("n", "count", 2.0), own("p99_us", "us", 12.5), own("rate_per_s", "count", 3.0)]
        );
        assert_eq!(run("echo $VCOOP_EACH_S=1 >/dev/null; echo v=$VCOOP_EACH_S").unwrap()[0].2, 1.0);
    }

    #[test]
    fn what_fails_is_said() {
        let why = run("echo it broke >&2; exit 3").unwrap_err();
        assert!(why.contains("exit status: 3") && why.ends_with("it broke"), "{why}");
        assert!(run("exit 3").unwrap_err().ends_with("exit status: 3"), "it said nothing");
        assert!(run("true").unwrap_err().contains("printed no NAME=NUMBER"));
        assert!(run("echo a=x").unwrap_err().ends_with("printed no NAME=NUMBER, but \"a=x\""));
        let (taken, passed_over) = values("a=1\na=1\nhttp://x?b=1\nc = nan\nd=\n");
        assert_eq!((taken.len(), passed_over.as_deref()), (1, Some("c = nan")));
    }
}
