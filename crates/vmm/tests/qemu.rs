//! A real QEMU, stopped before its first instruction: found, and asked over QMP.
//!
//! `cargo test -p vcoop-vmm --test qemu -- --ignored` runs them where QEMU is installed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vcoop_vmm::qmp::{QmpError, TIMEOUT};
use vcoop_vmm::{Accel, Proc, Source, Vm, Vmm};

struct Qemu {
    child: Child,
    socket: PathBuf,
}

impl Qemu {
    fn start(test: &str, args: &str) -> Self {
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
    fn ask(&self, vm: &mut Vm) -> bool {
        match Proc::default().ask(vm, &self.socket, TIMEOUT) {
            Ok(()) => true,
            Err(QmpError::Connect(_) | QmpError::ForeignThread { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// What is found of it, once it is there and `ready`.
    fn vm(&self, ready: impl Fn(&mut Vm) -> bool) -> Vm {
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

fn threads(vm: &Vm) -> Vec<(u32, u32)> {
    vm.vcpus.iter().map(|v| (v.index, v.thread.tid)).collect()
}

#[test]
#[ignore = "needs QEMU"]
fn qmp_and_the_names_of_threads_agree() {
    let qemu = Qemu::start("names", "-accel tcg,thread=multi -name guest=web,debug-threads=on");
    let mut vm = qemu.vm(|vm| vm.vcpus.len() == 2);
    assert_eq!((&vm.name[..], &vm.vmm, vm.accel), ("web", &Vmm::Qemu, Accel::Tcg));
    assert_eq!(vm.qmp, std::slice::from_ref(&qemu.socket));
    let found = threads(&vm);
    assert!(qemu.ask(&mut vm));
    assert_eq!(threads(&vm), found);
    assert!(vm.vcpus.iter().all(|v| v.source == Source::Qmp));
}

#[test]
#[ignore = "needs QEMU"]
fn qmp_finds_threads_without_names() {
    for (test, args, threads) in
        [("multi", "-accel tcg,thread=multi", 2), ("single", "-accel tcg,thread=single", 1)]
    {
        let qemu = Qemu::start(test, args);
        let vm = qemu.vm(|vm| qemu.ask(vm));
        assert_eq!((vm.vcpus.len(), vm.unplaced), (threads, Some(0)));
    }
}

#[test]
#[ignore = "needs QEMU and /dev/kvm"]
fn kvms_vcpus_are_counted_by_their_descriptors() {
    if !Path::new("/dev/kvm").exists() {
        eprintln!("skipped: there is no /dev/kvm");
        return;
    }
    let qemu = Qemu::start("kvm", "-accel kvm");
    let vm = qemu.vm(|vm| vm.accel == Accel::Kvm && qemu.ask(vm));
    assert_eq!((vm.accel, vm.sources.accel), (Accel::Kvm, Source::Descriptors));
    assert_eq!((vm.vcpus.len(), vm.unplaced), (2, Some(0)));
}
