//! Findings from procfs, sysfs and PATH.

use std::fs;

use vcoop_sched::config::{Bandwidth, EevdfRelease, Fair, RtGuard};

use super::Finding;
use crate::environment::find_in_path;
use crate::facts::{HostFacts, Root};

pub(super) fn findings(root: &Root, facts: &HostFacts) -> Vec<Finding> {
    let mut found = vec![
        cpus(root, facts),
        smt(root),
        guard(facts),
        yields(facts),
        sched_ext(root, facts),
        guest(root, facts),
        busy(root),
        governor(root),
        idle(facts),
        cgroup(root),
        schedstat(root),
        tracefs(root),
        lockdown(root),
        bpf(root),
        in_path("perf", "records captures", "install linux-perf; or record through tracefs"),
        in_path(
            "stress-ng",
            "optional load",
            "install stress-ng; the lab's own loads do without it",
        ),
    ];
    found.extend(realtime(root));
    found
}

fn cpus(root: &Root, facts: &HostFacts) -> Finding {
    let list = |path: &str| root.text(path).unwrap_or_else(|| "none".to_owned());
    let evidence = format!(
        "{} usable; isolated: {}; nohz_full: {}",
        facts.cpus.len(),
        list("sys/devices/system/cpu/isolated"),
        list("sys/devices/system/cpu/nohz_full"),
    );
    if facts.cpus.len() < 2 {
        let remedy = "use a host with two CPUs: the injector needs one of its own, and calibration \
                      two for whatever goes between CPUs";
        return Finding::limited("CPUs", evidence, remedy);
    }
    Finding::ok("CPUs", evidence)
}

fn smt(root: &Root) -> Finding {
    match root.text("sys/devices/system/cpu/smt/active").as_deref() {
        Some("1") => Finding::limited(
            "SMT",
            "on: a busy sibling thread slows a vCPU down",
            "pin vCPUs to one thread a core, or echo off > /sys/devices/system/cpu/smt/control",
        ),
        Some(_) => Finding::ok("SMT", "off"),
        None => Finding::ok("SMT", "the kernel knows of none"),
    }
}

fn guard(facts: &HostFacts) -> Finding {
    let source = &facts.rt_guard.source;
    let of = |what: &str, Bandwidth { runtime_ns, period_ns }: Bandwidth, more: &str| {
        let ms = |ns: u64| ns / 1_000_000;
        let (runtime, period) = (ms(runtime_ns), ms(period_ns));
        let told = format!("{what}, {runtime} of {period} ms{more} ({source})");
        Finding::ok("starvation guard", told)
    };
    match facts.rt_guard.value {
        RtGuard::Off => Finding::limited(
            "starvation guard",
            format!("none: a real-time vCPU can hold its CPU for ever ({source})"),
            "echo 950000 > /proc/sys/kernel/sched_rt_runtime_us",
        ),
        RtGuard::Throttle(rt) => of("RT throttling", rt, ""),
        RtGuard::FairServer(fair) => of("fair server", fair, ""),
        RtGuard::Both(rt) => of("RT throttling", rt, ", and the fair server"),
    }
}

/// What a kernel with PREEMPT_RT does in threads, and who outranks them; nothing on other kernels.
fn realtime(root: &Root) -> Option<Finding> {
    const NAME: &str = "real-time kernel";
    let version = root.text("proc/sys/kernel/version");
    version.filter(|version| version.contains("PREEMPT_RT"))?;
    let threads = fs::read_dir(root.path("proc")).ok()?.flatten();
    let stats = threads.filter_map(|dir| fs::read_to_string(dir.path().join("stat")).ok());
    let lowest = stats.filter_map(|stat| kernels_thread(&stat)).min_by_key(|thread| thread.1);
    Some(match lowest {
        Some((name, priority)) if priority <= BOOST => Finding::limited(
            NAME,
            format!(
                "PREEMPT_RT: timers, RCU and the events that vcoop waits for have threads ({name} with priority \
                 {priority}), and a boost of rr {BOOST} keeps them off its CPU"
            ),
            "boot with rcutree.kthread_prio=9; and `for p in $(pgrep '^(irq_work|ktimers)/'); do chrt -f -p 9 $p; done`",
        ),
        Some((name, priority)) => Finding::ok(
            NAME,
            format!("PREEMPT_RT: {name} has priority {priority}, above a boost of rr {BOOST}"),
        ),
        None => Finding::ok(NAME, "PREEMPT_RT: /proc has no irq_work, ktimers and rcuc"),
    })
}

/// Priority of a boost by default.
const BOOST: u64 = 8;

/// Name and real-time priority (0: none) of a thread that does the kernel's deferred work with PREEMPT_RT, from its
/// `/proc/TID/stat`; `None`: another one.
fn kernels_thread(stat: &str) -> Option<(String, u64)> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    let (kind, _cpu) = name.split_once('/')?;
    // `rt_priority` is the 40th field, and `rest` begins with the third.
    let priority = rest.split(' ').nth(37)?.parse().ok()?;
    ["irq_work", "ktimers", "rcuc", "rcub"].contains(&kind).then(|| (name.to_owned(), priority))
}

/// What a vCPU that spins does to the others: KVM lets it yield when its PAUSE loop exits.
fn yields(facts: &HostFacts) -> Finding {
    const NAME: &str = "yields of vCPUs";
    match facts.fair.value {
        // Later releases protect a running thread for a slice only, however far its deadline is.
        Fair::Eevdf(fair) if !fair.yield_forfeits && fair.release < EevdfRelease::V6_18_0 => {
            Finding::limited(
                NAME,
                "as of this release, each yield of a spinning vCPU moves its deadline, and it may then run for \
                 hundreds of milliseconds while others of its CPU wait",
                "update the kernel: stable releases since 6.6.120, 6.12.63, 6.17.13 and 6.18.2 have commit \
                 79104becf42b, and distributions may have it earlier",
            )
        }
        _ => Finding::ok(NAME, "a spinning vCPU does not keep others waiting for long"),
    }
}

fn sched_ext(root: &Root, facts: &HostFacts) -> Finding {
    const NAME: &str = "sched_ext";
    match &facts.sched_ext {
        None if root.path("sys/kernel/sched_ext").exists() => Finding::ok(
            NAME,
            "no scheduler is loaded; a build with BPF can load scx_vcoop (means ext)",
        ),
        None => Finding::missing(
            NAME,
            "this kernel has none",
            "use a kernel with CONFIG_SCHED_CLASS_EXT; only the means ext needs it",
        ),
        Some(loaded) if loaded.takes_fair => Finding::limited(
            NAME,
            format!(
                "{loaded}: nice values and slices (boosts by nice or slice, repay, rest_slice) do \
                 nothing unless it reads them; boosts by fifo, rr or deadline outrank it"
            ),
            "boost by fifo, rr or deadline, or unload the scheduler; the simulation of this host has \
             the kernel's own fair class",
        ),
        Some(loaded) => Finding::ok(NAME, format!("{loaded}: nice and slice work as without it")),
    }
}

fn guest(root: &Root, facts: &HostFacts) -> Finding {
    if !facts.is_guest {
        return Finding::ok("bare metal", "this host is no guest");
    }
    let (steal, all) = root.steal().unwrap_or_default();
    let stolen = steal * 1000 / all.max(1);
    Finding::limited(
        "bare metal",
        format!(
            "this host is itself a guest; since boot {}.{} % of its CPU time was stolen",
            stolen / 10,
            stolen % 10
        ),
        "for absolute numbers measure on bare metal; ratios within a run stand",
    )
}

fn busy(root: &Root) -> Finding {
    let load = root.text("proc/loadavg").unwrap_or_default();
    let one = load.split(' ').next().unwrap_or("unknown").to_owned();
    let evidence = format!("load average {one}");
    if one.parse::<f64>().is_ok_and(|n| n > 0.5) {
        let remedy = "stop other work before measuring: what runs beside is in the numbers";
        return Finding::limited("quiet host", evidence, remedy);
    }
    Finding::ok("quiet host", evidence)
}

fn governor(root: &Root) -> Finding {
    match root.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").as_deref() {
        Some("performance") => Finding::ok("frequency governor", "performance"),
        Some(other) => Finding::limited(
            "frequency governor",
            format!("{other}: CPUs speed up and slow down with their load"),
            "cpupower frequency-set -g performance",
        ),
        None => Finding::ok("frequency governor", "none: firmware or a hypervisor decides"),
    }
}

fn idle(facts: &HostFacts) -> Finding {
    let idle = &facts.idle;
    let states: Vec<String> = idle
        .states
        .iter()
        .filter(|s| !s.disabled)
        .map(|s| format!("{} {} us", s.name, s.exit_ns / 1000))
        .collect();
    let states = if states.is_empty() { "a plain HLT".to_owned() } else { states.join(", ") };
    let name = |n: &Option<String>| n.clone().unwrap_or_else(|| "none".to_owned());
    let (driver, governor) = (name(&idle.driver), name(&idle.governor));
    Finding::ok("idle states", format!("driver {driver}, governor {governor}: {states}"))
}

/// What this finds in the files of a group or those around it, the innermost first, and the group.
fn in_groups(path: &str, find: impl Fn(&str) -> Option<String>) -> Option<(String, &str)> {
    let mut group = path;
    loop {
        if let Some(found) = find(group) {
            return Some((found, group));
        }
        if group.is_empty() {
            return None;
        }
        group = group.rsplit_once('/').map_or("", |(around, _)| around);
    }
}

/// Where the process is in the hierarchy of the `cpu` controller, and what limits it there.
pub(super) fn cgroup(root: &Root) -> Finding {
    const NAME: &str = "cgroup CPU limits";
    let path = |wanted: fn(&str) -> bool| {
        root.cgroup(wanted).map(|path| path.trim_matches('/').to_owned())
    };
    if let Some(path) = path(|c| c.split(',').any(|c| c == "cpu")) {
        let file = |file: &str| root.text(&format!("sys/fs/cgroup/cpu/{path}/{file}"));
        let quota = in_groups(&path, |group| {
            let quota = root.text(&format!("sys/fs/cgroup/cpu/{group}/cpu.cfs_quota_us"));
            quota.filter(|q| q != "-1")
        });
        let rt = file("cpu.rt_runtime_us");
        let said =
            quota.as_ref().map_or("none".to_owned(), |(quota, group)| match *group == path {
                true => quota.clone(),
                false => format!("{quota} of /{group}"),
            });
        let evidence = format!(
            "v1, /{path}: quota {said}, rt_runtime_us {}",
            rt.as_deref().unwrap_or("not grouped")
        );
        return if rt.as_deref() == Some("0") {
            let remedy = "write a runtime into this group's cpu.rt_runtime_us: without one its \
                          threads cannot become real-time";
            Finding::limited(NAME, evidence, remedy)
        } else if quota.is_some() {
            Finding::limited(NAME, evidence, "run in a group without cpu.cfs_quota_us")
        } else {
            Finding::ok(NAME, evidence)
        };
    }
    let path = path(str::is_empty).unwrap_or_default();
    let max = |group: &str| root.text(&format!("sys/fs/cgroup/{group}/cpu.max"));
    let quota = in_groups(&path, |group| max(group).filter(|max| !max.starts_with("max")));
    if let Some((max, group)) = quota {
        let evidence = format!("v2, /{group}: cpu.max {max}");
        return Finding::limited(NAME, evidence, "run in a group without cpu.max");
    }
    match max(&path) {
        Some(_) => Finding::ok(NAME, format!("v2, /{path}: no quota")),
        None => Finding::ok(NAME, format!("v2, /{path}: the cpu controller is not in use here")),
    }
}

fn schedstat(root: &Root) -> Finding {
    let text = root.text("proc/self/schedstat").unwrap_or_default();
    if text.split(' ').next().is_some_and(|n| n.parse::<u64>().is_ok_and(|n| n > 0)) {
        return Finding::ok("schedstat of threads", "CPU time and waiting time are counted");
    }
    let remedy =
        "use a kernel with CONFIG_SCHED_INFO (any with task delay accounting or schedstats)";
    Finding::missing("schedstat of threads", "/proc/self/schedstat counts nothing", remedy)
}

/// Recording of captures, and the live decomposition.
fn tracefs(root: &Root) -> Finding {
    const NAME: &str = "tracefs";
    const EVENTS: [&str; 6] = [
        "sched/sched_switch",
        "sched/sched_waking",
        "sched/sched_wakeup",
        "kvm/kvm_entry",
        "kvm/kvm_exit",
        "kvm/kvm_vcpu_wakeup",
    ];
    let mounted = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];
    let Some(at) = mounted.into_iter().find(|at| root.path(&format!("{at}/events")).is_dir())
    else {
        let remedy = "be root, and mount -t tracefs tracefs /sys/kernel/tracing";
        return Finding::missing(NAME, "not mounted, or not readable", remedy);
    };
    let (there, absent): (Vec<&str>, Vec<&str>) =
        EVENTS.into_iter().partition(|e| root.path(&format!("{at}/events/{e}")).is_dir());
    let instance = root.path(&format!("{at}/instances/vcoop-doctor-{}", std::process::id()));
    let made = fs::create_dir(&instance);
    let evidence = format!("/{at}; events: {}", there.join(", "));
    match made {
        Err(e) => {
            let evidence = format!("{evidence}; an instance cannot be made: {e}");
            Finding::limited(NAME, evidence, "be root, without lockdown=confidentiality")
        }
        Ok(()) => {
            let switch = instance.join("events/sched/sched_switch/enable");
            let enabled = fs::write(&switch, "1").and_then(|()| fs::write(&switch, "0"));
            let _ = fs::remove_dir(&instance);
            match enabled {
                Err(e) => Finding::limited(
                    NAME,
                    format!("{evidence}; sched_switch cannot be switched on: {e}"),
                    "be root, without lockdown=confidentiality",
                ),
                Ok(()) if absent.is_empty() => Finding::ok(NAME, evidence),
                Ok(()) => Finding::limited(
                    NAME,
                    format!("{evidence}; not there: {}", absent.join(", ")),
                    "load KVM for its events; without them the decomposition is coarser",
                ),
            }
        }
    }
}

fn lockdown(root: &Root) -> Finding {
    let text = root.text("sys/kernel/security/lockdown");
    let chosen = text.as_deref().and_then(|t| t.split('[').nth(1)?.split(']').next());
    match chosen {
        Some("none") => Finding::ok("kernel lockdown", "none"),
        Some(mode) => Finding::limited(
            "kernel lockdown",
            format!("{mode}: parts of debugfs and tracing are refused"),
            "boot without lockdown=, or do without what is refused",
        ),
        None if root
            .path("sys/kernel/security")
            .read_dir()
            .is_ok_and(|mut d| d.next().is_some()) =>
        {
            Finding::ok("kernel lockdown", "none: this kernel cannot be locked down")
        }
        None => Finding::limited(
            "kernel lockdown",
            "not known: securityfs is not mounted",
            "mount -t securityfs securityfs /sys/kernel/security",
        ),
    }
}

fn bpf(root: &Root) -> Finding {
    if root.path("sys/kernel/btf/vmlinux").exists() {
        return Finding::ok("BPF types", "/sys/kernel/btf/vmlinux");
    }
    let remedy = "use a kernel with CONFIG_DEBUG_INFO_BTF; only hearing interrupts of VMs needs it";
    Finding::missing("BPF types", "no /sys/kernel/btf/vmlinux", remedy)
}

fn in_path(program: &str, what: &str, remedy: &str) -> Finding {
    let facility = format!("{program} ({what})");
    match find_in_path(program) {
        Some(path) => Finding::ok(&facility, path.display().to_string()),
        None => Finding::missing(&facility, "not in PATH", remedy),
    }
}

#[cfg(test)]
mod tests {
    use vcoop_testing::Tree;

    use super::super::State;
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (Tree, Root) {
        let tree = Tree::with(files);
        let root = Root::new(tree.root());
        (tree, root)
    }

    #[test]
    fn a_group_without_rt_runtime_is_named() {
        let (_tree, root) = tree(&[
            ("proc/self/cgroup", "4:memory:/x\n1:cpu,cpuacct:/jobs\n0::/\n"),
            ("sys/fs/cgroup/cpu/jobs/cpu.rt_runtime_us", "0\n"),
            ("sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "-1\n"),
        ]);
        let found = cgroup(&root);
        assert_eq!(found.state, State::Limited);
        assert!(found.evidence.contains("/jobs") && found.remedy.unwrap().contains("real-time"));
    }

    #[test]
    fn quotas_of_version_2_are_seen() {
        let (tree, root) = tree(&[
            ("proc/self/cgroup", "0::/user.slice\n"),
            ("sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n"),
        ]);
        assert_eq!(cgroup(&root).state, State::Limited);
        tree.write("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
        assert_eq!(cgroup(&root).state, State::Ok);
    }

    #[test]
    fn a_quota_of_a_group_around_limits_as_well() {
        let (tree, root) = tree(&[
            ("proc/self/cgroup", "0::/user.slice/user-0.slice/session-1.scope\n"),
            ("sys/fs/cgroup/user.slice/user-0.slice/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n"),
        ]);
        assert_eq!(cgroup(&root).evidence, "v2, /user.slice: cpu.max 50000 100000");
        tree.write("proc/self/cgroup", "1:cpu,cpuacct:/jobs/one\n");
        tree.write("sys/fs/cgroup/cpu/jobs/one/cpu.cfs_quota_us", "-1\n");
        tree.write("sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "30000\n");
        let found = cgroup(&root);
        assert_eq!(found.state, State::Limited);
        assert!(found.evidence.contains("quota 30000 of /jobs,"), "{}", found.evidence);
    }

    #[test]
    fn cpu_lists_that_were_never_set_are_empty() {
        let (tree, root) = tree(&[
            ("sys/devices/system/cpu/isolated", "\n"),
            ("sys/devices/system/cpu/nohz_full", "  (null)\n"),
        ]);
        let facts = HostFacts::read(tree.root(), &[0, 1], None);
        assert_eq!(cpus(&root, &facts).evidence, "2 usable; isolated: none; nohz_full: none");
    }

    #[test]
    fn a_sched_ext_scheduler_limits_boosts_within_the_fair_class() {
        let (tree, root) = tree(&[
            ("sys/kernel/sched_ext/state", "enabled\n"),
            ("sys/kernel/sched_ext/switch_all", "1\n"),
            ("sys/kernel/sched_ext/root/ops", "rusty_1.0.9\n"),
        ]);
        let found = || sched_ext(&root, &HostFacts::read(tree.root(), &[0, 1], None));
        let all = found();
        assert_eq!(all.state, State::Limited);
        assert!(all.evidence.starts_with("rusty_1.0.9, all fair threads: nice values and slices "));
        tree.write("sys/kernel/sched_ext/switch_all", "0\n");
        assert_eq!(found().state, State::Ok);
        tree.write("sys/kernel/sched_ext/state", "disabled\n");
        assert!(found().evidence.ends_with("can load scx_vcoop (means ext)"));
        fs::remove_dir_all(tree.path("sys/kernel/sched_ext")).unwrap();
        assert_eq!(found().state, State::Missing, "this kernel has none");
    }

    #[test]
    fn a_kernel_with_preempt_rt_whose_threads_a_boost_outranks_is_told() {
        let (tree, root) =
            tree(&[("proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian 7.3.4-1\n")]);
        assert!(realtime(&root).is_none());
        tree.write("proc/sys/kernel/version", "#1 SMP PREEMPT_RT Debian 7.3.4-1\n");
        let thread = |tid: u32, name: &str, priority: u32| {
            let before = "0 ".repeat(36);
            let stat = format!("{tid} ({name}) S {before}{priority} 1 0 0 0\n");
            tree.write(&format!("proc/{tid}/stat"), &stat);
        };
        thread(7, "a) (/ b", 3);
        thread(14, "ksoftirqd/0", 0);
        thread(15, "ktimers/0", 9);
        thread(19, "rcuc/0", 10);
        assert_eq!(realtime(&root).unwrap().state, State::Ok);
        thread(23, "irq_work/1", 1);
        let found = realtime(&root).unwrap();
        assert_eq!(found.state, State::Limited);
        assert!(found.evidence.contains("(irq_work/1 with priority 1)"), "{}", found.evidence);
    }

    #[test]
    fn releases_in_which_deadlines_run_away_are_told() {
        let of = |release: &str| {
            let (tree, _) = tree(&[("proc/sys/kernel/osrelease", release)]);
            yields(&HostFacts::read(tree.root(), &[0, 1], None)).state
        };
        for release in ["6.6.119", "6.8.0-90-generic", "6.12.62", "6.16.3"] {
            assert_eq!(of(release), State::Limited, "{release}");
        }
        for release in ["6.1.140", "6.12.63", "6.17.4", "6.18.1", "6.18.40"] {
            assert_eq!(of(release), State::Ok, "{release}");
        }
    }

    #[test]
    fn lockdown_and_governor() {
        let (tree, root) = tree(&[
            ("sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
        ]);
        assert!(lockdown(&root).evidence.starts_with("integrity"));
        tree.write("sys/kernel/security/lsm", "capability");
        fs::remove_file(tree.path("sys/kernel/security/lockdown")).unwrap();
        assert_eq!(lockdown(&root).state, State::Ok);
        fs::remove_file(tree.path("sys/kernel/security/lsm")).unwrap();
        assert_eq!(lockdown(&root).state, State::Limited, "nobody knows");
        assert_eq!(governor(&root).state, State::Limited);
        assert_eq!(tracefs(&root).state, State::Missing);
    }
}
