//! `vcoop guest` in a guest: the kernel's own cpusets and CPU hotplug. An emulated guest has no steal,
//! so a `/proc/stat` is mounted over its own one, and written by the test.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vcoop_stock::{Options, StockVm};
use vcoop_testing::{Outcome, Skip, test};
use vcoop_threads::allowed_cpus;

use crate::cooperate::{Daemon, doorbell, driver};
use crate::vcoop::{VCOOP, guest};

vcoop_testing::concurrent!();

const SECOND: Duration = Duration::from_secs(1);
const CPUS: u32 = 4;

/// A guest with the program, two slices with a loop in each, and a `/proc/stat` of the test's. The loops are busy from
/// [`Self::is_busy`] on: all else takes several times as long beside them.
struct Rig {
    vm: StockVm,
    _program: tempfile::TempDir,
}

impl Rig {
    fn new() -> Result<Self, Skip> {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Result<Self, Skip> {
        let program = tempfile::tempdir().unwrap();
        let options = Options {
            name: "fold".into(),
            vcpus: CPUS,
            memory_mib: 512,
            programs: vec![stripped(&program)],
            ..options
        };
        let rig = Self { vm: guest(&options)?, _program: program };
        rig.sh("mkdir -p /run && mount -t tmpfs tmpfs /run");
        for slice in ["system.slice", "user.slice"] {
            rig.sh(&format!("mkdir /sys/fs/cgroup/{slice}"));
            rig.sh(&format!(
                "(echo 0 >/sys/fs/cgroup/{slice}/cgroup.procs; while :; do [ -e /tmp/busy ] || sleep 1; done) \
                 >/dev/null 2>&1 & echo $! >/tmp/{slice}"
            ));
        }
        rig.stat(0);
        // The shell's own commands: every process that it starts is dear in an emulated guest.
        rig.sh(
            "echo >/tmp/stat; (b=1000; s=1000; while sleep 0.2; do b=$((b+4)); read r </tmp/rate; s=$((s+r)); \
             t=; for c in 0 1 2 3; do t=\"${t}cpu$c $b 0 0 0 0 0 0 $s 0 0\\n\"; done; \
             printf \"$t\" 1<>/tmp/stat; done) >/dev/null 2>&1 & mount --bind /tmp/stat /proc/stat",
        );
        Ok(rig)
    }

    /// What a line of shell prints, which succeeds.
    fn sh(&self, line: &str) -> String {
        let output = self.vm.run(line, 30 * SECOND).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(output.status, 0, "{line}\n{}{}", output.stdout, output.stderr);
        output.stdout
    }

    /// Makes the loops busy.
    fn is_busy(&self) {
        self.sh("touch /tmp/busy");
    }

    /// Has the guest see so much steal on each CPU, in ticks a fifth of a second.
    fn stat(&self, steal: u32) {
        self.sh(&format!("echo {steal} >/tmp/rate.new; mv /tmp/rate.new /tmp/rate"));
    }

    /// Starts `vcoop guest` in the guest.
    fn start(&self, args: &str) {
        self.sh(&format!(
            "vcoop guest {args} >/tmp/vcoop.out 2>/tmp/vcoop.err & echo $! >/tmp/vcoop"
        ));
    }

    /// Ends it by a signal, and waits for that.
    fn end(&self, signal: &str) -> String {
        self.sh(&format!("kill -{signal} $(cat /tmp/vcoop)"));
        self.until("[ ! -d /proc/$(cat /tmp/vcoop) ]");
        self.said()
    }

    fn said(&self) -> String {
        self.sh("cat /tmp/vcoop.out /tmp/vcoop.err")
    }

    /// Waits until a condition holds.
    fn until(&self, condition: &str) {
        let told = "cat /tmp/vcoop.out /tmp/vcoop.err >&2; exit 1";
        self.sh(&format!(
            "i=0; until {condition}; do i=$((i+1)); [ $i -lt 80 ] || {{ {told}; }}; sleep 0.1; done"
        ));
    }

    /// Every file that is changed, with its content.
    fn files(&self) -> String {
        self.sh("cd /sys/fs/cgroup; for f in cgroup.subtree_control */cpuset.cpus \
             /sys/devices/system/cpu/cpu*/online /sys/devices/system/cpu/online; do \
             [ ! -f $f ] || { echo $f; od -c $f; }; done")
    }

    /// Waits until each loop may use these CPUs: what the program does is told before it is done.
    fn loops_are(&self, cpus: &str) {
        let began = Instant::now();
        while self.loops() != cpus {
            assert!(began.elapsed() < 30 * SECOND, "{} are not {cpus}", self.loops());
        }
    }

    /// CPUs that each loop may use.
    fn loops(&self) -> String {
        self.sh("for p in $(cat /tmp/system.slice /tmp/user.slice); do grep Cpus_allowed_list \
             /proc/$p/status | cut -f 2; done")
    }
}

/// The program without debug information, where it can be had: the guest's memory has to hold it.
fn stripped(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("vcoop");
    let strip = Command::new("strip").arg("-o").arg(&path).arg(VCOOP).status();
    if !strip.is_ok_and(|status| status.success()) {
        std::fs::copy(VCOOP, &path).unwrap();
    }
    path
}

test!("qemu", a_stock_guest_folds_by_cpusets_and_has_all_back, || -> Outcome {
    let rig = Rig::new()?;
    let before = rig.files();
    assert_eq!(rig.loops(), "0-3\n0-3\n");
    let fast = "--governor step --set governor_interval=300ms --set governor_floor=2";

    // An affinity that the kernel would forget is not lost by accident.
    let kernel = rig.sh("uname -r");
    let version: Vec<u32> = kernel.split('.').map_while(|n| n.parse().ok()).collect();
    rig.sh("taskset -p 2 $(cat /tmp/user.slice)");
    let said = rig.sh(&format!("vcoop guest --for 100ms {fast} 2>&1; echo $?"));
    assert_eq!(said.ends_with("\n3\n"), version < vec![6, 2], "{kernel}{said}");
    assert_eq!(rig.loops(), "0-3\n1\n", "{said}");
    rig.sh("taskset -p f $(cat /tmp/user.slice)");

    // A dry run sees the steal and changes nothing.
    rig.stat(10);
    let said = rig.sh(&format!("vcoop guest --dry-run --for 3s {fast} 2>&1"));
    assert!(said.contains("would use 3 CPUs (0-2); steal is above 5 %: one core less"), "{said}");
    assert!(said.contains("system.slice/cpuset.cpus: empty -> 0-2"), "{said}");
    assert_eq!((rig.files(), rig.loops()), (before.clone(), "0-3\n0-3\n".to_owned()));

    // Steal confines the loops to the floor; no steal lets them go.
    rig.start(fast);
    rig.until("grep -q 'CPUs (0-1)' /tmp/vcoop.out");
    rig.loops_are("0-1\n0-1\n");
    let refused = rig.sh("vcoop guest --for 1s 2>&1; echo $?");
    assert!(refused.contains("already runs") && refused.ends_with("\n1\n"), "{refused}");
    // The controller comes back where it is disabled, as systemd may.
    rig.sh("echo -cpuset >/sys/fs/cgroup/cgroup.subtree_control");
    rig.until("grep -q 'enabled again' /tmp/vcoop.err");
    rig.until("grep -qx 0-1 /sys/fs/cgroup/user.slice/cpuset.cpus");
    assert_eq!(rig.loops(), "0-1\n0-1\n");
    // A slice that comes later follows; one that another program sets is left alone.
    rig.sh("mkdir /sys/fs/cgroup/late.slice");
    rig.until("grep -qx 0-1 /sys/fs/cgroup/late.slice/cpuset.cpus");
    rig.sh("rmdir /sys/fs/cgroup/late.slice");
    rig.stat(0);
    rig.until("grep -q -- '-> 4 CPUs' /tmp/vcoop.out");
    rig.loops_are("0-3\n0-3\n");
    rig.stat(10);
    rig.until("[ $(grep -c 'CPUs (0-1)' /tmp/vcoop.out) = 2 ]");
    let said = rig.end("TERM");
    assert!(said.contains("every file has what it had before"), "{said}");
    assert_eq!((rig.files(), rig.loops()), (before.clone(), "0-3\n0-3\n".to_owned()));

    // Killed, it leaves the loops confined until `--restore`.
    rig.start(fast);
    rig.until("grep -q 'CPUs (0-1)' /tmp/vcoop.out");
    rig.loops_are("0-1\n0-1\n");
    rig.end("KILL");
    assert_eq!(rig.loops(), "0-1\n0-1\n");
    let said = rig.sh("vcoop guest --restore");
    assert!(said.starts_with("gave back what an earlier vcoop had left changed: "), "{said}");
    assert_eq!((rig.files(), rig.loops()), (before.clone(), "0-3\n0-3\n".to_owned()));
    assert_eq!(rig.sh("vcoop guest --restore"), "nothing was left changed\n");

    // Settings that another program has changed meanwhile stay, and the next start gives the rest back. Others use
    // cpusets then, so that they stay enabled; Linux 6.1 does not empty those that have tasks.
    rig.start(fast);
    rig.until("grep -q 'CPUs (0-1)' /tmp/vcoop.out");
    rig.sh("echo 1-2 >/sys/fs/cgroup/user.slice/cpuset.cpus");
    rig.until("grep -q 'user.slice/cpuset.cpus was set by somebody else to 1-2' /tmp/vcoop.err");
    rig.end("KILL");
    let said = rig.sh(&format!("vcoop guest --for 100ms {fast} 2>&1"));
    assert!(
        said.contains("cgroup.subtree_control keeps cpuset, which others use by now"),
        "{said}"
    );
    assert_eq!(rig.loops(), "0-3\n1-2\n");
    let emptied = rig.sh("cat /sys/fs/cgroup/system.slice/cpuset.cpus") == "\n";
    assert_ne!(emptied, said.contains("partitions, where it was empty"), "{said}");

    // So others have it before; what they have set is narrowed, and given back.
    let before = rig.files();
    rig.start(fast);
    rig.until("grep -q 'CPUs (0-1)' /tmp/vcoop.out");
    rig.loops_are("0-1\n1\n");
    rig.end("INT");
    assert_eq!((rig.files(), rig.loops()), (before, "0-3\n1-2\n".to_owned()));
    Ok(())
});

test!("qemu", a_stock_guest_folds_by_hotplug_or_for_its_host_and_has_all_back, || -> Outcome {
    let mut daemon = Daemon::start();
    let (modules, qemu_args) = (vec![driver()?], doorbell(&daemon));
    let rig = Rig::with(Options { modules, qemu_args, ..Options::default() })?;
    let before = rig.files();
    let args = "--by hotplug --governor step --set governor_interval=300ms --set governor_floor=2";
    rig.stat(10);
    let said = rig.sh(&format!("vcoop guest --dry-run --for 1s {args} 2>&1"));
    assert!(said.contains("cpu3/online: 1 -> 0"), "{said}");
    assert_eq!(rig.files(), before);

    rig.start(args);
    rig.until("grep -qx 0-1 /sys/devices/system/cpu/online");
    rig.sh("echo 1 >/sys/devices/system/cpu/cpu3/online");
    rig.until("grep -q 'cpu3/online was set by somebody else to 1' /tmp/vcoop.err");
    rig.end("INT");
    assert_eq!(rig.files(), before);

    rig.start(args);
    rig.until("grep -qx 0-1 /sys/devices/system/cpu/online");
    rig.end("KILL");
    rig.sh("vcoop guest --restore");
    assert_eq!(rig.files(), before);

    if allowed_cpus().unwrap().len() > 2 {
        eprintln!("the host's word is left out: this host has CPUs for all");
        return Ok(());
    }
    // Two busy tasks want more than two CPUs, with room for others, and the host says so.
    rig.is_busy();
    rig.stat(0);
    let said = rig.sh("vcoop guest --governor host-hint --for 1s 2>&1; echo $?");
    assert!(said.contains("is not loaded") && said.ends_with("\n3\n"), "{said}");
    rig.sh("insmod /lib/modules/vcoop.ko");
    rig.start("--governor host-hint");
    let pid = rig.vm.pid().to_string();
    let mut attach = daemon.vcoop(&["attach", &pid, "--policy", "host-hint"]);
    let mut attach = attach.stderr(Stdio::null()).spawn().unwrap();
    rig.until("grep -q 'the host asks for [12]$' /tmp/vcoop.out");
    rig.until("[ $(grep -Ehx '0(-1)?' /sys/fs/cgroup/*/cpuset.cpus | wc -l) = 2 ]");
    assert!(["0\n0\n", "0-1\n0-1\n"].contains(&&*rig.loops()), "{}", rig.said());
    // A host that is gone asks for nothing.
    daemon.kill();
    let _ = attach.wait();
    rig.until("grep -q 'the host does not say' /tmp/vcoop.out");
    rig.loops_are("0-3\n0-3\n");
    rig.end("TERM");
    assert_eq!(rig.files(), before);
    Ok(())
});
