//! When to boost a vCPU for the next deadline that its guest announces.
//!
//! A boost that begins at the deadline comes too late: a driver has to wake up or a timer to fire, and the vCPU has to
//! get its pCPU. So the boost begins earlier, by a *lead*. It is given as for an injected interrupt, whose ticket the
//! guest acknowledges in the handler of its timer.

use crate::config::{AdvanceConfig, Ns};

/// The lead, unless the VM's timers have their own: the time that a daemon's wake-up and the change of a thread's class
/// take on a host on which both are slow.
/// class take on a host on which that takes long.
pub const LEAD_NS: Ns = 50_000;

/// A deadline that passed this long ago is forgotten: its timer must have fired or been canceled by now.
pub const STALE_NS: Ns = 3_000_000;

/// The same for a deadline for which a boost was given.
pub const SERVED_NS: Ns = 500_000;

/// Budget that must be left beside the lead; with less, the boost begins only at the deadline.
pub const RESERVE_NS: Ns = 200_000;

/// How early to boost a vCPU, by how early its VM's timers are fired.
pub const fn lead(advance: AdvanceConfig) -> Ns {
    match advance {
        AdvanceConfig::Fixed(ns) => ns,
        _ => LEAD_NS,
    }
}

/// Time from which to boost a vCPU for a deadline `at`, if `budget_left` nanoseconds of its budget are left; `None`:
/// not at all. `served`: a boost was already given for it. A guest withdraws a deadline when its timer expires; until
/// then a boost that something else has ended is given again.
pub fn boost_from(at: Ns, served: bool, now: Ns, budget_left: Ns, lead: Ns) -> Option<Ns> {
    let late = if served { SERVED_NS } else { STALE_NS };
    if at.saturating_add(late) < now {
        return None;
    }
    let lead = if budget_left < lead.saturating_add(RESERVE_NS) { 0 } else { lead };
    Some(at.saturating_sub(lead))
}

#[cfg(test)]
mod tests {
    use super::{LEAD_NS, RESERVE_NS, SERVED_NS, STALE_NS, boost_from, lead};
    use crate::config::AdvanceConfig;

    #[test]
    fn a_boost_is_ahead_where_the_budget_has_room_for_it_and_the_task() {
        let from = |left| boost_from(1_000_000, false, 0, left, LEAD_NS);
        assert_eq!(from(LEAD_NS + RESERVE_NS), Some(1_000_000 - LEAD_NS));
        assert_eq!(from(LEAD_NS + RESERVE_NS - 1), Some(1_000_000));
        assert_eq!(boost_from(7, false, 0, u64::MAX, LEAD_NS), Some(0));
        assert_eq!(lead(AdvanceConfig::Fixed(7)), 7);
        assert_eq!(lead(AdvanceConfig::Adaptive), LEAD_NS);
    }

    #[test]
    fn a_deadline_that_has_passed_is_forgotten_sooner_if_it_was_served() {
        for (served, late) in [(true, SERVED_NS), (false, STALE_NS)] {
            let from = |now| boost_from(9, served, now, 0, LEAD_NS);
            assert_eq!(from(9 + late), Some(9));
            assert_eq!(from(10 + late), None);
        }
        assert_eq!(boost_from(u64::MAX, true, u64::MAX, 0, 0), Some(u64::MAX));
    }
}
