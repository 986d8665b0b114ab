//! Errors, with remedies.

use std::fmt;
use std::io;

use vcoop_model::Missing;

/// What a request was about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RequestTarget {
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

impl fmt::Display for RequestTarget {
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
    #[error("{}; {}", .0.what, .0.remedy)]
    Missing(#[from] Missing),
    /// The kernel refuses a thread the means of boosting of this plan's policy. Other policies of the scenario may run.
    #[error("policy {policy}: {}; {}", .missing.what, .missing.remedy)]
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
        /// What it was about.
        whom: RequestTarget,
        /// errno.
        source: io::Error,
    },
    /// The guest ended in a way it should not.
    #[error("{whom}: {what}")]
    Guest {
        /// The vCPU.
        whom: RequestTarget,
        /// What it did.
        what: String,
    },
    /// A thread of the run panicked; the others were stopped.
    #[error("{0} panicked; the run was stopped")]
    Panicked(RequestTarget),
}

impl Error {
    /// An error about something that this backend cannot do, and why.
    pub(crate) fn unsupported(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), why: why.into() }
    }

    /// An error from an [`io::Error`].
    pub(crate) fn io(asked: &'static str, whom: RequestTarget, source: io::Error) -> Self {
        Self::Kernel { asked, whom, source }
    }

    /// An error from errno.
    pub(crate) fn last_os(asked: &'static str, whom: RequestTarget) -> Self {
        Self::Kernel { asked, whom, source: io::Error::last_os_error() }
    }

    /// An error about a thread.
    pub(crate) fn refused(
        whom: &RequestTarget,
    ) -> impl FnOnce(vcoop_threads::Error) -> Self + use<> {
        let whom = whom.clone();
        move |e| Self::Kernel { asked: e.call, whom, source: e.source }
    }

    /// Whether the request was refused because others use the resource at the moment (EBUSY).
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Self::Kernel { source, .. } if source.raw_os_error() == Some(libc::EBUSY))
    }

    /// An error of an ioctl.
    pub(crate) fn kvm(
        asked: &'static str,
        whom: &RequestTarget,
    ) -> impl FnOnce(kvm_ioctls::Error) -> Self + use<> {
        let whom = whom.clone();
        move |e| Self::Kernel { asked, whom, source: io::Error::from_raw_os_error(e.errno()) }
    }
}

/// What an errno means for this request, and the remedy, if that is not obvious; empty if the kernel's message says
/// enough.
fn hint(asked: &str, e: &io::Error) -> &'static str {
    let known = vcoop_threads::hint(asked, e);
    let Some(errno) = e.raw_os_error().filter(|_| known.is_empty()) else { return known };
    let is = |start: &str| asked.starts_with(start);
    match errno {
        libc::EAGAIN if is("create a thread") => {
            " (the limit on threads is reached: ulimit -u, the cgroup's pids.max)"
        }
        libc::ENOMEM if is("mmap") => " (there is not that much free memory)",
        libc::EAGAIN if is("mmap") => " (the limit on locked memory is reached: ulimit -l)",
        libc::EMFILE | libc::ENFILE => " (too many open files: ulimit -n)",
        libc::EEXIST if is("KVM_CREATE_VCPU") => " (the VM has a vCPU of this number already)",
        libc::EINVAL if is("KVM_CREATE_VCPU") => " (more vCPUs than this KVM allows a VM)",
        libc::EEXIST if is("KVM_SET_USER_MEMORY_REGION") => " (the slot overlaps another one)",
        libc::EEXIST if is("KVM_CREATE_IRQCHIP") => {
            " (the VM has vCPUs or an interrupt controller already)"
        }
        libc::E2BIG if is("KVM_GET_SUPPORTED_CPUID") => " (more CPUID leaves than KVM takes)",
        libc::EFAULT if is("KVM_RUN") => " (the guest's memory is not backed by the host's)",
        libc::EINVAL if is("KVM_RUN") => " (KVM refuses the vCPU's registers as they are)",
        libc::EIO if is("KVM_") => " (the VM is dead: KVM found it in a state it cannot be in)",
        libc::EINVAL if is("KVM_SIGNAL_MSI") => " (no vCPU has this APIC id)",
        libc::EINVAL if is("KVM_") => " (this KVM does not accept the value)",
        libc::EACCES | libc::EPERM if is("open /dev/kvm") || is("KVM_") => {
            " (needs access to /dev/kvm)"
        }
        libc::ENODEV if is("open /dev/kvm") || is("KVM_CREATE_VM") => {
            " (no virtualisation extensions, or switched off in the firmware)"
        }
        libc::EBUSY if is("KVM_") => " (another hypervisor holds the virtualisation extensions)",
        libc::ENXIO | libc::ENOTTY if is("KVM_") => " (this KVM does not implement it)",
        libc::ENOMEM => " (memory, or the limit on locked memory, is exhausted)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{Error, RequestTarget};

    fn said(asked: &'static str, whom: RequestTarget, errno: i32) -> String {
        Error::Kernel { asked, whom, source: io::Error::from_raw_os_error(errno) }.to_string()
    }

    #[test]
    fn an_error_says_what_was_asked_for_whom_and_what_errno_means() {
        let vcpu = RequestTarget::Vcpu("guest".to_owned(), 3);
        let text = said("KVM_RUN", vcpu.clone(), libc::EFAULT);
        for part in ["VM guest, vCPU 3", "KVM_RUN", "Bad address", "not backed"] {
            assert!(text.contains(part), "{text}");
        }
        let text = said("sched_setattr", vcpu, libc::EPERM);
        assert!(text.contains("CAP_SYS_NICE"), "{text}");
        let text = said("KVM_CREATE_VM", RequestTarget::Vm("guest".to_owned()), libc::EBUSY);
        assert!(text.contains("VM guest") && text.contains("another hypervisor"), "{text}");
    }

    #[test]
    fn errno_is_read_in_the_light_of_the_request() {
        let host = || RequestTarget::Host;
        let busy = said("sched_setattr", host(), libc::EBUSY);
        assert!(busy.contains("bandwidth") && !busy.contains("hypervisor"), "{busy}");
        let full = said("create a thread", host(), libc::EAGAIN);
        assert!(full.contains("pids.max"), "{full}");
        let denied = said("sched_setaffinity", host(), libc::EPERM);
        assert!(!denied.contains("/dev/kvm"), "{denied}");
        // One that nothing is known about still has the kernel's own words.
        assert!(said("KVM_RUN", host(), libc::EDOM).contains("Numerical argument"));
    }
}
