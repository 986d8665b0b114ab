//! What the kernel's fair scheduler makes of a thread that is real-time for a moment, every millisecond: no
//! guest, no KVM. Prints the share of CPU 0 that the thread has of its own and two equal hogs' time, by when
//! in its period a fourth, fair thread wakes up for 5 us. A fair kernel gives it its boosts and a third of the
//! rest, whenever that one wakes up. Then, with a fourth thread of another period, how long that one waits,
//! by the EEVDF slice that the first has while it is not real-time.
//!
//!     cargo run --release -p vcoop-lab --example unboost
#![allow(unsafe_code, reason = "scheduling attributes have no safe wrapper")]

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use std::{hint, iter, thread};

const PERIOD: Duration = Duration::from_millis(1);
const BOOST: Duration = Duration::from_micros(60);
const LONG_BOOST: Duration = Duration::from_micros(100);
const FAIR: (i32, Duration) = (0, Duration::ZERO);
const PERIODS: u32 = 2_000;
/// A period that meets every phase of the other.
const OTHER: Duration = Duration::from_micros(1037);

static OVER: AtomicBool = AtomicBool::new(false);

/// Pins the calling thread, and takes the slack from its sleeps.
fn pin(cpu: usize) {
    // SAFETY: a cpu_set_t is plain bits, the index is far below its size; prctl takes numbers.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::CPU_SET(cpu, &mut set);
        let rc = libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        assert_eq!(rc, 0, "CPU {cpu} cannot be had");
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64);
    }
}

/// FIFO with a priority, or fair with 0: then with this nice value and slice, the kernel's if it is zero.
fn schedule(tid: i32, priority: u32, (nice, slice): (i32, Duration)) {
    // SAFETY: a sched_attr is plain numbers.
    let mut attr = unsafe { std::mem::zeroed::<libc::sched_attr>() };
    attr.size = size_of::<libc::sched_attr>() as u32;
    attr.sched_nice = nice;
    attr.sched_runtime = slice.as_nanos() as u64;
    if priority > 0 {
        attr.sched_policy = libc::SCHED_FIFO as u32;
        attr.sched_priority = priority;
        // Threads that it starts are fair.
        attr.sched_flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
    }
    // SAFETY: reads one structure, whose size it says.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0_u32) };
    assert_eq!(rc, 0, "real-time scheduling is not permitted");
}

/// CPU time of a thread of this process.
fn cpu_time(tid: i32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat"));
    let text = text.unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0)
}

fn spin_until(end: Instant) {
    while Instant::now() < end {
        hint::spin_loop();
    }
}

/// At `first` and each period after it, for as long as there are boosts.
fn periodically(first: Instant, period: Duration, mut each: impl FnMut(Instant)) {
    let end = first + PERIODS * PERIOD;
    let mut next = first;
    while next < end {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        each(next);
        next += period;
    }
}

/// What came of it.
struct Seen {
    /// The boosted thread's share of the three spinning threads' time.
    share: f64,
    /// Wake-up latencies of the fourth, in order.
    waits: Vec<Duration>,
}

/// `wakes`: when in the boosted thread's period, and how often. `rest`: nice value and slice of the boosted
/// thread while it is fair.
fn watch(boost: Duration, wakes: (Duration, Duration), rest: (i32, Duration)) -> Seen {
    OVER.store(false, Ordering::Relaxed);
    let tids = [const { AtomicI32::new(0) }; 3];
    thread::scope(|s| {
        for tid in &tids {
            s.spawn(move || {
                pin(0);
                // SAFETY: no arguments.
                tid.store(unsafe { libc::gettid() }, Ordering::Release);
                while !OVER.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        while tids.iter().any(|tid| tid.load(Ordering::Acquire) == 0) {
            thread::sleep(PERIOD);
        }
        let start = Instant::now() + 20 * PERIOD;
        let other = s.spawn(move || {
            pin(0);
            let mut waits = Vec::new();
            periodically(start + wakes.0, wakes.1, |due| {
                waits.push(due.elapsed());
                spin_until(Instant::now() + Duration::from_micros(5));
            });
            waits.sort_unstable();
            waits
        });
        let tids = tids.each_ref().map(|tid| tid.load(Ordering::Acquire));
        schedule(tids[0], 0, rest);
        let before = tids.map(cpu_time);
        periodically(start, PERIOD, |_| {
            if !boost.is_zero() {
                schedule(tids[0], 8, FAIR);
                spin_until(Instant::now() + boost);
                schedule(tids[0], 0, rest);
            }
        });
        let used: Vec<f64> = tids.iter().zip(before).map(|(tid, b)| cpu_time(*tid) - b).collect();
        OVER.store(true, Ordering::Relaxed);
        let waits = other.join().expect("the fourth thread ends");
        Seen { share: used[0] / used.iter().sum::<f64>(), waits }
    })
}

fn main() {
    pin(1);
    schedule(0, 95, FAIR);
    let never = watch(Duration::ZERO, (Duration::ZERO, PERIOD), FAIR);
    println!("never boosted: {:.2}", never.share);
    for us in [0, 20, 40, 60, 80, 100, 120, 140, 160, 200, 300, 500, 700, 900] {
        let seen = watch(BOOST, (Duration::from_micros(us), PERIOD), FAIR);
        println!("the other wakes up {us} us after: {:.2}", seen.share);
    }
    println!(
        "the other wakes up every {OTHER:?}; boosts of {LONG_BOOST:?}, at nice 2 between them"
    );
    let unboosted = ("never boosted, nice 0".to_owned(), Duration::ZERO, FAIR);
    let slices = [0, 1400, 700, 300, 100].map(|us| {
        let name = if us == 0 { "the kernel's slice".to_owned() } else { format!("slice {us} us") };
        (name, LONG_BOOST, (2, Duration::from_micros(us)))
    });
    for (name, boost, rest) in iter::once(unboosted).chain(slices) {
        let Seen { share, waits } = watch(boost, (Duration::ZERO, OTHER), rest);
        let mean = waits.iter().sum::<Duration>() / waits.len() as u32;
        let p95 = waits[waits.len() * 95 / 100];
        println!("  {name}: waits mean {mean:.0?}, p95 {p95:.0?}; share {share:.2}");
    }
}
