//! Load weights and the arithmetic of virtual time.
//!
//! Weights carry [`SHIFT`] fraction bits, as the kernel's do on 64-bit machines: a group spread
//! over hundreds of CPUs has a weight of a few units on each, and without the fraction its share
//! would be off by tens of percent.

use crate::config::{Ns, Policy};

/// Fraction bits of a weight.
pub(crate) const SHIFT: u32 = 10;

/// Weight of nice 0.
pub(crate) const NICE_0: u64 = 1024 << SHIFT;

/// Weight of SCHED_IDLE.
const IDLE: u64 = 3;

/// Smallest weight of a group on one CPU.
pub(crate) const MIN_GROUP: u64 = 2;

/// Largest weight of a group.
pub(crate) const MAX_GROUP: u64 = 1 << 18;

/// Weight by nice value, -20 first (`sched_prio_to_weight`): one nice level is 10 % of the CPU
/// between two hogs, hence a factor of about 1.25.
const BY_NICE: [u64; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
    3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87,
    70, 56, 45, 36, 29, 23, 18, 15,
];

/// Weight of a fair policy. Nice values out of range count as the nearest in range, RT policies as nice 0 (the weight
/// after leaving RT is set with the policy).
pub(crate) fn of_policy(p: Policy) -> u64 {
    let w = match p {
        Policy::Normal { nice, .. } => BY_NICE[(i32::from(nice).clamp(-20, 19) + 20) as usize],
        Policy::Idle => IDLE,
        Policy::Fifo(_) | Policy::Rr(_) | Policy::Deadline { .. } => 1024,
    };
    w << SHIFT
}

/// Virtual time that `ns` of execution is worth at `weight`: `ns * NICE_0 / weight`, rounded
/// down.
#[inline]
pub(crate) fn virtual_time(ns: Ns, weight: u64) -> i64 {
    if weight == NICE_0 {
        return ns as i64;
    }
    // 2^43 ns is 2.4 hours in one charge: the slow path never runs in practice.
    if ns < 1 << 43 {
        (ns * NICE_0 / weight) as i64
    } else {
        (u128::from(ns) * u128::from(NICE_0) / u128::from(weight)) as i64
    }
}

/// Execution at `weight` that is worth `virtual_ns`: the inverse of [`virtual_time`], rounded up.
pub(crate) fn real_time(virtual_ns: u64, weight: u64) -> Ns {
    (u128::from(virtual_ns) * u128::from(weight)).div_ceil(u128::from(NICE_0)) as Ns
}

/// `ns * part / whole`, rounded down.
#[inline]
pub(crate) fn share(ns: Ns, part: u64, whole: u64) -> Ns {
    match ns.checked_mul(part) {
        Some(p) => p / whole.max(1),
        None => (u128::from(ns) * u128::from(part) / u128::from(whole.max(1))) as u64,
    }
}

/// `a / b`, rounded towards minus infinity, for `b > 0`.
#[inline]
pub(crate) fn floor_div(a: i128, b: u64) -> i64 {
    // The 128-bit division is a library call; sums this large are rare.
    if let (Ok(a), Ok(b)) = (i64::try_from(a), i64::try_from(b)) {
        a.div_euclid(b)
    } else {
        a.div_euclid(i128::from(b)) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nice_level_is_about_a_quarter() {
        for w in BY_NICE.windows(2) {
            let ratio = w[0] * 100 / w[1];
            assert!((119..=131).contains(&ratio), "{w:?}");
        }
        assert_eq!(of_policy(Policy::NORMAL), NICE_0);
        assert_eq!(of_policy(Policy::Idle), 3 << SHIFT);
        assert_eq!(of_policy(Policy::Normal { nice: 5, slice_ns: None }), 335 << SHIFT);
    }

    #[test]
    fn virtual_time_scales_by_weight() {
        assert_eq!(virtual_time(1_000_000, NICE_0), 1_000_000);
        assert_eq!(virtual_time(1_000_000, 2 * NICE_0), 500_000);
        assert_eq!(virtual_time(3_000_000, 3 << SHIFT), 1_024_000_000);
        assert_eq!(virtual_time(1 << 44, 2 * NICE_0), 1 << 43);
        assert_eq!(floor_div(-7, 2), -4);
        assert_eq!(share(6_000_000, 1, 3), 2_000_000);
    }
}
