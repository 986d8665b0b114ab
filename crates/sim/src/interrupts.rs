//! Interrupts of guests, and the timers that cause them.

pub(crate) mod deadline;
pub(crate) mod devices;
mod guest_timer;
pub(crate) mod guest_timers;
mod hv_range;
mod hv_timer;
mod inject;
mod ipi;
pub(crate) mod ipi_vcpu;
pub(crate) mod lapic;
