//! Invariants that hold between calls, checked in full.

use vcoop_sched::{CpuId, EntId};

use super::{Credit1, NONE, Pri, State};

impl Credit1 {
    /// Panics with a message if an internal invariant does not hold. Takes *O*(everything); for tests, including those
    /// of drivers.
    pub fn check(&self) {
        for i in 0..self.cpus.len() {
            self.check_cpu(CpuId(i as u32));
        }
        let mut weight = 0;
        for (i, ent) in self.ents.iter().enumerate() {
            let id = EntId(i as u32);
            let on = |c: CpuId| self.cpus[c.index()].queue.iter().filter(|&&e| e == id.0).count();
            let queued: usize = (0..self.cpus.len()).map(|c| on(CpuId(c as u32))).sum();
            assert_eq!(queued, usize::from(ent.state == State::Queued), "{id}: times queued");
            match ent.state {
                State::Running => assert_eq!(self.current(ent.cpu), Some(id), "{id} runs"),
                State::Queued => {
                    assert_eq!(on(ent.cpu), 1, "{id} waits on {}", ent.cpu);
                    assert!(self.masks[i].contains(ent.cpu), "{id} waits where it may not run");
                    assert!(!ent.parked, "{id} waits, but is parked");
                }
                State::Parked => assert!(ent.parked, "{id} is held without reason"),
                State::Blocked | State::Dead => {}
            }
            let dom = &self.doms[usize::from(ent.domain)];
            assert_eq!(ent.active, dom.active.contains(&id.0), "{id}: active list");
            weight += if ent.active { u64::from(dom.cfg.weight) } else { 0 };
            let boosted = ent.dom0 && self.cfg.patches.dom0_always_boosted;
            assert!(!boosted || ent.pri == Pri::Boost, "{id}: dom0 not boosted");
        }
        assert_eq!(weight, self.weight, "weight of all active entities");
        for (d, dom) in self.doms.iter().enumerate() {
            let listed = self.active.iter().filter(|&&a| usize::from(a) == d).count();
            assert_eq!(listed, usize::from(!dom.active.is_empty()), "domain {d}: active list");
        }
    }

    fn check_cpu(&self, cpu: CpuId) {
        let c = &self.cpus[cpu.index()];
        let pri = |e: u32| self.ents[e as usize].pri;
        let better = c.queue.iter().filter(|&&e| pri(e) > Pri::Over).count() as u32;
        assert_eq!(better, c.better, "{cpu}: urgent waiters");
        let here = c.queue.iter().copied().chain((c.curr != NONE).then_some(c.curr));
        let dom0 = here.filter(|&e| self.ents[e as usize].dom0).count() as u32;
        assert_eq!(dom0, c.dom0, "{cpu}: dom0 vCPUs");
        assert_eq!(self.dom0_on.contains(cpu), dom0 > 0, "{cpu}: dom0 set");
        let crowded = c.curr != NONE && !c.queue.is_empty();
        assert_eq!(self.crowded.contains(cpu), crowded, "{cpu}: crowded set");
        assert_eq!(self.urgent.contains(cpu), crowded && better > 0, "{cpu}: urgent set");
        assert!(c.curr == NONE || !self.idlers.contains(cpu), "{cpu} is busy and an idler");
        assert!(c.curr != NONE || c.queue.is_empty() || c.kicked, "{cpu} idles beside work");
        assert_eq!(c.armed, self.deadline(cpu).unwrap_or(super::NEVER), "{cpu}: deadline");
    }
}
