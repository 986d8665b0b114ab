//! When a vCPU is boosted for the next deadline that its guest announces.
//!
//! A boost that begins at the deadline comes late by what it takes to give it: a driver is woken or a timer rings,
//! and the vCPU gets its pCPU. So it begins before, by a lead. It is given as an injected interrupt, whose ticket the guest
//! answers in the handler of its timer.

use crate::config::{AdvanceConfig, Ns};

/// The lead, unless the VM's timers have one of their own: what a wake-up of a daemon and the change of a thread's
/// class take on a host on which that takes long.
pub const LEAD_NS: Ns = 50_000;

/// A deadline that has passed for so long is forgotten by now, or its timer was canceled.
pub const STALE_NS: Ns = 3_000_000;

/// ... or that has passed for so long since a boost was given for it: its timer is on its way no more.
pub const SERVED_NS: Ns = 500_000;

/// What must be left of the budget beside the lead, or the boost begins at the deadline only.
pub const RESERVE_NS: Ns = 200_000;

/// How early a vCPU is boosted, by how early its VM's timers are fired.
pub const fn lead(advance: AdvanceConfig) -> Ns {
    match advance {
        AdvanceConfig::Fixed(ns) => ns,
        _ => LEAD_NS,
    }
}

/// From when on a vCPU is boosted for a deadline `at`, with so much of its budget left; `None`: not at all any more.
/// `served`: a boost was given for it. A guest takes a deadline away when its timer expires; until then a boost that was
/// given for it, and that something else has ended, is given again.
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
