//! The driver of the boost policies: carries their actions out on simulated threads, and plays the
//! guest's half of the protocol on a simulated page.

use vcoop_abi::{BoostRequest, Class, CsState, GuestWords, Intent, Status, TaskIntent};
use vcoop_model::plan::TimelineAction;
use vcoop_model::recording::PolicyEvent;
use vcoop_policy::config::Means;
use vcoop_policy::guest::{HostView, Stores};
use vcoop_policy::repay::ACCOUNT_NS;
use vcoop_policy::sender::{Receiver, asks_host};
use vcoop_policy::{Action, Actions, Event, GuestEvent, Injection, PolicyStats};
use vcoop_sched::Refusal;
use vcoop_sched::config::Policy;

use crate::machine::{Exit, Irq, Vcpu};
use crate::program::Misdeed;
use crate::track::NONE;
use crate::tune::MASTER;
use crate::world::World;

/// The shared page of one vCPU, as both sides see it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page {
    intent: Intent,
    cs: CsState,
    request: BoostRequest,
    ack: u64,
    status: Status,
    ticket: u64,
    /// The guest's kernel is hostile: it writes what it likes and never ends a boost.
    rogue: bool,
    /// State of the nonsense that another vCPU scribbles here; 0 = nobody does.
    scribbled: u64,
}

impl Page {
    /// One reading by the host. Under a scribbler each word is nonsense, and another one the next
    /// time; half of them are small, so that they hit the defined values or just miss them.
    fn words(&mut self) -> GuestWords {
        if self.scribbled == 0 {
            return GuestWords::new(self.intent, self.cs, self.request, self.ack);
        }
        let mut word = || {
            // xorshift64 (Marsaglia, 2003): never 0, and one word of state in a `Copy` page.
            self.scribbled ^= self.scribbled << 13;
            self.scribbled ^= self.scribbled >> 7;
            self.scribbled ^= self.scribbled << 17;
            let word = self.scribbled;
            if word & 1 << 40 == 0 { word } else { word >> 32 & 0xf }
        };
        let (intent, cs, request) = (word(), word(), word());
        GuestWords::from_raw(intent, cs, request, word())
    }

    fn view(&self) -> HostView {
        HostView { status: self.status, ticket: self.ticket }
    }

    fn store(&mut self, stores: &Stores) {
        self.intent = stores.intent.unwrap_or(self.intent);
        self.cs = stores.cs.unwrap_or(self.cs);
        self.request = stores.request.unwrap_or(self.request);
        self.ack = stores.ack.unwrap_or(self.ack);
    }

    /// Asks for a boost, and claims to have begun another critical section.
    fn ask(&mut self, preempt_off: bool) {
        self.rogue = true;
        self.request = BoostRequest::Boost;
        self.cs = CsState {
            preempt_off,
            section: self.cs.section.wrapping_add(u32::from(preempt_off)),
            ..CsState::default()
        };
    }
}

/// How a guest describes a task of this policy.
pub(crate) fn intent(policy: Policy) -> TaskIntent {
    match policy {
        Policy::Fifo(prio) => TaskIntent::fifo(prio),
        Policy::Rr(prio) => TaskIntent::rr(prio),
        Policy::Normal { nice, .. } => {
            TaskIntent { prio: (i16::from(nice) + 20) as u8, ..TaskIntent::FAIR }.canonical()
        }
        Policy::Idle => TaskIntent { prio: 39, ..TaskIntent::FAIR },
        Policy::Deadline { .. } => TaskIntent { class: Class::Deadline, prio: 0 },
    }
}

/// The scheduling policy of a thread that is boosted by these means over its baseline.
pub(crate) fn boosted(means: Means, baseline: Policy) -> Policy {
    let (nice, slice_ns) = match baseline {
        Policy::Normal { nice, slice_ns } => (nice, slice_ns),
        _ => (0, None),
    };
    match means {
        Means::Fifo(prio) => Policy::Fifo(prio),
        Means::Rr(prio) => Policy::Rr(prio),
        Means::Nice(nice) => Policy::Normal { nice, slice_ns },
        Means::Slice(ns) => Policy::Normal { nice, slice_ns: Some(ns) },
        Means::Deadline { runtime_ns, deadline_ns, period_ns } => {
            Policy::Deadline { runtime_ns, deadline_ns, period_ns }
        }
    }
}

impl Vcpu {
    /// Whether its kernel plays its part in boosting right now.
    pub(crate) fn cooperates(&self) -> bool {
        self.page.status != Status::Disabled && !self.page.rogue
    }

    /// What its thread has while it is not boosted.
    fn unboosted(&self) -> Policy {
        match self.baseline {
            Policy::Normal { nice, slice_ns } => {
                let rest = self.policy.rest();
                let nice = nice.saturating_add_unsigned(rest.levels).min(19);
                Policy::Normal { nice, slice_ns: rest.slice_ns.or(slice_ns) }
            }
            other => other,
        }
    }
}

impl World<'_> {
    /// Tells a vCPU's policy what happened and does what it says.
    fn tell(&mut self, v: u32, event: Event) {
        let vcpu = &mut self.vcpus[v as usize];
        if !vcpu.hears {
            return;
        }
        let shared = &mut self.vms[vcpu.vm as usize].shared;
        let before = (!self.policy_events.is_empty()).then(|| vcpu.policy.stats());
        let actions = vcpu.policy.on(self.now, event, shared);
        if let Some(before) = before {
            self.count(v, &before);
        }
        self.carry_out(v, &actions);
    }

    /// Counts by time what a policy did since `before`.
    #[cold]
    fn count(&mut self, v: u32, before: &PolicyStats) {
        let after = self.vcpus[v as usize].policy.stats();
        let Some(at) = self.now.checked_sub(self.plan.warmup_ns) else { return };
        let name = &self.plan.vms[self.vcpus[v as usize].vm as usize].label;
        let Some(events) = self.policy_events.iter_mut().find(|e| e.vm == *name) else { return };
        for (event, n) in [
            (PolicyEvent::Boost, after.boosts - before.boosts),
            (PolicyEvent::Throttle, after.throttles - before.throttles),
            (PolicyEvent::Denied, after.denied - before.denied),
        ] {
            (0..n).for_each(|_| events.book(at, event));
        }
    }

    #[inline(always)]
    fn carry_out(&mut self, v: u32, actions: &Actions) {
        for &action in actions.iter() {
            if self.spans.on {
                self.span_action(v, action);
            }
            match action {
                Action::Ticket(n) => self.vcpus[v as usize].page.ticket = n,
                Action::Status(status) => self.vcpus[v as usize].page.status = status,
                Action::Boost(means) => {
                    let baseline = self.vcpus[v as usize].baseline;
                    if self.set_thread_policy(v, boosted(means, baseline)).is_err() {
                        self.tell(v, Event::Refused);
                    }
                }
                Action::Rest(_) => {
                    if !self.vcpus[v as usize].policy.is_boosted() {
                        let _ = self.set_thread_policy(v, self.vcpus[v as usize].unboosted());
                    }
                }
                Action::Restore => {
                    let baseline = self.vcpus[v as usize].unboosted();
                    // Refused: somebody else has taken the reservation it had. It is boosted no longer.
                    if self.set_thread_policy(v, baseline).is_err() {
                        let _ = self.set_thread_policy(v, Policy::NORMAL);
                    }
                }
                Action::ArmTimer(at) => {
                    self.pcpus[self.cpu as usize].extra += self.costs.timer_program_ns;
                    self.queue.set(self.slots.boost + v, at.max(self.now));
                }
                Action::CancelTimer => {
                    self.pcpus[self.cpu as usize].extra += self.costs.timer_program_ns;
                    self.queue.cancel(self.slots.boost + v);
                }
                Action::Recheck => {
                    let words = self.vcpus[v as usize].page.words();
                    self.tell(v, Event::Recheck(words));
                }
                Action::Denied(_) => {}
            }
        }
    }

    /// `sched_setattr` on a vCPU thread, paid by the pCPU that does it.
    fn set_thread_policy(&mut self, v: u32, policy: Policy) -> Result<(), Refusal> {
        let thread = self.thread_of(v);
        if self.host.policy(thread) == policy {
            return Ok(());
        }
        self.pcpus[self.cpu as usize].extra += self.costs.setattr_ns;
        let done = self.host.try_set_policy(self.now, thread, policy);
        self.host_notes();
        done
    }

    fn words(&mut self, v: u32) -> GuestWords {
        self.vcpus[v as usize].page.words()
    }

    /// What a hostile kernel on vCPU `v` does.
    pub(crate) fn misdeed(&mut self, v: u32, deed: Misdeed) {
        let (first, vcpus) = {
            let vm = self.vcpus[v as usize].vm as usize;
            (self.vms[vm].first, self.plan.vms[vm].level.topology.cpus())
        };
        let vcpu = &mut self.vcpus[v as usize];
        match deed {
            Misdeed::Ask { preempt_off } => vcpu.page.ask(preempt_off),
            Misdeed::Scribble => {
                let next = first + (v - first + 1) % vcpus;
                self.vcpus[next as usize].page.scribbled = u64::from(next) + 1;
            }
            Misdeed::Notify(request) => {
                vcpu.page.rogue = true;
                vcpu.page.request = request;
                vcpu.exits.push_back(Exit::Notify);
            }
            Misdeed::Register(what) => {
                vcpu.page.rogue = true;
                vcpu.page.request = BoostRequest::Boost;
                vcpu.exits.push_back(Exit::Register(what));
            }
        }
    }

    pub(crate) fn boost_registered(&mut self, v: u32, on: bool) {
        self.tell(v, Event::Registered(on));
    }

    pub(crate) fn boost_injected(&mut self, v: u32, kind: Injection) {
        self.tell(v, Event::Injected(kind));
    }

    /// An IPI is on its way to a vCPU: its sender asks for it, if it does not run.
    pub(crate) fn boost_asked(&mut self, v: u32) {
        if self.vcpus[v as usize].pcpu == NONE {
            self.tell(v, Event::Asked);
        }
    }

    /// Whether the sender of an IPI to `v` that would not exit has the host send it, and boost `v`.
    pub(crate) fn asks_host(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        vcpu.policy.hears_senders()
            && asks_host(Receiver {
                preempted: vcpu.pcpu == NONE,
                idle: vcpu.halted || vcpu.current == NONE,
                status: vcpu.page.status,
            })
    }

    #[inline]
    pub(crate) fn boost_exit(&mut self, v: u32) {
        if !self.vcpus[v as usize].hears {
            return;
        }
        let words = self.words(v);
        self.tell(v, Event::Exit(words));
    }

    pub(crate) fn boost_notify(&mut self, v: u32) {
        let words = self.words(v);
        self.tell(v, Event::Notify(words));
    }

    pub(crate) fn boost_halted(&mut self, v: u32) {
        if !self.vcpus[v as usize].hears {
            return;
        }
        let words = self.words(v);
        self.tell(v, Event::Halted(words));
    }

    pub(crate) fn boost_woken(&mut self, v: u32) {
        self.tell(v, Event::Woken);
    }

    pub(crate) fn boost_timer(&mut self, v: u32) {
        self.tell(v, Event::Timer);
    }

    /// Policies that give boosted time back want to know what their threads ran.
    pub(crate) fn accounts_due(&mut self) {
        self.queue.set(self.slots.accounts, self.now + ACCOUNT_NS);
        self.interrupt(MASTER, Irq::Accounts);
    }

    /// Tells them.
    pub(crate) fn accounts(&mut self) {
        self.charge_all();
        for v in 0..self.vcpus.len() as u32 {
            if self.vcpus[v as usize].policy.repays() {
                let now = self.time_of(v);
                let last = std::mem::replace(&mut self.vcpus[v as usize].cold.accounted, now);
                self.tell(v, Event::Ran(now.since(last)));
            }
        }
    }

    /// The first events of every vCPU.
    pub(crate) fn boost_begins(&mut self) {
        for v in 0..self.vcpus.len() as u32 {
            let vm = self.vcpus[v as usize].vm;
            if self.plan.vms[vm as usize].cooperative {
                self.tell(v, Event::Registered(true));
            }
            self.tell(v, Event::Enable);
        }
        if self.vcpus.iter().any(|v| v.policy.repays()) {
            self.queue.set(self.slots.accounts, ACCOUNT_NS);
        }
    }

    /// Why a vCPU that should have its means by now has not.
    ///
    /// # Errors
    /// What the host's scheduler answers.
    pub(crate) fn insist_on_means(&mut self) -> Result<(), Refusal> {
        for v in 0..self.vcpus.len() as u32 {
            let vcpu = &self.vcpus[v as usize];
            let means = self.means(vcpu.vm, vcpu.cpu.0);
            if let Some(means) = means.filter(|_| !vcpu.policy.is_boosted()) {
                self.set_thread_policy(v, boosted(means, vcpu.baseline))?;
            }
        }
        Ok(())
    }

    /// Something happened in a guest's kernel: its half of the protocol.
    #[inline]
    pub(crate) fn guest_event(&mut self, v: u32, event: GuestEvent) {
        let vcpu = &mut self.vcpus[v as usize];
        // A half that nobody listens to need not run: switching the policy on is not possible for a
        // vCPU without one, and a rogue kernel never had it.
        if !vcpu.speaks || vcpu.page.rogue {
            return;
        }
        let page = &mut vcpu.page;
        let step = vcpu.half.on(event, page.view());
        page.store(&step.stores);
        if !step.check {
            return;
        }
        let end = vcpu.half.check(page.view());
        page.store(&end.stores);
        if end.notify && !vcpu.exits.contains(&Exit::Notify) {
            vcpu.exits.push_back(Exit::Notify);
        }
    }

    /// A switch of the timeline.
    pub(crate) fn throw(&mut self, action: &TimelineAction) {
        match *action {
            TimelineAction::Boost { vm, on } => {
                for (i, shared) in self.vms.iter_mut().map(|vm| &mut vm.shared).enumerate() {
                    match vm {
                        None => shared.set_global(on),
                        Some(vm) if vm as usize == i => shared.set_vm(on),
                        Some(_) => {}
                    }
                }
                for v in 0..self.vcpus.len() as u32 {
                    self.tell(v, Event::Enable);
                }
            }
            TimelineAction::VcpuPolicy { vm, vcpu, policy } => {
                let v = self.vms[vm as usize].first + vcpu;
                self.vcpus[v as usize].baseline = policy;
                if !self.vcpus[v as usize].policy.is_boosted() {
                    // Refused: it keeps what it had, as after a failed `chrt`.
                    let _ = self.set_thread_policy(v, self.vcpus[v as usize].unboosted());
                }
                let outranks = self.means(vm, vcpu).is_some_and(|m| outranks(policy, m));
                self.tell(v, Event::Baseline { outranks });
            }
            TimelineAction::Prefer { .. } => self.prefer(action),
        }
    }

    fn means(&self, vm: u32, vcpu: u32) -> Option<Means> {
        crate::setup::means(self.plan, vm as usize, vcpu as usize)
    }
}

/// Whether a baseline is at least as urgent as the means of boosting.
fn outranks(baseline: Policy, means: Means) -> bool {
    match (baseline, means) {
        (Policy::Fifo(b) | Policy::Rr(b), Means::Fifo(m) | Means::Rr(m)) => b >= m,
        (Policy::Fifo(_) | Policy::Rr(_), Means::Nice(_) | Means::Slice(_)) => true,
        (Policy::Normal { nice, .. }, Means::Nice(m)) => nice <= m,
        (
            Policy::Deadline { runtime_ns, deadline_ns, period_ns },
            Means::Deadline { runtime_ns: r, deadline_ns: d, period_ns: p },
        ) => {
            let share = |runtime, period| u128::from(runtime) * u128::from(period);
            deadline_ns <= d && share(runtime_ns, p) >= share(r, period_ns)
        }
        (Policy::Deadline { .. }, _) => true,
        _ => false,
    }
}
