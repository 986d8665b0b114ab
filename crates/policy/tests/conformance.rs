//! Our two halves, talking to each other in random histories, against the ABI's own rules.

use proptest::prelude::*;
use vcoop_abi::conformance::{Actor, Area, Limits, Operation, Record, check_guest, check_host};
use vcoop_abi::{GuestWords, Header, Status, TaskIntent, Word};
use vcoop_policy::config::{Budget, DynamicConfig, Means, Ns};
use vcoop_policy::driver::{self, Port, SetError, VcpuDriver};
use vcoop_policy::guest::{HostView, Stores};
use vcoop_policy::thread::Policy;
use vcoop_policy::{GuestEvent, GuestHalf, HostPolicy, Injection, VmShared};

const BUDGET: Budget = Budget { burst_ns: 400_000, refill_ppm: 200_000 };
const INTENT: u16 = 64;
const CS: u16 = 72;
const REQUEST: u16 = 80;
const ACK: u16 = 88;
const STATUS: u16 = 64;
const TICKET: u16 = 72;

/// A vCPU with an honest guest on an honest host.
struct Pair {
    now: Ns,
    trace: Vec<Record>,
    driver: VcpuDriver,
    vm: VmShared,
    half: GuestHalf,
    words: [u64; 4],
    view: HostView,
    timer: Option<Ns>,
    halted: bool,
}

impl Pair {
    fn new() -> Self {
        let config =
            DynamicConfig::new(Means::Rr(8), BUDGET, Budget { burst_ns: 1 << 40, refill_ppm: 0 });
        let mut pair = Self {
            now: 0,
            trace: Vec::new(),
            driver: VcpuDriver::new(
                HostPolicy::dynamic(config, 0),
                Some(config.means),
                Policy::NORMAL,
            ),
            vm: VmShared::new(config.vm_budget, 0),
            half: GuestHalf::new(),
            words: [0; 4],
            view: HostView::default(),
            timer: None,
            halted: false,
        };
        pair.store(Actor::Guest, 0, Header::OURS.to_word());
        pair.store(Actor::Host, 0, Header::OURS.to_word());
        pair.note(Actor::Host, Operation::Registered(true));
        driver::start(&mut pair, true).unwrap();
        pair.hook(GuestEvent::TaskSwitch { next: TaskIntent::FAIR, pending: None });
        pair
    }

    fn note(&mut self, by: Actor, what: Operation) {
        self.now += 10;
        self.trace.push(Record { at: self.now, by, operation: what });
    }

    fn store(&mut self, by: Actor, offset: u16, value: u64) {
        let area = if by == Actor::Guest { Area::Guest } else { Area::Host };
        self.note(by, Operation::Store { area, offset, size: 8, value });
    }

    fn hook(&mut self, event: GuestEvent) {
        let step = self.half.on(event, self.view);
        self.publish(step.stores);
        if step.check {
            let end = self.half.check(self.view);
            self.publish(end.stores);
            if end.notify {
                self.note(Actor::Guest, Operation::Notify);
                driver::notify(self, false).unwrap();
            }
        }
    }

    fn publish(&mut self, stores: Stores) {
        let words = [
            (INTENT, stores.intent),
            (CS, stores.cs),
            (REQUEST, stores.request),
            (ACK, stores.ack),
        ];
        for (i, (offset, word)) in words.into_iter().enumerate() {
            if let Some(word) = word {
                self.words[i] = word;
                self.store(Actor::Guest, offset, word);
            }
        }
    }

    fn pass(&mut self, ns: Ns) {
        let to = self.now + ns;
        while let Some(at) = self.timer.filter(|at| *at <= to) {
            self.now = self.now.max(at);
            self.timer = None;
            driver::timer(self).unwrap();
        }
        self.now = self.now.max(to);
    }

    fn act(&mut self, what: u8) {
        if self.halted && what != 0 {
            return;
        }
        match what {
            0 => {
                driver::inject(self, Injection::Timer, false).unwrap();
                if self.halted {
                    self.halted = false;
                    self.note(Actor::Host, Operation::Halted(false));
                    driver::halt(self, false).unwrap();
                }
                self.hook(GuestEvent::IrqEnter);
                self.hook(GuestEvent::RtEnqueued(TaskIntent::fifo(80)));
                self.hook(GuestEvent::IrqExit { softirq_pending: true });
                self.hook(GuestEvent::SoftirqEnter);
                self.hook(GuestEvent::SoftirqExit);
                self.hook(GuestEvent::TaskSwitch { next: TaskIntent::fifo(80), pending: None });
                self.hook(GuestEvent::UserReturn);
            }
            1 => self.hook(GuestEvent::TaskSwitch { next: TaskIntent::FAIR, pending: None }),
            2 => {
                driver::exit(self).unwrap();
                self.hook(GuestEvent::UserReturn);
            }
            3 => {
                self.hook(GuestEvent::PreemptOff);
                driver::exit(self).unwrap();
                self.hook(GuestEvent::PreemptOn);
            }
            4 => {
                self.hook(GuestEvent::NmiEnter);
                self.hook(GuestEvent::NmiExit);
            }
            _ => {
                self.hook(GuestEvent::IdleEnter);
                self.halted = true;
                self.note(Actor::Guest, Operation::Halted(true));
                driver::halt(self, true).unwrap();
            }
        }
    }
}

impl Port for Pair {
    type Error = ();

    fn now(&mut self) -> Ns {
        self.now
    }

    fn driver(&mut self) -> &mut VcpuDriver {
        &mut self.driver
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut VcpuDriver, &mut VmShared) -> R) -> R {
        f(&mut self.driver, &mut self.vm)
    }

    fn store_ticket(&mut self, ticket: u64) {
        self.view.ticket = ticket;
        self.store(Actor::Host, TICKET, ticket);
    }

    fn store_status(&mut self, status: Status) {
        self.view.status = status;
        self.store(Actor::Host, STATUS, status.to_word());
    }

    fn store_budget(&mut self, _: Ns) {}

    fn set_thread(&mut self, policy: Policy) -> Result<(), SetError<()>> {
        self.note(Actor::Host, Operation::Applied(policy != Policy::NORMAL));
        Ok(())
    }

    fn arm(&mut self, at: Option<Ns>) {
        self.timer = at;
    }

    fn fire(&mut self) -> Result<(), ()> {
        self.note(Actor::Host, Operation::Inject);
        Ok(())
    }

    fn words(&mut self) -> GuestWords {
        let [intent, cs, request, ack] = self.words;
        GuestWords::from_raw(intent, cs, request, ack)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_halves_conform(history in prop::collection::vec((0u64..300_000, 0u8..6), 1..200)) {
        let mut pair = Pair::new();
        for (wait, what) in history {
            pair.pass(wait);
            pair.act(what);
        }
        pair.pass(1_000_000);
        pair.note(Actor::Host, Operation::End);
        let trace = || pair.trace.iter().copied();
        // Grace: only what one hook takes on this clock. One store more than the bound may be
        // charged by the checker before the host's restore is on record.
        let limits = Limits { grace_ns: 200, burst_ns: None, ..Limits::default() };
        let report = check_guest(trace(), limits);
        prop_assert!(report.is_conforming(), "{:?}", report.violations().collect::<Vec<_>>());
        let limits = Limits {
            burst_ns: Some(BUDGET.burst_ns + 20 * pair.trace.len() as u64),
            refill_ppm: BUDGET.refill_ppm,
            ..limits
        };
        let report = check_host(trace(), limits);
        prop_assert!(report.is_conforming(), "{:?}", report.violations().collect::<Vec<_>>());
    }
}

/// Throttling shows up in the history above, so the bound that it checks is a real one.
#[test]
fn an_honest_but_busy_guest_is_throttled() {
    let mut pair = Pair::new();
    pair.act(0);
    pair.pass(2_000_000);
    let throttled = |r: &Record| {
        matches!(r.operation, Operation::Store { area: Area::Host, offset: STATUS, value, .. }
            if value == Status::Throttled.to_word())
    };
    assert!(pair.trace.iter().any(throttled));
    // Done at last: no notification, since there is no boost to end.
    pair.act(1);
    assert!(!pair.trace.iter().any(|r| r.operation == Operation::Notify));
}
