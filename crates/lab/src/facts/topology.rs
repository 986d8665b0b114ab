//! Topology of the CPUs: cores and last-level caches, from sysfs.

use vcoop_sched::config::Topology;
use vcoop_threads::parse_cpu_list;

use super::{Fact, Root};

/// A CPU's place: the lowest CPU that shares its cache, and the lowest that shares its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    llc: u32,
    core: u32,
    cpu: u32,
}

/// The CPUs `allowed`, in the order the simulator numbers them, and their shape.
pub(super) fn read(root: &Root, allowed: &[u32]) -> (Vec<u32>, Fact<Topology>) {
    let mut cpus = allowed.to_vec();
    if cpus.is_empty() {
        cpus = root.text("sys/devices/system/cpu/online").map_or(vec![0], |text| list(&text));
    }
    let n = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
    let places: Option<Vec<Place>> = cpus.iter().map(|cpu| place(root, *cpu)).collect();
    let flat = |why: &str| Fact::inferred(Topology::flat(n), why);
    let Some(mut places) = places else {
        return (cpus, flat("sysfs does not say where the CPUs sit"));
    };
    places.sort_unstable();
    let cpus: Vec<u32> = places.iter().map(|p| p.cpu).collect();
    let sizes = |same: fn(&Place, &Place) -> bool| {
        let mut sizes: Vec<usize> = places.chunk_by(same).map(<[Place]>::len).collect();
        sizes.dedup();
        <[usize; 1]>::try_from(sizes).ok().and_then(|[n]| u32::try_from(n).ok())
    };
    let threads = sizes(|a, b| a.core == b.core);
    let per_llc = sizes(|a, b| a.llc == b.llc);
    let topology = match (threads, per_llc) {
        (Some(threads_per_core), Some(per_llc)) if per_llc.is_multiple_of(threads_per_core) => {
            let cores_per_llc = per_llc / threads_per_core;
            let topology = Topology { threads_per_core, cores_per_llc, llcs: n / per_llc.max(1) };
            Fact::read(topology, "/sys/devices/system/cpu/cpu*/{topology,cache}")
        }
        _ => flat("the CPUs this process may use are not equal in cores or caches"),
    };
    (cpus, topology)
}

fn place(root: &Root, cpu: u32) -> Option<Place> {
    let dir = format!("sys/devices/system/cpu/cpu{cpu}");
    let first = |file: &str| root.text(&format!("{dir}/{file}")).map(|text| list(&text));
    let core = first("topology/core_cpus_list")
        .or_else(|| first("topology/thread_siblings_list"))?
        .into_iter()
        .min()?;
    let caches = (0..8).filter_map(|i| {
        let cache = format!("cache/index{i}");
        let level: u32 = root.number(&format!("{dir}/{cache}/level"))?;
        let shared = first(&format!("{cache}/shared_cpu_list"))?.into_iter().min()?;
        Some((level, shared))
    });
    // A machine that hides its caches still says which package a CPU is in.
    let llc = caches.max_by_key(|(level, _)| *level).map(|(_, shared)| shared);
    let package = || first("topology/package_cpus_list")?.into_iter().min();
    Some(Place { llc: llc.or_else(package).unwrap_or(0), core, cpu })
}

/// A kernel CPU list: `0-3,8,10-11`. Other text has no CPUs.
pub(super) fn list(text: &str) -> Vec<u32> {
    parse_cpu_list(text).into_iter().flatten().collect()
}
