//! Applies a governor to this guest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use vcoop_policy::govern::{CpuTime, GovernorConfig, GovernorInput};

use crate::change::{Change, Changes, Target, UndoReport, is_gone};
use crate::contents::Contents;
use crate::cpus::{Cpus, show};
use crate::decider::Decider;
use crate::error::FoldError;
use crate::files::Roots;
use crate::journal::Journal;
use crate::layout::Layout;
use crate::mechanism::Mechanism;
use crate::metrics::Numbers;
use crate::pinned::forgets;
use crate::reason::{Steal, reason};
use crate::stat::{Stat, TICK_NS};

/// Longest time of reading the counters, so that the time they are valid for is known.
const MOST_READING: Duration = Duration::from_millis(5);
/// Most attempts: a read may be interrupted by preemption.
const MOST_READINGS: u32 = 3;

/// What a decision leads to.
#[derive(Debug)]
pub enum Mode {
    /// Nothing. Each look starts from all CPUs, because nothing changes: the decision is what would be done first.
    Dry,
    /// Changes are made, and undone at the end.
    Apply(Journal),
}

/// The changes for a width.
pub type Plan = Changes;

/// What a governor saw, and what it decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Time since the last look.
    pub elapsed_ns: u64,
    /// Time of the CPUs that were in use, together.
    pub time: CpuTime,
    /// Steal as the governor counts it, in hundredths of a percent: for `step` of the time of all CPUs, for
    /// `proportional` of the time that those in use wanted.
    pub steal_bp: u32,
    /// CPUs in use before.
    pub before: Cpus,
    /// CPUs in use from now on.
    pub after: Cpus,
    /// Why.
    pub why: String,
}

impl Decision {
    /// Whether other CPUs are in use than before.
    pub fn is_change(&self) -> bool {
        self.before != self.after
    }
}

/// Result of a look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// `None`: there was too little data to decide.
    pub decision: Option<Decision>,
    /// Messages for the user, each reported once.
    pub notes: Vec<String>,
}

/// A guest under a governor. All is undone when it is dropped.
#[derive(Debug)]
pub struct Fold {
    roots: Roots,
    by: Mechanism,
    config: GovernorConfig,
    mode: Mode,
    layout: Layout,
    decider: Decider,
    last: Stat,
    last_at: Instant,
    /// By CPU: time before `last_at` that its counters may still lack, in nanoseconds.
    late: BTreeMap<u32, u64>,
    /// Time of each CPU since the last look, in the governor's order of CPUs.
    since: Vec<Option<CpuTime>>,
    /// CPUs in use; in a dry run, those of its last decision.
    used: Cpus,
    /// Files that were changed from outside.
    foreign: BTreeSet<Target>,
    said: BTreeSet<String>,
    numbers: Numbers,
}

impl Fold {
    /// At full width. Nothing is changed yet.
    ///
    /// # Errors
    ///
    /// [`FoldError`]: the guest's files cannot be read, or CPUs cannot be avoided this way here.
    pub fn new(
        roots: Roots,
        by: Mechanism,
        config: GovernorConfig,
        mode: Mode,
        clock: impl Fn() -> Instant,
    ) -> Result<Self, FoldError> {
        let layout = Layout::read(&roots)?;
        by.check(&roots, &layout, matches!(mode, Mode::Apply(_)))?;
        Decider::check(&config, &roots)?;
        let decider = Decider::new(&config, &layout);
        let used = layout.all();
        let (last, last_at) = counters(&roots, clock)?;
        let mut fold = Self {
            roots,
            by,
            config,
            mode,
            decider,
            used,
            layout,
            last,
            last_at,
            late: BTreeMap::new(),
            since: Vec::new(),
            foreign: BTreeSet::new(),
            said: BTreeSet::new(),
            numbers: Numbers::default(),
        };
        fold.count();
        Ok(fold)
    }

    /// The guest's CPUs.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of CPUs in use at the narrowest width.
    pub fn narrowest(&self) -> u32 {
        self.layout.width_of(self.config.floor)
    }

    /// CPU time since the guest booted, as of the last look.
    pub fn since_boot(&self) -> CpuTime {
        self.last.sum()
    }

    /// Counters so far, for metrics.
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// Warnings for the user before it begins.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.layout.cores() == 1 {
            warnings.push("this guest has one core: there is nothing to fold".to_owned());
        }
        let boot = self.since_boot();
        if boot.steal_ns == 0 {
            warnings.push(
                "no steal since this guest booted: nobody competes, or the hypervisor does not tell"
                    .to_owned(),
            );
        }
        if self.by == Mechanism::Cpuset {
            warnings.push(
                "tasks of the root cgroup, which are kernel threads mostly, go on using all CPUs"
                    .to_owned(),
            );
        }
        if let Some((major, minor)) = forgets(&self.roots) {
            warnings.push(format!(
                "Linux {major}.{minor} forgets CPU affinities that programs set for themselves when \
                 their cpuset or the CPUs online change; since 6.2 it does not"
            ));
        }
        warnings
    }

    /// The changes for using these CPUs, from now.
    ///
    /// # Errors
    ///
    /// [`FoldError::Io`].
    pub fn plan(&self, used: &Cpus) -> Result<Plan, FoldError> {
        let nothing = Contents::default();
        let contents = match &self.mode {
            Mode::Dry => &nothing,
            Mode::Apply(journal) => &journal.contents,
        };
        let avoided = self.layout.avoided(used);
        let mut plan = self.by.changes(&self.roots, contents, used, &avoided)?;
        plan.changes.retain(|change| !self.foreign.contains(&change.target));
        plan.left.retain(|(target, _)| !self.foreign.contains(target));
        if !avoided.is_empty() {
            plan.changes.splice(0..0, self.by.prepare(&self.roots));
        }
        Ok(plan)
    }

    /// When to look next: an interval after the time `last` at which the last look was due, so that looks do not drift.
    /// If that is less than half an interval from now: an interval from now.
    pub fn next_look(&self, last: Instant, now: Instant) -> Instant {
        let every = Duration::from_nanos(self.config.interval_ns);
        let next = last + every;
        if next < now + every / 2 { now + every } else { next }
    }

    /// Looks at the counters, asks the governor, and makes the changes. Does nothing if the last look was less than
    /// half an interval ago: the time since is part of the next look.
    ///
    /// # Errors
    ///
    /// [`FoldError`]: the guest's files or the journal cannot be read or written, or CPUs cannot be avoided this way
    /// any more.
    pub fn look(&mut self, clock: impl Fn() -> Instant) -> Result<Evaluation, FoldError> {
        let mut look = Evaluation::default();
        if self.by == Mechanism::Hotplug && self.is_folded() {
            // Before the CPUs are compared: CPUs that others brought online are no longer ours.
            let plan = self.plan(&self.wanted())?;
            self.leave_to_others(&plan, &mut look.notes);
        }
        let offline = match &self.mode {
            Mode::Apply(journal) => journal.contents.cpus.clone(),
            Mode::Dry => Cpus::new(),
        };
        let layout = Layout::read(&self.roots)?;
        // Changes that could not be undone may have appeared since.
        self.by.check(&self.roots, &layout, false)?;
        if self.layout.differs(&layout, &offline) {
            self.start_anew(clock, &mut look)?;
            return Ok(look);
        }
        let (stat, now) = counters(&self.roots, clock)?;
        let elapsed_ns = now.saturating_duration_since(self.last_at).as_nanos();
        let elapsed_ns = u64::try_from(elapsed_ns).unwrap_or(u64::MAX);
        if stat.cpus.is_empty() || elapsed_ns < self.config.interval_ns / 2 {
            return Ok(look);
        }
        self.last_at = now;
        self.since.clear();
        let mut wild = false;
        for cpu in self.layout.order() {
            self.since.push(cpu.map(|cpu| {
                // One that is offline has no count, and one that was has none of before.
                let Some(&counters) = stat.cpus.get(&cpu) else { return CpuTime::default() };
                let before = self.last.cpus.insert(cpu, counters).unwrap_or(counters);
                let late_ns = self.late.entry(cpu).or_default();
                let (time, is_wild) = counters.since(before, elapsed_ns, late_ns);
                wild |= is_wild;
                time
            }));
        }
        if wild {
            let what = "/proc/stat counts more steal than time has passed, as after a migration";
            self.say(&mut look.notes, format!("{what}: such steal is left out"));
        }
        look.decision = Some(self.decide(elapsed_ns, &mut look.notes)?);
        self.count();
        Ok(look)
    }

    fn decide(&mut self, elapsed_ns: u64, notes: &mut Vec<String>) -> Result<Decision, FoldError> {
        if matches!(self.mode, Mode::Dry) {
            self.decider = Decider::new(&self.config, &self.layout);
        }
        let before = self.decider;
        let width = before.width();
        let seen = GovernorInput { elapsed_ns, cpus: &self.since, grain_ns: TICK_NS, grant: None };
        let used = seen.sum(width);
        let steal = Steal::new(self.config.kind, &seen, width);
        self.decider.on(&seen, &self.config, &self.roots, &self.layout);
        let mut after = self.wanted();
        let is_folded = self.decider.width() < self.layout.counted() || self.is_folded();
        // Also if the width stays, because there may be new cgroups.
        let mut refused = false;
        if matches!(self.mode, Mode::Apply(_)) && is_folded {
            refused = self.apply(notes)?;
            if refused || !self.foreign.is_empty() {
                after = self.in_use()?;
            }
        }
        let narrower = self.decider.width() < before.width();
        if refused && narrower && after == self.used && after != self.wanted() {
            // Folding further was refused: the governor goes back to its state before, which has the actual width.
            self.decider = before;
        }
        let why = reason(&before, &self.decider, &self.config, steal);
        let decision = Decision {
            elapsed_ns,
            time: used,
            steal_bp: steal.counted_bp,
            before: std::mem::replace(&mut self.used, after.clone()),
            after,
            why,
        };
        self.numbers.looks += 1;
        self.numbers.decisions += u64::from(decision.is_change());
        self.numbers.steal_ratio = f64::from(steal.counted_bp) / 10_000.0;
        Ok(decision)
    }

    /// The CPUs that the governor wants used.
    fn wanted(&self) -> Cpus {
        self.layout.used(self.decider.width())
    }

    /// The CPUs in use after changes were refused, or made from outside.
    fn in_use(&self) -> Result<Cpus, FoldError> {
        let Mode::Apply(journal) = &self.mode else { return Ok(self.wanted()) };
        self.by.in_use(&self.roots, &journal.contents, &self.wanted(), &self.layout.all())
    }

    fn is_folded(&self) -> bool {
        matches!(&self.mode, Mode::Apply(journal) if journal.contents.is_folded())
    }

    /// Applies the governor's width. True if a change was refused.
    fn apply(&mut self, notes: &mut Vec<String>) -> Result<bool, FoldError> {
        let folds = self.decider.width() < self.layout.counted();
        if let Some(prepare) = self.by.prepare(&self.roots) {
            self.lose_cpusets(notes);
            if folds && self.make(&[prepare], notes)? {
                // Without the controller there are no cpusets to change.
                return Ok(true);
            }
        }
        let plan = self.plan(&self.wanted())?;
        self.leave_to_others(&plan, notes);
        for (target, why) in plan.left {
            self.say(notes, format!("{target} is left alone: {why}"));
        }
        // Controllers were changed above, if that was needed.
        let changes: Vec<_> =
            plan.changes.into_iter().filter(|c| c.target != Target::Controllers).collect();
        self.make(&changes, notes)
    }

    /// Handles a controller that is not enabled. If there were cpusets, another program has disabled it, which drops
    /// their contents, ours and older ones. systemd does so when it sets controllers anew and no unit asks for this
    /// one; no program intends it.
    fn lose_cpusets(&mut self, notes: &mut Vec<String>) {
        let Mode::Apply(journal) = &mut self.mode else { return };
        let contents = &journal.contents;
        if contents.is_empty() {
            return;
        }
        let mut lost: Vec<Target> = contents.targets().into_iter().map(|(t, _)| t).collect();
        lost.push(Target::Controllers);
        journal.forget(&lost);
        let what = "cpuset was disabled by somebody else (systemd does, where no unit asks for it)";
        self.say(
            notes,
            format!("{}: {what}: enabled again while CPUs are avoided", Target::Controllers),
        );
    }

    /// Forgets files that were changed from outside.
    fn leave_to_others(&mut self, plan: &Plan, notes: &mut Vec<String>) {
        if let Mode::Apply(journal) = &mut self.mode {
            journal.forget(plan.gone.iter().chain(plan.foreign.iter().map(|(target, _)| target)));
        }
        for (target, now) in &plan.foreign {
            let now = if now.is_empty() { "empty" } else { now };
            self.say(notes, format!("{target} was set by somebody else to {now}: left alone"));
            self.foreign.insert(target.clone());
        }
    }

    /// Makes changes. True if one was refused.
    fn make(&mut self, changes: &[Change], notes: &mut Vec<String>) -> Result<bool, FoldError> {
        let Mode::Apply(journal) = &mut self.mode else { return Ok(false) };
        let roots = &self.roots;
        let mut refused = journal.make(changes, |change| change.make(roots))?;
        self.by.settle(roots, changes);
        refused.retain(|(_, e)| !is_gone(e));
        for (target, e) in &refused {
            self.numbers.refusals += 1;
            self.say(notes, format!("{target} was not changed: {e}"));
        }
        Ok(!refused.is_empty())
    }

    /// Starts again after the guest has got or lost CPUs.
    fn start_anew(
        &mut self,
        clock: impl Fn() -> Instant,
        look: &mut Evaluation,
    ) -> Result<(), FoldError> {
        look.notes.extend(self.undo()?.failed);
        self.layout = Layout::read(&self.roots)?;
        self.decider = Decider::new(&self.config, &self.layout);
        (self.last, self.last_at) = counters(&self.roots, clock)?;
        let all = self.layout.all();
        let before = std::mem::replace(&mut self.used, all.clone());
        look.notes.push(format!("the CPUs to use are {} now: starts anew", show(&all)));
        look.decision = Some(Decision {
            elapsed_ns: 0,
            time: CpuTime::default(),
            steal_bp: 0,
            before,
            after: all,
            why: "the guest's CPUs have changed".to_owned(),
        });
        self.count();
        Ok(())
    }

    fn say(&mut self, notes: &mut Vec<String>, text: String) {
        if self.said.insert(text.clone()) {
            notes.push(text);
        }
    }

    fn count(&mut self) {
        self.numbers.cpus = self.layout.all().len() as u32;
        self.numbers.width = self.used.len() as u32;
    }

    /// Undoes everything. What fails remains in the journal.
    ///
    /// # Errors
    ///
    /// [`FoldError::Io`]: the journal was not updated. All files were tried all the same.
    pub fn undo(&mut self) -> Result<UndoReport, FoldError> {
        match &mut self.mode {
            Mode::Dry => Ok(UndoReport::default()),
            Mode::Apply(journal) => journal.undo(&self.roots),
        }
    }
}

/// The counters, and when they were read. Repeats a read that took too long, because its time is not known.
fn counters(roots: &Roots, clock: impl Fn() -> Instant) -> Result<(Stat, Instant), FoldError> {
    let mut readings = 0;
    loop {
        let before = clock();
        let bytes = roots.stat().map_err(FoldError::io(roots.proc.join("stat")))?;
        let after = clock();
        readings += 1;
        let took = after.saturating_duration_since(before);
        if took <= MOST_READING || readings == MOST_READINGS {
            return Ok((Stat::parse(&bytes), before + took / 2));
        }
    }
}

impl Drop for Fold {
    fn drop(&mut self) {
        // A caller that needs the result calls `undo` before. The journal keeps failed changes.
        let _ = self.undo();
    }
}
