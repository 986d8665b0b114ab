//! The tables `[[storm]]` and `[[view]]`: VMs that come while the run goes on, and single runs seen closely.

use super::calls::{self, Named};
use super::keys::ScenarioKeys;
use super::workload::{Kind, Then};
use crate::diagnostic::{Collector, Span, nearest};
use crate::plan::{
    DensityPlan, Milestone, Ns, Plan, ProbePlan, Score, StormPlan, Target, TaskPlan, ViewPlan,
    ViewStart, VmPlan,
};
use crate::toml_read::table::table;
use crate::toml_read::units::{Period, Span1, Time, show};
use crate::toml_read::value::{Int, Name, Prose, choice};
use crate::toml_read::{At, Text};

choice! {
    /// What a VM of a storm reaches.
    pub(crate) enum MilestoneKind {
        /// Its vCPUs begin to run.
        Start = "start",
        /// Its boot program is done.
        Login = "login",
    }
}

impl MilestoneKind {
    fn resolve(self) -> Milestone {
        match self {
            Self::Start => Milestone::Start,
            Self::Login => Milestone::Login,
        }
    }
}

choice! {
    /// A statistic of response times.
    pub(crate) enum ScoreKind {
        /// 95 % quantile.
        P95 = "p95",
        /// Mean.
        Mean = "mean",
    }
}

table! {
    /// VMs created while the run goes on, batch by batch (a boot storm). For each, the toolstack is called
    /// once and then the backends; with the last answer its vCPUs may run (VMStart). A task of
    /// kind = "boot" in it ends with VMLogin.
    pub(crate) struct StormKeys {
        /// Name; `--set` and views refer to it.
        name: At<Name>,
        /// The VMs: all copies of this one.
        vm: At<Prose>,
        /// How many at a time.
        batch: At<Int<1, 1024>> = "1",
        /// What all VMs of a batch must have reached before the next batch begins.
        next: At<MilestoneKind> = "login",
        /// The next VM comes as soon as one has reached that, so that `batch` of them are on their way all
        /// the time, rather than batch after batch.
        rolling: At<bool> = "false",
        /// When the first batch begins, from the start of the warm-up. Default: at its end.
        start: Option<At<Time>>,
        /// Time from a batch's end to the next one's begin.
        gap: At<Time> = "0s",
        /// Server that is called for each VM (domain build): `host.LOAD` or `VM.TASK`; of several copies
        /// each in turn. Default: building takes no time.
        toolstack: Option<At<Prose>>,
        /// Calls of `backend` for each VM's devices, after the toolstack's.
        devices: At<Int<0, 1024>> = "0",
        /// Server that they call.
        backend: Option<At<Prose>>,
        /// Density: how many VMs are logged in before the response times of their tasks of kind =
        /// "desktop" pass this limit. Default: it is not asked.
        limit: Option<At<Span1>>,
        /// What is held against the limit.
        score: At<ScoreKind> = "p95",
        /// Actions count that begin within this time of a login. Default: until the next login.
        window: Option<At<Span1>>,
    }
}

/// When a view begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartText {
    /// At a time.
    Time(Ns),
    /// With a VM of a storm.
    Reached(Milestone, u32),
}

impl Text for StartText {
    const WHAT: &'static str =
        "a time (\"5s\"), or a VM of a storm: \"start 20\" or \"login 20\" for the twentieth";
    const PATTERN: &'static str = r"^\s*((start|login)\s+[0-9]+|[0-9]+(\.[0-9]+)?\s*\S+)\s*$";

    fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let milestone = match words.next() {
            Some("start") => Milestone::Start,
            Some("login") => Milestone::Login,
            _ => return Time::parse(text).map(|time| Self::Time(time.0)),
        };
        match (words.next().map(str::parse), words.next()) {
            (Some(Ok(number @ 1..)), None) => Ok(Self::Reached(milestone, number)),
            _ => Err(format!("`{}` does not say which VM, from 1", text.trim())),
        }
    }
}

choice! {
    /// A view.
    pub(crate) enum ViewKind {
        /// Every sample of a probe.
        Scatter = "scatter",
        /// Who ran when on a pCPU.
        Intervals = "intervals",
    }
}

table! {
    /// A view of single runs beside the series; in the result it is that of the first repeat.
    pub(crate) struct ViewKeys {
        /// What it shows.
        kind: At<ViewKind>,
        /// scatter: the series, as `[[probe]]` names it.
        probe: Option<At<Prose>>,
        /// scatter: most samples kept.
        most: At<Int<1, 10_000_000>> = "100_000",
        /// intervals: pCPU. Default: the first on which the VM of `at` runs from then on.
        pcpu: Option<At<Int<0, 1023>>>,
        /// intervals: when it begins: a time from the start of the warm-up, or "start 20", "login 20"
        /// for the twentieth VM of a storm.
        at: Option<At<StartText>>,
        /// intervals: the storm of `at`. Default: the only one.
        storm: Option<At<Prose>>,
        /// intervals: how long it goes on.
        length: At<Period> = "20ms",
    }
}

/// The storms of a plan, once its VMs are there.
pub(crate) fn storms(
    keys: &ScenarioKeys,
    all: &[Named<'_>],
    host_tasks: &[TaskPlan],
    vms: &[VmPlan],
    errors: &mut Collector<'_>,
) -> Vec<StormPlan> {
    let mut storms: Vec<StormPlan> = Vec::new();
    super::host::distinct(
        keys.storm.iter().map(|s| (s.name.value.0.as_str(), s.name.span)),
        errors,
    );
    for storm in &keys.storm {
        let At { value: Prose(label), span } = &storm.vm;
        let Some(vm) = keys.vm.iter().find(|vm| vm.name.value.0 == *label) else {
            let names: Vec<&str> = keys.vm.iter().map(|vm| vm.name.value.0.as_str()).collect();
            let message = format!("there is no VM `{label}`");
            errors.error_help(*span, message, nearest(label, "VMs", &names));
            continue;
        };
        let of_kind =
            |f: fn(&Kind) -> bool| vm.task.iter().any(|t| f(&t.0.kind) && t.0.common.enabled.value);
        let boots = of_kind(|kind| matches!(kind, Kind::Boot(_)));
        let desktops = vm.task.iter().any(|t| matches!(t.0.kind, Kind::Desktop(_)));
        if storm.next.value == MilestoneKind::Login && !boots {
            let help = "add a [[vm.task]] of kind = \"boot\", or write next = \"start\"";
            let message = format!("no VM `{label}` will ever log in: it has no boot program");
            errors.error_help(storm.next.span, message, help);
        }
        let begin_ns = storm.start.as_ref().map_or(keys.warmup.value.0, |start| start.value.0);
        check_begin(keys, storm, begin_ns, errors);
        let density = storm.limit.as_ref().map(|limit| {
            if !desktops {
                let help = "add a [[vm.task]] of kind = \"desktop\"";
                errors.error_help(limit.span, "nothing in the VM has a response time", help);
            }
            DensityPlan {
                limit_ns: limit.value.0,
                score: match storm.score.value {
                    ScoreKind::P95 => Score::P95,
                    ScoreKind::Mean => Score::Mean,
                },
                window_ns: storm.window.as_ref().map(|window| window.value.0),
            }
        });
        let mut servers = |key: &Option<At<Prose>>| match key {
            Some(server) => {
                let found =
                    calls::find(None, vm.enabled.value, server, all, host_tasks, vms, errors);
                let outside = |t: &Target| match t {
                    Target::Guest { vm, .. } => vms[*vm as usize].label != *label,
                    Target::Host(_) => true,
                };
                let found = found.unwrap_or_default();
                if found.iter().all(outside) {
                    return found;
                }
                let help = "name a server on the host or in another VM";
                errors.error_help(server.span, "a VM cannot build itself", help);
                Vec::new()
            }
            None => Vec::new(),
        };
        let (toolstack, backend) = (servers(&storm.toolstack), servers(&storm.backend));
        if storm.devices.value.get() > 0 && storm.backend.is_none() {
            let help = "add `backend = ...`";
            errors.error_help(storm.devices.span, "nobody sets these devices up", help);
        }
        if storms.iter().any(|other| other.label == *label) {
            errors.error(*span, format!("`{label}` comes in two storms"));
        }
        let copies = (0..).zip(vms).filter(|(_, vm)| vm.label == *label);
        let vms: Vec<u32> = copies.map(|(i, _)| i).collect();
        // Left out where its VM is.
        if !vms.is_empty() {
            storms.push(StormPlan {
                label: label.clone(),
                vms,
                batch: storm.batch.value.get32(),
                next: storm.next.value.resolve(),
                rolling: storm.rolling.value,
                begin_ns,
                gap_ns: storm.gap.value.0,
                toolstack,
                devices: storm.devices.value.get32(),
                backend,
                density,
            });
        }
    }
    storms
}

fn check_begin(keys: &ScenarioKeys, storm: &StormKeys, begin_ns: Ns, errors: &mut Collector<'_>) {
    let Some(start) = &storm.start else { return };
    let warmup_ns = keys.warmup.value.0;
    if begin_ns < warmup_ns {
        let help = format!("at least {}, or left out", show(warmup_ns));
        errors.error_help(start.span, "it begins before anything is measured", help);
    } else if begin_ns >= warmup_ns + keys.duration.value.0 {
        let end = show(warmup_ns + keys.duration.value.0);
        errors.error(start.span, format!("the run ends at {end}, before this"));
    }
}

/// The views of a plan that has everything else.
pub(crate) fn views(keys: &ScenarioKeys, plan: &Plan, errors: &mut Collector<'_>) -> Vec<ViewPlan> {
    let view = |view: &ViewKeys| match view.kind.value {
        ViewKind::Scatter => {
            let Some(At { value: Prose(probe), span }) = &view.probe else {
                let help = "add `probe = ...`";
                errors.error_help(view.kind.span, "it is not said whose samples this shows", help);
                return None;
            };
            let known: Vec<&str> = names(&plan.probes);
            // What is not enabled has no samples, but can be named.
            if !known.contains(&probe.as_str()) && !super::resolve::is_disabled(probe, keys) {
                let message = format!("there is no series `{probe}`");
                errors.error_help(*span, message, nearest(probe, "series", &known));
            }
            Some(ViewPlan::Scatter { probe: probe.clone(), most: view.most.value.get32() })
        }
        ViewKind::Intervals => {
            let pcpus = plan.host.sched.cpus();
            let pcpu = view.pcpu.as_ref().map(|pcpu| {
                if pcpu.value.get32() >= pcpus {
                    let help = format!("pCPUs go from 0 to {}", pcpus - 1);
                    errors.error_help(pcpu.span, "there is no such pCPU", help);
                }
                pcpu.value.get32()
            });
            let Some(at) = &view.at else {
                let help = "add `at = ...`";
                errors.error_help(view.kind.span, "it is not said when this begins", help);
                return None;
            };
            let at = match at.value {
                StartText::Time(ns) => {
                    if pcpu.is_none() {
                        let help = "add `pcpu = ...`";
                        errors.error_help(at.span, "it is not said which pCPU this shows", help);
                    }
                    ViewStart::Time(ns)
                }
                StartText::Reached(milestone, number) => {
                    let storm = storm_of(view, keys, plan, number, at.span, errors)?;
                    ViewStart::Reached { storm, milestone, number }
                }
            };
            Some(ViewPlan::Intervals { pcpu, at, length_ns: view.length.value.0 })
        }
    };
    keys.view.iter().filter_map(view).collect()
}

/// The storm that a view begins with; `None` where it is left out, or wrong.
fn storm_of(
    view: &ViewKeys,
    keys: &ScenarioKeys,
    plan: &Plan,
    number: u32,
    at: Span,
    errors: &mut Collector<'_>,
) -> Option<u32> {
    let storm = match (&view.storm, keys.storm.as_slice()) {
        (None, [only]) => only,
        (Some(name), all) => {
            let Some(found) = all.iter().find(|s| s.name.value.0 == name.value.0) else {
                let names: Vec<&str> = all.iter().map(|s| s.name.value.0.as_str()).collect();
                let message = format!("there is no storm `{}`", name.value.0);
                errors.error_help(name.span, message, nearest(&name.value.0, "storms", &names));
                return None;
            };
            found
        }
        (None, all) => {
            let help = if all.is_empty() { "add [[storm]]" } else { "add `storm = ...`" };
            errors.error_help(at, "it is not said which storm this is about", help);
            return None;
        }
    };
    let index = plan.storms.iter().position(|s| s.label == storm.vm.value.0)?;
    let vms = plan.storms[index].vms.len();
    if number as usize > vms {
        errors.error(at, format!("the storm has {vms} VMs"));
    }
    u32::try_from(index).ok()
}

fn names(probes: &[ProbePlan]) -> Vec<&str> {
    let mut names: Vec<&str> = probes.iter().map(|p| p.probe.as_str()).collect();
    names.dedup();
    names
}

/// Whether tasks that start at login never do in this VM, because its boot program goes on with
/// something else: they are left out.
pub(crate) fn never_logged_in(vm: &super::keys::VmKeys) -> bool {
    vm.task.iter().any(|task| match &task.0.kind {
        Kind::Boot(boot) => task.0.common.enabled.value && boot.then.value != Then::Tasks,
        _ => false,
    })
}
