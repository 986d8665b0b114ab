//! Finding the virtual machines on this host, and the threads of their vCPUs.
//!
//! A [`Proc`] reads `/proc`, KVM's files in debugfs and libvirt's state files; [`Proc::scan`] gives
//! one [`Vm`] for each VM found. It changes nothing on the host and connects to nothing. QEMU can
//! be asked in addition, over its QMP socket, with [`Proc::ask`].
//!
//! ```text
//! /proc/PID/fd        kvm-vm, kvm-vcpu:N          which processes have a VM; how many vCPUs
//! debugfs kvm/PID-FD  vcpuN/pid                   thread of each vCPU, exact
//! libvirt NAME.xml    <vcpu id= pid=>             thread of each vCPU; name of the VM
//! /proc/PID/task      `CPU 0/KVM`, `fc_vcpu 0`    thread of each vCPU, as the VMM names it
//! /proc/PID/cmdline   -name, --id, -qmp           name of the VM; sockets to ask
//! ```
//!
//! Input is not trusted. A VMM chooses its thread names, its command line and its QMP replies, so each of them is
//! bounded in size ([`limits`]), and control characters in text for display are escaped. A thread is only reported
//! under the process in which the kernel lists it. The id of a process or thread may be reused during the scan, so
//! start times are compared at the end, and whatever changed is dropped. From then on a thread is identified by id and
//! start time.
//!
//! ```no_run
//! let scan = vcoop_vmm::Proc::default().scan()?;
//! for vm in &scan.vms {
//!     let threads: Vec<_> = vm.vcpus.iter().map(|v| (v.index, v.thread.tid)).collect();
//!     println!("{} ({}, process {}): {threads:?}", vm.name, vm.vmm, vm.pid);
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod assemble;
mod groups;
mod known;
mod libvirt;
pub mod limits;
mod proc;
pub mod qmp;
mod text;
mod vm;

pub use groups::{CpuMax, FairGroup, Groups, Level, rations_real_time};
pub use proc::{Proc, Scan, SkippedProcesses};
pub use vm::{Accel, OtherThread, Role, Source, Sources, Thread, VcpuThread, Vm, Vmm};
