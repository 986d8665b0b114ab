//! Virtual machines that start during the run, and views of single runs.

use serde::{Deserialize, Serialize};

use super::{Ns, Target};
use crate::toml_read::value::choice;

/// VMs that are created one batch after the other (a boot storm).
///
/// For each VM of a batch an unmodelled client calls the toolstack once and then the backends, one call after the
/// other. With the last answer the VM's vCPUs may run: *VMStart*. Its boot program ends with *VMLogin*. Until VMStart a
/// VM has no timers and uses no CPU; interrupts and messages for it wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StormPlan {
    /// Report label of the VMs.
    pub label: String,
    /// The VMs, in the order of their creation.
    pub vms: Vec<u32>,
    /// VMs a batch.
    pub batch: u32,
    /// Milestone that all VMs of a batch must have reached before the next batch begins.
    pub next: Milestone,
    /// Do not wait for whole batches: the next VM begins when fewer than `batch` of the VMs begun have yet to reach the
    /// milestone.
    #[serde(default)]
    pub rolling: bool,
    /// When the first batch begins, from the start of the warm-up; not before its end.
    pub begin_ns: Ns,
    /// Time from a batch's end to the next one's begin; if rolling, from when a place is free to when all places free
    /// by then are filled.
    pub gap_ns: Ns,
    /// Servers that build domains: the `n`th VM calls the `n`th of them, modulo their number; none: building takes no
    /// time.
    pub toolstack: Vec<Target>,
    /// Calls for the set-up of each VM's devices.
    pub devices: u32,
    /// Servers of these calls, chosen likewise.
    pub backend: Vec<Target>,
    /// Limit of the response time; `None`: no density score.
    pub density: Option<DensityPlan>,
}

choice! {
    /// What a VM of a storm has reached: VMStart or VMLogin.
    #[derive(PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Milestone {
        /// Its vCPUs begin to run.
        Start = "start",
        /// Its boot program is done.
        Login = "login",
    }
}

/// How many VMs a host carries: those logged in before the response time of the storm's desktop
/// tasks passes a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DensityPlan {
    /// The limit.
    pub limit_ns: Ns,
    /// Statistic that is compared with the limit.
    pub score: Score,
    /// Only actions begun within this time of the last login count; `None`: all until the next.
    pub window_ns: Option<Ns>,
}

choice! {
    /// A statistic of response times.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Score {
        /// 95 % quantile.
        P95 = "p95",
        /// Mean.
        Mean = "mean",
    }
}

/// A view of single runs beside the series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ViewPlan {
    /// Every sample of a probe, with its time.
    Scatter {
        /// Name in [`Plan::probes`](super::Plan::probes).
        probe: String,
        /// Most samples kept; those after them are counted.
        most: u32,
    },
    /// Which thread ran when on one pCPU.
    Intervals {
        /// The pCPU; `None`: the first on which the VM of the milestone runs from then on.
        pcpu: Option<u32>,
        /// When it begins.
        at: ViewStart,
        /// How long it goes on.
        length_ns: Ns,
    },
}

/// When a view begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ViewStart {
    /// At a time, from the start of the warm-up.
    Time(Ns),
    /// When that many VMs of a storm have reached a milestone.
    Reached {
        /// Index of the storm.
        storm: u32,
        /// Which milestone.
        milestone: Milestone,
        /// How many VMs, from 1.
        number: u32,
    },
}
