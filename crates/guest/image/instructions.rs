//! Instructions: some run in ring 0, by way of the gates.

use core::arch::asm;

pub(crate) const IA32_TSC_DEADLINE: u32 = 0x6e0;
pub(crate) const X2APIC_EOI: u32 = 0x80b;
pub(crate) const X2APIC_SPURIOUS: u32 = 0x80f;
pub(crate) const X2APIC_ICR: u32 = 0x830;
pub(crate) const X2APIC_LVT_TIMER: u32 = 0x832;

/// Writes an MSR. One exit of the gate kind, and whatever the MSR costs.
pub(crate) fn wrmsr(msr: u32, value: u64) {
    // SAFETY: `int3` runs one `wrmsr` in ring 0 and comes back; the kernel's own stack is not used.
    unsafe {
        asm!(
            "lea r11, [rip + ring0_wrmsr]", "int3",
            in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32, out("r11") _,
        );
    }
}

/// Writes an MSR that the host may refuse; false: it did, by a general protection fault.
pub(crate) fn wrmsr_checked(msr: u32, value: u64) -> bool {
    let done: u64;
    // SAFETY: as above; the gate of the fault comes back here too, with 0 in r11.
    unsafe {
        asm!(
            "lea r11, [rip + ring0_wrmsr_checked]", "int3",
            in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32,
            out("r11") done,
        );
    }
    done != 0
}

/// Does nothing, in ring 0: measures what every gate costs.
pub(crate) fn null() {
    // SAFETY: `int3` returns from ring 0 at once.
    unsafe { asm!("lea r11, [rip + ring0_null]", "int3", out("r11") _) };
}

/// Writes a byte to a port.
pub(crate) fn out(port: u16, value: u8) {
    // SAFETY: as above, with `out`.
    unsafe {
        asm!("lea r11, [rip + ring0_out]", "int3", in("dx") port, in("al") value, out("r11") _);
    }
}

/// CPUID in ring 0: if ring 3 runs natively, it would get the host's.
pub(crate) fn cpuid(leaf: u32) -> [u32; 4] {
    let (eax, ebx, ecx, edx): (u32, u64, u32, u32);
    // SAFETY: as above; rbx is the compiler's, so it is saved around.
    unsafe {
        asm!(
            "mov {b}, rbx", "lea r11, [rip + ring0_cpuid]", "int3", "xchg {b}, rbx",
            b = out(reg) ebx, inout("eax") leaf => eax, inout("ecx") 0 => ecx,
            out("edx") edx, out("r11") _,
        );
    }
    [eax, ebx as u32, ecx, edx]
}

/// A task's call of the kernel.
pub(crate) fn call(op: u64, arg: u64) {
    // SAFETY: `task_call` follows the C calling convention: the kernel restores what that preserves.
    unsafe {
        asm!("call task_call", in("rdi") op, in("rsi") arg, clobber_abi("sysv64"));
    }
}

/// The TSC. Ordered after earlier instructions, so that a sample's time is not too early.
pub(crate) fn tsc() -> u64 {
    // SAFETY: reads two counters' worth of registers.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

/// Counts down: the unit of work. The host times the same loop.
pub(crate) fn work(iterations: u64) {
    if iterations > 0 {
        // SAFETY: touches one register.
        unsafe {
            asm!("2: dec {0}", "jnz 2b", inout(reg) iterations => _, options(nomem, nostack));
        }
    }
}
