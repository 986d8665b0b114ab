//! A scheduler that was loaded as BPF, below `/sys/kernel/sched_ext`.

use std::fmt;

use serde::Serialize;

use super::Root;

/// A loaded sched_ext scheduler. Its class is below the fair one, and so below real-time and
/// deadline threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SchedExt {
    /// Its name.
    pub ops: String,
    /// Whether it schedules all threads that the fair class would (SCHED_OTHER, SCHED_BATCH,
    /// SCHED_IDLE), rather than those of SCHED_EXT only (`SCX_OPS_SWITCH_PARTIAL`). Then nice values
    /// and slices do nothing unless it reads them.
    pub takes_fair: bool,
}

impl fmt::Display for SchedExt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = if self.takes_fair { "all fair threads" } else { "SCHED_EXT threads only" };
        write!(f, "{}, {threads}", self.ops)
    }
}

/// The loaded scheduler, if there is one.
pub(crate) fn read(root: &Root) -> Option<SchedExt> {
    let dir = "sys/kernel/sched_ext";
    let file = |file: &str| root.text(&format!("{dir}/{file}"));
    (file("state")? == "enabled").then(|| SchedExt {
        ops: file("root/ops").unwrap_or_else(|| "unnamed".to_owned()),
        // All threads are the default of a scheduler.
        takes_fair: file("switch_all").as_deref() != Some("0"),
    })
}
