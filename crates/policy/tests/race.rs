//! Every interleaving of a host that boosts and a guest that leaves its urgent work, on a machine
//! with store buffers (x86: a store may become visible after later loads).
//!
//! The property: when both sides are through and no interrupt is on its way, the vCPU is not
//! boosted. A state that breaks it is one where the guest runs an ordinary task, no hook will run,
//! no exit is due, and only the budget would end the boost.
//!
//! The search runs the real machines. Each rule of the protocol is also left out once, and the
//! search must then find a broken state: that shows that the rule is needed, and that the search
//! can see.

use std::collections::{BTreeSet, VecDeque};

use vcoop_abi::{Class, GuestWords, Status, TaskIntent, Word};
use vcoop_policy::config::{Budget, DynamicConfig, Means};
use vcoop_policy::guest::{HostView, Stores};
use vcoop_policy::{Action, Event, GuestEvent, GuestHalf, HostPolicy, Injection, VmShared};

/// Which rules hold, and what the two sides do.
#[derive(Clone)]
struct Setup {
    host: &'static [HostDoes],
    guest: &'static [GuestEvent],
    host_fence: bool,
    guest_fence: bool,
    recheck: bool,
    ticket_first: bool,
    /// The interrupt becomes visible before the boost (but after the ticket).
    inject_early: bool,
}

#[derive(Clone, Copy, Debug)]
enum HostDoes {
    Inject,
    Sample,
}

/// Locations: the guest's words, then the host's.
const INTENT: usize = 0;
const CS: usize = 1;
const REQUEST: usize = 2;
const ACK: usize = 3;
const STATUS: usize = 4;
const TICKET: usize = 5;

/// One step of the host still to do, in order.
#[derive(Clone, Copy, Debug)]
enum HostStep {
    Begin(HostDoes),
    Store(usize, u64),
    Apply(bool),
    /// Waits for the store buffer, as the ioctl behind it does.
    Visible,
    Fence,
    Load(usize),
    Decide(Why),
    Unlock,
}

#[derive(Clone, Copy, Debug)]
enum Why {
    Sample,
    Recheck,
}

#[derive(Clone, Copy, Debug)]
enum GuestStep {
    Hook(GuestEvent),
    LoadStatus(GuestEvent),
    LoadTicket(GuestEvent),
    Fence,
    CheckStatus,
    CheckTicket,
    Notify,
}

#[derive(Clone, Debug)]
struct World {
    mem: [u64; 6],
    guest_buf: VecDeque<(usize, u64)>,
    host_buf: VecDeque<(usize, u64)>,
    applied: bool,
    pending: bool,
    locked: bool,
    policy: HostPolicy,
    vm: VmShared,
    host: VecDeque<HostStep>,
    /// Words the host has loaded for the next decision.
    seen: [u64; 4],
    half: GuestHalf,
    guest: VecDeque<GuestStep>,
    view: HostView,
}

impl World {
    /// The vCPU runs a fair task and was just interrupted; the host did not see that interrupt.
    fn new(setup: &Setup) -> Self {
        let big = Budget { burst_ns: 1 << 40, refill_ppm: 0 };
        let config = DynamicConfig::new(Means::Rr(8), big, big);
        let mut w = Self {
            mem: [0; 6],
            guest_buf: VecDeque::new(),
            host_buf: VecDeque::new(),
            applied: false,
            pending: false,
            locked: false,
            policy: HostPolicy::dynamic(config, 0),
            vm: VmShared::new(big, 0),
            host: setup.host.iter().map(|d| HostStep::Begin(*d)).collect(),
            seen: [0; 4],
            half: GuestHalf::new(),
            guest: VecDeque::new(),
            view: HostView::default(),
        };
        w.handle(Event::Enable);
        w.handle(Event::Registered(true));
        let fair = GuestEvent::TaskSwitch { next: TaskIntent::FAIR, pending: None };
        for event in [fair, GuestEvent::UserReturn, GuestEvent::IrqEnter] {
            let view = HostView { status: Status::Normal, ticket: 0 };
            let step = w.half.on(event, view);
            w.store(step.stores);
            if step.check {
                w.half.check(view);
            }
        }
        while w.flush_guest() {}
        w.guest = setup.guest.iter().map(|e| GuestStep::Hook(*e)).collect();
        w
    }

    /// A host call whose actions take effect at once.
    fn handle(&mut self, event: Event) {
        for action in self.policy.on(0, event, &mut self.vm) {
            match action {
                Action::Status(s) => self.mem[STATUS] = s.to_word(),
                Action::Ticket(t) => self.mem[TICKET] = t,
                Action::Boost(_) => self.applied = true,
                Action::Restore => self.applied = false,
                Action::Recheck => panic!("{event:?} asks for a recheck"),
                Action::ArmTimer(_) | Action::CancelTimer | Action::Rest(_) | Action::Denied(_) => {
                }
            }
        }
    }

    fn store(&mut self, stores: Stores) {
        let words = [
            (INTENT, stores.intent),
            (CS, stores.cs),
            (REQUEST, stores.request),
            (ACK, stores.ack),
        ];
        self.guest_buf.extend(words.into_iter().filter_map(|(at, v)| Some((at, v?))));
    }

    fn flush_guest(&mut self) -> bool {
        let store = self.guest_buf.pop_front();
        store.map(|(at, v)| self.mem[at] = v).is_some()
    }

    fn flush_host(&mut self) -> bool {
        let store = self.host_buf.pop_front();
        store.map(|(at, v)| self.mem[at] = v).is_some()
    }

    /// Turns the actions of a call into steps. `inject`: an interrupt goes with them.
    fn plan(&mut self, event: Event, inject: bool, setup: &Setup) {
        let mut steps = Vec::new();
        let mut recheck = false;
        for action in self.policy.on(0, event, &mut self.vm) {
            match action {
                Action::Ticket(t) if setup.ticket_first => {
                    steps.insert(0, HostStep::Store(TICKET, t));
                    if setup.inject_early {
                        steps.push(HostStep::Visible);
                    }
                }
                Action::Ticket(t) => steps.extend([HostStep::Visible, HostStep::Store(TICKET, t)]),
                Action::Status(s) => steps.push(HostStep::Store(STATUS, s.to_word())),
                Action::Boost(_) => steps.push(HostStep::Apply(true)),
                Action::Restore => steps.push(HostStep::Apply(false)),
                Action::Recheck => recheck = setup.recheck,
                Action::ArmTimer(_) | Action::CancelTimer | Action::Rest(_) | Action::Denied(_) => {
                }
            }
        }
        if inject && setup.ticket_first && !setup.inject_early {
            steps.push(HostStep::Visible);
        }
        if recheck {
            if setup.host_fence {
                steps.push(HostStep::Fence);
            }
            steps.extend([ACK, INTENT, CS, REQUEST].map(HostStep::Load));
            steps.push(HostStep::Decide(Why::Recheck));
        } else {
            steps.push(HostStep::Unlock);
        }
        for step in steps.into_iter().rev() {
            self.host.push_front(step);
        }
    }

    fn words(&self) -> GuestWords {
        let [intent, cs, request, ack] = self.seen;
        GuestWords::from_raw(intent, cs, request, ack)
    }

    /// The host's next step; `None` if it has none or must wait.
    fn step_host(&self, setup: &Setup) -> Option<Self> {
        let mut w = self.clone();
        match w.host.pop_front()? {
            HostStep::Begin(_) if w.locked => return None,
            HostStep::Begin(HostDoes::Inject) => {
                w.locked = true;
                w.plan(Event::Injected(Injection::Device), true, setup);
            }
            HostStep::Begin(HostDoes::Sample) => {
                w.locked = true;
                w.host.push_front(HostStep::Decide(Why::Sample));
                for at in [REQUEST, CS, INTENT, ACK] {
                    w.host.push_front(HostStep::Load(at));
                }
            }
            HostStep::Store(at, v) => w.host_buf.push_back((at, v)),
            HostStep::Apply(on) => w.applied = on,
            HostStep::Visible | HostStep::Fence if !w.host_buf.is_empty() => return None,
            HostStep::Visible => w.pending = true,
            HostStep::Fence => {}
            HostStep::Load(at) => w.seen[at] = w.mem[at],
            HostStep::Decide(Why::Sample) => w.plan(Event::Sampled(w.words()), false, setup),
            HostStep::Decide(Why::Recheck) => w.plan(Event::Recheck(w.words()), false, setup),
            // An unlock is a release: later owners see the stores before it.
            HostStep::Unlock if !w.host_buf.is_empty() => return None,
            HostStep::Unlock => w.locked = false,
        }
        Some(w)
    }

    fn step_guest(&self, setup: &Setup) -> Option<Self> {
        let mut w = self.clone();
        let Some(step) = w.guest.pop_front() else {
            // In user mode with interrupts on.
            if !w.pending {
                return None;
            }
            w.pending = false;
            let irq = [
                GuestEvent::IrqEnter,
                GuestEvent::IrqExit { softirq_pending: false },
                GuestEvent::UserReturn,
            ];
            w.guest.extend(irq.map(GuestStep::Hook));
            return Some(w);
        };
        match step {
            GuestStep::Hook(e) => w.guest.push_front(GuestStep::LoadStatus(e)),
            GuestStep::LoadStatus(e) => {
                w.view.status = Status::from_word(w.mem[STATUS]);
                w.guest.push_front(GuestStep::LoadTicket(e));
            }
            GuestStep::LoadTicket(e) => {
                w.view.ticket = w.mem[TICKET];
                let step = w.half.on(e, w.view);
                w.store(step.stores);
                if step.check {
                    w.guest.push_front(GuestStep::Fence);
                }
            }
            GuestStep::Fence if setup.guest_fence && !w.guest_buf.is_empty() => return None,
            GuestStep::Fence => w.guest.push_front(GuestStep::CheckStatus),
            GuestStep::CheckStatus => {
                w.view.status = Status::from_word(w.mem[STATUS]);
                w.guest.push_front(GuestStep::CheckTicket);
            }
            GuestStep::CheckTicket => {
                w.view.ticket = w.mem[TICKET];
                let end = w.half.check(w.view);
                w.store(end.stores);
                if end.notify {
                    w.guest.push_front(GuestStep::Notify);
                }
            }
            // The exit drains the guest's stores, and the host handles it under the vCPU's lock.
            GuestStep::Notify if !w.guest_buf.is_empty() || w.locked => return None,
            GuestStep::Notify => {
                w.seen.copy_from_slice(&w.mem[..4]);
                w.handle(Event::Notify(w.words()));
            }
        }
        Some(w)
    }

    fn is_final(&self) -> bool {
        self.host.is_empty()
            && self.guest.is_empty()
            && !self.pending
            && self.guest_buf.is_empty()
            && self.host_buf.is_empty()
    }
}

/// States reached, and one in which the boost is left behind.
fn search(setup: &Setup) -> (usize, Option<World>) {
    let mut stuck = None;
    let mut seen = BTreeSet::new();
    let mut todo = vec![World::new(setup)];
    while let Some(w) = todo.pop() {
        if !seen.insert(format!("{w:?}")) {
            continue;
        }
        if w.is_final() {
            let status = Status::from_word(w.mem[STATUS]);
            assert_eq!(w.applied, status == Status::Boosted, "word and thread disagree: {w:?}");
            assert_eq!(w.applied, w.policy.is_boosted(), "machine and thread disagree: {w:?}");
            if w.applied {
                stuck = Some(w);
            }
            continue;
        }
        let mut flushed_guest = w.clone();
        let mut flushed_host = w.clone();
        let before = todo.len();
        if flushed_guest.flush_guest() {
            todo.push(flushed_guest);
        }
        if flushed_host.flush_host() {
            todo.push(flushed_host);
        }
        todo.extend(w.step_host(setup));
        todo.extend(w.step_guest(setup));
        assert!(todo.len() > before, "deadlock: {w:?}");
    }
    (seen.len(), stuck)
}

const EXIT: GuestEvent = GuestEvent::IrqExit { softirq_pending: false };

const RT: TaskIntent = TaskIntent::new(Class::Fifo, 50);

/// The guest's ways out of the interrupt it is in: straight; through a softirq; out of an interrupt
/// in a preempt-disabled section; into such a section, whose end has no fence; through an urgent
/// task that the interrupt woke.
const WAYS_OUT: [&[GuestEvent]; 5] = [
    &[EXIT, GuestEvent::UserReturn],
    &[
        GuestEvent::IrqExit { softirq_pending: true },
        GuestEvent::SoftirqEnter,
        GuestEvent::SoftirqExit,
        GuestEvent::UserReturn,
    ],
    &[GuestEvent::PreemptOff, EXIT, GuestEvent::PreemptOn, GuestEvent::UserReturn],
    &[EXIT, GuestEvent::PreemptOff, GuestEvent::PreemptOn],
    &[
        GuestEvent::RtEnqueued(RT),
        EXIT,
        GuestEvent::TaskSwitch { next: RT, pending: None },
        GuestEvent::TaskSwitch { next: TaskIntent::FAIR, pending: None },
    ],
];

const HOSTS: [&[HostDoes]; 4] = [
    &[HostDoes::Inject],
    &[HostDoes::Sample],
    &[HostDoes::Sample, HostDoes::Inject],
    &[HostDoes::Inject, HostDoes::Inject],
];

fn whole(host: &'static [HostDoes], guest: &'static [GuestEvent]) -> Setup {
    Setup {
        host,
        guest,
        host_fence: true,
        guest_fence: true,
        recheck: true,
        ticket_first: true,
        inject_early: false,
    }
}

/// Whether any host and way out leaves a boost behind with this change to the rules.
fn breaks(change: impl Fn(&mut Setup)) -> bool {
    HOSTS.iter().any(|host| {
        WAYS_OUT.iter().any(|guest| {
            let mut setup = whole(host, guest);
            change(&mut setup);
            search(&setup).1.is_some()
        })
    })
}

#[test]
fn no_interleaving_leaves_a_boost_behind() {
    for host in HOSTS {
        for guest in WAYS_OUT {
            for inject_early in [false, true] {
                let setup = Setup { inject_early, ..whole(host, guest) };
                let (states, stuck) = search(&setup);
                assert!(states > 100, "the search went nowhere: {states} states");
                assert!(stuck.is_none(), "{host:?} {guest:?} early={inject_early}: {stuck:?}");
            }
        }
    }
}

#[test]
fn without_the_hosts_fence_a_boost_can_stay() {
    assert!(breaks(|s| s.host_fence = false));
}

#[test]
fn without_the_guests_fence_a_boost_can_stay() {
    assert!(breaks(|s| s.guest_fence = false));
}

#[test]
fn without_the_recheck_a_boost_can_stay() {
    assert!(breaks(|s| s.recheck = false));
}

#[test]
fn with_the_ticket_after_the_interrupt_a_boost_can_stay() {
    assert!(breaks(|s| s.ticket_first = false));
}
