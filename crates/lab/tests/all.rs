//! The lab on this host's `/dev/kvm`. Without one, every test that needs it is skipped.

#[macro_use]
mod support;

mod benches;
mod calibrate;
mod calls;
mod hostile;
mod live;
mod masks;
mod trace;
mod virt;

use vcoop_testing::main;
