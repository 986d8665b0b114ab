//! Sets of CPUs, and lists of them as the kernel writes them.

use std::collections::BTreeSet;

pub use vcoop_threads::{MOST_CPUS, parse_cpu_list as parse};

/// Some CPUs.
pub type Cpus = BTreeSet<u32>;

/// Writes a list as the kernel does.
pub fn show(cpus: &Cpus) -> String {
    vcoop_threads::cpu_list(&cpus.iter().copied().collect::<Vec<u32>>())
}
