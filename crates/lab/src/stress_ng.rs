//! A load of the host by `stress-ng`, if installed: a common load generator, instead of the lab's own loop.
#![allow(unsafe_code, reason = "to end with its thread takes a call between fork and exec")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use vcoop_model::Missing;

use crate::environment::find_in_path;
use crate::error::{Error, RequestTarget};

/// Name of the program.
const PROGRAM: &str = "stress-ng";

/// Time limit for its worker to start. On a busy host two seconds were not enough.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether it is installed, for a load that needs it.
///
/// # Errors
///
/// [`Error::Missing`].
pub(crate) fn check(load: &str) -> Result<(), Error> {
    if find_in_path(PROGRAM).is_some() {
        return Ok(());
    }
    Err(Error::Missing(Missing {
        what: format!("{PROGRAM} is not installed, and load {load} asks for it"),
        remedy: "install stress-ng, or leave `stress_ng` out: the lab has hogs of its own"
            .to_owned(),
    }))
}

/// One CPU stressor. Dropping it ends it; so does the end of the thread that started it.
#[derive(Debug)]
pub(crate) struct Stressor {
    child: Child,
    worker: i32,
}

impl Stressor {
    /// Starts one with the CPUs and the policy of the calling thread. `method`: as in `--cpu-method`.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: it could not be started. [`Error::Unsupported`]: it ended at once, as it does
    /// when it does not know the method.
    pub(crate) fn start(method: &str, whom: &RequestTarget) -> Result<Self, Error> {
        let mut command = Command::new(PROGRAM);
        command
            .args(["--cpu", "1", "--cpu-method", method])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        // SAFETY: between fork and exec only prctl, which is async-signal-safe and takes numbers.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let failed =
            |source| Error::Kernel { asked: "exec of stress-ng", whom: whom.clone(), source };
        let mut started = Self { child: command.spawn().map_err(failed)?, worker: 0 };
        let step = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        while started.worker == 0 {
            let ended = started.child.try_wait().map_err(failed)?;
            if ended.is_some() || waited >= PATIENCE {
                let why = match ended {
                    Some(status) => {
                        format!("{PROGRAM} --cpu-method {method} ended at once ({status})")
                    }
                    None => format!("{PROGRAM} has started no worker within {PATIENCE:?}"),
                };
                return Err(Error::unsupported(whom.to_string(), why));
            }
            sleep(step);
            waited += step;
            started.worker = started.first_child();
        }
        Ok(started)
    }

    /// The thread that does the work.
    pub(crate) fn worker(&self) -> i32 {
        self.worker
    }

    /// Its worker, once it has one; else 0.
    fn first_child(&self) -> i32 {
        let pid = self.child.id();
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        text.unwrap_or_default().split_whitespace().next().and_then(|p| p.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Stressor {
    fn drop(&mut self) {
        // The group is the child's own, and the child is not reaped yet.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use vcoop_testing::{Skip, until};

    use super::{Stressor, check};
    use crate::error::RequestTarget;

    #[test]
    fn it_leaves_nothing_behind() {
        if let Err(missing) = check("hog") {
            return Skip::because(missing).tell();
        }
        let whom = RequestTarget::Thread("hog".to_owned());
        let stressor = Stressor::start("loop", &whom).unwrap();
        let of = |pid: i32| format!("/proc/{pid}");
        let (worker, parent) = (of(stressor.worker()), of(stressor.child.id() as i32));
        assert!(Path::new(&worker).exists() && worker != parent);
        drop(stressor);
        assert!(!Path::new(&parent).exists());
        // Init reaps it, soon.
        until("its worker is gone", || {
            let state = std::fs::read_to_string(format!("{worker}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        });
    }

    #[test]
    fn a_method_that_it_does_not_know_is_told() {
        if let Err(missing) = check("hog") {
            return Skip::because(missing).tell();
        }
        let e = Stressor::start("nonsense", &RequestTarget::Thread("hog".to_owned())).unwrap_err();
        assert!(e.to_string().contains("--cpu-method nonsense"), "{e}");
    }
}
