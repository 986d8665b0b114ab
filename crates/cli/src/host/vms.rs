//! `vcoop vms`: the VMs that run on this host.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vcoop_abi::Header;
use vcoop_daemon::config::{Config, USUAL, Windows};
use vcoop_daemon::{VmId, VmStatus, left_alone};
use vcoop_model::running_vm::plain_name;
use vcoop_report::vms::{GuestDriver, Note, Source, Thread, Vcpu, Vm, Vms};
use vcoop_text::about;
use vcoop_threads::{Captured, RunTimes, cpu_list};
use vcoop_vmm::qmp::{QmpError, TIMEOUT};
use vcoop_vmm::{self as vmm, Accel, Proc, Vmm};

use crate::args::host::VmsArgs;
use crate::failure::Failure;
use crate::host::owner;
use crate::output::{json, print, print_at_end, style};

/// Where the host is read from.
struct Host {
    root: PathBuf,
    debugfs: PathBuf,
    proc: Proc,
    /// Thread ids are those of the running kernel.
    is_this: bool,
}

impl Host {
    fn new(tree: Option<&Path>) -> Self {
        let Some(tree) = tree else {
            let (root, debugfs) = ("/proc".into(), "/sys/kernel/debug".into());
            return Self { root, debugfs, proc: Proc::default(), is_this: true };
        };
        let (root, debugfs) = (tree.join("proc"), tree.join("debugfs"));
        let proc = Proc::at(&root).debugfs(&debugfs).libvirt(tree.join("libvirt"));
        Self { root, debugfs, proc, is_this: false }
    }
}

pub(crate) fn run(args: &VmsArgs) -> Result<(), Failure> {
    if let Some(name) = &args.how {
        return how(name);
    }
    let host = Host::new(args.tree.as_deref());
    let unlisted = |why: io::Error| owner::unlisted(&host.root, &why);
    let mut scan = host.proc.scan().map_err(unlisted)?;
    if host.is_this && !host.root.join("self").exists() {
        return Err(unlisted(io::Error::other("no process filesystem is mounted there")));
    }
    let ask = |socket: &PathBuf| ask(&host.proc, &mut scan.vms, socket).err();
    let unanswered: Vec<String> = args.qmp.iter().filter_map(ask).collect();

    let mut notes = notes_of_host(&host, &scan);
    let mut policies = None;
    if host.is_this {
        match owner::policies() {
            Ok(vms) => policies = Some(vms),
            Err(unknown) => {
                notes.push(Note { pid: None, evidence: unknown.evidence, remedy: unknown.remedy })
            }
        }
    }
    let mut vms: Vec<Vm> = scan.vms.iter().map(|vm| describe(&host, vm, &mut notes)).collect();
    for (of, vm) in scan.vms.iter().zip(&mut vms) {
        apply(policies.as_deref(), &VmId::of(of), vm, &mut notes);
        notes.extend(foreign_realtime(vm));
    }
    let (schema, version) = ("vcoop.vms/1", env!("CARGO_PKG_VERSION"));
    let document = Vms { schema, version, vms, notes };
    let end = if unanswered.is_empty() { Ok(()) } else { Err(Failure::Run(unanswered.join("\n"))) };
    print_at_end(&if args.json { json(&document)? } else { document.render(style()) }, end)
}

/// Asks the QEMU behind a socket: the VM with the socket on its command line, or else the VM with the threads of the
/// answer.
fn ask(proc: &Proc, vms: &mut [vmm::Vm], socket: &Path) -> Result<(), String> {
    const NAMED: &str = "give a socket of `-qmp unix:...` that this user may write to";
    if let Err(error) = fs::metadata(socket) {
        return Err(format!("{}: {error}\n  remedy: {NAMED}", socket.display()));
    }
    let file = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let names =
        |vm: &vmm::Vm| vm.qmp.iter().any(|s| file(s).is_some_and(|s| Some(s) == file(socket)));
    let named = vms.iter().any(names);
    let mut failed = None;
    for vm in vms.iter_mut().filter(|vm| if named { names(vm) } else { vm.vmm == Vmm::Qemu }) {
        match proc.ask(vm, socket, TIMEOUT) {
            Ok(()) => return Ok(()),
            Err(error @ (QmpError::ForeignThread { .. } | QmpError::Gone)) => failed = Some(error),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let remedy = match failed {
        None | Some(QmpError::ForeignThread { .. }) => "give the socket of a QEMU that is shown",
        Some(QmpError::Timeout) => "disconnect its other client; under libvirt none is needed",
        Some(QmpError::Gone) => "start it again",
        Some(_) => NAMED,
    };
    let why = failed.map_or_else(|| "no QEMU is running".to_owned(), |error| error.to_string());
    Err(format!("{}: {why}\n  remedy: {remedy}", socket.display()))
}

/// Reasons why VMs of this host may not be visible.
fn notes_of_host(host: &Host, scan: &vmm::Scan) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut note = |evidence: String, remedy: Option<&str>| {
        notes.push(Note { pid: None, evidence, remedy: remedy.map(str::to_owned) });
    };
    if scan.denied > 0 {
        let denied = scan.denied;
        note(
            format!(
                "{denied} processes may not be looked into; some may run a VM that is not shown"
            ),
            Some("run it as root"),
        );
    }
    if host.is_this && !host.root.join("1").exists() {
        let evidence =
            "/proc hides processes of other users (hidepid); some may run a VM".to_owned();
        note(evidence, Some("run it as root"));
    }
    if !host.is_this {
        note("the threads of a recorded tree cannot be asked for anything".to_owned(), None);
    }
    for pid in &scan.truncated {
        let evidence =
            format!("process {pid} has more threads or file descriptors than are looked at");
        note(evidence, None);
    }
    notes
}

/// A VM of the document; missing facts are added to `notes`.
fn describe(host: &Host, vm: &vmm::Vm, notes: &mut Vec<Note>) -> Vm {
    let mut note = |evidence: String, remedy: Option<String>| {
        notes.push(Note { pid: Some(vm.pid), evidence, remedy });
    };
    let missing = match vm.unplaced {
        Some(n @ 1..) => Some(format!("the threads of {n} of its vCPUs are not known")),
        None if vm.vcpus.is_empty() => Some("its vCPUs are not known".to_owned()),
        _ => None,
    };
    if let Some(missing) = missing {
        note(missing, how_to_place(host, vm));
    }

    let mut refusals = BTreeSet::new();
    let mut uncounted = false;
    let mut vcpus = Vec::new();
    for v in &vm.vcpus {
        let thread = if host.is_this { look_at(&v.thread) } else { Ok(Thread::default()) };
        let thread = thread.unwrap_or_else(|why| {
            refusals.insert(why);
            Thread::default()
        });
        uncounted |= thread.policy.is_some() && thread.ran_ns.is_none();
        vcpus.push(Vcpu {
            index: v.index,
            tid: v.thread.tid,
            start_ticks: v.thread.start_time,
            source: v.source.to_string(),
            thread,
            boosted: None,
        });
    }
    refusals.into_iter().for_each(|why| note(why, None));
    if uncounted {
        let remedy = "a kernel with CONFIG_SCHEDSTATS or CONFIG_TASK_DELAY_ACCT".to_owned();
        note("this kernel does not count the run times of threads".to_owned(), Some(remedy));
    }
    let vmm::Sources { name, vmm, accel } = vm.sources;
    let sources = [("name", name), ("vmm", vmm), ("accel", accel)];
    Vm {
        name: vm.name.clone(),
        vmm: vm.vmm.to_string(),
        accel: vm.accel.to_string(),
        pid: vm.pid,
        start_ticks: vm.start_time,
        vcpus,
        unplaced_vcpus: vm.unplaced,
        policy: None,
        heard_by: Vec::new(),
        rests: false,
        sources: sources.map(|(fact, source)| Source { fact, source: source.to_string() }).into(),
        guest_driver: if host.is_this { driver_of(vm.pid) } else { None },
    }
}

/// Prints how the guest of a VM gets the driver.
fn how(name: &str) -> Result<(), Failure> {
    if name.is_empty() {
        return Err(Failure::usage("--how: give the name of a VM"));
    }
    let found = owner::find(name).ok();
    let there = found.as_ref().and_then(|vm| driver_of(vm.pid));
    let now = match (&found, there) {
        (None, _) => "it does not run now".to_owned(),
        (Some(_), None) => "its guest has no driver".to_owned(),
        (Some(_), Some(driver)) => {
            format!("its guest has a driver, which speaks for {} vCPUs", driver.vcpus)
        }
    };
    let (typed, name) = (name, plain_name(name));
    let renamed = match name == typed {
        true => String::new(),
        false => format!(
            "Names of files and devices have {name} in them: not every character of {typed} can be there.\n"
        ),
    };
    let attach = about("vcoop attach", typed, "--policy dynamic");
    // From the daemon's configuration, as far as this user may read it.
    let windows = Config::read(Path::new(USUAL)).map_or_else(|_| Windows::default(), |c| c.windows);
    let socket = windows.socket.display();
    let text = format!(
        "{typed}: {now}.\n{renamed}\
         \n\
         1. Add memory that the guest shares with this host. It is best to add a doorbell, too: by it the guest tells \
         this host at once that it has written. `vcoop daemon` serves the doorbell, and has to run before the VM \
         starts.\n\
         \n\
         \x20  Add this to the command line of QEMU:\n  \
           -chardev socket,id=vcoop,path={socket} \\\n  \
           -device ivshmem-doorbell,chardev=vcoop,vectors=1\n\
         \x20  With libvirt, add this under <devices>:\n  \
           <shmem name='vcoop-{name}'><model type='ivshmem-doorbell'/>\n  \
           <server path='{socket}'/><msi vectors='1' ioeventfd='on'/></shmem>\n\
         \x20  libvirt runs QEMU as another user: [windows] of {USUAL} names a socket and a group for that user.\n\
         \n\
         \x20  Without a doorbell, this host reads the guest's words from time to time. Add this to the command line \
         of QEMU:\n  \
           -object memory-backend-file,id=vcoop,mem-path=/dev/shm/vcoop-{name},size=1M,share=on \\\n  \
           -device ivshmem-plain,memdev=vcoop\n\
         \x20  With libvirt, add this under <devices>:\n  \
           <shmem name='vcoop-{name}'><model type='ivshmem-plain'/><size unit='M'>1</size></shmem>\n\
         \n\
         \x20  If the VMM has no ivshmem, use a virtio-pmem device, or guest memory that is a shared file. Make a file \
         for the device first:\n  \
           truncate -s 2M /dev/shm/vcoop-{name}\n\
         \x20  Add this to the command line of crosvm; other VMMs have options like it:\n  \
           --pmem /dev/shm/vcoop-{name}\n\
         \x20  Add this to the command line of QEMU, with -m ...,maxmem=...:\n  \
           -object memory-backend-file,id=vcoop,mem-path=/dev/shm/vcoop-{name},size=2M,share=on \\\n  \
           -device virtio-pmem-pci,memdev=vcoop\n\
         \n\
         2. Load the driver in the guest. Its source is guest/linux of vcoop's sources, and DKMS builds it.\n\
         \n\
         \x20  With ivshmem:\n  \
           modprobe vcoop\n\
         \x20  With guest memory that is a shared file:\n  \
           modprobe vcoop ram=1\n\
         \x20  With virtio-pmem:\n  \
           cd /sys/bus/nd/devices/region0\n  \
           modprobe vcoop phys=$(cat resource),$(cat size)\n\
         \n\
         3. Apply a policy on this host:\n\
         \n  \
           {attach}\n"
    );
    // What is to be copied has an indent of two, and stays whole.
    let is_copied = |line: &str| line.starts_with("  ") && !line.starts_with("   ");
    let line = |line: &str| match is_copied(line) {
        true => format!("{line}\n"),
        false => style().wrap(line, 3),
    };
    print(&text.lines().map(line).collect::<String>())
}

/// State of the guest's driver, as it reports it.
fn driver_of(pid: u32) -> Option<GuestDriver> {
    let window = vcoop_window::find(pid).ok()??;
    let header: Header = window.guest_side().header.decode();
    Some(GuestDriver { abi: header.abi, vcpus: window.online().len(), slots: window.slots() })
}

/// What vcoop does with a VM, if it is known which VMs have policies. Adds notes about its policy.
fn apply(policies: Option<&[VmStatus]>, id: &VmId, vm: &mut Vm, notes: &mut Vec<Note>) {
    let in_force = policies.and_then(|vms| vms.iter().find(|vm| vm.vm == *id));
    vm.policy = in_force.map(|status| status.policy.clone());
    vm.heard_by = in_force.map(|status| status.hears.clone()).unwrap_or_default();
    vm.rests = in_force.is_some_and(|status| status.rests);
    for vcpu in &mut vm.vcpus {
        let driven = in_force.and_then(|status| {
            status.vcpus.iter().find(|v| v.tid == vcpu.tid as i32 && v.left_alone.is_none())
        });
        vcpu.boosted = policies.map(|_| driven.is_some_and(|v| v.boosted));
        // Although it may have been boosted since. A thread that another program made real-time is left alone.
        if vcpu.thread.realtime_by.is_some() && driven.is_some() {
            vcpu.thread.realtime_by = Some("vcoop");
        }
    }
    let Some(VmStatus { policy, vcpus, notes: said, .. }) = in_force else { return };
    let note = |of| Note { pid: Some(vm.pid), evidence: format!("{policy}: {of}"), remedy: None };
    notes.extend(left_alone(vcpus).into_iter().chain(said.iter().cloned()).map(note));
}

/// vCPUs that another program made real-time.
fn foreign_realtime(vm: &Vm) -> Option<Note> {
    let foreign = vm.vcpus.iter().filter(|v| v.thread.realtime_by == Some("unknown"));
    let foreign: Vec<u32> = foreign.map(|v| v.index).collect();
    let evidence = format!("who made vCPU {} real-time is not known", cpu_list(&foreign));
    let remedy = "vcoop restore takes back what a vcoop that was killed has left on this host";
    (!foreign.is_empty()).then(|| Note {
        pid: Some(vm.pid),
        evidence,
        remedy: owner::is_something_left().then(|| remedy.to_owned()),
    })
}

/// Source of the threads of a VM's vCPUs.
fn how_to_place(host: &Host, vm: &vmm::Vm) -> Option<String> {
    let mut ways = Vec::new();
    if vm.accel == Accel::Kvm && !host.debugfs.join("kvm").is_dir() {
        let mount = format!("mount -t debugfs debugfs {}", host.debugfs.display());
        ways.push(format!("run it as root, with debugfs ({mount})"));
    }
    if vm.vmm == Vmm::Qemu {
        // A VMM chooses its paths: they are escaped for the terminal.
        let socket = vm.qmp.first().map_or_else(|| "SOCKET".to_owned(), |path| format!("{path:?}"));
        ways.push(format!("give its QMP socket: --qmp {socket}"));
        ways.push("start it with -name NAME,debug-threads=on".to_owned());
    }
    (!ways.is_empty()).then(|| ways.join("; or "))
}

/// The kernel's counters of a thread, if it is still the same thread.
fn look_at(found: &vmm::Thread) -> Result<Thread, String> {
    let tid = found.tid as i32;
    let captured = Captured::of(tid).map_err(|error| format!("thread {tid}: {error}"))?;
    // A thread has run before it is found: 0 means that the kernel does not count.
    let times = RunTimes::open(tid).ok().map(|file| file.read()).filter(|times| times.ran_ns > 0);
    let baseline = captured.baseline();
    if baseline.start != found.start_time || !captured.is_alive() {
        return Err(format!("thread {tid} has ended"));
    }
    let policy = baseline.attributes.to_policy();
    Ok(Thread {
        policy: Some(baseline.attributes.to_string()),
        realtime_by: (policy.is_rt() || policy.is_deadline()).then_some("unknown"),
        affinity: Some(cpu_list(&baseline.cpus)),
        ran_ns: times.map(|times| times.ran_ns),
        steal_ns: times.map(|times| times.waited_ns),
        wait_ns: None,
    })
}

#[cfg(test)]
mod tests {
    use super::{apply, foreign_realtime};
    use vcoop_daemon::{VcpuStatus, VmId, VmStatus};
    use vcoop_report::vms::{Thread, Vcpu, Vm};

    #[test]
    fn a_vcpu_that_was_boosted_since_is_vcoops() {
        let id = VmId { pid: 7, start_ticks: 1, name: "web".to_owned() };
        let vcpu = |index: u32, alone: Option<&str>| VcpuStatus {
            index,
            tid: 70 + index as i32,
            left_alone: alone.map(str::to_owned),
            ..VcpuStatus::default()
        };
        let vcpus = vec![vcpu(0, None), vcpu(1, Some("somebody else made it SCHED_FIFO 2"))];
        let policy = "wake-boost".to_owned();
        let notes = vec!["the VM shares the host's top group".to_owned()];
        let status = VmStatus { vm: id.clone(), policy, vcpus, notes, ..VmStatus::default() };
        let realtime = |index| Vcpu {
            index,
            tid: 70 + index,
            start_ticks: 2,
            source: String::new(),
            thread: Thread { realtime_by: Some("unknown"), ..Thread::default() },
            boosted: None,
        };
        let vcpus = [0, 1].map(realtime).into();
        let mut vm = Vm { name: id.name.clone(), pid: 7, start_ticks: 1, vcpus, ..Vm::default() };
        let mut notes = Vec::new();
        apply(Some(&[status]), &id, &mut vm, &mut notes);
        let notes: Vec<_> = notes.iter().map(|note| &*note.evidence).collect();
        let alone = "wake-boost: 1 left alone (vCPU 1: somebody else made it SCHED_FIFO 2)";
        assert_eq!(notes, [alone, "wake-boost: the VM shares the host's top group"]);
        let by = [0, 1].map(|at: usize| vm.vcpus[at].thread.realtime_by);
        assert_eq!(by, [Some("vcoop"), Some("unknown")]);
        assert_eq!(
            foreign_realtime(&vm).unwrap().evidence,
            "who made vCPU 1 real-time is not known"
        );
    }
}
