//! The bare engine against a hand-written loop over `std::collections::BinaryHeap`, interleaved, and each alone under
//! criterion.
//!
//! Prints events per CPU-second of both and their ratio, median of several rounds. The two models
//! are the smallest ones that exercise a scheduler's queue: every event sets the slot it came
//! from again (`rr-jitter`), or sets another slot far away (`jsq`).

mod cpu_time;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hint::black_box;

use cpu_time::CpuTime;
use criterion::{Criterion, Throughput, criterion_group};
use vcoop_model::rng::Stream;
use vcoop_sim::queue::EventQueue;

const EVENTS: u64 = 4_000_000;

trait Queue {
    fn new(slots: usize) -> Self;
    fn set(&mut self, slot: u32, time: u64);
    fn pop(&mut self) -> Option<(u64, u32)>;
}

impl Queue for EventQueue {
    fn new(slots: usize) -> Self {
        EventQueue::new(slots)
    }
    fn set(&mut self, slot: u32, time: u64) {
        EventQueue::set(self, slot, time);
    }
    fn pop(&mut self) -> Option<(u64, u32)> {
        EventQueue::pop(self)
    }
}

/// What one would write by hand: (time, sequence, slot) in a standard binary heap.
struct Reference {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    seq: u64,
}

impl Queue for Reference {
    fn new(slots: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(slots), seq: 0 }
    }
    fn set(&mut self, slot: u32, time: u64) {
        self.seq += 1;
        self.heap.push(Reverse((time, self.seq, slot)));
    }
    fn pop(&mut self) -> Option<(u64, u32)> {
        self.heap.pop().map(|Reverse((t, _, s))| (t, s))
    }
}

/// 24 processors, 60 always-runnable entities, own queues, stealing when empty, 1 ms +-10 %.
fn rr_jitter<Q: Queue>() -> u64 {
    const CPUS: usize = 24;
    let mut q = Q::new(CPUS);
    let mut rng = Stream::new(1, &[]);
    let mut queues: Vec<VecDeque<u32>> = (0..CPUS).map(|_| VecDeque::with_capacity(64)).collect();
    let mut current = [0u32; CPUS];
    for e in 0..60u32 {
        queues[e as usize % CPUS].push_back(e);
    }
    for (c, cur) in current.iter_mut().enumerate() {
        *cur = queues[c].pop_front().expect("60 entities cover 24 processors");
        q.set(c as u32, rng.below(1_000_000));
    }
    let mut last = 0;
    for _ in 0..EVENTS {
        let (now, c) = q.pop().expect("a slot is always set");
        let cpu = c as usize;
        queues[cpu].push_back(current[cpu]);
        let next = match queues[cpu].pop_front() {
            Some(e) => e,
            None => steal(&mut queues, cpu),
        };
        current[cpu] = next;
        q.set(c, now + 900_000 + rng.below(200_001));
        last = now;
    }
    black_box(last)
}

fn steal(queues: &mut [VecDeque<u32>], cpu: usize) -> u32 {
    let n = queues.len();
    (1..n).find_map(|d| queues[(cpu + d) % n].pop_back()).expect("somebody has work")
}

/// 1000 tasks, think Exp(900 us), service Exp(100 us) on 94 FIFO servers, join the shortest.
fn jsq<Q: Queue>() -> u64 {
    const TASKS: u32 = 1000;
    const SERVERS: usize = 94;
    let mut q = Q::new(TASKS as usize + SERVERS);
    let mut rng = Stream::new(2, &[]);
    let mut queues: Vec<VecDeque<u32>> =
        (0..SERVERS).map(|_| VecDeque::with_capacity(64)).collect();
    // by_len[l] is the set of servers with l tasks, as a bitset: the shortest is the first bit
    // of the first set that is not empty.
    let mut by_len = vec![0u128; TASKS as usize + 1];
    by_len[0] = (1 << SERVERS) - 1;
    for t in 0..TASKS {
        q.set(t, rng.exponential(900_000));
    }
    let mut shortest = 0usize;
    let mut last = 0;
    for _ in 0..EVENTS {
        let (now, slot) = q.pop().expect("a slot is always set");
        last = now;
        if slot < TASKS {
            while by_len[shortest] == 0 {
                shortest += 1;
            }
            let s = by_len[shortest].trailing_zeros() as usize;
            by_len[shortest] &= !(1 << s);
            by_len[shortest + 1] |= 1 << s;
            queues[s].push_back(slot);
            if queues[s].len() == 1 {
                q.set(TASKS + s as u32, now + rng.exponential(100_000));
            }
        } else {
            let s = (slot - TASKS) as usize;
            let task = queues[s].pop_front().expect("a busy server has a task");
            let len = queues[s].len();
            by_len[len + 1] &= !(1 << s);
            by_len[len] |= 1 << s;
            shortest = shortest.min(len);
            if len > 0 {
                q.set(slot, now + rng.exponential(100_000));
            }
            q.set(task, now + rng.exponential(900_000));
        }
    }
    black_box(last)
}

fn rate(f: fn() -> u64) -> (f64, u64) {
    let start = vcoop_sim::cpu_time_ns();
    let check = f();
    (EVENTS as f64 * 1e3 / (vcoop_sim::cpu_time_ns() - start) as f64, check)
}

fn median(v: &mut [f64]) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

/// One model on both queues.
struct Case {
    name: &'static str,
    ours: fn() -> u64,
    reference: fn() -> u64,
}

const CASES: [Case; 2] = [
    Case { name: "rr-jitter", ours: rr_jitter::<EventQueue>, reference: rr_jitter::<Reference> },
    Case { name: "jsq", ours: jsq::<EventQueue>, reference: jsq::<Reference> },
];

fn bare(c: &mut Criterion<CpuTime>) {
    for case in &CASES {
        let mut group = c.benchmark_group(case.name);
        group.throughput(Throughput::Elements(EVENTS)).sample_size(10);
        group.bench_function("event-queue", |b| b.iter(case.ours));
        group.bench_function("binary-heap", |b| b.iter(case.reference));
        group.finish();
    }
}

/// Both loops by turns, so that a noisy neighbour disturbs them alike: the ratio is the result.
fn interleaved(rounds: usize) {
    for case in &CASES {
        let (mut a, mut b, mut r) = (vec![], vec![], vec![]);
        for _ in 0..rounds {
            let (x, cx) = rate(case.ours);
            let (y, cy) = rate(case.reference);
            assert_eq!(cx, cy, "both loops simulate the same events");
            a.push(x);
            b.push(y);
            r.push(x / y);
        }
        println!(
            "{:10} {:6.1} M events/CPU-s, BinaryHeap {:6.1} M, ratio {:.2} (median of {rounds})",
            case.name,
            median(&mut a),
            median(&mut b),
            median(&mut r)
        );
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = bare
}

fn main() {
    benches();
    // `cargo test --benches` runs each benchmark once, as a smoke test.
    interleaved(if std::env::args().any(|a| a == "--bench") { 9 } else { 1 });
    Criterion::default().configure_from_args().final_summary();
}
