//! A real QEMU, stopped before its first instruction: found, and asked over QMP.
//!
//! `cargo test -p vcoop-vmm --test qemu -- --ignored` runs them where QEMU is installed.

#[path = "common/qemu.rs"]
mod qemu;

use std::path::Path;

use qemu::Qemu;
use vcoop_testing::Skip;
use vcoop_vmm::{Accel, Source, Vm, Vmm};

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
        Skip::because("there is no /dev/kvm").tell();
        return;
    }
    let qemu = Qemu::start("kvm", "-accel kvm");
    let vm = qemu.vm(|vm| vm.accel == Accel::Kvm && qemu.ask(vm));
    assert_eq!((vm.accel, vm.sources.accel), (Accel::Kvm, Source::Descriptors));
    assert_eq!((vm.vcpus.len(), vm.unplaced), (2, Some(0)));
}
