//! The kernel's limit of real-time CPU time.

use std::fs;

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::Ns;
use crate::thread::gettid;

/// CPU time that the threads of a thread's process may use under a real-time policy without sleeping (`RLIMIT_RTTIME`),
/// in nanoseconds; `None`: any. Beyond it the kernel sends the process SIGXCPU, or SIGKILL. Sessions of GNOME and
/// libraries for audio set such a limit, which programs inherit.
pub fn real_time_limit(tid: i32) -> Option<Ns> {
    // Every process may read it; prlimit(2) would need privileges.
    let limits = fs::read_to_string(format!("/proc/{tid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max realtime timeout"))?;
    let us: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(us.saturating_mul(1_000))
}

/// Lifts this limit for this process, and those that it starts from now on. Returns whether there is none any more: the
/// kernel lets only the privileged exceed a hard limit.
pub fn lift_real_time_limit() -> bool {
    setrlimit(Resource::Rttime, Rlimit { current: None, maximum: None }).is_ok()
        || real_time_limit(gettid()).is_none()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use vcoop_testing::{Skip, until};

    use super::real_time_limit;

    #[test]
    fn a_limit_of_another_process_is_read() {
        for (limit, ns) in [("unlimited", None), ("200000:", Some(200_000_000)), ("0:", Some(0))] {
            let mut command = Command::new("prlimit");
            command.args([&format!("--rttime={limit}"), "sleep", "60"]);
            let mut process = match command.spawn() {
                Ok(process) => process,
                Err(why) => return Skip::because(why).tell(),
            };
            let tid = process.id().cast_signed();
            until(format_args!("its limit is {limit}"), || real_time_limit(tid) == ns);
            process.kill().unwrap();
            process.wait().unwrap();
        }
        assert_eq!(real_time_limit(i32::MAX), None, "there is no such thread");
    }
}
