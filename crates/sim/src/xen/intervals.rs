//! Interval views: which thread ran when on one pCPU, in a window.

use vcoop_model::plan::{Plan, ViewPlan, ViewStart};
use vcoop_model::recording::{Intervals, Span};

use crate::attribution::track::NONE;
use crate::clock::{Clock, Event};
use crate::queue::Ns;
use crate::xen::storm::MilestoneReached;

/// Most spans of a view; later ones are dropped.
const MOST: usize = 100_000;

/// A view.
#[derive(Clone, Debug)]
struct View {
    at: ViewStart,
    length: Ns,
    /// VM whose first vCPU to run determines the pCPU; [`NONE`] once that is known.
    follows: u32,
    pcpu: u32,
    from: Ns,
    /// Thread on the pCPU; [`NONE`]: none.
    who: u32,
    since: Ns,
    spans: Vec<(Ns, Ns, u32)>,
    stage: Stage,
}

/// `Waits -> [Looks ->] Open -> Done`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits,
    /// Waits for the pCPU of its VM.
    Looks,
    Open,
    Done,
}

/// All interval views.
#[derive(Clone, Debug, Default)]
pub(crate) struct Views {
    views: Vec<View>,
    /// Number of views that wait for a pCPU or are open: the only cost for a run without views.
    open: u32,
}

impl Views {
    /// The views of a plan.
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut views = Vec::new();
        for view in &plan.views {
            if let &ViewPlan::Intervals { pcpu, at, length_ns } = view {
                views.push(View {
                    at,
                    length: length_ns,
                    follows: NONE,
                    pcpu: pcpu.unwrap_or(NONE),
                    from: 0,
                    who: NONE,
                    since: 0,
                    spans: Vec::new(),
                    stage: Stage::Waits,
                });
            }
        }
        Self { views, open: 0 }
    }

    /// Number of views.
    pub(crate) fn len(&self) -> u32 {
        self.views.len() as u32
    }

    /// Schedules the begin of views that start at a time.
    pub(crate) fn start(&self, clock: &mut Clock) {
        for (i, view) in (0..).zip(&self.views) {
            if let ViewStart::Time(at) = view.at {
                clock.set(Event::Interval(i), at);
            }
        }
    }

    /// Whether any view needs switches of threads.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        self.open != 0
    }

    /// A view begins or ends. `current`: the thread on a pCPU.
    pub(crate) fn turn(&mut self, i: u32, current: impl Fn(u32) -> u32, clock: &mut Clock) {
        let view = &mut self.views[i as usize];
        match view.stage {
            Stage::Waits => self.open(i, current, clock),
            Stage::Looks | Stage::Open => {
                view.ends(clock.now());
                view.stage = Stage::Done;
                self.open -= 1;
            }
            Stage::Done => {}
        }
    }

    fn open(&mut self, i: u32, current: impl Fn(u32) -> u32, clock: &mut Clock) {
        let view = &mut self.views[i as usize];
        self.open += 1;
        view.from = clock.now();
        if view.pcpu == NONE {
            view.stage = Stage::Looks;
        } else {
            view.stage = Stage::Open;
            view.who = current(view.pcpu);
            view.since = clock.now();
        }
        clock.set(Event::Interval(i), clock.now() + view.length);
    }

    /// A VM of a storm has reached a milestone; on this pCPU, if it runs.
    pub(crate) fn reached(
        &mut self,
        reached: MilestoneReached,
        pcpu: Option<u32>,
        current: impl Fn(u32) -> u32,
        clock: &mut Clock,
    ) {
        let MilestoneReached { storm, milestone, number, vm } = reached;
        let begins = ViewStart::Reached { storm, milestone, number };
        for i in 0..self.len() {
            let view = &mut self.views[i as usize];
            if view.stage != Stage::Waits || view.at != begins {
                continue;
            }
            if view.pcpu == NONE {
                view.follows = vm;
                view.pcpu = pcpu.unwrap_or(NONE);
            }
            self.open(i, &current, clock);
        }
    }

    /// A pCPU switches to another thread, a vCPU of this VM or [`NONE`].
    pub(crate) fn switch(&mut self, p: u32, next: u32, vm: u32, now: Ns) {
        for view in &mut self.views {
            if view.stage == Stage::Looks && vm != NONE && view.follows == vm {
                view.stage = Stage::Open;
                view.pcpu = p;
            }
            if view.stage == Stage::Open && view.pcpu == p {
                view.ends(now);
                view.who = next;
                view.since = now;
            }
        }
    }

    /// The views up to the end of the run; `name` names threads.
    pub(crate) fn finish(
        self,
        warmup: Ns,
        end: Ns,
        name: impl Fn(u32) -> String,
    ) -> Vec<Intervals> {
        let of = |mut view: View| {
            if view.stage == Stage::Open {
                view.ends(end);
            }
            let began = view.stage != Stage::Waits && view.pcpu != NONE;
            let span = |(from, until, who): &(Ns, Ns, u32)| Span {
                from_ns: from - view.from,
                until_ns: until - view.from,
                who: name(*who),
            };
            Intervals {
                pcpu: began.then_some(view.pcpu),
                from_ns: view.from.saturating_sub(warmup),
                until_ns: (view.from + view.length).min(end).saturating_sub(warmup),
                spans: view.spans.iter().map(span).collect(),
            }
        };
        self.views.into_iter().map(of).collect()
    }
}

impl View {
    /// Books the thread on the pCPU until now.
    fn ends(&mut self, now: Ns) {
        if self.stage == Stage::Open
            && self.who != NONE
            && now > self.since
            && self.spans.len() < MOST
        {
            self.spans.push((self.since, now, self.who));
        }
    }
}

#[cfg(test)]
mod tests {
    use vcoop_model::plan::Milestone;

    use super::*;
    use crate::clock::Entities;
    use vcoop_testing::rig::builtin;

    fn views(pcpu: Option<u32>, at: ViewStart) -> (Views, Clock) {
        let mut plan = builtin("busy-host-1", &[], &[]).remove(0);
        plan.views = vec![ViewPlan::Intervals { pcpu, at, length_ns: 100 }];
        let clock = Clock::new(&Entities { pcpus: 2, intervals: 1, ..Entities::default() });
        (Views::new(&plan), clock)
    }

    fn seen(views: Views, end: Ns) -> (Option<u32>, Vec<(Ns, Ns, String)>) {
        let all = views.finish(0, end, |t| format!("t{t}")).remove(0);
        (all.pcpu, all.spans.into_iter().map(|s| (s.from_ns, s.until_ns, s.who)).collect())
    }

    #[test]
    fn a_view_shows_who_had_its_pcpu_while_it_was_open() {
        let (mut views, mut clock) = views(Some(1), ViewStart::Time(50));
        views.start(&mut clock);
        while let Some((at, Event::Interval(i))) = clock.next() {
            clock.advance(at);
            views.turn(i, |p| p + 10, &mut clock);
            if views.are_open() {
                views.switch(0, 3, NONE, 60);
                views.switch(1, 4, NONE, 70);
                views.switch(1, NONE, NONE, 90);
            }
        }
        assert!(!views.are_open());
        let spans = vec![(0, 20, "t11".to_owned()), (20, 40, "t4".to_owned())];
        assert_eq!(seen(views, 500), (Some(1), spans));
    }

    #[test]
    fn a_view_of_a_vm_looks_for_its_pcpu() {
        let at = ViewStart::Reached { storm: 0, milestone: Milestone::Start, number: 2 };
        let (mut views, mut clock) = views(None, at);
        let reached =
            |number| MilestoneReached { storm: 0, milestone: Milestone::Start, number, vm: 7 };
        views.reached(reached(1), None, |_| NONE, &mut clock);
        assert!(!views.are_open());
        views.reached(reached(2), None, |_| NONE, &mut clock);
        views.switch(0, 3, 6, 10);
        views.switch(1, 4, 7, 20);
        views.switch(1, 5, 6, 35);
        let spans = vec![(20, 35, "t4".to_owned()), (35, 60, "t5".to_owned())];
        assert_eq!(seen(views, 60), (Some(1), spans), "open when the run ends");
    }
}
