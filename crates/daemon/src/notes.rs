//! Notes about what a policy does on this host, for its VM.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use vcoop_model::plan::PolicyPlan;
use vcoop_policy::config::Means;
use vcoop_text::show;
use vcoop_vmm::{FairGroup, Level, VcpuThread, Vm, rations_real_time};

/// Processes that a note names.
const NAMED: usize = 3;

/// Notes about policies that are to be applied to a VM, one after the other.
pub fn notes(vm: &Vm, policies: &[&PolicyPlan]) -> Vec<String> {
    let vcpu = vm.vcpus.first();
    vcpu.map_or_else(Vec::new, |vcpu| notes_under(Path::new("/"), policies, vm.pid, vcpu))
}

/// As [`notes`], with `proc` and `sys` below `root`.
fn notes_under(root: &Path, policies: &[&PolicyPlan], pid: u32, vcpu: &VcpuThread) -> Vec<String> {
    let sets_nice = |of: &PolicyPlan| matches!(of.means(), Some(Means::Nice(_))) || of.repays();
    let leaves = |of: &PolicyPlan| {
        let above =
            matches!(of.means(), Some(Means::Fifo(_) | Means::Rr(_) | Means::Deadline { .. }));
        above && of.boosts()
    };
    let any = |is: fn(&PolicyPlan) -> bool| policies.iter().any(|of| is(of));
    let nice = any(sets_nice).then(|| nice_in_group(root, vcpu));
    let others = any(leaves).then(|| others_in_group(root, pid, vcpu));
    nice.into_iter().chain(others).flatten().collect()
}

/// A note for a policy that sets a nice value, if the vCPUs are in control groups: it counts within a group only.
fn nice_in_group(root: &Path, vcpu: &VcpuThread) -> Option<String> {
    let FairGroup::Control(groups) = FairGroup::of(root, vcpu.thread.tid) else { return None };
    Some(format!(
        "nice values, which this policy sets, count only between threads of one control group (vCPU {}: {})",
        vcpu.index,
        path(&groups)
    ))
}

/// A note for a policy that boosts by another scheduling class, if a vCPU competes with other processes in its
/// innermost group.
///
/// When a boost ends, the vCPU waits for the turn of its group, which has one weight for all of them, and in the group
/// it stands behind the others: a thread that leaves the fair class in its sleep keeps its debt to them. In a group of
/// its own it has the group's turn for itself, and owes nobody there.
fn others_in_group(root: &Path, pid: u32, vcpu: &VcpuThread) -> Option<String> {
    let group = FairGroup::of(root, vcpu.thread.tid);
    let beside = neighbours(root, &group, pid);
    if beside.is_empty() {
        return None;
    }
    let mut names: Vec<(&String, &usize)> = beside.iter().collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let named: Vec<&str> = names.iter().take(NAMED).map(|(name, _)| name.as_str()).collect();
    let more = if names.len() > NAMED { " and others" } else { "" };
    let (named, within) = (
        named.join(", "),
        match group {
            FairGroup::Control(groups) => format!("the control group {}", path(&groups)),
            FairGroup::Session(session) => format!("the session {}", session.name),
            FairGroup::Top => "the host's top group".to_owned(),
        },
    );
    let but = if rations_real_time(root) {
        ". The kernel refuses real-time boosts in it until its cpu.rt_runtime_us is not 0"
    } else {
        ""
    };
    Some(format!(
        "the VM shares {within} with {named}{more}: boosts can cost it CPU time while these want its CPUs, because \
         after a boost a vCPU stands behind them. A control group of the VM's own, as libvirt and `systemd-run \
         --scope -p CPUWeight=100` make it, prevents that{but}"
    ))
}

/// Control groups as a path.
fn path(groups: &[Level]) -> String {
    groups.iter().map(|level| &*level.name).collect::<Vec<_>>().join("/")
}

/// The names of other processes of a group, with their numbers. Without this process, kernel threads, and those that
/// have ended.
fn neighbours(root: &Path, group: &FairGroup, pid: u32) -> BTreeMap<String, usize> {
    let mut names = BTreeMap::new();
    let entries = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for other in pids.filter(|other| *other != pid && *other != std::process::id()) {
        let read = |file: &str| fs::read(root.join(format!("proc/{other}/{file}")));
        let lives = read("cmdline").is_ok_and(|line| !line.is_empty());
        if lives && FairGroup::of(root, other) == *group {
            let mut name = String::new();
            let comm = read("comm").unwrap_or_default();
            String::from_utf8_lossy(comm.trim_ascii()).chars().for_each(|c| show(c, &mut name));
            *names.entry(name).or_insert(0) += 1;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use vcoop_model::running_vm::RunningVm;
    use vcoop_testing::Tree;
    use vcoop_vmm::{Source, Thread, VcpuThread};

    use super::notes_under;
    use crate::policy::policy;

    fn vcpu(tid: u32) -> VcpuThread {
        let thread = Thread { tid, start_time: 0, comm: String::new() };
        VcpuThread { index: 0, kvm_id: None, thread, source: Source::ThreadName }
    }

    fn planned(name: &str, sets: &[&str]) -> vcoop_model::plan::PolicyPlan {
        let running = RunningVm { name: "web".to_owned(), vcpus: 1, pcpus: 1 };
        let sets: Vec<String> = sets.iter().map(|set| format!("policy.{name}.{set}")).collect();
        policy(&running, name, &sets).unwrap().policy
    }

    /// A tree with control groups that have the CPU controller.
    fn tree(groups: &[&str]) -> Tree {
        let tree = Tree::default();
        for group in groups {
            tree.put(&format!("sys/fs/cgroup/{group}/cpu.weight"), "100");
        }
        tree
    }

    /// A process; without a command line it is a thread of the kernel.
    fn process(tree: &Tree, pid: u32, comm: &str, group: &str) {
        tree.put(&format!("proc/{pid}/comm"), comm);
        tree.put(&format!("proc/{pid}/cgroup"), &format!("0::/{group}"));
        if comm != "kthread" {
            tree.put(&format!("proc/{pid}/cmdline"), comm);
        }
    }

    /// The notes with this text about these policies with these settings, for a VM with one vCPU.
    fn notes(tree: &Tree, tid: u32, policies: &[(&str, &[&str])], text: &str) -> Vec<String> {
        let plans: Vec<_> = policies.iter().map(|(name, sets)| planned(name, sets)).collect();
        let plans: Vec<_> = plans.iter().collect();
        let mut notes = notes_under(tree.root(), &plans, tid, &vcpu(tid));
        notes.retain(|note| note.contains(text));
        notes
    }

    /// The note about other processes, if there is one.
    fn others(tree: &Tree, tid: u32, name: &str, sets: &[&str]) -> Option<String> {
        notes(tree, tid, &[(name, sets)], "the VM shares ").pop()
    }

    #[test]
    fn nice_values_within_a_control_group_are_told() {
        let tree = tree(&["machine.slice", "machine.slice/web", "machine.slice/web/vcpu0"]);
        process(&tree, 7, "CPU 0/KVM", "machine.slice/web/vcpu0");
        process(&tree, 8, "CPU 0/KVM", "");
        let note = |tid, policy: &str, set: &str| {
            notes(&tree, tid, &[(policy, &[set])], "nice values").pop()
        };
        let told = note(7, "static", "means=\"nice -20\"").unwrap();
        assert!(told.contains("(vCPU 0: machine.slice/web/vcpu0)"), "{told}");
        assert_eq!(note(8, "static", "means=\"nice -20\""), None, "it is in no group");
        assert_eq!(note(7, "static", "means=\"fifo 1\""), None);
        assert!(note(7, "wake-boost", "repay=true").is_some());
    }

    #[test]
    fn processes_in_the_group_of_a_vcpu_are_told() {
        let tree = tree(&["user.slice", "user.slice/web"]);
        // One without the controller does not divide its group.
        process(&tree, 7, "qemu", "user.slice/session.scope");
        for (pid, comm) in [(20, "cc1"), (21, "cc1"), (22, "make"), (23, "sh"), (24, "ninja")] {
            process(&tree, pid, comm, "user.slice");
        }
        process(&tree, 30, "far", "");
        process(&tree, 8, "qemu", "user.slice/web");
        let note = |tid, name: &str, sets: &[&str]| others(&tree, tid, name, sets);
        let told = note(7, "wake-boost", &[]).unwrap();
        assert!(told.contains("group user.slice with cc1, make, ninja and others:"), "{told}");
        assert!(told.ends_with("prevents that"), "{told}");
        let several = [("static", &[][..]), ("wake-boost", &[]), ("wake-boost", &["run=\"1ms\""])];
        assert_eq!(notes(&tree, 7, &several, "the VM shares "), [told], "it is said once");
        assert_eq!(note(8, "wake-boost", &[]), None, "it has one of its own");
        for (name, sets) in [
            ("static", &[][..]),
            ("wake-boost", &["means=\"slice 1ms\""]),
            ("wake-boost", &["means=\"nice -5\""]),
        ] {
            assert_eq!(note(7, name, sets), None, "{name} {sets:?} leaves no class, or for good");
        }
    }

    /// Groups of version 1 of a kernel with RT group scheduling.
    #[test]
    fn what_a_group_of_its_own_needs_is_told() {
        let tree = Tree::default();
        for file in ["cpu.rt_runtime_us", "web/cpu.rt_runtime_us"] {
            tree.put(&format!("sys/fs/cgroup/cpu/{file}"), "0");
        }
        tree.put("sys/fs/cgroup/cpu/web/cpu.shares", "1024");
        for (pid, comm) in [(7, "qemu"), (20, "make")] {
            process(&tree, pid, comm, "");
            tree.put(&format!("proc/{pid}/cgroup"), "1:cpu:/web\n0::/");
        }
        let told = others(&tree, 7, "wake-boost", &[]).unwrap();
        assert!(told.contains("the control group web with make:"), "{told}");
        assert!(told.contains("until its cpu.rt_runtime_us is not 0"), "{told}");
    }

    #[test]
    fn without_control_groups_sessions_divide_the_time() {
        let tree = tree(&[]);
        for (pid, comm, session) in
            [(7, "qemu", 1), (20, "make", 1), (21, "far", 2), (22, "kthread", 1)]
        {
            process(&tree, pid, comm, "");
            tree.put(&format!("proc/{pid}/autogroup"), &format!("/autogroup-{session} nice 0"));
        }
        let note = || others(&tree, 7, "wake-boost", &[]).unwrap();
        assert!(note().contains("shares the host's top group with far, make:"), "{}", note());
        tree.put("proc/sys/kernel/sched_autogroup_enabled", "1");
        assert!(note().contains("shares the session autogroup-1 with make:"), "{}", note());
    }
}
