//! Stock Linux guests under QEMU, for tests and demonstrations on ordinary VMs.
//!
//! ```text
//! kernel      a distribution's cloud kernel, out of its package, kept under target/stock
//! initramfs   busybox, cyclictest, and an /init that obeys the second serial port
//! QEMU        that of the host, by default as a pure emulator (TCG)
//! ```
//!
//! Nothing is installed. If QEMU, a program or the kernel's package is not available, the error is
//! [`StockError::Missing`], and a test skips itself.
//!
//! ```no_run
//! use std::time::Duration;
//! let vm = vcoop_stock::StockVm::start(&vcoop_stock::Options::default())?;
//! let output = vm.run("uname -r", Duration::from_secs(5))?;
//! println!("{}: {:?}, process {}", output.stdout, vm.vcpu_tids()?, vm.pid());
//! # Ok::<(), vcoop_stock::StockError>(())
//! ```
#![cfg(target_os = "linux")]

mod control;
mod cpio;
mod debian;
mod dkms;
mod error;
mod hogs;
mod host;
mod initramfs;
mod kernel;
mod kvm_host;
mod module;
mod qemu;
mod release;
mod tree;
mod vm;

pub use control::{Control, Output};
pub use dkms::Dkms;
pub use error::StockError;
pub use hogs::Hogs;
pub use host::{dies_with_caller, program};
pub use kernel::Kernel;
pub use kvm_host::{GuestImage, HostOptions, KvmHost};
pub use module::{Headers, guest_program};
pub use qemu::Qemu;
pub use release::{CLOUD, RT};
pub use tree::KernelTree;
pub use vm::{Options, StockVm};
