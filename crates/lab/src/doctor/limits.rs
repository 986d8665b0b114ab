//! Findings about what this process may do, by trying it.

use std::thread;

use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use rustix::process::{Resource, getrlimit};
use vcoop_sched::config::Policy;
use vcoop_threads::{Attributes, MAY_BE_REALTIME};

use super::Finding;
use crate::environment::NoDeepIdle;
use crate::facts::{HostFacts, Root};

pub(super) fn findings(root: &Root, facts: &HostFacts) -> Vec<Finding> {
    vec![real_time(root, facts), memory(), dma_latency()]
}

fn real_time(root: &Root, facts: &HostFacts) -> Finding {
    const NAME: &str = "real-time scheduling";
    let fifo = Attributes::from_policy(&Policy::Fifo(1));
    // A thread of its own: the policy ends with it.
    let tried = thread::spawn(move || fifo.set(0)).join();
    let runtime = root.text("proc/sys/kernel/sched_rt_runtime_us");
    let limit = match facts.rt_limit {
        Some((runtime, period)) => format!("{} of {} ms", runtime / 1_000_000, period / 1_000_000),
        None => format!("sched_rt_runtime_us {}", runtime.as_deref().unwrap_or("unknown")),
    };
    match tried {
        Ok(Ok(())) => Finding::ok(NAME, format!("permitted; limit {limit}")),
        Ok(Err(e)) => Finding::missing(NAME, e.to_string(), MAY_BE_REALTIME),
        Err(_) => Finding::missing(NAME, "the try panicked", "report this"),
    }
}

fn memory() -> Finding {
    const NAME: &str = "locked memory";
    let limit = match getrlimit(Resource::Memlock).current {
        None => "unlimited".to_owned(),
        Some(bytes) => format!("{} KiB", bytes / 1024),
    };
    let locked = mlockall(MlockAllFlags::CURRENT).is_ok();
    let _ = munlockall();
    let evidence = format!("RLIMIT_MEMLOCK {limit}");
    if locked {
        return Finding::ok(NAME, format!("{evidence}; mlockall works"));
    }
    let remedy = "raise ulimit -l, or run with CAP_IPC_LOCK: without it a page fault of the host can \
                  be measured as latency";
    Finding::limited(NAME, format!("{evidence}; mlockall is refused"), remedy)
}

fn dma_latency() -> Finding {
    const NAME: &str = "/dev/cpu_dma_latency";
    if NoDeepIdle::hold().is_held() {
        return Finding::ok(NAME, "can be held at 0: no deep idle states while measuring");
    }
    let remedy = "be root, or chmod it; without it CPUs sleep deeply between events, and waking them \
                  is in the numbers";
    Finding::limited(NAME, "cannot be opened for writing", remedy)
}
