//! The simulator from outside. One program, because each links all that it tests.

mod acts;
mod analytic;
mod barriers;
mod calls;
mod credit1;
mod deadline;
mod govern;
mod invariants;
mod ipis;
mod locks;
mod pinning;
mod placement;
mod pool;
mod ratelimit;
mod receivers;
mod regressions;
mod relations;
mod smt;
mod spinning;
mod storms;
mod support;
mod ticks;
mod varying;
mod virt_idle;
mod virt_timers;
mod waits;
