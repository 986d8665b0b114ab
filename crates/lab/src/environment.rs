//! Facts about this host that matter to a result.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::facts::{Root, sched_ext};

/// Facts about this host by name, for the result of a run: KVM flavour, kernel, CPU, clock source,
/// real-time limits, a sched_ext scheduler if one is loaded, frequency governor, cgroup, whether the host itself is a
/// guest, and the events of the host's scheduler that a run records, or why it cannot (`trace`). What cannot be read is
/// left out.
pub fn environment() -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.insert(name.to_owned(), value);
        }
    };
    let root = Root::new(Path::new("/"));
    let read = |path: &str| root.text(path);
    put("kvm", Some(flavour().to_owned()));
    put("kernel", read("proc/sys/kernel/osrelease"));
    put("kernel_build", read("proc/sys/kernel/version"));
    put("cpu", root.cpuinfo("model name"));
    put(
        "hypervisor",
        Some(if root.is_guest() { "yes: this host is a guest" } else { "no" }.to_owned()),
    );
    put("clocksource", read("sys/devices/system/clocksource/clocksource0/current_clocksource"));
    put("sched_rt_runtime_us", read("proc/sys/kernel/sched_rt_runtime_us"));
    put("sched_rt_period_us", read("proc/sys/kernel/sched_rt_period_us"));
    let loaded = sched_ext::read(&root);
    put("sched_ext", loaded.map(|loaded| loaded.to_string()));
    put("governor", read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    put("cpuidle_driver", read("sys/devices/system/cpu/cpuidle/current_driver"));
    for name in
        ["halt_poll_ns", "halt_poll_ns_grow", "halt_poll_ns_grow_start", "halt_poll_ns_shrink"]
    {
        put(name, read(&format!("sys/module/kvm/parameters/{name}")));
    }
    // Newer kernels have a switch, older ones a time.
    for name in ["lapic_timer_advance", "lapic_timer_advance_ns"] {
        put(name, read(&format!("sys/module/kvm/parameters/{name}")));
    }
    put("preemption_timer", read("sys/module/kvm_intel/parameters/preemption_timer"));
    put("load_average", read("proc/loadavg"));
    put("cpu_cgroup", root.cgroup(|controllers| controllers.split(',').any(|c| c == "cpu")));
    put("trace", Some(vcoop_sources::trace::describe()));
    let cpus = vcoop_threads::allowed_cpus().map(|c| c.len().to_string());
    put("cpus", cpus.ok());
    facts
}

/// Which implementation is behind /dev/kvm. Results differ by an order of magnitude between them, so every result has
/// it.
pub(crate) fn flavour() -> &'static str {
    let has = |path: &str| fs::metadata(path).is_ok();
    if has("/sys/module/kvm_intel") {
        "vmx"
    } else if has("/sys/module/kvm_amd") {
        "svm"
    } else if has("/sys/module/kvm_pvm") {
        "pvm (virtualised in software)"
    } else {
        "unknown"
    }
}

/// Whether the kernel uses the TSC as its clock: then it is synchronous and constant, and times taken on different CPUs
/// can be compared.
pub(crate) fn has_reliable_tsc() -> bool {
    let clock =
        fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    clock.is_ok_and(|clock| clock.trim() == "tsc")
}

/// Keeps CPUs out of deep idle states while it lives, if the kernel allows it.
#[derive(Debug)]
pub(crate) struct NoDeepIdle(
    #[allow(dead_code, reason = "held open: closing ends the request")] Option<fs::File>,
);

impl NoDeepIdle {
    pub(crate) fn hold() -> Self {
        let open = fs::OpenOptions::new().write(true).open("/dev/cpu_dma_latency");
        let held = open.and_then(|mut f| f.write_all(&0_i32.to_ne_bytes()).map(|()| f));
        Self(held.ok())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.0.is_some()
    }
}

/// Path of a program that can be run by its name.
pub(crate) fn find_in_path(program: &str) -> Option<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).map(|dir| dir.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::environment;

    #[test]
    fn the_flavour_of_kvm_is_always_named() {
        assert!(environment().contains_key("kvm"));
    }
}
