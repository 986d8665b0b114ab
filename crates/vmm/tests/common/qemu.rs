//! A real QEMU, stopped before its first instruction. The command's tests use it, too.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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

    /// Asks it over QMP. A thread that was started after the scan is no reason to fail.
    pub(crate) fn ask(&self, vm: &mut Vm) -> bool {
        match Proc::default().ask(vm, &self.socket, Duration::from_secs(30)) {
            Ok(()) => true,
            Err(QmpError::Connect(_) | QmpError::ForeignThread { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// What is found of it, once it is there and `ready`.
    pub(crate) fn vm(&self, ready: impl Fn(&mut Vm) -> bool) -> Vm {
        let give_up = Instant::now() + Duration::from_secs(30);
        while Instant::now() < give_up {
            let vms = Proc::default().scan().unwrap().vms;
            let mine = vms.into_iter().find(|vm| vm.pid == self.child.id());
            if let Some(mut vm) = mine
                && ready(&mut vm)
            {
                return vm;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("QEMU is not found");
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}
