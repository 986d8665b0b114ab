//! The driver of the boost policies: carries out their actions on simulated threads, and plays the guest's half of the
//! protocol on a simulated page.

pub(crate) mod event_counts;
pub(crate) mod govern;
pub(crate) mod page;
pub(crate) mod page_checks;
pub(crate) mod preferred;

use vcoop_abi::conformance::{Limits, Operation, Report, Watch};
use vcoop_abi::{BoostRequest, CsState, GuestWords, Intent, Status, Word};
use vcoop_model::plan::{Registers, RogueStep, TimelineAction};
use vcoop_model::profile::CostKey;
use vcoop_policy::driver::{self, Port, SetError, VcpuDriver};
use vcoop_policy::guest::Stores;
use vcoop_policy::repay::ACCOUNT_NS;
use vcoop_policy::sender::{Receiver, asks_host};
use vcoop_policy::{Actions, GuestEvent, Injection, PolicyStats, VmShared};
use vcoop_sched::Refusal;
use vcoop_sched::config::Policy;

use crate::attribution::track::NONE;
use crate::clock::Event;
use crate::guest::exit::Exit;
use crate::interrupts::guest_timers::TimerFor;
use crate::machine::{Irq, Vcpu};
use crate::policy_driver::page_checks::{PageChecks, PageReport};
use crate::queue::Ns;
use crate::world::World;

/// The pCPU on which policies of more than one vCPU run.
pub(crate) const MASTER: u32 = 0;

impl Vcpu {
    /// Whether its kernel takes part in boosting now.
    pub(crate) fn cooperates(&self) -> bool {
        self.page.status() != Status::Disabled && !self.page.is_rogue()
    }
}

/// Number of timers that a call of a policy programmed. The calling pCPU pays for them after it has woken or signalled
/// the vCPU, which need not wait for that.
#[must_use]
#[derive(Default)]
pub(crate) struct TimersSet(u32);

/// The port of a vCPU's policy in the simulated world.
struct VcpuPort<'w, 'p> {
    world: &'w mut World<'p>,
    v: u32,
    /// The interrupt that is to be injected.
    vector: u8,
    timers_set: TimersSet,
}

impl<'w, 'p> VcpuPort<'w, 'p> {
    fn new(world: &'w mut World<'p>, v: u32, vector: u8) -> Self {
        Self { world, v, vector, timers_set: TimersSet::default() }
    }

    fn vcpu(&mut self) -> &mut Vcpu {
        &mut self.world.vcpus[self.v as usize]
    }
}

impl Port for VcpuPort<'_, '_> {
    type Error = Refusal;

    /// The simulated guest does not read the remaining budget.
    const SHOWS_BUDGET: bool = false;

    fn now(&mut self) -> Ns {
        self.world.clock.now()
    }

    #[inline(always)]
    fn driver(&mut self) -> &mut VcpuDriver {
        &mut self.world.vcpus[self.v as usize].driver
    }

    #[inline(always)]
    fn with<R>(&mut self, f: impl FnOnce(&mut VcpuDriver, &mut VmShared) -> R) -> R {
        let vcpu = &mut self.world.vcpus[self.v as usize];
        f(&mut vcpu.driver, &mut self.world.vms[vcpu.vm as usize].shared)
    }

    fn store_ticket(&mut self, ticket: u64) {
        self.vcpu().page.set_ticket(ticket);
        self.world.watch(self.v, |page, now| page.ticket(now, ticket));
    }

    fn store_status(&mut self, status: Status) {
        self.vcpu().page.set_status(status);
        self.world.watch(self.v, |page, now| page.status(now, status));
    }

    fn store_budget(&mut self, _: Ns) {}

    /// `sched_setattr` on a vCPU thread, paid by the executing pCPU.
    fn set_thread(&mut self, policy: Policy) -> Result<(), SetError<Refusal>> {
        let world = &mut *self.world;
        let thread = world.thread_of(self.v);
        if world.host.policy(thread) == policy {
            return Ok(());
        }
        world.pay_for(CostKey::Setattr);
        let done = world.host.try_set_policy(world.clock.now(), thread, policy);
        world.host_notes();
        if done.is_ok() {
            let p = world.host.cpu_of(thread);
            world.queue_grew(p.0);
            let boosted = self.vcpu().driver.policy().is_boosted();
            self.world.watch(self.v, |page, now| page.event(now, Operation::Applied(boosted)));
        }
        done.map_err(SetError::Refused)
    }

    fn arm(&mut self, at: Option<Ns>) {
        self.timers_set.0 += 1;
        let world = &mut *self.world;
        let event = Event::Policy(self.v);
        match at {
            Some(at) => world.clock.set(event, at.max(world.clock.now())),
            None => world.clock.cancel(event),
        }
    }

    fn fire(&mut self) -> Result<(), Refusal> {
        let vector = self.vector;
        let vcpu = self.vcpu();
        vcpu.irr |= vector;
        vcpu.virt.counters.injections += 1;
        if self.world.plan.policy.boosts_on_injection() {
            self.world.watch(self.v, |page, now| page.event(now, Operation::Inject));
        }
        Ok(())
    }

    fn words(&mut self) -> GuestWords {
        self.vcpu().page.words()
    }

    fn is_watched(&self) -> bool {
        self.world.spans.is_on() || self.world.event_counts.is_on()
    }

    #[cold]
    fn called(&mut self, before: &PolicyStats, actions: &Actions) {
        let world = &mut *self.world;
        if world.event_counts.is_on() {
            let vcpu = &world.vcpus[self.v as usize];
            let label = &world.plan.vms[vcpu.vm as usize].label;
            let after = vcpu.driver.policy().stats();
            world.event_counts.count(label, world.clock.now(), before, &after);
        }
        if self.world.spans.is_on() {
            actions.iter().for_each(|&action| self.world.span_action(self.v, action));
        }
    }
}

impl World<'_> {
    /// Calls the driver of a vCPU's policy, if that does anything.
    #[inline(always)]
    fn drive(&mut self, v: u32, what: impl FnOnce(&mut VcpuPort<'_, '_>) -> Result<(), Refusal>) {
        let set = self.drive_unpaid(v, what);
        self.pay_timers(set);
    }

    /// The same for callers that pay for the timers later.
    #[inline(always)]
    fn drive_unpaid(
        &mut self,
        v: u32,
        what: impl FnOnce(&mut VcpuPort<'_, '_>) -> Result<(), Refusal>,
    ) -> TimersSet {
        if self.vcpus[v as usize].has_policy { self.driven(v, what) } else { TimersSet::default() }
    }

    /// Calls the driver of a vCPU's policy.
    #[inline(always)]
    fn driven(
        &mut self,
        v: u32,
        what: impl FnOnce(&mut VcpuPort<'_, '_>) -> Result<(), Refusal>,
    ) -> TimersSet {
        let mut port = VcpuPort::new(self, v, 0);
        let done = what(&mut port);
        debug_assert!(done.is_ok(), "a refusal is the policy's to answer");
        port.timers_set
    }

    pub(crate) fn pay_timers(&mut self, set: TimersSet) {
        (0..set.0).for_each(|_| self.pay_for(CostKey::TimerProgram));
    }

    /// Reports to the checker of a vCPU's page, if there is one.
    #[inline(always)]
    pub(crate) fn watch(&mut self, v: u32, what: impl FnOnce(&mut Watch, Ns)) {
        if self.page_checks.is_on() {
            self.show(v, what);
        }
    }

    /// Not inlined: it would take cache space from what every run does.
    #[cold]
    fn show(&mut self, v: u32, what: impl FnOnce(&mut Watch, Ns)) {
        let now = self.clock.now();
        self.page_checks.show(v, |page| what(page, now));
    }

    /// Checks every page that a guest and a policy use. To be called before anything else.
    pub(crate) fn watch_pages(&mut self, limits: Limits) {
        self.page_checks = PageChecks::new(limits, self.vcpus.iter().map(|v| v.has_guest_half));
    }

    /// Results of the checkers.
    pub(crate) fn page_reports(&mut self) -> Vec<PageReport> {
        let of = |(v, guest, host): (usize, Report, Report)| {
            let vcpu = &self.vcpus[v];
            let vm = &self.plan.vms[vcpu.vm as usize].name;
            let guest = (!vcpu.page.is_rogue()).then_some(guest);
            PageReport { vcpu: format!("{vm}/vcpu{}", vcpu.cpu.0), guest, host }
        };
        self.page_checks.reports(self.clock.now()).into_iter().map(of).collect()
    }

    /// Carries out a step of the hostile kernel on vCPU `v`, in its task `t`.
    pub(crate) fn violate_protocol(&mut self, v: u32, t: u32, step: RogueStep) {
        let vcpu = &mut self.vcpus[v as usize];
        let page = &mut vcpu.page;
        if step.takes_own_area() {
            page.take_over();
        }
        match step {
            RogueStep::Ask => page.request(BoostRequest::Boost),
            RogueStep::End => page.request(BoostRequest::Unboost),
            RogueStep::Claim(claim) => page.claim(claim),
            RogueStep::Acknowledge => page.acknowledge(),
            RogueStep::Notify => vcpu.exits.push_back(Exit::Notify),
            RogueStep::Register(what) => vcpu.exits.push_back(Exit::Register(match what {
                Registers::Own | Registers::Odd => Some(true),
                Registers::Nothing => Some(false),
                Registers::Refused => None,
            })),
            RogueStep::Scribble(_) => self.scribble(v),
            RogueStep::Deadline(ns) => {
                vcpu.timers.set(TimerFor::Task(t), self.clock.now() + ns);
                self.guest_program(v);
            }
            RogueStep::Fault => {
                let vm = vcpu.vm as usize;
                let (name, n) = (&self.plan.vms[vm].name, v - self.vms[vm].first);
                self.fault = Some(format!("VM {name}, vCPU {n}: triple fault"));
            }
            // The program's own, or of the lab.
            RogueStep::Work(_) | RogueStep::Halt(_) | RogueStep::Doorbell => {}
        }
    }

    /// Scribbles over the words of the VM's next vCPU from now on; as in the lab, over its deadline only if the page
    /// holds that.
    fn scribble(&mut self, v: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let (first, vcpus) = (self.vms[vm].first, self.plan.vms[vm].level.topology.cpus());
        let next = first + (v - first + 1) % vcpus;
        let exitless = self.vms[vm].virt.exitless();
        let page = &mut self.vcpus[next as usize].page;
        page.scribble(u64::from(next) + 1);
        if exitless {
            let late = page.nonsense() & 0x3f_ffff;
            let at = (self.clock.now() + late).saturating_sub(0x10_0000);
            self.arm_deadline(next, at);
        }
    }

    pub(crate) fn boost_registered(&mut self, v: u32, on: bool) {
        self.watch(v, |page, now| page.event(now, Operation::Registered(on)));
        self.drive(v, |port| driver::register(port, on));
    }

    /// Makes an interrupt pending for a vCPU, with the boost that its policy gives. The sender of an IPI asks for a
    /// boost if the receiver does not run.
    pub(crate) fn boost_injects(&mut self, v: u32, vector: u8, kind: Injection) -> TimersSet {
        let asked = kind == Injection::Ipi && self.vcpus[v as usize].pcpu == NONE;
        let mut port = VcpuPort::new(self, v, vector);
        let done = if port.vcpu().has_policy {
            driver::inject(&mut port, kind, asked)
        } else {
            port.fire()
        };
        debug_assert!(done.is_ok(), "a refusal is the policy's to answer");
        port.timers_set
    }

    /// A vCPU has lost its pCPU with an IPI pending: counts as a request of the sender.
    pub(crate) fn boost_asked(&mut self, v: u32) {
        self.drive(v, |port| driver::asked(port));
    }

    /// Whether the sender of an exitless IPI to `v` lets the host send it, so that `v` is boosted.
    pub(crate) fn asks_host(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        vcpu.driver.policy().hears_senders()
            && asks_host(Receiver {
                preempted: vcpu.pcpu == NONE,
                idle: vcpu.halted || vcpu.current == NONE,
                status: vcpu.page.status(),
            })
    }

    #[inline]
    pub(crate) fn boost_exit(&mut self, v: u32) {
        self.drive(v, |port| driver::exit(port));
    }

    pub(crate) fn boost_notify(&mut self, v: u32) {
        if self.vcpus[v as usize].page.is_honest() {
            self.watch(v, |page, now| page.event(now, Operation::Notify));
        }
        self.drive(v, |port| driver::notify(port, false));
    }

    pub(crate) fn boost_halted(&mut self, v: u32) {
        self.watch(v, |page, now| page.event(now, Operation::Halted(true)));
        self.drive(v, |port| driver::halt(port, true));
    }

    pub(crate) fn boost_woken(&mut self, v: u32) -> TimersSet {
        self.watch(v, |page, now| page.event(now, Operation::Halted(false)));
        self.drive_unpaid(v, |port| driver::halt(port, false))
    }

    pub(crate) fn boost_timer(&mut self, v: u32) {
        self.drive(v, |port| driver::timer(port));
    }

    /// Accounts are due for policies that repay boosted time.
    pub(crate) fn accounts_due(&mut self) {
        self.clock.set(Event::Accounts, self.clock.now() + ACCOUNT_NS);
        self.interrupt(MASTER, Irq::Accounts);
    }

    /// Feeds the accounts.
    pub(crate) fn accounts(&mut self) {
        self.charge_all();
        for v in 0..self.vcpus.len() as u32 {
            if self.vcpus[v as usize].driver.policy().repays() {
                let total = self.time_of(v);
                self.drive(v, |port| driver::account(port, total));
            }
        }
    }

    /// Starts the drivers of all vCPUs.
    ///
    /// # Errors
    /// The means of a `static` policy that the host's scheduler refuses.
    pub(crate) fn start(&mut self) -> Result<(), Refusal> {
        for v in 0..self.vcpus.len() as u32 {
            let registered = self.plan.vms[self.vcpus[v as usize].vm as usize].cooperative;
            if registered {
                self.watch(v, |page, now| page.event(now, Operation::Registered(true)));
            }
            let mut port = VcpuPort::new(self, v, 0);
            driver::start(&mut port, registered)?;
            let set = port.timers_set;
            self.pay_timers(set);
        }
        if self.vcpus.iter().any(|v| v.driver.policy().repays()) {
            self.clock.set(Event::Accounts, self.clock.now());
        }
        // A scheduler may have timers before anything runs.
        self.host_notes();
        Ok(())
    }

    /// An event of a guest's kernel, for its half of the protocol.
    #[inline]
    pub(crate) fn guest_event(&mut self, v: u32, event: GuestEvent) {
        let vcpu = &mut self.vcpus[v as usize];
        // A half whose words are not read need not run: switching the policy on is not possible for a
        // vCPU without one, and a rogue kernel never had it.
        if !vcpu.has_guest_half || vcpu.page.is_rogue() {
            return;
        }
        let step = vcpu.half.on(event, vcpu.page.view());
        self.guest_stores(v, &step.stores);
        if !step.check {
            return;
        }
        let vcpu = &mut self.vcpus[v as usize];
        let end = vcpu.half.check(vcpu.page.view());
        if end.notify && !vcpu.exits.contains(&Exit::Notify) {
            vcpu.exits.push_back(Exit::Notify);
        }
        self.guest_stores(v, &end.stores);
    }

    fn guest_stores(&mut self, v: u32, stores: &Stores) {
        self.vcpus[v as usize].page.store(stores);
        self.watch(v, |page, now| {
            stores.intent.iter().for_each(|&word| page.intent(now, Intent::from_word(word)));
            stores.cs.iter().for_each(|&word| page.cs(now, CsState::from_word(word)));
            stores
                .request
                .iter()
                .for_each(|&word| page.request(now, BoostRequest::from_word(word)));
            stores.ack.iter().for_each(|&ack| page.ack(now, ack));
        });
    }

    /// Carries out a change of the timeline.
    pub(crate) fn apply_timeline(&mut self, action: &TimelineAction) {
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
                    self.drive(v, |port| driver::enable(port));
                }
            }
            TimelineAction::VcpuPolicy { vm, vcpu, policy } => {
                let v = self.vms[vm as usize].first + vcpu;
                let set = self.driven(v, |port| driver::rebase(port, policy));
                self.pay_timers(set);
            }
            TimelineAction::Prefer { .. } => self.prefer(action),
        }
    }
}
