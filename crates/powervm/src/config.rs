//! Configuration of a shared processor pool: its window, and the entitlements.

use vcoop_sched::config::{Ns, Topology};

/// Configuration of a [`Pool`](crate::Pool).
///
/// Sources: IBM Power Systems Redpapers on POWER7 and POWER8 servers, chapter "Virtualization" (the dispatch cycle is
/// 10 ms, and at its end every partition has had its entitlement), IBM's "PowerVM processor virtualization 101"
/// (entitlement is replenished every window regardless of history; a core runs one partition at a time, whatever its
/// SMT mode), and the console's help on weights.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PoolConfig {
    /// The pool's CPUs. The unit of dispatch is a core with all its threads.
    pub topology: Topology,
    /// The dispatch window, in which every virtual processor that can run gets its entitlement: 1 ms..=1 s. PowerVM's:
    /// 10 ms.
    pub window_ns: Ns,
    /// The partitions; entities name theirs by index in [`Attr::group`](vcoop_sched::Attr) (`None`: 0).
    pub partitions: Vec<Partition>,
}

impl PoolConfig {
    /// PowerVM's window.
    pub const WINDOW_NS: Ns = 10_000_000;

    /// A pool with PowerVM's window.
    pub fn new(topology: Topology, partitions: Vec<Partition>) -> Self {
        Self { topology, window_ns: Self::WINDOW_NS, partitions }
    }

    /// Entitlement of a virtual processor of a partition per window, rounded down: the partition's entitlement, divided
    /// equally among its virtual processors.
    pub fn share_ns(&self, partition: &Partition) -> Ns {
        let all = u128::from(self.window_ns) * u128::from(partition.entitled);
        let share = all / u128::from(partition.vcpus.max(1));
        Ns::try_from(share).unwrap_or(self.window_ns)
    }
}

/// A partition: a VM in a shared pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Partition {
    /// Number of its vCPUs: whole virtual processors, each with as many as a core has threads.
    pub vcpus: u32,
    /// Its entitlement in CPUs: at least a twentieth of its vCPUs (0.05 processing units per virtual processor, since
    /// POWER7+), at most all of them.
    pub entitled: u32,
    /// Its weight for the time that others leave, 0..=255 (`uncapped_weight`); 0: the partition is capped, and never
    /// gets more than its entitlement.
    pub weight: u32,
}

impl Partition {
    /// The default weight of an uncapped partition.
    pub const WEIGHT: u32 = 128;

    /// An uncapped partition with the default weight.
    pub fn new(vcpus: u32, entitled: u32) -> Self {
        Self { vcpus, entitled, weight: Self::WEIGHT }
    }
}
