//! The bare engine against a hand-written loop over `std::collections::BinaryHeap`, interleaved.
//!
//! Prints events per CPU-second of both and the ratio, median of several rounds. The two models
//! are the smallest ones that exercise a scheduler's queue: every event sets the slot it came
//! from again (`rr-jitter`), or sets another slot far away (`jsq`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hint::black_box;

use vcoop_sim::queue::EventQueue;
use vcoop_sim::rng::Stream;

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

fn cpu_seconds() -> f64 {
    vcoop_sim::cpu_time_ns() as f64 / 1e9
}

fn rate(f: fn() -> u64) -> (f64, u64) {
    let start = cpu_seconds();
    let check = f();
    (EVENTS as f64 / (cpu_seconds() - start), check)
}

fn median(v: &mut [f64]) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn main() {
    // `cargo test --benches` passes --test: one short round then, as a smoke test.
    let rounds = if std::env::args().any(|a| a == "--test") { 1 } else { 9 };
    let cases: [(&str, fn() -> u64, fn() -> u64); 2] = [
        ("rr-jitter", rr_jitter::<EventQueue>, rr_jitter::<Reference>),
        ("jsq", jsq::<EventQueue>, jsq::<Reference>),
    ];
    for (name, ours, reference) in cases {
        let (mut a, mut b, mut r) = (vec![], vec![], vec![]);
        for _ in 0..rounds {
            let (x, cx) = rate(ours);
            let (y, cy) = rate(reference);
            assert_eq!(cx, cy, "both loops simulate the same events");
            a.push(x / 1e6);
            b.push(y / 1e6);
            r.push(x / y);
        }
        println!(
            "{name:10} {:6.1} M events/CPU-s, BinaryHeap {:6.1} M, ratio {:.2} (median of {rounds})",
            median(&mut a),
            median(&mut b),
            median(&mut r)
        );
    }
}
