//! `wake-boost` in C, as `scx_vcoop` runs it in the kernel, makes of every event what [`HostPolicy`] makes of it.
//!
//! Both get the same steps: random ones, and every short sequence over a small alphabet. The rules in C run in a
//! program of their own, `replay.c`.

use std::path::Path;

use proptest::prelude::*;
use vcoop_abi::GuestWords;
use vcoop_policy::config::{Budget, Means, Ns, WakeBoostConfig};
use vcoop_policy::{Action, Event, HostPolicy, Injection, VmShared};
use vcoop_testing::{Native, random};

/// vCPUs of the VM.
const VCPUS: usize = 2;

/// No time.
const NEVER: u64 = u64::MAX;

/// Less than what C takes at once.
const HOUR_NS: Ns = 3_600_000_000_000;

/// Words of an answer.
const ANSWER: usize = 9;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A new VM with these budgets.
    Begin { run_ns: Ns, on_injection: bool, vcpu: Budget, vm: Budget },
    /// After so many nanoseconds, an event of a vCPU. With no event its timer is what happens, if it is armed, late by
    /// the time.
    Then { after: Ns, vcpu: usize, event: Option<What> },
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
}

#[derive(Debug)]
struct Rust {
    now: Ns,
    vm: VmShared,
    vcpus: [HostPolicy; VCPUS],
    timers: [u64; VCPUS],
}

fn begin(run_ns: Ns, on_injection: bool, vcpu: Budget, vm: Budget) -> Rust {
    let config = WakeBoostConfig {
        means: Means::Ext,
        run_ns,
        vcpu_budget: vcpu,
        vm_budget: vm,
        boost_on_injection: on_injection,
        repay: false,
        rest_slice_ns: None,
    };
    let mut vm = VmShared::new(vm, 0);
    let vcpus = [(); VCPUS].map(|()| HostPolicy::wake_boost(config, 0));
    let vcpus = vcpus.map(|mut vcpu| {
        assert!(vcpu.on(0, Event::Attached(false), &mut vm).is_empty());
        vcpu
    });
    Rust { now: 0, vm, vcpus, timers: [NEVER; VCPUS] }
}

impl Rust {
    /// The step as C has it, and what Rust makes of it.
    fn make(&mut self, after: Ns, of: usize, what: Option<What>) -> ([u64; 5], [u64; ANSWER]) {
        self.now += after;
        let what = what.unwrap_or_else(|| {
            // Not before it is due, where it is due soon.
            let is_soon = self.timers[of].saturating_sub(self.now) < HOUR_NS / 2;
            self.now = if is_soon { self.now.max(self.timers[of]) } else { self.now };
            What::Timer
        });
        let event = match what {
            What::Attached => Event::Attached(true),
            What::Left => Event::Attached(false),
            What::Halted => Event::Halted(GuestWords::SILENT),
            What::Woken => Event::Woken,
            What::Injected => Event::Injected(Injection::Timer),
            What::Timer => Event::Timer,
        };
        let policy = &mut self.vcpus[of];
        let (mut at, mut cancel) = (NEVER, 0);
        for action in policy.on(self.now, event, &mut self.vm) {
            match action {
                Action::ArmTimer(time) => (at, cancel) = (time, 0),
                Action::CancelTimer => (at, cancel) = (NEVER, 1),
                _ => {}
            }
        }
        self.timers[of] = match (at, cancel) {
            (NEVER, 0) => self.timers[of],
            _ => at,
        };
        let stats = policy.stats();
        let (boosted, throttled) = (policy.is_boosted(), policy.is_throttled());
        let counts = [stats.boosted_ns, stats.boosts, stats.throttles, stats.denied];
        let levels = [policy.budget_left(self.now), self.vm.budget_left()];
        let mut answer = [0; ANSWER];
        // Disabled and normal are one to whoever asks.
        answer[0] = if boosted { 2 } else { u64::from(throttled) * 3 };
        answer[1..3].copy_from_slice(&[at, cancel]);
        answer[3..7].copy_from_slice(&counts);
        answer[7..].copy_from_slice(&levels);
        ([what as u64, of as u64, self.now, 0, 0], answer)
    }
}

/// Both do the steps.
fn compare(ops: &[Op]) {
    let mut rust = None;
    let (mut steps, mut answers) = (Vec::new(), Vec::new());
    for op in ops {
        match *op {
            Op::Begin { run_ns, on_injection, vcpu, vm } => {
                rust = Some(begin(run_ns, on_injection, vcpu, vm));
                steps.push([100, 0, 0, vm.burst_ns, vm.refill_ppm.into()]);
                for of in 0..VCPUS as u64 {
                    steps.push([101, of, 0, vcpu.burst_ns, vcpu.refill_ppm.into()]);
                    steps.push([102, of, 0, run_ns, on_injection.into()]);
                }
                answers.extend([None; 1 + 2 * VCPUS]);
            }
            Op::Then { after, vcpu, event } => {
                let (step, answer) = rust.as_mut().unwrap().make(after, vcpu, event);
                steps.push(step);
                answers.push(Some((*op, answer)));
            }
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replay.c");
    let words = Native::build("-O1", &[&source]).answers(steps.iter().flatten().copied());
    assert_eq!(words.len(), answers.len() * ANSWER);
    for (at, (c, rust)) in words.chunks_exact(ANSWER).zip(&answers).enumerate() {
        let Some((op, rust)) = rust else { continue };
        let mut c: [u64; ANSWER] = c.try_into().unwrap();
        c[0] = if c[0] == 1 { 0 } else { c[0] };
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

#[test]
fn random_events_have_the_same_outcome() {
    let after = prop_oneof![
        1 => Just(0_u64),
        6 => 1_u64..100_000,
        8 => 100_000_u64..5_000_000,
        3 => 5_000_000_u64..200_000_000,
        1 => 200_000_000_u64..HOUR_NS / 100,
    ];
    let run = prop_oneof![1_u64..1_000, 1_000_u64..10_000_000, Just(NEVER)];
    let begins = random((run, any::<bool>(), budget(), budget()), 1_000);
    let mut then = random((after, 0..VCPUS, what()), 150_000).into_iter();
    let mut ops = Vec::new();
    for (run_ns, on_injection, vcpu, vm) in begins {
        ops.push(Op::Begin { run_ns, on_injection, vcpu, vm });
        for vcpu in 0..VCPUS {
            ops.push(Op::Then { after: 0, vcpu, event: Some(What::Attached) });
        }
        let steps = then.by_ref().take(150);
        ops.extend(steps.map(|(after, vcpu, event)| Op::Then { after, vcpu, event }));
    }
    compare(&ops);
}

#[test]
fn every_short_sequence_has_the_same_outcome() {
    const ALPHABET: [Option<What>; 6] = [
        Some(What::Halted),
        Some(What::Woken),
        Some(What::Injected),
        None,
        Some(What::Left),
        Some(What::Attached),
    ];
    const LENGTH: u32 = 6;
    let budget = Budget { burst_ns: 1_000_000, refill_ppm: 250_000 };
    let mut ops = Vec::new();
    for sequence in 0..ALPHABET.len().pow(LENGTH) {
        ops.push(Op::Begin { run_ns: 400_000, on_injection: true, vcpu: budget, vm: budget });
        ops.push(Op::Then { after: 0, vcpu: 0, event: Some(What::Attached) });
        let mut rest = sequence;
        for _ in 0..LENGTH {
            let event = ALPHABET[rest % ALPHABET.len()];
            ops.push(Op::Then { after: 300_000, vcpu: 0, event });
            rest /= ALPHABET.len();
        }
    }
    compare(&ops);
}
