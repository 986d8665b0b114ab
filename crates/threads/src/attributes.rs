//! Scheduling attributes of threads: what a boost changes, and what it gives back.
#![allow(unsafe_code, reason = "sched_getattr and sched_setattr have no safe wrapper")]

use vcoop_policy::Rest;
use vcoop_policy::config::Means;
use vcoop_sched::config::Policy;

use crate::error::Error;

/// The kernel's `struct sched_attr`, first published size.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<Attributes>() as u32;
/// Children start with the default policy: a leaked fork cannot inherit a boost. A deadline thread
/// cannot fork (or start a thread) without it: the kernel answers EAGAIN.
const RESET_ON_FORK: u64 = 1;
/// `linux/sched.h`; not in every libc.
const SCHED_DEADLINE: i32 = 6;

impl Attributes {
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
    pub fn is_deadline(&self) -> bool {
        self.policy as i32 == SCHED_DEADLINE
    }

    /// The attributes that a plan's policy means.
    pub fn from_policy(policy: &Policy) -> Self {
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

    /// The attributes that boosting by these means gives.
    pub fn from_means(means: Means) -> Self {
        match means {
            Means::Fifo(p) => Self::of(libc::SCHED_FIFO, p, 0, 0),
            Means::Rr(p) => Self::of(libc::SCHED_RR, p, 0, 0),
            Means::Nice(nice) => Self::of(libc::SCHED_OTHER, 0, nice, 0),
            Means::Slice(ns) => Self::of(libc::SCHED_OTHER, 0, 0, ns),
            Means::Deadline { runtime_ns, deadline_ns, period_ns } => {
                Self::reservation(runtime_ns, deadline_ns, period_ns)
            }
        }
    }

    /// The same at rest, where it is fair.
    pub fn at_rest(self, rest: Rest) -> Self {
        if self.policy as i32 != libc::SCHED_OTHER {
            return self;
        }
        let nice = (self.nice + i32::from(rest.levels)).min(19);
        Self { nice, runtime: rest.slice_ns.unwrap_or(self.runtime), ..self }
    }

    /// What a thread has now.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn get(tid: i32) -> Result<Self, Error> {
        let mut attr = Self::default();
        // SAFETY: the kernel writes at most `SIZE` bytes.
        let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, SIZE, 0_u32) };
        if rc == 0 { Ok(attr) } else { Err(Error::last_os("sched_getattr")) }
    }

    /// Gives them to a thread; 0 = the calling one.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn set(&self, tid: i32) -> Result<(), Error> {
        let attr = Self { size: SIZE, ..*self };
        // SAFETY: reads `SIZE` bytes.
        let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0_u32) };
        if rc == 0 { Ok(()) } else { Err(Error::last_os("sched_setattr")) }
    }

    /// Whether a thread with these is at least as urgent as one boosted by `means`.
    pub fn outranks(&self, means: Means) -> bool {
        let real_time = |a: &Self| match a.policy as i32 {
            libc::SCHED_FIFO | libc::SCHED_RR => a.priority,
            SCHED_DEADLINE => 100,
            _ => 0,
        };
        let (mine, theirs) = (real_time(self), real_time(&Self::from_means(means)));
        match means {
            Means::Fifo(_) | Means::Rr(_) => mine >= theirs,
            Means::Nice(nice) => mine > 0 || self.nice <= i32::from(nice),
            Means::Slice(ns) => mine > 0 || (self.runtime > 0 && self.runtime <= ns),
            Means::Deadline { runtime_ns, deadline_ns, period_ns } => {
                let share = |runtime, period| u128::from(runtime) * u128::from(period);
                self.is_deadline()
                    && self.deadline <= deadline_ns
                    && share(self.runtime, period_ns) >= share(runtime_ns, self.period)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Attributes;
    use crate::error::Error;
    use crate::gettid;
    use vcoop_policy::Rest;
    use vcoop_policy::config::Means;
    use vcoop_sched::config::Policy;

    #[test]
    fn reads_back_what_it_sets() {
        std::thread::spawn(|| {
            let wanted = Attributes::from_policy(&Policy::Normal { nice: 3, slice_ns: None });
            wanted.set(0).unwrap();
            let got = Attributes::get(gettid()).unwrap();
            assert_eq!((got.policy, got.nice), (wanted.policy, 3));
            let rest = got.at_rest(Rest { levels: 20, slice_ns: Some(700_000) });
            rest.set(0).unwrap();
            // Kernels before 6.12 know no slices.
            let runtime = if got.runtime == 0 { 0 } else { 700_000 };
            assert_eq!(Attributes::get(gettid()).unwrap(), Attributes { nice: 19, runtime, ..got });
            let fifo = Attributes::from_means(Means::Fifo(1));
            assert_eq!(fifo.at_rest(Rest { levels: 3, slice_ns: Some(700_000) }), fifo);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn ranks() {
        let fifo = Attributes::from_policy(&Policy::Fifo(50));
        let fair = Attributes::from_policy(&Policy::NORMAL);
        assert!(fifo.outranks(Means::Fifo(50)) && !fifo.outranks(Means::Rr(51)));
        assert!(!fair.outranks(Means::Fifo(1)) && !fair.outranks(Means::Nice(-1)));
        assert!(fifo.outranks(Means::Nice(-20)) && !fair.outranks(Means::Slice(100_000)));
        let [quarter, half] =
            [1_000_000, 2_000_000].map(|ns| Attributes::reservation(ns, 4_000_000, 4_000_000));
        let means = |runtime_ns| Means::Deadline {
            runtime_ns,
            deadline_ns: 4_000_000,
            period_ns: 4_000_000,
        };
        assert!(quarter.outranks(Means::Fifo(99)) && quarter.outranks(Means::Nice(-20)));
        assert!(half.outranks(means(1_000_000)) && !quarter.outranks(means(2_000_000)));
        assert!(!fifo.outranks(means(1_000_000)));
    }

    /// What the kernel does with reservations, as far as the lab depends on it.
    #[test]
    fn reservations_on_this_kernel() {
        let quarter = Attributes::reservation(1_000_000, 4_000_000, 4_000_000);
        let baseline = Attributes::from_policy(&Policy::Normal { nice: 3, slice_ns: None });
        let cpus = crate::allowed_cpus().unwrap();
        let (free, pinned) = std::thread::spawn(move || {
            baseline.set(0).unwrap();
            let before = Attributes::get(gettid()).unwrap();
            let free = quarter.set(0);
            if free.is_ok() {
                assert_eq!(Attributes::get(gettid()).unwrap(), quarter);
                // With the flag that resets it, a deadline thread may start another.
                let child = std::thread::spawn(|| Attributes::get(gettid()).unwrap());
                assert!(!child.join().unwrap().is_deadline());
                before.set(0).unwrap();
                assert_eq!(Attributes::get(gettid()).unwrap(), before);
            }
            crate::pin(&cpus[..1]).unwrap();
            let pinned = if cpus.len() > 1 { Some(quarter.set(0)) } else { None };
            (free, pinned)
        })
        .join()
        .unwrap();
        let errno = |e: &Error| e.source.raw_os_error();
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
