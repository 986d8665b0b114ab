//! Curves over repeats, and the views of the first one.

use vcoop_model::plan::{Plan, StormPlan, ViewPlan, ViewStart};
use vcoop_model::recording::{Mark, MarkKind, Scatter};

use super::{detail, mean_of, usable};
use crate::params;
use crate::repeat_summary::RepeatSummary;
use crate::result::{
    Curve, CurvePoint, InUseSeries, IntervalView, Place, PolicyEventSeries, ScatterView, SpanView,
    ViewMark,
};
use crate::rounding::us;
use crate::runner::PlanRuns;

/// Content of a document besides series.
#[derive(Debug, Default)]
pub(super) struct Views {
    pub(super) curves: Vec<Curve>,
    pub(super) scatters: Vec<ScatterView>,
    pub(super) intervals: Vec<IntervalView>,
    pub(super) policy_events: Vec<PolicyEventSeries>,
    pub(super) in_use: Vec<InUseSeries>,
}

impl Views {
    /// Adds the views of a plan's runs.
    pub(super) fn add(&mut self, plan: &Plan, run: &PlanRuns) {
        let place = || Place {
            backend: run.backend.to_owned(),
            policy: plan.policy_name.clone(),
            params: params::short(&plan.params),
            cell: plan.params.clone(),
        };
        let repeats: Vec<&RepeatSummary> =
            usable(plan, run).into_iter().map(|(_, digest)| digest).collect();
        if repeats.is_empty() {
            return;
        }
        self.policy_events.extend(detail::policy_events(place, &repeats));
        self.in_use.extend(detail::in_use(place, &repeats));
        for (index, storm) in (0..).zip(&plan.storms) {
            for (kind, event) in [(MarkKind::Started, "start"), (MarkKind::LoggedIn, "login")] {
                self.curves.extend(curve(plan, storm, index, kind, &repeats).map(
                    |(reached, points)| Curve {
                        place: place(),
                        vm: storm.label.clone(),
                        event: event.to_owned(),
                        begin_s: us(storm.begin_ns.saturating_sub(plan.warmup_ns)) / 1e6,
                        planned: u32::try_from(storm.vms.len()).unwrap_or(u32::MAX),
                        reached,
                        points,
                    },
                ));
            }
        }
        let Some(Some(RepeatSummary { recording: first, .. })) = run.repeats.first() else {
            return;
        };
        for scatter in &first.scatters {
            self.scatters.push(scattered(place(), plan, scatter, &first.marks));
        }
        let starts = plan.views.iter().filter_map(|view| match view {
            ViewPlan::Intervals { at, .. } => Some(at),
            ViewPlan::Scatter { .. } => None,
        });
        for (at, view) in starts.zip(&first.intervals) {
            let spans = view.spans.iter().map(|span| SpanView {
                from_us: us(span.from_ns),
                until_us: us(span.until_ns),
                who: span.who.clone(),
            });
            self.intervals.push(IntervalView {
                place: place(),
                at: begin(plan, at),
                pcpu: view.pcpu,
                from_us: us(view.from_ns),
                until_us: us(view.until_ns),
                spans: spans.collect(),
            });
        }
    }
}

/// How many VMs reached the milestone in each repeat, and when; `None` if none can.
fn curve(
    plan: &Plan,
    storm: &StormPlan,
    index: u32,
    kind: MarkKind,
    repeats: &[&RepeatSummary],
) -> Option<(Vec<u32>, Vec<CurvePoint>)> {
    let boots = |vm: &u32| {
        let boot = |t: &vcoop_model::plan::TaskPlan| {
            matches!(t.program, vcoop_model::plan::Program::Boot { .. })
        };
        plan.vms[*vm as usize].tasks.iter().any(boot)
    };
    if kind == MarkKind::LoggedIn && !storm.vms.iter().any(boots) {
        return None;
    }
    let begin_ns = storm.begin_ns.saturating_sub(plan.warmup_ns);
    let times: Vec<Vec<f64>> = repeats
        .iter()
        .map(|digest| {
            let marks =
                digest.recording.marks.iter().filter(|m| m.storm == index && m.kind == kind);
            marks.map(|m| m.at_ns.saturating_sub(begin_ns) as f64 / 1e9).collect()
        })
        .collect();
    let reached = times.iter().map(|t| u32::try_from(t.len()).unwrap_or(u32::MAX)).collect();
    let all = times.iter().map(Vec::len).min().unwrap_or(0);
    let point = |(vm, n): (u32, usize)| {
        let values: Vec<f64> = times.iter().map(|t| t[n]).collect();
        let (mean_s, mean_s_ci95) = mean_of(&values, None);
        CurvePoint { vm, mean_s, mean_s_ci95 }
    };
    Some((reached, (1..).zip(0..all).map(point).collect()))
}

fn scattered(place: Place, plan: &Plan, scatter: &Scatter, marks: &[Mark]) -> ScatterView {
    let event = |mark: &Mark| match mark.kind {
        MarkKind::Requested => None,
        MarkKind::Started => Some("start"),
        MarkKind::LoggedIn => Some("login"),
    };
    let mark = |mark: &Mark| {
        let storm = plan.storms.get(mark.storm as usize)?;
        Some(ViewMark {
            at_us: us(mark.at_ns),
            vm: storm.label.clone(),
            number: mark.vm,
            event: event(mark)?.to_owned(),
        })
    };
    ScatterView {
        place,
        probe: scatter.probe.clone(),
        due_us: scatter.points.iter().map(|(due, _)| us(*due)).collect(),
        latency_us: scatter.points.iter().map(|(_, latency)| us(*latency)).collect(),
        dropped: scatter.dropped,
        marks: marks.iter().filter_map(mark).collect(),
    }
}

/// Begin of a view, as in the scenario.
fn begin(plan: &Plan, at: &ViewStart) -> String {
    match at {
        ViewStart::Time(ns) => format!("{} us", us(*ns)),
        ViewStart::Reached { storm, milestone, number } => {
            let of = match plan.storms.as_slice() {
                [_] => String::new(),
                storms => {
                    let label = storms.get(*storm as usize).map(|storm| storm.label.as_str());
                    format!(" of {}", label.unwrap_or_default())
                }
            };
            format!("{} {number}{of}", milestone.name())
        }
    }
}
