//! Measures how long a fair thread of the host waits on the CPUs of the VM's vCPUs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use vcoop_model::plan::Ns;
use vcoop_model::recording::{LatencyRecord, Part, WorstSample};
use vcoop_threads::clock::{monotonic, sleep_until};
use vcoop_threads::{pin, set_timer_slack};

/// Time between two wake-ups. Not a round number: a guest's timers have round periods, and a probe with the same period
/// would see only one phase of them.
const PERIOD_NS: Ns = 1_037_000;

/// Most threads: one for each set of CPUs that vCPUs may use.
const MOST: usize = 8;

/// Samples of one thread.
#[derive(Debug, Default)]
struct Samples {
    /// Due time, from the beginning, and latency of each.
    samples: Vec<(Ns, Ns)>,
    missed: u64,
}

/// Threads that measure until [`end`](Self::end).
#[derive(Debug)]
pub(super) struct HostProbe {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Samples>>,
}

impl HostProbe {
    /// Starts one on each of these sets of CPUs.
    pub(super) fn start(sets: &[Vec<u32>]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let began = monotonic();
        let spawn = |cpus: &Vec<u32>| {
            let (over, cpus) = (over.clone(), cpus.clone());
            let probe = move || sample(&cpus, began, &over);
            thread::Builder::new().name("probe".to_owned()).spawn(probe).ok()
        };
        let threads = sets.iter().take(MOST).filter_map(spawn).collect();
        Self { over, threads }
    }

    /// Ends them. Their samples form one series.
    pub(super) fn end(self) -> LatencyRecord {
        self.over.store(true, Ordering::Relaxed);
        let mut record = LatencyRecord::new("host.probe");
        let all: Vec<Samples> = self.threads.into_iter().filter_map(|t| t.join().ok()).collect();
        for Samples { samples, missed } in &all {
            record.missed += missed;
            for &(_, latency) in samples {
                record.book(latency, &[0; Part::COUNT]);
            }
        }
        let mut worst: Vec<(Ns, Ns)> = all.into_iter().flat_map(|s| s.samples).collect();
        worst.sort_unstable_by_key(|(_, latency)| std::cmp::Reverse(*latency));
        worst.truncate(LatencyRecord::WORST);
        let sample = |(due_ns, latency_ns)| WorstSample {
            due_ns,
            latency_ns,
            parts: [0; Part::COUNT],
            ran_instead: Vec::new(),
        };
        record.worst = worst.into_iter().map(sample).collect();
        record
    }
}

/// Samples from `began` on until it is over. A starved thread notices the end too late: it then has one sample with its
/// full latency, and the periods that it missed.
fn sample(cpus: &[u32], began: Ns, over: &AtomicBool) -> Samples {
    let mut all = Samples::default();
    if pin(cpus).is_err() {
        return all;
    }
    set_timer_slack(1);
    let mut due = began + PERIOD_NS;
    loop {
        sleep_until(due);
        let now = monotonic();
        if now < due {
            continue;
        }
        all.samples.push((due - began, now - due));
        due += PERIOD_NS;
        // A period that is already over is skipped and counted, as cyclictest does.
        let missed = now.checked_sub(due).map_or(0, |late| late / PERIOD_NS + 1);
        all.missed += missed;
        due += missed * PERIOD_NS;
        if over.load(Ordering::Relaxed) {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HostProbe, PERIOD_NS};
    use std::thread;
    use std::time::Duration;
    use vcoop_threads::clock::monotonic;

    #[test]
    fn a_thread_that_comes_when_it_is_over_has_missed_all() {
        let cpus = vcoop_threads::allowed_cpus().unwrap();
        let late = vcoop_threads::clock::monotonic() - 100 * PERIOD_NS;
        let found = super::sample(&cpus, late, &true.into());
        assert_eq!(found.samples.len(), 1);
        assert!(found.samples[0].1 >= 99 * PERIOD_NS && found.missed >= 98, "{found:?}");
    }

    #[test]
    fn it_measures_until_it_is_ended() {
        let cpus = vcoop_threads::allowed_cpus().unwrap();
        let began = monotonic();
        let probe = HostProbe::start(&[cpus.clone(), cpus]);
        let started = monotonic();
        thread::sleep(Duration::from_millis(60));
        let asked = monotonic();
        let record = probe.end();
        // Each thread has come to each of its periods or has missed it, but for one that ends as it is asked.
        let least = 2 * ((asked - started) / PERIOD_NS - 1);
        let most = 2 * ((monotonic() - began) / PERIOD_NS + 1);
        let (taken, missed) = (record.hist.len(), record.missed);
        assert!((least..=most).contains(&(taken + missed)), "{taken} and {missed} missed");
        assert!(taken >= 2, "{taken}");
        assert_eq!(record.worst[0].latency_ns, record.max_ns);
    }
}
