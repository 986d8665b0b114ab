//! Random histories, hostile words included, through the driver's core, against what every policy and
//! every driver promises. The test keeps its own books of who was boosted for how long, from what the
//! core did to its threads alone.

use proptest::prelude::*;
use vcoop_abi::{GuestWords, Status};
use vcoop_policy::config::{Budget, DynamicConfig, Means, Ns, WakeBoostConfig};
use vcoop_policy::driver::{self, Port, SetError, VcpuDriver};
use vcoop_policy::govern::CpuTime;
use vcoop_policy::thread::{Policy, attributes};
use vcoop_policy::{Actions, Event, HostPolicy, Injection, PolicyStats, Rest, VmShared};

const VCPUS: usize = 3;

/// What the policies of these tests boost by; no baseline is one of them.
const MEANS: [Means; 2] = [Means::Rr(8), Means::Fifo(2)];
const BASELINES: [Policy; 4] = [
    Policy::Normal { nice: 3, slice_ns: None },
    Policy::Normal { nice: -5, slice_ns: Some(3_000_000) },
    Policy::Idle,
    Policy::Fifo(50),
];

fn is_boost(policy: Policy) -> bool {
    matches!(policy, Policy::Rr(8) | Policy::Fifo(2))
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Inject {
        asked: bool,
    },
    Exit,
    Sample,
    Notify {
        running: bool,
    },
    HaltOrWake,
    Register(bool),
    Rebase(Policy),
    /// The host refuses means that it did not refuse before, or takes them again.
    Refuse(bool),
    /// The driver is called as if the timer were due.
    EarlyTimer,
    /// From now on timers come so much too late.
    Late(Ns),
    Account(CpuTime),
    /// The vCPU's thread goes, or comes with a guest that takes part from the start, or does not yet.
    ComeOrGo {
        registered: bool,
    },
    Global(bool),
    Vm(bool),
}

/// What the world knows of one vCPU.
#[derive(Clone, Copy, Debug)]
struct Thread {
    exists: bool,
    policy: Policy,
    baseline: Policy,
    refuses: bool,
    /// Another process has changed it.
    foreign: bool,
    halted: bool,
    status: Status,
    ticket: u64,
    fired: u32,
    timer: Option<Ns>,
    /// What was published of its budget, and how often the policy was called, since the last look.
    budget: Option<Ns>,
    calls: u32,
    boosted_ns: Ns,
    registered: bool,
    total: CpuTime,
}

struct Rig {
    now: Ns,
    vm: VmShared,
    drivers: Vec<VcpuDriver>,
    threads: [Thread; VCPUS],
    vcpu_budget: Budget,
    vm_budget: Budget,
    words: GuestWords,
    /// The interrupt that is being injected is still to be made visible.
    to_fire: bool,
    /// How late timers come, and the most that they ever did.
    late: Ns,
    latest: Ns,
}

struct RigPort<'a> {
    rig: &'a mut Rig,
    v: usize,
}

impl RigPort<'_> {
    fn thread(&mut self) -> &mut Thread {
        &mut self.rig.threads[self.v]
    }
}

impl Port for RigPort<'_> {
    type Error = ();

    fn now(&mut self) -> Ns {
        self.rig.now
    }

    fn driver(&mut self) -> &mut VcpuDriver {
        &mut self.rig.drivers[self.v]
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut VcpuDriver, &mut VmShared) -> R) -> R {
        f(&mut self.rig.drivers[self.v], &mut self.rig.vm)
    }

    fn store_ticket(&mut self, ticket: u64) {
        assert_eq!(ticket, self.thread().ticket + 1);
        self.thread().ticket = ticket;
    }

    fn store_status(&mut self, status: Status) {
        assert!(self.driver().policy().reads_guest(), "a guest that takes no part is told");
        let boosted = is_boost(self.thread().policy);
        assert!(!boosted || status == Status::Boosted, "{status:?} before the restore");
        self.thread().status = status;
    }

    fn store_budget(&mut self, left: Ns) {
        assert!(left <= self.rig.vcpu_budget.burst_ns);
        self.thread().budget = Some(left);
    }

    fn is_watched(&self) -> bool {
        true
    }

    fn called(&mut self, before: &PolicyStats, _: &Actions) {
        let now = self.driver().policy().stats();
        assert!(before.boosts <= now.boosts + 1 && before.boosted_ns <= now.boosted_ns);
        self.thread().calls += 1;
    }

    fn set_thread(&mut self, policy: Policy) -> Result<(), SetError<()>> {
        assert!(self.thread().exists, "set without a thread");
        if self.thread().foreign {
            return Err(SetError::Failed(()));
        }
        let boosts = is_boost(policy);
        if boosts && self.thread().refuses {
            return Err(SetError::Refused(()));
        }
        assert!(!boosts || !self.rig.to_fire, "boosted before the interrupt is visible");
        let told = self.driver().policy().reads_guest();
        let status = self.thread().status;
        assert!(!boosts || !told || status == Status::Boosted, "boosted before it is told");
        self.thread().policy = policy;
        Ok(())
    }

    fn arm(&mut self, at: Option<Ns>) {
        self.thread().timer = at;
    }

    fn fire(&mut self) -> Result<(), ()> {
        self.thread().fired += 1;
        self.rig.to_fire = false;
        Ok(())
    }

    fn words(&mut self) -> GuestWords {
        self.rig.words
    }
}
impl Rig {
    fn new(make: impl Fn() -> HostPolicy, means: Means, vcpu: Budget, vm: Budget) -> Self {
        let thread = Thread {
            exists: false,
            policy: BASELINES[0],
            baseline: BASELINES[0],
            refuses: false,
            foreign: false,
            halted: false,
            status: Status::Disabled,
            ticket: 0,
            fired: 0,
            timer: None,
            budget: None,
            calls: 0,
            boosted_ns: 0,
            registered: true,
            total: CpuTime::default(),
        };
        let drivers = (0..VCPUS).map(|_| VcpuDriver::new(make(), Some(means), BASELINES[0]));
        let mut rig = Self {
            now: 0,
            vm: VmShared::new(vm, 0),
            drivers: drivers.collect(),
            threads: [thread; VCPUS],
            vcpu_budget: vcpu,
            vm_budget: vm,
            words: GuestWords::SILENT,
            to_fire: false,
            late: 0,
            latest: 0,
        };
        for v in 0..VCPUS {
            rig.threads[v].exists = true;
            rig.drive(v, |port| driver::start(port, true));
        }
        rig
    }

    fn drive(&mut self, v: usize, what: impl FnOnce(&mut RigPort<'_>) -> Result<(), ()>) {
        let fired = self.threads[v].fired;
        let armed = self.drivers[v].timer().filter(|at| *at > self.now);
        (self.threads[v].budget, self.threads[v].calls) = (None, 0);
        what(&mut RigPort { rig: self, v }).expect("nothing fails here");
        assert!(self.threads[v].fired <= fired + 1, "fired twice");
        let (t, d) = (&self.threads[v], &self.drivers[v]);
        let shown =
            (t.calls > 0 && d.policy().reads_guest()).then(|| d.policy().budget_left(self.now));
        assert_eq!(t.budget, shown, "the budget as it is after the last call");
        assert!(t.calls == 0 || t.exists, "a policy is asked that has no thread");
        if armed.is_some() && d.timer().is_none() {
            assert_eq!(t.timer, None, "nobody waits for it any more");
        }
        self.check();
    }

    /// Moves time on, counting what is boosted and awake, and fires timers that are due.
    fn advance(&mut self, to: Ns) {
        loop {
            let comes = |t: &Thread| t.timer.map(|at| at.saturating_add(self.late));
            let due = (0..VCPUS)
                .filter_map(|v| Some((comes(&self.threads[v]).filter(|at| *at <= to)?, v)))
                .min();
            let until = due.map_or(to, |(at, _)| at).max(self.now);
            for t in &mut self.threads {
                if is_boost(t.policy) && !t.halted {
                    t.boosted_ns += until - self.now;
                }
            }
            self.now = until;
            let Some((_, v)) = due else { return self.check() };
            self.threads[v].timer = None;
            self.drive(v, |port| driver::timer(port));
        }
    }

    fn check(&self) {
        let late = u128::from(self.latest) * 1_000_000;
        let allowed = |b: Budget| {
            u128::from(b.burst_ns) * 1_000_000 + u128::from(self.now) * u128::from(b.refill_ppm)
        };
        for (t, d) in self.threads.iter().zip(&self.drivers) {
            let p = d.policy();
            let outranks = t.baseline == Policy::Fifo(50);
            let boosted = attributes(t.baseline, d.means(), p.rest());
            assert_eq!(d.boosted(), (!outranks).then_some(boosted));
            assert_eq!(d.baseline(), t.baseline);
            if t.exists {
                assert_eq!(d.is_halted(), t.halted);
                let means = d.means().filter(|_| p.is_boosted());
                let wanted = attributes(t.baseline, means, p.rest());
                assert_eq!(t.policy, wanted, "thread and machine disagree");
                assert!(!(p.is_boosted() && t.baseline == Policy::Fifo(50)), "a boost lowers it");
                // While a boost is charged there is a time at which it ends.
                let runs_out = self.vcpu_budget.refill_ppm < 1_000_000;
                if p.is_boosted() && !t.halted && runs_out {
                    assert!(d.timer().is_some(), "boosted without an end");
                }
            } else {
                assert_eq!(t.policy, t.baseline, "gone, and not at its baseline");
            }
            // One that the driver has had already may still be on its way.
            let armed = d.timer().is_none_or(|at| t.timer == Some(at));
            assert!(armed, "the world's timer {:?}, the driver's {:?}", t.timer, d.timer());
            let bound = allowed(self.vcpu_budget) + late;
            assert!(u128::from(t.boosted_ns) * 1_000_000 <= bound, "vCPU bound");
            if p.reads_guest() && t.exists {
                let boosted = is_boost(t.policy);
                assert_eq!(boosted, t.status == Status::Boosted, "thread and word disagree");
                assert_eq!(t.status, p.status());
                assert!(t.registered || !boosted, "boosted without a registered guest");
            }
        }
        let all: u128 = self.threads.iter().map(|t| u128::from(t.boosted_ns)).sum();
        let bound = allowed(self.vm_budget) + VCPUS as u128 * late;
        assert!(all * 1_000_000 <= bound, "VM bound");
    }

    fn run(&mut self, history: &[(usize, Ns, Op, GuestWords)]) {
        for (v, wait, op, words) in history {
            self.advance(self.now + wait);
            self.words = *words;
            self.op(*v, *op);
        }
    }

    fn op(&mut self, v: usize, op: Op) {
        let before = self.threads[v];
        match op {
            Op::Inject { asked } => {
                self.to_fire = true;
                self.drive(v, |port| driver::inject(port, Injection::Ipi, asked));
                assert_eq!(self.threads[v].fired, before.fired + 1, "with a thread or without");
                assert!(before.exists || self.threads[v].calls == 0, "nobody to ask");
            }
            Op::Exit => self.drive(v, |port| driver::exit(port)),
            Op::Sample => self.drive(v, |port| driver::sample(port)),
            Op::Notify { running } => self.drive(v, |port| driver::notify(port, running)),
            Op::HaltOrWake if before.exists => {
                self.threads[v].halted = !before.halted;
                self.drive(v, |port| driver::halt(port, !before.halted));
            }
            Op::HaltOrWake => {}
            Op::Register(on) if before.exists => {
                self.threads[v].registered = on;
                self.drive(v, |port| driver::register(port, on));
            }
            Op::Register(_) => {}
            Op::Rebase(baseline) => {
                self.threads[v].baseline = baseline;
                if !before.exists {
                    self.threads[v].policy = baseline;
                }
                // Without a thread both say the same.
                if before.exists || v > 0 {
                    self.drive(v, |port| driver::rebase(port, baseline));
                } else {
                    self.drivers[v].set_baseline(baseline);
                }
            }
            Op::Refuse(on) => self.threads[v].refuses = on,
            Op::EarlyTimer => {
                self.drive(v, |port| driver::timer(port));
                let due = before.timer.is_some_and(|at| at <= self.now);
                assert!(due || self.threads[v].timer == before.timer, "a timer got lost");
            }
            Op::Late(late) => (self.late, self.latest) = (late, self.latest.max(late)),
            Op::Account(more) => {
                let t = &mut self.threads[v];
                t.total.busy_ns += more.busy_ns;
                t.total.steal_ns += more.steal_ns;
                let total = t.total;
                self.drive(v, |port| driver::account(port, total));
            }
            Op::ComeOrGo { registered } => {
                if before.exists {
                    if !registered {
                        self.op(v, Op::Register(false));
                    }
                    self.drive(v, |port| driver::stop(port));
                    assert_eq!(self.threads[v].policy, before.baseline);
                    (self.threads[v].timer, self.threads[v].exists) = (None, false);
                    // A second stop: there is no thread any more.
                    self.drive(v, |port| driver::stop(port));
                } else {
                    let t = &mut self.threads[v];
                    (t.exists, t.halted, t.registered) = (true, false, t.registered || registered);
                    let registered = t.registered;
                    self.drive(v, |port| driver::start(port, registered));
                }
            }
            Op::Global(on) => {
                self.vm.set_global(on);
                self.switched();
            }
            Op::Vm(on) => {
                self.vm.set_vm(on);
                self.switched();
            }
        }
    }

    fn switched(&mut self) {
        for v in 0..VCPUS {
            self.drive(v, |port| driver::enable(port));
        }
        if !self.vm.is_on() {
            for (t, d) in self.threads.iter().zip(&self.drivers) {
                assert!(!is_boost(t.policy) && d.timer().is_none(), "off but boosted");
                assert_eq!(d.policy().rest(), Rest::default(), "off but not at its baseline");
            }
        }
    }

    /// Ends everything and compares the machines' books with ours.
    fn close(&mut self) {
        self.vm.set_global(false);
        self.switched();
        for (t, d) in self.threads.iter().zip(&self.drivers) {
            assert_eq!(d.policy().stats().boosted_ns, t.boosted_ns, "boosted time");
        }
        if self.vm_budget.refill_ppm == 0 && self.latest == 0 {
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
        6 => any::<bool>().prop_map(|asked| Op::Inject { asked }),
        4 => Just(Op::Exit),
        2 => Just(Op::Sample),
        2 => any::<bool>().prop_map(|running| Op::Notify { running }),
        5 => Just(Op::HaltOrWake),
        1 => any::<bool>().prop_map(Op::Register),
        1 => (0..BASELINES.len()).prop_map(|i| Op::Rebase(BASELINES[i])),
        1 => any::<bool>().prop_map(Op::Refuse),
        3 => Just(Op::EarlyTimer),
        1 => prop_oneof![Just(0), 0u64..50_000, 0u64..2_000_000].prop_map(Op::Late),
        1 => (0..1u64 << 30, 0..1u64 << 30).prop_map(|(busy_ns, steal_ns)| {
            Op::Account(CpuTime { busy_ns, steal_ns })
        }),
        1 => any::<bool>().prop_map(|registered| Op::ComeOrGo { registered }),
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
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dynamic_keeps_its_promises(
        vcpu in budget(),
        vm in budget(),
        on_injection in any::<bool>(),
        receiver in any::<bool>(),
        on_request in any::<bool>(),
        across_idle in any::<bool>(),
        longest_boost_ns in proptest::option::of(30_000..5_000_000_u64),
        repay in any::<bool>(),
        rest_slice_ns in proptest::option::of(100_000..100_000_000_u64),
        history in history(),
    ) {
        let config = DynamicConfig {
            means: MEANS[0],
            vcpu_budget: vcpu,
            vm_budget: vm,
            longest_boost_ns,
            max_preempt_off_ns: 3_000_000,
            boost_on_injection: on_injection,
            boost_receiver: receiver,
            boost_on_request: on_request,
            boost_across_idle: across_idle,
            repay,
            rest_slice_ns,
        };
        let mut rig = Rig::new(|| HostPolicy::dynamic(config, 0), config.means, vcpu, vm);
        rig.run(&history);
        rig.close();
    }

    #[test]
    fn wake_boost_keeps_its_promises(
        vcpu in budget(),
        vm in budget(),
        run_ns in 1u64..5_000_000,
        (boost_on_injection, repay) in any::<(bool, bool)>(),
        rest_slice_ns in proptest::option::of(100_000..100_000_000_u64),
        history in history(),
    ) {
        let (means, vcpu_budget, vm_budget) = (MEANS[1], vcpu, vm);
        let config = WakeBoostConfig {
            means, run_ns, vcpu_budget, vm_budget, boost_on_injection, repay, rest_slice_ns,
        };
        let mut rig = Rig::new(|| HostPolicy::wake_boost(config, 0), config.means, vcpu, vm);
        rig.run(&history);
        rig.close();
    }
}

/// `dynamic` with all its reasons to boost, and a bound on the vCPU only.
fn rig(vcpu_budget: Budget, repay: bool) -> Rig {
    let config = DynamicConfig {
        repay,
        ..DynamicConfig::new(MEANS[0], vcpu_budget, Budget { burst_ns: 1 << 40, refill_ppm: 0 })
    };
    Rig::new(|| HostPolicy::dynamic(config, 0), config.means, vcpu_budget, config.vm_budget)
}

/// Boosted time in a second of a guest that always wants a boost, and gives one back now and then
/// or never.
fn boosted_in_a_second(gives_back: bool) -> u64 {
    let budget = Budget { burst_ns: 3_000_000, refill_ppm: 100_000 };
    let mut rig = rig(budget, false);
    for ms in 1..=1_000u64 {
        rig.advance(ms * 1_000_000);
        if gives_back {
            rig.words = GuestWords::SILENT;
            rig.op(0, Op::Notify { running: false });
        }
        rig.words = GuestWords::from_raw(0, 0, 2, 0);
        rig.op(0, Op::Exit);
    }
    assert!(rig.drivers[0].policy().stats().throttles > 5);
    rig.close();
    rig.threads[0].boosted_ns
}

/// Burst and refill are the bound for all; a guest that gives boosts back comes near it, one
/// that never does is held off.
#[test]
fn the_budget_grants_what_is_given_back() {
    let grant = 3_000_000 + 100_000_000;
    let fair = boosted_in_a_second(true);
    assert!(fair <= grant && fair >= grant * 9 / 10, "{fair} of {grant}");
    let rogue = boosted_in_a_second(false);
    assert!(rogue >= 3_000_000 && rogue <= grant / 3, "{rogue} of {grant}");
}

/// A boost that cannot be taken back, because another process has changed the thread: the guest and the timer have what
/// the policy believes.
#[test]
fn what_else_a_policy_wants_is_done_where_its_thread_cannot_be_set() {
    let mut rig = rig(Budget { burst_ns: 3_000_000, refill_ppm: 100_000 }, false);
    rig.words = GuestWords::from_raw(0, 0, 2, 0);
    rig.op(0, Op::Exit);
    assert_eq!((rig.threads[0].status, rig.threads[0].budget), (Status::Boosted, Some(3_000_000)));
    let ends = rig.threads[0].timer.unwrap();
    // The check that a restore comes first is for threads that can be set.
    rig.threads[0].policy = BASELINES[0];
    rig.threads[0].foreign = true;
    rig.now = ends;
    assert!(driver::timer(&mut RigPort { rig: &mut rig, v: 0 }).is_err());
    assert!(!rig.drivers[0].policy().is_boosted());
    assert_eq!(rig.threads[0].status, Status::Throttled);
    assert!(rig.threads[0].timer.is_some_and(|at| at > ends));
}

/// Several vCPUs that run at once, and whose events come after a while: all pay from where they began, for
/// themselves and for their VM.
#[test]
fn vcpus_that_are_heard_of_late_are_each_charged_from_their_begin() {
    let (own, all) = (Budget { burst_ns: 1 << 40, refill_ppm: 0 }, 800_000);
    let vm_budget = Budget { burst_ns: all, refill_ppm: 0 };
    let config = WakeBoostConfig {
        means: MEANS[0],
        run_ns: 500_000,
        vcpu_budget: own,
        vm_budget,
        boost_on_injection: false,
        repay: false,
        rest_slice_ns: None,
    };
    let halted = Event::Halted(GuestWords::SILENT);
    let mut vm = VmShared::new(vm_budget, 0);
    let mut policies: Vec<HostPolicy> = (0..4).map(|_| HostPolicy::wake_boost(config, 0)).collect();
    for policy in &mut policies {
        policy.on(0, Event::Enable, &mut vm);
        policy.on(0, halted, &mut vm);
    }
    // Events come at 1.0, 1.01, ... ms; each has run since 250 us before.
    for (policy, i) in policies.iter_mut().zip(0..) {
        policy.on(750_000 + i * 10_000, Event::Woken, &mut vm);
    }
    for policy in &mut policies {
        policy.on(1_050_000, halted, &mut vm);
    }
    let charged: u64 = policies.iter().map(|policy| policy.stats().boosted_ns).sum();
    assert_eq!(charged, 300_000 + 290_000 + 280_000 + 270_000);
    for policy in &mut policies {
        policy.on(1_100_000, Event::Woken, &mut vm);
    }
    assert!(policies.iter().all(|policy| !policy.is_boosted()), "the VM has used its budget up");
}

/// A thread that had its CPU alone for a minute, or waited for a minute, before the policy came has
/// neither a debt nor a credit when it comes.
#[test]
fn what_a_thread_did_before_the_policy_is_not_its_debt() {
    for before in [ran(60_000, 60_000), ran(0, 60_000)] {
        let mut rig = rig(Budget { burst_ns: 1 << 40, refill_ppm: 0 }, true);
        rig.op(0, Op::Account(before));
        let lowered = borrow(&mut rig);
        assert!((1..=4).contains(&lowered), "{lowered} levels after {before:?}");
        // The thread goes, and another comes that has done as much elsewhere.
        rig.op(0, Op::ComeOrGo { registered: true });
        rig.op(0, Op::ComeOrGo { registered: true });
        rig.op(0, Op::Account(before));
        rig.op(0, Op::Account(CpuTime::default()));
        assert_eq!(rig.drivers[0].policy().rest().levels, lowered, "after {before:?}");
    }
}

fn ran(ms: u64, of_ms: u64) -> CpuTime {
    CpuTime { busy_ns: ms * 1_000_000, steal_ns: (of_ms - ms) * 1_000_000 }
}

/// Five intervals with a third of a CPU, as beside two equals, and a tenth by boosts on top of it. Levels afterwards.
fn borrow(rig: &mut Rig) -> u8 {
    for _ in 0..5 {
        rig.op(0, Op::Exit);
        rig.advance(rig.now + 10_000_000);
        rig.words = GuestWords::SILENT;
        rig.op(0, Op::Notify { running: false });
        rig.words = GuestWords::from_raw(0, 0, 2, 0);
        rig.advance(rig.now + 90_000_000);
        rig.op(0, Op::Account(ran(40, 100)));
    }
    rig.drivers[0].policy().rest().levels
}

/// Throttled, it has its full weight and more than its share. So it does not pay, and learns nothing of the others.
#[test]
fn who_is_throttled_owes_what_it_owed() {
    let mut rig = rig(Budget { burst_ns: 60_000_000, refill_ppm: 10_000 }, true);
    rig.op(0, Op::Account(CpuTime::default()));
    let lowered = borrow(&mut rig);
    assert!(lowered > 0);
    rig.op(0, Op::Exit);
    rig.advance(rig.now + 60_000_000);
    assert!(rig.drivers[0].policy().is_throttled());
    let before = rig.drivers[0].policy().stats().lowered_ns;
    let mut intervals = 0;
    while rig.drivers[0].policy().is_throttled() {
        rig.op(0, Op::Account(ran(45, 100)));
        rig.advance(rig.now + 100_000_000);
        intervals += 1;
    }
    assert!(intervals > 10, "{intervals}");
    assert_eq!(rig.drivers[0].policy().stats().lowered_ns, before);
    let levels = rig.drivers[0].policy().rest().levels;
    assert!(levels >= lowered, "{levels} levels, {lowered} before");
    rig.op(0, Op::Account(ran(45, 100)));
    let more = rig.drivers[0].policy().stats().lowered_ns - before;
    assert_eq!(more, 100_000_000 * u64::from(levels));
}

/// Registering again does not wipe a debt out.
#[test]
fn a_guest_that_registers_again_still_owes() {
    let mut rig = rig(Budget { burst_ns: 1 << 40, refill_ppm: 0 }, true);
    let ran = CpuTime { busy_ns: 60_000_000, steal_ns: 40_000_000 };
    rig.op(0, Op::Account(CpuTime::default()));
    for ms in (100..=1_000).step_by(100) {
        rig.op(0, Op::Register(false));
        rig.op(0, Op::Register(true));
        rig.words = GuestWords::from_raw(0, 0, 2, 0);
        rig.op(0, Op::Exit);
        rig.advance(ms * 1_000_000 - 50_000_000);
        rig.words = GuestWords::SILENT;
        rig.op(0, Op::Notify { running: false });
        rig.advance(ms * 1_000_000);
        rig.op(0, Op::Account(ran));
    }
    assert!(rig.drivers[0].policy().rest().levels >= 3);
}

/// The guest answers an interrupt before its boost lands, and does not look again.
#[test]
fn a_boost_that_comes_too_late_is_taken_back_at_once() {
    let mut rig = rig(Budget { burst_ns: 3_000_000, refill_ppm: 0 }, false);
    rig.words = GuestWords::from_raw(0, 0, 0, 1);
    rig.op(0, Op::Inject { asked: false });
    assert_eq!(rig.drivers[0].policy().stats().raced, 1);
    assert_eq!(rig.threads[0].policy, rig.threads[0].baseline);
}

/// Interrupts come more often than a late timer: each of them would begin a new wait for it.
#[test]
fn a_late_timer_ends_a_boost_however_often_the_guest_is_interrupted() {
    let budget = Budget { burst_ns: 3_000_000, refill_ppm: 0 };
    let mut rig = rig(budget, false);
    rig.op(0, Op::Late(2_000_000));
    rig.words = GuestWords::from_raw(0, 0, 1, 0);
    for us in (0..100_000).step_by(1_100) {
        rig.advance(us * 1_000);
        rig.op(0, Op::Inject { asked: false });
    }
    assert!(rig.threads[0].boosted_ns >= budget.burst_ns, "it was boosted");
    assert_eq!(rig.threads[0].policy, rig.threads[0].baseline);
}
