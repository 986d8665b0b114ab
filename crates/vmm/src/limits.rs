//! Bounds on how much foreign input this crate reads and keeps.

/// Threads of a process; further ones are left out.
pub const THREADS: usize = 4096;
/// File descriptors of a process; a VMM opens KVM's among its first ones.
pub const DESCRIPTORS: usize = 16_384;
/// VMs of one process.
pub const VMS: usize = 1024;
/// vCPUs of one process. KVM itself allows 4096 in a VM.
pub const VCPUS: usize = 4096;
/// Bytes of a command line that are read.
pub const COMMAND_LINE: usize = 64 << 10;
/// Bytes of any other file in `/proc` or debugfs that are read.
pub const SMALL_FILE: usize = 16 << 10;
/// Domains of libvirt.
pub const DOMAINS: usize = 4096;
/// Bytes of one of libvirt's state files that are read.
pub const STATE_FILE: usize = 512 << 10;
/// Bytes of foreign text that are kept for display, before escaping.
pub const SHOWN: usize = 256;
/// Bytes of one line of a QMP conversation.
pub const QMP_LINE: usize = 1 << 20;
/// Bytes of a whole QMP conversation, events included.
pub const QMP_TOTAL: usize = 4 << 20;
