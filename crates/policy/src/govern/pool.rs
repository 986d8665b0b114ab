//! What a host can give each VM of its pool: the word that `Entitlement` and `HostHint` go by.

use super::{Claim, CpuTime, Grant, Ns, share};

/// A VM, as its host sees it in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Run time and run delay of its vCPUs together.
    pub used: CpuTime,
    /// vCPUs that it uses.
    pub width: u32,
    /// vCPUs that it has.
    pub vcpus: u32,
    /// Its weight in the pool; 0: it never has more than it is entitled to. `None`: its threads compete
    /// one by one, each like any other.
    pub weight: Option<u64>,
    /// pCPUs' worth of time that it is entitled to.
    pub entitled: u32,
    /// Most CPU time that it may have in each second, by a quota.
    pub quota_ns: Option<Ns>,
    /// It has a governor.
    pub folds: bool,
}

/// Weight of a thread at nice 0.
const NICE_0: u64 = 1024;

impl Member {
    /// What it wants of the host, and what it is owed, in an interval of `elapsed_ns`.
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
/// A VM without a weight that competes with one that uses all its vCPUs is never contended: threads are
/// alike there, so that whoever uses fewer of them gets less. The host does not ask that of a VM. A quota is another
/// matter: a VM has no more than that, however many vCPUs it uses.
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
