//! CPU topologies in files: `{ threads_per_core = 1, cores_per_llc = 4, llcs = 1 }`.

use vcoop_sched::config::Topology;

use crate::diagnostic::Collector;
use crate::limits::MAX_PCPUS;
use crate::toml_read::Placed;
use crate::toml_read::table::table;
use crate::toml_read::value::Int;

table! {
    /// Where CPUs sit. The product of the three is the number of CPUs.
    pub(crate) struct TopologyTable = "{ threads_per_core = 1, cores_per_llc = 4, llcs = 1 }" {
        /// Hardware threads a core.
        threads_per_core: Placed<Int<1, 8>> = "1",
        /// Cores that share a last-level cache. Default: as many as the number of CPUs needs.
        cores_per_llc: Option<Placed<Int<1, MAX_PCPUS>>>,
        /// Last-level caches: sockets of Intel's servers, CCXs of AMD's.
        llcs: Placed<Int<1, MAX_PCPUS>> = "1",
    }
}

/// The topology, if its number of CPUs is possible, and is that of the key with this path, if given.
pub(crate) fn topology(
    keys: &Placed<TopologyTable>,
    cpus: Option<(u32, &str)>,
    errors: &Collector,
) -> Option<Topology> {
    let TopologyTable { threads_per_core, cores_per_llc, llcs } = &keys.value;
    let (threads, llcs) = (threads_per_core.value.get32(), llcs.value.get32());
    // Threads of one core in each LLC.
    let one = threads * llcs;
    let cores = match (cores_per_llc, cpus) {
        (Some(given), _) => given.value.get32(),
        (None, Some((cpus, _))) if cpus.is_multiple_of(one) => cpus / one,
        (None, Some((cpus, _))) => {
            let message = format!("{cpus} CPUs are no multiple of {threads} threads x {llcs} LLCs");
            errors.error_help(keys.span, message, "change the topology or the number of CPUs");
            return None;
        }
        (None, None) => {
            let help = "add `cores_per_llc`";
            errors.error_help(keys.span, "nothing says how many CPUs it has", help);
            return None;
        }
    };
    // Each factor is at most 1024: the product of three fits.
    let product = one * cores;
    let formula = format!("{threads} threads x {cores} cores x {llcs} LLCs = {product} CPUs");
    match cpus {
        Some((cpus, path)) if cpus != product => {
            let message = format!("{formula}, but there are {cpus}");
            let help = format!("take out `cores_per_llc`, and it follows from {path}");
            errors.error_help(keys.span, message, help);
            None
        }
        _ if i64::from(product) > MAX_PCPUS => {
            errors.error(keys.span, format!("{formula}: more than {MAX_PCPUS}"));
            None
        }
        _ => Some(Topology { threads_per_core: threads, cores_per_llc: cores, llcs }),
    }
}
