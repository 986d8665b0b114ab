//! EEVDF: its tunables, and its rules in each release of Linux.

use super::{Ns, scale};

/// Releases of Linux in which the rules of EEVDF changed. Each stands for all releases up to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EevdfRelease {
    /// The first with EEVDF: a sleeper leaves its queue at once, and slices cannot be chosen.
    #[cfg_attr(feature = "serde", serde(rename = "6.6"))]
    V6_6,
    /// Delayed dequeue, custom slices that preempt, deadlines that travel.
    #[cfg_attr(feature = "serde", serde(rename = "6.12"))]
    V6_12,
    /// A shorter base slice.
    #[cfg_attr(feature = "serde", serde(rename = "6.15"))]
    V6_15,
    /// Protection for the shortest slice of the queue only (6.17).
    #[cfg_attr(feature = "serde", serde(rename = "6.18.0"))]
    V6_18_0,
    /// With the stable backports of 2026, and mainline up to 7.2.
    #[default]
    #[cfg_attr(feature = "serde", serde(rename = "6.18"))]
    V6_18,
    /// Requests end in time, short slices preempt whatever their deadline, and groups share one queue.
    #[cfg_attr(feature = "serde", serde(rename = "7.3"))]
    V7_3,
}

/// What differs between releases. docs/src/simulator-host.md says where each rule comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Base slice of one CPU.
    pub(crate) base_slice_ns: Ns,
    /// `sched_setattr` takes slices, and short ones preempt.
    slices: bool,
    /// A sleeper with negative lag stays queued until its lag is gone.
    delay_dequeue: bool,
    /// The deadline of a request survives a migration or a spell in another class; else a new request begins.
    pub(crate) keeps_deadline: bool,
    /// Run-to-parity protects the current entity for the shortest slice on the queue only, and an entity
    /// that is not protected is asked to give way at every update, eligible or not. A waking one with a shorter
    /// slice competes as if there were no protection; if it loses, protection is cut to the shortest slice.
    /// Else protection lasts to the deadline, and a waking entity with a shorter slice ends it for good if it is
    /// eligible, and has the earlier deadline or the current one is not eligible.
    pub(crate) quantum: bool,
    /// Any waking entity that loses cuts protection to the shortest slice on the queue.
    pub(crate) always_cuts: bool,
    /// Only a picked entity is protected. A running one that changes class, nice value or slice is taken off its queue
    /// and put back, and goes on unprotected.
    pub(crate) picked_only: bool,
    /// If a delayed sleeper would be chosen at a wake-up, it leaves the queue and the choice is repeated; else that
    /// sleeper prevents a preemption by the woken entity.
    pub(crate) looks_again: bool,
    /// Lag is bounded by the longest slice on the queue and a tick; else by two slices of its own, or a tick.
    pub(crate) lag_of_longest: bool,
    /// See [`EevdfTunables::yield_forfeits`].
    yield_forfeits: bool,
    /// See [`EevdfTunables::hrtick`].
    hrtick: bool,
    /// A waking entity with a shorter slice preempts and is picked next if it is eligible, whatever its deadline, and
    /// also if the current one was asked to give way before. Beside an entity with a shorter slice, the current one is
    /// protected as long as it is eligible; else for that slice. Protection that a waking entity cuts is counted from
    /// the mean vruntime, if the current entity is ahead of it.
    pub(crate) short_goes_next: bool,
    /// An entity that a directed yield favours, or a group of which an entity went to sleep, is picked if it is
    /// eligible; else the hint is ignored (`PICK_BUDDY`, 6.14).
    pub(crate) picks_buddy: bool,
    /// A queue tells its group of its load at most once a millisecond (6.7).
    pub(crate) tells_rarely: bool,
    /// Threads of all groups compete in one queue for each CPU, with weights that follow from those of their groups.
    pub(crate) flat: bool,
}

impl EevdfRelease {
    /// All, oldest first.
    pub const ALL: [Self; 6] =
        [Self::V6_6, Self::V6_12, Self::V6_15, Self::V6_18_0, Self::V6_18, Self::V7_3];

    /// Whether `sched_setattr` takes a slice.
    pub fn has_slices(self) -> bool {
        self.rules().slices
    }

    pub(crate) const fn rules(self) -> &'static Rules {
        const V6_6: Rules = Rules {
            base_slice_ns: 750_000,
            slices: false,
            delay_dequeue: false,
            keeps_deadline: false,
            quantum: false,
            always_cuts: false,
            picked_only: false,
            looks_again: false,
            lag_of_longest: false,
            yield_forfeits: false,
            hrtick: false,
            short_goes_next: false,
            picks_buddy: false,
            tells_rarely: false,
            flat: false,
        };
        const V6_12: Rules = Rules {
            slices: true,
            delay_dequeue: true,
            keeps_deadline: true,
            tells_rarely: true,
            ..V6_6
        };
        const V6_15: Rules = Rules { base_slice_ns: 700_000, picks_buddy: true, ..V6_12 };
        const V6_18_0: Rules = Rules { quantum: true, ..V6_15 };
        const V6_18: Rules = Rules {
            always_cuts: true,
            picked_only: true,
            looks_again: true,
            lag_of_longest: true,
            yield_forfeits: true,
            ..V6_18_0
        };
        const V7_3: Rules = Rules { hrtick: true, short_goes_next: true, flat: true, ..V6_18 };
        match self {
            Self::V6_6 => &V6_6,
            Self::V6_12 => &V6_12,
            Self::V6_15 => &V6_15,
            Self::V6_18_0 => &V6_18_0,
            Self::V6_18 => &V6_18,
            Self::V7_3 => &V7_3,
        }
    }
}

/// EEVDF constants and features (`kernel/sched/{fair.c,features.h}`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EevdfTunables {
    /// Release whose rules apply.
    pub release: EevdfRelease,
    /// The request size of an entity without a slice of its own.
    pub base_slice_ns: Ns,
    /// Let the running entity keep the CPU until it has used its slice or is no longer eligible.
    pub run_to_parity: bool,
    /// Let a waking entity with a shorter slice break that protection.
    pub preempt_short: bool,
    /// Keep lag across sleep.
    pub place_lag: bool,
    /// Keep a sleeper with negative lag queued until its lag is gone.
    pub delay_dequeue: bool,
    /// An eligible entity that yields gives up the rest of its request; else only its deadline moves. Stable updates of
    /// older releases changed this (commit 79104becf42b, "sched/fair: Forfeit vruntime on yield"), so a release does not
    /// say it alone.
    pub yield_forfeits: bool,
    /// A timer ends the running entity's request where others wait, and not the next tick (HRTICK; on since Linux 7.1 on
    /// x86).
    pub hrtick: bool,
    /// Who yields to a certain other entity gets a penalty (posted in December 2025; no kernel has it).
    pub yield_penalty: bool,
}

impl EevdfTunables {
    /// The default release on this many CPUs.
    pub fn for_cpus(cpus: u32) -> Self {
        Self::of(EevdfRelease::default(), cpus)
    }

    /// The defaults of a release: its base slice times `1 + ilog2(min(cpus, 8))`, and its features.
    pub fn of(release: EevdfRelease, cpus: u32) -> Self {
        let rules = release.rules();
        Self {
            release,
            base_slice_ns: rules.base_slice_ns * scale(cpus),
            run_to_parity: true,
            preempt_short: rules.slices,
            place_lag: true,
            delay_dequeue: rules.delay_dequeue,
            yield_forfeits: rules.yield_forfeits,
            hrtick: rules.hrtick,
            yield_penalty: false,
        }
    }
}
