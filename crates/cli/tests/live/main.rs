//! The real program on this host's `/dev/kvm`. Without one, every test is skipped.

mod answers;
mod leftovers;

use vcoop_testing::main;
