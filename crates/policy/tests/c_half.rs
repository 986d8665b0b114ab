//! The guest half of the Linux driver, in C, makes of every event what [`GuestHalf`] makes of it.
//!
//! Both get the same steps: random ones, and every short sequence over a small alphabet. The C half runs
//! in a program of its own, `guest/linux/tools/replay.c`.

use std::path::Path;

use proptest::prelude::*;
use vcoop_abi::{
    BoostRequest, Class, CsState, GuestArea, HostArea, Intent, Status, TaskIntent, Word,
};
use vcoop_policy::guest::{End, GuestEvent, GuestHalf, HostView, Stores};
use vcoop_testing::{Native, random};

/// Flags of what the C half answers.
const INTENT: u64 = 0x1;
const CS: u64 = 0x2;
const REQUEST: u64 = 0x4;
const ACK: u64 = 0x8;
const CHECK: u64 = 0x10;
const NOTIFY: u64 = 0x20;

/// What is done with a half.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// A new one, and new areas.
    Forget,
    On(GuestEvent, HostView),
    Check(HostView),
    /// [`GuestHalf::expect`].
    Expect(bool),
    /// [`GuestHalf::run`].
    Run(GuestEvent, HostView),
}

/// What a half made of it: flags, intent, cs, request, ack; or of [`Op::Run`], the words of the area.
type Made = [u64; 5];

/// A step as the C program reads it: op, kind, flag, task, pending, status, ticket.
fn encode(op: Op) -> [u64; 7] {
    let task = |task: TaskIntent| Intent { running: task, ..Intent::default() }.to_word();
    let event = |event| match event {
        GuestEvent::IrqEnter => [0, 0, 0, 0],
        GuestEvent::IrqExit { softirq_pending } => [1, softirq_pending.into(), 0, 0],
        GuestEvent::NmiEnter => [2, 0, 0, 0],
        GuestEvent::NmiExit => [3, 0, 0, 0],
        GuestEvent::SoftirqEnter => [4, 0, 0, 0],
        GuestEvent::SoftirqExit => [5, 0, 0, 0],
        GuestEvent::PreemptOff => [6, 0, 0, 0],
        GuestEvent::PreemptOn => [7, 0, 0, 0],
        GuestEvent::TaskSwitch { next, pending } => {
            [8, pending.is_some().into(), task(next), pending.map_or(0, task)]
        }
        GuestEvent::RtEnqueued(queued) => [9, 0, task(queued), 0],
        GuestEvent::NeedResched => [10, 0, 0, 0],
        GuestEvent::IdleEnter => [11, 0, 0, 0],
        GuestEvent::UserReturn => [12, 0, 0, 0],
    };
    let (op, [kind, flag, task, pending], host) = match op {
        Op::Forget => (0, [0; 4], HostView::default()),
        Op::On(what, host) => (1, event(what), host),
        Op::Check(host) => (2, [0; 4], host),
        Op::Run(what, host) => (3, event(what), host),
        Op::Expect(soon) => (4, [0, soon.into(), 0, 0], HostView::default()),
    };
    [op, kind, flag, task, pending, host.status.to_word(), host.ticket]
}

#[derive(Default)]
struct Rust {
    half: GuestHalf,
    guest: GuestArea,
    host: HostArea,
}

impl Rust {
    fn make(&mut self, op: Op) -> Made {
        match op {
            Op::Forget => {
                *self = Self::default();
                [0; 5]
            }
            Op::Expect(soon) => {
                self.half.expect(soon);
                [0; 5]
            }
            Op::On(event, host) => {
                let step = self.half.on(event, host);
                made(step.stores, if step.check { CHECK } else { 0 })
            }
            Op::Check(host) => {
                let End { stores, notify } = self.half.check(host);
                made(stores, if notify { NOTIFY } else { 0 })
            }
            Op::Run(event, host) => {
                let release = std::sync::atomic::Ordering::Release;
                self.host.status.store(host.status.to_word(), release);
                self.host.ticket.store(host.ticket, release);
                let notify = self.half.run(event, &self.guest, &self.host);
                let words = self.guest.read();
                [
                    notify.into(),
                    words.intent.decode::<Intent>().to_word(),
                    words.cs.decode::<CsState>().to_word(),
                    words.request.decode::<BoostRequest>().to_word(),
                    words.ack.bounded(u64::MAX),
                ]
            }
        }
    }
}

fn made(stores: Stores, flags: u64) -> Made {
    let mut made = [flags, 0, 0, 0, 0];
    let mut put = |index: usize, flag, word: Option<u64>| {
        if let Some(word) = word {
            made[0] |= flag;
            made[index] = word;
        }
    };
    put(1, INTENT, stores.intent);
    put(2, CS, stores.cs);
    put(3, REQUEST, stores.request);
    put(4, ACK, stores.ack);
    made
}

/// Builds the C program.
fn program(optimized: &str) -> Native {
    let linux = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest/linux");
    Native::build(optimized, &[&linux.join("tools/replay.c"), &linux.join("half.c")])
}

/// Both do the steps.
fn compare(ops: &[Op]) {
    let words = program("-O1").answers(ops.iter().flat_map(|op| encode(*op)));
    assert_eq!(words.len(), ops.len() * 5);
    let mut rust = Rust::default();
    for (at, (op, c)) in ops.iter().zip(words.chunks_exact(5)).enumerate() {
        let expected = rust.make(*op);
        if expected != c {
            let begin = ops[..at].iter().rposition(|op| matches!(op, Op::Forget)).unwrap_or(0);
            panic!("after {:#x?}\nRust makes {expected:#x?}, C {c:#x?}", &ops[begin..=at]);
        }
    }
}

fn task() -> impl Strategy<Value = TaskIntent> {
    const CLASSES: [Class; 7] = [
        Class::None,
        Class::Fair,
        Class::Fifo,
        Class::Rr,
        Class::Deadline,
        Class::Idle,
        Class::Stop,
    ];
    (prop::sample::select(CLASSES.as_slice()), any::<u8>(), any::<bool>())
        .prop_map(|(class, prio, declared)| TaskIntent { class, prio, declared }.canonical())
}

fn event() -> impl Strategy<Value = GuestEvent> {
    use GuestEvent as E;
    prop_oneof![
        Just(E::IrqEnter),
        any::<bool>().prop_map(|softirq_pending| E::IrqExit { softirq_pending }),
        Just(E::NmiEnter),
        Just(E::NmiExit),
        Just(E::SoftirqEnter),
        Just(E::SoftirqExit),
        Just(E::PreemptOff),
        Just(E::PreemptOn),
        (task(), prop::option::of(task()))
            .prop_map(|(next, pending)| E::TaskSwitch { next, pending }),
        task().prop_map(E::RtEnqueued),
        Just(E::NeedResched),
        Just(E::IdleEnter),
        Just(E::UserReturn),
    ]
}

fn host() -> impl Strategy<Value = HostView> {
    let status = prop_oneof![
        1 => Just(Status::Disabled),
        4 => Just(Status::Normal),
        4 => Just(Status::Boosted),
        2 => Just(Status::Throttled),
    ];
    (status, prop_oneof![0_u64..4, any::<u64>()])
        .prop_map(|(status, ticket)| HostView { status, ticket })
}

#[test]
fn random_events_make_the_same_stores() {
    // Long runs too: nesting deeper than its byte, and many sections.
    let sequences = random((event(), host(), host(), 0..200_u32), 100_000);
    let mut ops = Vec::new();
    for (event, host, later, forget) in sequences {
        if forget == 0 {
            ops.push(Op::Forget);
        }
        if forget < 20 {
            ops.push(Op::Expect(forget < 10));
        }
        ops.push(Op::On(event, host));
        // Also where it is not asked for.
        if forget % 4 > 0 {
            ops.push(Op::Check(later));
        }
    }
    compare(&ops);
}

#[test]
fn depths_stay_within_their_bytes() {
    use GuestEvent as E;
    let normal = HostView { status: Status::Normal, ticket: 1 };
    let enters = [E::IrqEnter, E::NmiEnter, E::SoftirqEnter];
    let exits = [E::IrqExit { softirq_pending: false }, E::NmiExit, E::SoftirqExit];
    let mut ops = Vec::new();
    for (enter, exit) in enters.into_iter().zip(exits) {
        ops.extend([Op::On(enter, normal); 300]);
        ops.extend([Op::On(exit, normal); 300]);
    }
    compare(&ops);
}

#[test]
fn random_events_leave_the_same_words_in_an_area() {
    let mut ops = Vec::new();
    for (event, host, forget) in random((event(), host(), 0..200_u32), 50_000) {
        if forget == 0 {
            ops.push(Op::Forget);
        }
        if forget < 20 {
            ops.push(Op::Expect(forget < 10));
        }
        ops.push(Op::Run(event, host));
    }
    compare(&ops);
}

#[test]
fn every_short_sequence_makes_the_same_stores() {
    use GuestEvent as E;
    let normal = HostView { status: Status::Normal, ticket: 1 };
    let boosted = HostView { status: Status::Boosted, ticket: 2 };
    let rt = TaskIntent::fifo(50);
    let declared = TaskIntent { declared: true, ..TaskIntent::FAIR };
    let alphabet = [
        Op::On(E::IrqEnter, normal),
        Op::On(E::IrqEnter, boosted),
        Op::On(E::IrqExit { softirq_pending: false }, boosted),
        Op::On(E::IrqExit { softirq_pending: true }, normal),
        Op::On(E::SoftirqEnter, normal),
        Op::On(E::SoftirqExit, boosted),
        Op::On(E::TaskSwitch { next: TaskIntent::FAIR, pending: None }, boosted),
        Op::On(E::TaskSwitch { next: rt, pending: Some(declared) }, normal),
        Op::On(E::RtEnqueued(rt), normal),
        Op::On(E::NeedResched, boosted),
        Op::On(E::IdleEnter, boosted),
        Op::On(E::PreemptOff, normal),
        Op::On(E::PreemptOn, boosted),
        Op::On(E::UserReturn, HostView::default()),
        Op::Check(normal),
        Op::Check(boosted),
        Op::Expect(true),
        Op::Expect(false),
    ];
    let mut ops = Vec::new();
    for length in 1..=4_u32 {
        for number in 0..alphabet.len().pow(length) {
            ops.push(Op::Forget);
            let digit = |at| number / alphabet.len().pow(at) % alphabet.len();
            ops.extend((0..length).map(|at| alphabet[digit(at)]));
        }
    }
    compare(&ops);
}

/// What an event may cost the guest, in nanoseconds, its stores and fences included.
const MOST_NS: f64 = 150.0;

#[test]
fn an_event_is_cheap() {
    let measured = program("-O2").command().arg("20000").output().unwrap();
    let measured = String::from_utf8(measured.stdout).unwrap();
    let mut lines = 0;
    for line in measured.lines() {
        let ns: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(ns < MOST_NS, "{line}");
        lines += 1;
    }
    assert_eq!(lines, 16, "four sequences of events, four statuses");
}
