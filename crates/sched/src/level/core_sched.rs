//! Core scheduling: hardware threads of a core run only entities that trust each other.
//!
//! Entities may have a *cookie*. Entities without one trust only each other. The rules are those of Linux since
//! 5.14 (`kernel/sched/core.c` with `CONFIG_SCHED_CORE`, Documentation/admin-guide/hw-vuln/core-scheduling.rst):
//!
//! ```text
//! schedule() on a CPU of a core
//!   a choice for this CPU that is still good -----------------------> it runs
//!   nobody with a cookie, here or on the siblings ------------------> each CPU for itself
//!   else every sibling names its best; the most urgent of them decides the cookie,
//!   and whose best has another one takes its best with this cookie, or idles by force;
//!   siblings that are to run somebody else are kicked -------------> their choice is kept for them
//! ```
//!
//! - Fair entities of different CPUs are compared by virtual time, counted from what their queues had when the core
//!   last began to be forced idle. So an entity that waits for the sibling gains on it.
//! - An entity that is chosen again begins a new turn, and is protected anew (until 6.11; since 6.12 it continues
//!   its turn).
//! - While a sibling is forced idle, a tick lets it choose again once the only fair entity here has used half of
//!   its slice.
//! - A CPU that is forced idle takes an entity with the core's cookie that waits elsewhere.
//! - Balancing treats an entity as cache-hot if the core has another cookie. A search for an idle CPU skips a core
//!   with another cookie.
//!
//! Between the choice and the kick, a sibling still runs what it ran, as in the kernel.
//!
//! There are three differences. Entities of one group are compared by their group's virtual time, not by their own. A
//! sibling that was asked to schedule before, and keeps what it runs, keeps this choice as well. In Linux it chooses
//! again, so that equals with different cookies can undo each other's choices, again and again on a core of four
//! threads. And if an RT or deadline entity waits because of its cookie, though it is better than the running one, its
//! CPU does not schedule again. Linux does (`push_rt_task`, `push_dl_task`) after the switch, and chooses the same
//! entity, or undoes a choice between equals.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::{Level, State};
use crate::class::Class;
use crate::config::{ClassId, Ns, Topology};
use crate::{CpuId, EntId};

/// Urgency of an entity among those of its core: class first, then within the class.
type Urgency = (ClassId, Reverse<i128>);

/// Divisor of the slice after which an entity alone on its CPU lets a forced idle sibling choose:
/// `MIN_NR_TASKS_DURING_FORCEIDLE`.
const SHARERS: u64 = 2;

#[derive(Clone, Copy, Debug)]
struct Core {
    /// The cookie that its CPUs run; 0: no entity with a cookie.
    cookie: u32,
    /// Number of CPUs that are forced idle, and of CPUs that are not idle.
    forced: u32,
    busy: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sibling {
    /// Choice that another CPU of its core made for it, not yet running; the inner `None` is idling.
    choice: Option<Option<EntId>>,
    /// Time since which it is forced idle.
    forced_since: Option<Ns>,
    /// Virtual time of its queue when its core last began to be forced idle.
    base: i64,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct CoreSched {
    threads: u32,
    /// Cookie of each entity; entities behind the end have none.
    cookies: Vec<u32>,
    /// How busy the core of each entity was when it was last chosen.
    occupation: Vec<u32>,
    cores: Vec<Core>,
    cpus: Vec<Sibling>,
    /// Time that CPUs were forced idle, without periods that still last.
    forced_ns: Ns,
}

impl CoreSched {
    fn new(topology: &Topology) -> Self {
        let core = Core { cookie: 0, forced: 0, busy: 0 };
        let cpu = Sibling { choice: None, forced_since: None, base: 0 };
        Self {
            threads: topology.threads_per_core,
            cookies: Vec::new(),
            occupation: Vec::new(),
            cores: vec![core; (topology.cpus() / topology.threads_per_core) as usize],
            cpus: vec![cpu; topology.cpus() as usize],
            forced_ns: 0,
        }
    }

    fn core(&self, cpu: CpuId) -> &Core {
        &self.cores[(cpu.0 / self.threads) as usize]
    }

    fn cookie(&self, e: EntId) -> u32 {
        self.cookies.get(e.index()).copied().unwrap_or(0)
    }

    fn cookie_of(&self, e: Option<EntId>) -> u32 {
        e.map_or(0, |e| self.cookie(e))
    }

    /// The CPUs of a core, the given one first.
    fn siblings(&self, cpu: CpuId) -> impl Iterator<Item = CpuId> + Clone + use<> {
        let (threads, first) = (self.threads, cpu.0 - cpu.0 % self.threads);
        (0..threads).map(move |i| CpuId(first + (cpu.0 - first + i) % threads))
    }

    /// The queue of a CPU changed: the choices for its core may be outdated.
    fn changed(&mut self, cpu: CpuId) {
        for cpu in self.siblings(cpu) {
            self.cpus[cpu.index()].choice = None;
        }
    }

    /// Records how busy the core of an entity is.
    fn occupied(&mut self, e: Option<EntId>, busy: u32) {
        if let Some(occupation) = e.and_then(|e| self.occupation.get_mut(e.index())) {
            *occupation = busy;
        }
    }

    fn set_forced(&mut self, now: Ns, cpu: CpuId, forced: bool) {
        let since = &mut self.cpus[cpu.index()].forced_since;
        match *since {
            None if forced => *since = Some(now),
            Some(from) if !forced => {
                self.forced_ns += now - from;
                *since = None;
            }
            _ => {}
        }
    }
}

impl Level {
    /// Sets the cookie of an entity, as `prctl(PR_SCHED_CORE)` does: no CPU of a core runs it while another one runs an
    /// entity with another cookie, or without one. 0: none. Without any cookie there is no core scheduling.
    pub fn set_cookie(&mut self, e: EntId, cookie: u32) {
        let core = self.core.get_or_insert_with(|| Box::new(CoreSched::new(&self.cfg.topology)));
        if core.cookies.len() <= e.index() {
            core.cookies.resize(e.index() + 1, 0);
            core.occupation.resize(e.index() + 1, 0);
        }
        core.cookies[e.index()] = cookie;
        let ent = &self.ents[e.index()];
        let (cpu, running) = (ent.cpu, ent.state == State::Running);
        core.changed(cpu);
        if running {
            self.kick(cpu, true);
        }
    }

    /// Whether a CPU is idle though an entity waits there, because its core runs another cookie.
    pub fn is_forced_idle(&self, cpu: CpuId) -> bool {
        self.core.as_ref().is_some_and(|core| core.cpus[cpu.index()].forced_since.is_some())
    }

    /// Total time that CPUs were forced idle, each from the choice that made it idle.
    pub fn forced_idle(&self, now: Ns) -> Ns {
        let Some(core) = &self.core else { return 0 };
        let open = core.cpus.iter().filter_map(|cpu| cpu.forced_since);
        core.forced_ns + open.map(|since| now - since).sum::<Ns>()
    }

    /// The queue of a CPU has changed; `empty`: it has no runnable entity any more.
    #[cold]
    pub(super) fn core_changed(&mut self, cpu: CpuId, empty: bool) {
        if let Some(core) = &mut self.core {
            core.changed(cpu);
        }
        if empty && self.is_forced_idle(cpu) {
            self.kick(cpu, true);
        }
    }

    /// Whether an entity fits to what the core of a CPU runs now.
    #[inline]
    pub(super) fn fits_core(&self, e: EntId, cpu: CpuId) -> bool {
        self.core.as_ref().is_none_or(|core| {
            let idle = core.siblings(cpu).all(|c| self.sets.idle.contains(c));
            idle || core.core(cpu).cookie == core.cookie(e)
        })
    }

    /// Whether some CPU of this core is forced idle.
    #[inline]
    pub(super) fn forces(&self, cpu: CpuId) -> bool {
        self.core.as_ref().is_some_and(|core| core.core(cpu).forced > 0)
    }

    /// At a tick: whether the current fair entity should give a forced idle sibling a chance.
    #[inline]
    pub(super) fn tick_for_core(&self, cpu: CpuId, e: EntId) -> bool {
        self.forces(cpu) && self.fair.used_alone(cpu, e, SHARERS)
    }

    /// The entity that runs on `cpu` from now on: `own`, its best, or what the choice for its core leaves it.
    #[cold]
    pub(super) fn pick_for_core(
        &mut self,
        now: Ns,
        cpu: CpuId,
        own: Option<EntId>,
    ) -> Option<EntId> {
        let Some(core) = &mut self.core else { return own };
        if let Some(chosen) = core.cpus[cpu.index()].choice.take() {
            return chosen;
        }
        let Core { cookie, forced, .. } = *core.core(cpu);
        if cookie == 0 && forced == 0 && core.cookie_of(own) == 0 {
            return own;
        }
        let chosen = self.choose(now, cpu);
        if chosen.is_none() && self.forces(cpu) && self.steal_match(now, cpu) {
            return self.choose(now, cpu);
        }
        chosen
    }

    /// A waiting entity is better than the running one and is not pushed away, so it should run on this CPU. With core
    /// scheduling the choice for the core has passed it over for its cookie. Asking again would have the same result,
    /// without end, and each time cost a switch.
    #[inline]
    pub(super) fn runs_here(&mut self, cpu: CpuId, e: EntId) {
        if self.core.is_none() {
            self.check_preempt(cpu, e);
        }
    }

    /// The current entity was chosen again. With core scheduling that begins a new turn with new protection; without,
    /// the turn goes on. Otherwise each check of an unprotected entity by a sibling would ask it to schedule.
    #[cold]
    pub(super) fn begin_again(&mut self, cpu: CpuId, e: EntId) {
        if self.class(e) == ClassId::Fair {
            self.fair.put_prev(cpu, e, None);
            self.fair.set_next(cpu, e);
        }
    }

    /// Chooses for all CPUs of a core, and kicks the others.
    fn choose(&mut self, now: Ns, cpu: CpuId) -> Option<EntId> {
        let siblings = self.core.as_ref()?.siblings(cpu);
        for sibling in siblings.clone() {
            self.charge_between(now, sibling);
        }
        let mut core = self.core.take()?;
        let begins = core.core(cpu).forced == 0;
        let mut max: Option<(Urgency, EntId)> = None;
        for sibling in siblings.clone() {
            if begins {
                core.cpus[sibling.index()].base = self.fair.virtual_time(sibling);
            }
            let Some(best) = self.pick(sibling) else { continue };
            let urgency = self.urgency(&core, sibling, best);
            if max.is_none_or(|(most, _)| urgency > most) {
                max = Some((urgency, best));
            }
        }
        let cookie = core.cookie_of(max.map(|(_, e)| e));
        let (mut own, mut forced, mut busy) = (None, 0, 0);
        for sibling in siblings.clone() {
            let best = self.pick(sibling);
            let fits = core.cookie_of(best) == cookie;
            let chosen = if fits { best } else { self.best_with(&core, sibling, cookie) };
            let idles_by_force = best.is_some() && chosen.is_none();
            core.set_forced(now, sibling, idles_by_force);
            forced += u32::from(idles_by_force);
            busy += u32::from(chosen.is_some());
            if sibling == cpu {
                own = chosen;
            } else {
                let stays = self.current(sibling) == chosen && !self.is_kicked(sibling);
                core.cpus[sibling.index()].choice = (!stays).then_some(chosen);
            }
        }
        let at = (cpu.0 / core.threads) as usize;
        core.cores[at] = Core { cookie, forced, busy };
        for sibling in siblings.clone().skip(1) {
            let stays = core.cpus[sibling.index()].choice.is_none();
            core.occupied(if stays { self.current(sibling) } else { None }, busy);
            core.occupied(core.cpus[sibling.index()].choice.flatten(), busy);
            if !stays {
                self.kick(sibling, true);
            }
        }
        core.occupied(own, busy);
        self.core = Some(core);
        own
    }

    /// How urgent an entity that can run on a CPU is.
    fn urgency(&self, core: &CoreSched, cpu: CpuId, e: EntId) -> Urgency {
        match self.class(e) {
            ClassId::Dl => (ClassId::Dl, Reverse(self.dl.due(e).into())),
            ClassId::Rt => (ClassId::Rt, Reverse(-i128::from(self.rt.prio(e)))),
            // The fair server is a deadline entity.
            ClassId::Fair if self.guard.fair_first(cpu) => {
                (ClassId::Dl, Reverse(self.guard.due(cpu).into()))
            }
            ClassId::Fair => {
                let ahead = self.fair.vruntime(e) - core.cpus[cpu.index()].base;
                (ClassId::Fair, Reverse(ahead.into()))
            }
        }
    }

    /// The most urgent entity of a CPU that has this cookie.
    fn best_with(&self, core: &CoreSched, cpu: CpuId, cookie: u32) -> Option<EntId> {
        if cookie == 0 {
            return None;
        }
        let fits = |e: EntId| core.cookie(e) == cookie;
        let stays = |e: &EntId| {
            let held = match self.class(*e) {
                ClassId::Dl => self.dl.is_held(*e),
                ClassId::Rt => self.guard.holds_rt(cpu),
                ClassId::Fair => self.fair.is_held(*e, cpu),
            };
            fits(*e) && !held && self.is_running(*e)
        };
        let all = [self.current(cpu).filter(stays), self.first_waiting(cpu, fits)];
        let all = all.into_iter().flatten().map(|e| (self.urgency(core, cpu, e), e));
        all.reduce(|a, b| if b.0 > a.0 { b } else { a }).map(|(_, e)| e)
    }

    /// The most urgent entity that waits on a CPU and satisfies `fits`, without throttled ones.
    fn first_waiting(&self, cpu: CpuId, fits: impl Fn(EntId) -> bool) -> Option<EntId> {
        let rt = || if self.guard.holds_rt(cpu) { None } else { self.rt.first(cpu, &fits) };
        self.dl.first(cpu, &fits).or_else(rt).or_else(|| self.fair.first(cpu, &fits))
    }

    /// Moves an entity with the core's cookie to a CPU that would be forced idle: from its siblings, from CPUs that
    /// share its cache, or from any; but none whose core was busier. True if there is one.
    fn steal_match(&mut self, now: Ns, cpu: CpuId) -> bool {
        let Some(core) = &self.core else { return false };
        let Core { cookie, busy, .. } = *core.core(cpu);
        if cookie == 0 {
            return false;
        }
        let first = cpu.0 - cpu.0 % core.threads;
        let spans = [(first, first + core.threads), self.llc(cpu), (0, self.cpus.len() as u32)];
        let after = |(lo, hi): (u32, u32)| (cpu.0 + 1..hi).chain(lo..cpu.0).map(CpuId);
        let found = spans.into_iter().flat_map(after).find_map(|from| {
            let chosen = core.cpus[from.index()].choice.flatten();
            self.first_waiting(from, |e| {
                core.cookie(e) == cookie
                    && core.occupation[e.index()] <= busy
                    && chosen != Some(e)
                    && self.may_use(e, cpu)
            })
        });
        if let Some(e) = found {
            self.transfer(now, e, cpu);
        }
        found.is_some()
    }

    /// See [`Level::check`].
    pub(super) fn check_cores(&self) {
        let Some(core) = &self.core else { return };
        for (i, sibling) in core.cpus.iter().enumerate() {
            let cpu = CpuId(i as u32);
            let asked = self.is_kicked(cpu);
            assert!(asked || sibling.choice.is_none(), "{cpu}: a choice that nobody will take");
            if let Some(e) = sibling.choice.flatten() {
                let here = self.cpu_of(e) == cpu && (self.is_queued(e) || self.is_running(e));
                assert!(here, "{cpu}: {e} was chosen and is not there");
            }
            let forced = sibling.forced_since.is_some();
            let idles = self.current(cpu).is_none() && self.nr_running(cpu) > 0;
            assert!(!forced || idles || asked, "{cpu} does not idle by force");
        }
        for first in (0..core.cpus.len() as u32).step_by(core.threads as usize) {
            let settled = core.siblings(CpuId(first)).filter(|c| !self.is_kicked(*c));
            let mut cookies = settled.filter_map(|c| self.current(c)).map(|e| core.cookie(e));
            if let Some(one) = cookies.next() {
                assert!(cookies.all(|other| other == one), "two cookies on the core of cpu{first}");
            }
        }
    }
}
