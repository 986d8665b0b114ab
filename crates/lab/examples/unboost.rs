//! How the kernel's fair scheduler treats a thread that is real-time for a moment in every millisecond. Uses no guest
//! and no KVM. Prints the thread's share of CPU 0, out of the time of it and two equal hogs, by the time in its period
//! at which a fourth, fair thread wakes up for 5 us. A fair kernel gives the thread its boosts and a third of the rest,
//! whenever the fourth wakes up. Then, with a fourth thread of another period, prints how long that one waits, by the
//! EEVDF slice of the first thread while it is not real-time.
//!
//!     cargo run --release -p vcoop-lab --example unboost

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use std::{hint, iter, thread};

use vcoop_policy::thread::Policy;
use vcoop_threads::{Attributes, gettid, run_time, set_timer_slack};

const PERIOD: Duration = Duration::from_millis(1);
const BOOST: Duration = Duration::from_micros(60);
const LONG_BOOST: Duration = Duration::from_micros(100);
const PERIODS: u32 = 2_000;
/// A period that drifts through all phases of the other.
const OTHER: Duration = Duration::from_micros(1037);

static OVER: AtomicBool = AtomicBool::new(false);

/// Pins the calling thread to a CPU, and takes the slack from its sleeps.
fn pin(cpu: u32) {
    vcoop_threads::pin(&[cpu]).unwrap_or_else(|e| panic!("CPU {cpu} cannot be had: {e}"));
    set_timer_slack(1);
}

fn schedule(tid: i32, policy: Policy) {
    Attributes::from_policy(&policy).set(tid).unwrap_or_else(|e| panic!("{e}"));
}

/// CPU time of a thread of this process.
fn cpu_time(tid: i32) -> f64 {
    run_time(tid).ran_ns as f64
}

fn spin_until(end: Instant) {
    while Instant::now() < end {
        hint::spin_loop();
    }
}

/// Calls `each` at `first` and each period after it, while the boosts go on.
fn periodically(first: Instant, period: Duration, mut each: impl FnMut(Instant)) {
    let end = first + PERIODS * PERIOD;
    let mut next = first;
    while next < end {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        each(next);
        next += period;
    }
}

/// Result of a measurement.
struct Seen {
    /// The boosted thread's share of the three spinning threads' time.
    share: f64,
    /// Wake-up latencies of the fourth thread, ascending.
    waits: Vec<Duration>,
}

/// `wakes`: phase in the boosted thread's period, and period, of the fourth thread's wake-ups. `rest`: the boosted
/// thread's policy between its boosts.
fn watch(boost: Duration, wakes: (Duration, Duration), rest: Policy) -> Seen {
    OVER.store(false, Ordering::Relaxed);
    let tids = [const { AtomicI32::new(0) }; 3];
    thread::scope(|s| {
        for tid in &tids {
            s.spawn(move || {
                pin(0);
                tid.store(gettid(), Ordering::Release);
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
        schedule(tids[0], rest);
        let before = tids.map(cpu_time);
        periodically(start, PERIOD, |_| {
            if !boost.is_zero() {
                schedule(tids[0], Policy::Fifo(8));
                spin_until(Instant::now() + boost);
                schedule(tids[0], rest);
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
    schedule(0, Policy::Fifo(95));
    let never = watch(Duration::ZERO, (Duration::ZERO, PERIOD), Policy::NORMAL);
    println!("never boosted: {:.2}", never.share);
    for us in [0, 20, 40, 60, 80, 100, 120, 140, 160, 200, 300, 500, 700, 900] {
        let seen = watch(BOOST, (Duration::from_micros(us), PERIOD), Policy::NORMAL);
        println!("the other wakes up {us} us after: {:.2}", seen.share);
    }
    println!(
        "the other wakes up every {OTHER:?}; boosts of {LONG_BOOST:?}, at nice 2 between them"
    );
    let unboosted = ("never boosted, nice 0".to_owned(), Duration::ZERO, Policy::NORMAL);
    let slices = [0, 1400, 700, 300, 100].map(|us| {
        let name = if us == 0 { "the kernel's slice".to_owned() } else { format!("slice {us} us") };
        let slice_ns = (us > 0).then_some(us * 1_000);
        (name, LONG_BOOST, Policy::Normal { nice: 2, slice_ns })
    });
    for (name, boost, rest) in iter::once(unboosted).chain(slices) {
        let Seen { share, waits } = watch(boost, (Duration::ZERO, OTHER), rest);
        let mean = waits.iter().sum::<Duration>() / waits.len() as u32;
        let p95 = waits[waits.len() * 95 / 100];
        println!("  {name}: waits mean {mean:.0?}, p95 {p95:.0?}; share {share:.2}");
    }
}
