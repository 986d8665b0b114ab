//! What this host is, as far as it matters to a result.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::facts::{Root, sched_ext};

/// Facts about this host by name, for the result of a run: KVM flavour, kernel, CPU, clock source,
/// real-time limits, a sched_ext scheduler if one is loaded, frequency governor, cgroup, whether the host itself is a guest, and the events of
/// the host's scheduler that a run records, or why it cannot (`trace`).
/// What cannot be read is left out.
pub fn environment() -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.insert(name.to_owned(), value);
        }
    };
    put("kvm", Some(flavour().to_owned()));
    put("kernel", read("/proc/sys/kernel/osrelease"));
    put("kernel_build", read("/proc/sys/kernel/version"));
    put("cpu", cpuinfo("model name"));
    put("hypervisor", Some(if is_guest() { "yes: this host is a guest" } else { "no" }.to_owned()));
    put("clocksource", read("/sys/devices/system/clocksource/clocksource0/current_clocksource"));
    put("sched_rt_runtime_us", read("/proc/sys/kernel/sched_rt_runtime_us"));
    put("sched_rt_period_us", read("/proc/sys/kernel/sched_rt_period_us"));
    let loaded = sched_ext::read(&Root::new(Path::new("/")));
    put("sched_ext", loaded.map(|loaded| loaded.to_string()));
    put("governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    put("cpuidle_driver", read("/sys/devices/system/cpu/cpuidle/current_driver"));
    for name in
        ["halt_poll_ns", "halt_poll_ns_grow", "halt_poll_ns_grow_start", "halt_poll_ns_shrink"]
    {
        put(name, read(&format!("/sys/module/kvm/parameters/{name}")));
    }
    // Newer kernels have a switch, older ones a time.
    for name in ["lapic_timer_advance", "lapic_timer_advance_ns"] {
        put(name, read(&format!("/sys/module/kvm/parameters/{name}")));
    }
    put("preemption_timer", read("/sys/module/kvm_intel/parameters/preemption_timer"));
    put("load_average", read("/proc/loadavg"));
    put("cpu_cgroup", cgroup("cpu"));
    put("trace", Some(vcoop_sources::trace::describe()));
    let cpus = vcoop_threads::allowed_cpus().map(|c| c.len().to_string());
    put("cpus", cpus.ok());
    facts
}

/// Which implementation stands behind /dev/kvm. Results differ by an order of magnitude between
/// them, so none is without it.
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

fn is_guest() -> bool {
    cpuinfo("flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor"))
}

fn cpuinfo(key: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn cgroup(controller: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let of = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let named = fields.next()?.split(',').any(|c| c == controller);
        if named { fields.next().map(str::to_owned) } else { None }
    };
    text.lines().find_map(of)
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned()).filter(|s| !s.is_empty())
}

/// Whether the TSC is the kernel's own clock: then it is synchronous and constant, and times taken
/// on different CPUs can be compared.
pub(crate) fn has_reliable_tsc() -> bool {
    read("/sys/devices/system/clocksource/clocksource0/current_clocksource").as_deref()
        == Some("tsc")
}

/// Keeps CPUs out of deep idle states while it lives, where the kernel lets us.
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

/// Where a program is that can be run by its name.
pub(crate) fn find_in_path(program: &str) -> Option<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// `/proc/loadavg`.
pub(crate) fn load_average() -> String {
    read("/proc/loadavg").unwrap_or_default()
}

/// Stolen and all time of all CPUs since boot, in ticks of user space's clock.
pub(crate) fn steal() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let numbers = text.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq steal; guest time is in user time already.
    let n: Vec<u64> = numbers.split_whitespace().take(8).map_while(|w| w.parse().ok()).collect();
    Some((*n.get(7)?, n.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::environment;

    #[test]
    fn the_flavour_of_kvm_is_always_named() {
        assert!(environment().contains_key("kvm"));
    }
}
