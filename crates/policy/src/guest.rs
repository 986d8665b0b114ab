//! The guest half of `dynamic`: what runs in the guest kernel's hooks.
//!
//! It publishes what the vCPU does, asks for a boost by a plain store, and ends a boost with one
//! exit as soon as nothing urgent is left. While the status is [`Status::Disabled`] it keeps count
//! of the nesting, which costs nothing, and neither stores nor notifies.
//!
//! | the guest is | it publishes | it notifies |
//! | --- | --- | --- |
//! | in an interrupt or softirq, or owes a softirq or a reschedule | boost | no |
//! | running or about to run an urgent task | boost | no |
//! | in a preempt-disabled section | the section | no: the end of the section does |
//! | about to have an urgent timer expire ([`GuestHalf::expect`]) | nothing | no: the end of that interrupt does |
//! | idle | idle | no: halting boosted costs nothing and makes the wake-up urgent |
//! | none of these | nothing | if boosted, with request = unboost |
//!
//! An idle loop that polls instead of halting is boosted while it polls, and its budget is charged.
//!
//! One duty is the caller's alone: a task of an urgent class that it puts on *another* vCPU's queue must send that vCPU
//! a reschedule IPI, even if the vCPU has already been told to reschedule. A kernel saves that IPI, which is right on
//! hardware. But the vCPU may have lost its pCPU between the flag and the schedule, and without an injection the host
//! cannot know that it is urgent now.
//!
//! The caller runs one [`GuestHalf`] for each vCPU, on that vCPU, and calls it for every event, also while the status
//! is disabled (or the nesting would be wrong ever after):
//!
//! ```text
//! let step = half.on(event, view);          // view: status and ticket, plain loads
//! store step.stores in order                // release stores into the guest area
//! if step.check {
//!     full fence
//!     let end = half.check(view again);     // status and ticket loaded after the fence
//!     store end.stores
//!     if end.notify { write the notify MSR: one exit }
//! }
//! ```
//!
//! [`GuestHalf::run`] is this sequence on a real pair of areas.

use core::sync::atomic::Ordering;

use vcoop_abi::{BoostRequest, CsState, GuestArea, HostArea, Intent, Status, TaskIntent, Word};

/// What happened in the guest's kernel, on this vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestEvent {
    /// A hard interrupt handler begins.
    IrqEnter,
    /// It ends; `softirq_pending`: softirqs will run before anything else.
    IrqExit {
        /// Softirq work is left to do on this vCPU, and will be done before the task continues.
        softirq_pending: bool,
    },
    /// An NMI handler begins.
    NmiEnter,
    /// It ends.
    NmiExit,
    /// Softirq processing begins.
    SoftirqEnter,
    /// It ends.
    SoftirqExit,
    /// Preemption goes off (outermost).
    PreemptOff,
    /// Preemption goes on again (outermost).
    PreemptOn,
    /// A task becomes the running one. `pending`: the most urgent task still queued behind it.
    TaskSwitch {
        /// The task that now runs.
        next: TaskIntent,
        /// The most urgent task still waiting, if its class is urgent.
        pending: Option<TaskIntent>,
    },
    /// A task of an urgent class was put on this vCPU's run queue.
    RtEnqueued(TaskIntent),
    /// The kernel owes this vCPU a reschedule: its flag is set as an interrupt ends. A task that another vCPU queued
    /// here is not yet the running or pending task, and must keep the boost that its IPI brought. `TaskSwitch`,
    /// `IdleEnter` or `UserReturn` follows.
    NeedResched,
    /// The idle loop takes the vCPU and is about to halt.
    IdleEnter,
    /// The kernel is about to return to user mode.
    UserReturn,
}

/// What the guest saw of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostView {
    /// The status word.
    pub status: Status,
    /// The ticket word.
    pub ticket: u64,
}

impl HostView {
    /// Loads both words.
    pub fn load(area: &HostArea) -> Self {
        Self { status: area.status(), ticket: area.ticket() }
    }
}

/// Words to store, as the area holds them, in this order. `None`: unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stores {
    /// The intent word: an [`Intent`].
    pub intent: Option<u64>,
    /// The critical-section word: a [`CsState`].
    pub cs: Option<u64>,
    /// The request word: a [`BoostRequest`].
    pub request: Option<u64>,
    /// The ack word; last, because it says that the words above cover the ticket.
    pub ack: Option<u64>,
}

impl Stores {
    /// Stores the words. Release pairs with the acquire loads of [`GuestArea::read`].
    pub fn write(&self, area: &GuestArea) {
        if let Some(intent) = self.intent {
            area.intent.store(intent, Ordering::Release);
        }
        if let Some(cs) = self.cs {
            area.cs.store(cs, Ordering::Release);
        }
        if let Some(request) = self.request {
            area.request.store(request, Ordering::Release);
        }
        if let Some(ack) = self.ack {
            area.ack.store(ack, Ordering::Release);
        }
    }
}

/// Answer to an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Store these.
    pub stores: Stores,
    /// Then fence, look at the host again, and call [`GuestHalf::check`].
    pub check: bool,
}

/// Answer to a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Store these.
    pub stores: Stores,
    /// Then write the notify MSR, which exits.
    pub notify: bool,
}

/// The state of one vCPU's guest half.
#[derive(Clone, Debug, Default)]
pub struct GuestHalf {
    intent: Intent,
    /// The same, encoded. invariant: set with it.
    intent_word: u64,
    cs: CsState,
    softirq_owed: bool,
    resched_owed: bool,
    /// Last ticket seen when an interrupt began.
    taken: u64,
    /// Highest ticket to acknowledge. invariant: `<= taken`.
    handled: u64,
    /// What the page holds; `None` until the first store after the status left `Disabled`.
    published: Option<Published>,
    /// Something urgent was published since the last check: the next quiet moment must check, even
    /// if a plain load of the status shows no boost.
    unchecked: bool,
    /// An urgent timer is about to expire.
    expecting: bool,
}

/// The words in the page. Encoded: they are compared at every event.
#[derive(Clone, Copy, Debug)]
struct Published {
    intent: u64,
    cs: u64,
    request: BoostRequest,
    ack: u64,
}

impl GuestHalf {
    /// Nothing urgent, nothing published.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether an urgent timer of this vCPU is about to expire. A host that boosts ahead of deadlines has boosted
    /// for it, or is about to: the end of other work meanwhile does not end that boost.
    pub fn expect(&mut self, soon: bool) {
        self.expecting = soon;
    }

    /// Handles an event, given the host's words by plain loads.
    pub fn on(&mut self, event: GuestEvent, host: HostView) -> Step {
        self.note(event, host.ticket);
        if host.status == Status::Disabled {
            // The page may be given away or registered anew meanwhile: publish everything next time.
            self.published = None;
            return Step::default();
        }
        let urgent = self.is_urgent();
        let stores = self.publish(if urgent {
            BoostRequest::Boost
        } else {
            match self.published {
                // The answer to the last boost stands until there is something new to say.
                Some(Published { request: BoostRequest::Unboost, .. }) => BoostRequest::Unboost,
                _ => BoostRequest::None,
            }
        });
        self.unchecked |= urgent;
        let check = self.is_quiet(urgent) && (self.unchecked || host.status == Status::Boosted);
        Step { stores, check }
    }

    /// Handles the host's words as loaded after the fence. Called without a preceding [`Step::check`] it does no harm,
    /// but misses the boost that the fence is for.
    pub fn check(&mut self, host: HostView) -> End {
        if !self.is_quiet(self.is_urgent()) {
            return End::default();
        }
        self.unchecked = false;
        if host.status != Status::Boosted {
            return End::default();
        }
        End { stores: self.publish(BoostRequest::Unboost), notify: true }
    }

    /// Handles an event on a real pair of areas. True: write the notify MSR now.
    #[must_use = "a notification that is not sent leaves the vCPU boosted"]
    pub fn run(&mut self, event: GuestEvent, guest: &GuestArea, host: &HostArea) -> bool {
        let step = self.on(event, HostView::load(host));
        step.stores.write(guest);
        if !step.check {
            return false;
        }
        GuestArea::fence();
        let end = self.check(HostView::load(host));
        end.stores.write(guest);
        end.notify
    }

    fn note(&mut self, event: GuestEvent, ticket: u64) {
        match event {
            GuestEvent::IrqEnter => {
                self.cs.hardirq = self.cs.hardirq.saturating_add(1);
                self.taken = ticket;
            }
            GuestEvent::IrqExit { softirq_pending } => {
                self.cs.hardirq = self.cs.hardirq.saturating_sub(1);
                self.softirq_owed = softirq_pending;
                self.handle();
            }
            GuestEvent::NmiEnter => {
                self.cs.nmi = self.cs.nmi.saturating_add(1);
                self.taken = ticket;
            }
            GuestEvent::NmiExit => {
                self.cs.nmi = self.cs.nmi.saturating_sub(1);
                self.handle();
            }
            GuestEvent::SoftirqEnter => {
                self.cs.softirq = self.cs.softirq.saturating_add(1);
                self.softirq_owed = false;
            }
            GuestEvent::SoftirqExit => self.cs.softirq = self.cs.softirq.saturating_sub(1),
            GuestEvent::PreemptOff => {
                self.cs.section = self.cs.section.wrapping_add(u32::from(!self.cs.preempt_off));
                self.cs.preempt_off = true;
            }
            GuestEvent::PreemptOn => self.cs.preempt_off = false,
            GuestEvent::TaskSwitch { next, pending } => {
                // Softirqs that are still left have been given to a thread.
                self.softirq_owed = false;
                self.resched_owed = false;
                self.intends(Intent { running: next, pending, idle: false });
            }
            GuestEvent::RtEnqueued(task) => {
                let task = task.canonical();
                let weaker = |p: TaskIntent| p.urgency() < task.urgency();
                if self.intent.pending.is_none_or(weaker) {
                    self.intends(Intent { pending: Some(task), ..self.intent });
                }
            }
            GuestEvent::IdleEnter => {
                self.softirq_owed = false;
                self.resched_owed = false;
                self.intends(Intent { idle: true, ..Intent::default() });
            }
            GuestEvent::NeedResched => self.resched_owed = true,
            GuestEvent::UserReturn => self.resched_owed = false,
        }
    }

    fn intends(&mut self, intent: Intent) {
        self.intent = intent;
        self.intent_word = intent.to_word();
    }

    /// Interrupts count as handled when the outermost one ends: an inner one read a ticket that may
    /// belong to an interrupt still waiting behind the outer one.
    fn handle(&mut self) {
        if self.cs.hardirq == 0 && self.cs.nmi == 0 {
            self.handled = self.taken;
        }
    }

    /// Whether a boost is wanted.
    fn is_urgent(&self) -> bool {
        self.cs.in_interrupt() || self.softirq_owed || self.resched_owed || self.intent.is_urgent()
    }

    /// Whether nothing needs a boost.
    fn is_quiet(&self, urgent: bool) -> bool {
        !urgent && !self.cs.preempt_off && !self.intent.idle && !self.expecting
    }

    /// What must be stored for the page to show the state, with this request.
    fn publish(&mut self, request: BoostRequest) -> Stores {
        let (intent, cs) = (self.intent_word, self.cs.to_word());
        let now = Published { intent, cs, request, ack: self.handled };
        let old = self.published.replace(now);
        Stores {
            intent: old.is_none_or(|o| o.intent != now.intent).then_some(intent),
            cs: old.is_none_or(|o| o.cs != now.cs).then_some(cs),
            request: old.is_none_or(|o| o.request != now.request).then_some(request.to_word()),
            ack: old.is_none_or(|o| o.ack != now.ack).then_some(now.ack),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use vcoop_abi::{BoostRequest, Class, CsState, GuestArea, HostArea, Status, TaskIntent, Word};

    use super::{GuestEvent as E, GuestHalf, HostView};

    const NORMAL: HostView = HostView { status: Status::Normal, ticket: 0 };
    const BOOSTED: HostView = HostView { status: Status::Boosted, ticket: 7 };
    const RT: TaskIntent = TaskIntent::new(Class::Fifo, 50);

    /// A vCPU that runs a fair task and has published it.
    fn busy() -> GuestHalf {
        let mut g = GuestHalf::new();
        g.on(E::TaskSwitch { next: TaskIntent::FAIR, pending: None }, NORMAL);
        g.check(NORMAL);
        g
    }

    #[test]
    fn a_reschedule_that_is_owed_keeps_the_boost_until_it_is_done() {
        let mut g = busy();
        g.on(E::IrqEnter, BOOSTED);
        g.on(E::NeedResched, BOOSTED);
        let s = g.on(E::IrqExit { softirq_pending: false }, BOOSTED);
        assert!(!s.check, "the task that the IPI announced is not known yet");
        assert_eq!(s.stores.request, None, "still a boost");
        assert!(!g.on(E::TaskSwitch { next: RT, pending: None }, BOOSTED).check);
        assert!(g.on(E::TaskSwitch { next: TaskIntent::FAIR, pending: None }, BOOSTED).check);
        // The flag was raised for nothing: the return to user mode ends it.
        g.on(E::IrqEnter, BOOSTED);
        g.on(E::NeedResched, BOOSTED);
        assert!(!g.on(E::IrqExit { softirq_pending: false }, BOOSTED).check);
        assert!(g.on(E::UserReturn, BOOSTED).check);
    }

    #[test]
    fn boosted_interrupt_ends_in_one_notification() {
        let mut g = busy();
        let s = g.on(E::IrqEnter, BOOSTED);
        assert_eq!(s.stores.request, Some(BoostRequest::Boost.to_word()));
        assert_eq!((s.stores.ack, s.check), (None, false));
        let s = g.on(E::IrqExit { softirq_pending: false }, BOOSTED);
        assert_eq!((s.stores.ack, s.check), (Some(7), true));
        let end = g.check(BOOSTED);
        assert_eq!(end.stores.request, Some(BoostRequest::Unboost.to_word()));
        assert!(end.notify);
        // Nothing new to say: no store, no fence, no exit.
        assert_eq!(g.on(E::UserReturn, NORMAL), super::Step::default());
    }

    #[test]
    fn a_boost_ahead_of_a_deadline_outlasts_the_interrupts_before_it() {
        let mut g = busy();
        g.expect(true);
        g.on(E::IrqEnter, BOOSTED);
        assert!(!g.on(E::IrqExit { softirq_pending: false }, BOOSTED).check);
        assert_eq!(g.check(BOOSTED), super::End::default());
        // The timer's own interrupt.
        g.on(E::IrqEnter, BOOSTED);
        g.expect(false);
        assert!(g.on(E::IrqExit { softirq_pending: false }, BOOSTED).check);
        assert!(g.check(BOOSTED).notify);
    }

    #[test]
    fn unboosted_interrupt_costs_no_exit_but_one_check() {
        let mut g = busy();
        g.on(E::IrqEnter, NORMAL);
        assert!(g.on(E::IrqExit { softirq_pending: false }, NORMAL).check);
        assert!(!g.check(NORMAL).notify);
        assert!(!g.on(E::UserReturn, NORMAL).check);
        // The boost that landed meanwhile is seen at the next hook.
        assert!(g.on(E::UserReturn, BOOSTED).check);
        assert!(g.check(BOOSTED).notify);
    }

    #[test]
    fn no_notification_while_nested_owing_a_softirq_or_running_rt() {
        let mut g = busy();
        g.on(E::IrqEnter, BOOSTED);
        g.on(E::NmiEnter, BOOSTED);
        let s = g.on(E::NmiExit, BOOSTED);
        assert_eq!((s.check, s.stores.ack), (false, None));
        assert!(!g.on(E::IrqExit { softirq_pending: true }, BOOSTED).check);
        assert!(!g.on(E::SoftirqEnter, BOOSTED).check);
        g.on(E::RtEnqueued(RT), BOOSTED);
        assert!(!g.on(E::SoftirqExit, BOOSTED).check);
        assert!(!g.on(E::TaskSwitch { next: RT, pending: None }, BOOSTED).check);
        assert!(!g.on(E::UserReturn, BOOSTED).check);
        assert!(g.on(E::TaskSwitch { next: TaskIntent::FAIR, pending: None }, BOOSTED).check);
    }

    #[test]
    fn a_section_defers_the_check_to_its_end() {
        let mut g = busy();
        g.on(E::PreemptOff, NORMAL);
        g.on(E::IrqEnter, NORMAL);
        assert!(!g.on(E::IrqExit { softirq_pending: false }, NORMAL).check);
        assert!(g.on(E::PreemptOn, NORMAL).check);
        // A section without an interrupt in it needs no fence unless the host has boosted.
        g.check(NORMAL);
        g.on(E::PreemptOff, NORMAL);
        assert!(!g.on(E::PreemptOn, NORMAL).check);
        g.on(E::PreemptOff, NORMAL);
        assert!(g.on(E::PreemptOn, BOOSTED).check);
    }

    #[test]
    fn sections_are_numbered() {
        let mut g = busy();
        let mut section = || {
            let cs = g.on(E::PreemptOff, NORMAL).stores.cs.unwrap();
            g.on(E::PreemptOn, NORMAL);
            CsState::from_word(cs)
        };
        let (first, second) = (section(), section());
        assert!(first.preempt_off && second.preempt_off && first.section != second.section);
    }

    #[test]
    fn going_idle_boosted_does_not_notify() {
        let mut g = busy();
        assert!(!g.on(E::IdleEnter, BOOSTED).check);
        assert!(!g.on(E::IrqEnter, BOOSTED).check);
        assert!(!g.on(E::IrqExit { softirq_pending: false }, BOOSTED).check);
        assert!(!g.check(BOOSTED).notify);
        assert!(g.on(E::TaskSwitch { next: TaskIntent::FAIR, pending: None }, BOOSTED).check);
    }

    #[test]
    fn disabled_stores_nothing_and_keeps_count() {
        let off = HostView { status: Status::Disabled, ticket: 0 };
        let mut g = GuestHalf::new();
        assert_eq!(g.on(E::IrqEnter, off), super::Step::default());
        // Enabled in the middle of the interrupt: everything is published, urgency included.
        let s = g.on(E::SoftirqEnter, NORMAL);
        let cs = CsState::from_word(s.stores.cs.unwrap());
        assert_eq!((cs.hardirq, cs.softirq), (1, 1));
        assert_eq!(s.stores.request, Some(BoostRequest::Boost.to_word()));
        assert!(s.stores.intent.is_some() && s.stores.ack.is_some());
    }

    #[test]
    fn run_stores_checks_and_says_when_to_notify() {
        let (guest, host) = (GuestArea::default(), HostArea::default());
        host.status.store(Status::Boosted.to_word(), Ordering::Release);
        host.ticket.store(3, Ordering::Release);
        let mut g = GuestHalf::new();
        assert!(!g.run(E::IrqEnter, &guest, &host));
        let words = guest.read();
        assert_eq!(words.request.decode::<BoostRequest>(), BoostRequest::Boost);
        assert_eq!(words.cs.decode::<CsState>().hardirq, 1);
        assert!(g.run(E::IrqExit { softirq_pending: false }, &guest, &host));
        let words = guest.read();
        assert_eq!(words.request.decode::<BoostRequest>(), BoostRequest::Unboost);
        assert_eq!(words.ack.bounded(u64::MAX), 3);
    }

    #[test]
    fn most_urgent_pending_task_is_kept() {
        let mut g = busy();
        g.on(E::RtEnqueued(TaskIntent::rr(10)), NORMAL);
        g.on(E::RtEnqueued(RT), NORMAL);
        assert!(g.on(E::RtEnqueued(TaskIntent::fifo(20)), NORMAL).stores.intent.is_none());
        assert_eq!(g.intent.pending, Some(RT));
    }
}
