//! Work of entities in tests, and the time of CPUs for it: the part of a driver that all schedulers share. The next
//! event is found by a search over all entities.

use vcoop_sched::config::Ns;
use vcoop_sched::{CpuId, EntId};

/// A millisecond.
pub const MS: Ns = 1_000_000;
/// A microsecond.
pub const US: Ns = 1_000;

/// Work of an entity: runs and sleeps alternate; with `sleep == 0` it never sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Length of a run.
    pub run: Ns,
    /// Length of the sleep after it.
    pub sleep: Ns,
}

/// It never sleeps.
pub const HOG: Work = Work { run: Ns::MAX, sleep: 0 };

#[derive(Debug)]
struct Task {
    work: Work,
    /// Remaining time of the current run.
    left: Ns,
    wakes_at: Option<Ns>,
}

/// The work of all entities, in the order of addition.
#[derive(Debug)]
pub struct Tasks {
    all: Vec<Task>,
    /// Time up to which each CPU is accounted.
    since: Vec<Ns>,
    /// Time for which each CPU was not idle.
    pub busy: Vec<Ns>,
    /// Time may jump over the end of a run.
    jumps: bool,
}

impl Tasks {
    /// No entities yet. With `jumps`, time may pass over the end of a run.
    pub fn new(cpus: u32, jumps: bool) -> Self {
        let none = vec![0; cpus as usize];
        Self { all: Vec::new(), since: none.clone(), busy: none, jumps }
    }

    /// Adds the work of the next entity, which sleeps until it is woken.
    pub fn add(&mut self, work: Work) {
        self.all.push(Task { work, left: work.run, wakes_at: None });
    }

    /// All CPUs.
    pub fn cpus(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.since.len() as u32).map(CpuId)
    }

    /// Sets the end of an entity's sleep; `None`: it is awake, or sleeps for ever.
    pub fn wake_at(&mut self, e: EntId, at: Option<Ns>) {
        self.all[e.index()].wakes_at = at;
    }

    /// The earliest end of a run or a sleep.
    pub fn next_event(&self, now: Ns, current: impl Fn(CpuId) -> Option<EntId>) -> Ns {
        let running = self.cpus().filter_map(current);
        let ends = running.map(|e| now.saturating_add(self.all[e.index()].left));
        ends.chain(self.all.iter().filter_map(|task| task.wakes_at)).min().unwrap_or(Ns::MAX)
    }

    /// Updates runs and busy time up to `now`.
    pub fn account(&mut self, now: Ns, current: impl Fn(CpuId) -> Option<EntId>) {
        for cpu in self.cpus() {
            let i = cpu.index();
            let ran = now - self.since[i];
            self.since[i] = now;
            if let Some(e) = current(cpu) {
                self.busy[i] += ran;
                let left = &mut self.all[e.index()].left;
                if *left != Ns::MAX {
                    *left = if self.jumps { left.saturating_sub(ran) } else { *left - ran };
                }
            }
        }
    }

    /// Whether the run of `e` has ended; if so its sleep begins.
    pub fn falls_asleep(&mut self, now: Ns, e: EntId) -> bool {
        let task = &mut self.all[e.index()];
        let over = task.left == 0;
        if over {
            task.left = task.work.run;
            task.wakes_at = Some(now + task.work.sleep);
        }
        over
    }

    /// Number of entities.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether the sleep of entity `i` is over.
    pub fn is_due(&self, now: Ns, i: usize) -> bool {
        self.all[i].wakes_at.is_some_and(|at| at <= now)
    }
}

/// Asserts that `a / b` is `want` within `percent`.
///
/// # Panics
///
/// It is not.
#[track_caller]
pub fn assert_ratio(a: Ns, b: Ns, want: f64, percent: f64) {
    let got = a as f64 / b as f64;
    let off = (got / want - 1.0).abs() * 100.0;
    assert!(off <= percent, "{a} / {b} = {got:.4}, want {want:.4}: off by {off:.2} %");
}
