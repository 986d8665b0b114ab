//! Reads this host: the processes that run VMs, and their threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::assemble::{self, Descriptors, Folder, Process};
use crate::libvirt::{self, Domain};
use crate::qmp::{Qmp, QmpError};
use crate::text::there;
use crate::vm::{OtherThread, Source, Thread, VcpuThread, Vm};
use crate::{Role, known, limits, text};

/// Where the processes of a host are read from. The default is this host.
#[derive(Clone, Debug)]
pub struct Proc {
    root: PathBuf,
    debugfs: Option<PathBuf>,
    libvirt: Option<PathBuf>,
}

/// The VMs of a host, and what could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scan {
    /// The VMs, by process id and file descriptor of the VM.
    pub vms: Vec<Vm>,
    /// Number of processes whose file descriptors this user may not read. Those with the names of a VMM and of its
    /// threads are in `vms` all the same.
    pub denied: usize,
    /// Processes that run VMs and exceed [`limits`]: some of their threads or descriptors were not read.
    pub truncated: Vec<u32>,
}

/// Processes without a VM, and how many times in a row each was scanned.
#[derive(Clone, Debug, Default)]
pub struct SkippedProcesses(BTreeMap<u32, u8>);

/// How many times in a row a process is scanned before it is skipped: a new child may be about to become a VMM.
const LOOKS: u8 = 3;

impl Default for Proc {
    fn default() -> Self {
        Self::at("/proc").debugfs("/sys/kernel/debug").libvirt("/run/libvirt/qemu")
    }
}

impl Proc {
    /// Reads processes only from a folder like `/proc`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), debugfs: None, libvirt: None }
    }

    /// Also reads KVM's files from a folder like `/sys/kernel/debug`, if they are readable.
    #[must_use]
    pub fn debugfs(mut self, folder: impl Into<PathBuf>) -> Self {
        self.debugfs = Some(folder.into());
        self
    }

    /// Also reads libvirt's state files from a folder like `/run/libvirt/qemu`, if they are readable.
    #[must_use]
    pub fn libvirt(mut self, folder: impl Into<PathBuf>) -> Self {
        self.libvirt = Some(folder.into());
        self
    }

    /// Scans for VMs. Processes and threads that end meanwhile are left out.
    ///
    /// # Errors
    ///
    /// The list of processes cannot be read, or this process or the kernel is short of file descriptors or memory: VMs
    /// would be missing that are there.
    pub fn scan(&self) -> io::Result<Scan> {
        self.scan_again(&mut SkippedProcesses::default())
    }

    /// As [`Self::scan`], but skips processes that had no VM in the last few scans, for frequent scans. Callers should
    /// now and then start with a new `passed`, to find processes that have a VM by now.
    ///
    /// # Errors
    ///
    /// As for [`Self::scan`].
    pub fn scan_again(&self, passed: &mut SkippedProcesses) -> io::Result<Scan> {
        let domains =
            self.libvirt.as_deref().map(libvirt::domains).transpose()?.unwrap_or_default();
        let entries = fs::read_dir(&self.root)?;
        let pids: BTreeSet<u32> =
            entries.filter_map(|e| text::number(e.ok()?.file_name().as_bytes())).collect();
        let mut scan = Scan::default();
        passed.0.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            if passed.0.get(&pid).is_some_and(|looks| *looks == LOOKS) {
                continue;
            }
            let process = self.read(pid, &mut scan.denied)?;
            let mut vms = match &process {
                Some((process, _)) => self.vms(process, domains.get(&pid))?,
                None => Vec::new(),
            };
            if vms.is_empty() {
                *passed.0.entry(pid).or_default() += 1;
            } else {
                passed.0.remove(&pid);
                scan.truncated
                    .extend(process.is_some_and(|(_, truncated)| truncated).then_some(pid));
            }
            scan.vms.append(&mut vms);
        }
        Ok(scan)
    }

    /// Asks a VM's QEMU over a QMP socket for its vCPUs, name and accelerator. Updates the thread of each vCPU, and a
    /// guessed name and accelerator.
    ///
    /// QEMU serves one client of a socket at a time, so this may delay another client, or wait for it until the
    /// timeout: libvirt, for example, never disconnects.
    ///
    /// # Errors
    ///
    /// The conversation failed, or the answer names threads of another process. The VM is then unchanged.
    pub fn ask(&self, vm: &mut Vm, socket: &Path, timeout: Duration) -> Result<(), QmpError> {
        let mut qmp = Qmp::connect(socket, timeout)?;
        let (cpus, name, kvm) = (qmp.cpus()?, qmp.name()?, qmp.kvm()?);
        drop(qmp);
        let mut told = vm.clone();
        let mut threads: BTreeMap<u32, (Thread, Role, Option<u32>)> = BTreeMap::new();
        for v in told.vcpus.drain(..) {
            // A thread that turns out not to be a vCPU's.
            threads.insert(v.thread.tid, (v.thread, Role::Other, v.kvm_id));
        }
        for o in told.others.drain(..) {
            threads.insert(o.thread.tid, (o.thread, o.role, None));
        }
        let mut shared = 0;
        for cpu in &cpus {
            if told.vcpus.iter().any(|v| v.thread.tid == cpu.tid) {
                shared += 1;
                continue;
            }
            let Some((thread, _, kvm_id)) = threads.remove(&cpu.tid) else {
                return Err(QmpError::ForeignThread { tid: cpu.tid });
            };
            let index = cpu.index;
            told.vcpus.push(VcpuThread { index, kvm_id, thread, source: Source::Qmp });
        }
        told.others =
            threads.into_values().map(|(thread, role, _)| OtherThread { thread, role }).collect();
        let expected = vm.unplaced.map_or(0, |unplaced| unplaced + vm.vcpus.len());
        told.unplaced = Some(expected.saturating_sub(told.vcpus.len() + shared));
        if let Some(name) = name.filter(|_| vm.sources.name == Source::Pid) {
            told.name = name;
            told.sources.name = Source::Qmp;
        }
        if vm.sources.accel != Source::Descriptors {
            told.accel = kvm;
            told.sources.accel = Source::Qmp;
        }
        if !self.confirm(&mut told).map_err(QmpError::Unconfirmed)? {
            return Err(QmpError::Gone);
        }
        *vm = told;
        Ok(())
    }

    /// The VMs of a process, confirmed to still exist.
    fn vms(&self, process: &Process, domain: Option<&Domain>) -> io::Result<Vec<Vm>> {
        let mut vms = assemble::vms(process, self.folders(process)?, domain);
        try_retain(&mut vms, |vm| self.confirm(vm))?;
        Ok(vms)
    }

    /// Whether a VM's process is still the same; drops threads that have ended or whose id has been reused.
    fn confirm(&self, vm: &mut Vm) -> io::Result<bool> {
        let process = self.root.join(vm.pid.to_string());
        let tasks = process.join("task");
        let same = |thread: &Thread| {
            let now = read_thread(&tasks, thread.tid)?;
            Ok(now.is_some_and(|now| now.start_time == thread.start_time))
        };
        let before = vm.vcpus.len();
        try_retain(&mut vm.vcpus, |v| same(&v.thread))?;
        try_retain(&mut vm.others, |o| same(&o.thread))?;
        vm.unplaced = vm.unplaced.map(|unplaced| unplaced + before - vm.vcpus.len());
        // This comes last: if the process is still the same one, so were the folders of its threads.
        Ok(read_stat(&process)?.is_some_and(|(_, start)| start == vm.start_time))
    }

    /// Reads a process if it may run VMs, and whether it exceeds a limit.
    fn read(&self, pid: u32, denied: &mut usize) -> io::Result<Option<(Process, bool)>> {
        let folder = self.root.join(pid.to_string());
        let Some((_, start_time)) = read_stat(&folder)? else { return Ok(None) };
        let (kvm, more_descriptors) = match descriptors(&folder.join("fd")) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => (None, false),
            read => match there(read)? {
                Some((kvm, more)) => (Some(kvm), more),
                None => return Ok(None),
            },
        };
        let link = fs::read_link(folder.join("exe")).ok();
        let has_vm = kvm.as_ref().is_some_and(|kvm| !kvm.vms.is_empty());
        *denied += usize::from(kvm.is_none());
        // Most processes end here, before reading anything that they could make slow.
        let executable = link.as_deref().map(|link| file_name(link.as_os_str().as_bytes()));
        if !has_vm && executable.as_deref().is_some_and(|e| known::by_executable(e).is_none()) {
            return Ok(None);
        }
        let line = there(text::read(&folder.join("cmdline"), limits::COMMAND_LINE))?;
        let Some((line, _)) = line else { return Ok(None) };
        let (executable, executable_source) = match executable {
            Some(executable) => (executable, Source::Executable),
            None => {
                let first = line.split(|b| *b == 0).next().unwrap_or_default();
                (file_name(first), Source::CommandLine)
            }
        };
        let known = known::by_executable(&executable);
        if !has_vm && known.is_none() {
            return Ok(None);
        }
        let mut told = known.map(|k| known::command_line(k, &line)).unwrap_or_default();
        told.qmp.iter_mut().for_each(|path| *path = seen_from_here(&folder, path));
        let tasks = folder.join("task");
        let mut tids = numbers_in(&tasks, "")?;
        let mut threads = BTreeMap::new();
        for tid in tids.by_ref().take(limits::THREADS) {
            threads.extend(read_thread(&tasks, tid)?.map(|thread| (tid, thread)));
        }
        let truncated = more_descriptors || tids.next().is_some();
        let cgroup = there(text::read(&folder.join("cgroup"), limits::SMALL_FILE))?;
        let cgroup = cgroup
            .and_then(|(bytes, _)| text::cgroup(&bytes).map(|path| text::shown(path, path.len())));
        let process =
            Process { pid, start_time, threads, kvm, executable, executable_source, told, cgroup };
        Ok(Some((process, truncated)))
    }

    /// The folders of a process's VMs in debugfs; empty if they are not readable.
    fn folders(&self, process: &Process) -> io::Result<Vec<Folder>> {
        let Some(debugfs) = &self.debugfs else { return Ok(Vec::new()) };
        let mut folders = Vec::new();
        for vm_fd in process.kvm.iter().flat_map(|kvm| &kvm.vms) {
            let folder = debugfs.join(format!("kvm/{}-{vm_fd}", process.pid));
            if !folder.is_dir() {
                continue;
            }
            let vcpu = |id| {
                let file = folder.join(format!("vcpu{id}/pid"));
                let tid = there(text::read(&file, limits::SMALL_FILE))?;
                let tid = tid.and_then(|(bytes, _)| text::number(bytes.trim_ascii()));
                Ok((id, tid.filter(|tid| *tid != 0)))
            };
            let vcpus = numbers_in(&folder, "vcpu")?.take(limits::VCPUS).map(vcpu);
            folders.push(Folder { vm_fd: *vm_fd, vcpus: vcpus.collect::<io::Result<_>>()? });
        }
        Ok(folders)
    }
}

/// As [`Vec::retain_mut`], up to the first error.
fn try_retain<T>(
    all: &mut Vec<T>,
    mut keep: impl FnMut(&mut T) -> io::Result<bool>,
) -> io::Result<()> {
    let mut done = Ok(());
    all.retain_mut(|one| {
        let kept = if done.is_ok() { keep(one) } else { Ok(true) };
        kept.unwrap_or_else(|why| {
            done = Err(why);
            true
        })
    });
    done
}

/// The numbers in the names of a folder's entries, after `prefix`.
fn numbers_in(
    folder: &Path,
    prefix: &'static str,
) -> io::Result<impl Iterator<Item = u32> + use<>> {
    let entries = there(fs::read_dir(folder))?.into_iter().flatten().flatten();
    Ok(entries.filter_map(move |entry| {
        text::number(entry.file_name().as_bytes().strip_prefix(prefix.as_bytes())?)
    }))
}

/// KVM's descriptors among those of a process, and whether there are more than the limit.
fn descriptors(folder: &Path) -> io::Result<(Descriptors, bool)> {
    let mut kvm = Descriptors::default();
    for (seen, entry) in fs::read_dir(folder)?.enumerate() {
        let full = kvm.vcpus.len() == limits::VCPUS || kvm.vms.len() == limits::VMS;
        if full || seen == limits::DESCRIPTORS {
            kvm.vms.sort_unstable();
            return Ok((kvm, true));
        }
        let entry = entry?;
        // A descriptor that was closed meanwhile is skipped.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let Some(target) = target.as_os_str().as_bytes().strip_prefix(b"anon_inode:kvm-") else {
            continue;
        };
        if target == b"vm" {
            kvm.vms.extend(text::number::<u32>(entry.file_name().as_bytes()));
        } else if let Some(id) = target.strip_prefix(b"vcpu:") {
            kvm.vcpus.extend(text::number::<u32>(id));
        }
    }
    kvm.vms.sort_unstable();
    Ok((kvm, false))
}

/// Name and start time in a `stat` file.
fn read_stat(folder: &Path) -> io::Result<Option<(String, u64)>> {
    let read = there(text::read(&folder.join("stat"), limits::SMALL_FILE))?;
    let stat = read.as_ref().and_then(|(bytes, _)| text::stat(bytes));
    Ok(stat.map(|(comm, start_time)| (text::shown(comm, limits::SHOWN), start_time)))
}

fn read_thread(tasks: &Path, tid: u32) -> io::Result<Option<Thread>> {
    let stat = read_stat(&tasks.join(tid.to_string()))?;
    Ok(stat.map(|(comm, start_time)| Thread { tid, start_time, comm }))
}

/// The file name of an executable, which may have been replaced since its start.
fn file_name(path: &[u8]) -> String {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    text::shown(name.strip_suffix(b" (deleted)").unwrap_or(name), limits::SHOWN)
}

/// The path on this host of a path in a process, which may have another root or working folder.
fn seen_from_here(process: &Path, path: &Path) -> PathBuf {
    match path.strip_prefix("/") {
        Err(_) => process.join("cwd").join(path),
        Ok(_) if fs::read_link(process.join("root")).is_ok_and(|r| r == Path::new("/")) => {
            path.to_owned()
        }
        Ok(inner) => process.join("root").join(inner),
    }
}

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

#[cfg(test)]
mod tests {
    use super::common::Tree;
    use super::*;
    use crate::vm::Accel;

    fn read(tree: &Tree, pid: u32) -> (Proc, Process) {
        let proc = tree.proc();
        let (process, truncated) = proc.read(pid, &mut 0).unwrap().unwrap();
        assert!(!truncated);
        (proc, process)
    }

    #[test]
    fn a_thread_id_that_means_another_thread_by_now_is_dropped() {
        let tree = Tree::new("qemu-kvm");
        let (proc, process) = read(&tree, 16548);
        // The thread of vCPU 2 ends; that of vCPU 3 also ends, and its id is reused.
        tree.remove("proc/16548/task/16559");
        tree.replace("proc/16548/task/16560/stat", " 183712 ", " 190000 ");
        let vms = proc.vms(&process, None).unwrap();
        let indexes: Vec<_> = vms[0].vcpus.iter().map(|v| v.index).collect();
        assert_eq!((indexes, vms[0].unplaced), (vec![0, 1, 4, 5], Some(2)));
    }

    #[test]
    fn who_ran_no_vm_some_times_is_not_looked_at_until_all_are_again() {
        let tree = Tree::new("qemu-kvm");
        let proc = tree.proc();
        let found = |passed: &mut SkippedProcesses| proc.scan_again(passed).unwrap().vms.len();
        let mut passed = SkippedProcesses::default();
        assert_eq!(found(&mut passed), 1);
        // Its process id belongs for a while to a process without a VM.
        let fd = "proc/16548/fd";
        std::fs::rename(tree.path(fd), tree.path("proc/16548/none")).unwrap();
        assert_eq!([0; 3].map(|_| found(&mut passed)), [0; 3]);
        std::fs::rename(tree.path("proc/16548/none"), tree.path(fd)).unwrap();
        assert_eq!(found(&mut passed), 0, "it is passed over");
        assert_eq!(found(&mut SkippedProcesses::default()), 1);
        assert_eq!(proc.scan().unwrap().vms.len(), 1);
    }

    #[test]
    fn a_process_id_that_means_another_process_by_now_is_dropped() {
        let tree = Tree::new("qemu-kvm");
        let (proc, process) = read(&tree, 16548);
        assert_eq!(proc.vms(&process, None).unwrap().len(), 1);
        tree.replace("proc/16548/stat", " 183692 ", " 190000 ");
        assert_eq!(proc.vms(&process, None).unwrap(), []);
        tree.remove("proc/16548");
        assert_eq!(proc.vms(&process, None).unwrap(), []);
    }

    #[test]
    fn without_a_look_at_descriptors_a_known_vmm_is_believed_and_no_other() {
        for (name, pid, accel, vcpus) in [
            ("qemu-kvm", 16548, Some(Accel::Kvm), 6),
            ("qemu-tcg", 16825, Some(Accel::Tcg), 2),
            ("firecracker", 800, Some(Accel::Kvm), 2),
            ("qemu-kvm-unnamed", 16693, None, 0),
            ("lab", 19471, None, 0),
        ] {
            let tree = Tree::new(name);
            let (_, mut process) = read(&tree, pid);
            process.kvm = None;
            let vms = Proc::at("nowhere").folders(&process).unwrap();
            assert!(vms.is_empty());
            let vms = assemble::vms(&process, Vec::new(), None);
            assert_eq!(vms.first().map(|vm| vm.accel), accel, "{name}");
            for vm in vms {
                assert_eq!((vm.vcpus.len(), vm.unplaced), (vcpus, None), "{name}");
                assert_eq!(vm.sources.accel, Source::ThreadName);
            }
        }
    }
}
