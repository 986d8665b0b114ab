//! The guest image: what surrounds the kernel of `vcoop_guest` on a machine.
//!
//! `gates`: the few instructions that run in ring 0, and the way in and out of the kernel.
//! `machine`: the kernel's port. `tasks`: what runs in ring 3 with interrupts on; `rogue`: the hostile
//! ones.
#![no_std]
#![no_main]

mod gates;
mod machine;
mod rogue;
mod tasks;

use core::panic::PanicInfo;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        gates::out(vcoop_guest::layout::PORT_PANIC, 0);
    }
}
