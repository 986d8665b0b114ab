//! Time that virtual processors give away: a vCPU that waits for another one of its partition *confers* its time to it
//! (`H_CONFER` of the PAPR).
//!
//! A core is given up when all of its threads that run confer: a thread that has work keeps it, as it does beside
//! sleeping ones, and as KVM does on POWER (`kvmppc_rm_h_confer` of `arch/powerpc/kvm/book3s_hv_builtin.c`). The virtual
//! processor of the vCPU that is waited for, the *heir*, gets the core next. If it has no entitlement left, it uses that of
//! who gave the core up, until that one has a core again or the window ends. One that its cap holds inherits nothing.

use vcoop_sched::config::Ns;
use vcoop_sched::{CpuId, EntId};

use super::{NONE, Pool, State, VpState};

impl Pool {
    /// A running entity confers its time to another one of its partition, until it leaves its CPU or calls this with
    /// `None`. Without effect while that one's virtual processor does not wait for a core, if the entity does not run, or
    /// across partitions.
    pub fn confer(&mut self, now: Ns, e: EntId, to: Option<EntId>) {
        let partition = |v: u32| self.vps[v as usize].partition;
        let own = partition(self.ents[e.index()].vp);
        let to = to.map(|to| self.ents[to.index()].vp).filter(|&v| partition(v) == own);
        let to = to.unwrap_or(NONE);
        let ent = &mut self.ents[e.index()];
        if ent.state == State::Running {
            self.conferring -= u32::from(ent.confers_to != NONE);
            self.conferring += u32::from(to != NONE);
            ent.confers_to = to;
        }
        if to != NONE {
            self.give_up_cores(now);
        }
    }

    /// An entity has left its CPU, and confers nothing any more.
    pub(super) fn stop_conferring(&mut self, e: EntId) {
        let to = core::mem::replace(&mut self.ents[e.index()].confers_to, NONE);
        self.conferring -= u32::from(to != NONE);
    }

    /// Takes cores from virtual processors that have nothing to do but to wait for one that waits for a core.
    pub(super) fn give_up_cores(&mut self, now: Ns) {
        if self.conferring == 0 {
            return;
        }
        for core in 0..self.cores.len() {
            let c = &self.cores[core];
            if c.vp == NONE || c.leaving {
                continue;
            }
            let v = c.vp;
            if let Some(heir) = self.heir_of(v) {
                self.charge_core(now, core as u32);
                // It could run and does not: it gives up its claim to a share in this window.
                self.vps[v as usize].steady = false;
                self.cores[core].heir = heir;
                self.counters.confers += 1;
                self.take_core(core as u32);
            }
        }
    }

    /// The virtual processor that gets a core that `giver` had. True: on the share of `giver`.
    pub(super) fn next_after(&self, now: Ns, giver: u32, heir: u32) -> Option<(u32, bool)> {
        let place = |v: u32| self.vps.get(v as usize).map(|vp| vp.place);
        let paid = place(giver) == Some(VpState::Ready) && place(heir) == Some(VpState::Spare);
        let inherits = (paid || place(heir) == Some(VpState::Ready)) && self.rush.is_empty();
        if inherits {
            return Some((heir, paid));
        }
        self.next(now).map(|v| (v, false))
    }

    /// Gives a free core to a virtual processor that waits for spare time, on the share of `payer`, which waits for a core.
    pub(super) fn dispatch_paid(&mut self, now: Ns, core: u32, v: u32, payer: u32) {
        self.step_out(v);
        self.vps[v as usize].place = VpState::Away;
        self.dispatch(now, core, v);
        let c = &mut self.cores[core as usize];
        c.payer = payer;
        c.used_up_at = now + self.vps[payer as usize].left;
        self.rearm(CpuId(core * self.threads));
    }

    /// A virtual processor gets a core: who runs on its share has to stop that.
    pub(super) fn stop_paying(&mut self, now: Ns, payer: u32) {
        if self.counters.confers == 0 {
            return;
        }
        for core in 0..self.cores.len() {
            if self.cores[core].payer == payer {
                self.charge_core(now, core as u32);
                let c = &mut self.cores[core];
                (c.payer, c.used_up_at) = (NONE, now);
                self.rearm(CpuId(core as u32 * self.threads));
            }
        }
    }

    /// The virtual processor to which all threads of a dispatched one confer, or one of these; `None` if a thread does
    /// something else, or none of these waits for a core.
    fn heir_of(&self, v: u32) -> Option<u32> {
        let mut heir = None;
        for e in self.members(v) {
            let ent = &self.ents[e as usize];
            match ent.state {
                State::Ready => return None,
                State::Running if ent.confers_to == NONE => return None,
                State::Running if self.waits(ent.confers_to) => heir = Some(ent.confers_to),
                State::Running | State::Blocked | State::Dead => {}
            }
        }
        heir
    }

    fn waits(&self, v: u32) -> bool {
        matches!(self.vps[v as usize].place, VpState::Ready | VpState::Spare)
    }
}
