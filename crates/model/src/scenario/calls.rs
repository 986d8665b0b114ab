//! Links callers to servers: from the names of servers to tasks of the plan.
//!
//! Callers and servers can be anywhere, so this runs after the host and all VMs have their tasks.

use super::keys::VmKeys;
use super::keys::workload::{Kind, Workload};
use crate::diagnostic::{Collector, nearest};
use crate::plan::{Target, TaskPlan, VmPlan};
use crate::toml_read::Placed;

/// Placeholder for the server of a call before [`link`] has found it.
pub(crate) const UNKNOWN: Target = Target::Host(u32::MAX);

/// The server that a workload names.
fn server_of(workload: &Workload) -> Option<&Placed<String>> {
    match &workload.kind {
        Kind::Ping(keys) => Some(&keys.server),
        Kind::Bursty(keys) => keys.server.as_ref(),
        Kind::Boot(keys) => keys.server.as_ref(),
        Kind::Desktop(keys) => keys.server.as_ref(),
        Kind::Client(keys) => keys.server.as_ref(),
        _ => None,
    }
}

/// A workload of the scenario, enabled or not.
#[derive(Debug)]
pub(crate) struct Named<'k> {
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

/// All workloads of a scenario.
pub(crate) fn all<'k>(loads: &[&'k Workload], vm_keys: &'k [VmKeys]) -> Vec<Named<'k>> {
    let on_host =
        loads.iter().map(|w| Named { level: "host", workload: w, enabled: w.common.enabled.value });
    let in_guests = vm_keys.iter().flat_map(|vm| {
        vm.task.iter().map(|task| Named {
            level: &vm.name.value.0,
            workload: &task.0,
            enabled: vm.enabled.value && vm.runs(&task.0),
        })
    });
    on_host.chain(in_guests).collect()
}

/// Sets the servers in the programs that call them: with several callers and several servers, the `n`th calls the `n`th
/// modulo their number, and a caller one in its own VM if there is one.
pub(crate) fn link(
    all: &[Named<'_>],
    host_tasks: &mut [TaskPlan],
    vms: &mut [VmPlan],
    errors: &Collector,
) {
    for caller in all {
        let Some(server) = server_of(caller.workload) else { continue };
        let own = Some(caller.workload);
        let found = find(own, caller.enabled, server, all, host_tasks, vms, errors);
        let Some(servers) = found else { continue };
        let label = &caller.workload.common.name.value.0;
        let mut turn = servers.iter().cycle();
        let mut put_all = |tasks: &mut [TaskPlan], vm: Option<u32>| {
            let here = |t: &&Target| matches!(t, Target::Guest { vm: at, .. } if Some(*at) == vm);
            let mut beside = servers.iter().filter(here).cycle().peekable();
            for task in tasks.iter_mut().filter(|task| task.label == *label) {
                let server = beside.next().or_else(|| turn.next());
                server.iter().for_each(|server| task.program.retarget(&|_| **server));
            }
        };
        if caller.level == "host" {
            put_all(host_tasks, None);
        }
        for (i, vm) in (0..).zip(vms.iter_mut()).filter(|(_, vm)| vm.label == caller.level) {
            put_all(&mut vm.tasks, Some(i));
        }
    }
}

/// The tasks behind a name; `None` if the call is impossible, or not needed because the caller is left out. `caller` is
/// `None` for a storm.
pub(crate) fn find(
    caller: Option<&Workload>,
    enabled: bool,
    server: &Placed<String>,
    all: &[Named<'_>],
    host_tasks: &[TaskPlan],
    vms: &[VmPlan],
    errors: &Collector,
) -> Option<Vec<Target>> {
    let Placed { value: text, span } = server;
    // `VM/3.TASK/1` is a task of `VM.TASK`.
    let (level, task) = text.split_once('.').unwrap_or((text, ""));
    let base = |name: &str| name.split('/').next().unwrap_or(name).to_owned();
    let whole = format!("{}.{}", base(level), base(task));
    let Some(named) = all.iter().find(|n| n.name() == whole) else {
        let names: Vec<String> = all.iter().filter(|n| n.serves()).map(Named::name).collect();
        let help = if names.is_empty() {
            "add a task of kind = \"server\"".to_owned()
        } else {
            nearest(text, "servers", &names)
        };
        errors.error_help(*span, format!("there is no task `{text}` to call"), help);
        return None;
    };
    if caller.is_some_and(|caller| std::ptr::eq(named.workload, caller)) {
        errors.error_help(*span, "it would call itself", "name a task of kind = \"server\"");
        return None;
    }
    if !named.serves() {
        let help = "only tasks of kind = \"server\" answer calls";
        errors.error_help(*span, format!("`{whole}` does not serve"), help);
        return None;
    }
    if !enabled {
        return None;
    }
    if !named.enabled {
        let message = format!("`{whole}` is not enabled: the call would never be answered");
        errors.error_help(*span, message, "enable both or none of the two");
        return None;
    }
    let label = &named.workload.common.name.value.0;
    let is_named = |t: &TaskPlan| t.label == *label && (task == *label || task == t.name);
    let mut servers = Vec::new();
    if named.level == "host" {
        let found = (0..).zip(host_tasks).filter(|(_, t)| is_named(t));
        servers.extend(found.map(|(i, _)| Target::Host(i)));
    }
    let is_meant = |vm: &VmPlan| vm.label == named.level && (level == vm.label || level == vm.name);
    for (vm, plan) in (0..).zip(vms).filter(|(_, vm)| is_meant(vm)) {
        let found = (0..).zip(&plan.tasks).filter(|(_, t)| is_named(t));
        servers.extend(found.map(|(task, _)| Target::Guest { vm, task }));
    }
    if servers.is_empty() {
        let message = format!("there is no copy `{text}`");
        let count = named.workload.common.count.value.get();
        let help = format!("`{whole}` has {count}; leave out the number to call them in turn");
        errors.error_help(*span, message, help);
        return None;
    }
    Some(servers)
}
