//! Invariants that hold between calls, checked by plain recomputation.

use super::{Level, State};
use crate::CpuId;
use crate::config::{ClassId, Policy};
use crate::dl::NEVER;
use crate::heap::NONE;
use crate::rt::DEADLINE;

impl Level {
    /// Checks where an entity should run, and that the mask leaves some CPU.
    fn check_open(&self, e: crate::EntId) {
        let i = e.index();
        let open = self.open[i];
        assert!(!open.is_empty(), "{e}: no CPU to run on");
        let closed = |c: CpuId| self.avoided.contains(c) || self.offline.contains(c);
        let kept_off = open.iter().any(|c| self.avoided.contains(c));
        let heeds = self.class(e) != ClassId::Dl;
        assert!(!open.iter().any(|c| self.offline.contains(c)), "{e}: offline CPUs in {open:?}");
        let own_open = self.masks[i].iter().any(|c| !closed(c));
        assert!(!(heeds && kept_off && own_open), "{e}: CPUs to keep off in {open:?}");
        for cpu in self.masks[i].iter().filter(|&c| !closed(c)) {
            assert!(open.contains(cpu), "{e}: {cpu} is not in {open:?}");
        }
    }

    /// Panics, naming what is wrong, if an internal invariant does not hold. Costs *O*(everything);
    /// for tests, also those of drivers.
    ///
    /// Among others: heap order and subtree minima; sums behind the EEVDF mean, the mean and the
    /// pick against a plain recomputation; RT lists; idle, crowded and priority sets; counts,
    /// loads and states; every waiting entity on a CPU it may use.
    pub fn check(&self) {
        for i in 0..self.cpus.len() {
            self.check_cpu(CpuId(i as u32));
        }
        for (i, ent) in self.ents.iter().enumerate() {
            let id = crate::EntId(i as u32);
            assert_eq!(ent.allowed, self.open[i].len(), "{id}: allowed CPUs");
            self.check_open(id);
            let policy = self.policies[i];
            assert_eq!(
                (ent.class, ent.idle),
                (ClassId::of(&policy), policy == Policy::Idle),
                "{id}: policy"
            );
            match ent.state {
                State::Running => assert_eq!(self.current(ent.cpu), Some(id), "{id} runs"),
                State::Queued => assert!(
                    self.may_stay(id, ent.cpu),
                    "{id} waits on {}, allowed {:?}",
                    ent.cpu,
                    self.masks[i]
                ),
                State::Waking => assert!(
                    self.wake_lists[ent.cpu.index()].contains(&id) && self.may_stay(id, ent.cpu),
                    "{id} is on the wake list of {}",
                    ent.cpu
                ),
                State::Blocked | State::Dead => {}
            }
        }
        self.fair.check();
        self.check_cores();
    }

    fn check_cpu(&self, cpu: CpuId) {
        let c = &self.cpus[cpu.index()];
        // Entities that a quota holds back do not count.
        let here = || {
            let ents = self.ents.iter().enumerate();
            let on = ents
                .filter(|(_, e)| e.cpu == cpu && matches!(e.state, State::Queued | State::Running));
            on.filter(|(i, e)| {
                e.class != ClassId::Fair || !self.fair.is_held(crate::EntId(*i as u32), cpu)
            })
            .map(|(_, e)| e)
        };
        let rt = here().filter(|e| e.class == ClassId::Rt).count() as u32;
        assert_eq!(rt, c.nr_rt, "{cpu}: RT entities");
        let dl = here().filter(|e| e.class == ClassId::Dl).count() as u32;
        assert_eq!(dl, c.nr_dl + c.nr_held, "{cpu}: deadline entities");
        assert_eq!(here().count() as u32 - rt - dl, c.nr_fair, "{cpu}: fair entities");
        assert_eq!(c.nr_fair, self.fair.tasks(cpu), "{cpu}: tasks of the fair class");
        let idle = here().filter(|e| e.idle).count() as u32;
        assert_eq!(idle, c.nr_idle, "{cpu}: SCHED_IDLE entities");
        assert_eq!(here().filter(|e| e.state == State::Running).count(), (c.curr != NONE).into());

        let list = &self.wake_lists[cpu.index()];
        let waking = |e: &crate::EntId| self.ents[e.index()].state == State::Waking;
        assert!(list.iter().all(waking) && c.has_woken != list.is_empty(), "{cpu}: wake list");

        let waiting = self.rt.check(cpu);
        let curr_rt = self.current(cpu).is_some_and(|e| self.policy(e).is_rt());
        assert_eq!(waiting.len() as u32 + u32::from(curr_rt), rt, "{cpu}: RT lists");
        let (waiting, held) = self.dl.check(cpu);
        let curr_dl = self.current(cpu).is_some_and(|e| self.policy(e).is_deadline());
        assert_eq!((waiting + u32::from(curr_dl), held), (c.nr_dl, c.nr_held), "{cpu}: deadlines");
        let best = if self.dl.earliest(cpu) != NEVER { DEADLINE } else { self.rt.highest(cpu) };
        assert_eq!(self.pri.level(cpu), best, "{cpu}: best priority");

        let held = if self.guard.holds_rt(cpu) { rt } else { 0 };
        let nr = rt - held + c.nr_dl + c.nr_fair;
        if self.is_single() {
            assert!(c.curr != NONE || nr == 0 || self.is_kicked(cpu), "{cpu} idles beside work");
            return;
        }
        assert_eq!(self.sets.idle.contains(cpu), nr == 0 && !c.has_woken, "{cpu}: idle set");
        assert_eq!(
            self.sets.crowded.contains(cpu),
            nr >= 2 && c.nr_fair > 0 && !c.spared,
            "{cpu}: crowded"
        );
        assert_eq!(self.sets.only_idle.contains(cpu), nr > 0 && nr == idle, "{cpu}: only idle");
        let t = self.topology();
        if t.threads_per_core > 1 {
            let first = t.core(cpu.0) * t.threads_per_core;
            let all =
                (first..first + t.threads_per_core).all(|i| self.sets.idle.contains(CpuId(i)));
            assert_eq!(self.sets.idle_cores.contains(CpuId(first)), all, "{cpu}: idle core");
        }
        // An entity that could run is running or has been announced, or waits for its core.
        let excused = self.is_kicked(cpu) || self.is_forced_idle(cpu);
        assert!(c.curr != NONE || nr == 0 || excused, "{cpu} idles beside work");
    }
}
