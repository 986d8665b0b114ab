//! VMs that start during the run, and views of single runs.

use super::calls::{self, Named};
use super::keys::ScenarioKeys;
use super::keys::storm::{StartText, StormKeys, ViewKeys, ViewKind};
use super::keys::workload::Kind;
use super::timeline::check_before_end;
use crate::diagnostic::{Collector, Span, nearest};
use crate::plan::{
    DensityPlan, Milestone, Ns, Plan, ProbePlan, StormPlan, Target, TaskPlan, ViewPlan, ViewStart,
    VmPlan,
};
use crate::toml_read::Placed;
use crate::toml_read::units::show;

/// The storms of a plan that has its VMs.
pub(crate) fn storms(
    keys: &ScenarioKeys,
    all: &[Named<'_>],
    host_tasks: &[TaskPlan],
    vms: &[VmPlan],
    errors: &Collector,
) -> Vec<StormPlan> {
    let mut storms: Vec<StormPlan> = Vec::new();
    errors.distinct(keys.storm.iter().map(|s| (s.name.value.0.as_str(), s.name.span)));
    for storm in &keys.storm {
        let Placed { value: label, span } = &storm.vm;
        let Some(vm) = keys.vm.iter().find(|vm| vm.name.value.0 == *label) else {
            let message = format!("there is no VM `{label}`");
            let help = nearest(label, "VMs", keys.vm.iter().map(|vm| &vm.name.value.0));
            errors.error_help(*span, message, help);
            continue;
        };
        let of_kind =
            |f: fn(&Kind) -> bool| vm.task.iter().any(|t| f(&t.0.kind) && t.0.common.enabled.value);
        let boots = of_kind(|kind| matches!(kind, Kind::Boot(_)));
        let desktops = vm.task.iter().any(|t| matches!(t.0.kind, Kind::Desktop(_)));
        if storm.next.value == Milestone::Login && !boots {
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
                score: storm.score.value,
                window_ns: storm.window.as_ref().map(|window| window.value.0),
            }
        });
        let servers = |key: &Option<Placed<String>>| match key {
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
                next: storm.next.value,
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

fn check_begin(keys: &ScenarioKeys, storm: &StormKeys, begin_ns: Ns, errors: &Collector) {
    let Some(start) = &storm.start else { return };
    let warmup_ns = keys.warmup.value.0;
    if begin_ns < warmup_ns {
        let help = format!("at least {}, or left out", show(warmup_ns));
        errors.error_help(start.span, "it begins before anything is measured", help);
    } else {
        check_before_end(begin_ns, start.span, warmup_ns + keys.duration.value.0, errors);
    }
}

/// The views of a plan that is otherwise complete.
pub(crate) fn views(keys: &ScenarioKeys, plan: &Plan, errors: &Collector) -> Vec<ViewPlan> {
    let view = |view: &ViewKeys| match view.kind.value {
        ViewKind::Scatter => {
            let Some(Placed { value: probe, span }) = &view.probe else {
                let help = "add `probe = ...`";
                errors.error_help(view.kind.span, "it is not said whose samples this shows", help);
                return None;
            };
            let known: Vec<&str> = names(&plan.probes);
            // A probe that is switched off has no samples, but can be named.
            if !known.contains(&probe.as_str()) && !keys.switches_off(probe) {
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

/// The storm with which a view begins; `None` if it is not given, or wrong.
fn storm_of(
    view: &ViewKeys,
    keys: &ScenarioKeys,
    plan: &Plan,
    number: u32,
    at: Span,
    errors: &Collector,
) -> Option<u32> {
    let storm = match (&view.storm, keys.storm.as_slice()) {
        (None, [only]) => only,
        (Some(name), all) => {
            let Some(found) = all.iter().find(|s| s.name.value.0 == name.value) else {
                let message = format!("there is no storm `{}`", name.value);
                let help = nearest(&name.value, "storms", all.iter().map(|s| &s.name.value.0));
                errors.error_help(name.span, message, help);
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
    let index = plan.storms.iter().position(|s| s.label == storm.vm.value)?;
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
