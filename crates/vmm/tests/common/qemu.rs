//! A real QEMU, stopped before its first instruction. The command's tests use it, too.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vcoop_testing::found;
use vcoop_vmm::qmp::QmpError;
use vcoop_vmm::{Proc, Vm};

/// It is killed when dropped.
pub(crate) struct Qemu {
    pub(crate) child: Child,
    /// Its QMP socket.
    pub(crate) socket: PathBuf,
}

impl Qemu {
    /// Two vCPUs, with more `args`.
    pub(crate) fn start(test: &str, args: &str) -> Self {
        let socket = std::env::temp_dir().join(format!("vcoop-{}-{test}", std::process::id()));
        let child = Command::new("qemu-system-x86_64")
            .args("-S -display none -serial null -monitor none -nodefaults -smp 2".split(' '))
            .args(args.split(' '))
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .stderr(Stdio::null())
            .spawn()
            .expect("apt-get install qemu-system-x86");
        Self { child, socket }
    }

    /// Asks it over QMP. A thread that started after the scan is no failure.
    pub(crate) fn ask(&self, vm: &mut Vm) -> bool {
        match Proc::default().ask(vm, &self.socket, Duration::from_secs(30)) {
            Ok(()) => true,
            Err(QmpError::Connect(_) | QmpError::ForeignThread { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// The VM as found by a scan, once it exists and is `ready`.
    pub(crate) fn vm(&self, ready: impl Fn(&mut Vm) -> bool) -> Vm {
        found("QEMU", || {
            let vms = Proc::default().scan().unwrap().vms;
            let mut vm = vms.into_iter().find(|vm| vm.pid == self.child.id())?;
            ready(&mut vm).then_some(vm)
        })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}
