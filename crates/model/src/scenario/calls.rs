//! Who calls whom: from the names of servers to tasks of the plan.
//!
//! Callers and servers can be anywhere, so this is done when the host and all VMs have their tasks.

use super::keys::VmKeys;
use super::workload::{Kind, Workload};
use crate::diagnostic::{Collector, nearest};
use crate::plan::{Phase, Program, Target, TaskPlan, VmPlan};
use crate::toml_read::At;
use crate::toml_read::value::Prose;

/// The server of a call before [`link`] has found it.
pub(crate) const UNKNOWN: Target = Target::Host(u32::MAX);

/// The server that a workload names.
fn server_of(workload: &Workload) -> Option<&At<Prose>> {
    match &workload.kind {
        Kind::Ping(keys) => Some(&keys.server),
        Kind::Bursty(keys) => keys.server.as_ref(),
        _ => None,
    }
}

/// A workload of the scenario, whether it is switched on or not.
struct Named<'k> {
    level: &'k str,
    workload: &'k Workload,
    enabled: bool,
}

impl Named<'_> {
    fn name(&self) -> String {
        format!("{}.{}", self.level, self.workload.common.name.value.0)
    }

    fn serves(&self) -> bool {
        matches!(self.workload.kind, Kind::Server(_))
    }
}

/// Puts the servers into the programs that call them.
pub(crate) fn link(
    loads: &[&Workload],
    vm_keys: &[VmKeys],
    host_tasks: &mut [TaskPlan],
    vms: &mut [VmPlan],
    errors: &mut Collector<'_>,
) {
    let on_host =
        loads.iter().map(|w| Named { level: "host", workload: w, enabled: w.common.enabled.value });
    let in_guests = vm_keys.iter().flat_map(|vm| {
        vm.task.iter().map(|task| Named {
            level: &vm.name.value.0,
            workload: &task.0,
            enabled: vm.enabled.value && task.0.common.enabled.value,
        })
    });
    let all: Vec<Named<'_>> = on_host.chain(in_guests).collect();
    for caller in &all {
        let Some(server) = server_of(caller.workload) else { continue };
        let Some(servers) = find(caller, server, &all, host_tasks, vms, errors) else { continue };
        let label = &caller.workload.common.name.value.0;
        let tasks = match vms.iter_mut().find(|vm| vm.name == caller.level) {
            Some(vm) => vm.tasks.as_mut_slice(),
            None => &mut *host_tasks,
        };
        let copies = tasks.iter_mut().filter(|task| task.label == *label);
        for (task, server) in copies.zip(servers.iter().cycle()) {
            put(&mut task.program, *server);
        }
    }
}

fn put(program: &mut Program, target: Target) {
    match program {
        Program::Ping { server, .. } => *server = target,
        Program::Cycle { phases } => {
            for phase in phases {
                if let Phase::Call { server, .. } = phase {
                    *server = target;
                }
            }
        }
        _ => {}
    }
}

/// The tasks behind a name; `None` where the call cannot be made, or need not because the caller is
/// left out.
fn find(
    caller: &Named<'_>,
    server: &At<Prose>,
    all: &[Named<'_>],
    host_tasks: &[TaskPlan],
    vms: &[VmPlan],
    errors: &mut Collector<'_>,
) -> Option<Vec<Target>> {
    let At { value: Prose(text), span } = server;
    let whole = text.split('/').next().unwrap_or(text);
    let Some(named) = all.iter().find(|n| n.name() == whole) else {
        let names: Vec<String> = all.iter().filter(|n| n.serves()).map(Named::name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let help = if names.is_empty() {
            "add a task of kind = \"server\"".to_owned()
        } else {
            nearest(whole, "servers", &names)
        };
        errors.error_help(*span, format!("there is no task `{whole}` to call"), help);
        return None;
    };
    if std::ptr::eq(named.workload, caller.workload) {
        errors.error_help(*span, "it would call itself", "name a task of kind = \"server\"");
        return None;
    }
    if !named.serves() {
        let help = "only tasks of kind = \"server\" answer calls";
        errors.error_help(*span, format!("`{whole}` does not serve"), help);
        return None;
    }
    if !caller.enabled {
        return None;
    }
    if !named.enabled {
        let message = format!("`{whole}` is not enabled: the call would never be answered");
        errors.error_help(*span, message, "enable both or none of the two");
        return None;
    }
    let index = |i: usize| u32::try_from(i).unwrap_or(u32::MAX);
    let (vm, tasks) = match vms.iter().position(|vm| vm.name == named.level) {
        Some(vm) => (Some(index(vm)), vms[vm].tasks.as_slice()),
        None => (None, host_tasks),
    };
    let label = &named.workload.common.name.value.0;
    let is_named = |t: &TaskPlan| text == whole || *text == format!("{}.{}", named.level, t.name);
    let servers: Vec<Target> = (0..)
        .zip(tasks)
        .filter(|(_, task)| task.label == *label && is_named(task))
        .map(|(task, _)| vm.map_or(Target::Host(task), |vm| Target::Guest { vm, task }))
        .collect();
    if servers.is_empty() {
        let count = named.workload.common.count.value.get();
        let message = format!("there is no copy `{text}`");
        let help = format!("`{whole}` has {count}; leave out the number to call them in turn");
        errors.error_help(*span, message, help);
        return None;
    }
    Some(servers)
}
