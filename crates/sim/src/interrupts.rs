//! Interrupts of guests and the timers behind them.

pub(crate) mod devices;
pub(crate) mod guest_timer;
pub(crate) mod hv_timer;
mod inject;
pub(crate) mod ipi;
pub(crate) mod lapic;
