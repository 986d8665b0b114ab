//! Interrupts at every point of the guest's border between kernel and tasks, on a vCPU of this host's
//! KVM. Without one, the test is skipped.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use vcoop_abi::Class;
use vcoop_abi::discovery::Features;
use vcoop_guest::layout::{RING_STRIDE, RINGS, VECTOR_DEVICE};
use vcoop_guest::program::{DeviceSpec, Kind, Op, TaskSpec};
use vcoop_guest::ring::{Reader, Ring};
use vcoop_policy::driver::VcpuDriver;
use vcoop_policy::thread::Policy;
use vcoop_policy::{HostPolicy, VmShared};
use vcoop_testing::need_kvm;
use vcoop_threads::gettid;
use vcoop_threads::tsc::{Clock, tsc};

use super::{Exits, install_handler, interrupt, run};
use crate::common::Common;
use crate::lab_vm::{LabVcpu, LabVm};
use crate::machine::Machine;
use crate::run::{one_at_a_time, tsc_khz};

/// Time for messages, each followed by some that may find the kernel at work on it.
const TEST: Duration = Duration::from_secs(2);

/// Two fair tasks that hold their registers and take turns every 100 us by the local timer, and a
/// real-time one that device 0 wakes. Device 1 wakes no task, device 2 comes by NMI.
fn machine(kvm: &Kvm, khz: u32) -> Machine {
    let machine = Machine::new(kvm, "border", 1).unwrap();
    let task = |op: Op, class: Class, ring: u64| TaskSpec {
        kind: Kind::Calibrate as u64,
        class: class as u64,
        op: op as u64,
        ring,
        ..TaskSpec::default()
    };
    machine.ram.control(|c| {
        c.vcpus = 1;
        c.tasks = 3;
        c.slice_tsc = u64::from(khz) / 10;
        c.start_tsc = tsc();
        c.task[0] = TaskSpec { prio: 50, ..task(Op::Echo, Class::Fifo, 0) };
        c.task[1] = task(Op::Registers, Class::Fair, 1);
        c.task[2] = task(Op::Registers, Class::Fair, 2);
        c.device[0].wakes = 1;
        c.device[2] = DeviceSpec { nmi: 1, ..DeviceSpec::default() };
    });
    machine
}

#[test]
fn no_interrupt_is_lost_or_seen_by_a_task() {
    if let Err(skip) = need_kvm(crate::available()) {
        return skip.tell();
    }
    let _alone = one_at_a_time();
    install_handler();
    let kvm = Kvm::new().unwrap();
    let khz = tsc_khz(&kvm).unwrap();
    let machine = machine(&kvm, khz);
    let mut fd = machine.vcpu(&kvm, 0, Features::default(), false).unwrap();
    let vcpu = LabVcpu::new(0, VcpuDriver::new(HostPolicy::Vanilla, None, Policy::NORMAL));
    let vm = LabVm::new(machine, VmShared::unbudgeted(0), vec![vcpu]);
    let common = Common::new(Clock::new(tsc(), khz), false);
    let (vm, common, exits) = (&vm, &common, &Exits::default());
    let ring = |n: u64| vm.machine.ram.at::<Ring>(RINGS + n * RING_STRIDE);
    thread::scope(|s| {
        let vcpu = s.spawn(move || {
            vm.attach(common, 0, gettid()).unwrap();
            let result = run(common, vm, 0, &mut fd, exits);
            vm.detach(common, 0);
            result
        });
        let mut echo = Reader::new();
        let mut held = [Reader::new(), Reader::new()];
        let (mut checks, mut changes, mut lost) = ([0_u64; 2], 0, None);
        // Its interrupt controller is off until the guest has booted.
        while checks.contains(&0) && !vcpu.is_finished() {
            for (n, reader) in held.iter_mut().enumerate() {
                reader.read(ring(1 + n as u64), |_| checks[n] += 1);
            }
        }
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let (start, mut messages) = (Instant::now(), 0);
        while start.elapsed() < TEST && lost.is_none() && !vcpu.is_finished() {
            messages += 1;
            // xorshift64 (Marsaglia, 2003).
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let until = tsc() + random % (u64::from(khz) / 12);
            while tsc() < until {}
            vm.machine.signal(0, VECTOR_DEVICE, false).unwrap();
            for i in 0..random >> 40 & 3 {
                vm.machine.signal(0, VECTOR_DEVICE + 1, i == 2).unwrap();
            }
            let (sent, mut answers) = (Instant::now(), 0);
            while answers == 0 && lost.is_none() && !vcpu.is_finished() {
                echo.read(ring(0), |_| answers += 1);
                // The vCPU may want this CPU.
                thread::sleep(Duration::from_micros(10));
                if sent.elapsed() > Duration::from_secs(3) {
                    lost = Some(messages);
                }
            }
            for (n, reader) in held.iter_mut().enumerate() {
                reader.read(ring(1 + n as u64), |s| {
                    checks[n] += 1;
                    changes += s.missed;
                });
            }
        }
        common.end();
        while !vcpu.is_finished() {
            let tid = vm.vcpus[0].tid();
            if tid != 0 {
                interrupt(tid);
            }
            thread::sleep(Duration::from_millis(1));
        }
        vcpu.join().unwrap().unwrap();
        assert_eq!(lost, None, "message without an answer");
        assert_eq!(changes, 0, "of {checks:?} looks at all registers");
        assert!(messages > 20 && checks.iter().all(|n| *n > 100), "{messages}, {checks:?}");
        assert_eq!(exits.refused.load(Ordering::Relaxed), 0);
    });
}
