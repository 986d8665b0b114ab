//! Ring 0, and the border of the kernel.
//!
//! Every gate runs with interrupts off on the vCPU's gate page, whose ring-0 stack is empty between
//! gates. So the frame that the processor pushes always lies at the same place, and the frames that
//! lead on lie right above it: leaving a gate is to move `rsp` to one of them and return.
//!
//! Two exceptions are the ways into ring 0: `int3` continues at the address in `r11`, `ud2` resumes
//! a task with all its registers. Software interrupts by number would be the obvious choice, but the
//! software-virtualised KVM does not deliver them in long mode.

use core::arch::{asm, global_asm};

use vcoop_guest::layout::{HEADER_MAGIC, gate};

use crate::machine::Context;

// Context offsets used by the assembly below.
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Context, rbx) == 8 && offset_of!(Context, r15) == 112);
    assert!(offset_of!(Context, fx) == 144);
};

global_asm!(
    ".section .header, \"a\"",
    ".globl header",
    "header:",
    ".quad {magic}, boot",
    ".quad gate_0, gate_1, gate_2, 0",
    ".altmacro",
    ".macro addresses name, from, to",
    "  .set i, \\from",
    "  .rept \\to - \\from",
    "    address \\name, %i",
    "    .set i, i + 1",
    "  .endr",
    ".endm",
    ".macro address name, i",
    "  .quad \\name\\i",
    ".endm",
    "addresses gate_, 4, {causes}",
    "addresses upcall_, 0, {causes}",
    ".quad gate_breakpoint, gate_resume, gate_nmi",
    "addresses gate_fault_, 0, 32",
    // Interrupts: on to the kernel, by the frame of this cause. No register is touched.
    ".section .gates, \"ax\"",
    ".macro interrupt_gate i",
    "  .balign 16",
    "gate_\\i:",
    "  add rsp, {frame} * (\\i + 1)",
    "  iretq",
    ".endm",
    ".macro upcall i",
    "  .balign 16",
    "upcall_\\i:",
    "  push \\i",
    "  jmp upcall",
    ".endm",
    // A refused MSR write of `wrmsr_checked` is no fault: back to the task behind it, from the frame
    // that brought it into ring 0, with 0 in r11.
    ".macro general_protection_gate",
    "  .balign 8",
    "gate_fault_13:",
    "  push rax",
    "  lea rax, [rip + ring0_wrmsr_checked]",
    "  cmp [rsp + 16], rax",
    "  pop rax",
    "  jne 2f",
    "  xor r11d, r11d",
    "  and rsp, -4096",
    "  add rsp, {interrupted}",
    "  iretq",
    "2: out 0x80 + 13, al",
    "1: hlt",
    "  jmp 1b",
    ".endm",
    ".macro fault_gate i",
    "  .balign 8",
    "gate_fault_\\i:",
    "  out 0x80 + \\i, al",
    "1: hlt",
    "  jmp 1b",
    ".endm",
    ".set i, 0",
    ".rept {causes}",
    "  interrupt_gate %i",
    "  upcall %i",
    "  .set i, i + 1",
    ".endr",
    ".set i, 0",
    ".rept 32",
    ".if i - 13",
    "  fault_gate %i",
    ".else",
    "  general_protection_gate",
    ".endif",
    "  .set i, i + 1",
    ".endr",
    ".balign 16",
    "gate_breakpoint: jmp r11",
    ".balign 16",
    "gate_resume:",
    "  add rsp, {to_resume}",
    "  iretq",
    // An NMI can hit the kernel itself. It only sends the vCPU an interrupt, which comes when the
    // kernel is done.
    ".balign 16",
    "gate_nmi:",
    "  push rax",
    "  push rcx",
    "  push rdx",
    "  mov ecx, 0x83f",
    "  mov eax, 0xf0",
    "  xor edx, edx",
    "  wrmsr",
    "  pop rdx",
    "  pop rcx",
    "  pop rax",
    "  iretq",
    // Continuations of `int3`.
    ".balign 16",
    "ring0_wrmsr: wrmsr",
    "  iretq",
    ".balign 16",
    "ring0_wrmsr_checked: wrmsr",
    "  iretq",
    ".balign 16",
    "ring0_cpuid: cpuid",
    "  iretq",
    ".balign 16",
    "ring0_out: out dx, al",
    "  iretq",
    ".balign 16",
    "ring0_null: iretq",
    ".balign 16",
    "ring0_trap:",
    "  add rsp, {frame} * 4",
    "  iretq",
    ".balign 16",
    "ring0_resume_eoi: wrmsr",
    "  add rsp, {to_resume}",
    "  iretq",
    // Whoever interrupts this never comes back here: the kernel decides anew.
    ".balign 16",
    "ring0_idle:",
    "  add rsp, {frame}",
    "  sti",
    "1: hlt",
    "  jmp 1b",
    // Into the kernel: save the interrupted registers in the current context. The stack is empty
    // but for the cause; above it lie the vCPU's number and the current context's address.
    ".balign 16",
    "upcall:",
    "  push rax",
    "  mov rax, [rsp + 24]",
    "  mov [rax + 8], rbx",
    "  mov [rax + 16], rcx",
    "  mov [rax + 24], rdx",
    "  mov [rax + 32], rsi",
    "  mov [rax + 40], rdi",
    "  mov [rax + 48], rbp",
    "  mov [rax + 56], r8",
    "  mov [rax + 64], r9",
    "  mov [rax + 72], r10",
    "  mov [rax + 80], r11",
    "  mov [rax + 88], r12",
    "  mov [rax + 96], r13",
    "  mov [rax + 104], r14",
    "  mov [rax + 112], r15",
    "  pop rcx",
    "  mov [rax], rcx",
    "  fxsave64 [rax + 144]",
    "  pop rsi",
    "  mov rdi, [rsp]",
    "  cld",
    "  call {enter}",
    // Out of it: rax = context, rdx = how.
    "leave:",
    "  cmp edx, 1",
    "  ja go_idle",
    "  fxrstor64 [rax + 144]",
    "  mov rbx, [rax + 8]",
    "  mov rbp, [rax + 48]",
    "  mov r12, [rax + 88]",
    "  mov r13, [rax + 96]",
    "  mov r14, [rax + 104]",
    "  mov r15, [rax + 112]",
    "  je quick",
    "  mov rcx, [rax + 16]",
    "  mov rdx, [rax + 24]",
    "  mov rsi, [rax + 32]",
    "  mov rdi, [rax + 40]",
    "  mov r8, [rax + 56]",
    "  mov r9, [rax + 64]",
    "  mov r10, [rax + 72]",
    "  mov r11, [rax + 80]",
    "  mov rax, [rax]",
    "  ud2",
    // The task slept in a call: its caller-saved registers are dead, so the end of the interrupt
    // and the return share one gate.
    "quick:",
    "  mov ecx, 0x80b",
    "  xor eax, eax",
    "  xor edx, edx",
    "  lea r11, [rip + ring0_resume_eoi]",
    "  int3",
    "go_idle:",
    "  lea r11, [rip + ring0_idle]",
    "  int3",
    ".balign 16",
    "boot:",
    "  call {boot}",
    "  jmp leave",
    ".globl task_call",
    "task_call:",
    "  lea r11, [rip + ring0_trap]",
    "  int3",
    "  ret",
    // What the compiler may call.
    ".globl memcpy, memmove, memset, memcmp, bcmp",
    "memcpy:",
    "  mov rax, rdi",
    "  mov rcx, rdx",
    "  rep movsb",
    "  ret",
    "memmove:",
    "  mov rax, rdi",
    "  mov rcx, rdx",
    "  cmp rdi, rsi",
    "  jbe 2f",
    "  lea rdi, [rdi + rcx - 1]",
    "  lea rsi, [rsi + rcx - 1]",
    "  std",
    "  rep movsb",
    "  cld",
    "  ret",
    "2: rep movsb",
    "  ret",
    "memset:",
    "  mov r8, rdi",
    "  mov eax, esi",
    "  mov rcx, rdx",
    "  rep stosb",
    "  mov rax, r8",
    "  ret",
    "memcmp:",
    "bcmp:",
    "  xor eax, eax",
    "  mov rcx, rdx",
    "  cmp rcx, rcx",
    "  repe cmpsb",
    "  je 3f",
    "  movzx eax, byte ptr [rdi - 1]",
    "  movzx ecx, byte ptr [rsi - 1]",
    "  sub ecx, eax",
    "  mov eax, ecx",
    "3: ret",
    ".noaltmacro",
    magic = const HEADER_MAGIC,
    causes = const gate::CAUSES,
    frame = const gate::FRAME,
    to_resume = const gate::RESUME - gate::INTERRUPTED,
    interrupted = const gate::INTERRUPTED,
    enter = sym crate::machine::enter,
    boot = sym crate::machine::boot,
);

/// How the kernel leaves; what `leave` expects in `rdx`.
#[repr(u64)]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leave {
    /// Back to an interrupted task; the end of the interrupt has been signalled.
    Full = 0,
    /// Back to a task that slept in a call, with the end of the interrupt.
    Quick = 1,
    /// Halt.
    Idle = 2,
}

/// Two registers.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Exit {
    /// The context to resume.
    pub(crate) context: *const Context,
    /// How.
    pub(crate) how: Leave,
}

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

/// Nothing, in ring 0: what every gate costs.
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

/// CPUID as ring 0 sees it: where ring 3 runs natively, it would see the host's.
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
