//! Our two halves, talking to each other in random histories, against the ABI's own rules.

use proptest::prelude::*;
use vcoop_abi::conformance::{Actor, Area, Limits, Record, What, check_guest, check_host};
use vcoop_abi::{GuestWords, Header, Status, TaskIntent, Word};
use vcoop_policy::config::{Budget, DynamicConfig, Means, Ns};
use vcoop_policy::guest::{HostView, Stores};
use vcoop_policy::{Action, Event, GuestEvent, GuestHalf, HostPolicy, Injection, VmShared};

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
    policy: HostPolicy,
    vm: VmShared,
    half: GuestHalf,
    words: [u64; 4],
    view: HostView,
    timer: Option<Ns>,
    halted: bool,
}

impl Pair {
    fn new() -> Self {
        let config = DynamicConfig {
            means: Means::Rr(8),
            vcpu_budget: BUDGET,
            vm_budget: Budget { burst_ns: 1 << 40, refill_ppm: 0 },
            max_preempt_off_ns: 3_000_000,
            boost_on_injection: true,
            boost_receiver: false,
            boost_on_request: true,
            boost_across_idle: true,
            repay: false,
            rest_slice_ns: None,
        };
        let mut pair = Self {
            now: 0,
            trace: Vec::new(),
            policy: HostPolicy::dynamic(config, 0),
            vm: VmShared::new(config.vm_budget, 0),
            half: GuestHalf::new(),
            words: [0; 4],
            view: HostView::default(),
            timer: None,
            halted: false,
        };
        pair.store(Actor::Guest, 0, Header::OURS.to_word());
        pair.store(Actor::Host, 0, Header::OURS.to_word());
        pair.note(Actor::Host, What::Registered(true));
        pair.host(Event::Enable);
        pair.host(Event::Registered(true));
        pair.hook(GuestEvent::TaskSwitch { next: TaskIntent::FAIR, pending: None });
        pair
    }

    fn note(&mut self, by: Actor, what: What) {
        self.now += 10;
        self.trace.push(Record { at: self.now, by, what });
    }

    fn store(&mut self, by: Actor, offset: u16, value: u64) {
        let area = if by == Actor::Guest { Area::Guest } else { Area::Host };
        self.note(by, What::Store { area, offset, size: 8, value });
    }

    fn seen(&self) -> GuestWords {
        let [intent, cs, request, ack] = self.words;
        GuestWords::from_raw(intent, cs, request, ack)
    }

    fn host(&mut self, event: Event) {
        let mut recheck = false;
        for action in self.policy.on(self.now, event, &mut self.vm) {
            match action {
                Action::Ticket(t) => {
                    self.view.ticket = t;
                    self.store(Actor::Host, TICKET, t);
                }
                Action::Status(s) => {
                    self.view.status = s;
                    self.store(Actor::Host, STATUS, s.to_word());
                }
                Action::Boost(_) => self.note(Actor::Host, What::Applied(true)),
                Action::Restore => self.note(Actor::Host, What::Applied(false)),
                Action::ArmTimer(at) => self.timer = Some(at),
                Action::CancelTimer => self.timer = None,
                Action::Recheck => recheck = true,
                Action::Rest(_) | Action::Denied(_) => {}
            }
        }
        if let Event::Injected(_) = event {
            self.note(Actor::Host, What::Inject);
        }
        if recheck {
            let words = self.seen();
            self.host(Event::Recheck(words));
        }
    }

    fn hook(&mut self, event: GuestEvent) {
        let step = self.half.on(event, self.view);
        self.publish(step.stores);
        if step.check {
            let end = self.half.check(self.view);
            self.publish(end.stores);
            if end.notify {
                self.note(Actor::Guest, What::Notify);
                let words = self.seen();
                self.host(Event::Notify(words));
            }
        }
    }

    fn publish(&mut self, stores: Stores) {
        let words = [
            (INTENT, stores.intent.map(Word::to_word)),
            (CS, stores.cs.map(Word::to_word)),
            (REQUEST, stores.request.map(Word::to_word)),
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
            self.host(Event::Timer);
        }
        self.now = self.now.max(to);
    }

    fn act(&mut self, what: u8) {
        if self.halted && what != 0 {
            return;
        }
        match what {
            0 => {
                self.host(Event::Injected(Injection::Timer));
                if self.halted {
                    self.halted = false;
                    self.note(Actor::Host, What::Halted(false));
                    self.host(Event::Woken);
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
                let words = self.seen();
                self.host(Event::Exit(words));
                self.hook(GuestEvent::UserReturn);
            }
            3 => {
                self.hook(GuestEvent::PreemptOff);
                let words = self.seen();
                self.host(Event::Exit(words));
                self.hook(GuestEvent::PreemptOn);
            }
            4 => {
                self.hook(GuestEvent::NmiEnter);
                self.hook(GuestEvent::NmiExit);
            }
            _ => {
                self.hook(GuestEvent::IdleEnter);
                self.halted = true;
                self.note(Actor::Guest, What::Halted(true));
                let words = self.seen();
                self.host(Event::Halted(words));
            }
        }
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
        pair.note(Actor::Host, What::End);
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
        matches!(r.what, What::Store { area: Area::Host, offset: STATUS, value, .. }
            if value == Status::Throttled.to_word())
    };
    assert!(pair.trace.iter().any(throttled));
    // Done at last: no notification, since there is no boost to end.
    pair.act(1);
    assert!(!pair.trace.iter().any(|r| r.what == What::Notify));
}
