//! The protocol of the control socket: a request and a response, each one line of JSON.

use std::fmt;

use serde::{Deserialize, Serialize};
use vcoop_vmm::Vm;

/// A VM, identified by its process. A process id alone may be reused.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VmId {
    /// The VMM's process.
    pub pid: u32,
    /// When it started, in clock ticks since the host's boot.
    pub start_ticks: u64,
    /// The VM's name; tells apart the VMs of one process.
    pub name: String,
}

impl VmId {
    /// The id of a found VM.
    pub fn of(vm: &Vm) -> Self {
        Self { pid: vm.pid, start_ticks: vm.start_time, name: vm.name.clone() }
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Return the status.
    Status {
        /// With the policy on this VM only; `None`: on all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vm: Option<VmId>,
    },
    /// Apply a policy until this connection is closed, the VM ends, or a client detaches it. It replaces the policy of
    /// a rule or of this connection, but not that of another connection.
    Attach {
        /// The VM.
        vm: VmId,
        /// Name of the policy.
        policy: String,
        /// Settings, as `--set` has them.
        #[serde(default)]
        sets: Vec<String>,
    },
    /// Restore a VM.
    Detach {
        /// The VM.
        vm: VmId,
    },
}

/// A response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Attach`]: a policy is in force.
    Attached(Box<VmStatus>),
    /// To [`Request::Detach`]: no policy is in force any more; the status until then.
    Detached(Box<VmStatus>),
    /// The request was not carried out.
    Refused(Refusal),
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    /// Why, in words.
    pub why: String,
    /// This host lacks something, or this user may not use it.
    pub missing: bool,
    /// The request is wrong for any VM.
    #[serde(default)]
    pub usage: bool,
}

impl Refusal {
    /// A refusal because this host lacks something.
    pub(crate) fn missing(why: impl fmt::Display) -> Self {
        Self { missing: true, ..Self::from(why.to_string()) }
    }

    /// A refusal of a request that is wrong for any VM.
    pub(crate) fn usage(why: impl fmt::Display) -> Self {
        Self { usage: true, ..Self::from(why.to_string()) }
    }

    /// The same refusal, of a part of the request.
    pub(crate) fn of(self, part: impl fmt::Display) -> Self {
        Self { why: format!("{part}: {}", self.why), ..self }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self { why, missing: false, usage: false }
    }
}

impl From<vcoop_threads::Error> for Refusal {
    fn from(why: vcoop_threads::Error) -> Self {
        if why.source.kind() != std::io::ErrorKind::PermissionDenied {
            return Self::from(why.to_string());
        }
        let vcoop_threads::Error { call, source } = why;
        Self::missing(format!("{call}: {source}\n  remedy: {}", vcoop_threads::MAY_BE_REALTIME))
    }
}

/// Status of the process that owns vCPU threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The process.
    pub pid: u32,
    /// CPU time that its engine has used, in nanoseconds.
    pub engine_cpu_ns: u64,
    /// Sleeps of vCPU threads that the engine was told of.
    pub events: u64,
    /// Time from each sleep until the engine was told of it: sum over all, in nanoseconds.
    pub reaction_sum_ns: u64,
    /// The largest of these times since the start.
    pub reaction_max_ns: u64,
    /// VMs with a policy.
    pub vms: Vec<VmStatus>,
}

/// Interrupts for vCPUs of a VM. Under `scx_vcoop`: of all VMs, and without reactions, because it boosts at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InterruptStatus {
    /// Interrupts that the engine was told of.
    pub heard: u64,
    /// Interrupts within 100 us of one that the engine was told of, with the vCPU still waiting for a CPU: the policy
    /// was not told of them.
    #[serde(default)]
    pub coalesced: u64,
    /// Interrupts of any VM that were lost, because too many came at once.
    pub lost: u64,
    /// Interrupts that found their vCPU boosted, or boosted it.
    pub boosted: u64,
    /// Time from an interrupt until the policy had acted on it, in nanoseconds: median.
    pub reaction_p50_ns: u64,
    /// The same: 99th percentile.
    pub reaction_p99_ns: u64,
    /// The same: largest.
    pub reaction_max_ns: u64,
}

/// A VM with a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmStatus {
    /// The VM.
    pub vm: VmId,
    /// Name of the policy in force.
    pub policy: String,
    /// How long it has been in force, in nanoseconds.
    pub for_ns: u64,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuStatus>,
    /// The thread of its VMM that delivers its timers, if that is no vCPU's thread. It is boosted when it wakes up,
    /// within its own budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timers: Option<VcpuStatus>,
    /// Sources of the events of its threads and of its interrupts.
    #[serde(default)]
    pub hears: Vec<String>,
    /// Interrupts, if they are watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts: Option<InterruptStatus>,
    /// Whether the policy rests: hardly any thread of the host waits for a CPU, so the vCPUs have what they had before
    /// the policy.
    #[serde(default)]
    pub rests: bool,
    /// How many of its vCPUs its guest is asked to use, if the policy has a governor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u32>,
    /// Notes about the policy on this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// After the policy's end: threads that could not be given back what they had, and why. They stay in the journal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_given_back: Vec<String>,
}

impl VmStatus {
    /// vCPUs that the policy is applied to.
    pub fn driven(&self) -> impl Iterator<Item = &VcpuStatus> {
        self.vcpus.iter().filter(|vcpu| vcpu.left_alone.is_none())
    }

    /// Their number in words: `1 vCPU`, `3 vCPUs`.
    pub fn extent(&self) -> String {
        match self.driven().count() {
            1 => "1 vCPU".to_owned(),
            n => format!("{n} vCPUs"),
        }
    }
}

/// A vCPU of a VM with a policy. The counters are since the policy was applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuStatus {
    /// Its number.
    pub index: u32,
    /// Its thread.
    pub tid: i32,
    /// Whether it is boosted.
    pub boosted: bool,
    /// Why no policy is applied to it, if none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_alone: Option<String>,
    /// Boosts.
    pub boosts: u64,
    /// Boosts that were due and not given.
    pub denied: u64,
    /// Times the budget ended or prevented a boost.
    pub throttles: u64,
    /// Throttles because a boost was the longest allowed, `longest_boost`.
    #[serde(default)]
    pub too_long: u64,
    /// Throttles by the VM's budget, where the vCPU's own had tokens left.
    #[serde(default)]
    pub by_vm: u64,
    /// Time boosted and awake, in nanoseconds.
    pub boosted_ns: u64,
    /// Boosted time left, in nanoseconds; null for a policy without a budget.
    pub budget_left_ns: Option<u64>,
    /// Whether the guest's driver reports on it; null for a policy that does not use the guest's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<bool>,
    /// Deadlines of the guest for which it was boosted ahead of time.
    #[serde(default)]
    pub deadlines: u64,
    /// Boosts that the guest ended by a notification.
    #[serde(default)]
    pub notified: u64,
}
