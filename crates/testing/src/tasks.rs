//! What entities of a test do, and what CPUs spend on it: the part of a driver that is the same for every
//! scheduler. The next event is found by looking at everything.

use vcoop_sched::config::Ns;
use vcoop_sched::{CpuId, EntId};

/// A millisecond.
pub const MS: Ns = 1_000_000;
/// A microsecond.
pub const US: Ns = 1_000;

/// What an entity does: runs and sleeps in turn; `sleep == 0` never sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// How long it runs.
    pub run: Ns,
    /// How long it sleeps then.
    pub sleep: Ns,
}

/// It never sleeps.
pub const HOG: Work = Work { run: Ns::MAX, sleep: 0 };

#[derive(Debug)]
struct Task {
    work: Work,
    /// Left of the current run.
    left: Ns,
    wakes_at: Option<Ns>,
}

/// The work of all entities, in the order in which they were added.
#[derive(Debug)]
pub struct Tasks {
    all: Vec<Task>,
    /// Until when each CPU's time is booked.
    since: Vec<Ns>,
    /// Time during which each CPU was not idle.
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

    /// The work of the next entity, which sleeps until it is woken.
    pub fn add(&mut self, work: Work) {
        self.all.push(Task { work, left: work.run, wakes_at: None });
    }

    /// All CPUs.
    pub fn cpus(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.since.len() as u32).map(CpuId)
    }

    /// A sleeper sleeps until then; `None`: it is awake, or sleeps for ever.
    pub fn wake_at(&mut self, e: EntId, at: Option<Ns>) {
        self.all[e.index()].wakes_at = at;
    }

    /// The end of a run, or of a sleep, that comes first.
    pub fn next_event(&self, now: Ns, current: impl Fn(CpuId) -> Option<EntId>) -> Ns {
        let running = self.cpus().filter_map(current);
        let ends = running.map(|e| now.saturating_add(self.all[e.index()].left));
        ends.chain(self.all.iter().filter_map(|task| task.wakes_at)).min().unwrap_or(Ns::MAX)
    }

    /// Brings runs and busy time up to now.
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

    /// Whether the run of `e` is over; if so its sleep begins.
    pub fn falls_asleep(&mut self, now: Ns, e: EntId) -> bool {
        let task = &mut self.all[e.index()];
        let over = task.left == 0;
        if over {
            task.left = task.work.run;
            task.wakes_at = Some(now + task.work.sleep);
        }
        over
    }

    /// How many entities there are.
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
/// If it is not.
#[track_caller]
pub fn assert_ratio(a: Ns, b: Ns, want: f64, percent: f64) {
    let got = a as f64 / b as f64;
    let off = (got / want - 1.0).abs() * 100.0;
    assert!(off <= percent, "{a} / {b} = {got:.4}, want {want:.4}: off by {off:.2} %");
}
