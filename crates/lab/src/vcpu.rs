//! A vCPU's thread.
#![allow(unsafe_code, reason = "installs a signal handler and signals a thread")]

use std::sync::atomic::{AtomicU64, Ordering};

use kvm_ioctls::{VcpuExit, VcpuFd};
use vcoop_abi::discovery::{MSR_NOTIFY, MSR_REGISTER};
use vcoop_guest::layout::{PORT_CALL, PORT_DOORBELL, PORT_FAULT, PORT_MULTICAST, PORT_PANIC};
use vcoop_model::plan::Ns;
use vcoop_policy::driver;
use vcoop_threads::{gettid, pin};

use crate::common::Common;
use crate::error::Error;
use crate::lab_vm::LabVm;

/// Exits to user space, by kind.
#[derive(Debug, Default)]
pub(crate) struct Exits {
    /// Deadlines announced with an exit.
    pub(crate) doorbell: AtomicU64,
    /// Notifications: ends of boosts.
    pub(crate) notify: AtomicU64,
    /// Registrations that were accepted.
    pub(crate) register: AtomicU64,
    /// Refused registrations, and other MSR accesses without a meaning.
    pub(crate) refused: AtomicU64,
    /// Stores to the read-only host area, and accesses outside of memory.
    pub(crate) mmio: AtomicU64,
    /// Messages to outside of the VM that KVM did not take, including those on lines that do not exist.
    pub(crate) send: AtomicU64,
    /// Interrupts to several vCPUs at once.
    pub(crate) multicast: AtomicU64,
}

impl Exits {
    /// Each counter, under its name in results.
    pub(crate) fn by_name(&self) -> [(&'static str, &AtomicU64); 7] {
        [
            ("doorbell", &self.doorbell),
            ("notify", &self.notify),
            ("register", &self.register),
            ("refused", &self.refused),
            ("mmio", &self.mmio),
            ("send", &self.send),
            ("multicast", &self.multicast),
        ]
    }
}

/// What one exit asks for.
enum ExitRequest {
    Nothing,
    Doorbell,
    Notify,
    Register,
    Refused,
    Mmio,
    Send(u8),
    Multicast,
    Fault(u16),
}

/// Limits how often a vCPU may wake the injector: a burst, and a rate. An honest guest does so once a boost or a near
/// deadline. A guest that floods would keep the injector, a thread above almost everything on the host, busy for ever.
/// Nothing is lost without a kick: the vCPU's own thread answers a notification, and the injector finds a deadline at
/// its next look.
#[derive(Debug)]
pub(crate) struct Kicks {
    left: u64,
    /// When `left` was last topped up.
    at: Ns,
}

impl Kicks {
    const BURST: u64 = 16;
    /// Time to earn one kick.
    const EVERY_NS: Ns = 50_000;

    /// A full burst, at time `now`.
    pub(crate) fn new(now: Ns) -> Self {
        Self { left: Self::BURST, at: now }
    }

    /// Whether one more kick is allowed; it is counted then.
    pub(crate) fn allow(&mut self, now: Ns) -> bool {
        let more = now.saturating_sub(self.at) / Self::EVERY_NS;
        self.at = self.at.saturating_add(more * Self::EVERY_NS);
        self.left = self.left.saturating_add(more).min(Self::BURST);
        let allowed = self.left > 0;
        self.left -= u64::from(allowed);
        allowed
    }
}

/// Runs a vCPU until the run is over.
///
/// # Errors
///
/// [`Error::Kernel`], [`Error::Guest`].
pub(crate) fn run(
    common: &Common,
    vm: &LabVm,
    n: u32,
    fd: &mut VcpuFd,
    exits: &Exits,
) -> Result<(), Error> {
    let guest = |what: String| Error::Guest { whom: vm.machine.vcpu_target(n), what };
    let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    let mut kicks = Kicks::new(common.clock.now());
    while !common.is_over() {
        match next(common, vm, n, fd)? {
            ExitRequest::Notify => {
                count(&exits.notify);
                #[cfg(test)]
                crate::fault_injection::notified(
                    &vm.machine.name,
                    exits.notify.load(Ordering::Relaxed),
                );
                let may_kick = kicks.allow(common.clock.now());
                vm.notify(common, n, may_kick)?;
                continue;
            }
            ExitRequest::Doorbell => {
                count(&exits.doorbell);
                if kicks.allow(common.clock.now()) {
                    common.kick.kick();
                }
            }
            ExitRequest::Register => {
                count(&exits.register);
            }
            ExitRequest::Refused => {
                count(&exits.refused);
            }
            ExitRequest::Mmio => {
                count(&exits.mmio);
            }
            ExitRequest::Send(line) => {
                count(&exits.send);
                if let Some((_, bell)) = vm.bells.iter().find(|(n, _)| *n == line) {
                    bell.ring();
                }
            }
            ExitRequest::Multicast => {
                count(&exits.multicast);
                vm.multicast(common, n)?;
            }
            ExitRequest::Fault(vector) => return Err(guest(fault(vm, fd, vector))),
            ExitRequest::Nothing => {}
        }
        if vm.vcpus[n as usize].is_registered() {
            driver::exit(&mut vm.port(common, n))?;
        }
    }
    Ok(())
}

/// Runs the vCPU until an exit to user space, and handles exits that need only this thread.
fn next(common: &Common, vm: &LabVm, n: u32, fd: &mut VcpuFd) -> Result<ExitRequest, Error> {
    let guest = |what: String| Error::Guest { whom: vm.machine.vcpu_target(n), what };
    Ok(match fd.run() {
        Ok(VcpuExit::IoOut(port, data)) => match port {
            PORT_DOORBELL => ExitRequest::Doorbell,
            PORT_CALL => ExitRequest::Send(data.first().copied().unwrap_or(u8::MAX)),
            PORT_MULTICAST => ExitRequest::Multicast,
            PORT_PANIC => return Err(guest("the guest kernel panicked".to_owned())),
            _ if (PORT_FAULT..PORT_FAULT + 32).contains(&port) => {
                ExitRequest::Fault(port - PORT_FAULT)
            }
            _ => ExitRequest::Nothing,
        },
        Ok(VcpuExit::X86Wrmsr(exit)) => match exit.index {
            MSR_NOTIFY => ExitRequest::Notify,
            MSR_REGISTER if vm.register(common, n, exit.data)? => ExitRequest::Register,
            _ => {
                // A general protection fault in the guest.
                *exit.error = 1;
                ExitRequest::Refused
            }
        },
        Ok(VcpuExit::X86Rdmsr(exit)) => {
            match exit.index {
                MSR_REGISTER => *exit.data = vm.vcpus[n as usize].registration(),
                MSR_NOTIFY => *exit.data = 0,
                _ => *exit.error = 1,
            }
            ExitRequest::Nothing
        }
        Ok(VcpuExit::MmioRead(_, data)) => {
            data.fill(0xff);
            ExitRequest::Mmio
        }
        Ok(VcpuExit::MmioWrite(..)) => ExitRequest::Mmio,
        Ok(VcpuExit::IoIn(_, data)) => {
            data.fill(0xff);
            ExitRequest::Nothing
        }
        Ok(VcpuExit::Intr | VcpuExit::Hlt) => ExitRequest::Nothing,
        Ok(VcpuExit::Shutdown) => return Err(guest("triple fault".to_owned())),
        Ok(VcpuExit::InternalError) => {
            return Err(guest("KVM could not emulate an instruction of the guest".to_owned()));
        }
        Ok(other) => {
            let what = format!("exit that the lab does not expect: {other:?}");
            return Err(guest(what));
        }
        Err(e) if e.errno() == libc::EINTR || e.errno() == libc::EAGAIN => ExitRequest::Nothing,
        Err(e) => return Err(Error::kvm("KVM_RUN", &vm.machine.vcpu_target(n))(e)),
    })
}

/// Describes an unexpected exception. Its gate has not touched the stack, which has the frame, above an error code for
/// some vectors.
fn fault(vm: &LabVm, fd: &VcpuFd, vector: u16) -> String {
    let coded = matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30);
    let rsp = fd.get_regs().map_or(0, |regs| regs.rsp);
    let word = |i: u64| {
        let at = rsp.saturating_add(8 * i);
        let inside = at.is_multiple_of(8) && at <= vm.machine.ram.len() - 8;
        if inside { vm.machine.ram.read_word(at) } else { 0 }
    };
    let (code, rip) = if coded { (word(0), word(1)) } else { (0, word(0)) };
    format!("exception {vector} (code {code:#x}) at {rip:#x}")
}

/// The signal that makes a thread leave KVM_RUN.
fn signal() -> libc::c_int {
    libc::SIGRTMIN()
}

/// Installs a handler that does nothing, so that the signal only interrupts. Once a process.
pub(crate) fn install_handler() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing, so it may run anywhere; without SA_RESTART system calls
    // end with EINTR, which is the point.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(signal(), &raw const action, std::ptr::null_mut());
    }
}

/// Makes a thread of this process leave KVM_RUN. A thread that is just about to enter it is missed: the caller repeats
/// until the thread has ended.
pub(crate) fn interrupt(tid: i32) {
    // SAFETY: signals a thread of our own process, or none if it has ended.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal()) };
}

/// Names the calling thread and pins it.
///
/// # Errors
///
/// [`Error::Kernel`].
pub(crate) fn prepare(vm: &LabVm, n: u32, cpus: &[u32]) -> Result<i32, Error> {
    pin(cpus).map_err(Error::refused(&vm.machine.vcpu_target(n)))?;
    Ok(gettid())
}

#[cfg(test)]
mod border;
#[cfg(test)]
mod tests;
