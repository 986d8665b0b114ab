//! What the driver's core does to a port, call by call.

use vcoop_abi::{GuestWords, Status};
use vcoop_policy::config::{Budget, DynamicConfig, Means, Ns, WakeBoostConfig};
use vcoop_policy::driver::{self, Port, SetError, VcpuDriver};
use vcoop_policy::thread::Policy;
use vcoop_policy::{HostPolicy, Injection, VmShared};

const MEANS: Means = Means::Rr(8);
const BOOSTED: Policy = Policy::Rr(8);
const BUDGET: Budget = Budget { burst_ns: 3_000_000, refill_ppm: 0 };
const VM: Budget = Budget { burst_ns: 1 << 40, refill_ppm: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Ticket(u64),
    Status(Status),
    Set(Policy),
    Arm(Option<Ns>),
    Fire,
    Words,
}

/// A vCPU whose thread takes only policies that are not refused.
struct Vcpu {
    now: Ns,
    driver: VcpuDriver,
    vm: VmShared,
    words: GuestWords,
    refused: fn(Policy) -> bool,
    calls: Vec<Call>,
}

impl Vcpu {
    fn new(policy: HostPolicy, baseline: Policy) -> Self {
        Self {
            now: 0,
            driver: VcpuDriver::new(policy, Some(MEANS), baseline),
            vm: VmShared::new(VM, 0),
            words: GuestWords::SILENT,
            refused: |_| false,
            calls: Vec::new(),
        }
    }

    fn dynamic(receiver: bool) -> Self {
        let config = DynamicConfig {
            boost_receiver: receiver,
            boost_on_injection: !receiver,
            ..DynamicConfig::new(MEANS, BUDGET, VM)
        };
        let mut vcpu = Self::new(HostPolicy::dynamic(config, 0), Policy::NORMAL);
        driver::start(&mut vcpu, true).unwrap();
        assert_eq!(vcpu.done(), [Call::Status(Status::Normal)]);
        vcpu
    }

    /// What was done since this was asked before.
    fn done(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }
}

impl Port for Vcpu {
    type Error = Policy;

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
        self.calls.push(Call::Ticket(ticket));
    }

    fn store_status(&mut self, status: Status) {
        self.calls.push(Call::Status(status));
    }

    fn store_budget(&mut self, _: Ns) {}

    fn set_thread(&mut self, policy: Policy) -> Result<(), SetError<Policy>> {
        self.calls.push(Call::Set(policy));
        if (self.refused)(policy) { Err(SetError::Refused(policy)) } else { Ok(()) }
    }

    fn arm(&mut self, at: Option<Ns>) {
        self.calls.push(Call::Arm(at));
    }

    fn fire(&mut self) -> Result<(), Policy> {
        self.calls.push(Call::Fire);
        Ok(())
    }

    fn words(&mut self) -> GuestWords {
        self.calls.push(Call::Words);
        self.words
    }
}

fn asks() -> GuestWords {
    GuestWords::from_raw(0, 0, 2, 0)
}

#[test]
fn an_interrupt_is_visible_after_what_is_said_of_it_and_before_its_boost() {
    let mut vcpu = Vcpu::dynamic(false);
    driver::inject(&mut vcpu, Injection::Timer, false).unwrap();
    let boost = [
        Call::Ticket(1),
        Call::Status(Status::Boosted),
        Call::Fire,
        Call::Set(BOOSTED),
        Call::Arm(Some(BUDGET.burst_ns)),
        Call::Words,
    ];
    assert_eq!(vcpu.done(), boost);
    assert_eq!(vcpu.driver.policy().boosted_at(100_000), 100_000);
    // It is boosted already, and has its time.
    driver::inject(&mut vcpu, Injection::Timer, false).unwrap();
    assert_eq!(vcpu.done(), [Call::Ticket(2), Call::Fire]);
}

#[test]
fn a_sender_is_heard_where_the_policy_hears_senders() {
    for (receiver, asked) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut vcpu = Vcpu::dynamic(receiver);
        driver::inject(&mut vcpu, Injection::Ipi, asked).unwrap();
        // If it hears no senders, an interrupt is a reason of its own.
        let boosts = asked || !receiver;
        assert_eq!(vcpu.done().contains(&Call::Set(BOOSTED)), boosts, "{receiver} {asked}");
    }
    let mut vcpu = Vcpu::dynamic(true);
    driver::asked(&mut vcpu).unwrap();
    let done = vcpu.done();
    assert!(done.contains(&Call::Set(BOOSTED)) && !done.contains(&Call::Fire), "{done:?}");
}

#[test]
fn words_of_a_vcpu_that_may_run_are_read_again_after_a_boost() {
    type Look = fn(&mut Vcpu) -> Result<(), Policy>;
    let looks: [(Look, bool); 4] = [
        (|vcpu| driver::exit(vcpu), false),
        (|vcpu| driver::sample(vcpu), true),
        (|vcpu| driver::notify(vcpu, false), false),
        (|vcpu| driver::notify(vcpu, true), true),
    ];
    for (n, (look, again)) in looks.into_iter().enumerate() {
        let mut vcpu = Vcpu::dynamic(false);
        vcpu.words = asks();
        look(&mut vcpu).unwrap();
        let mut boost = vec![
            Call::Words,
            Call::Status(Status::Boosted),
            Call::Set(BOOSTED),
            Call::Arm(Some(BUDGET.burst_ns)),
        ];
        boost.extend(again.then_some(Call::Words));
        assert_eq!(vcpu.done(), boost, "look {n}");
        vcpu.words = GuestWords::SILENT;
        look(&mut vcpu).unwrap();
        let end = [Call::Words, Call::Set(Policy::NORMAL), Call::Status(Status::Normal)];
        assert_eq!(vcpu.done(), end, "look {n}");
    }
}

#[test]
fn a_timer_that_never_came_is_given_up_at_the_next_event() {
    let lost = BUDGET.burst_ns + 1_000_000;
    for (now, is_lost) in [(lost - 1, false), (lost, true)] {
        let mut vcpu = Vcpu::dynamic(false);
        vcpu.words = asks();
        driver::exit(&mut vcpu).unwrap();
        vcpu.done();
        vcpu.now = now;
        driver::exit(&mut vcpu).unwrap();
        let done = vcpu.done();
        assert_eq!(done.contains(&Call::Arm(None)), is_lost, "{done:?}");
        assert_eq!(done.contains(&Call::Set(Policy::NORMAL)), is_lost, "{done:?}");
        assert_eq!(vcpu.driver.policy().is_throttled(), is_lost);
    }
}

#[test]
fn a_run_ends_at_the_next_event_if_its_timer_never_came() {
    let config = WakeBoostConfig {
        means: MEANS,
        run_ns: 500_000,
        vcpu_budget: BUDGET,
        vm_budget: VM,
        boost_on_injection: false,
        repay: false,
        rest_slice_ns: None,
    };
    for (now, is_lost) in [(1_499_999, false), (1_500_000, true)] {
        let mut vcpu = Vcpu::new(HostPolicy::wake_boost(config, 0), Policy::NORMAL);
        driver::start(&mut vcpu, false).unwrap();
        driver::halt(&mut vcpu, true).unwrap();
        driver::halt(&mut vcpu, false).unwrap();
        vcpu.done();
        vcpu.now = now;
        driver::exit(&mut vcpu).unwrap();
        assert_eq!(vcpu.done().contains(&Call::Set(Policy::NORMAL)), is_lost, "{now}");
    }
}

#[test]
fn a_halt_takes_back_the_timer_of_a_boost() {
    let mut vcpu = Vcpu::dynamic(false);
    vcpu.words = asks();
    driver::exit(&mut vcpu).unwrap();
    vcpu.done();
    driver::halt(&mut vcpu, true).unwrap();
    assert_eq!(vcpu.done(), [Call::Words, Call::Arm(None)]);
    assert_eq!(vcpu.driver.timer(), None);
    vcpu.now = 500_000;
    driver::halt(&mut vcpu, false).unwrap();
    assert_eq!(vcpu.done(), [Call::Arm(Some(500_000 + BUDGET.burst_ns))]);
}

#[test]
fn a_baseline_that_is_refused_when_a_boost_ends_is_replaced() {
    let mut vcpu = Vcpu::dynamic(false);
    driver::rebase(&mut vcpu, Policy::Idle).unwrap();
    vcpu.words = asks();
    driver::exit(&mut vcpu).unwrap();
    vcpu.done();
    vcpu.refused = |policy| policy == Policy::Idle;
    vcpu.words = GuestWords::SILENT;
    driver::exit(&mut vcpu).unwrap();
    let tried = [Call::Set(Policy::Idle), Call::Set(Policy::NORMAL)];
    assert_eq!(vcpu.done()[1..3], tried);
}

#[test]
fn a_thread_that_goes_has_its_baseline_whatever_it_had() {
    let mut vcpu = Vcpu::dynamic(false);
    driver::stop(&mut vcpu).unwrap();
    assert_eq!(vcpu.done(), [Call::Status(Status::Disabled), Call::Set(Policy::NORMAL)]);
    driver::stop(&mut vcpu).unwrap();
    assert_eq!(vcpu.done(), [], "it has gone");
    // Interrupts come through all the same.
    driver::inject(&mut vcpu, Injection::Timer, false).unwrap();
    assert_eq!(vcpu.done(), [Call::Fire]);
}

/// As in a daemon whose policy rested meanwhile.
#[test]
fn a_guest_that_left_while_nobody_acted_is_not_registered() {
    let mut vcpu = Vcpu::dynamic(false);
    driver::stop(&mut vcpu).unwrap();
    driver::register(&mut vcpu, false).unwrap();
    vcpu.done();
    driver::start(&mut vcpu, false).unwrap();
    driver::inject(&mut vcpu, Injection::Timer, false).unwrap();
    assert_eq!(vcpu.done(), [Call::Fire]);
}

/// A `static` policy that does not hold would make a run of another policy's.
#[test]
fn a_static_policy_begins_with_its_means_or_not_at_all() {
    let mut vcpu = Vcpu::new(HostPolicy::fixed(MEANS), Policy::NORMAL);
    driver::start(&mut vcpu, false).unwrap();
    assert_eq!(vcpu.done(), [Call::Set(BOOSTED)]);

    let mut vcpu = Vcpu::new(HostPolicy::fixed(MEANS), Policy::NORMAL);
    vcpu.refused = |policy| policy == BOOSTED;
    assert_eq!(driver::start(&mut vcpu, false), Err(BOOSTED));

    let mut vcpu = Vcpu::new(HostPolicy::fixed(MEANS), Policy::Fifo(50));
    driver::start(&mut vcpu, false).unwrap();
    assert_eq!(vcpu.done(), [], "it would be lowered");

    let mut vcpu = Vcpu::new(HostPolicy::fixed(MEANS), Policy::NORMAL);
    vcpu.vm.set_vm(false);
    driver::start(&mut vcpu, false).unwrap();
    assert_eq!(vcpu.done(), [], "it is switched off");
}
