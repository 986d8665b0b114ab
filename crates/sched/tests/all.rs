//! The run queues from outside.

mod active;
mod avoid;
mod cores;
mod deadline;
mod driver;
mod eevdf;
mod fair_share;
mod quota;
mod random;
mod rt;
mod wake_ups;
mod yield_to;
