//! VMs that are created during the run.
//!
//! ```text
//! storm    asks -> [interrupt] -> batch begins -> ... all have reached the milestone -> [gap] -> asks
//! each VM  not there -> toolstack's call -> backend's calls -> VMStart -> boot program -> VMLogin
//! ```
//!
//! The caller that builds a VM is not a task. Its calls come from the CPU of the toolstack (or of the backend, if there
//! is no toolstack). It makes the next call as soon as one is answered, and costs only what messages cost. The last
//! step, from a guest, is a hypercall.

use std::ops::Range;

use vcoop_model::plan::{
    DensityPlan, Milestone, Plan, Program, Score, StormPlan, Target, TaskPlan,
};
use vcoop_model::recording::{Mark, MarkKind, Recording};

use crate::attribution::track::NONE;
use crate::clock::{Clock, Event};
use crate::messages::call::Calls;
use crate::queue::Ns;

/// Fewest actions that a mean is taken of.
const LEAST_MEAN: u64 = 5;
/// Fewest actions that a 95 % quantile is taken of.
const LEAST_P95: u64 = 20;

/// A VM of a storm has reached a milestone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MilestoneReached {
    pub(crate) storm: u32,
    pub(crate) milestone: Milestone,
    /// Its rank among the VMs of its storm.
    pub(crate) number: u32,
    pub(crate) vm: u32,
}

/// A VM of a storm.
#[derive(Clone, Copy, Debug)]
struct VmCreation {
    storm: u32,
    /// Its number in the storm, from 1.
    number: u32,
    vm: u32,
    /// Number of its builder among clients; [`NONE`]: it has none.
    client: u32,
    /// Calls made for it.
    calls: u32,
    /// When its batch began; `None` before.
    requested: Option<Ns>,
    /// VMStart.
    started: Option<Ns>,
    /// VMLogin.
    login: Option<Ns>,
}

/// A storm in progress.
#[derive(Clone, Debug)]
struct Storm {
    /// Its first VM in [`Storms::births`]; they are adjacent.
    first: u32,
    /// VMs asked for.
    requested: u32,
    /// VMs started.
    started: u32,
    /// Login times, in order.
    logins: Vec<Ns>,
    /// Actions, by the number of VMs that were logged in when they began.
    responses: Vec<Responses>,
}

/// Response times, as far as the density score needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Responses {
    count: u64,
    /// Those over the limit.
    over: u64,
    sum_ns: u128,
}

/// All storms.
#[derive(Clone, Debug)]
pub(crate) struct Storms<'p> {
    plan: &'p Plan,
    all: Vec<Storm>,
    births: Vec<VmCreation>,
    marks: Vec<Mark>,
}

impl<'p> Storms<'p> {
    /// The storms of a plan, before they begin. Adds the builders of VMs to the clients. `first`: first vCPU of a VM.
    pub(crate) fn new(plan: &'p Plan, calls: &mut Calls, first: impl Fn(u32) -> u32) -> Self {
        let mut storms = Self { plan, all: Vec::new(), births: Vec::new(), marks: Vec::new() };
        for (s, storm) in (0..).zip(&plan.storms) {
            storms.all.push(Storm {
                first: storms.births.len() as u32,
                requested: 0,
                started: 0,
                logins: Vec::with_capacity(storm.vms.len()),
                responses: vec![Responses::default(); storm.vms.len() + 1],
            });
            for (i, &vm) in (0..).zip(&storm.vms) {
                let birth = storms.births.len() as u32;
                let client = server(storm, i, 0).map_or(NONE, |at| {
                    let irq_vcpu = match at {
                        Target::Host(_) => 0,
                        Target::Guest { vm, .. } => first(vm) + irq_vcpu(plan, at),
                    };
                    calls.enter_builder(birth, at, irq_vcpu)
                });
                storms.births.push(VmCreation {
                    storm: s,
                    number: i + 1,
                    vm,
                    client,
                    calls: 0,
                    requested: None,
                    started: None,
                    login: None,
                });
            }
        }
        storms
    }

    /// The VMs, by number over all storms.
    pub(crate) fn vms(&self) -> impl Iterator<Item = u32> + '_ {
        self.births.iter().map(|birth| birth.vm)
    }

    /// Schedules the begin of each storm.
    pub(crate) fn start(&self, clock: &mut Clock) {
        for (s, storm) in (0..).zip(&self.plan.storms).filter(|(_, storm)| !storm.vms.is_empty()) {
            clock.set(Event::Storm(s), storm.begin_ns);
        }
    }

    /// Receiver of the request for a storm's next batch, if there is one: the task that builds its first VM, or else
    /// that VM.
    pub(crate) fn next_request(&self, s: u32) -> Option<(Option<Target>, u32)> {
        let (plan, storm) = (&self.plan.storms[s as usize], &self.all[s as usize]);
        if storm.requested as usize == plan.vms.len() {
            return None;
        }
        let birth = &self.births[(storm.first + storm.requested) as usize];
        Some((server(plan, birth.number - 1, 0), birth.vm))
    }

    /// A batch begins. Returns its VMs.
    pub(crate) fn request(&mut self, s: u32, now: Ns) -> Range<u32> {
        let plan = &self.plan.storms[s as usize];
        let storm = &mut self.all[s as usize];
        let (from, all) = (storm.requested, plan.vms.len() as u32);
        // A rolling storm starts as many VMs as there are places free.
        let underway = if plan.rolling { from - storm.there(plan.next) } else { 0 };
        storm.requested = (from + plan.batch.saturating_sub(underway)).min(all);
        let births = storm.first + from..storm.first + storm.requested;
        for birth in births.clone() {
            let b = &mut self.births[birth as usize];
            b.requested = Some(now);
            let number = b.number;
            self.mark(MarkKind::Requested, birth, number, now);
        }
        births
    }

    /// Client and server of the next call for a VM; `None`: it can start.
    pub(crate) fn next_call(&mut self, birth: u32) -> Option<(u32, Target)> {
        let b = &mut self.births[birth as usize];
        let next = server(&self.plan.storms[b.storm as usize], b.number - 1, b.calls);
        b.calls += 1;
        Some((b.client, next?))
    }

    /// VMStart.
    pub(crate) fn started(&mut self, birth: u32, now: Ns) -> MilestoneReached {
        let b = &mut self.births[birth as usize];
        b.started = Some(now);
        let storm = &mut self.all[b.storm as usize];
        storm.started += 1;
        let number = storm.started;
        self.mark(MarkKind::Started, birth, number, now);
        self.reached(birth, Milestone::Start, number)
    }

    /// VMLogin.
    pub(crate) fn logged_in(&mut self, birth: u32, now: Ns) -> MilestoneReached {
        let b = &mut self.births[birth as usize];
        b.login = Some(now);
        let storm = &mut self.all[b.storm as usize];
        storm.logins.push(now);
        let number = storm.logins.len() as u32;
        self.mark(MarkKind::LoggedIn, birth, number, now);
        self.reached(birth, Milestone::Login, number)
    }

    fn reached(&self, birth: u32, milestone: Milestone, number: u32) -> MilestoneReached {
        let b = &self.births[birth as usize];
        MilestoneReached { storm: b.storm, milestone, number, vm: b.vm }
    }

    fn mark(&mut self, kind: MarkKind, birth: u32, number: u32, now: Ns) {
        let b = &self.births[birth as usize];
        // No storm begins in the warm-up.
        let at_ns = now.saturating_sub(self.plan.warmup_ns);
        self.marks.push(Mark { kind, storm: b.storm, vm: b.number, number, at_ns });
    }

    /// A VM has reached a milestone. If that completes its batch, or leaves a place, the next batch comes after the
    /// gap.
    pub(crate) fn goes_on(&self, after: MilestoneReached, clock: &mut Clock) {
        let plan = &self.plan.storms[after.storm as usize];
        let storm = &self.all[after.storm as usize];
        let event = Event::Storm(after.storm);
        let goes_on = match plan.rolling {
            // A start that is already due takes this place as well.
            true => !clock.is_pending(event),
            false => storm.there(plan.next) == storm.requested,
        };
        let more = (storm.requested as usize) < plan.vms.len();
        if after.milestone == plan.next && goes_on && more {
            clock.set(event, clock.now() + plan.gap_ns);
        }
    }

    /// A desktop of a VM has completed the action due at `due`.
    pub(crate) fn responded(&mut self, birth: u32, due: Ns, took: Ns) {
        let Some(b) = self.births.get(birth as usize) else { return };
        let Some(density) = self.plan.storms[b.storm as usize].density else { return };
        let storm = &mut self.all[b.storm as usize];
        let n = storm.logins.partition_point(|login| *login <= due);
        let begun = n.checked_sub(1).map_or(0, |last| storm.logins[last]);
        if density.window_ns.is_none_or(|window| due - begun <= window) {
            let r = &mut storm.responses[n];
            r.count += 1;
            r.over += u64::from(took > density.limit_ns);
            r.sum_ns += u128::from(took);
        }
    }

    /// The limit of the response time of a VM's storm.
    pub(crate) fn limit_ns(&self, birth: u32) -> Option<Ns> {
        let b = self.births.get(birth as usize)?;
        Some(self.plan.storms[b.storm as usize].density?.limit_ns)
    }

    /// When tasks of a VM begin that start with it, or after its login. For a VM outside of storms: the begin of the
    /// run.
    pub(crate) fn begun(&self, birth: u32, after_login: bool) -> Option<Ns> {
        match self.births.get(birth as usize) {
            None => Some(0),
            Some(birth) if after_login => birth.login,
            Some(birth) => birth.started,
        }
    }

    /// The events of the VMs, by time.
    pub(crate) fn finish(self) -> Vec<Mark> {
        self.marks
    }

    /// Results of each storm, by its label. A VM that was `asked` for and has not started when the run ends counts as
    /// far as it has come: where `started` or `logged_in` is less, times are lower bounds.
    pub(crate) fn put_scalars(&self, end: Ns, into: &mut Recording) {
        let plan = self.plan;
        for (storm, s) in plan.storms.iter().zip(&self.all) {
            let births = &self.births[s.first as usize..][..storm.vms.len()];
            let seconds = |ns: Ns| ns as f64 / 1e9;
            let asked = births.iter().filter(|b| b.requested.is_some()).count();
            into.put(&storm.label, "asked", "count", asked as f64);
            let mut milestone = |reached: &str, name: &str, at: fn(&VmCreation) -> Option<Ns>| {
                let there = births.iter().filter(|b| at(b).is_some()).count();
                into.put(&storm.label, reached, "count", there as f64);
                // The last one, and what each took since its batch began.
                let all = births.iter().map(|b| at(b).unwrap_or(end)).max().unwrap_or(end);
                let total = all.saturating_sub(storm.begin_ns);
                into.put(&storm.label, &format!("{name}_total"), "s", seconds(total));
                let took = births.iter().filter_map(|b| Some(at(b).unwrap_or(end) - b.requested?));
                let (sum, n) = took.fold((0u128, 0), |(sum, n), ns| (sum + u128::from(ns), n + 1));
                if n > 0 {
                    let mean = sum as f64 / 1e9 / f64::from(n);
                    into.put(&storm.label, &format!("{name}_mean"), "s", mean);
                }
            };
            milestone("started", "start", |b| b.started);
            let boots = |t: &TaskPlan| matches!(t.program, Program::Boot { .. });
            let vm = storm.vms.first().map(|vm| &plan.vms[*vm as usize]);
            let Some(vm) = vm.filter(|vm| vm.tasks.iter().any(boots)) else { continue };
            milestone("logged_in", "login", |b| b.login);
            let desktops = |t: &TaskPlan| matches!(t.program, Program::Desktop { .. });
            let Some(density) = storm.density.filter(|_| vm.tasks.iter().any(desktops)) else {
                continue;
            };
            let (vms, passed) = s.density(&density);
            into.put(&storm.label, "density", "VMs", f64::from(vms));
            into.put(&storm.label, "limit_passed", "count", f64::from(u8::from(passed)));
        }
    }
}

/// Server of the next call of the builder of a storm's `i`th VM, after so many calls.
fn server(storm: &StormPlan, i: u32, calls: u32) -> Option<Target> {
    let turn = |servers: &[Target]| servers.get(i as usize % servers.len().max(1)).copied();
    let builds = u32::from(!storm.toolstack.is_empty());
    if calls < builds {
        return turn(&storm.toolstack);
    }
    if calls - builds < storm.devices { turn(&storm.backend) } else { None }
}

/// The vCPU that messages to a server interrupt.
pub(crate) fn irq_vcpu(plan: &Plan, at: Target) -> u32 {
    match at {
        Target::Host(_) => 0,
        Target::Guest { vm, task } => match plan.vms[vm as usize].tasks[task as usize].program {
            Program::Serve { irq_vcpu, .. } => irq_vcpu,
            _ => 0,
        },
    }
}

impl Storm {
    /// How many VMs have reached a milestone.
    fn there(&self, milestone: Milestone) -> u32 {
        match milestone {
            Milestone::Start => self.started,
            Milestone::Login => self.logins.len() as u32,
        }
    }

    /// How many VMs were logged in before the response time passed the limit, and whether it did.
    ///
    /// If too few actions began between two logins, those up to the next login count as well, and so on.
    fn density(&self, plan: &DensityPlan) -> (u32, bool) {
        let mut pool = Responses::default();
        let mut from = 0;
        for (n, r) in (0..).zip(&self.responses) {
            if pool.count == 0 {
                from = n;
            }
            pool.count += r.count;
            pool.over += r.over;
            pool.sum_ns += r.sum_ns;
            let (least, passed) = match plan.score {
                Score::P95 => (LEAST_P95, pool.over * 20 > pool.count),
                Score::Mean => {
                    let limit = u128::from(plan.limit_ns) * u128::from(pool.count);
                    (LEAST_MEAN, pool.sum_ns > limit)
                }
            };
            if pool.count < least {
                continue;
            }
            if passed {
                return (u32::saturating_sub(from, 1), true);
            }
            pool = Responses::default();
        }
        (self.logins.len() as u32, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Entities;
    use vcoop_testing::rig::builtin;

    fn storm(responses: &[(u64, u64, u128)], logins: u32) -> Storm {
        let of = |&(count, over, sum_ns): &(u64, u64, u128)| Responses { count, over, sum_ns };
        Storm {
            first: 0,
            requested: logins,
            started: logins,
            logins: (0..logins).map(Ns::from).collect(),
            responses: responses.iter().map(of).collect(),
        }
    }

    #[test]
    fn density_is_the_vms_before_the_limit_is_passed() {
        let p95 = DensityPlan { limit_ns: 100, score: Score::P95, window_ns: None };
        // With 3 VMs logged in two of 40 are over: 5 %, and 2 more with 4 VMs are too many.
        let s = storm(&[(0, 0, 0), (30, 0, 0), (20, 1, 0), (40, 2, 0), (30, 2, 0)], 4);
        assert_eq!(s.density(&p95), (3, true));
        let s = storm(&[(0, 0, 0), (30, 0, 0), (20, 1, 0), (40, 2, 0), (40, 2, 0)], 4);
        assert_eq!(s.density(&p95), (4, false));
        // Too few with 2 VMs: together with those at 3 they pass it.
        let s = storm(&[(0, 0, 0), (20, 0, 0), (19, 1, 0), (19, 1, 0), (9, 9, 0)], 4);
        assert_eq!(s.density(&p95), (1, true));
        let mean = DensityPlan { score: Score::Mean, ..p95 };
        let s = storm(&[(0, 0, 0), (5, 0, 500), (5, 0, 501)], 2);
        assert_eq!(s.density(&mean), (1, true));
    }

    #[test]
    fn a_batch_waits_for_the_one_before_it_and_a_rolling_storm_for_a_place() {
        for rolling in [false, true] {
            let mut plan = builtin("busy-host-1", &[], &[]).remove(0);
            let storm = StormPlan {
                label: "vm".into(),
                vms: vec![5, 6, 7, 8],
                batch: 2,
                next: Milestone::Start,
                rolling,
                begin_ns: 100,
                gap_ns: 10,
                toolstack: vec![Target::Host(0)],
                devices: 1,
                backend: vec![Target::Host(1), Target::Host(2)],
                density: None,
            };
            plan.storms = vec![storm];
            let mut clock = Clock::new(&Entities { pcpus: 1, storms: 1, ..Entities::default() });
            let mut storms = Storms::new(&plan, &mut Calls::default(), |_| 0);
            storms.start(&mut clock);
            assert_eq!(clock.next(), Some((100, Event::Storm(0))));
            clock.advance(100);
            assert_eq!(storms.next_request(0), Some((Some(Target::Host(0)), 5)));
            assert_eq!(storms.request(0, 100), 0..2);
            assert_eq!(storms.next_call(1), Some((1, Target::Host(0))), "the toolstack");
            assert_eq!(storms.next_call(1), Some((1, Target::Host(2))), "the second VM's backend");
            assert_eq!(storms.next_call(1), None);
            clock.advance(200);
            let second = storms.started(1, 200);
            let first =
                MilestoneReached { storm: 0, milestone: Milestone::Start, number: 1, vm: 6 };
            assert_eq!(second, first, "it started first");
            storms.goes_on(second, &mut clock);
            assert_eq!(clock.is_pending(Event::Storm(0)), rolling);
            let last = storms.started(0, 200);
            storms.goes_on(last, &mut clock);
            assert_eq!(clock.next(), Some((210, Event::Storm(0))));
            assert_eq!((storms.begun(0, false), storms.begun(2, false)), (Some(200), None));
            assert_eq!(storms.begun(NONE, false), Some(0), "in no storm");
            assert_eq!(storms.finish().len(), 4);
        }
    }
}
