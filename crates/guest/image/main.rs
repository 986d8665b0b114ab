//! The guest image: what surrounds the kernel of `vcoop_guest` on a machine.
//!
//! `gates`: the way in and out of the kernel. `machine`: the kernel's port. `tasks`: what runs in ring 3 with
//! interrupts on; `rogue`: the hostile ones. `memory`: what they share with the host; `instructions`: what needs
//! assembly, for all of them.
#![no_std]
#![no_main]

mod gates;
mod instructions;
mod machine;
mod memory;
mod rogue;
mod tasks;

use core::panic::PanicInfo;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        instructions::out(vcoop_guest::layout::PORT_PANIC, 0);
    }
}
