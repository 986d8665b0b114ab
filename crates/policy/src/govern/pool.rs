//! What a host can give each VM of its pool: the word that `Entitlement` and `HostHint` follow.

use super::{Claim, CpuTime, Grant, Ns, share};

/// A VM, as its host sees it in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Run time and run delay of its vCPUs together.
    pub used: CpuTime,
    /// Number of vCPUs in use.
    pub width: u32,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Weight in the pool; 0: the VM never gets more than it is entitled to. `None`: its threads compete one by one,
    /// each like any other thread.
    pub weight: Option<u64>,
    /// pCPUs' worth of time that the VM is entitled to.
    pub entitled: u32,
    /// Quota: most CPU time in each second, in nanoseconds.
    pub quota_ns: Option<Ns>,
    /// Whether the VM has a governor.
    pub folds: bool,
}

/// Weight of a thread at nice 0.
const NICE_0: u64 = 1024;

impl Member {
    /// What the VM wants of the host, and what it is owed, in an interval of `elapsed_ns`.
    fn claim(&self, elapsed_ns: Ns) -> Claim {
        let quota = |ns| u128::from(ns) * u128::from(elapsed_ns) / 1_000_000_000;
        Claim {
            quota_ns: self.quota_ns.and_then(|ns| u64::try_from(quota(ns)).ok()),
            wanted_ns: Claim::wanting(self.used, elapsed_ns, self.width, self.vcpus),
            weight: self.weight.unwrap_or(NICE_0 * u64::from(self.vcpus)),
            entitled_ns: u64::from(self.entitled).saturating_mul(elapsed_ns),
            given_ns: 0,
        }
    }
}

/// What a host of `capacity_ns` of CPU time can give member `which` in an interval of `elapsed_ns`.
/// `claims` is room for as many as there are members.
///
/// A VM without a weight is never contended while it competes with a VM that has no governor: each thread gets the same
/// share there, so folding would lose CPU time. A quota is another matter: it caps a VM however many vCPUs it uses.
///
/// # Panics
/// If there is no such member, or less room than members.
pub fn grant(
    members: &[Member],
    which: usize,
    capacity_ns: Ns,
    elapsed_ns: Ns,
    claims: &mut [Claim],
) -> Grant {
    let claims = &mut claims[..members.len()];
    for (claim, member) in claims.iter_mut().zip(members) {
        *claim = member.claim(elapsed_ns);
    }
    share(capacity_ns, claims);
    let others = members.iter().zip(&*claims).enumerate().filter(|(i, _)| *i != which);
    let stays = |(_, (m, claim)): (usize, (&Member, &Claim))| {
        m.weight.is_none() && !m.folds && claim.wanted_ns > 0
    };
    if members[which].weight.is_none() && others.into_iter().any(stays) {
        claims[which].given_ns = claims[which].usable_ns();
    }
    claims[which].grant()
}
