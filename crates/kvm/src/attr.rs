//! Scheduling attributes of threads: what a boost changes, and what it gives back.
#![allow(unsafe_code, reason = "sched_setattr, affinity and prctl have no safe wrapper")]

use vcoop_sched::config::Policy;

use crate::error::{Error, Whom};

/// The kernel's `struct sched_attr`, first published size.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<Attr>() as u32;
/// Children start with the default policy: a leaked fork cannot inherit a boost. A deadline thread
/// cannot fork (or start a thread) without it: the kernel answers EAGAIN.
const RESET_ON_FORK: u64 = 1;
/// `linux/sched.h`; not in every libc.
const SCHED_DEADLINE: i32 = 6;

impl Attr {
    fn of(policy: i32, priority: u8, nice: i8, slice_ns: u64) -> Self {
        Self {
            size: SIZE,
            policy: policy as u32,
            flags: RESET_ON_FORK,
            nice: i32::from(nice),
            priority: u32::from(priority),
            // For SCHED_OTHER this is the EEVDF slice; 0 = the default. Older kernels ignore it.
            runtime: slice_ns,
            ..Self::default()
        }
    }

    /// A reservation of `runtime` in each `period`, within `deadline`.
    fn reservation(runtime: u64, deadline: u64, period: u64) -> Self {
        Self { deadline, period, ..Self::of(SCHED_DEADLINE, 0, 0, runtime) }
    }

    /// Whether this is a reservation, which the kernel may refuse where it takes anything else.
    pub(crate) fn is_deadline(&self) -> bool {
        self.policy as i32 == SCHED_DEADLINE
    }

    /// The attributes that a plan's policy means.
    pub(crate) fn from_policy(policy: &Policy) -> Self {
        match *policy {
            Policy::Fifo(p) => Self::of(libc::SCHED_FIFO, p, 0, 0),
            Policy::Rr(p) => Self::of(libc::SCHED_RR, p, 0, 0),
            Policy::Normal { nice, slice_ns } => {
                Self::of(libc::SCHED_OTHER, 0, nice, slice_ns.unwrap_or(0))
            }
            Policy::Idle => Self::of(libc::SCHED_IDLE, 0, 0, 0),
            Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
                Self::reservation(runtime_ns, deadline_ns, period_ns)
            }
        }
    }

    /// The policy that these attributes mean.
    #[cfg(test)]
    pub(crate) fn policy(&self) -> Policy {
        let priority = self.priority as u8;
        match self.policy as i32 {
            libc::SCHED_FIFO => Policy::Fifo(priority),
            libc::SCHED_RR => Policy::Rr(priority),
            libc::SCHED_IDLE => Policy::Idle,
            SCHED_DEADLINE => Policy::Deadline {
                runtime_ns: self.runtime,
                deadline_ns: self.deadline,
                period_ns: self.period,
            },
            _ => {
                let slice_ns = (self.runtime > 0).then_some(self.runtime);
                Policy::Normal { nice: self.nice as i8, slice_ns }
            }
        }
    }

    /// What a thread has now.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn get(tid: i32, whom: &Whom) -> Result<Self, Error> {
        let mut attr = Self::default();
        // SAFETY: the kernel writes at most `SIZE` bytes.
        let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, SIZE, 0_u32) };
        if rc == 0 { Ok(attr) } else { Err(Error::last_os("sched_getattr", whom.clone())) }
    }

    /// Gives them to a thread; 0 = the calling one.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn set(&self, tid: i32, whom: &Whom) -> Result<(), Error> {
        let attr = Self { size: SIZE, ..*self };
        // SAFETY: reads `SIZE` bytes.
        let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0_u32) };
        if rc == 0 { Ok(()) } else { Err(Error::last_os("sched_setattr", whom.clone())) }
    }
}

/// The calling thread.
pub(crate) fn gettid() -> i32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() }
}

/// CPUs the process may use, ascending.
///
/// # Errors
///
/// [`Error::Kernel`].
pub(crate) fn allowed_cpus() -> Result<Vec<u32>, Error> {
    // SAFETY: no arguments, cannot fail.
    cpus_of(unsafe { libc::getpid() })
}

/// CPUs a thread may use, ascending; 0 = the calling one.
fn cpus_of(tid: i32) -> Result<Vec<u32>, Error> {
    // SAFETY: a cpu_set_t is plain bits, and the kernel writes at most its size.
    let set = unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        if libc::sched_getaffinity(tid, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return Err(Error::last_os("sched_getaffinity", Whom::Host));
        }
        set
    };
    let n = libc::CPU_SETSIZE as u32;
    // SAFETY: the index is below CPU_SETSIZE.
    Ok((0..n).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu as usize, &set) }).collect())
}

/// Pins the calling thread; an empty list leaves it alone.
///
/// # Errors
///
/// [`Error::Kernel`].
pub(crate) fn pin(cpus: &[u32], whom: &Whom) -> Result<(), Error> {
    if cpus.is_empty() {
        return Ok(());
    }
    // SAFETY: the indices come from `allowed_cpus`, so they are below CPU_SETSIZE.
    let rc = unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        for cpu in cpus {
            libc::CPU_SET(*cpu as usize, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if rc == 0 { Ok(()) } else { Err(Error::last_os("sched_setaffinity", whom.clone())) }
}

/// Keeps the calling thread on some CPUs while it lives, where that can be had; it goes back to
/// those it had on drop. Does not leave its thread.
#[derive(Debug)]
pub(crate) struct Stay(Vec<u32>, std::marker::PhantomData<*const ()>);

impl Stay {
    pub(crate) fn on(cpus: &[u32]) -> Self {
        let before = cpus_of(0).unwrap_or_default();
        let kept = pin(cpus, &Whom::Host).map(|()| before);
        Self(kept.unwrap_or_default(), std::marker::PhantomData)
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        // There is nobody to tell if this fails.
        let _ = pin(&self.0, &Whom::Host);
    }
}

/// Sets the calling thread's timer slack, at least 1 ns (0 would mean the default).
pub(crate) fn timer_slack(ns: u64) {
    // SAFETY: a plain number; failure leaves the default, which only makes sleeps later.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns.max(1)) };
}

#[cfg(test)]
mod tests {
    use super::{Attr, Stay, cpus_of, gettid};
    use crate::error::{Error, Whom};
    use vcoop_sched::config::Policy;

    #[test]
    fn reads_back_what_it_sets() {
        std::thread::spawn(|| {
            let wanted = Attr::from_policy(&Policy::Normal { nice: 3, slice_ns: None });
            wanted.set(0, &Whom::Host).unwrap();
            let got = Attr::get(gettid(), &Whom::Host).unwrap();
            assert_eq!((got.policy, got.nice), (wanted.policy, 3));
            let rest = Policy::Normal { nice: 19, slice_ns: Some(700_000) };
            Attr::from_policy(&rest).set(0, &Whom::Host).unwrap();
            // Kernels before 6.12 know no slices.
            let runtime = if got.runtime == 0 { 0 } else { 700_000 };
            assert_eq!(
                Attr::get(gettid(), &Whom::Host).unwrap(),
                Attr { nice: 19, runtime, ..got }
            );
        })
        .join()
        .unwrap();
    }

    #[test]
    fn who_stayed_goes_back() {
        std::thread::spawn(|| {
            let before = cpus_of(0).unwrap();
            let stay = Stay::on(&before[..1]);
            assert_eq!(cpus_of(0).unwrap(), before[..1]);
            drop(stay);
            assert_eq!(cpus_of(0).unwrap(), before);
        })
        .join()
        .unwrap();
    }

    /// What the kernel does with reservations, as far as the lab depends on it.
    #[test]
    fn reservations_on_this_kernel() {
        let quarter = Attr::reservation(1_000_000, 4_000_000, 4_000_000);
        let baseline = Attr::from_policy(&Policy::Normal { nice: 3, slice_ns: None });
        let cpus = super::allowed_cpus().unwrap();
        let (free, pinned) = std::thread::spawn(move || {
            baseline.set(0, &Whom::Host).unwrap();
            let before = Attr::get(gettid(), &Whom::Host).unwrap();
            let free = quarter.set(0, &Whom::Host);
            if free.is_ok() {
                assert_eq!(Attr::get(gettid(), &Whom::Host).unwrap(), quarter);
                // With the flag that resets it, a deadline thread may start another.
                let child = std::thread::spawn(|| Attr::get(gettid(), &Whom::Host).unwrap());
                assert!(!child.join().unwrap().is_deadline());
                before.set(0, &Whom::Host).unwrap();
                assert_eq!(Attr::get(gettid(), &Whom::Host).unwrap(), before);
            }
            super::pin(&cpus[..1], &Whom::Host).unwrap();
            let pinned = if cpus.len() > 1 { Some(quarter.set(0, &Whom::Host)) } else { None };
            (free, pinned)
        })
        .join()
        .unwrap();
        let errno = |e: &Error| match e {
            Error::Kernel { source, .. } => source.raw_os_error(),
            _ => None,
        };
        if let Err(e) = free {
            eprintln!("skipped: {e}");
            return;
        }
        let admission = std::fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
        if let Some(pinned) = pinned
            && admission.trim() != "-1"
        {
            assert_eq!(pinned.as_ref().map_err(errno), Err(Some(libc::EPERM)));
        }
    }
}
