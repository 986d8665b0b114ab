//! VMs that come while the run goes on.
//!
//! ```text
//! storm    asks -> [interrupt] -> batch begins -> ... all have reached the milestone -> [gap] -> asks
//! each VM  not there -> toolstack's call -> backend's calls -> VMStart -> boot program -> VMLogin
//! ```
//!
//! Who builds a VM is no task: its calls come from beside the toolstack (or the backend, where there is
//! no toolstack), go on at once with each answer, and cost only what messages cost. The last step, from
//! a guest, is a hypercall.

use vcoop_model::plan::{
    DensityPlan, Milestone, Plan, Program, Score, StormPlan, Target, TaskPlan,
};
use vcoop_model::recording::{Mark, MarkKind};
use vcoop_policy::Injection;
use vcoop_sched::Waker;

use crate::attribution::track::NONE;
use crate::clock::Event;
use crate::interrupts::guest_timer::TimerFor;
use crate::interrupts::lapic;
use crate::machine::{Exit, Irq, vector};
use crate::messages::call::Calls;
use crate::queue::Ns;
use crate::world::World;

/// Fewest actions that a mean is taken of.
const LEAST_MEAN: u64 = 5;
/// Fewest actions that a 95 % quantile is taken of.
const LEAST_P95: u64 = 20;

/// A VM of a storm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth {
    storm: u32,
    /// Its number in the storm, from 1.
    number: u32,
    pub(crate) vm: u32,
    /// Who builds it, among those who call; [`NONE`]: nobody need.
    client: u32,
    /// Calls made for it.
    calls: u32,
    /// When its batch began; `None` before.
    pub(crate) requested: Option<Ns>,
    /// VMStart.
    pub(crate) started: Option<Ns>,
    /// VMLogin.
    pub(crate) login: Option<Ns>,
}

/// A storm in progress.
#[derive(Clone, Debug)]
pub(crate) struct Storm {
    /// Its first VM in [`Storms::births`]; they stand side by side.
    pub(crate) first: u32,
    /// VMs asked for.
    requested: u32,
    /// VMs started.
    started: u32,
    /// When each logged in, one after the other.
    logins: Vec<Ns>,
    /// Actions by the number of VMs that were logged in when they began.
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
#[derive(Clone, Debug, Default)]
pub(crate) struct Storms {
    pub(crate) all: Vec<Storm>,
    pub(crate) births: Vec<Birth>,
    pub(crate) marks: Vec<Mark>,
}

impl Storms {
    /// The storms of a plan, before they begin; enters who builds the VMs among those who call.
    /// `first` gives the first vCPU of a VM.
    pub(crate) fn new(plan: &Plan, calls: &mut Calls, first: impl Fn(u32) -> u32) -> Self {
        let mut storms = Self::default();
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
                storms.births.push(Birth {
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
}

impl Storms {
    /// What became of each storm, by its label. A VM that has been asked for and is not there when the
    /// run ends counts as far as it has come: a lower bound, as `started` and `logged_in` show.
    pub(crate) fn scalars(
        &self,
        plan: &Plan,
        end: Ns,
        put: &mut impl FnMut(&str, &str, &'static str, f64),
    ) {
        for (storm, s) in plan.storms.iter().zip(&self.all) {
            let births = &self.births[s.first as usize..][..storm.vms.len()];
            let seconds = |ns: Ns| ns as f64 / 1e9;
            let mut milestone = |reached: &str, name: &str, at: fn(&Birth) -> Option<Ns>| {
                let there = births.iter().filter(|b| at(b).is_some()).count();
                put(&storm.label, reached, "count", there as f64);
                // The last one, and what each took since its batch began.
                let all = births.iter().map(|b| at(b).unwrap_or(end)).max().unwrap_or(end);
                let total = all.saturating_sub(storm.begin_ns);
                put(&storm.label, &format!("{name}_total"), "s", seconds(total));
                let took = births.iter().filter_map(|b| Some(at(b).unwrap_or(end) - b.requested?));
                let (sum, n) = took.fold((0u128, 0), |(sum, n), ns| (sum + u128::from(ns), n + 1));
                if n > 0 {
                    put(
                        &storm.label,
                        &format!("{name}_mean"),
                        "s",
                        sum as f64 / 1e9 / f64::from(n),
                    );
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
            put(&storm.label, "density", "VMs", f64::from(vms));
            put(&storm.label, "limit_passed", "count", f64::from(u8::from(passed)));
        }
    }
}

/// Whom the builder of a storm's `i`th VM calls after so many calls.
fn server(storm: &StormPlan, i: u32, calls: u32) -> Option<Target> {
    let turn = |servers: &[Target]| servers.get(i as usize % servers.len().max(1)).copied();
    let builds = u32::from(!storm.toolstack.is_empty());
    if calls < builds {
        return turn(&storm.toolstack);
    }
    if calls - builds < storm.devices { turn(&storm.backend) } else { None }
}

/// The vCPU at which messages reach a server.
fn irq_vcpu(plan: &Plan, at: Target) -> u32 {
    match at {
        Target::Host(_) => 0,
        Target::Guest { vm, task } => match plan.vms[vm as usize].tasks[task as usize].program {
            Program::Serve { irq_vcpu, .. } => irq_vcpu,
            _ => 0,
        },
    }
}

impl World<'_> {
    /// The next batch of a storm is due: its request reaches the pCPU where it is looked at.
    pub(crate) fn storm_asks(&mut self, s: u32) {
        let storm = &self.storms.all[s as usize];
        if storm.requested as usize == self.plan.storms[s as usize].vms.len() {
            return;
        }
        let next = storm.first + storm.requested;
        let birth = self.storms.births[next as usize];
        let at = server(&self.plan.storms[s as usize], birth.number - 1, 0);
        let thread = match at {
            Some(Target::Host(t)) => t,
            Some(Target::Guest { vm, .. }) => {
                let first = self.vms[vm as usize].first;
                self.vcpus[(first + at.map_or(0, |at| irq_vcpu(self.plan, at))) as usize].thread
            }
            None => self.vcpus[self.vms[birth.vm as usize].first as usize].thread,
        };
        let p = self.host.cpu_of(vcoop_sched::EntId(thread)).0;
        self.interrupt(p, Irq::Storm(s));
    }

    /// A batch of a storm begins, in an interrupt's handler.
    pub(crate) fn batch_begins(&mut self, s: u32) {
        let plan = &self.plan.storms[s as usize];
        let storm = &mut self.storms.all[s as usize];
        let (from, all) = (storm.requested, plan.vms.len() as u32);
        // Of a rolling storm: as many as there are places.
        let underway = if plan.rolling { from - storm.there(plan.next) } else { 0 };
        storm.requested = (from + plan.batch.saturating_sub(underway)).min(all);
        let births = storm.first + from..storm.first + storm.requested;
        for birth in births.clone() {
            self.storms.births[birth as usize].requested = Some(self.clock.now());
            self.mark(MarkKind::Requested, birth, self.storms.births[birth as usize].number);
        }
        for birth in births {
            self.build_goes_on(birth, None);
        }
    }

    /// The next call for a VM, or its start: in a handler of the host, or in guest mode of a vCPU.
    pub(crate) fn build_goes_on(&mut self, birth: u32, guest: Option<u32>) {
        let b = &mut self.storms.births[birth as usize];
        let storm = &self.plan.storms[b.storm as usize];
        let next = server(storm, b.number - 1, b.calls);
        b.calls += 1;
        let client = b.client;
        let Some(server) = next else {
            return match guest {
                None => self.vm_starts(birth),
                Some(v) => self.vcpus[v as usize].exits.push_back(Exit::Start(birth)),
            };
        };
        // Answers from outside come where the calls to its neighbour come.
        let (server, nobody) = (self.server_at(server), self.tracks.on(NONE, self.clock.now()));
        let message = self.calls.call(client, server, None, nobody);
        match (guest, self.calls.receiver(message)) {
            (None, _) => self.send(message),
            (Some(v), Target::Guest { vm, .. }) if vm == self.vcpus[v as usize].vm => {
                self.deliver_to_guest(v, message);
            }
            (Some(v), _) => self.vcpus[v as usize].exits.push_back(Exit::Send(message)),
        }
    }

    /// VMStart, in host context: the vCPUs begin to run.
    pub(crate) fn vm_starts(&mut self, birth: u32) {
        let vm = self.storms.births[birth as usize].vm;
        let s = self.storms.births[birth as usize].storm;
        self.storms.births[birth as usize].started = Some(self.clock.now());
        self.storms.all[s as usize].started += 1;
        self.mark(MarkKind::Started, birth, self.storms.all[s as usize].started);
        self.vms[vm as usize].started = true;
        let first = self.vms[vm as usize].first;
        for v in first..first + self.plan.vms[vm as usize].level.topology.cpus() {
            let vcpu = &mut self.vcpus[v as usize];
            // Its tasks' times count from now on.
            vcpu.timers.postpone(self.clock.now());
            let vm = &self.vms[vm as usize];
            match lapic::boots(vcpu, &vm.virt, &vm.ticks, self.clock.now()) {
                None => {}
                Some(at) if at <= self.clock.now() => {
                    self.inject(v, vector::TIMER, Injection::Timer)
                }
                Some(at) => self.clock.set(Event::Lapic(v), at),
            }
            if self.vcpus[v as usize].halted && self.vcpus[v as usize].irr != 0 {
                // A message came before.
                self.unhalt(v, Waker::default());
            }
        }
        self.devices.start(vm, &mut self.clock);
        self.storm_goes_on(s, Milestone::Start);
    }

    /// The boot program of the VM around a vCPU is done; what waits for that starts.
    pub(crate) fn logged_in(&mut self, v: u32) {
        let vm = self.vcpus[v as usize].vm;
        let plan = &self.plan.vms[vm as usize];
        for (t, task) in (0..).zip(&plan.tasks).filter(|(_, task)| task.after_login) {
            if task.start_ns == 0 {
                self.guest_wake(v, t);
            } else {
                self.vcpus[v as usize]
                    .timers
                    .set(TimerFor::Task(t), self.clock.now() + task.start_ns);
                self.guest_program(v);
            }
        }
        let birth = self.vms[vm as usize].birth;
        if birth == NONE {
            return;
        }
        let s = self.storms.births[birth as usize].storm;
        self.storms.births[birth as usize].login = Some(self.clock.now());
        self.storms.all[s as usize].logins.push(self.clock.now());
        self.mark(MarkKind::LoggedIn, birth, self.storms.all[s as usize].logins.len() as u32);
        self.storm_goes_on(s, Milestone::Login);
    }

    /// A VM of a storm has reached a milestone: is it the last of its batch, for which the next one
    /// has been waiting, or does it leave a place?
    fn storm_goes_on(&mut self, s: u32, reached: Milestone) {
        let plan = &self.plan.storms[s as usize];
        let storm = &self.storms.all[s as usize];
        let event = Event::Storm(s);
        let goes_on = match plan.rolling {
            // What is due already fills this place as well.
            true => !self.clock.is_pending(event),
            false => storm.there(plan.next) == storm.requested,
        };
        if reached == plan.next && goes_on && (storm.requested as usize) < plan.vms.len() {
            self.clock.set(event, self.clock.now() + plan.gap_ns);
        }
    }

    fn mark(&mut self, kind: MarkKind, birth: u32, number: u32) {
        let b = self.storms.births[birth as usize];
        // No storm begins in the warm-up.
        let at_ns = self.clock.now().saturating_sub(self.plan.warmup_ns);
        self.storms.marks.push(Mark { kind, storm: b.storm, vm: b.number, number, at_ns });
        match kind {
            MarkKind::Requested => {}
            MarkKind::Started => self.views_reached(b.storm, Milestone::Start, number, b.vm),
            MarkKind::LoggedIn => self.views_reached(b.storm, Milestone::Login, number, b.vm),
        }
    }

    /// A desktop in a VM has done what it was to do at `due`.
    pub(crate) fn responded(&mut self, vm: u32, due: Ns, took: Ns) {
        let birth = self.vms[vm as usize].birth;
        if birth == NONE {
            return;
        }
        let s = self.storms.births[birth as usize].storm;
        let Some(density) = self.plan.storms[s as usize].density else { return };
        let storm = &mut self.storms.all[s as usize];
        let n = storm.logins.partition_point(|login| *login <= due);
        let begun = n.checked_sub(1).map_or(0, |last| storm.logins[last]);
        if density.window_ns.is_none_or(|window| due - begun <= window) {
            let r = &mut storm.responses[n];
            r.count += 1;
            r.over += u64::from(took > density.limit_ns);
            r.sum_ns += u128::from(took);
        }
    }

    /// Takes the actions in that the end of the run cut off when they were over the limit already.
    pub(crate) fn respond_open(&mut self, end: Ns) {
        for vm in 0..self.vms.len() as u32 {
            let birth = self.vms[vm as usize].birth;
            let Some(b) = self.storms.births.get(birth as usize) else { continue };
            let Some(density) = self.plan.storms[b.storm as usize].density else { continue };
            for t in 0..self.vms[vm as usize].tasks.len() {
                let runner = self.vms[vm as usize].tasks[t].runner.as_ref();
                let due = runner.and_then(|runner| runner.acting_since(end));
                if let Some(due) = due.filter(|due| end - due > density.limit_ns) {
                    self.responded(vm, due, end - due);
                }
            }
        }
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
    /// Where too few actions began between two logins, those up to the next login count as well,
    /// and so on.
    pub(crate) fn density(&self, plan: &DensityPlan) -> (u32, bool) {
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
}
