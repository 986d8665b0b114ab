//! The page protocol under the memory model of Rust, by loom: the host's injector and the guest's
//! way out of an interrupt, on atomics that may show each side an old value.
//!
//! `race.rs` walks through interleavings of a machine with store buffers, which is what x86 is:
//! stores there become visible in their order, and a load never sees less than memory holds. The
//! orderings the page promises are weaker (release stores, acquire loads and one full fence a
//! side), and other machines use that freedom: two words of one side can be seen in either order,
//! loads of different words can pass each other, and a store may be missed until something
//! synchronises. Loom tries the values that this allows.
//!
//! The machines are the real ones. What stands for the page are loom's atomics with the orderings
//! of `GuestArea::read`, `Stores::write`, `HostArea::status` and `HostArea::ticket`, copied here
//! because those functions are bound to the processor's own atomics: change them together.
//!
//! Interleavings are bounded in the number of preemptions, as loom advises; the mutants, which each
//! leave one rule out and must be caught, show that the bound is high enough to see.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::sync::{Mutex, MutexGuard};
use vcoop_abi::{Class, GuestWords, Status, TaskIntent, Word};
use vcoop_policy::config::{Budget, DynamicConfig, Means};
use vcoop_policy::guest::{HostView, Stores};
use vcoop_policy::{Action, Event, GuestEvent, GuestHalf, HostPolicy, Injection, VmShared};

/// Which rules of the protocol hold.
#[derive(Clone, Copy)]
struct Rules {
    host_fence: bool,
    guest_fence: bool,
    recheck: bool,
    ticket_first: bool,
}

const ALL: Rules = Rules { host_fence: true, guest_fence: true, recheck: true, ticket_first: true };

#[derive(Clone, Copy)]
enum HostDoes {
    Inject,
    Sample,
}

#[derive(Default)]
struct Page {
    intent: AtomicU64,
    cs: AtomicU64,
    request: AtomicU64,
    ack: AtomicU64,
    status: AtomicU64,
    ticket: AtomicU64,
    /// An interrupt is on its way: the ioctl that sends it and its delivery synchronise.
    interrupt: AtomicBool,
}

impl Page {
    /// As `GuestArea::read`: the ack first.
    fn words(&self) -> GuestWords {
        let ack = self.ack.load(Ordering::Acquire);
        GuestWords::from_raw(
            self.intent.load(Ordering::Acquire),
            self.cs.load(Ordering::Acquire),
            self.request.load(Ordering::Acquire),
            ack,
        )
    }

    /// As `Stores::write`: the ack last.
    fn store(&self, stores: Stores) {
        if let Some(intent) = stores.intent {
            self.intent.store(intent, Ordering::Release);
        }
        if let Some(cs) = stores.cs {
            self.cs.store(cs, Ordering::Release);
        }
        if let Some(request) = stores.request {
            self.request.store(request, Ordering::Release);
        }
        if let Some(ack) = stores.ack {
            self.ack.store(ack, Ordering::Release);
        }
    }

    /// As `HostView::load`.
    fn view(&self) -> HostView {
        let status = Status::from_word(self.status.load(Ordering::Acquire));
        HostView { status, ticket: self.ticket.load(Ordering::Acquire) }
    }
}

/// The host's side of one vCPU, under its lock.
struct Host {
    policy: HostPolicy,
    vm: VmShared,
}

struct World {
    page: Page,
    host: Mutex<Host>,
    rules: Rules,
}

impl World {
    /// A registered guest that is silent so far.
    fn new(rules: Rules) -> Self {
        let big = Budget { burst_ns: 1 << 40, refill_ppm: 0 };
        let config = DynamicConfig::new(Means::Rr(8), big, big);
        let host = Host { policy: HostPolicy::dynamic(config, 0), vm: VmShared::new(big, 0) };
        let world = Self { page: Page::default(), host: Mutex::new(host), rules };
        let mut host = world.lock();
        world.tell(&mut host, Event::Enable, false);
        world.tell(&mut host, Event::Registered(true), false);
        drop(host);
        world
    }

    fn lock(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap()
    }

    /// A call of the policy with its actions, and its second look. `inject`: an interrupt goes with it.
    fn tell(&self, host: &mut Host, event: Event, inject: bool) {
        let Host { policy, vm } = host;
        let actions = policy.on(0, event, vm);
        let mut again = false;
        let mut late_ticket = None;
        for action in actions {
            match action {
                Action::Ticket(t) if self.rules.ticket_first => {
                    self.page.ticket.store(t, Ordering::Release);
                }
                Action::Ticket(t) => late_ticket = Some(t),
                Action::Status(s) => self.page.status.store(s.to_word(), Ordering::Release),
                Action::Recheck => again = true,
                // The thread's policy is the machine's state: nothing else looks at it.
                Action::Boost(_)
                | Action::Restore
                | Action::ArmTimer(_)
                | Action::CancelTimer
                | Action::Rest(_)
                | Action::Denied(_) => {}
            }
        }
        if inject {
            // A swap, so that it has its place among the guest's swaps.
            self.page.interrupt.swap(true, Ordering::AcqRel);
        }
        if let Some(t) = late_ticket {
            self.page.ticket.store(t, Ordering::Release);
        }
        if again && self.rules.recheck {
            if self.rules.host_fence {
                fence(Ordering::SeqCst);
            }
            let words = self.page.words();
            self.tell(host, Event::Recheck(words), false);
        }
    }

    fn host_side(&self, does: HostDoes) {
        let mut host = self.lock();
        match does {
            HostDoes::Inject => self.tell(&mut host, Event::Injected(Injection::Device), true),
            HostDoes::Sample => {
                fence(Ordering::SeqCst);
                let words = self.page.words();
                self.tell(&mut host, Event::Sampled(words), false);
            }
        }
    }

    /// A hook of the guest's kernel: `GuestHalf::run`, and the notification.
    fn hook(&self, half: &mut GuestHalf, event: GuestEvent) {
        let step = half.on(event, self.page.view());
        self.page.store(step.stores);
        if !step.check {
            return;
        }
        if self.rules.guest_fence {
            fence(Ordering::SeqCst);
        }
        let end = half.check(self.page.view());
        self.page.store(end.stores);
        if end.notify {
            let mut host = self.lock();
            let words = self.page.words();
            self.tell(&mut host, Event::Notify(words), false);
        }
    }

    /// Takes an interrupt that has come.
    fn take_interrupt(&self, half: &mut GuestHalf) {
        if !self.page.interrupt.swap(false, Ordering::AcqRel) {
            return;
        }
        for event in [GuestEvent::IrqEnter, EXIT, GuestEvent::UserReturn] {
            self.hook(half, event);
        }
    }
}

const EXIT: GuestEvent = GuestEvent::IrqExit { softirq_pending: false };
const RT: TaskIntent = TaskIntent::new(Class::Fifo, 50);

/// Ways out of an interrupt: straight, and through an urgent task.
const WAYS_OUT: [&[GuestEvent]; 2] = [
    &[EXIT, GuestEvent::UserReturn],
    &[EXIT, GuestEvent::TaskSwitch { next: TaskIntent::FAIR, pending: None }],
];

/// All runs that loom tries of one host and one way out. Panics when one leaves a boost behind.
fn explore(rules: Rules, does: HostDoes, way: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.max_branches = 10_000;
    model.check(move || {
        let world = Arc::new(World::new(rules));
        let mut half = GuestHalf::new();
        // The guest runs a fair task (on the second way an urgent one) and was just interrupted.
        let running = if way == 0 { TaskIntent::FAIR } else { RT };
        let before = GuestEvent::TaskSwitch { next: running, pending: None };
        for event in [before, GuestEvent::IrqEnter] {
            let view = HostView { status: Status::Normal, ticket: 0 };
            world.page.store(half.on(event, view).stores);
        }
        let host = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.host_side(does))
        };
        for event in WAYS_OUT[way] {
            world.hook(&mut half, *event);
        }
        world.take_interrupt(&mut half);
        host.join().unwrap();
        // Both are through; an interrupt that was still on its way comes now.
        world.take_interrupt(&mut half);
        let host = world.lock();
        assert!(!host.policy.is_boosted(), "a boost was left behind");
    });
}

/// Whether any host and way out leaves a boost behind without a rule.
fn breaks(rules: Rules) -> bool {
    [HostDoes::Inject, HostDoes::Sample].iter().any(|does| {
        (0..WAYS_OUT.len()).any(|way| {
            let (does, explored) = (*does, move |does| explore(rules, does, way));
            std::panic::catch_unwind(move || explored(does)).is_err()
        })
    })
}

#[test]
fn no_execution_leaves_a_boost_behind() {
    for does in [HostDoes::Inject, HostDoes::Sample] {
        for way in 0..WAYS_OUT.len() {
            explore(ALL, does, way);
        }
    }
}

#[test]
fn without_the_recheck_a_boost_can_stay() {
    assert!(breaks(Rules { recheck: false, ..ALL }));
}

#[test]
fn without_the_hosts_fence_a_boost_can_stay() {
    assert!(breaks(Rules { host_fence: false, ..ALL }));
}

#[test]
fn without_the_guests_fence_a_boost_can_stay() {
    assert!(breaks(Rules { guest_fence: false, ..ALL }));
}

#[test]
fn with_the_ticket_after_the_interrupt_a_boost_can_stay() {
    assert!(breaks(Rules { ticket_first: false, ..ALL }));
}
