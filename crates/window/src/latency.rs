//! The latencies that a guest's driver has counted.

use std::sync::atomic::Ordering;

use vcoop_abi::window::{LATENCY_BUCKETS, latency_from};
use vcoop_threads::Ns;

use crate::map::Window;

/// Counts of all vCPUs of a window at one time. They are the guest's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    counts: Box<[u64; LATENCY_BUCKETS]>,
    /// The driver's registration that they belong to.
    registration: u64,
}

impl Latencies {
    /// As they are now; `None`: there is no driver.
    pub fn read(window: &Window) -> Option<Self> {
        let side = window.guest_side();
        if !side.is_registered() {
            return None;
        }
        let mut counts = Box::new([0_u64; LATENCY_BUCKETS]);
        for slot in 0..side.vcpus.bounded(window.slots()) {
            let Some(page) = window.guest(slot) else { continue };
            for (sum, count) in counts.iter_mut().zip(&page.report.latency) {
                *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
            }
        }
        Some(Self { counts, registration: side.registration.bounded(u64::MAX) })
    }

    /// How many of each latency came since an earlier reading: the middle of its bucket in nanoseconds,
    /// and a count. `None`: the driver has registered anew since then.
    pub fn since(&self, before: &Self) -> Option<Vec<(Ns, u64)>> {
        if self.registration != before.registration {
            return None;
        }
        let middle = |bucket| latency_from(bucket).midpoint(latency_from(bucket + 1));
        let both = self.counts.iter().zip(before.counts.iter()).enumerate();
        let new = both.map(|(bucket, (now, before))| (middle(bucket), now.wrapping_sub(*before)));
        Some(new.filter(|(_, count)| *count > 0).collect())
    }
}
