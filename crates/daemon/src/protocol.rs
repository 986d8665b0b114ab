//! What is said on the control socket: a request and a response, each one line of JSON.

use std::fmt;

use serde::{Deserialize, Serialize};
use vcoop_vmm::Vm;

/// A VM by its process. A process id alone may be reused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VmId {
    /// The VMM's process.
    pub pid: u32,
    /// When it started, in clock ticks since the host's boot.
    pub start_ticks: u64,
    /// The VM's name; tells apart the VMs of one process.
    pub name: String,
}

impl VmId {
    /// That of a VM that was found.
    pub fn of(vm: &Vm) -> Self {
        Self { pid: vm.pid, start_ticks: vm.start_time, name: vm.name.clone() }
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// What is in force.
    Status,
    /// Apply a policy, in place of a rule's or this connection's own, until this connection is closed, the VM ends, or
    /// somebody detaches it. What another connection has applied is not replaced.
    Attach {
        /// The VM.
        vm: VmId,
        /// Name of the policy.
        policy: String,
        /// Settings, as `--set` has them.
        #[serde(default)]
        sets: Vec<String>,
    },
    /// Take everything back from a VM.
    Detach {
        /// The VM.
        vm: VmId,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// A policy is in force; to [`Request::Attach`].
    Attached(Box<VmStatus>),
    /// Nothing is, any more; how it was until then. To [`Request::Detach`].
    Detached(Box<VmStatus>),
    /// It was not done.
    Refused(Refusal),
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    /// Why, for people.
    pub why: String,
    /// This host lacks something, or this user may not use it.
    pub missing: bool,
    /// No such thing can be asked for, of any VM.
    #[serde(default)]
    pub usage: bool,
}

impl Refusal {
    /// This host lacks something.
    pub(crate) fn missing(why: impl fmt::Display) -> Self {
        Self { missing: true, ..Self::from(why.to_string()) }
    }

    /// No such thing can be asked for.
    pub(crate) fn usage(why: impl fmt::Display) -> Self {
        Self { usage: true, ..Self::from(why.to_string()) }
    }

    /// The same, of a part of what was asked for.
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

/// What a process that owns vCPU threads does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The process.
    pub pid: u32,
    /// CPU time that its engine has used, in nanoseconds.
    pub engine_cpu_ns: u64,
    /// Sleeps of vCPU threads that it has heard of.
    pub events: u64,
    /// From each to when it was heard of: sum over all, in nanoseconds.
    pub reaction_sum_ns: u64,
    /// The largest of them since the start.
    pub reaction_max_ns: u64,
    /// VMs with a policy.
    pub vms: Vec<VmStatus>,
}

/// Interrupts for vCPUs of a VM; under `scx_vcoop`, of all VMs, and without reactions: it has none to wait for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InterruptStatus {
    /// Those that were heard of.
    pub heard: u64,
    /// Those that came within 100 us of one that was heard of, with the vCPU still waiting for a CPU: its policy was not told
    /// of them.
    #[serde(default)]
    pub coalesced: u64,
    /// Those of any VM that could not be told, because too many were at once.
    pub lost: u64,
    /// Those that found or made their vCPU boosted.
    pub boosted: u64,
    /// From the interrupt to when the vCPU had what its policy gives it, in nanoseconds: median.
    pub reaction_p50_ns: u64,
    /// ... 99th percentile.
    pub reaction_p99_ns: u64,
    /// ... the largest.
    pub reaction_max_ns: u64,
}

/// A VM with a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmStatus {
    /// The VM.
    pub vm: VmId,
    /// Name of the policy in force.
    pub policy: String,
    /// How long it has been in force, in nanoseconds.
    pub for_ns: u64,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuStatus>,
    /// The thread of its VMM that delivers its timers, where that is not the vCPU's own: it is boosted
    /// when it wakes up, within a budget of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timers: Option<VcpuStatus>,
    /// By what it is heard that its threads run and sleep, and that interrupts come for them.
    #[serde(default)]
    pub hears: Vec<String>,
    /// Interrupts, where they are heard of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts: Option<InterruptStatus>,
    /// Hardly any thread of the host waits for a CPU: its vCPUs have what they had before the policy, until one does.
    #[serde(default)]
    pub rests: bool,
    /// How many of its vCPUs its guest is asked to use, where the policy has a governor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u32>,
    /// What to know of the policy on this host, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl VmStatus {
    /// vCPUs that the policy is applied to.
    pub fn driven(&self) -> impl Iterator<Item = &VcpuStatus> {
        self.vcpus.iter().filter(|vcpu| vcpu.left_alone.is_none())
    }

    /// How many these are, in words: `1 vCPU`, `3 vCPUs`.
    pub fn extent(&self) -> String {
        match self.driven().count() {
            1 => "1 vCPU".to_owned(),
            n => format!("{n} vCPUs"),
        }
    }
}

/// A vCPU of such a VM. The counters are since the policy was applied.
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
    /// Of these, those by the account of the longest boost, `longest_boost`.
    #[serde(default)]
    pub too_long: u64,
    /// ... and those by the VM's budget, where the vCPU's own had room.
    #[serde(default)]
    pub by_vm: u64,
    /// Time boosted and awake, in nanoseconds.
    pub boosted_ns: u64,
    /// Boosted time left, in nanoseconds; null for a policy without a budget.
    pub budget_left_ns: Option<u64>,
    /// Whether the guest's driver speaks for it; null for a policy that does not listen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<bool>,
    /// Deadlines of the guest for which it was boosted ahead of time.
    #[serde(default)]
    pub deadlines: u64,
    /// Boosts that ended by the guest's own word.
    #[serde(default)]
    pub notified: u64,
}
