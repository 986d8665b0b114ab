//! Description of a VM on this host.

use std::fmt;
use std::path::PathBuf;

/// A virtual machine that runs on this host.
///
/// Its text comes from the VMM. It is bounded, and safe to print: control characters are escaped. Names need not be
/// unique, except within one process if KVM's folders in debugfs are readable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Vm {
    /// Its name; made from the VMM's name and the process id if it has none. If VMs of one process share a name, `#`
    /// and [`Self::vm_fd`] are appended.
    pub name: String,
    /// Program that runs it.
    pub vmm: Vmm,
    /// What executes its instructions.
    pub accel: Accel,
    /// Process of the VMM, in the PID namespace of the `/proc` that was read.
    pub pid: u32,
    /// When that process started, in clock ticks since the host's boot.
    pub start_time: u64,
    /// File descriptor of KVM's VM in that process, if known: with `pid` it gives the VM's folder in debugfs.
    pub vm_fd: Option<u32>,
    /// Whether its process runs no other VM.
    pub is_alone: bool,
    /// Its vCPUs with a known thread, by index. No thread occurs twice.
    pub vcpus: Vec<VcpuThread>,
    /// Number of vCPUs whose thread is not known; `None` if even the number is not known.
    pub unplaced: Option<usize>,
    /// The process's other threads, by thread id. If a process runs several VMs, they are in the first one.
    pub others: Vec<OtherThread>,
    /// Control group of the process: that of version 1's CPU controller, or else that of version 2.
    pub cgroup: Option<String>,
    /// UUID on QEMU's command line.
    pub uuid: Option<String>,
    /// QMP sockets on QEMU's command line, as seen from this host.
    pub qmp: Vec<PathBuf>,
    /// Sources of name, VMM and accelerator.
    pub sources: Sources,
}

/// Sources of facts about a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    /// Source of [`Vm::name`].
    pub name: Source,
    /// Source of [`Vm::vmm`].
    pub vmm: Source,
    /// Source of [`Vm::accel`].
    pub accel: Source,
}

/// A thread, identified by its id together with its start time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// When it started, in clock ticks since the host's boot.
    pub start_time: u64,
    /// Its name, which the thread chooses and the kernel cuts at 15 bytes.
    pub comm: String,
}

/// A vCPU and the thread that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuThread {
    /// The VMM's index of this vCPU, or KVM's id if that is not known. Unique within the VM, possibly with gaps.
    pub index: u32,
    /// KVM's id of this vCPU, as in its tracepoints and in debugfs, if known. It can differ from the VMM's index: on
    /// x86, QEMU gives KVM the APIC id, which has gaps if the number of cores of a socket is not a power of two.
    pub kvm_id: Option<u32>,
    /// The thread. A single thread that executes all vCPUs in turn (QEMU's `thread=single`) occurs once, under the
    /// lowest index.
    pub thread: Thread,
    /// Source of the assignment of the thread.
    pub source: Source,
}

/// A thread of a VMM that is not a vCPU's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherThread {
    /// The thread.
    pub thread: Thread,
    /// Its role, as far as its name shows it.
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
    /// QEMU, alone or under libvirt.
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
    /// Another user of KVM, by the name of its executable.
    Other(String),
}

impl Vmm {
    /// All with a name of their own.
    pub const KNOWN: [Self; 7] = [
        Self::Qemu,
        Self::CloudHypervisor,
        Self::Firecracker,
        Self::Crosvm,
        Self::Kvmtool,
        Self::StratoVirt,
        Self::Vcoop,
    ];
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
    /// QEMU's binary translator.
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

/// Source of a fact.
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
    /// None; made up from the process id.
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
