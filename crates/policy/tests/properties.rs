//! Random histories, hostile words included, against what every policy promises. The test keeps its
//! own books of who was boosted for how long, from the actions alone.

use proptest::prelude::*;
use vcoop_abi::{GuestWords, Status};
use vcoop_policy::config::{Budget, DynamicConfig, Means, Ns, WakeBoostConfig};
use vcoop_policy::govern::CpuTime;
use vcoop_policy::{Action, Event, HostPolicy, Injection, Rest, VmShared};

const VCPUS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Op {
    Event(Event),
    HaltOrWake(GuestWords),
    Global(bool),
    Vm(bool),
}

/// What the actions of one vCPU amount to.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    applied: bool,
    halted: bool,
    status: Status,
    ticket: u64,
    timer: Option<Ns>,
    boosted_ns: Ns,
    registered: bool,
    rest: Rest,
}

struct Rig {
    now: Ns,
    vm: VmShared,
    policies: Vec<HostPolicy>,
    threads: [Thread; VCPUS],
    vcpu_budget: Budget,
    vm_budget: Budget,
    /// Words for rechecks.
    recheck: GuestWords,
}

impl Rig {
    fn new(make: impl Fn() -> HostPolicy, vcpu_budget: Budget, vm_budget: Budget) -> Self {
        let mut rig = Self {
            now: 0,
            vm: VmShared::new(vm_budget, 0),
            policies: (0..VCPUS).map(|_| make()).collect(),
            threads: Default::default(),
            vcpu_budget,
            vm_budget,
            recheck: GuestWords::SILENT,
        };
        for v in 0..VCPUS {
            rig.feed(v, Event::Enable);
            rig.feed(v, Event::Registered(true));
        }
        rig
    }

    /// Moves time on, counting what is boosted and awake, and fires timers when they are due.
    fn advance(&mut self, to: Ns) {
        loop {
            let due = (0..VCPUS)
                .filter_map(|v| Some((self.threads[v].timer.filter(|at| *at <= to)?, v)))
                .min();
            let until = due.map_or(to, |(at, _)| at).max(self.now);
            for t in &mut self.threads {
                if t.applied && !t.halted {
                    t.boosted_ns += until - self.now;
                }
            }
            self.now = until;
            self.check();
            let Some((_, v)) = due else { return };
            self.threads[v].timer = None;
            self.feed(v, Event::Timer);
        }
    }

    fn feed(&mut self, v: usize, event: Event) {
        let t = &mut self.threads[v];
        match event {
            Event::Halted(_) => t.halted = true,
            Event::Woken => t.halted = false,
            Event::Registered(on) => t.registered = on,
            // Whatever was applied is not.
            Event::Refused => t.applied = false,
            _ => {}
        }
        let mut recheck = false;
        let told = self.policies[v].reads_guest();
        for action in self.policies[v].on(self.now, event, &mut self.vm) {
            let t = &mut self.threads[v];
            assert!(
                !recheck || matches!(action, Action::ArmTimer(_)),
                "{action:?} after a recheck"
            );
            match action {
                Action::Ticket(n) => {
                    assert_eq!(n, t.ticket + 1);
                    t.ticket = n;
                }
                Action::Status(s) => {
                    assert!(told, "a guest that takes no part is told");
                    assert!(!t.applied || s == Status::Boosted, "{s:?} before the restore");
                    t.status = s;
                }
                Action::Boost(_) => {
                    assert!(!t.applied && (!told || t.status == Status::Boosted));
                    t.applied = true;
                }
                Action::Restore => {
                    assert!(t.applied, "restore without a boost");
                    t.applied = false;
                }
                Action::Rest(rest) => {
                    assert_ne!(rest, t.rest, "told again");
                    t.rest = rest;
                }
                Action::ArmTimer(at) => {
                    assert!(at >= self.now, "armed in the past");
                    t.timer = Some(at);
                }
                Action::CancelTimer => t.timer = None,
                Action::Recheck => recheck = true,
                Action::Denied(_) => assert!(!t.applied, "denied and boosted"),
            }
        }
        if recheck {
            self.feed(v, Event::Recheck(self.recheck));
        }
        self.check();
    }

    fn check(&self) {
        let allowed = |b: Budget| {
            u128::from(b.burst_ns) * 1_000_000 + u128::from(self.now) * u128::from(b.refill_ppm)
        };
        for (t, p) in self.threads.iter().zip(&self.policies) {
            assert_eq!(t.applied, p.is_boosted(), "thread and machine disagree");
            assert_eq!(t.rest, p.rest(), "thread and machine disagree");
            assert!(u128::from(t.boosted_ns) * 1_000_000 <= allowed(self.vcpu_budget));
            if p.reads_guest() {
                assert_eq!(t.applied, t.status == Status::Boosted, "thread and word disagree");
                assert_eq!(t.status, p.status());
                assert!(t.registered || !t.applied, "boosted without a registered guest");
            }
        }
        let all: u128 = self.threads.iter().map(|t| u128::from(t.boosted_ns)).sum();
        assert!(all * 1_000_000 <= allowed(self.vm_budget), "VM bound");
    }

    fn run(&mut self, history: &[(usize, Ns, Op, GuestWords)]) {
        for (v, wait, op, recheck) in history {
            self.advance(self.now + wait);
            self.recheck = *recheck;
            match op {
                Op::Event(e) => self.feed(*v, *e),
                Op::HaltOrWake(_) if self.threads[*v].halted => self.feed(*v, Event::Woken),
                Op::HaltOrWake(words) => self.feed(*v, Event::Halted(*words)),
                Op::Global(on) => {
                    self.vm.set_global(*on);
                    self.switched();
                }
                Op::Vm(on) => {
                    self.vm.set_vm(*on);
                    self.switched();
                }
            }
        }
    }

    fn switched(&mut self) {
        for v in 0..VCPUS {
            self.feed(v, Event::Enable);
        }
        if !self.vm.is_on() {
            assert!(
                self.threads.iter().all(|t| !t.applied && t.timer.is_none()),
                "off but boosted"
            );
            assert!(
                self.threads.iter().all(|t| t.rest == Rest::default()),
                "off but not at its baseline"
            );
        }
    }

    /// Ends everything and compares the machines' books with ours.
    fn close(&mut self) {
        self.vm.set_global(false);
        self.switched();
        for (t, p) in self.threads.iter().zip(&self.policies) {
            assert_eq!(p.stats().boosted_ns, t.boosted_ns, "boosted time");
        }
        if self.vm_budget.refill_ppm == 0 {
            let used: Ns = self.threads.iter().map(|t| t.boosted_ns).sum();
            assert_eq!(self.vm.budget_left(), self.vm_budget.burst_ns - used, "VM bucket");
        }
    }
}

/// Any bits at all, and words that mean something.
fn words() -> impl Strategy<Value = GuestWords> {
    let word =
        || prop_oneof![Just(0u64), 0u64..8, any::<u64>(), Just(1u64 << 33), Just(1u64 << 24)];
    (word(), word(), word(), word()).prop_map(|(i, c, r, a)| GuestWords::from_raw(i, c, r, a))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Event(Event::Injected(Injection::Timer))),
        2 => Just(Op::Event(Event::Asked)),
        4 => words().prop_map(|w| Op::Event(Event::Exit(w))),
        2 => words().prop_map(|w| Op::Event(Event::Sampled(w))),
        2 => words().prop_map(|w| Op::Event(Event::Notify(w))),
        1 => words().prop_map(|w| Op::Event(Event::Recheck(w))),
        5 => words().prop_map(Op::HaltOrWake),
        1 => any::<bool>().prop_map(|on| Op::Event(Event::Registered(on))),
        1 => any::<bool>().prop_map(|outranks| Op::Event(Event::Baseline { outranks })),
        1 => Just(Op::Event(Event::Refused)),
        1 => Just(Op::Event(Event::Timer)),
        1 => (0..1u64 << 30, 0..1u64 << 30).prop_map(|(busy_ns, steal_ns)| {
            Op::Event(Event::Ran(CpuTime { busy_ns, steal_ns }))
        }),
        1 => prop_oneof![Just(true), any::<bool>()].prop_map(Op::Global),
        1 => prop_oneof![Just(true), any::<bool>()].prop_map(Op::Vm),
    ]
}

fn history() -> impl Strategy<Value = Vec<(usize, Ns, Op, GuestWords)>> {
    let wait = prop_oneof![Just(0), 0u64..20_000, 0u64..3_000_000, 0u64..40_000_000];
    prop::collection::vec((0..VCPUS, wait, op(), words()), 1..120)
}

fn budget() -> impl Strategy<Value = Budget> {
    let burst = prop_oneof![0u64..100_000, 0u64..10_000_000];
    let refill = prop_oneof![Just(0u32), 0u32..1_000, 0u32..=1_000_000];
    (burst, refill).prop_map(|(burst_ns, refill_ppm)| Budget { burst_ns, refill_ppm })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dynamic_keeps_its_promises(
        vcpu in budget(),
        vm in budget(),
        on_injection in any::<bool>(),
        receiver in any::<bool>(),
        on_request in any::<bool>(),
        across_idle in any::<bool>(),
        repay in any::<bool>(),
        rest_slice_ns in proptest::option::of(100_000..100_000_000_u64),
        history in history(),
    ) {
        let config = DynamicConfig {
            means: Means::Rr(8),
            vcpu_budget: vcpu,
            vm_budget: vm,
            max_preempt_off_ns: 3_000_000,
            boost_on_injection: on_injection,
            boost_receiver: receiver,
            boost_on_request: on_request,
            boost_across_idle: across_idle,
            repay,
            rest_slice_ns,
        };
        let mut rig = Rig::new(|| HostPolicy::dynamic(config, 0), vcpu, vm);
        rig.run(&history);
        rig.close();
    }

    #[test]
    fn wake_boost_keeps_its_promises(
        vcpu in budget(),
        vm in budget(),
        run_ns in 1u64..5_000_000,
        repay in any::<bool>(),
        rest_slice_ns in proptest::option::of(100_000..100_000_000_u64),
        history in history(),
    ) {
        let config =
            WakeBoostConfig { means: Means::Fifo(1), run_ns, vcpu_budget: vcpu, vm_budget: vm, repay, rest_slice_ns };
        let mut rig = Rig::new(|| HostPolicy::wake_boost(config, 0), vcpu, vm);
        rig.run(&history);
        rig.close();
    }
}

/// Boosted time in a second of a guest that always wants a boost, and gives one back now and then
/// or never.
fn boosted_in_a_second(gives_back: bool) -> u64 {
    let budget = Budget { burst_ns: 3_000_000, refill_ppm: 100_000 };
    let config = DynamicConfig {
        means: Means::Rr(8),
        vcpu_budget: budget,
        vm_budget: Budget { burst_ns: 1 << 40, refill_ppm: 0 },
        max_preempt_off_ns: 3_000_000,
        boost_on_injection: true,
        boost_receiver: false,
        boost_on_request: true,
        boost_across_idle: true,
        repay: false,
        rest_slice_ns: None,
    };
    let mut rig = Rig::new(|| HostPolicy::dynamic(config, 0), budget, config.vm_budget);
    for ms in 1..=1_000u64 {
        rig.advance(ms * 1_000_000);
        if gives_back {
            rig.feed(0, Event::Notify(GuestWords::SILENT));
        }
        rig.feed(0, Event::Exit(GuestWords::from_raw(0, 0, 2, 0)));
    }
    assert!(rig.policies[0].stats().throttles > 5);
    rig.close();
    rig.threads[0].boosted_ns
}

/// Burst and refill are the bound for everybody; a guest that gives boosts back comes near it, one
/// that never does is held off.
#[test]
fn the_budget_grants_what_is_given_back() {
    let grant = 3_000_000 + 100_000_000;
    let fair = boosted_in_a_second(true);
    assert!(fair <= grant && fair >= grant * 9 / 10, "{fair} of {grant}");
    let rogue = boosted_in_a_second(false);
    assert!(rogue >= 3_000_000 && rogue <= grant / 3, "{rogue} of {grant}");
}
