//! Interval views: who ran when on one pCPU in a window.

use vcoop_model::plan::{Milestone, Plan, ViewPlan, ViewStart};
use vcoop_model::recording::{Intervals, Span};

use crate::attribution::track::NONE;
use crate::clock::Event;
use crate::queue::Ns;
use crate::world::World;

/// Most spans a view keeps: what comes later is not in it.
const MOST: usize = 100_000;

/// A view.
#[derive(Clone, Debug)]
struct View {
    at: ViewStart,
    length: Ns,
    /// VM whose first vCPU to run says which pCPU it is; [`NONE`] once that is known.
    follows: u32,
    pcpu: u32,
    from: Ns,
    /// [`NONE`]: nobody.
    who: u32,
    since: Ns,
    spans: Vec<(Ns, Ns, u32)>,
    stage: Stage,
}

/// `Waits -> [Looks ->] Open -> Done`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits,
    /// For the pCPU of its VM.
    Looks,
    Open,
    Done,
}

/// All interval views.
#[derive(Clone, Debug, Default)]
pub(crate) struct Views {
    views: Vec<View>,
    /// How many look or are open: the only thing a run without views pays for.
    pub(crate) open: u32,
}

impl Views {
    /// Those of a plan; with the times at which the ones that wait for a time begin.
    pub(crate) fn new(plan: &Plan) -> (Self, Vec<Option<Ns>>) {
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
        let time = |view: &View| match view.at {
            ViewStart::Time(at) => Some(at),
            ViewStart::Reached { .. } => None,
        };
        let times = views.iter().map(time).collect();
        (Self { views, open: 0 }, times)
    }
}

impl World<'_> {
    /// A view's time has come: it begins, or it ends.
    pub(crate) fn view_turns(&mut self, i: u32) {
        match self.views.views[i as usize].stage {
            Stage::Waits => self.view_opens(i),
            Stage::Looks | Stage::Open => {
                let view = &mut self.views.views[i as usize];
                view.ends(self.clock.now());
                view.stage = Stage::Done;
                self.views.open -= 1;
            }
            Stage::Done => {}
        }
    }

    fn view_opens(&mut self, i: u32) {
        let view = &mut self.views.views[i as usize];
        self.views.open += 1;
        view.from = self.clock.now();
        if view.pcpu == NONE {
            view.stage = Stage::Looks;
        } else {
            view.stage = Stage::Open;
            view.who = self.pcpus[view.pcpu as usize].current;
            view.since = self.clock.now();
        }
        self.clock.set(Event::Interval(i), self.clock.now() + view.length);
    }

    /// So many VMs of a storm have reached a milestone, the last one of them `vm`.
    pub(crate) fn views_reached(&mut self, s: u32, m: Milestone, n: u32, vm: u32) {
        for i in 0..self.views.views.len() as u32 {
            let view = &mut self.views.views[i as usize];
            let begins = ViewStart::Reached { storm: s, milestone: m, number: n };
            if view.stage != Stage::Waits || view.at != begins {
                continue;
            }
            if view.pcpu == NONE {
                // It may be running already.
                view.follows = vm;
                let first = self.vms[vm as usize].first;
                let vcpus = first..first + self.plan.vms[vm as usize].level.topology.cpus();
                let p = vcpus.map(|v| self.vcpus[v as usize].pcpu).find(|p| *p != NONE);
                view.pcpu = p.unwrap_or(NONE);
            }
            self.view_opens(i);
        }
    }

    /// Another thread gets a pCPU.
    #[cold]
    pub(crate) fn views_switch(&mut self, p: u32, next: u32) {
        let vcpu = if next == NONE { NONE } else { self.threads[next as usize].vcpu };
        let vm = if vcpu == NONE { NONE } else { self.vcpus[vcpu as usize].vm };
        for view in &mut self.views.views {
            if view.stage == Stage::Looks && vm != NONE && view.follows == vm {
                view.stage = Stage::Open;
                view.pcpu = p;
            }
            if view.stage == Stage::Open && view.pcpu == p {
                view.ends(self.clock.now());
                view.who = next;
                view.since = self.clock.now();
            }
        }
    }

    /// What the views saw until the end of the run.
    pub(crate) fn finish_views(&mut self, end: Ns) -> Vec<Intervals> {
        let warmup = self.plan.warmup_ns;
        let mut views = std::mem::take(&mut self.views.views);
        for view in &mut views {
            if view.stage == Stage::Open {
                view.ends(end);
            }
        }
        let of = |view: View| {
            let began = view.stage != Stage::Waits && view.pcpu != NONE;
            let span = |(from, until, who): &(Ns, Ns, u32)| Span {
                from_ns: from - view.from,
                until_ns: until - view.from,
                who: self.name_of(*who),
            };
            Intervals {
                pcpu: began.then_some(view.pcpu),
                from_ns: view.from.saturating_sub(warmup),
                until_ns: (view.from + view.length).min(end).saturating_sub(warmup),
                spans: view.spans.iter().map(span).collect(),
            }
        };
        views.into_iter().map(of).collect()
    }

    fn name_of(&self, thread: u32) -> String {
        let vcpu = self.threads[thread as usize].vcpu;
        match self.vcpus.get(vcpu as usize) {
            Some(v) => format!("{}/vcpu{}", self.plan.vms[v.vm as usize].name, v.cpu.0),
            None => format!("host.{}", self.plan.host_tasks[thread as usize].name),
        }
    }
}

impl View {
    /// Books who had the pCPU until now.
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
