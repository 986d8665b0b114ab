//! `[host.powervm]`: a shared processor pool.

use vcoop_powervm::PoolConfig;
use vcoop_sched::config::Topology;

use crate::diagnostic::Collector;
use crate::plan::Ns;
use crate::toml_read::Placed;
use crate::toml_read::table::table;
use crate::toml_read::units::{Time, show};

table! {
    /// A shared processor pool as PowerVM has it, with `class = "powervm"` in `[host.sched]`. Every VM
    /// is `entitled` to a number of pCPUs. It gets its part of that time in every dispatch window, and, unless
    /// it is `capped`, a share by its `weight` of the time that others leave. Whole cores are dispatched: if a core of
    /// the host has several threads, this number of a VM's vCPUs are the threads of one virtual processor.
    pub(crate) struct PowerVmKeys {
        /// Dispatch window, 1ms to 1s.
        window: Placed<Time> = "10ms",
    }
}

impl PowerVmKeys {
    /// The pool's configuration, without partitions.
    pub(crate) fn resolve(&self, topology: Topology, errors: &Collector) -> PoolConfig {
        const MS: Ns = 1_000_000;
        let window_ns = self.window.value.0;
        if !(MS..=1000 * MS).contains(&window_ns) {
            let message = format!("`window` cannot be {}", show(window_ns));
            errors.error_help(self.window.span, message, "1ms to 1s");
        }
        PoolConfig { window_ns, ..PoolConfig::new(topology, Vec::new()) }
    }
}
