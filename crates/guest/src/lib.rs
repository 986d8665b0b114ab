//! The freestanding x86-64 guest of the lab.
//!
//! The guest is a small kernel with static per-vCPU task lists, real-time above fair, and the guest
//! half of the boost protocol in its hooks. This library holds what can be tested on any machine:
//! the kernel as a state machine, the memory map and the words that it shares with the VMM. The
//! [`IMAGE`] is the same library plus `image/`: gates, contexts and the tasks themselves.
//!
//! # Where the kernel runs
//!
//! In ring 3. Ring 0 holds *gates* only: a dozen instructions for an interrupt, and single ones to
//! write an MSR or halt. On a KVM that is virtualised in software each ring-0 instruction is emulated,
//! for about half a microsecond, and each way into ring 0 is an exit, while ring 3 runs natively;
//! the classic arrangement would measure its own emulation. On VMX and SVM the extra change of rings
//! costs some hundred nanoseconds per interrupt.
//!
//! ```text
//! interrupt -> gate: end of interrupt, 11 instructions -> kernel, native -> task, native
//! task -> kernel, native -> task, native
//! ```
//!
//! Interrupts are always on in ring 3. What keeps the kernel from being interrupted is a flag that the
//! gates heed: `image/gates.rs` has the states and their transitions.
//!
//! Isolation inside the guest is given up for that, and is nobody's subject here: to the host, the
//! guest is one hostile whole anyway.
#![no_std]

pub mod kernel;
pub mod layout;
pub mod line;
pub mod program;
pub mod ring;

/// The image, to be placed at [`layout::IMAGE`]. Empty on targets other than x86-64 Linux.
#[cfg(not(vcoop_image))]
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.bin"));
