//! `dynamic`, host half: boost on injection and on the guest's word, across idle, until the guest says that no urgent
//! work is left, or the budget is empty.
//!
//! # Reasons
//!
//! A vCPU is boosted while there is a reason for it:
//!
//! * *interrupt*: the host injected one ([`Event::Injected`]) whose ticket the guest has not
//!   acknowledged yet, or another vCPU asked for this one when it sent an IPI ([`Event::Asked`]):
//!   that is a ticket, too;
//! * *request*: the guest's word says boost, or its facts do (in an interrupt or softirq, an
//!   urgent task running or pending);
//! * *section*: the guest has preemption disabled, for less than
//!   [`max_preempt_off_ns`](DynamicConfig::max_preempt_off_ns) as far as the host can see;
//! * *wake*: it was boosted across idle, was woken, and has not left its idle loop yet.
//!
//! The host looks at VM exits. It never ends a boost for lack of a reason while the guest has an
//! unacknowledged ticket: the interrupt may be on its way.
//!
//! # The race with the guest's way out
//!
//! When a guest finishes its urgent work, it reads the status, sees "normal", and returns to a task that may run for
//! seconds without another hook. If a boost began after this read, nothing would end it. Three rules together exclude
//! that:
//!
//! 1. *Ticket before interrupt.* The ticket is published before the interrupt is visible. So the
//!    handler that takes the interrupt reads that ticket or a later one, and its acknowledgement
//!    covers it, coalesced interrupts included.
//! 2. *Check after store, on both sides.* The guest stores its words, fences, and loads the status;
//!    the host stores the status, fences, and loads the words ([`Action::Recheck`]). At least one
//!    of the two sees the other's store, and ends the boost.
//! 3. *A section begins a boost only while the vCPU is out of guest mode.* The guest does not fence
//!    when preemption goes on again: that would cost every `preempt_enable` some twenty cycles. So
//!    a host that reads the words of a running vCPU may see a section that is already over, and
//!    must not boost for it, nor keep a boost for it that the guest may not have seen.
//!
//! A guest may read a ticket whose interrupt is not visible yet and acknowledge it with an earlier interrupt. This
//! interrupt then arrives at a vCPU without a boost, and the guest requests a boost in its handler. No boost is left
//! without an end. `tests/race.rs` walks through every interleaving of the two sides, store buffers included.
//!
//! # Where the posted v1 patches differ
//!
//! This is the policy that the cover letter of the first dynamic-priority series (December 2023) describes. The code of
//! that series differs in these places.
//!
//! * Critical sections were announced as a reason. The posted series adds them in its third patch,
//!   and in its fifth makes them a veto only. Here they are a reason until they are too long.
//! * There, a long preempt-disabled section cancels a boost that is due for a pending interrupt.
//!   Here it stops being a reason, and other reasons stand.
//! * In the patches the clock of a section starts at the first exit that sees the flag, and short sections in a row
//!   look like one long one. Here the guest numbers its sections. The budget bounds a guest that lies about the number.
//! * There is no bound over time: a guest can ask again at once. Here two token buckets bound the
//!   boosted time, and throttling is a state the guest can see.
//! * There, unboosting sets SCHED_NORMAL, nice 0, whatever the thread had before. Here a driver
//!   restores the captured baseline.
//! * There, a guest cannot switch the feature off once it was on. Here 0 does it.
//! * There, preempt-enable does not look at the status, so a boost for a section lasts until the
//!   next return to user mode. Here it does, by a plain load.

use vcoop_abi::{BoostRequest, CsState, GuestWords, Intent, Status};

use crate::action::{Action, Actions};
use crate::config::{DynamicConfig, Ns};
use crate::control::Control;
use crate::event::Event;
use crate::vm_shared::VmShared;

/// The machine of one vCPU. Its states and transitions are those of the status word:
///
/// | state | event | next |
/// | --- | --- | --- |
/// | `Disabled` | `Enable`, `Registered`: switches on and guest registered | `Normal` |
/// | `Normal` | `Injected`, `Asked`; `Exit`, `Sampled`, `Notify` with a reason; `Halted` | `Boosted` |
/// | `Boosted`, awake or not across idle | `Exit`, `Sampled`, `Notify`, `Recheck` without a reason | `Normal` |
/// | `Boosted` | `Halted` without a reason, boosting across idle off | `Normal` |
/// | `Boosted` | `Baseline { outranks: true }`, `Refused` | `Normal` |
/// | `Boosted`, awake | `Timer` with a bucket empty; `Woken` with one empty | `Throttled` |
/// | `Normal` | a reason, but a bucket empty | `Throttled` |
/// | `Throttled` | `Timer` with both buckets at half their burst, penalty over | `Normal` |
/// | any | `Enable`, `Registered`: a switch off or guest gone | `Disabled` |
///
/// Every other pair leaves the state as it is.
#[derive(Clone, Debug)]
pub struct Dynamic {
    config: DynamicConfig,
    control: Control,
    attached: bool,
    registered: bool,
    /// Last ticket published.
    ticket: u64,
    /// Highest acknowledged one. invariant: `<= ticket`.
    acked: u64,
    section: Option<Section>,
    /// When the section that alone holds the boost becomes too long.
    section_end: Option<Ns>,
    /// Woken while boosted, and not yet seen outside the idle loop.
    waking: bool,
    /// Boosted by a call that asked for a recheck, and not rechecked yet.
    fresh: bool,
    /// Whether the words read last are words that an honest guest writes.
    canonical: bool,
}

/// A preempt-disabled section as the host sees it.
#[derive(Clone, Copy, Debug)]
struct Section {
    number: u32,
    /// First time it was seen; the section is at least as old.
    since: Ns,
}

/// Whether the vCPU could change its words while the host looks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vcpu {
    Out,
    MayRun,
}

/// What the words call for.
#[derive(Clone, Copy)]
enum Demand {
    None,
    /// Only a section, and that is too long.
    LongSection,
    /// Only a section; it becomes too long at this time.
    Section(Ns),
    Urgent,
}

impl Dynamic {
    /// Disabled, awake, not registered, with a full bucket, at time `now`.
    pub fn new(config: DynamicConfig, now: Ns) -> Self {
        Self {
            config,
            control: Control::new(
                config.means,
                config.vcpu_budget,
                config.longest_boost_ns,
                true,
                config.repay,
                config.rest_slice_ns,
                now,
            ),
            attached: true,
            registered: false,
            ticket: 0,
            acked: 0,
            section: None,
            section_end: None,
            waking: false,
            fresh: false,
            canonical: true,
        }
    }

    /// What happened at time `now`, and what to do about it.
    pub(crate) fn answer(&mut self, now: Ns, event: Event, vm: &mut VmShared, out: &mut Actions) {
        self.control.settle(now, vm);
        match event {
            Event::Enable => self.switch(now, vm, out),
            Event::Attached(attached) => {
                self.attached = attached;
                self.control.awake();
                self.switch(now, vm, out);
            }
            Event::Registered(registered) => {
                self.registered = registered;
                self.acked = self.ticket;
                self.section = None;
                self.switch(now, vm, out);
            }
            Event::Baseline { outranks } => self.control.set_outranked(outranks, vm, out),
            Event::Refused => self.control.refused(vm, out),
            Event::Injected(_) if self.config.boost_on_injection => {
                self.interrupted(now, vm, out);
            }
            Event::Asked if self.config.boost_receiver => self.interrupted(now, vm, out),
            Event::Injected(_) | Event::Asked => {}
            Event::Exit(words) => self.look(now, &words, Vcpu::Out, vm, out),
            Event::Sampled(words) => self.look(now, &words, Vcpu::MayRun, vm, out),
            Event::Notify(words) => self.notified(now, &words, Vcpu::Out, vm, out),
            Event::NotifySampled(words) => {
                self.notified(now, &words, Vcpu::MayRun, vm, out);
            }
            Event::Recheck(words) => self.recheck(now, &words, vm, out),
            Event::Halted(words) => self.halted(now, &words, vm, out),
            Event::Woken => {
                self.waking = self.control.is_boosted();
                self.control.wake(now, vm, out);
            }
            Event::Timer => self.timer(now, vm, out),
            Event::Ran(account) => self.control.ran(account, out),
        }
        if self.control.lost_timer(now, out) {
            self.timer(now, vm, out);
        }
        if !self.control.is_boosted() {
            self.section_end = None;
            self.waking = false;
            self.fresh = false;
        }
        self.control.arm(now, self.section_end, vm, out);
    }

    /// Its boost.
    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// Whether another vCPU that sends an IPI can ask for a boost.
    pub fn hears_senders(&self) -> bool {
        self.config.boost_receiver
    }

    fn is_disabled(&self) -> bool {
        self.control.status() == Status::Disabled
    }

    fn switch(&mut self, now: Ns, vm: &mut VmShared, out: &mut Actions) {
        let governs = self.attached && vm.is_on();
        if governs && self.registered && self.is_disabled() {
            // Interrupts that were injected while the guest's hooks were off will never be acknowledged.
            self.acked = self.ticket;
        }
        self.control.set_enabled(now, governs, self.registered, vm, out);
    }

    /// An interrupt that is a reason is about to become visible to the guest.
    fn interrupted(&mut self, now: Ns, vm: &mut VmShared, out: &mut Actions) {
        if self.is_disabled() {
            return;
        }
        self.ticket += 1;
        out.push(Action::Ticket(self.ticket));
        self.section_end = None;
        if self.control.boost(now, vm, out) {
            self.fresh = true;
            out.push(Action::Recheck);
        }
    }

    /// Judges the words of a vCPU that goes on, and begins, keeps or ends its boost.
    fn look(
        &mut self,
        now: Ns,
        words: &GuestWords,
        vcpu: Vcpu,
        vm: &mut VmShared,
        out: &mut Actions,
    ) {
        if self.is_disabled() {
            return;
        }
        let need = self.need(now, words);
        let section_end = self.section_end.take();
        match need {
            // Seen from outside, a section may be over already: no reason to begin a boost. It is
            // no reason to end one either, because the guest ends it with the section.
            Demand::Section(_) if vcpu == Vcpu::MayRun => self.section_end = section_end,
            Demand::Urgent | Demand::Section(_) => {
                if let Demand::Section(end) = need {
                    self.section_end = Some(end);
                }
                if self.control.boost(now, vm, out) && vcpu == Vcpu::MayRun {
                    self.fresh = true;
                    out.push(Action::Recheck);
                }
            }
            Demand::LongSection => {
                if self.control.end(self.canonical, vm, out)
                    || self.control.status() == Status::Normal
                {
                    self.control.deny_long_section(out);
                }
            }
            // Words that the guest wrote on its way into idle may be read when it is idle and boosted across idle.
            Demand::None if self.control.is_halted() && self.config.boost_across_idle => {}
            Demand::None => {
                self.control.end(self.canonical, vm, out);
            }
        }
    }

    /// The guest says that it is done.
    fn notified(
        &mut self,
        now: Ns,
        words: &GuestWords,
        vcpu: Vcpu,
        vm: &mut VmShared,
        out: &mut Actions,
    ) {
        let boosted = self.control.is_boosted();
        self.look(now, words, vcpu, vm, out);
        if boosted && self.control.status() == Status::Normal {
            self.control.count_notified();
        }
    }

    /// The second look after a boost that was given to a vCPU that may be running. It can only end the boost, and a
    /// section is no reason to keep it.
    fn recheck(&mut self, now: Ns, words: &GuestWords, vm: &mut VmShared, out: &mut Actions) {
        if self.is_disabled() {
            return;
        }
        let needed = matches!(self.need(now, words), Demand::Urgent);
        if !needed
            && !self.control.is_halted()
            && self.control.end(self.canonical, vm, out)
            && self.fresh
        {
            self.control.count_raced();
        }
        self.fresh = false;
        self.section_end = None;
    }

    fn halted(&mut self, now: Ns, words: &GuestWords, vm: &mut VmShared, out: &mut Actions) {
        self.control.halt(vm, out);
        if self.is_disabled() {
            return;
        }
        self.waking = false;
        self.section_end = None;
        let need = self.need(now, words);
        if self.config.boost_across_idle || matches!(need, Demand::Urgent) {
            self.control.boost(now, vm, out);
        } else {
            self.control.end(self.canonical, vm, out);
        }
    }

    fn timer(&mut self, now: Ns, vm: &mut VmShared, out: &mut Actions) {
        self.control.on_timer(now, vm, out);
        if self.control.is_boosted() && self.section_end.is_some_and(|end| end <= now) {
            // The section alone held the boost, and is too long by now. Whether anything else
            // does, the words say; a recheck does not count sections.
            self.section_end = None;
            out.push(Action::Recheck);
        }
    }

    /// Judges the words, and remembers what they say about tickets, sections and idle.
    fn need(&mut self, now: Ns, words: &GuestWords) -> Demand {
        let intent: Intent = words.intent.decode();
        let cs: CsState = words.cs.decode();
        let request: BoostRequest = words.request.decode();
        // An ack beyond the last ticket is not an answer to anything: it is ignored, rather than
        // bounded, so that a wild guest gains nothing by it.
        let ack = words.ack.validate(|ack| if ack <= self.ticket { Ok(ack) } else { Err(()) });
        self.canonical = ack.is_ok()
            && words.intent.is_canonical::<Intent>()
            && words.cs.is_canonical::<CsState>()
            && words.request.is_canonical::<BoostRequest>();
        self.acked = self.acked.max(ack.unwrap_or(0));
        self.waking &= intent.idle;
        let age = self.section_age(now, cs);

        let interrupt = self.acked < self.ticket;
        let asked = self.config.boost_on_request
            && (request == BoostRequest::Boost || cs.in_interrupt() || intent.is_urgent());
        if interrupt || asked || self.waking {
            return Demand::Urgent;
        }
        match age {
            Some(age) if self.config.boost_on_request => {
                match self.config.max_preempt_off_ns.checked_sub(age) {
                    None | Some(0) => Demand::LongSection,
                    Some(left) => Demand::Section(now.saturating_add(left)),
                }
            }
            _ => Demand::None,
        }
    }

    /// How long the guest's preempt-disabled section has been going on, as far as the host saw.
    fn section_age(&mut self, now: Ns, cs: CsState) -> Option<Ns> {
        if !cs.preempt_off {
            self.section = None;
            return None;
        }
        let since = match self.section {
            Some(s) if s.number == cs.section => s.since,
            _ => now,
        };
        self.section = Some(Section { number: cs.section, since });
        Some(now.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests;
