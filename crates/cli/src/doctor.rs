//! `vcoop doctor`: what works on this host.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use vcoop_lab::backend::{Backend, Kvm, Sim};

use crate::failure::Failure;
use crate::output::print;

/// One thing that works or does not.
struct Finding {
    what: &'static str,
    state: Result<String, Lack>,
}

/// Something missing, and how to get it.
struct Lack {
    why: String,
    remedy: String,
}

pub(crate) fn run() -> Result<(), Failure> {
    let mut text = String::new();
    for finding in [simulator(), cpus(), kvm_device(), kvm_backend(), perf(), tracefs()] {
        let what = finding.what;
        match finding.state {
            Ok(state) => text += &format!("  ok       {what}: {state}\n"),
            Err(Lack { why, remedy }) => {
                text += &format!("  missing  {what}: {why}\n           remedy: {remedy}\n");
            }
        }
    }
    print(&text)
}

fn lack(why: impl ToString, remedy: &str) -> Lack {
    Lack { why: why.to_string(), remedy: remedy.to_owned() }
}

fn simulator() -> Finding {
    let state = Sim.available().map(|()| "works everywhere".to_owned());
    Finding { what: "simulator", state: state.map_err(|why| lack(&why.what, &why.remedy)) }
}

fn cpus() -> Finding {
    let state = match thread::available_parallelism() {
        Ok(n) => Ok(format!("{n}, so {n} runs at the same time (--jobs)")),
        Err(e) => Err(lack(e, "give --jobs")),
    };
    Finding { what: "CPUs", state }
}

fn kvm_device() -> Finding {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    let remedy = "load kvm_intel or kvm_amd, and join the group that owns /dev/kvm";
    let state = opened.map(|_| "can be opened".to_owned()).map_err(|e| lack(e, remedy));
    Finding { what: "/dev/kvm", state }
}

fn kvm_backend() -> Finding {
    let state = Kvm.available().map(|()| "works".to_owned());
    Finding { what: "micro-VM lab", state: state.map_err(|why| lack(&why.what, &why.remedy)) }
}

/// For recording captures.
fn perf() -> Finding {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found: Option<PathBuf> =
        std::env::split_paths(&paths).map(|dir| dir.join("perf")).find(|path| path.is_file());
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let paranoid = paranoid.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
    let state = match found {
        Some(_) => Ok(format!("found; perf_event_paranoid is {paranoid}")),
        None => Err(lack("not in PATH", "install linux-perf; or record through tracefs")),
    };
    Finding { what: "perf (records captures)", state }
}

/// The other way of recording captures.
fn tracefs() -> Finding {
    let event = Path::new("events/sched/sched_switch/enable");
    let roots = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    let can_write = |path: &PathBuf| fs::OpenOptions::new().write(true).open(path).is_ok();
    let found = roots.iter().map(|root| Path::new(root).join(event)).find(can_write);
    let state = match found {
        Some(_) => Ok("sched events can be recorded".to_owned()),
        None => Err(lack(
            "sched events cannot be switched on",
            "be root, and mount -t tracefs tracefs /sys/kernel/tracing",
        )),
    };
    Finding { what: "tracefs (records captures)", state }
}
