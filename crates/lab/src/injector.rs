//! The injector: fires deadlines, device interrupts and policy timers, on a CPU that no vCPU uses if the host has one.
//!
//! # Exitless timers
//!
//! A guest stores its deadline in the shared page, without an exit. The injector must find it there in time without
//! polling, so the two agree on when it looks next:
//!
//! ```text
//! guest                                injector
//!   store deadline                       store next_look
//!   full fence                           full fence
//!   load next_look                       load deadline
//!   deadline < next_look: doorbell       sleep until the earlier of the two
//! ```
//!
//! At least one of the two sees the other's store. The injector looks at least every [`LOOK_NS`], so a periodic guest
//! whose next deadline is further away than that never rings.
//!
//! It [sleeps precisely](PreciseSleep): waking a halted CPU takes longer than the whole boosted path.

use std::sync::atomic::Ordering;

use vcoop_abi::GuestArea;
use vcoop_guest::layout::{VECTOR_DEVICE, VECTOR_TIMER, VcpuWords};
use vcoop_model::plan::{DevicePlan, Dist, Ns, TimelineAction, TimelineEvent};
use vcoop_policy::repay::ACCOUNT_NS;
use vcoop_policy::{Injection, TimerAdvance, driver};
use vcoop_threads::tsc::Clock;
use vcoop_threads::{
    Attention, Attributes, Duty, MOST_SPIN_NS, PreciseSleep, WaitLimits, set_timer_slack,
};

use crate::common::{Common, NEVER};
use crate::error::{Error, RequestTarget};
use crate::lab_vm::LabVm;
use crate::preferred_mask;
use vcoop_model::rng::Stream;

/// Longest time between two looks at a word that may have a new deadline.
const LOOK_NS: Ns = 250_000;

/// Longest sleep if there is no such word.
const REST_NS: Ns = 10_000_000;

/// Shortest time between two timer interrupts of a vCPU: a guest that keeps storing past deadlines must not keep the
/// injector from other vCPUs.
const LEAST_GAP_NS: Ns = 20_000;

/// How long it watches a vCPU that it has boosted, to end the boost as soon as the guest says that it is done. A guest
/// that needs longer wakes the injector by a kick.
const ATTEND_NS: Ns = 150_000;

/// What the injector has to do in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Duties {
    /// Fire deadlines of the shared page.
    pub(crate) exitless: bool,
    /// Watch for halts and sample requests, this often.
    pub(crate) watch: Option<Ns>,
    /// Give policies accounts of their threads' CPU time.
    pub(crate) accounts: bool,
}

/// A device of a VM.
#[derive(Debug)]
struct Device<'a> {
    vm: usize,
    number: u8,
    plan: &'a DevicePlan,
    next: Ns,
    stream: Stream,
}

/// The last timer interrupt of a vCPU.
#[derive(Clone, Copy, Debug)]
struct TimerInterrupt {
    /// The deadline (TSC).
    deadline: u64,
    at: Ns,
    advance: TimerAdvance,
    /// Whether the advance has learned from its delivery.
    learned: bool,
}

impl TimerInterrupt {
    /// Learns from when the guest's kernel reports the interrupt. Any report is harmless: the advance is bounded, and
    /// affects only that guest.
    fn learn(&mut self, words: &VcpuWords, clock: &Clock) {
        if self.learned || words.took_for.load(Ordering::Acquire) != self.deadline {
            return;
        }
        self.learned = true;
        let took = words.took.load(Ordering::Relaxed);
        let off = |cycles: u64| i64::try_from(clock.to_ns(cycles)).unwrap_or(i64::MAX);
        self.advance.delivered(match took.checked_sub(self.deadline) {
            Some(late) => off(late),
            None => -off(self.deadline - took),
        });
    }
}

/// The injector of a run.
#[derive(Debug)]
pub(crate) struct Injector<'a> {
    common: &'a Common,
    vms: &'a [LabVm],
    duties: Duties,
    devices: Vec<Device<'a>>,
    timeline: &'a [TimelineEvent],
    /// Per vCPU of all VMs.
    fired: Vec<Vec<TimerInterrupt>>,
    watched: Ns,
    accounted: Ns,
    /// vCPUs it watches: VM and vCPU.
    attended: Attention<(usize, u32)>,
}

impl<'a> Injector<'a> {
    /// `devices`: VM index and device, in the order of the guests' device tables.
    pub(crate) fn new(
        common: &'a Common,
        vms: &'a [LabVm],
        duties: Duties,
        devices: impl Iterator<Item = (usize, u8, &'a DevicePlan)>,
        timeline: &'a [TimelineEvent],
        seed: u64,
    ) -> Self {
        let devices = devices
            .enumerate()
            .map(|(d, (vm, number, plan))| {
                let mut stream = Stream::device(seed, d);
                let next = stream.draw(&plan.period);
                Device { vm, number, plan, next, stream }
            })
            .collect();
        let none =
            |vm: &LabVm| TimerInterrupt { deadline: 0, at: 0, advance: vm.advance, learned: true };
        let fired = vms.iter().map(|vm| vec![none(vm); vm.vcpus.len()]).collect();
        Self {
            common,
            vms,
            duties,
            devices,
            timeline,
            fired,
            watched: 0,
            accounted: 0,
            attended: Attention::none(),
        }
    }

    /// Runs until the run is over.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn run(mut self) -> Result<(), Error> {
        // Its sleeps are part of what guests see.
        set_timer_slack(1);
        let fifo = Attributes::from_policy(&vcoop_sched::config::Policy::Fifo(95));
        fifo.set(0).map_err(Error::refused(&RequestTarget::Thread("injector".to_owned())))?;
        let mut sleep = PreciseSleep::new(self.common.clock, self.common.attend);
        while !self.common.is_over() {
            sleep.round(&self.common.kick, &mut self)?;
        }
        Ok(())
    }

    /// Fires everything whose time has come.
    fn fire_due(&mut self) -> Result<(), Error> {
        let common = self.common;
        let now = common.clock.now();
        if self.duties.exitless {
            for (i, (vm, fired)) in self.vms.iter().zip(&mut self.fired).enumerate() {
                for (n, fired) in fired.iter_mut().enumerate() {
                    fired.learn(&vm.control().vcpu[n], &common.clock);
                    if let Some((deadline, at)) = deadline(vm, n, fired, common)
                        && at <= now
                    {
                        (fired.deadline, fired.at, fired.learned) = (deadline, now, false);
                        if vm.inject(common, n as u32, Injection::Timer, VECTOR_TIMER)? {
                            attend(&mut self.attended, common, vm, (i, n as u32));
                        }
                    }
                }
            }
        }
        for d in &mut self.devices {
            if d.next > now {
                continue;
            }
            let kind = if d.plan.nmi { Injection::Nmi } else { Injection::Device };
            let vm = &self.vms[d.vm];
            if vm.inject(common, d.plan.vcpu, kind, VECTOR_DEVICE + d.number)? {
                attend(&mut self.attended, common, vm, (d.vm, d.plan.vcpu));
            }
            d.next = match d.plan.period {
                // Absolute: a late one does not shift those after it.
                Dist::Const(period) => {
                    d.next + period.max(1) * ((now - d.next) / period.max(1) + 1)
                }
                _ => now + d.stream.draw(&d.plan.period).max(1),
            };
        }
        for (i, vm) in self.vms.iter().enumerate() {
            for (n, v) in vm.vcpus.iter().enumerate() {
                if v.timer() <= now {
                    vm.timer_due(common, n as u32)?;
                }
                if vm.answer(common, n as u32)? {
                    self.attended.forget(&(i, n as u32));
                }
            }
        }
        while let [event, rest @ ..] = self.timeline
            && event.at_ns <= now
        {
            self.throw(&event.action)?;
            self.timeline = rest;
        }
        if self.duties.watch.is_some_and(|every| now >= self.watched + every) {
            self.watched = now;
            for vm in self.vms {
                for n in 0..vm.vcpus.len() {
                    vm.look(common, n as u32)?;
                }
            }
        }
        if self.duties.accounts && now >= self.accounted + ACCOUNT_NS {
            self.accounted = now;
            for vm in self.vms {
                for n in 0..vm.vcpus.len() {
                    vm.account(common, n as u32)?;
                }
            }
        }
        Ok(())
    }

    fn throw(&self, action: &TimelineAction) -> Result<(), Error> {
        match action {
            TimelineAction::Boost { vm, on } => {
                for (i, own) in self.vms.iter().enumerate() {
                    match vm {
                        None => own.shared.lock().set_global(*on),
                        Some(vm) if *vm as usize == i => own.shared.lock().set_vm(*on),
                        Some(_) => continue,
                    }
                    for n in 0..own.vcpus.len() {
                        driver::enable(&mut own.port(self.common, n as u32))?;
                    }
                }
                Ok(())
            }
            TimelineAction::VcpuPolicy { vm, vcpu, policy } => {
                self.vms[*vm as usize].rebase(self.common, *vcpu, *policy)
            }
            TimelineAction::Prefer { vm, vcpus } => {
                let now = self.common.clock.now();
                self.vms[*vm as usize].prefer(now, preferred_mask::bits(vcpus));
                Ok(())
            }
        }
    }

    /// When the next look is due, and when the next event of the plan or of a policy.
    fn earliest(&self) -> (Ns, Ns) {
        let mut look = self.common.clock.now() + REST_NS;
        if self.duties.exitless {
            look = look.min(self.common.clock.now() + LOOK_NS);
        }
        if let Some(every) = self.duties.watch {
            look = look.min(self.watched + every);
        }
        let exact = self.devices.iter().map(|d| d.next).min().unwrap_or(NEVER);
        (look, self.timeline.first().map_or(exact, |e| exact.min(e.at_ns)))
    }

    /// Publishes that it will look at `at`, and looks once more: the earliest of `exact`, the deadlines and the
    /// policies' timers.
    fn publish(&self, at: Ns, mut exact: Ns) -> Ns {
        // A sleep can end late by up to MOST_SPIN_NS, and deadlines fire up to `early` ahead. The guest must ring also
        // for a deadline that is this little after the look.
        let early = self.fired.iter().flatten().map(|f| f.advance.ns()).max().unwrap_or(0);
        let margin = MOST_SPIN_NS + early;
        let look = self.common.clock.tsc_at(at.saturating_add(margin));
        if self.duties.exitless {
            for vm in self.vms {
                for (n, _) in vm.vcpus.iter().enumerate() {
                    vm.control().vcpu[n].next_look.store(look, Ordering::Release);
                }
            }
        }
        self.common.horizon.store(at, Ordering::Release);
        GuestArea::fence();
        for (vm, fired) in self.vms.iter().zip(&self.fired) {
            for (n, (v, fired)) in vm.vcpus.iter().zip(fired).enumerate() {
                exact = exact.min(v.timer());
                if self.duties.exitless
                    && let Some((_, due)) = deadline(vm, n, fired, self.common)
                {
                    exact = exact.min(due);
                }
            }
        }
        exact
    }
}

impl Duty for Injector<'_> {
    type Error = Error;

    fn perform(&mut self) -> Result<WaitLimits, Error> {
        self.fire_due()?;
        let (look, exact) = self.earliest();
        let exact = self.publish(look.min(exact), exact);
        let watch = self.attended.until(self.common.clock.now());
        Ok(WaitLimits { look, exact, watch })
    }

    fn is_over(&self) -> bool {
        self.attended.iter().any(|(vm, n)| self.vms[*vm].is_done(*n))
    }
}

/// Watches a vCPU that was boosted, if the injector has a CPU of its own.
fn attend(
    attended: &mut Attention<(usize, u32)>,
    common: &Common,
    vm: &LabVm,
    (i, n): (usize, u32),
) {
    if common.attend {
        let until = common.clock.now() + ATTEND_NS;
        vm.attend(n, common.clock.tsc_at(until));
        attended.watch((i, n), until);
    }
}

/// A vCPU's deadline and when to fire it, unless it was fired already. Any word is a deadline: one in the past is fired
/// now, but not before the least gap is over.
fn deadline(vm: &LabVm, n: usize, fired: &TimerInterrupt, common: &Common) -> Option<(u64, Ns)> {
    let tsc = vm.area(&vm.vcpus[n])?.read_deadline_tsc().bounded(u64::MAX);
    if tsc == 0 || tsc == fired.deadline {
        return None;
    }
    let early = common.clock.ns_at(tsc).saturating_sub(fired.advance.ns());
    let at = early.max(fired.at + LEAST_GAP_NS);
    (at < NEVER).then_some((tsc, at))
}
