//! Ring 0, and the entries and exits of the kernel.
//!
//! Kernel and tasks run in ring 3. An interrupt enters ring 0 for a dozen instructions: its *gate*
//! ends it at the local APIC and goes on to the kernel, or, where it has hit the kernel itself, takes
//! a note and returns. Nothing else changes rings: a task calls the kernel by a jump, and the kernel
//! returns to a task by one. So interrupts are on whenever a vCPU is in ring 3, and the kernel is
//! protected by a flag, the bit [`gate::IN_KERNEL`] of the ring-0 stack pointer (see [`gate`]), as
//! Linux does on machines whose hypervisor would make every change of the real flag expensive.
//!
//! | state | flag | event | next |
//! | --- | --- | --- | --- |
//! | task | 0 | interrupt: gate sets the flag | kernel, all registers saved |
//! | task | 0 | `task_call` sets the flag | kernel, preserved registers saved |
//! | kernel | 1 | interrupt: gate sets the cause's bit in [`gate::PENDING`] | kernel, where it was |
//! | kernel | 1 | `leave` with a task: clears the flag | returning |
//! | kernel | 1 | `leave` with none | halting |
//! | returning | 0 | nothing pending, jumps | task |
//! | returning | 0 | something pending: sets the flag | kernel, nothing saved |
//! | returning | 0 | interrupt: gate sets the flag | kernel, nothing saved |
//! | halting (ring 0) | 1 | something pending, looked at with interrupts off | kernel |
//! | halting (ring 0) | 1 | nothing pending: `sti`, `hlt`; an interrupt sets its bit | halting |
//!
//! *Returning* is the code from `returning` to `returned`. Its last check for pending interrupts comes after the flag
//! is clear: an interrupt before that has set its bit, an interrupt after it enters the kernel by itself, and none is
//! lost. An entry into the kernel from there abandons the return and saves nothing, because the task's context has not
//! changed: the return only reads it, and writes only to the task's stack below the red zone. An interrupt may also
//! enter between the check and setting the flag; it handles what is pending, too.
//!
//! `int3` is the way to ring 0 for the few instructions that need it, from kernel and tasks alike: it
//! continues at the address in `r11`. A software interrupt by number would be the obvious choice,
//! but the software-virtualised KVM does not deliver those in long mode.

use core::arch::{asm, global_asm};

use vcoop_guest::layout::{HEADER_MAGIC, gate};

use crate::machine::Context;

// Context offsets used by the assembly below.
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Context, rbx) == 8 && offset_of!(Context, r15) == 112);
    assert!(offset_of!(Context, rip) == 120 && offset_of!(Context, rflags) == 128);
    assert!(offset_of!(Context, rsp) == 136 && offset_of!(Context, fx) == 144);
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
    ".quad gate_breakpoint, gate_nmi",
    "addresses gate_fault_, 0, 32",
    // Interrupts: the end of it first, then a note, or on to the kernel by the frame of this cause.
    // Each instruction here is emulated where ring 0 is.
    ".section .gates, \"ax\"",
    ".macro interrupt_gate i",
    "  .balign 16",
    "gate_\\i:",
    "  push rax",
    "  push rcx",
    "  push rdx",
    "  mov ecx, 0x80b",
    "  xor eax, eax",
    "  xor edx, edx",
    "  wrmsr",
    "  bts dword ptr gs:[{rsp0}], {in_kernel}",
    "  jc 2f",
    "  add rsp, {upcalls} - {saved} + {frame} * \\i",
    "  iretq",
    "2: bts dword ptr gs:[{pending}], \\i",
    "  pop rdx",
    "  pop rcx",
    "  pop rax",
    "  iretq",
    ".endm",
    ".macro upcall i",
    "  .balign 16",
    "upcall_\\i:",
    "  push \\i",
    "  jmp upcall",
    ".endm",
    // A refused MSR write of `wrmsr_checked` is no fault: back to the caller behind it, from the
    // frame that brought it into ring 0, with 0 in r11.
    ".macro general_protection_gate",
    "  .balign 8",
    "gate_fault_13:",
    "  push rax",
    "  lea rax, [rip + ring0_wrmsr_checked]",
    "  cmp [rsp + 16], rax",
    "  pop rax",
    "  jne 2f",
    "  xor r11d, r11d",
    "  or rsp, (1 << {in_kernel}) - 1",
    "  sub rsp, {frame} - 1",
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
    // An NMI can hit the kernel itself, and ring 0. It only sends the vCPU an interrupt.
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
    // Halts until something is pending. An interrupt finds the flag set, so its gate comes back here;
    // one between the look and the halt is kept away by `cli` and the shadow of `sti`.
    ".balign 16",
    "ring0_idle:",
    "  cmp dword ptr gs:[{pending}], 0",
    "  jne 2f",
    "1: sti",
    "  hlt",
    "  cmp dword ptr gs:[{pending}], 0",
    "  je 3f",
    "2: iretq",
    "3: cli",
    "  cmp dword ptr gs:[{pending}], 0",
    "  je 1b",
    "  iretq",
    // Into the kernel from a gate, which left rax, rcx and rdx beside the interrupted frame: save
    // the registers, unless they are those of a return to a task.
    ".balign 16",
    "upcall:",
    "  mov rcx, gs:[{interrupted}]",
    "  lea rax, [rip + returning]",
    "  cmp rcx, rax",
    "  jb 1f",
    "  lea rax, [rip + returned]",
    "  cmp rcx, rax",
    "  jb 2f",
    "1: mov rax, gs:[{context}]",
    "  mov [rax + 8], rbx",
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
    "  mov rcx, gs:[{saved}]",
    "  mov [rax + 24], rcx",
    "  mov rcx, gs:[{saved} + 8]",
    "  mov [rax + 16], rcx",
    "  mov rcx, gs:[{saved} + 16]",
    "  mov [rax], rcx",
    "  mov rcx, gs:[{interrupted}]",
    "  mov [rax + 120], rcx",
    "  mov rcx, gs:[{interrupted} + 16]",
    "  mov [rax + 128], rcx",
    "  mov rcx, gs:[{interrupted} + 24]",
    "  mov [rax + 136], rcx",
    "  fxsave64 [rax + 144]",
    "2: pop rsi",
    "enter:",
    "  mov rdi, gs:[{number}]",
    "  cld",
    "  call {enter}",
    // Out of it: rax = context, or null.
    "leave:",
    "  test rax, rax",
    "  jz go_idle",
    "  fxrstor64 [rax + 144]",
    "  mov rsp, [rax + 136]",
    "  lea rsp, [rsp - {red_zone}]",
    "  push qword ptr [rax + 120]",
    "  push qword ptr [rax + 128]",
    "  push qword ptr [rax]",
    "  mov rbx, [rax + 8]",
    "  mov rcx, [rax + 16]",
    "  mov rdx, [rax + 24]",
    "  mov rsi, [rax + 32]",
    "  mov rdi, [rax + 40]",
    "  mov rbp, [rax + 48]",
    "  mov r8, [rax + 56]",
    "  mov r9, [rax + 64]",
    "  mov r10, [rax + 72]",
    "  mov r11, [rax + 80]",
    "  mov r12, [rax + 88]",
    "  mov r13, [rax + 96]",
    "  mov r14, [rax + 104]",
    "  mov r15, [rax + 112]",
    "returning:",
    "  btr dword ptr gs:[{rsp0}], {in_kernel}",
    "  cmp dword ptr gs:[{pending}], 0",
    "  jne 2f",
    "  pop rax",
    // In ring 3 this leaves the interrupt flag alone: it stays set.
    "  popfq",
    "  ret {red_zone}",
    "2: bts dword ptr gs:[{rsp0}], {in_kernel}",
    "returned:",
    "  mov rsp, gs:[{stack}]",
    "again:",
    "  mov esi, {no_cause}",
    "  jmp enter",
    "go_idle:",
    "  cmp dword ptr gs:[{pending}], 0",
    "  jne again",
    "  lea r11, [rip + ring0_idle]",
    "  int3",
    "  jmp again",
    ".balign 16",
    "boot:",
    "  call {boot}",
    "  jmp leave",
    // A task calls: what the calling convention has the callee preserve is saved, and the place
    // behind the call.
    ".balign 16",
    ".globl task_call",
    "task_call:",
    "  bts dword ptr gs:[{rsp0}], {in_kernel}",
    "  mov rax, gs:[{context}]",
    "  mov [rax + 8], rbx",
    "  mov [rax + 48], rbp",
    "  mov [rax + 88], r12",
    "  mov [rax + 96], r13",
    "  mov [rax + 104], r14",
    "  mov [rax + 112], r15",
    "  pop qword ptr [rax + 120]",
    "  mov qword ptr [rax + 128], 0x202",
    "  mov [rax + 136], rsp",
    "  fxsave64 [rax + 144]",
    "  mov rdx, rsi",
    "  mov rsi, rdi",
    "  mov rdi, gs:[{number}]",
    "  mov rsp, gs:[{stack}]",
    "  call {call}",
    "  jmp leave",
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
    upcalls = const gate::UPCALLS,
    interrupted = const gate::INTERRUPTED,
    saved = const gate::SAVED,
    rsp0 = const gate::RSP0,
    in_kernel = const gate::IN_KERNEL,
    pending = const gate::PENDING,
    context = const gate::CONTEXT,
    number = const gate::NUMBER,
    stack = const gate::STACK,
    no_cause = const gate::NO_CAUSE,
    red_zone = const RED_ZONE,
    enter = sym crate::machine::interrupted,
    call = sym crate::machine::called,
    boot = sym crate::machine::boot,
);

/// What a function may use below its stack pointer (System V ABI).
const RED_ZONE: u64 = 128;

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
