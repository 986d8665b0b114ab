//! Latency of urgent tasks, as the guest's driver counts it.

use std::time::Duration;

use vcoop_model::recording::{LatencyRecord, Part, WorstSample};
use vcoop_policy::config::Ns;
use vcoop_window::{Latencies, VcpuNumbers, Window};

/// Most samples a second that a guest can plausibly have; it may report any number.
const MOST_PER_S: u64 = 1_000_000;

/// The counts of a guest's driver, from the beginning of a window.
#[derive(Debug)]
pub(crate) struct Urgent {
    window: Window,
    before: Latencies,
}

/// Latency of the guest's urgent tasks in a window.
#[derive(Debug)]
pub(crate) struct UrgentLatency {
    /// From when the timers that woke them were due until they ran.
    pub(crate) latency: LatencyRecord,
    /// Number of samples on each vCPU.
    pub(crate) by_vcpu: Vec<u64>,
}

impl Urgent {
    /// Reads the driver's counts. `None`: the guest has no driver.
    pub(crate) fn begin(pid: u32) -> Option<Self> {
        let window = vcoop_window::find(pid).ok()??;
        let before = Latencies::read(&window)?;
        Some(Self { window, before })
    }

    /// What was counted since; or why that is not known.
    pub(crate) fn end(
        &self,
        vm: &str,
        vcpus: &[VcpuNumbers],
        ns: Ns,
    ) -> Result<UrgentLatency, &'static str> {
        let now = Latencies::read(&self.window).ok_or("the guest's driver has gone")?;
        let new = now.since(&self.before).ok_or("the guest's driver was loaded anew")?;
        let count = new.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        if count > MOST_PER_S * Duration::from_nanos(ns).as_secs().max(1) {
            return Err("the guest's driver counts more than can have been");
        }
        let mut record = LatencyRecord::new(&format!("{vm}.{}", LatencyRecord::URGENT));
        for (latency, count) in &new {
            (0..*count).for_each(|_| record.book(*latency, &[0; Part::COUNT]));
        }
        // When it was is not known.
        let worst = |(latency_ns, _): &(Ns, u64)| WorstSample {
            due_ns: 0,
            latency_ns: *latency_ns,
            parts: [0; Part::COUNT],
            ran_instead: Vec::new(),
        };
        record.worst = new.iter().rev().take(1).map(worst).collect();
        let of_slot = |slot| now.of_slot(slot).wrapping_sub(self.before.of_slot(slot));
        let slots = self.window.slots_of(vcpus).into_iter();
        Ok(UrgentLatency {
            latency: record,
            by_vcpu: slots.map(|slot| slot.map_or(0, of_slot)).collect(),
        })
    }
}
