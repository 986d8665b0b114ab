//! For every event, `wake-boost` and `dynamic` in C, as `scx_vcoop` runs them in the kernel, give the same result as
//! [`HostPolicy`].
//!
//! Both get the same steps: random ones, and every short sequence over a small alphabet. The rules in C run in a
//! separate program, `replay.c`.

use std::path::Path;

use proptest::prelude::*;
use vcoop_abi::{BoostRequest, Class, CsState, GuestWords, Intent, TaskIntent, Word};
use vcoop_policy::config::{Budget, DynamicConfig, Means, Ns, WakeBoostConfig};
use vcoop_policy::deadline::boost_from;
use vcoop_policy::{Action, Event, HostPolicy, Injection, VmShared};
use vcoop_testing::{Native, random};

/// vCPUs of the VM.
const VCPUS: usize = 2;

/// No time.
const NEVER: u64 = u64::MAX;

/// After each step the budget is also read for this much later, as for a deadline.
const LATER_NS: Ns = 50_000;

/// Less than the longest time that C takes at once.
const HOUR_NS: Ns = 3_600_000_000_000;

/// Words of a step: kind, vCPU, time, a budget, the rules, and the guest's words.
const STEP: usize = 5 + 8 + 4;

/// Words of an answer.
const ANSWER: usize = 13;

/// The guest's words: intent, section and interrupts, request, and what is added to the last ticket to get the ack.
type Words = (u64, u64, u64, u64);

#[derive(Clone, Copy, Debug)]
enum Policy {
    WakeBoost(WakeBoostConfig),
    Dynamic(DynamicConfig),
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A new VM with this policy.
    Begin(Policy),
    /// An event of a vCPU, `after` nanoseconds later. Without an event its timer fires, if it is armed, with that time
    /// as delay.
    Then { after: Ns, vcpu: usize, event: Option<What>, words: Words },
}

/// In the order of `enum boost_event`.
#[derive(Clone, Copy, Debug)]
enum What {
    Attached,
    Left,
    Halted,
    Woken,
    Injected,
    Timer,
    Exit,
    Recheck,
    Registered,
    Unregistered,
    Asked,
}

#[derive(Debug)]
struct Rust {
    now: Ns,
    vm: VmShared,
    vcpus: [HostPolicy; VCPUS],
    timers: [u64; VCPUS],
    tickets: [u64; VCPUS],
}

impl Policy {
    fn budgets(self) -> (Budget, Budget) {
        match self {
            Self::WakeBoost(c) => (c.vcpu_budget, c.vm_budget),
            Self::Dynamic(c) => (c.vcpu_budget, c.vm_budget),
        }
    }

    /// The words of `struct rules`.
    fn rules(self) -> [u64; 8] {
        match self {
            Self::WakeBoost(c) => [0, c.run_ns, c.boost_on_injection.into(), 0, 0, 1, 0, 0],
            Self::Dynamic(c) => [
                1,
                0,
                c.boost_on_injection.into(),
                c.boost_receiver.into(),
                c.boost_on_request.into(),
                c.boost_across_idle.into(),
                c.max_preempt_off_ns,
                c.longest_boost_ns.unwrap_or(0),
            ],
        }
    }

    fn begin(self) -> Rust {
        let mut vm = VmShared::new(self.budgets().1, 0);
        let vcpus = [(); VCPUS].map(|()| {
            let mut vcpu = match self {
                Self::WakeBoost(config) => HostPolicy::wake_boost(config, 0),
                Self::Dynamic(config) => HostPolicy::dynamic(config, 0),
            };
            assert!(vcpu.on(0, Event::Attached(false), &mut vm).is_empty());
            vcpu
        });
        Rust { now: 0, vm, vcpus, timers: [NEVER; VCPUS], tickets: [0; VCPUS] }
    }

    /// The steps in C that begin it.
    fn steps(self) -> Vec<[u64; STEP]> {
        let (vcpu, vm) = self.budgets();
        let step = |what, of, budget: Budget| {
            let mut step = [0; STEP];
            step[..5].copy_from_slice(&[what, of, 0, budget.burst_ns, budget.refill_ppm.into()]);
            step[5..13].copy_from_slice(&self.rules());
            step
        };
        let vcpus = (0..VCPUS as u64).map(|of| step(101, of, vcpu));
        std::iter::once(step(100, 0, vm)).chain(vcpus).collect()
    }
}

impl Rust {
    /// The step for C, and the result in Rust.
    fn make(
        &mut self,
        after: Ns,
        of: usize,
        what: Option<What>,
        words: Words,
    ) -> ([u64; STEP], [u64; ANSWER]) {
        self.now += after;
        let what = what.unwrap_or_else(|| {
            // Not before it is due, if it is due soon.
            let is_soon = self.timers[of].saturating_sub(self.now) < HOUR_NS / 2;
            self.now = if is_soon { self.now.max(self.timers[of]) } else { self.now };
            What::Timer
        });
        let (intent, cs, request, ahead) = words;
        let ack = self.tickets[of].wrapping_add(ahead);
        let words = GuestWords::from_raw(intent, cs, request, ack);
        let event = match what {
            What::Attached => Event::Attached(true),
            What::Left => Event::Attached(false),
            What::Halted => Event::Halted(words),
            What::Woken => Event::Woken,
            What::Injected => Event::Injected(Injection::Timer),
            What::Timer => Event::Timer,
            What::Exit => Event::Exit(words),
            What::Recheck => Event::Recheck(words),
            What::Registered => Event::Registered(true),
            What::Unregistered => Event::Registered(false),
            What::Asked => Event::Asked,
        };
        let policy = &mut self.vcpus[of];
        let armed = &mut self.timers[of];
        if matches!(what, What::Timer) && *armed <= self.now {
            *armed = NEVER;
        }
        let mut rechecks = 0;
        for action in policy.on(self.now, event, &mut self.vm) {
            match action {
                Action::ArmTimer(time) => *armed = time,
                Action::CancelTimer => *armed = NEVER,
                Action::Recheck => rechecks = 1,
                Action::Ticket(ticket) => self.tickets[of] = ticket,
                _ => {}
            }
        }
        let stats = policy.stats();
        let (boosted, throttled) = (policy.is_boosted(), policy.is_throttled());
        // A reader does not distinguish disabled and normal.
        let status = if boosted { 2 } else { u64::from(throttled) * 3 };
        // A policy without a guest counts no tickets.
        let answer = [
            status,
            *armed,
            rechecks,
            self.tickets[of],
            stats.boosted_ns,
            stats.boosts,
            stats.throttles,
            stats.too_long,
            stats.by_vm,
            stats.denied,
            policy.budget_left(self.now),
            self.vm.budget_left(),
            policy.budget_left(self.now + LATER_NS),
        ];
        let mut step = [0; STEP];
        step[..3].copy_from_slice(&[what as u64, of as u64, self.now]);
        step[13..].copy_from_slice(&[intent, cs, request, ack]);
        (step, answer)
    }
}

/// Compares both over the steps.
fn compare(ops: &[Op]) {
    let mut rust = None;
    let mut is_dynamic = false;
    let (mut steps, mut answers) = (Vec::new(), Vec::new());
    for op in ops {
        match *op {
            Op::Begin(policy) => {
                is_dynamic = matches!(policy, Policy::Dynamic(_));
                rust = Some(policy.begin());
                let begins = policy.steps();
                answers.extend(begins.iter().map(|_| None));
                steps.extend(begins);
            }
            Op::Then { after, vcpu, event, words } => {
                let rust: &mut Rust = rust.as_mut().unwrap();
                let (step, answer) = rust.make(after, vcpu, event, words);
                steps.push(step);
                answers.push(Some((*op, answer, is_dynamic)));
            }
        }
    }
    for (at, (mut c, rust)) in replay(&steps).into_iter().zip(&answers).enumerate() {
        let Some((op, rust, is_dynamic)) = rust else { continue };
        c[0] = if c[0] == 1 { 0 } else { c[0] };
        c[3] = if *is_dynamic { c[3] } else { 0 };
        if *rust != c {
            let begin = steps[..at].iter().rposition(|step| step[0] == 100).unwrap_or(0);
            panic!("after {:?}\n{op:?}: Rust makes {rust:?}, C {c:?}", &steps[begin..=at]);
        }
    }
}

fn budget() -> impl Strategy<Value = Budget> {
    let burst =
        prop_oneof![Just(0_u64), 1_u64..100_000, 100_000_u64..20_000_000, Just(1_u64 << 40)];
    let ppm = prop_oneof![Just(0_u32), 1..1_000_000_u32, Just(250_000), Just(1_000_000)];
    (burst, ppm).prop_map(|(burst_ns, refill_ppm)| Budget { burst_ns, refill_ppm })
}

fn wake_boost() -> impl Strategy<Value = Policy> {
    let run = prop_oneof![1_u64..1_000, 1_000_u64..10_000_000, Just(NEVER)];
    (run, any::<bool>(), budget(), budget()).prop_map(|(run_ns, injection, vcpu, vm)| {
        Policy::WakeBoost(wake_boost_of(run_ns, injection, vcpu, vm))
    })
}

fn wake_boost_of(run_ns: Ns, injection: bool, vcpu: Budget, vm: Budget) -> WakeBoostConfig {
    WakeBoostConfig {
        means: Means::Ext,
        run_ns,
        vcpu_budget: vcpu,
        vm_budget: vm,
        boost_on_injection: injection,
        repay: false,
        rest_slice_ns: None,
    }
}

fn dynamic() -> impl Strategy<Value = Policy> {
    let longest = prop_oneof![Just(None), (1_u64..3_000_000).prop_map(Some)];
    let section = prop_oneof![Just(0_u64), 1_u64..5_000_000, Just(NEVER)];
    let mostly = || prop::bool::weighted(0.8);
    let flags = (mostly(), any::<bool>(), mostly(), mostly());
    (longest, section, flags, budget(), budget()).prop_map(
        |(longest_boost_ns, max_preempt_off_ns, (injection, receiver, request, idle), vcpu, vm)| {
            Policy::Dynamic(DynamicConfig {
                longest_boost_ns,
                max_preempt_off_ns,
                boost_on_injection: injection,
                boost_receiver: receiver,
                boost_on_request: request,
                boost_across_idle: idle,
                ..DynamicConfig::new(Means::Ext, vcpu, vm)
            })
        },
    )
}

/// Words of an honest guest, and words that no honest guest writes.
fn words() -> impl Strategy<Value = Words> {
    let tasks = [
        TaskIntent::default(),
        TaskIntent::FAIR,
        TaskIntent::new(Class::Fair, 39),
        TaskIntent::fifo(1),
        TaskIntent::rr(99),
        TaskIntent::new(Class::Stop, 0),
        TaskIntent { declared: true, ..TaskIntent::FAIR },
    ];
    let task = || prop::sample::select(tasks.to_vec());
    let intent = (task(), prop::option::weighted(0.1, task()), any::<bool>())
        .prop_map(|(running, pending, idle)| Intent { running, pending, idle }.to_word());
    let few = |most: u8| prop_oneof![8 => Just(0), 1 => 0..most];
    let cs = (few(2), few(3), prop::bool::weighted(0.3), 0_u32..3).prop_map(
        |(hardirq, softirq, preempt_off, section)| {
            CsState { nmi: 0, hardirq, softirq, preempt_off, section }.to_word()
        },
    );
    let request = [BoostRequest::None, BoostRequest::Unboost, BoostRequest::Boost];
    let request = prop::sample::select(request.map(Word::to_word).to_vec());
    let ahead = prop_oneof![6 => Just(0), 2 => Just(u64::MAX), 1 => 1_u64..3, 1 => any::<u64>()];
    // One bit too many, or anything.
    let wild = |word: BoxedStrategy<u64>| {
        let other = (word.clone(), 0..64_u32).prop_map(|(word, bit)| word ^ 1_u64 << bit);
        prop_oneof![12 => word, 2 => other, 1 => any::<u64>()]
    };
    (wild(intent.boxed()), wild(cs.boxed()), wild(request.boxed()), ahead)
}

fn what() -> impl Strategy<Value = Option<What>> {
    prop_oneof![
        2 => Just(Some(What::Attached)),
        1 => Just(Some(What::Left)),
        8 => Just(Some(What::Halted)),
        10 => Just(Some(What::Woken)),
        8 => Just(Some(What::Injected)),
        4 => Just(Some(What::Timer)),
        12 => Just(None),
    ]
}

/// The same with events from the guest.
fn what_with_guest() -> impl Strategy<Value = Option<What>> {
    prop_oneof![
        45 => what(),
        30 => Just(Some(What::Exit)),
        4 => Just(Some(What::Recheck)),
        6 => Just(Some(What::Asked)),
        3 => Just(Some(What::Registered)),
        1 => Just(Some(What::Unregistered)),
    ]
}

/// Steps of 1000 VMs, 150 each on average.
fn steps(
    begins: impl Strategy<Value = Policy>,
    what: impl Strategy<Value = Option<What>>,
    starts: &[What],
) -> Vec<Op> {
    let after = prop_oneof![
        1 => Just(0_u64),
        6 => 1_u64..100_000,
        8 => 100_000_u64..5_000_000,
        3 => 5_000_000_u64..200_000_000,
        1 => 200_000_000_u64..HOUR_NS / 100,
    ];
    let begins = random(begins, 1_000);
    let mut then = random((after, 0..VCPUS, what, words()), 150_000).into_iter();
    let mut ops = Vec::new();
    for policy in begins {
        ops.push(Op::Begin(policy));
        for (vcpu, event) in (0..VCPUS).flat_map(|of| starts.iter().map(move |what| (of, *what))) {
            ops.push(Op::Then { after: 0, vcpu, event: Some(event), words: SILENT });
        }
        let steps = then.by_ref().take(150);
        ops.extend(steps.map(|(after, vcpu, event, words)| Op::Then { after, vcpu, event, words }));
    }
    ops
}

const SILENT: Words = (0, 0, 0, 0);

/// Runs the steps in C; returns its answers.
fn replay(steps: &[[u64; STEP]]) -> Vec<[u64; ANSWER]> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replay.c");
    let words = Native::build("-O1", &[&source]).answers(steps.iter().flatten().copied());
    assert_eq!(words.len(), steps.len() * ANSWER);
    words.chunks_exact(ANSWER).map(|answer| answer.try_into().unwrap()).collect()
}

#[test]
fn a_deadline_is_a_reason_from_the_same_time_on() {
    let time = || {
        let near = 0..10_000_000_u64;
        prop_oneof![8 => near.clone(), 1 => near.prop_map(|ns| NEVER - ns), 1 => any::<u64>()]
    };
    let small = || prop_oneof![4 => 0..500_000_u64, 1 => any::<u64>()];
    let cases = random((time(), any::<bool>(), time(), small(), small()), 20_000);
    let steps: Vec<_> = cases
        .iter()
        .map(|&(at, served, now, left, lead)| {
            let mut step = [0; STEP];
            step[..3].copy_from_slice(&[102, 0, now]);
            step[13..].copy_from_slice(&[at, served.into(), left, lead]);
            step
        })
        .collect();
    for (case, answer) in cases.iter().zip(replay(&steps)) {
        let &(at, served, now, left, lead) = case;
        let rust = boost_from(at, served, now, left, lead).unwrap_or(NEVER);
        assert_eq!(rust, answer[1], "{case:?}");
    }
}

#[test]
fn random_events_have_the_same_outcome() {
    compare(&steps(wake_boost(), what(), &[What::Attached]));
}

#[test]
fn random_events_and_words_have_the_same_outcome() {
    compare(&steps(dynamic(), what_with_guest(), &[What::Attached, What::Registered]));
}

/// All sequences of steps of some length, 300 us apart, for a VM that has begun.
fn every_sequence(
    length: u32,
    policy: Policy,
    starts: &[What],
    alphabet: &[(Option<What>, Words)],
) {
    let mut ops = Vec::new();
    for sequence in 0..alphabet.len().pow(length) {
        ops.push(Op::Begin(policy));
        let starts = starts.iter().map(|what| (0, Some(*what), SILENT));
        let mut rest = sequence;
        let steps = (0..length).map(|_| {
            let (event, words) = alphabet[rest % alphabet.len()];
            rest /= alphabet.len();
            (300_000, event, words)
        });
        ops.extend(starts.chain(steps).map(|(after, event, words)| Op::Then {
            after,
            vcpu: 0,
            event,
            words,
        }));
    }
    compare(&ops);
}

const BUDGET: Budget = Budget { burst_ns: 1_000_000, refill_ppm: 250_000 };

#[test]
fn every_short_sequence_has_the_same_outcome() {
    let alphabet = [
        Some(What::Halted),
        Some(What::Woken),
        Some(What::Injected),
        None,
        Some(What::Left),
        Some(What::Attached),
    ];
    let policy = Policy::WakeBoost(wake_boost_of(400_000, true, BUDGET, BUDGET));
    every_sequence(6, policy, &[What::Attached], &alphabet.map(|what| (what, SILENT)));
}

#[test]
fn every_short_sequence_with_words_has_the_same_outcome() {
    // An urgent task; a section; nothing, with and without an acknowledgement of the last ticket.
    let section = CsState { preempt_off: true, ..CsState::default() }.to_word();
    let alphabet = [
        (Some(What::Halted), SILENT),
        (Some(What::Woken), SILENT),
        (Some(What::Injected), SILENT),
        (None, SILENT),
        (Some(What::Exit), (0, 0, BoostRequest::Boost.to_word(), 0)),
        (Some(What::Exit), (0, section, 0, 0)),
        (Some(What::Exit), (0, 0, 0, u64::MAX)),
    ];
    let config = DynamicConfig {
        longest_boost_ns: Some(500_000),
        max_preempt_off_ns: 500_000,
        ..DynamicConfig::new(Means::Ext, BUDGET, BUDGET)
    };
    every_sequence(5, Policy::Dynamic(config), &[What::Attached, What::Registered], &alphabet);
}
