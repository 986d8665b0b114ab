//! What the kernel's fair scheduler makes of a thread that is real-time for a moment, every millisecond: no
//! guest, no KVM. Prints the share of CPU 0 that the thread has of its own and two equal hogs' time, by when
//! in its period a fourth, fair thread wakes up for 5 us. A fair kernel gives it its boosts and a third of the
//! rest, whenever that one wakes up.
//!
//!     cargo run --release -p vcoop-kvm --example unboost
#![allow(unsafe_code, reason = "scheduling attributes have no safe wrapper")]

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use std::{hint, thread};

const PERIOD: Duration = Duration::from_millis(1);
const BOOST: Duration = Duration::from_micros(60);
const PERIODS: u32 = 1_000;

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

/// FIFO with a priority, or fair with 0.
fn schedule(tid: i32, priority: i32) {
    // Threads that it starts are fair.
    let fifo = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    let policy = if priority > 0 { fifo } else { libc::SCHED_OTHER };
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: reads one structure.
    let rc = unsafe { libc::sched_setscheduler(tid, policy, &raw const param) };
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

/// At `first` and each period after it.
fn periodically(first: Instant, mut each: impl FnMut()) {
    for n in 0..PERIODS {
        thread::sleep((first + n * PERIOD).saturating_duration_since(Instant::now()));
        each();
    }
}

/// The boosted thread's share of the three spinning threads' time.
fn share(boosts: bool, wakes: Duration) -> f64 {
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
        s.spawn(move || {
            pin(0);
            periodically(start + wakes, || spin_until(Instant::now() + Duration::from_micros(5)));
        });
        let tids = tids.each_ref().map(|tid| tid.load(Ordering::Acquire));
        let before = tids.map(cpu_time);
        periodically(start, || {
            if boosts {
                schedule(tids[0], 8);
                spin_until(Instant::now() + BOOST);
                schedule(tids[0], 0);
            }
        });
        let used: Vec<f64> = tids.iter().zip(before).map(|(tid, b)| cpu_time(*tid) - b).collect();
        OVER.store(true, Ordering::Relaxed);
        used[0] / used.iter().sum::<f64>()
    })
}

fn main() {
    pin(1);
    schedule(0, 95);
    println!("never boosted: {:.2}", share(false, Duration::ZERO));
    for us in [0, 20, 40, 60, 80, 100, 120, 140, 160, 200, 300, 500, 700, 900] {
        println!("the other wakes up {us} us after: {:.2}", share(true, Duration::from_micros(us)));
    }
}
