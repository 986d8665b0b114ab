//! Policies on real VMs.

use std::io::read_to_string;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use vcoop_stock::{Hogs, Options};
use vcoop_testing::{Outcome, Skip, send, test};
use vcoop_threads::{affinity, allowed_cpus, apart_from, cpu_list, preemptions};

use crate::vcoop::{VCOOP, guest, needs_tracefs, vcoop};

const SECOND: Duration = Duration::from_secs(1);

/// A `vcoop attach` that is in force, on these CPUs.
struct Attached(Child);

impl Attached {
    fn to(pid: u32, policy: &str, cpus: &[u32]) -> Result<Self, Skip> {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu_list(cpus), VCOOP, "attach", &pid.to_string()]);
        command.args(["--policy", policy]).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut this = Self(command.spawn().unwrap());
        let give_up = Instant::now() + 30 * SECOND;
        loop {
            let said = vcoop(&["vms", "--json"]).json();
            let vms = said["vms"].as_array().unwrap();
            if vms.iter().any(|vm| vm["pid"] == pid && vm["policy"] == policy) {
                return Ok(this);
            }
            if let Some(status) = this.0.try_wait().unwrap() {
                let error = read_to_string(this.0.stderr.take().unwrap()).unwrap();
                assert_eq!(status.code(), Some(3), "{error}");
                return Err(Skip::because(error));
            }
            assert!(Instant::now() < give_up, "{said}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// CPUs that the thread may use which drives the vCPUs.
    fn engine(&self) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let is = |tid: &i32| {
            let comm = std::fs::read_to_string(format!("/proc/{tid}/comm"));
            comm.is_ok_and(|comm| comm.trim() == "engine")
        };
        let mut tids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
        affinity(tids.find(is).expect("a thread called engine")).unwrap()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            send(self.0.id(), Signal::INT);
            let _ = self.0.wait();
        }
    }
}

test!("qemu", who_watches_a_vcpu_does_not_keep_it_from_running, || -> Outcome {
    let cpus = allowed_cpus().unwrap();
    let own = &cpus[cpus.len() - 1..];
    let options = Options { name: "busy".into(), vcpu_cpus: own.to_vec(), ..Options::default() };
    needs_tracefs()?;
    let vm = guest(&options)?;
    // Not alone on its CPU.
    let _hog = Hogs::start(1, own[0]).unwrap();
    let tid = vm.vcpu_tids().unwrap()[0];
    let busy = vm.run("timeout 30 sh -c 'while :; do :; done' >/dev/null 2>&1 &", 30 * SECOND);
    assert_eq!(busy.unwrap().status, 0);
    // Also where vcoop has no other CPU than the vCPU's.
    for cpus in [&cpus[..], own] {
        let attached = Attached::to(vm.pid(), "wake-boost", cpus)?;
        let apart = apart_from(cpus, own.iter().copied());
        assert_eq!(attached.engine(), apart, "it keeps others from running where it runs");
        let (begin, before) = (Instant::now(), preemptions(tid));
        thread::sleep(2 * SECOND);
        let rate = (preemptions(tid) - before) as f64 / begin.elapsed().as_secs_f64();
        drop(attached);
        assert!(rate < 3000.0, "preempted {rate:.0} times a second by who is on {cpus:?}");
        eprintln!("{rate:.0} times a second by who is on {cpus:?}");
    }
    Ok(())
});
