//! The program, and guests for it.

use std::process::{Child, Command};

use serde_json::Value;
use vcoop_stock::{Options, StockError, StockVm, dies_with_caller, program};
use vcoop_testing::{ProgramOutput, Skip};

pub(crate) const VCOOP: &str = env!("CARGO_BIN_EXE_vcoop");

pub(crate) fn vcoop(args: &[&str]) -> ProgramOutput {
    ProgramOutput::by(Command::new(VCOOP).args(args))
}

/// The VMs that `vcoop vms --json` shows; it never complains.
pub(crate) fn vms(args: &[&str]) -> Vec<Value> {
    let said = vcoop(&[&["vms", "--json"], args].concat()).well();
    assert_eq!(said.err, "");
    let mut document = said.json();
    assert_eq!(document["schema"], "vcoop.vms/1");
    match document["vms"].take() {
        Value::Array(vms) => vms,
        other => panic!("{other}"),
    }
}

/// The one of a process.
pub(crate) fn vm_of(pid: u32, args: &[&str]) -> Value {
    let found = vms(args).into_iter().find(|vm| vm["pid"] == pid);
    found.expect("the VM is found")
}

/// A guest that has come up.
///
/// # Errors
///
/// It cannot be had here.
pub(crate) fn guest(options: &Options) -> Result<StockVm, Skip> {
    have(StockVm::start(options))
}

/// What is missing is a reason to skip.
///
/// # Errors
///
/// It is missing here.
pub(crate) fn have<T>(result: Result<T, StockError>) -> Result<T, Skip> {
    result.map_err(|error| {
        assert!(error.is_missing(), "{error}");
        Skip::because(error)
    })
}

/// A QEMU without a guest.
pub(crate) struct Qemu(Child);

impl Qemu {
    pub(crate) fn start(name: &str, args: &[&str]) -> Self {
        let mut command = dies_with_caller("KILL", "qemu-system-x86_64");
        command
            .args("-display none -nodefaults -m 16".split(' '))
            .args(["-name", &format!("{name},debug-threads=on")])
            .args(args);
        Self(command.spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Ends it, if it has not ended.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Needs QEMU.
///
/// # Errors
///
/// It is not installed.
pub(crate) fn need_qemu() -> Result<(), Skip> {
    program("qemu-system-x86_64", "qemu-system-x86").map(drop).map_err(Skip::because)
}

/// Needs events of threads.
///
/// # Errors
///
/// tracefs is not mounted.
pub(crate) fn needs_tracefs() -> Result<(), Skip> {
    vcoop_sources::Source::open().map(drop).map_err(Skip::because)
}
