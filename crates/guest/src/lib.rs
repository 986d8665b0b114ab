//! The freestanding x86-64 guest of the lab.
//!
//! The guest is a small kernel with static per-vCPU task lists, real-time above fair, and the guest
//! half of the boost protocol in its hooks. This library holds what can be tested on any machine:
//! the kernel as a state machine, the memory map and the words that it shares with the VMM. The
//! [`IMAGE`] is the same library plus `image/`: gates, contexts and the tasks themselves.
//!
//! # Where the kernel runs
//!
//! In ring 3. Ring 0 has only *gates*: a dozen instructions for an interrupt, and single ones to write an MSR or halt.
//! On a software-virtualised KVM each ring-0 instruction is emulated, for about half a microsecond, and each entry into
//! ring 0 is an exit, while ring 3 runs natively; the usual arrangement would measure its own emulation. On VMX and SVM
//! the extra change of rings costs some hundred nanoseconds per interrupt.
//!
//! ```text
//! interrupt -> gate: end of interrupt, 11 instructions -> kernel, native -> task, native
//! task -> kernel, native -> task, native
//! ```
//!
//! Interrupts are always on in ring 3. A flag that the gates check keeps the kernel from being interrupted:
//! `image/gates.rs` has the states and their transitions.
//!
//! There is no isolation inside the guest. The host does not rely on any: it treats the whole guest as hostile.
#![no_std]

pub mod kernel;
pub mod layout;
pub mod line;
pub mod program;
pub mod ring;

/// The image, to be placed at [`layout::IMAGE`]. Empty on targets other than x86-64 Linux.
#[cfg(not(vcoop_image))]
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.bin"));
