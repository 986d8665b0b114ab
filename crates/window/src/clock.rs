//! Converts a guest's TSC to this host's time.

use vcoop_threads::Ns;

/// How long a sample is used. After that a rate that is slightly off, or a guest's TSC that was set, no longer matters.
const EPOCH_NS: Ns = 10_000_000_000;

/// A guest whose TSC rate differs from the host's by at most one part in this many has the host's TSC, with an offset.
const SAME_RATE: u64 = 200;

/// Offset and rate of a guest's TSC.
///
/// A guest stores its TSC, and the host sees that some time later, never earlier. So of all samples the one with the
/// least delay gives the best offset; its error is that delay.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    khz: u64,
    /// The sample with the least delay of the last epoch, and that of this epoch.
    before: Option<Sample>,
    best: Option<Sample>,
    began: Ns,
}

/// A TSC value of the guest, and when the host saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    tsc: u64,
    seen: Ns,
}

impl Clock {
    /// For a guest that reports this TSC rate, on a host with that one.
    pub fn new(guest_khz: u64, host_khz: u32) -> Self {
        let host = u64::from(host_khz).max(1);
        let same = guest_khz.abs_diff(host) <= host / SAME_RATE;
        Self { khz: if same { host } else { guest_khz.max(1) }, before: None, best: None, began: 0 }
    }

    /// Adds a TSC value that the host has seen at `seen`.
    pub fn sample(&mut self, tsc: u64, seen: Ns) {
        let sample = Sample { tsc, seen };
        if seen.saturating_sub(self.began) >= EPOCH_NS {
            (self.began, self.before, self.best) = (seen, self.best, None);
        }
        let later = |than: Sample| self.delay(sample, than) >= 0;
        if self.best.is_none_or(|best| !later(best)) {
            self.best = Some(sample);
        }
    }

    /// How much longer `sample` took to be seen than `than`, in nanoseconds.
    fn delay(&self, sample: Sample, than: Sample) -> i64 {
        let host = sample.seen.wrapping_sub(than.seen).cast_signed();
        host.saturating_sub(self.ns(sample.tsc.wrapping_sub(than.tsc).cast_signed()))
    }

    fn ns(&self, ticks: i64) -> i64 {
        i64::try_from(i128::from(ticks) * 1_000_000 / i128::from(self.khz)).unwrap_or(i64::MAX)
    }

    /// Whether there is a sample.
    pub fn is_set(&self) -> bool {
        self.best.or(self.before).is_some()
    }

    /// Host time of a TSC value of the guest; `None`: there is no sample yet, or the time is not within an hour.
    pub fn time_of(&self, tsc: u64) -> Option<Ns> {
        const HOUR: i64 = 3_600_000_000_000;
        let best = match (self.best, self.before) {
            (Some(best), Some(before)) if self.delay(before, best) < 0 => before,
            (best, before) => best.or(before)?,
        };
        let after = self.ns(tsc.wrapping_sub(best.tsc).cast_signed());
        (-HOUR..HOUR).contains(&after).then(|| best.seen.checked_add_signed(after)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn the_sample_that_was_seen_soonest_counts() {
        // 2 GHz; the guest began at TSC 1000 when the host's time was 1 s.
        let mut clock = Clock::new(2_001_000, 2_000_000);
        assert_eq!(clock.time_of(5), None);
        let tsc = |ns: u64| 1_000 + (ns - 1_000_000_000) * 2;
        for (at, delay) in
            [(1_100_000_000, 40_000), (1_200_000_000, 15_000), (1_300_000_000, 60_000)]
        {
            clock.sample(tsc(at), at + delay);
        }
        assert_eq!(clock.time_of(tsc(1_400_000_000)), Some(1_400_015_000));
        // Also in the next epoch, until that has one that is as good.
        clock.sample(tsc(12_000_000_000), 12_000_900_000);
        assert_eq!(clock.time_of(tsc(12_500_000_000)), Some(12_500_015_000));
        clock.sample(tsc(12_600_000_000), 12_600_010_000);
        assert_eq!(clock.time_of(tsc(12_700_000_000)), Some(12_700_010_000));
        // A TSC that was set back: two epochs later nothing of it is left.
        clock.sample(7, 23_000_000_000);
        clock.sample(7 + 2_000_000, 23_001_000_000);
        clock.sample(7 + 24_000_000_000, 35_000_000_000);
        assert_eq!(clock.time_of(7 + 24_000_000_000), Some(35_000_000_000));
    }

    #[test]
    fn a_rate_of_its_own_is_kept_and_wild_values_are_none() {
        let mut clock = Clock::new(1_000_000, 2_000_000);
        clock.sample(0, 1_000_000_000);
        assert_eq!(clock.time_of(1_000_000), Some(1_001_000_000));
        assert_eq!(clock.time_of(u64::MAX / 2), None);
        let mut clock = Clock::new(0, 0);
        clock.sample(u64::MAX, u64::MAX);
        clock.sample(0, 0);
        clock.sample(1 << 63, 5);
        let _ = clock.time_of(1);
    }
}
