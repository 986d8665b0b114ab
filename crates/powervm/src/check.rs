//! Invariants, for tests.

use vcoop_sched::{CpuId, EntId};

use super::{NONE, Pool, State, VpState};

impl Pool {
    /// Panics if the pool's state is inconsistent, or if a core idles while a virtual processor could have it.
    pub fn check(&self) {
        for (v, vp) in self.vps.iter().enumerate() {
            let id = v as u32;
            let of = |state: State| {
                self.members(id).filter(|&e| self.ents[e as usize].state == state).count()
            };
            let runnable = of(State::Ready) + of(State::Running);
            assert_eq!(runnable, vp.runnable as usize, "vp{v}: threads that can run");
            assert!(vp.left <= vp.share, "vp{v} has more than its share");
            assert_eq!(
                vp.place == VpState::Away,
                runnable == 0 && vp.place != VpState::On,
                "vp{v}"
            );
            let on = self.cores.iter().filter(|c| c.vp == id).count();
            assert_eq!(on, usize::from(vp.place == VpState::On), "vp{v}: cores");
            let part = &self.parts[usize::from(vp.partition)];
            let spare = part.waiting.iter().filter(|&&o| o == id).count();
            assert_eq!(
                spare,
                usize::from(vp.place == VpState::Spare),
                "vp{v}: line for spare time"
            );
            let ready = self.ready.contains(&(vp.seq, id));
            assert_eq!(ready, vp.place == VpState::Ready, "vp{v}: line");
            let rush = self.rush.contains(&id);
            assert_eq!(rush, vp.rushed, "vp{v}: rushed");
            let at = self.window_end.saturating_sub(vp.left);
            let urgent = self.urgent.contains(&(at, id));
            assert_eq!(urgent, ready && vp.steady && !rush, "vp{v}: moment to run");
            assert!(!ready || vp.left > 0, "vp{v} waits for what it used up");
            let capped = vp.place != VpState::Spare || part.weight > 0;
            assert!(capped, "vp{v} is capped and waits for spare time");
        }
        assert_eq!(self.urgent.len() + self.rush.len(), {
            let steady = |&&(_, v): &&(u64, u32)| self.vps[v as usize].steady;
            self.ready.iter().filter(steady).count()
        });
        for core in 0..self.cores.len() as u32 {
            self.check_core(core);
        }
        let waits = self.parts.iter().map(|p| p.waiting.len()).sum::<usize>();
        assert_eq!(waits, self.spare_waits as usize, "waits for spare time");
        let confers = |e: &&super::Ent| e.confers_to != NONE;
        let all = self.ents.iter().filter(confers);
        assert!(all.clone().all(|e| e.state == State::Running), "only who runs confers time");
        assert_eq!(all.count(), self.conferring as usize);
        let wait = self.ready.len() + waits;
        assert!(self.idle.is_empty() || wait == 0, "{wait} wait beside an idle core");
        for cpu in (0..self.cpus.len() as u32).map(CpuId) {
            let armed = self.cpus[cpu.index()].armed;
            assert_eq!(armed, self.deadline(cpu).unwrap_or(super::NEVER), "{cpu}: deadline");
        }
    }

    fn check_core(&self, core: u32) {
        let c = &self.cores[core as usize];
        let cpus = core * self.threads..(core + 1) * self.threads;
        let running: Vec<u32> =
            cpus.map(|cpu| self.cpus[cpu as usize].curr).filter(|&e| e != NONE).collect();
        assert_eq!(running.len(), c.running as usize, "core{core}: running threads");
        for &e in &running {
            let ent = &self.ents[e as usize];
            assert_eq!(ent.vp, c.vp, "core{core} runs threads of two virtual processors");
            assert_eq!(ent.state, State::Running, "{}", EntId(e));
            assert_eq!(ent.cpu.0, core * self.threads + ent.lane, "{}: lane", EntId(e));
        }
        assert_eq!(self.idle.contains(CpuId(core)), c.vp == NONE, "core{core}: idle");
        let spare = c.spare && !c.leaving;
        assert_eq!(self.spare.contains(CpuId(core)), spare, "core{core}: spare time");
        assert!(!c.leaving || c.vp != NONE, "nobody leaves core{core}");
        if c.vp == NONE || c.leaving {
            return;
        }
        for e in self.members(c.vp) {
            let ent = &self.ents[e as usize];
            let kicked = self.cpus[ent.cpu.index()].kicked;
            assert!(ent.state != State::Ready || kicked, "{} waits on its own core", EntId(e));
        }
    }
}
