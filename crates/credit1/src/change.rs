//! Changes while entities run.

use vcoop_sched::config::{Ns, Policy};
use vcoop_sched::{CpuSet, EntId};

use super::{Credit1, DomainState, State};

impl Credit1 {
    /// Stores the policy for [`Credit1::policy`]. It has no other effect: credit1 has no policies.
    pub fn set_policy(&mut self, _now: Ns, e: EntId, policy: Policy) {
        self.ents[e.index()].policy = policy;
    }

    /// Changes where an entity may run; an empty set (after CPUs outside the scheduler are dropped) means everywhere.
    /// If it waits on a CPU that is now forbidden, it moves at once; if it runs there, it moves at the next
    /// [`Credit1::schedule`], which a note asks for.
    pub fn set_cpus(&mut self, now: Ns, e: EntId, cpus: CpuSet) {
        let mask = self.clip(cpus);
        self.masks[e.index()] = mask;
        let ent = &mut self.ents[e.index()];
        ent.allowed = mask.len();
        let (cpu, state) = (ent.cpu, ent.state);
        if mask.contains(cpu) {
            return;
        }
        match state {
            State::Queued => {
                self.remove(e);
                self.ents[e.index()].state = State::Blocked;
                let to = self.pick(e, true);
                self.moved(e, to);
                self.insert(now, e, to);
                self.tickle(cpu, to, e);
            }
            State::Running => {
                self.ents[e.index()].migrating = true;
                self.kick(cpu);
            }
            State::Blocked | State::Parked | State::Dead => {}
        }
    }

    /// Sets the ratelimit that protects running vCPUs of a domain; `None`: the scheduler's. Takes effect at the next
    /// [`Credit1::schedule`].
    ///
    /// # Panics
    /// If there is no such domain.
    pub fn set_ratelimit(&mut self, domain: u16, ratelimit_ns: Option<Ns>) {
        self.doms[usize::from(domain)].ratelimit = ratelimit_ns;
    }

    /// The ratelimit that protects `e` while it runs.
    pub fn ratelimit_of(&self, e: EntId) -> Ns {
        let ent = &self.ents[e.index()];
        let DomainState { ratelimit, .. } = self.doms[usize::from(ent.domain)];
        let patch = self.cfg.patches.dom0_ratelimit_ns.filter(|_| ent.dom0);
        ratelimit.or(patch).unwrap_or(self.cfg.ratelimit_ns)
    }
}
