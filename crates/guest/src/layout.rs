//! The guest's memory map, and the words through which the VMM configures and watches the guest.
//!
//! These words are the lab's own; what a vcoop guest and host share by contract is in `vcoop-abi`.

use core::sync::atomic::AtomicU64;

use crate::program::{DeviceSpec, LineSpec, TaskSpec};

/// Guest memory, in bytes, from address 0. All of it is identity-mapped and open to ring 3.
pub const RAM: u64 = 32 << 20;

/// Guest-physical (and virtual) address of the read-only host areas.
pub const HOST_WINDOW: u64 = RAM;

/// Most vCPUs.
pub const MAX_VCPUS: usize = 8;

/// Most tasks of a VM.
pub const MAX_TASKS: usize = 64;

/// Most devices of a VM.
pub const MAX_DEVICES: usize = 16;

/// Most steps of all tasks of a VM together.
pub const MAX_STEPS: usize = 16_384;

/// Most lines with an end in a VM.
pub const MAX_LINES: usize = 64;

/// Most tasks of a VM that measure.
pub const MAX_RINGS: usize = 16;

/// Top-level page table.
pub const PML4: u64 = 0x1000;
/// Second-level page table.
pub const PDPT: u64 = 0x2000;
/// Page directory of 2 MiB pages.
pub const PD: u64 = 0x3000;
/// Segment descriptors.
pub const GDT: u64 = 0x4000;
/// Interrupt descriptors.
pub const IDT: u64 = 0x5000;
/// Gate pages, one a vCPU; see [`gate`].
pub const GATES: u64 = 0x8000;
/// Guest areas of the boost protocol, one page a vCPU.
pub const AREAS: u64 = 0x1_0000;
/// Table of [`VcpuWords`].
pub const WORDS: u64 = 0x1_8000;
/// [`Control`].
pub const CONTROL: u64 = 0x2_0000;
/// Table of [`Line`](crate::line::Line)s.
pub const LINES: u64 = 0x3_0000;
/// Distance between lines.
pub const LINE_STRIDE: u64 = 64;
/// Table of [`Step`](crate::program::Step)s.
pub const STEPS: u64 = 0x4_0000;
/// The image.
pub const IMAGE: u64 = 0x10_0000;
/// Most bytes the image may have.
pub const IMAGE_MAX: u64 = 0x10_0000;
/// Kernel stacks, one a vCPU.
pub const KERNEL_STACKS: u64 = 0x20_0000;
/// Task stacks.
pub const TASK_STACKS: u64 = 0x28_0000;
/// Size of each stack.
pub const STACK: u64 = 0x4000;
/// Table of [`TaskStats`].
pub const STATS: u64 = 0x40_0000;
/// Sample rings ([`Ring`](crate::ring::Ring)), [`RING_STRIDE`] apart.
pub const RINGS: u64 = 0x80_0000;
/// Distance between sample rings.
pub const RING_STRIDE: u64 = 0x10_0000;

/// Code segment of the gates.
pub const KERNEL_CS: u16 = 0x08;
/// Code segment of everything else.
pub const USER_CS: u16 = 0x1b;
/// Stack segment of ring 3.
pub const USER_SS: u16 = 0x23;
/// First task state segment selector; the others follow 16 apart.
pub const TSS_SELECTOR: u16 = 0x28;

/// Vector of the local timer, and of the host's message in its place.
pub const VECTOR_TIMER: u8 = 0xec;
/// Vector of the interrupt between vCPUs.
pub const VECTOR_IPI: u8 = 0xfb;
/// Vector by which the NMI gate hands over to the kernel.
pub const VECTOR_NMI_SELF: u8 = 0xf0;
/// Vector of device 0.
pub const VECTOR_DEVICE: u8 = 0x40;

/// Port of a fault: written with vector + this.
pub const PORT_FAULT: u16 = 0x80;
/// Port of the doorbell: a deadline was stored that is earlier than the host's next look. It must be no port of a
/// device in the kernel's KVM, which would handle the write without an exit to user space: the interrupt controllers
/// are at 0x20, 0x21, 0xa0, 0xa1, 0x4d0 and 0x4d1.
pub const PORT_DOORBELL: u16 = 0xb0;
/// Port of a guest that gave up (a panic of its kernel).
pub const PORT_PANIC: u16 = 0xb1;
/// Port without a function: a calibrating guest writes to it to time the exit.
pub const PORT_NOTHING: u16 = 0xb2;
/// Port for calls to a peer outside of the VM, and for answers: the number of the line, as one byte.
pub const PORT_CALL: u16 = 0xb3;
/// Port of an interrupt to several vCPUs at once: those in [`VcpuWords::multicast`] of the writer.
pub const PORT_MULTICAST: u16 = 0xb4;

/// Offsets in a gate page, which both rings reach by the `gs` segment.
///
/// It contains the task state segment, from which the processor takes the ring-0 stack for an event in ring 3. The
/// kernel sets that stack to [`TASK_TOP`](gate::TASK_TOP) while a task runs, and to
/// [`KERNEL_TOP`](gate::KERNEL_TOP) while the kernel runs. So what an interrupt has pushed stays in place until the
/// kernel has read it, and the bit in which the two differ tells what was interrupted.
pub mod gate {
    /// Bit mask of causes that came while the kernel ran; gates set, the kernel takes.
    pub const PENDING: u64 = 0x400;
    /// Address of the context that a running task's registers go to; the kernel's.
    pub const CONTEXT: u64 = 0x408;
    /// The vCPU's number; the host fills it.
    pub const NUMBER: u64 = 0x410;
    /// Top of the kernel's stack; the host fills it.
    pub const STACK: u64 = 0x418;
    /// The task state segment.
    pub const TSS: u64 = 0x500;
    /// In it, the ring-0 stack.
    pub const RSP0: u64 = TSS + 4;
    /// In it, the stack of the NMI.
    pub const IST1: u64 = TSS + 36;
    /// Top of the NMI stack.
    pub const NMI_TOP: u64 = 0x700;
    /// Top of the ring-0 stack while a task runs. It is always empty when an interrupt comes: gates run with interrupts
    /// off.
    pub const TASK_TOP: u64 = 0x800;
    /// Top of the ring-0 stack while the kernel runs.
    pub const KERNEL_TOP: u64 = 0xc00;
    /// The bit in which the two differ, set while the kernel runs.
    pub const IN_KERNEL: u64 = 10;
    /// Size of the frame that an interrupt pushes and `iretq` pops: rip, cs, rflags, rsp, ss.
    pub const FRAME: u64 = 40;
    /// Where an interrupted task's frame is.
    pub const INTERRUPTED: u64 = TASK_TOP - FRAME;
    /// Where a gate leaves rdx, rcx and rax, which it uses.
    pub const SAVED: u64 = INTERRUPTED - 24;
    /// Frames that lead into the kernel, one a [cause](crate::kernel::Cause); the host fills them.
    pub const UPCALLS: u64 = TASK_TOP;
    /// Number of causes.
    pub const CAUSES: u64 = 4 + super::MAX_DEVICES as u64;
    /// No cause of its own, only those [pending](PENDING).
    pub const NO_CAUSE: u64 = 63;
}

/// What the host finds at the start of the image.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    /// [`HEADER_MAGIC`].
    pub magic: u64,
    /// First instruction of a vCPU, in ring 3; `rdi` = vCPU number, `rsp` = its kernel stack.
    pub boot: u64,
    /// Interrupt gates by cause. A task's call needs none.
    pub gates: [u64; gate::CAUSES as usize],
    /// First instruction in the kernel by cause.
    pub upcalls: [u64; gate::CAUSES as usize],
    /// Gate of `int3`.
    pub gate_breakpoint: u64,
    /// Gate of the NMI.
    pub gate_nmi: u64,
    /// Gates of exceptions that must not happen, by vector (0..32).
    pub gate_faults: [u64; 32],
}

/// First word of the image.
pub const HEADER_MAGIC: u64 = u64::from_le_bytes(*b"vcoopimg");

/// What the host tells the guest before it starts. The host does not read it afterwards: a guest may overwrite it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Control {
    /// Number of vCPUs.
    pub vcpus: u64,
    /// Number of tasks.
    pub tasks: u64,
    /// 1: the deadline goes to the shared page; 0: to the local timer.
    pub exitless: u64,
    /// 1: the vCPUs register their guest areas.
    pub register: u64,
    /// Round-robin slice of fair tasks, in TSC cycles.
    pub slice_tsc: u64,
    /// TSC at the start of the warm-up: the origin of all phases.
    pub start_tsc: u64,
    /// A timer interrupt may come early by at most this many cycles, and is waited out.
    pub advance_tsc: u64,
    /// Period of the tick of a guest that moves its tasks between vCPUs, in TSC cycles; 0: tasks do not move.
    pub tick_tsc: u64,
    /// 1: the host area has a mask of preferred vCPUs.
    pub masked: u64,
    /// How idle vCPUs poll before they halt.
    pub idle_poll: IdlePoll,
    /// 1: they poll only if CPUID says that each has its pCPU to itself (`KVM_HINTS_REALTIME`).
    pub poll_if_hinted: u64,
    /// 1: interrupts to several vCPUs are sent through [`PORT_MULTICAST`], with one exit; 0: by one
    /// write of the interrupt controller each.
    pub pv_ipi: u64,
    /// 1: an interrupt to all other vCPUs is one write of the interrupt controller.
    pub shorthand: u64,
    /// Tasks.
    pub task: [TaskSpec; MAX_TASKS],
    /// Devices.
    pub device: [DeviceSpec; MAX_DEVICES],
    /// Lines.
    pub line: [LineSpec; MAX_LINES],
}

/// How an idle vCPU polls before it halts: the parameters of Linux's haltpoll governor, times in TSC
/// cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IdlePoll {
    /// Longest poll; 0: it halts at once. `u64::MAX`: it polls for ever (`idle=poll`).
    pub max_tsc: u64,
    /// Factor by which a poll grows.
    pub grow: u64,
    /// First poll above 0.
    pub grow_start_tsc: u64,
    /// Divisor by which it shrinks; 0: to 0.
    pub shrink: u64,
    /// 1: it may shrink.
    pub allow_shrink: u64,
}

impl IdlePoll {
    /// Halts at once.
    pub const NEVER: Self =
        Self { max_tsc: 0, grow: 0, grow_start_tsc: 0, shrink: 0, allow_shrink: 0 };
    /// Never halts.
    pub const ALWAYS: Self = Self { max_tsc: u64::MAX, ..Self::NEVER };
}

/// Words of all vCPUs that change while running.
#[derive(Debug)]
#[repr(transparent)]
pub struct Words {
    /// By vCPU.
    pub vcpu: [VcpuWords; MAX_VCPUS],
}

/// Words of one vCPU that change while running, each with one writer.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct VcpuWords {
    /// Host: TSC at which it will look at the deadline again, unless the doorbell rings.
    pub next_look: AtomicU64,
    /// Host: TSC at which it last injected a timer or device interrupt. While calibrating: TSC just before the host or
    /// a guest task began to interrupt this vCPU.
    pub fired: AtomicU64,
    /// Guest: 1 while it halts or is about to.
    pub idle: AtomicU64,
    /// Guest: kernel entries so far.
    pub entries: AtomicU64,
    /// Host: TSC until which it watches the guest's request, so that a boost can end without an exit.
    pub attended_until: AtomicU64,
    /// Guest: tasks that other vCPUs want woken, one bit each; any vCPU sets, this one clears.
    pub remote_wakes: AtomicU64,
    /// Guest: TSC at which its kernel last had a timer interrupt for its deadline.
    pub took: AtomicU64,
    /// Guest: that deadline; stored after `took`.
    pub took_for: AtomicU64,
    /// Guest: polls that ended with an interrupt, before it would have halted.
    pub polls_won: AtomicU64,
    /// Guest: polls that ended without an interrupt.
    pub polls_lost: AtomicU64,
    /// Guest: tasks that have this vCPU call a function, one bit each; any vCPU sets, this one clears.
    pub calls: AtomicU64,
    /// Guest: vCPUs that the host is to interrupt, one bit each.
    pub multicast: AtomicU64,
    /// Guest: tasks that other vCPUs have given to this one, one bit each; any vCPU sets, this one
    /// clears.
    pub sent: AtomicU64,
    /// Guest: number of its ready tasks. Its kernel stores it; a vCPU that gives it a task adds one until then.
    pub ready: AtomicU64,
    /// Guest: tasks that ticks pushed off this vCPU because the host prefers that it is not used.
    pub pushed: AtomicU64,
    reserved: [u64; 1],
}

/// Counters of one task; written by the guest.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct TaskStats {
    /// Iterations of the [unit of work](crate::program) done.
    pub done: AtomicU64,
    /// Audio: glitches.
    pub glitches: AtomicU64,
    /// TSC at which the kernel last made it ready.
    pub woken: AtomicU64,
    /// 1: the vCPU was idle then.
    pub woken_idle: AtomicU64,
    /// Times it was switched to.
    pub switches: AtomicU64,
    /// Units of work done.
    pub rounds: AtomicU64,
    /// vCPUs that have not yet called the function they were asked to call; each counts it down.
    pub acks: AtomicU64,
    /// The vCPU it belongs to, plus 1; 0: it has never moved.
    pub owner: AtomicU64,
}

/// Top of a vCPU's kernel stack.
pub const fn kernel_stack_top(vcpu: u64) -> u64 {
    KERNEL_STACKS + (vcpu + 1) * STACK - 64
}

/// Top of a task's stack.
pub const fn task_stack_top(task: u64) -> u64 {
    TASK_STACKS + (task + 1) * STACK - 64
}

/// Address of a vCPU's guest area.
pub const fn area(vcpu: u64) -> u64 {
    AREAS + vcpu * vcoop_abi::layout::PAGE_SIZE
}

const _: () = {
    // Room for two frames with what a gate saves, above whatever lies below.
    assert!(gate::UPCALLS + gate::CAUSES * gate::FRAME <= gate::KERNEL_TOP - 0xc0);
    assert!(gate::NMI_TOP <= gate::TASK_TOP - 0xc0 && gate::TSS + 0x68 <= gate::NMI_TOP - 0xc0);
    assert!(gate::TASK_TOP ^ gate::KERNEL_TOP == 1 << gate::IN_KERNEL);
    assert!(gate::KERNEL_TOP & 1 << gate::IN_KERNEL != 0 && gate::CAUSES < gate::NO_CAUSE);
    assert!(size_of::<Control>() as u64 <= LINES - CONTROL);
    assert!(LINES + MAX_LINES as u64 * LINE_STRIDE <= STEPS);
    assert!(size_of::<crate::line::Line>() as u64 == LINE_STRIDE);
    assert!(MAX_STEPS as u64 * 16 <= IMAGE - STEPS);
    assert!(TASK_STACKS + MAX_TASKS as u64 * STACK <= STATS);
    assert!(KERNEL_STACKS + MAX_VCPUS as u64 * STACK <= TASK_STACKS);
    assert!(RINGS + MAX_RINGS as u64 * RING_STRIDE <= RAM);
    assert!(size_of::<crate::ring::Ring>() as u64 <= RING_STRIDE);
    assert!(size_of::<Words>() as u64 <= CONTROL - WORDS);
    assert!(AREAS + MAX_VCPUS as u64 * 4096 <= WORDS && GATES + MAX_VCPUS as u64 * 4096 <= AREAS);
};
