//! What a look at a thread's counters costs, with the file opened for it and with the file kept open
//! (`cargo run --release -p vcoop-threads --example proc_reads`).

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    use std::hint::black_box;
    use std::time::{Duration, Instant};

    use vcoop_threads::{RunTimes, Stat, gettid};

    let tid = gettid();
    let (times, stat) = (RunTimes::open(tid)?, Stat::open(tid)?);
    let looks: [(&str, &dyn Fn()); 4] = [
        ("schedstat, opened", &|| _ = black_box(RunTimes::open(tid).map(|times| times.read()))),
        ("schedstat, kept", &|| _ = black_box(times.read())),
        ("stat, opened", &|| _ = black_box(Stat::open(tid).map(|stat| stat.is_asleep()))),
        ("stat, kept", &|| _ = black_box(stat.is_asleep())),
    ];
    for (name, look) in looks {
        // The best of many blocks: whatever interrupts one makes it longer, never shorter.
        let block = || {
            let start = Instant::now();
            (0..100).for_each(|_| look());
            start.elapsed() / 100
        };
        let best = (0..500).map(|_| block()).min().unwrap_or(Duration::ZERO);
        println!("{name}: {best:?}");
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
