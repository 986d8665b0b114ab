//! What happens to a guest that misbehaves: small programs in ring 3 in place of the image's first
//! instructions, on a vCPU of this host's KVM. Without one, they are skipped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvm_ioctls::Kvm;
use vcoop_abi::discovery::{Features, MSR_REGISTER};
use vcoop_guest::layout;
use vcoop_policy::driver::VcpuDriver;
use vcoop_policy::thread::Policy;
use vcoop_policy::{HostPolicy, VmShared};
use vcoop_testing::need_kvm;
use vcoop_threads::gettid;
use vcoop_threads::tsc::{Clock, tsc};

use super::{Exits, Kicks, run};
use crate::common::Common;
use crate::error::Error;
use crate::event_signal::EventSignal;
use crate::lab_vm::{LabVcpu, LabVm};
use crate::machine::Machine;

/// Where code for ring 0 is put: free memory.
const RING0: u64 = 0x9_0000;

/// `hlt`: a general protection fault in ring 3, and so the end of a test program.
const HLT: u8 = 0xf4;

/// Runs a program as the first thing a vCPU does. `ring0` takes the place of the gate of `int3`.
fn guest(code: &[u8], ring0: &[u8]) -> Option<(Result<(), Error>, LabVm, Exits)> {
    guest_with(code, ring0, None)
}

/// The same, with a bell behind a byte written to the port of calls.
fn guest_with(
    code: &[u8],
    ring0: &[u8],
    bell: Option<(u8, Arc<EventSignal>)>,
) -> Option<(Result<(), Error>, LabVm, Exits)> {
    if let Err(skip) = need_kvm(crate::available()) {
        skip.tell();
        return None;
    }
    let kvm = Kvm::new().unwrap();
    let machine = Machine::new(&kvm, "test", 1).unwrap();
    machine.ram.write(machine.ram.read_word(layout::IMAGE + 8), code);
    if !ring0.is_empty() {
        machine.ram.write(RING0, ring0);
        let low = RING0 & 0xffff | u64::from(layout::KERNEL_CS) << 16 | 0xee << 40;
        let gate = [low | (RING0 >> 16 & 0xffff) << 48, RING0 >> 32];
        machine.ram.write_words(layout::IDT + 3 * 16, &gate);
    }
    let mut fd = machine.vcpu(&kvm, 0, Features::default(), false).unwrap();
    let driver = VcpuDriver::new(HostPolicy::Vanilla, None, Policy::NORMAL);
    let vcpus = vec![LabVcpu::new(0, driver)];
    let mut vm = LabVm::new(machine, VmShared::unbudgeted(0), vcpus);
    if let Some((byte, bell)) = &bell {
        vm.machine.ring_on_write(layout::PORT_CALL, *byte, bell);
    }
    vm.bells.extend(bell);
    let common = Common::new(Clock::new(tsc(), 1_000_000), false);
    let exits = Exits::default();
    vm.attach(&common, 0, gettid()).unwrap();
    let result = run(&common, &vm, 0, &mut fd, &exits);
    vm.detach(&common, 0);
    Some((result, vm, exits))
}

fn what(result: Result<(), Error>) -> String {
    match result {
        Err(Error::Guest { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_exception_is_named_with_its_address() {
    let Some((result, vm, _)) = guest(&[0x90, HLT], &[]) else { return };
    let boot = vm.machine.ram.read_word(layout::IMAGE + 8);
    assert_eq!(what(result), format!("exception 13 (code 0x0) at {:#x}", boot + 1));
}

#[test]
fn a_triple_fault_ends_the_run_with_its_name() {
    // A stack for ring 0 that does not exist: neither the fault nor the double fault can be told.
    let mut code = vec![0x48, 0xc7, 0x04, 0x25];
    code.extend(((layout::GATES + layout::gate::RSP0) as u32).to_le_bytes());
    code.extend([0, 0, 0, 0xf0, HLT]);
    let Some((result, ..)) = guest(&code, &[]) else { return };
    assert_eq!(what(result), "triple fault");
}

#[test]
fn the_host_area_cannot_be_written() {
    // mov [host window + 64], rax
    let mut code = vec![0x48, 0xa3];
    code.extend((layout::HOST_WINDOW + 64).to_le_bytes());
    code.push(HLT);
    let Some((result, vm, exits)) = guest(&code, &[]) else { return };
    assert!(what(result).starts_with("exception 13"));
    assert_eq!(exits.mmio.load(Ordering::Relaxed), 1);
    assert_eq!(vm.machine.host_area(0).status.load(Ordering::Relaxed), 0);
}

#[test]
fn hostile_registrations_are_refused_with_a_fault() {
    let beyond = layout::RAM | 1;
    for (value, accepted) in [(beyond, false), (3, false), (u64::MAX, false), (0x1_0001, true)] {
        // mov ecx, MSR; mov eax, low; mov edx, high; int3; hlt
        let mut code = vec![0xb9];
        code.extend(MSR_REGISTER.to_le_bytes());
        code.push(0xb8);
        code.extend((value as u32).to_le_bytes());
        code.push(0xba);
        code.extend(((value >> 32) as u32).to_le_bytes());
        code.extend([0xcc, HLT]);
        // wrmsr; iretq
        let Some((result, vm, exits)) = guest(&code, &[0x0f, 0x30, 0x48, 0xcf]) else { return };
        let told = what(result);
        assert!(told.starts_with("exception 13"), "{told}");
        assert_eq!(told.ends_with(&format!("{RING0:#x}")), !accepted, "{told}");
        assert_eq!(exits.refused.load(Ordering::Relaxed), u64::from(!accepted));
        assert_eq!(vm.vcpus[0].registration(), if accepted { value } else { 0 });
    }
}

#[test]
fn a_guest_that_rings_for_nothing_is_heard_once_and_counted() {
    // mov ebx, 500; loop: mov dx, port; mov al, 3; int3; mov al, 9; int3; dec ebx; jnz loop; hlt
    let mut code = vec![0xbb, 0xf4, 0x01, 0, 0, 0x66, 0xba];
    code.extend(layout::PORT_CALL.to_le_bytes());
    code.extend([0xb0, 3, 0xcc, 0xb0, 9, 0xcc, 0xff, 0xcb, 0x75, 0xf2, HLT]);
    let bell = Arc::new(EventSignal::new().unwrap());
    let connected = Some((3, Arc::clone(&bell)));
    // out dx, al; iretq
    let Some((result, _, exits)) = guest_with(&code, &[0xee, 0x48, 0xcf], connected) else {
        return;
    };
    assert!(what(result).starts_with("exception 13"));
    assert!(bell.wait() && !bell.wait(), "any number of rings is one");
    // Byte 9 is no line; byte 3 is taken by KVM where it can.
    let seen = exits.send.load(Ordering::Relaxed);
    assert!(seen == 500 || seen == 1_000, "{seen}");
}

#[test]
fn a_flood_of_kicks_is_bounded_and_an_honest_guest_is_not() {
    let mut kicks = Kicks::new(0);
    // One exit a microsecond, for a second.
    let flood = (0..1_000_000).filter(|us| kicks.allow(us * 1_000)).count();
    assert!((20_000..=20_016).contains(&flood), "{flood}");
    let mut kicks = Kicks::new(0);
    assert!((0..10_000).all(|i| kicks.allow(i * 100_000)));
    let mut kicks = Kicks::new(u64::MAX - 5);
    assert!(kicks.allow(u64::MAX));
}
