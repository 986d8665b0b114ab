//! What a VM on this host is.

use std::fmt;
use std::path::PathBuf;

/// A virtual machine that runs on this host.
///
/// Text in it comes from the VMM. It is bounded, and safe to print: control characters are escaped.
/// Names need not be unique, but those of one process are where KVM's folders in debugfs can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Vm {
    /// Its name; made of the VMM's name and the process id where it has none. VMs of one process and name have
    /// `#` and [`Self::vm_fd`] behind it.
    pub name: String,
    /// Program that runs it.
    pub vmm: Vmm,
    /// What executes its instructions.
    pub accel: Accel,
    /// Process of the VMM, in the namespace of the `/proc` that was read.
    pub pid: u32,
    /// When that process started, in clock ticks since the host's boot.
    pub start_time: u64,
    /// File descriptor of KVM's VM in that process, where it is known: with `pid` it names the
    /// VM's folder in debugfs.
    pub vm_fd: Option<u32>,
    /// Its process runs no other VM.
    pub is_alone: bool,
    /// Its vCPUs with a known thread, by index. No thread is in here twice.
    pub vcpus: Vec<VcpuThread>,
    /// vCPUs whose thread is not known; `None` where not even their number is.
    pub unplaced: Option<usize>,
    /// The process's other threads, by thread id. Where one process runs several VMs, they are in
    /// the first.
    pub others: Vec<OtherThread>,
    /// Control group of the process: that of version 1's CPU controller, else that of version 2.
    pub cgroup: Option<String>,
    /// UUID on QEMU's command line.
    pub uuid: Option<String>,
    /// QMP sockets on QEMU's command line, as seen from this host.
    pub qmp: Vec<PathBuf>,
    /// Where name, VMM and accelerator are known from.
    pub sources: Sources,
}

/// Where facts about a VM are known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    /// Source of [`Vm::name`].
    pub name: Source,
    /// Source of [`Vm::vmm`].
    pub vmm: Source,
    /// Source of [`Vm::accel`].
    pub accel: Source,
}

/// A thread: its id means that thread only together with its start time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// When it started, in clock ticks since the host's boot.
    pub start_time: u64,
    /// Its name, which the kernel cuts at 15 bytes and the thread chooses.
    pub comm: String,
}

/// A vCPU and the thread that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuThread {
    /// The VMM's number for this vCPU; KVM's where the VMM's is not known. It names the vCPU within
    /// its VM, and numbers may be left out.
    pub index: u32,
    /// KVM's number for this vCPU, as in its tracepoints and in debugfs, where it was seen. Not
    /// always the VMM's: on x86, QEMU gives KVM the APIC id, which skips numbers where a socket's
    /// count of cores is no power of two.
    pub kvm_id: Option<u32>,
    /// The thread. A single thread that executes all vCPUs in turn (QEMU's `thread=single`) is
    /// there once, under the lowest index.
    pub thread: Thread,
    /// What said that this is the vCPU's thread.
    pub source: Source,
}

/// A thread of a VMM that is no vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherThread {
    /// The thread.
    pub thread: Thread,
    /// What it does, as far as its name says.
    pub role: Role,
}

/// What a thread that is no vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// The process's first thread: the emulator, in most VMMs.
    Main,
    /// It serves disks, network cards or other devices.
    Io,
    /// Not known.
    Other,
}

/// A program that runs VMs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Vmm {
    /// QEMU, by itself or under libvirt.
    Qemu,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// Firecracker.
    Firecracker,
    /// crosvm.
    Crosvm,
    /// kvmtool, `lkvm`.
    Kvmtool,
    /// StratoVirt.
    StratoVirt,
    /// vcoop's own lab of micro-VMs.
    Vcoop,
    /// Some other user of KVM, by the name of its executable.
    Other(String),
}

impl fmt::Display for Vmm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Qemu => "QEMU",
            Self::CloudHypervisor => "Cloud Hypervisor",
            Self::Firecracker => "Firecracker",
            Self::Crosvm => "crosvm",
            Self::Kvmtool => "kvmtool",
            Self::StratoVirt => "StratoVirt",
            Self::Vcoop => "vcoop",
            Self::Other(name) => name,
        })
    }
}

/// What executes a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accel {
    /// The processor, under KVM.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG",
        })
    }
}

/// Where a fact is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The link to the process's executable.
    Executable,
    /// The process's command line.
    CommandLine,
    /// KVM's file descriptors in the process.
    Descriptors,
    /// KVM's files in debugfs.
    Debugfs,
    /// libvirt's state file of the domain.
    Libvirt,
    /// The name of a thread.
    ThreadName,
    /// QEMU's answer over QMP.
    Qmp,
    /// Nothing says it; made up from the process id.
    Pid,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Executable => "executable",
            Self::CommandLine => "command line",
            Self::Descriptors => "file descriptors",
            Self::Debugfs => "debugfs",
            Self::Libvirt => "libvirt",
            Self::ThreadName => "thread name",
            Self::Qmp => "QMP",
            Self::Pid => "process id",
        })
    }
}
