//! Governors that follow the host's word.

use super::{Cores, GovernorConfig, GovernorInput, Kind};

/// `Entitlement` and `HostHint`.
///
/// `Entitlement` is the policy of the published experiment: while the pool is contended a guest uses only the vCPUs
/// that it is entitled to, else all. `HostHint` is what reviewers asked for: the host knows how much each VM wants
/// ([`share`](super::share)), and says what it can give right now.
///
/// A grant is a number of CPUs with a fraction, and fluctuates: the width follows it up at once, and down only by a
/// whole core or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantFollower {
    cores: Cores,
    used: u32,
    entitled: u32,
    hint: bool,
}

impl GrantFollower {
    pub(crate) fn new(config: &GovernorConfig, vcpus: u32, threads: u32) -> Self {
        let cores = Cores::new(config, vcpus, threads);
        let entitled = config.entitled.div_ceil(cores.threads).clamp(cores.floor, cores.all);
        Self { cores, used: cores.all, entitled, hint: config.kind == Kind::HostHint }
    }

    pub(crate) fn width(&self) -> u32 {
        self.cores.width(self.used)
    }

    pub(crate) fn on(&mut self, seen: &GovernorInput<'_>) {
        let Some(grant) = seen.grant else { return };
        if !grant.contended {
            self.used = self.cores.all;
            return;
        }
        if !self.hint {
            self.used = self.entitled;
            return;
        }
        let wanted = self.cores.holding(grant.cpu_ns, seen.elapsed_ns);
        // Rounded up: a grant that wavers around a whole number moves between two widths, of which
        // the upper one is kept until the grant has fallen by a core.
        if wanted > self.used || wanted + 1 < self.used || self.used == self.cores.all {
            self.used = wanted;
        }
    }
}
