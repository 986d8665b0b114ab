//! The latencies that a guest's driver has counted.

use std::sync::atomic::{AtomicU64, Ordering};

use vcoop_abi::window::{LATENCY_BUCKETS, latency_from};
use vcoop_threads::Ns;

use crate::map::Window;

/// Counts of the vCPUs of a window at one time. The guest reports them, so they are not trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    /// By slot.
    counts: Vec<[u64; LATENCY_BUCKETS]>,
    /// The driver's registration that they belong to.
    registration: u64,
}

impl Latencies {
    /// Reads the counts; `None`: there is no driver.
    pub fn read(window: &Window) -> Option<Self> {
        let side = window.guest_side();
        if !side.is_registered() {
            return None;
        }
        let slots = 0..side.vcpus.bounded(window.slots());
        let load = |bucket: &AtomicU64| bucket.load(Ordering::Relaxed);
        let counts = slots
            .map_while(|slot| window.guest(slot))
            .map(|page| page.report.latency.each_ref().map(load));
        Some(Self { counts: counts.collect(), registration: side.registration.bounded(u64::MAX) })
    }

    /// Latencies since an earlier reading: the middle of each bucket in nanoseconds, and a count. `None`: the driver
    /// has registered anew since then.
    pub fn since(&self, before: &Self) -> Option<Vec<(Ns, u64)>> {
        if self.registration != before.registration {
            return None;
        }
        let middle = |bucket| latency_from(bucket).midpoint(latency_from(bucket + 1));
        let sum = |of: &Self, bucket: usize| {
            of.counts.iter().fold(0_u64, |sum, slot| sum.wrapping_add(slot[bucket]))
        };
        let new = (0..LATENCY_BUCKETS)
            .map(|bucket| (middle(bucket), sum(self, bucket).wrapping_sub(sum(before, bucket))));
        Some(new.filter(|(_, count)| *count > 0).collect())
    }

    /// Number of latencies of a vCPU up to this reading.
    pub fn of_slot(&self, slot: u64) -> u64 {
        let slot = usize::try_from(slot).ok().and_then(|slot| self.counts.get(slot));
        slot.map_or(0, |counts| counts.iter().fold(0, |sum, count| sum.wrapping_add(*count)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::sync::atomic::Ordering;

    use super::Latencies;
    use crate::map::Window;
    use vcoop_abi::window::{WindowHeader, latency_from};
    use vcoop_abi::{Header, Word};

    #[test]
    fn what_came_since_is_counted_by_latency_and_by_vcpu() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 16).unwrap();
        let window = Window::map(&file, 0).unwrap();
        assert_eq!(Latencies::read(&window), None, "no driver");
        let write =
            |at: usize, word: u64| file.write_all_at(&word.to_le_bytes(), at as u64).unwrap();
        write(std::mem::offset_of!(WindowHeader, guest), Header::OURS.to_word());
        write(std::mem::offset_of!(WindowHeader, vcpus), 2);
        let count = |slot, bucket: usize, more| {
            window.guest(slot).unwrap().report.latency[bucket].fetch_add(more, Ordering::Relaxed);
        };
        // It has counted before, nearly as far as it can.
        count(0, 40, u64::MAX - 1);
        let before = Latencies::read(&window).unwrap();
        count(0, 40, 3);
        count(1, 40, 2);
        count(1, 7, 4);
        let now = Latencies::read(&window).unwrap();
        let middle = |bucket| u64::midpoint(latency_from(bucket), latency_from(bucket + 1));
        assert_eq!(now.since(&before), Some(vec![(middle(7), 4), (middle(40), 5)]));
        assert_eq!([now.of_slot(0), now.of_slot(1), now.of_slot(2)], [1, 6, 0]);
        write(std::mem::offset_of!(WindowHeader, registration), 1);
        assert_eq!(Latencies::read(&window).unwrap().since(&before), None, "loaded anew");
    }
}
