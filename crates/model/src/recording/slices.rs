//! Latencies and policy events over the measured time, in slices of equal length.

use crate::named;
use crate::plan::Ns;

/// Octaves are divided into this many buckets: a value is known to an eighth.
const PER_OCTAVE: u32 = 8;
/// Buckets of a slice: all 64-bit values, rounded down to three binary digits after the first.
const BUCKETS: usize = 64 * PER_OCTAVE as usize;

/// Latencies of one series by the time they were due: a coarse histogram a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    width_ns: Ns,
    /// Slice by slice, [`BUCKETS`] counts each.
    counts: Vec<u32>,
    max_ns: Vec<Ns>,
}

/// One slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Largest latency, exactly; zero without samples.
    pub max_ns: Ns,
    /// Buckets that have samples: largest value of the bucket, samples; ascending.
    pub bins: Vec<(Ns, u32)>,
}

impl Slices {
    /// So many slices of a measurement of this length; at least one.
    pub fn new(slices: u32, duration_ns: Ns) -> Self {
        let slices = slices.max(1);
        Self {
            width_ns: width(slices, duration_ns),
            counts: vec![0; slices as usize * BUCKETS],
            max_ns: vec![0; slices as usize],
        }
    }

    /// Length of a slice.
    pub fn width_ns(&self) -> Ns {
        self.width_ns
    }

    /// Adds a sample that was due `due` after the start of the measurement; one beyond the last slice counts in the
    /// last.
    #[inline]
    pub fn book(&mut self, due: Ns, latency: Ns) {
        let slice = place(due, self.width_ns, self.max_ns.len());
        let count = &mut self.counts[slice * BUCKETS + bucket(latency)];
        *count = count.saturating_add(1);
        self.max_ns[slice] = self.max_ns[slice].max(latency);
    }

    /// The slices, in order of time.
    pub fn iter(&self) -> impl Iterator<Item = Slice> + '_ {
        self.counts.chunks(BUCKETS).zip(&self.max_ns).map(|(counts, &max_ns)| {
            let full = counts.iter().enumerate().filter(|(_, n)| **n > 0);
            Slice { max_ns, bins: full.map(|(b, n)| (top(b).min(max_ns), *n)).collect() }
        })
    }
}

named! {
    /// What a policy did, by time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum PolicyEvent {
        /// A vCPU was given its means.
        Boost = "boost",
        /// A vCPU lost its means because its budget was used up.
        Throttle = "throttle",
        /// A boost was due and not given.
        Denied = "denied",
    }
}

/// Policy events of the VMs of one name, counted by slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEvents {
    /// The VMs' common name.
    pub vm: String,
    /// Length of a slice.
    pub width_ns: Ns,
    /// Counts in the order of [`PolicyEvent::ALL`], slice by slice.
    pub counts: Vec<[u32; PolicyEvent::ALL.len()]>,
}

impl PolicyEvents {
    /// So many slices of a measurement of this length; at least one.
    pub fn new(vm: &str, slices: u32, duration_ns: Ns) -> Self {
        let slices = slices.max(1);
        let counts = vec![[0; PolicyEvent::ALL.len()]; slices as usize];
        Self { vm: vm.to_owned(), width_ns: width(slices, duration_ns), counts }
    }

    /// Counts an event `at` after the start of the measurement.
    pub fn book(&mut self, at: Ns, event: PolicyEvent) {
        let slice = place(at, self.width_ns, self.counts.len());
        let count = &mut self.counts[slice][event as usize];
        *count = count.saturating_add(1);
    }
}

pub(super) fn width(slices: u32, duration_ns: Ns) -> Ns {
    duration_ns.div_ceil(u64::from(slices)).max(1)
}

pub(super) fn place(at: Ns, width_ns: Ns, slices: usize) -> usize {
    usize::try_from(at / width_ns).unwrap_or(usize::MAX).min(slices - 1)
}

/// The bucket of a value.
fn bucket(ns: Ns) -> usize {
    if ns < u64::from(PER_OCTAVE) {
        return ns as usize;
    }
    let shift = ns.ilog2() - PER_OCTAVE.ilog2();
    (shift * PER_OCTAVE) as usize + (ns >> shift) as usize
}

/// The largest value of a bucket.
fn top(bucket: usize) -> Ns {
    let (bucket, per) = (bucket as u64, u64::from(PER_OCTAVE));
    if bucket < 2 * per {
        return bucket;
    }
    let shift = bucket / per - 1;
    let next = u128::from(bucket - shift * per + 1) << shift;
    Ns::try_from(next - 1).unwrap_or(Ns::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_lies_between_their_tops() {
        let mut last = None;
        for b in 0..62 * PER_OCTAVE as usize {
            let end = top(b);
            assert_eq!(bucket(end), b, "{end}");
            assert!(last.is_none_or(|last| end > last));
            if let Some(next) = end.checked_add(1) {
                assert_eq!(bucket(next), b + 1);
                let begin = last.map_or(0, |last| last + 1);
                assert!(end - begin <= begin / u64::from(PER_OCTAVE), "bucket {b} is too wide");
            }
            last = Some(end);
        }
        assert!(bucket(u64::MAX) < BUCKETS);
        assert_eq!(top(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn samples_go_where_they_were_due() {
        let mut slices = Slices::new(4, 1000);
        for (due, latency) in [(0, 5), (249, 100), (250, 7), (999, 1), (5000, 3)] {
            slices.book(due, latency);
        }
        let all: Vec<Slice> = slices.iter().collect();
        let counts: Vec<u32> = all.iter().map(|s| s.bins.iter().map(|b| b.1).sum()).collect();
        assert_eq!(counts, [2, 1, 0, 2]);
        assert_eq!(all[0], Slice { max_ns: 100, bins: vec![(5, 1), (100, 1)] });
    }

    #[test]
    fn events_are_counted_by_slice() {
        let mut events = PolicyEvents::new("guest", 2, 1000);
        events.book(1, PolicyEvent::Boost);
        events.book(499, PolicyEvent::Boost);
        events.book(500, PolicyEvent::Throttle);
        events.book(1 << 40, PolicyEvent::Denied);
        assert_eq!(events.counts, [[2, 0, 0], [0, 1, 1]]);
    }
}
