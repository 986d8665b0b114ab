//! What a host can give each VM: capacity by weight, and what a VM leaves by weight to the others.

use super::{CpuTime, Grant, Ns};

/// What a VM wants of the host in an interval, and what it is owed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// CPU time it should have, if there is enough: see [`Claim::wanting`].
    pub wanted_ns: Ns,
    /// Weight in what is left when every VM has what it is entitled to. 0: no part of that.
    pub weight: u64,
    /// CPU time it is owed before any VM gets more.
    pub entitled_ns: Ns,
    /// Quota: most CPU time that the VM may have.
    pub quota_ns: Option<Ns>,
    /// Set by [`share`].
    pub given_ns: Ns,
}

impl Claim {
    /// What a VM wants that ran for `busy_ns` and waited for `steal_ns` of `elapsed_ns`, with `width` of its `vcpus` in
    /// use. If the vCPUs in use were busy all the time: what all its vCPUs could use, because how much work is held
    /// back is unknown. Else: what it used, and room ([`ROOM_PCT`](super::ROOM_PCT)), without which its tasks would
    /// wait for each other.
    pub fn wanting(used: CpuTime, elapsed_ns: Ns, width: u32, vcpus: u32) -> Ns {
        let wanted = u128::from(used.busy_ns) + u128::from(used.steal_ns);
        let all = u128::from(elapsed_ns) * u128::from(vcpus);
        let full = wanted * 10 >= 9 * u128::from(elapsed_ns) * u128::from(width);
        let roomy = u128::from(used.busy_ns) * 100 / u128::from(super::ROOM_PCT);
        u64::try_from(if full { all } else { roomy.min(all) }).unwrap_or(u64::MAX)
    }

    /// Its weight.
    fn parts(&self) -> u128 {
        u128::from(self.weight)
    }

    /// What it could use.
    pub(super) fn usable_ns(&self) -> Ns {
        self.wanted_ns.min(self.quota_ns.unwrap_or(Ns::MAX))
    }

    /// Whether it could use more than it has.
    fn wants(&self) -> bool {
        self.given_ns < self.usable_ns()
    }
}

/// Divides `capacity_ns` of CPU time: first what each VM is entitled to (cut in proportion if that exceeds the
/// capacity), then the rest by weight. What a VM does not want goes to the others in the same way. No VM gets more than
/// it wants, or than its quota.
///
/// Takes at most one round for each claim and one more, each *O*(claims).
pub fn share(capacity_ns: Ns, claims: &mut [Claim]) {
    let owed: u128 = claims.iter().map(|c| u128::from(c.entitled_ns)).sum();
    let capacity = u128::from(capacity_ns);
    let mut left = capacity;
    for claim in &mut *claims {
        let entitled = u128::from(claim.entitled_ns);
        let cut = if owed > capacity { entitled * capacity / owed } else { entitled };
        claim.given_ns = claim.usable_ns().min(u64::try_from(cut).unwrap_or(u64::MAX));
        left -= u128::from(claim.given_ns).min(left);
    }
    loop {
        let total: u128 = claims.iter().filter(|c| c.wants()).map(Claim::parts).sum();
        // A round in which no VM has all that it wants leaves less than a nanosecond for each.
        if total == 0 || left < total {
            return;
        }
        let round = left;
        for claim in claims.iter_mut().filter(|c| c.wants()) {
            let more = u64::try_from(round * claim.parts() / total).unwrap_or(u64::MAX);
            let more = more.min(claim.usable_ns() - claim.given_ns);
            claim.given_ns += more;
            left -= u128::from(more);
        }
    }
}

impl Claim {
    /// What the VM's governor is told. It is contended if it lacks more than an eighth of what it wants. A smaller lack
    /// is within the variation of a load from one interval to the next, and a mask that follows it would never rest.
    pub fn grant(&self) -> Grant {
        Grant {
            contended: u128::from(self.given_ns) * 8 < u128::from(self.wanted_ns) * 7,
            cpu_ns: self.given_ns,
        }
    }
}
