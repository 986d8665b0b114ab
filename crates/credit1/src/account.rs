//! Credit: how running burns it, and how each accounting distributes a timeslice's worth.

use vcoop_sched::config::Ns;
use vcoop_sched::{CpuId, EntId, Note};

use super::{CREDIT_NS, Credit1, Decision, NONE, Pri, State};
use crate::config::{Burn, Patch};

impl Credit1 {
    /// Charges the current entity of `cpu` for its CPU time since the last charge.
    pub(super) fn burn(&mut self, now: Ns, cpu: CpuId) {
        let c = &mut self.cpus[cpu.index()];
        let ran = now.saturating_sub(core::mem::replace(&mut c.burned_to, now));
        let e = EntId(c.curr);
        if e.0 == NONE || self.cfg.burn == Burn::TickSampled {
            return;
        }
        let modern = self.modern();
        let ent = &mut self.ents[e.index()];
        ent.carry += ran as i64;
        let unit = CREDIT_NS as i64;
        // 4.2 rounds to the nearest credit and carries the rounding error.
        let round = if modern { 0 } else { unit / 2 };
        let credits = (ent.carry + round).div_euclid(unit);
        ent.carry -= credits * unit;
        self.spend(e, credits);
    }

    pub(super) fn spend(&mut self, e: EntId, credits: i64) {
        let ent = &mut self.ents[e.index()];
        if !(ent.dom0 && self.cfg.patches.dom0_never_over) {
            ent.credit -= credits;
        }
    }

    /// A tick found the entity running: it takes part in the accounting from now on.
    pub(super) fn activate(&mut self, e: EntId) {
        let ent = &mut self.ents[e.index()];
        ent.active = true;
        let d = ent.domain;
        let dom = &mut self.doms[usize::from(d)];
        if dom.active.is_empty() {
            self.active.insert(0, d);
        }
        dom.active.push(e.0);
        self.weight += u64::from(dom.cfg.weight);
    }

    /// The entity earns nothing more until a tick finds it running.
    pub(super) fn deactivate(&mut self, e: EntId) {
        let ent = &mut self.ents[e.index()];
        if !core::mem::replace(&mut ent.active, false) {
            return;
        }
        let d = ent.domain;
        let dom = &mut self.doms[usize::from(d)];
        dom.active.retain(|&o| o != e.0);
        self.weight -= u64::from(dom.cfg.weight);
        if dom.active.is_empty() {
            self.active.retain(|&o| o != d);
        }
    }

    /// Distributes a timeslice's credit of every pCPU, by weight. A domain earns at most what it could burn, or its
    /// cap; what it cannot use goes to the domains after it.
    pub(super) fn account(&mut self, now: Ns) {
        self.counters.accountings += 1;
        let per_slice = (self.cfg.tslice_ns / CREDIT_NS) as i64;
        let weight_total = self.weight as i64;
        let debt = (-self.balance).max(0);
        if weight_total == 0 {
            self.balance = 0;
            return;
        }
        // A negative balance converges to 0.
        let mut total = self.cpus.len() as i64 * per_slice + debt;
        let mut weight_left = weight_total;
        let mut balance = 0;
        let mut extra = false;
        let mut i = 0;
        while let Some(&d) = self.active.get(i) {
            let dom = &self.doms[usize::from(d)];
            let n = dom.active.len() as i64;
            let weight = i64::from(dom.cfg.weight) * n;
            weight_left -= weight;
            let mut peak = n * per_slice + div_up(debt * weight, weight_total);
            let mut cap = 0;
            if dom.cfg.cap_pct != 0 {
                cap = div_up(i64::from(dom.cfg.cap_pct) * per_slice, 100);
                peak = peak.min(cap);
                cap = div_up(cap, n);
            }
            let capped = dom.cfg.cap_pct != 0;
            let mut fair = div_up(total * weight, weight_total);
            if fair < peak {
                extra = true;
            } else {
                if weight_left != 0 {
                    total += div_up((fair - peak) * weight_total, weight_left);
                }
                if extra {
                    // It goes first next time, so that others get its excess.
                    self.active[..=i].rotate_right(1);
                }
                fair = peak;
            }
            let gain = div_up(fair, n);
            let mut at = 0;
            while let Some(&v) = self.doms[usize::from(d)].active.get(at) {
                let e = EntId(v);
                balance += self.earn(now, e, gain, capped.then_some(cap), per_slice);
                at += usize::from(self.ents[e.index()].active);
            }
            // A domain leaves its list together with its last active vCPU.
            let stays = !self.doms[usize::from(d)].active.is_empty();
            i += usize::from(stays);
        }
        self.balance = balance;
        self.accountings += 1;
    }

    /// Gives an active entity its credit and sets its priority; returns its credit.
    fn earn(&mut self, now: Ns, e: EntId, gain: i64, cap: Option<i64>, per_slice: i64) -> i64 {
        let ent = &mut self.ents[e.index()];
        ent.credit += gain;
        if ent.credit < 0 {
            let park = !ent.parked && cap.is_some_and(|cap| ent.credit < -cap);
            ent.credit = ent.credit.max(-per_slice);
            self.set_pri(e, Pri::Over);
            if park {
                self.park(e);
            }
        } else {
            let keeps = ent.dom0
                && ent.pri == Pri::Boost
                && self.cfg.patches.keep_dom0_boost == Patch::AsMeant;
            let (parked, full) = (ent.parked, ent.credit > per_slice);
            if full {
                // It keeps half, to be a little ahead when it comes back.
                ent.credit /= 2;
            }
            if !keeps {
                self.set_pri(e, Pri::Under);
            }
            if parked {
                self.unpark(now, e);
            }
            if full {
                self.deactivate(e);
            }
        }
        self.ents[e.index()].credit
    }

    /// The entity's domain is over its cap: it does not run until it has credit again.
    fn park(&mut self, e: EntId) {
        self.counters.parks += 1;
        let ent = &mut self.ents[e.index()];
        ent.parked = true;
        let (state, cpu) = (ent.state, ent.cpu);
        match state {
            State::Running => self.kick(cpu),
            State::Queued => {
                self.remove(e);
                self.shelve(e);
            }
            State::Blocked | State::Parked | State::Dead => {}
        }
        self.note(Decision::Park, e, cpu);
    }

    /// Parks an entity that could run.
    pub(super) fn shelve(&mut self, e: EntId) {
        self.ents[e.index()].state = State::Parked;
        self.notes.push_back(Note::Parked { ent: e });
    }

    /// Puts an entity back on its queue, without a boost.
    fn unpark(&mut self, now: Ns, e: EntId) {
        let ent = &mut self.ents[e.index()];
        ent.parked = false;
        let cpu = ent.cpu;
        if ent.state == State::Parked {
            self.notes.push_back(Note::Unparked { ent: e });
            let to = if self.may_use(e, cpu) { cpu } else { self.pick(e, true) };
            self.moved(e, to);
            self.insert(now, e, to);
            self.tickle(cpu, to, e);
        }
        self.note(Decision::Unpark, e, cpu);
    }
}

/// `a / b`, rounded up, for values that are not negative.
fn div_up(a: i64, b: i64) -> i64 {
    (a + b - 1) / b
}
