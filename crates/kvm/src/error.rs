//! What can go wrong, said so that the reader knows what to do about it.

use std::fmt;
use std::io;

/// A facility that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What is missing.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

impl std::error::Error for Missing {}

/// Whom a request was for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Whom {
    /// The host as a whole.
    #[default]
    Host,
    /// A VM.
    Vm(String),
    /// A vCPU of a VM.
    Vcpu(String, u32),
    /// A host thread.
    Thread(String),
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("the host"),
            Self::Vm(vm) => write!(f, "VM {vm}"),
            Self::Vcpu(vm, n) => write!(f, "VM {vm}, vCPU {n}"),
            Self::Thread(name) => write!(f, "thread {name}"),
        }
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something the plan needs is not on this host.
    #[error("{0}")]
    Missing(#[from] Missing),
    /// The kernel refuses the means of boosting of this plan's policy to a thread of it. Other
    /// policies of the scenario may run: it is this one that has no result.
    #[error("policy {policy}: {missing}")]
    PolicyMissing {
        /// The policy.
        policy: String,
        /// What it needs, and how to get it.
        missing: Missing,
    },
    /// The plan asks for something that this backend cannot do.
    #[error("{what} cannot run on real vCPUs: {why}")]
    Unsupported {
        /// What the plan asks for.
        what: String,
        /// Why it cannot.
        why: String,
    },
    /// The kernel refused.
    #[error("{whom}: {asked}: {source}{}", hint(asked, source))]
    Kernel {
        /// The request: an ioctl or a system call.
        asked: &'static str,
        /// For whom.
        whom: Whom,
        /// errno.
        source: io::Error,
    },
    /// The guest ended in a way it should not.
    #[error("{whom}: {what}")]
    Guest {
        /// Whose vCPU.
        whom: Whom,
        /// What it did.
        what: String,
    },
    /// A thread of the run panicked; the others were stopped.
    #[error("{0} panicked; the run was stopped")]
    Panicked(Whom),
}

impl Error {
    /// The kernel's refusal in errno.
    pub(crate) fn last_os(asked: &'static str, whom: Whom) -> Self {
        Self::Kernel { asked, whom, source: io::Error::last_os_error() }
    }

    /// Refused for lack of something that others have at the moment (EBUSY).
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Self::Kernel { source, .. } if source.raw_os_error() == Some(libc::EBUSY))
    }

    /// A refused ioctl.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub(crate) fn kvm(
        asked: &'static str,
        whom: &Whom,
    ) -> impl FnOnce(kvm_ioctls::Error) -> Self + use<> {
        let whom = whom.clone();
        move |e| Self::Kernel { asked, whom, source: io::Error::from_raw_os_error(e.errno()) }
    }
}

/// What an errno means for this request, where that is not obvious.
fn hint(asked: &str, e: &io::Error) -> &'static str {
    let scheduling = asked.starts_with("sched_setattr");
    match e.raw_os_error() {
        Some(libc::EPERM) if scheduling => {
            " (needs CAP_SYS_NICE; in a cgroup with RT group scheduling also its cpu.rt_runtime_us; \
             a deadline has to be of a thread that may use all CPUs of its root domain)"
        }
        Some(libc::EBUSY) if scheduling => " (deadline bandwidth is exhausted)",
        Some(libc::EBUSY) if asked == "sched_setaffinity" => {
            " (a deadline thread cannot be confined to some CPUs)"
        }
        Some(libc::EINVAL) if scheduling => " (this kernel does not know the policy or the slice)",
        Some(libc::EACCES | libc::EPERM) => " (needs access to /dev/kvm)",
        Some(libc::ENOMEM) => " (memory or the limit on locked memory is exhausted)",
        Some(libc::EBUSY) => " (another hypervisor holds the virtualisation extensions)",
        Some(libc::ENXIO | libc::ENOTTY) => " (this KVM does not implement it)",
        _ => "",
    }
}
