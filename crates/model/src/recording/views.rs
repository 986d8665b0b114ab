//! Single events and samples, if a plan asks for them.

use crate::plan::Ns;

/// What happened to a VM of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// Its batch began.
    Requested,
    /// VMStart.
    Started,
    /// VMLogin.
    LoggedIn,
}

/// An event in the life of a VM of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Which.
    pub kind: MarkKind,
    /// Index of the storm.
    pub storm: u32,
    /// Number of the VM in the storm, from 1, in the order of creation.
    pub vm: u32,
    /// How many VMs of the storm have reached it, including this one.
    pub number: u32,
    /// When, from the start of the measurement.
    pub at_ns: Ns,
}

/// Every sample of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scatter {
    /// Probe.
    pub probe: String,
    /// Due time of each, from the start of the measurement, and latency; in the order in which they were taken.
    pub points: Vec<(Ns, Ns)>,
    /// Samples after the last one kept.
    pub dropped: u64,
}

/// Which thread ran when on one pCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// The pCPU; `None`: the view never began.
    pub pcpu: Option<u32>,
    /// When the view begins, from the start of the measurement.
    pub from_ns: Ns,
    /// When it ends.
    pub until_ns: Ns,
    /// In order, without idle time.
    pub spans: Vec<Span>,
}

/// A thread had the pCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// From when, from the view's begin.
    pub from_ns: Ns,
    /// Until when.
    pub until_ns: Ns,
    /// Who: `host.NAME`, or `VM/vcpuN`.
    pub who: String,
}
