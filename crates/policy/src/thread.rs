//! The scheduling policy of a thread, and what a boost makes of it.

use crate::action::Rest;
use crate::config::{Means, Ns};

/// Scheduling policy of a thread or task, with the parameters that user space can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Policy {
    /// SCHED_FIFO, priority 1..=99 (99 the most urgent).
    Fifo(u8),
    /// SCHED_RR, priority 1..=99.
    Rr(u8),
    /// SCHED_OTHER with a nice value (-20..=19) and, for EEVDF, a slice (0.1..100 ms).
    Normal {
        /// Nice value.
        nice: i8,
        /// Custom slice; `None` takes the base slice of the scheduler.
        slice_ns: Option<Ns>,
    },
    /// SCHED_IDLE: weight 3, never preempts on wake-up.
    Idle,
    /// SCHED_DEADLINE: `runtime` in each `period`, to be had within `deadline` of its start.
    Deadline {
        /// CPU time reserved in a period.
        runtime_ns: Ns,
        /// Relative deadline.
        deadline_ns: Ns,
        /// Period.
        period_ns: Ns,
    },
}

impl Default for Policy {
    fn default() -> Self {
        Self::NORMAL
    }
}

impl Policy {
    /// SCHED_OTHER, nice 0.
    pub const NORMAL: Self = Self::Normal { nice: 0, slice_ns: None };

    /// Whether this is a real-time policy.
    pub fn is_rt(&self) -> bool {
        matches!(self, Self::Fifo(_) | Self::Rr(_))
    }

    /// Whether this is SCHED_DEADLINE.
    pub fn is_deadline(&self) -> bool {
        matches!(self, Self::Deadline { .. })
    }

    /// Whether a thread with this baseline is at least as urgent as one boosted by `means`: a boost
    /// would lower it or change nothing.
    pub fn outranks(self, means: Means) -> bool {
        match (self, means) {
            (Self::Fifo(own) | Self::Rr(own), Means::Fifo(other) | Means::Rr(other)) => {
                own >= other
            }
            (Self::Fifo(_) | Self::Rr(_), Means::Nice(_) | Means::Slice(_) | Means::Ext) => true,
            (Self::Normal { nice, .. }, Means::Nice(other)) => nice <= other,
            (Self::Normal { slice_ns: Some(own), .. }, Means::Slice(other)) => own <= other,
            (
                Self::Deadline { runtime_ns, deadline_ns, period_ns },
                Means::Deadline { runtime_ns: r, deadline_ns: d, period_ns: p },
            ) => {
                let share = |runtime, period| u128::from(runtime) * u128::from(period);
                deadline_ns <= d && share(runtime_ns, p) >= share(r, period_ns)
            }
            (Self::Deadline { .. }, _) => true,
            _ => false,
        }
    }
}

/// What a thread has now: its captured `baseline`, boosted by `means`, or at rest (`None`).
///
/// `nice` and `slice` change that attribute and leave the other as it was. A thread that is not SCHED_OTHER becomes
/// SCHED_OTHER when boosted by them, with the default of the other. A rest is ignored for a baseline that is not
/// SCHED_OTHER.
#[inline]
pub fn attributes(baseline: Policy, means: Option<Means>, rest: Rest) -> Policy {
    let (nice, slice_ns) = match baseline {
        Policy::Normal { nice, slice_ns } => (nice, slice_ns),
        _ => (0, None),
    };
    match (means, baseline) {
        (Some(Means::Fifo(priority)), _) => Policy::Fifo(priority),
        (Some(Means::Rr(priority)), _) => Policy::Rr(priority),
        (Some(Means::Nice(nice)), _) => Policy::Normal { nice, slice_ns },
        (Some(Means::Slice(ns)), _) => Policy::Normal { nice, slice_ns: Some(ns) },
        (Some(Means::Deadline { runtime_ns, deadline_ns, period_ns }), _) => {
            Policy::Deadline { runtime_ns, deadline_ns, period_ns }
        }
        // The scheduler knows who is boosted.
        (Some(Means::Ext), baseline) => baseline,
        (None, Policy::Normal { .. }) => {
            let nice = nice.saturating_add_unsigned(rest.levels).min(19);
            Policy::Normal { nice, slice_ns: rest.slice_ns.or(slice_ns) }
        }
        (None, other) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::{Policy, attributes};
    use crate::action::Rest;
    use crate::config::Means;

    const AT_BASELINE: Rest = Rest { levels: 0, slice_ns: None };

    fn reservation(runtime_ns: u64) -> Policy {
        Policy::Deadline { runtime_ns, deadline_ns: 4_000_000, period_ns: 4_000_000 }
    }

    #[test]
    fn nice_and_slice_leave_each_other_alone() {
        let baseline = Policy::Normal { nice: -10, slice_ns: Some(3_000_000) };
        let boosted = |means| attributes(baseline, Some(means), AT_BASELINE);
        assert_eq!(
            boosted(Means::Slice(100_000)),
            Policy::Normal { nice: -10, slice_ns: Some(100_000) }
        );
        assert_eq!(
            boosted(Means::Nice(-20)),
            Policy::Normal { nice: -20, slice_ns: Some(3_000_000) }
        );
        let idle = attributes(Policy::Idle, Some(Means::Slice(100_000)), AT_BASELINE);
        assert_eq!(idle, Policy::Normal { nice: 0, slice_ns: Some(100_000) });
        assert_eq!(boosted(Means::Rr(8)), Policy::Rr(8));
    }

    #[test]
    fn a_rest_is_for_fair_threads() {
        let rest = Rest { levels: 20, slice_ns: Some(700_000) };
        let fair = Policy::Normal { nice: 3, slice_ns: None };
        assert_eq!(
            attributes(fair, None, rest),
            Policy::Normal { nice: 19, slice_ns: Some(700_000) }
        );
        for other in [Policy::Fifo(1), Policy::Idle, reservation(1_000_000)] {
            assert_eq!(attributes(other, None, rest), other);
        }
        assert_eq!(attributes(fair, None, AT_BASELINE), fair);
    }

    #[test]
    fn ranks() {
        let (fifo, fair) = (Policy::Fifo(50), Policy::NORMAL);
        assert!(fifo.outranks(Means::Fifo(50)) && !fifo.outranks(Means::Rr(51)));
        assert!(!fair.outranks(Means::Fifo(1)) && !fair.outranks(Means::Nice(-1)));
        assert!(fair.outranks(Means::Nice(0)) && !Policy::Idle.outranks(Means::Nice(19)));
        assert!(fifo.outranks(Means::Nice(-20)) && !fair.outranks(Means::Slice(100_000)));
        let short = Policy::Normal { nice: 0, slice_ns: Some(100_000) };
        assert!(short.outranks(Means::Slice(100_000)) && !short.outranks(Means::Slice(99_999)));
        let means = |runtime_ns| Means::Deadline {
            runtime_ns,
            deadline_ns: 4_000_000,
            period_ns: 4_000_000,
        };
        let (quarter, half) = (reservation(1_000_000), reservation(2_000_000));
        assert!(quarter.outranks(Means::Fifo(99)) && quarter.outranks(Means::Nice(-20)));
        assert!(half.outranks(means(1_000_000)) && !quarter.outranks(means(2_000_000)));
        assert!(!fifo.outranks(means(1_000_000)));
    }
}
