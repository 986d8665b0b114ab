//! How to apply a policy to running VMs: commands for the host, or why it is only for simulation.

use serde::{Deserialize, Serialize};
use vcoop_model::capture::NoCaptures;
use vcoop_model::plan::virt::{GuestIdle, GuestTimer, IpiPath, Virt};
use vcoop_model::plan::{HostSched, Plan, PolicyPlan, TaskPlan, VmPlan};
use vcoop_model::running_vm::RunningVm;
use vcoop_model::scenario::{POLICIES, Scenario, duration_text as time};
use vcoop_policy::config::{AdvanceConfig, Budget, Means};
use vcoop_policy::govern::Kind;
use vcoop_text::{about, quoted};
use vcoop_threads::cpu_list;

/// Commands for a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// Policy.
    pub policy: String,
    /// Lines with a comment after `#`. `VM` and `TID` stand for a VM's name and for the thread of a vCPU, which `vcoop
    /// vms` shows.
    pub lines: Vec<String>,
    /// Parts of it that can only be simulated, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub simulation_only: Vec<String>,
}

/// Name of the VM in lines for any VM.
const ANY: &str = "VM";

/// How to apply the policy of a plan to a VM, beyond what the plan without it (`base`) has.
pub fn deploy(plan: &Plan, base: Option<&Plan>, vm: Option<&str>) -> Deployment {
    let mut found = Deployment { policy: plan.policy_name.clone(), ..Deployment::default() };
    let foreign = match plan.host.sched {
        HostSched::Linux(_) => None,
        HostSched::Credit1(_) => Some("Xen's"),
        HostSched::Pool(_) => Some("PowerVM's"),
    };
    if let Some(whose) = foreign {
        let why = format!("its host has {whose} scheduler, and vcoop applies nothing there");
        found.simulation_only.push(why);
        return found;
    }
    let word = (0..plan.vms.len())
        .find_map(|i| governor(plan, base, i).filter(|kind| kind.is_the_hosts()));
    attach(&plan.policy, word, vm.unwrap_or(ANY), &mut found);
    let (plain, pcpus) = (Virt::default(), plan.host.sched.cpus());
    for (i, own) in plan.vms.iter().enumerate() {
        let before = base.and_then(|base| base.vms.get(i));
        let name = if plan.vms.len() > 1 { &own.name } else { vm.unwrap_or(ANY) };
        pin(name, own, before, pcpus, &mut found);
        virtualise(&own.virt, before.map_or(&plain, |vm| &vm.virt), &mut found);
        if let Some(kind) = governor(plan, base, i) {
            govern(plan, i, kind, vm.unwrap_or(ANY), &mut found);
        }
    }
    place_loads(plan, base, vm.unwrap_or(ANY), &mut found);
    for lines in [&mut found.lines, &mut found.simulation_only] {
        let mut seen = std::collections::BTreeSet::new();
        lines.retain(|line| seen.insert(line.clone()));
    }
    found
}

/// The same for each built-in policy.
pub fn builtin() -> Vec<Deployment> {
    POLICIES.iter().filter_map(|name| Some(deploy(&plain(name)?, None, None))).collect()
}

/// A built-in policy with its defaults, for a VM of one vCPU.
fn plain(policy: &str) -> Option<Plan> {
    let living = RunningVm { name: "vm".to_owned(), vcpus: 1, pcpus: 2 };
    let mut text = living.scenario(&[policy.to_owned()]);
    if policy == "isolated" {
        text += "\n[[load]]\nname = \"load\"\nkind = \"hog\"\n";
    }
    if policy == "ratelimit-auto" {
        text += "\n[host.sched]\nclass = \"credit1\"\n";
    }
    let scenario = Scenario::parse("builtin", &text, &[], &NoCaptures).ok()?;
    scenario.plans(None).ok()?.into_iter().next()
}

/// Lines for boosts: `vcoop attach`, and commands for permanent means. `word`: the governor whose word the host gives.
fn attach(policy: &PolicyPlan, word: Option<Kind>, vm: &str, found: &mut Deployment) {
    if matches!(policy, PolicyPlan::RatelimitAuto(_)) {
        let why = "ratelimits are of Xen's scheduler, and vcoop applies nothing there";
        found.simulation_only.push(why.to_owned());
    }
    let Some(name) = attached(policy) else { return };
    let Some(usual) = plain(name).map(|plan| keys(&plan.policy)) else { return };
    if name == "dynamic" {
        let driver = format!("vcoop vms --how {} # the guest needs vcoop's driver", quoted(vm));
        found.lines.push(driver);
    }
    let mut options = format!("--policy {name}");
    for (key, value) in keys(policy).into_iter().filter(|own| !usual.contains(own)) {
        options += &format!(" --set {}", quoted(&format!("policy.{name}.{key}={value}")));
    }
    if let Some(kind) = word {
        options += &format!(" --set policy.{name}.governor={}", kind.name());
    }
    found.lines.push(about("vcoop attach", vm, &options));
    if let PolicyPlan::Static { means } = policy {
        found.lines.extend(by_hand(*means));
    }
}

/// The name of the policy for `vcoop attach`, if it boosts.
fn attached(policy: &PolicyPlan) -> Option<&'static str> {
    match policy {
        PolicyPlan::Static { .. } => Some("static"),
        PolicyPlan::WakeBoost(_) => Some("wake-boost"),
        PolicyPlan::Dynamic(_) => Some("dynamic"),
        PolicyPlan::Vanilla | PolicyPlan::RatelimitAuto(_) => None,
    }
}

/// The keys of a policy that boosts and their values, as in scenarios.
fn keys(policy: &PolicyPlan) -> Vec<(&'static str, String)> {
    let percent = |budget: Budget| format!("{}%", f64::from(budget.refill_ppm) / 1e4);
    let budgets = |vcpu: Budget, vm: Budget| {
        [
            ("vcpu_burst", time(vcpu.burst_ns)),
            ("vcpu_refill", percent(vcpu)),
            ("vm_burst", time(vm.burst_ns)),
            ("vm_refill", percent(vm)),
        ]
    };
    match policy {
        PolicyPlan::Vanilla | PolicyPlan::RatelimitAuto(_) => Vec::new(),
        PolicyPlan::Static { means } => vec![("means", means_text(*means))],
        PolicyPlan::WakeBoost(of) => {
            let mut keys = vec![("means", means_text(of.means)), ("run", time(of.run_ns))];
            keys.extend(budgets(of.vcpu_budget, of.vm_budget));
            keys.extend([
                ("boost_on_injection", of.boost_on_injection.to_string()),
                ("repay", of.repay.to_string()),
                ("rest_slice", time(of.rest_slice_ns.unwrap_or(0))),
            ]);
            keys
        }
        PolicyPlan::Dynamic(of) => {
            let mut keys = vec![("means", means_text(of.means))];
            keys.extend(budgets(of.vcpu_budget, of.vm_budget));
            keys.extend([
                ("longest_boost", time(of.longest_boost_ns.unwrap_or(0))),
                ("max_preempt_off", time(of.max_preempt_off_ns)),
                ("boost_on_injection", of.boost_on_injection.to_string()),
                ("boost_receiver", of.boost_receiver.to_string()),
                ("boost_on_request", of.boost_on_request.to_string()),
                ("boost_across_idle", of.boost_across_idle.to_string()),
                ("repay", of.repay.to_string()),
                ("rest_slice", time(of.rest_slice_ns.unwrap_or(0))),
            ]);
            keys
        }
    }
}

/// A permanent means, without vcoop.
fn by_hand(means: Means) -> Vec<String> {
    let each = "# or by hand: each vCPU's thread";
    let libvirt = |scheduler, priority| {
        let element =
            format!("<vcpusched vcpus='0-N' scheduler='{scheduler}' priority='{priority}'/>");
        format!("virsh edit VM # in <cputune>: {element}")
    };
    match means {
        Means::Fifo(p) => vec![format!("chrt -f -p {p} TID {each}"), libvirt("fifo", p)],
        Means::Rr(p) => vec![format!("chrt -r -p {p} TID {each}"), libvirt("rr", p)],
        Means::Nice(nice) => vec![format!("renice -n {nice} -p TID {each}")],
        Means::Slice(_) | Means::Ext => Vec::new(),
        Means::Deadline { runtime_ns, deadline_ns, period_ns } => {
            vec![format!("chrt -d -T {runtime_ns} -D {deadline_ns} -P {period_ns} -p 0 TID {each}")]
        }
    }
}

/// Pins of a VM's vCPUs that differ from the plan without the policy. pCPUs have the scenario's numbers.
fn pin(vm: &str, own: &VmPlan, before: Option<&VmPlan>, pcpus: u32, found: &mut Deployment) {
    let free = Vec::new();
    let was = |vcpu: usize| before.and_then(|vm| vm.vcpu_cpus.get(vcpu)).unwrap_or(&free);
    let pins = own.vcpu_cpus.iter().enumerate();
    let pins: Vec<(usize, &Vec<u32>)> = pins.filter(|(vcpu, list)| was(*vcpu) != *list).collect();
    let Some(&(first, list)) = pins.first() else { return };
    let name = quoted(vm);
    // A row of many vCPUs on a row of pCPUs is one line.
    let row = |&(vcpu, own): &(usize, &Vec<u32>)| {
        matches!((own.as_slice(), list.as_slice()), ([cpu], [from])
            if *cpu as usize + first == *from as usize + vcpu)
    };
    if pins.len() > MOST_PINS && pins.iter().all(row) && pins.len() == own.vcpu_cpus.len() {
        let (last, from) = (pins.len() - 1, list[0]);
        let cpu = if from == 0 { "$n".to_owned() } else { format!("$((n + {from}))") };
        found
            .lines
            .push(format!("for n in $(seq 0 {last}); do virsh vcpupin {name} $n {cpu}; done"));
    } else {
        let line = |(vcpu, list): &(usize, &Vec<u32>)| {
            format!("virsh vcpupin {name} {vcpu} {}", cpus(list, pcpus))
        };
        found.lines.extend(pins.iter().map(line));
    }
    let list = cpus(list, pcpus);
    found
        .lines
        .push(format!("taskset -cp {list} TID # or by hand: vCPU {first}'s thread, and so on"));
}

/// Most lines with pins of one VM, if a loop does not express them.
const MOST_PINS: usize = 4;

/// A list of `pcpus` pCPUs for `taskset`; empty: all.
fn cpus(list: &[u32], pcpus: u32) -> String {
    if list.is_empty() { format!("0-{}", pcpus - 1) } else { cpu_list(list) }
}

/// CPUs of the host's loads that differ from the plan without the policy.
fn place_loads(plan: &Plan, base: Option<&Plan>, vm: &str, found: &mut Deployment) {
    let was = |i: usize| base.and_then(|base| base.host_tasks.get(i)).map(|task| &task.cpus);
    let tasks = plan.host_tasks.iter().enumerate();
    let moved =
        tasks.filter(|(i, task)| was(*i).map_or(!task.cpus.is_empty(), |w| *w != task.cpus));
    let moved: Vec<&TaskPlan> = moved.map(|(_, task)| task).collect();
    let Some(list) = moved.first().map(|task| cpus(&task.cpus, plan.host.sched.cpus())) else {
        return;
    };
    let mut names: Vec<&str> = moved.iter().map(|task| task.label.as_str()).collect();
    names.dedup();
    let names =
        if names.len() > MOST_LOADS { "the host's loads".to_owned() } else { names.join(", ") };
    found.lines.extend([
        format!("taskset -acp {list} PID # each process of {names}"),
        format!(
            "systemctl set-property --runtime system.slice AllowedCPUs={list} # or all services at once, and \
             user.slice likewise"
        ),
        format!("virsh emulatorpin {} {list} # the VMM's other threads", quoted(vm)),
    ]);
}

/// Most loads named in a line.
const MOST_LOADS: usize = 6;

/// Virtualisation of VMs under the policy.
fn virtualise(own: &Virt, before: &Virt, found: &mut Deployment) {
    let mut line = |text: &str| found.lines.push(text.to_owned());
    if own.timer.source != before.timer.source {
        match own.timer.source {
            Some(GuestTimer::Hrtimer) => line("modprobe kvm_intel preemption_timer=0"),
            Some(GuestTimer::HvTimer) => line("modprobe kvm_intel preemption_timer=1"),
            Some(GuestTimer::Posted) => {
                line("modprobe kvm pi_inject_timer=1 # with nohz_full= on the host's command line");
            }
            Some(GuestTimer::Exitless) => {
                let why = "timer = \"exitless\": KVM has no such timer, only the lab has";
                found.simulation_only.push(why.to_owned());
            }
            Some(GuestTimer::Lapic) | None => {}
        }
    }
    let mut line = |text: &str| found.lines.push(text.to_owned());
    if own.timer.advance != before.timer.advance {
        match own.timer.advance {
            AdvanceConfig::None => line("modprobe kvm lapic_timer_advance_ns=0"),
            AdvanceConfig::Fixed(ns) => line(&format!("modprobe kvm lapic_timer_advance_ns={ns}")),
            AdvanceConfig::Adaptive | AdvanceConfig::Within { .. } => {
                line("modprobe kvm lapic_timer_advance_ns=-1");
            }
        }
    }
    if own.apic.posted && !before.apic.posted {
        line("modprobe kvm_intel enable_apicv=1");
    }
    if own.exits_off != before.exits_off || own.idle.guest == GuestIdle::Mwait {
        line("-overcommit cpu-pm=on # of QEMU; exits are off for all instructions at once");
    }
    if own.idle.guest != before.idle.guest {
        match own.idle.guest {
            GuestIdle::Poll => line("idle=poll # a parameter of the guest's kernel"),
            GuestIdle::Haltpoll => {
                line("cpuidle_haltpoll.force=1 # a parameter of the guest's kernel")
            }
            GuestIdle::Hlt | GuestIdle::Mwait => {}
        }
    }
    if own.idle.host_poll != before.idle.host_poll {
        let ns = own.idle.host_polls().max_ns;
        line(&format!("echo {ns} > /sys/module/kvm/parameters/halt_poll_ns # of all VMs"));
    }
    if own.dedicated && !before.dedicated {
        line("-cpu host,kvm-hint-dedicated=on # of QEMU");
    }
    if own.ipi.path != before.ipi.path {
        match own.ipi.path {
            IpiPath::Icr => line("-cpu host,kvm-pv-ipi=off # of QEMU"),
            IpiPath::Pv => line("-cpu host,kvm-pv-ipi=on # of QEMU"),
            IpiPath::Posted => line("modprobe kvm_intel enable_ipiv=1"),
            IpiPath::Cluster => line("-cpu host,kvm-pv-ipi=off,+x2apic # of QEMU"),
        }
    }
    if own.ipi.shorthand != before.ipi.shorthand {
        let why = "ipi_shorthand: guests since Linux 5.4 use it whenever all their CPUs are online";
        found.simulation_only.push(why.to_owned());
    }
    if own.idle.host_polls().fixed {
        let why = "halt_poll_fixed: KVM's polling adapts since Linux 4.3";
        found.simulation_only.push(why.to_owned());
    }
    if own.charges_steal != before.charges_steal {
        let why = "paravirt_time_accounting: the guest's kernel is built with it or without";
        found.simulation_only.push(why.to_owned());
    }
    if own.spin != before.spin {
        let why = "how vCPUs spin: that is of the guest's kernel, and has no switch for this";
        found.simulation_only.push(why.to_owned());
    }
}

/// The governor of a VM, if the plan without it has none.
fn governor(plan: &Plan, base: Option<&Plan>, vm: usize) -> Option<Kind> {
    let before = base.and_then(|base| base.governor(vm));
    plan.governor(vm).filter(|_| before.is_none()).map(|governor| governor.kind)
}

/// vCPUs that guests use.
fn govern(plan: &Plan, vm: usize, kind: Kind, name: &str, found: &mut Deployment) {
    if kind.is_the_hosts() && attached(&plan.policy).is_none() {
        found.lines.extend([
            format!("vcoop vms --how {} # the guest needs vcoop's driver", quoted(name)),
            about("vcoop attach", name, &format!("--policy {}", kind.name())),
        ]);
    }
    let own = if kind.is_the_hosts() { "host-hint" } else { kind.name() };
    let by = if plan.vms[vm].virt.govern.means.hotplug { " --by hotplug" } else { "" };
    found.lines.push(format!("vcoop guest --governor {own}{by} # in the guest"));
}

/// A means, as in scenarios.
fn means_text(means: Means) -> String {
    match means {
        Means::Fifo(p) => format!("fifo {p}"),
        Means::Rr(p) => format!("rr {p}"),
        Means::Nice(nice) => format!("nice {nice}"),
        Means::Slice(ns) => format!("slice {}", time(ns)),
        Means::Ext => "ext".to_owned(),
        Means::Deadline { runtime_ns, deadline_ns, period_ns } => {
            format!("deadline {}/{}/{}", time(runtime_ns), time(deadline_ns), time(period_ns))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcoop_testing::rig::plans;

    /// The plan of a VM under a policy with these settings.
    fn of<'a>(name: &str, sets: impl Iterator<Item = &'a str>) -> Plan {
        let living = RunningVm { name: "vm".to_owned(), vcpus: 1, pcpus: 1 };
        let text = living.scenario(&[name.to_owned()]);
        plans(&text, &[], &sets.collect::<Vec<_>>()).remove(0)
    }

    #[test]
    fn a_line_makes_the_policy_that_it_is_printed_for() {
        for (name, sets) in [
            ("static", &["means=nice -20"][..]),
            ("static", &["means=deadline 1ms/5ms/10ms"]),
            ("wake-boost", &["run=1ms", "vcpu_burst=1500us", "vm_refill=50%", "means=fifo 50"]),
            ("dynamic", &["repay=true", "rest_slice=700us", "boost_on_request=false"]),
        ] {
            let sets: Vec<String> = sets.iter().map(|set| format!("policy.{name}.{set}")).collect();
            let plan = of(name, sets.iter().map(String::as_str));
            let found = deploy(&plan, None, Some("web"));
            let start = format!("vcoop attach web --policy {name} --set ");
            let line = found.lines.iter().find(|line| line.starts_with(&start));
            let line = line.unwrap_or_else(|| panic!("{found:?}"));
            // As `vcoop attach` reads them.
            let again: Vec<&str> = line.split(" --set ").skip(1).collect();
            assert_eq!(again.len(), sets.len(), "{line}");
            let again = of(name, again.into_iter().map(|set| set.trim_matches('\'')));
            assert_eq!(again.policy, plan.policy, "{line}");
        }
    }

    #[test]
    fn a_vm_with_the_name_of_an_option_is_a_vm() {
        for set in ["policy.dynamic.repay=true", "policy.dynamic.governor=host-hint"] {
            let found = deploy(&of("dynamic", [set].into_iter()), None, Some("-x"));
            let own = found.lines.iter().filter(|line| line.starts_with("vcoop attach "));
            let own: Vec<&String> = own.collect();
            assert!(own.len() == 1 && own[0].ends_with(" -- -x"), "{own:?}");
            assert!(own[0].contains(&format!(" --set {set} ")), "{own:?}");
        }
    }

    #[test]
    fn pins_and_places_are_said_where_they_differ_from_the_baselines() {
        let text = r#"
name = "pins"
title = "Pins"
[host]
pcpus = 12
[[load]]
name = "build"
kind = "hog"
count = 3
[[load]]
name = "bound"
kind = "hog"
cpus = "11"
[[vm]]
name = "big"
vcpus = 6
[[vm]]
name = "web"
vcpus = 2
[policy.some]
base = "vanilla"
pin = "2-3"
"#;
        let plans = plans(text, &["vanilla", "isolated", "some"], &[]);
        let lines = |plan: usize, base| deploy(&plans[plan], Some(&plans[base]), None).lines;
        assert_eq!(
            lines(1, 0)[..5],
            [
                "for n in $(seq 0 5); do virsh vcpupin big $n $n; done",
                "taskset -cp 0 TID # or by hand: vCPU 0's thread, and so on",
                "virsh vcpupin web 0 6",
                "virsh vcpupin web 1 7",
                "taskset -cp 6 TID # or by hand: vCPU 0's thread, and so on",
            ]
        );
        let loads = &lines(1, 0)[5..];
        assert_eq!(loads[0], "taskset -acp 8-11 PID # each process of build");
        assert!(loads[1].contains(" AllowedCPUs=8-11 # "), "{loads:?}");
        assert!(loads[2].starts_with("virsh emulatorpin VM 8-11"), "{loads:?}");
        assert!(lines(1, 1).is_empty());
        // Back to where all may be.
        let back = lines(0, 2);
        assert!(back.contains(&"virsh vcpupin web 1 0-11".to_owned()), "{back:?}");
        let some = lines(2, 0);
        assert!(some.contains(&"virsh vcpupin big 5 2-3".to_owned()), "{some:?}");
    }

    #[test]
    fn every_built_in_policy_has_lines_or_a_reason() {
        let all = builtin();
        assert_eq!(all.len(), POLICIES.len());
        for one in &all {
            let says = !one.lines.is_empty() || !one.simulation_only.is_empty();
            assert_eq!(says, one.policy != "vanilla", "{one:?}");
        }
        let of = |name: &str| all.iter().find(|one| one.policy == name).unwrap();
        assert_eq!(of("wake-boost").lines, ["vcoop attach VM --policy wake-boost"]);
        assert!(of("static").lines.iter().any(|line| line.starts_with("chrt -r -p 8 TID")));
        assert_eq!(of("pinned").lines[0], "virsh vcpupin VM 0 0");
        assert!(of("isolated").lines[2].starts_with("taskset -acp 1 PID"));
        assert!(of("step").lines[0].starts_with("vcoop guest --governor step"));
        assert_eq!(
            of("host-hint").lines,
            [
                "vcoop vms --how VM # the guest needs vcoop's driver",
                "vcoop attach VM --policy host-hint",
                "vcoop guest --governor host-hint # in the guest",
            ]
        );
        assert!(of("hotplug").lines[2].contains(" --by hotplug # "));
        assert!(of("ratelimit-auto").simulation_only[0].contains("Xen"));
    }
}
