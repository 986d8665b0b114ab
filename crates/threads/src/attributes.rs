//! Scheduling attributes of threads: what a boost changes, and what it gives back.
#![allow(unsafe_code, reason = "sched_getattr and sched_setattr have no safe wrapper")]

use std::fmt;
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use vcoop_policy::thread::Policy;

use crate::Ns;
use crate::error::Error;

/// The kernel's `struct sched_attr`, of Linux 5.3 and later. Older kernels accept it if the fields that they do not
/// know are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub(crate) size: u32,
    pub(crate) policy: u32,
    pub(crate) flags: u64,
    pub(crate) nice: i32,
    pub(crate) priority: u32,
    /// Runtime of a deadline thread, slice of a fair one; 0: the default slice.
    pub(crate) runtime: Ns,
    pub(crate) deadline: Ns,
    pub(crate) period: Ns,
    pub(crate) util_min: u32,
    pub(crate) util_max: u32,
}

const SIZE: u32 = size_of::<Attributes>() as u32;
/// Children start with the default policy, so a fork cannot inherit a boost. Without this flag a deadline thread cannot
/// fork or start a thread: the kernel answers EAGAIN.
const RESET_ON_FORK: u64 = 1;
/// `linux/sched.h`; not in every libc.
const SCHED_DEADLINE: i32 = 6;
/// Threads of a BPF scheduler (Linux 6.12).
const SCHED_EXT: i32 = 7;

/// The default slice of fair threads; `None` if it cannot be found out.
///
/// Since Linux 6.12 `sched_getattr` reports a slice for every fair thread. Setting the default slice would make it the
/// thread's own: it would no longer follow the default, and children would inherit it. So the default is read once,
/// from a thread that surely has it.
///
/// If an administrator changes the default afterwards, threads have another default than this.
pub fn default_slice() -> Option<Ns> {
    static SLICE: OnceLock<Option<Ns>> = OnceLock::new();
    *SLICE.get_or_init(|| {
        let fresh = || {
            // Its nice value is kept: raising it may be forbidden.
            let nice = Attributes::read(0)?.nice;
            Attributes { nice, ..Attributes::of(libc::SCHED_OTHER, 0, 0, 0) }.set(0)?;
            Attributes::read(0)
        };
        let thread = thread::Builder::new().spawn(fresh).ok()?;
        thread.join().ok()?.ok().map(|attr| attr.runtime)
    })
}

/// File with the current default: readable by root, if debugfs is mounted and the kernel is not locked down.
const BASE_SLICE: &str = "/sys/kernel/debug/sched/base_slice_ns";
/// Time between two reads of that file because of the same slice.
const LOOK: Duration = Duration::from_secs(1);

/// Slices that have been the default. A sleeping thread keeps an old default until it wakes up.
#[derive(Debug, Default)]
struct Defaults {
    known: Vec<Ns>,
    /// A slice that was not the default, and when that was read.
    other: Option<(Ns, Instant)>,
}

impl Defaults {
    /// Whether a slice is, or has been, the default; `look` reads the current default.
    fn has(&mut self, slice: Ns, look: impl FnOnce() -> Option<Ns>) -> bool {
        if self.known.contains(&slice) {
            return true;
        }
        if self.other.is_some_and(|(other, at)| other == slice && at.elapsed() < LOOK) {
            return false;
        }
        let is_default = look() == Some(slice);
        if is_default {
            self.known.push(slice);
        } else {
            self.other = Some((slice, Instant::now()));
        }
        is_default
    }
}

/// Whether a fair thread's slice is the default, also after an administrator has changed that.
fn is_default_slice(slice: Ns) -> bool {
    static DEFAULTS: Mutex<Defaults> = Mutex::new(Defaults { known: Vec::new(), other: None });
    if default_slice() == Some(slice) {
        return true;
    }
    let look = || std::fs::read_to_string(BASE_SLICE).ok()?.trim().parse().ok();
    // No thread waits for one that may have a lower priority.
    DEFAULTS.try_lock().is_ok_and(|mut defaults| defaults.has(slice, look))
}

impl Attributes {
    pub(crate) fn of(policy: i32, priority: u8, nice: i8, slice_ns: u64) -> Self {
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

    /// Whether this is a reservation. The kernel may refuse a reservation for lack of bandwidth.
    pub fn is_deadline(&self) -> bool {
        self.policy as i32 == SCHED_DEADLINE
    }

    /// The attributes of a plan's policy.
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

    /// The policy of these attributes. SCHED_BATCH and threads of a BPF scheduler count as SCHED_OTHER, with their nice
    /// value and slice.
    pub fn to_policy(&self) -> Policy {
        let priority = u8::try_from(self.priority).unwrap_or(u8::MAX);
        match self.policy as i32 {
            libc::SCHED_FIFO => Policy::Fifo(priority),
            libc::SCHED_RR => Policy::Rr(priority),
            libc::SCHED_IDLE => Policy::Idle,
            SCHED_DEADLINE => Policy::Deadline {
                runtime_ns: self.runtime,
                deadline_ns: self.deadline,
                period_ns: self.period,
            },
            _ => Policy::Normal {
                nice: i8::try_from(self.nice.clamp(-20, 19)).unwrap_or(0),
                slice_ns: (self.runtime > 0).then_some(self.runtime),
            },
        }
    }

    /// Whether the thread is in the fair class (or a BPF scheduler's in its place), so that it has a nice value and a
    /// slice.
    pub(crate) fn is_fair(&self) -> bool {
        let fair = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE, SCHED_EXT];
        fair.contains(&(self.policy as i32))
    }

    /// Whether children start without these attributes, as those of a boosted thread do. Clearing this needs a
    /// privilege.
    pub fn end_at_fork(&self) -> bool {
        self.flags & RESET_ON_FORK != 0
    }

    /// Attributes of a thread; 0 = the calling one. A default slice is reported as 0.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn get(tid: i32) -> Result<Self, Error> {
        Self::read(tid).map(Self::as_got)
    }

    /// What [`get`](Self::get) reports of a thread that was given these: an own slice as long as the default cannot be
    /// told from the default.
    #[must_use]
    pub fn as_got(mut self) -> Self {
        if self.is_fair() && self.runtime != 0 && is_default_slice(self.runtime) {
            self.runtime = 0;
        }
        self
    }

    /// Attributes as the kernel reports them.
    fn read(tid: i32) -> Result<Self, Error> {
        let mut attr = Self::default();
        // SAFETY: the kernel writes at most `SIZE` bytes.
        let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, SIZE, 0_u32) };
        if rc != 0 {
            return Err(Error::last_os("sched_getattr"));
        }
        // An older kernel fills in less, and says so here.
        attr.size = SIZE;
        Ok(attr)
    }

    /// Sets them on a thread; 0 = the calling one. Utilisation clamps do not change: the kernel keeps them under any
    /// policy.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn set(&self, tid: i32) -> Result<(), Error> {
        // A kernel that does not know clamps answers E2BIG to any but 0.
        let mut attr = Self { size: SIZE, util_min: 0, util_max: 0, ..*self };
        // SAFETY: the kernel reads `SIZE` bytes, and may write the size that it knows.
        let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw mut attr, 0_u32) };
        if rc == 0 { Ok(()) } else { Err(Error::last_os("sched_setattr")) }
    }

    /// Whether this process may set them again on a thread after others: without CAP_SYS_NICE it may change a slice, and
    /// with RLIMIT_RTPRIO more, but not clear the flag that it sets for this.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn can_come_back(&self) -> Result<(), Error> {
        if self.end_at_fork() {
            return Ok(());
        }
        // Tried on a thread that ends with it: what is effective in a user namespace may not be in the kernel's eyes.
        let there_and_back = || {
            Self::of(libc::SCHED_OTHER, 0, 0, 0).set(0)?;
            Self { flags: 0, ..Self::of(libc::SCHED_OTHER, 0, 0, 0) }.set(0)
        };
        let tried = thread::Builder::new().spawn(there_and_back).map(thread::JoinHandle::join);
        let failed = |source| Error { call: "pthread_create", source };
        tried.map_err(failed)?.unwrap_or(Ok(()))
    }

    /// Sets utilisation clamps too; false if this kernel has none.
    #[cfg(test)]
    pub(crate) fn clamp(&self, tid: i32) -> bool {
        // SAFETY: the kernel reads `SIZE` bytes.
        unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const *self, 0_u32) == 0 }
    }
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy as i32 {
            libc::SCHED_OTHER => f.write_str("SCHED_OTHER")?,
            libc::SCHED_FIFO => f.write_str("SCHED_FIFO")?,
            libc::SCHED_RR => f.write_str("SCHED_RR")?,
            libc::SCHED_BATCH => f.write_str("SCHED_BATCH")?,
            libc::SCHED_IDLE => f.write_str("SCHED_IDLE")?,
            SCHED_DEADLINE => f.write_str("SCHED_DEADLINE")?,
            SCHED_EXT => f.write_str("SCHED_EXT")?,
            other => write!(f, "policy {other}")?,
        }
        if self.is_deadline() {
            let Self { runtime, deadline, period, .. } = self;
            write!(f, " {runtime} ns in {deadline} ns of {period} ns")
        } else if self.is_fair() {
            write!(f, " nice {}", self.nice)?;
            if self.runtime > 0 { write!(f, ", slice {} ns", self.runtime) } else { Ok(()) }
        } else {
            write!(f, " {}", self.priority)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{Attributes, Defaults, SCHED_EXT, default_slice};
    use crate::error::Error;
    use crate::gettid;
    use vcoop_policy::thread::Policy;

    /// Whether this kernel knows slices (6.12 and later).
    fn knows_slices() -> bool {
        default_slice().is_some_and(|ns| ns > 0)
    }

    #[test]
    fn a_default_slice_is_none_and_does_not_become_one() {
        thread::spawn(|| {
            for policy in [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE] {
                Attributes::of(policy, 0, 5, 0).set(0).unwrap();
                let got = Attributes::get(0).unwrap();
                assert_eq!((got.policy as i32, got.runtime), (policy, 0), "{got}");
                got.set(0).unwrap();
                // A child inherits a slice of its own, and the default otherwise: as here.
                let mut inherits = got;
                inherits.flags = 0;
                inherits.set(0).unwrap();
                let child = thread::spawn(|| Attributes::get(0).unwrap().runtime).join();
                assert_eq!(child.unwrap(), 0);
            }
            Attributes::of(libc::SCHED_OTHER, 0, 0, 0).set(0).unwrap();
            let own = Attributes::of(libc::SCHED_OTHER, 0, 0, 700_000);
            own.set(0).unwrap();
            let runtime = if knows_slices() { 700_000 } else { 0 };
            assert_eq!(Attributes::get(0).unwrap().runtime, runtime);
            // What a deadline thread has is no slice.
            let slice = default_slice().unwrap_or_default();
            let deadline = Attributes::of(libc::SCHED_DEADLINE, 0, 0, slice);
            assert_eq!(deadline.as_got(), deadline);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_default_that_was_changed_is_one_and_so_is_the_one_before() {
        let mut defaults = Defaults::default();
        assert!(!defaults.has(700_000, || Some(3_000_000)));
        assert!(!defaults.has(700_000, || panic!("it has just been looked at")));
        assert!(!defaults.has(600_000, || None), "it cannot be told");
        assert!(defaults.has(3_000_000, || Some(3_000_000)));
        assert!(defaults.has(2_000_000, || Some(2_000_000)));
        assert!(defaults.has(3_000_000, || panic!("it is known")));
    }

    /// A program that may change a thread's slice, but not clear the flag that goes with it.
    #[test]
    fn without_cap_sys_nice_nothing_comes_back() {
        let plain = Attributes { flags: 0, ..Attributes::of(libc::SCHED_OTHER, 0, 0, 0) };
        let may = Attributes::of(libc::SCHED_OTHER, 0, 0, 0).set(0).and_then(|()| plain.set(0));
        assert_eq!(plain.can_come_back().is_ok(), may.is_ok());
        let meek = thread::spawn(move || {
            vcoop_testing::drop_cap_sys_nice();
            let flagged = Attributes::of(libc::SCHED_OTHER, 0, 0, 0);
            (plain.can_come_back(), flagged.can_come_back(), Attributes::get(0).unwrap())
        });
        let (refused, flagged, own) = meek.join().unwrap();
        assert_eq!(refused.unwrap_err().source.raw_os_error(), Some(libc::EPERM));
        assert!(flagged.is_ok());
        assert_eq!(own.flags, 0, "it was tried elsewhere");
    }

    #[test]
    fn each_policy_has_its_words() {
        let of = |policy, priority| Attributes::of(policy, priority, 0, 0).to_string();
        assert_eq!(of(libc::SCHED_FIFO, 50), "SCHED_FIFO 50");
        assert_eq!(of(SCHED_EXT, 0), "SCHED_EXT nice 0");
        assert_eq!(of(42, 0), "policy 42 0");
        let slice = Attributes::of(libc::SCHED_BATCH, 0, -3, 700_000).to_string();
        assert_eq!(slice, "SCHED_BATCH nice -3, slice 700000 ns");
        let deadline = Attributes::reservation(1, 2, 3).to_string();
        assert_eq!(deadline, "SCHED_DEADLINE 1 ns in 2 ns of 3 ns");
    }

    #[test]
    fn reads_back_what_it_sets() {
        thread::spawn(|| {
            let wanted = Attributes::from_policy(&Policy::Normal { nice: 3, slice_ns: None });
            wanted.set(0).unwrap();
            let got = Attributes::get(gettid()).unwrap();
            assert_eq!((got.policy, got.nice, got.runtime), (wanted.policy, 3, 0));
            let rest = Policy::Normal { nice: 19, slice_ns: Some(700_000) };
            Attributes::from_policy(&rest).set(0).unwrap();
            let runtime = if knows_slices() { 700_000 } else { 0 };
            assert_eq!(Attributes::get(gettid()).unwrap(), Attributes { nice: 19, runtime, ..got });
        })
        .join()
        .unwrap();
    }

    #[test]
    fn attributes_and_policies_are_the_same() {
        let policies = [
            Policy::Fifo(50),
            Policy::Rr(8),
            Policy::Idle,
            Policy::Normal { nice: -7, slice_ns: Some(700_000) },
            Policy::Deadline { runtime_ns: 1, deadline_ns: 2, period_ns: 3 },
        ];
        for policy in policies {
            assert_eq!(Attributes::from_policy(&policy).to_policy(), policy);
        }
        let batch = Attributes::of(libc::SCHED_BATCH, 0, 5, 0).to_policy();
        assert_eq!(batch, Policy::Normal { nice: 5, slice_ns: None });
    }

    /// What the kernel does with reservations, as far as the lab depends on it.
    #[test]
    fn reservations_on_this_kernel() {
        let quarter = Attributes::reservation(1_000_000, 4_000_000, 4_000_000);
        let baseline = Attributes::from_policy(&Policy::Normal { nice: 3, slice_ns: None });
        let cpus = crate::allowed_cpus().unwrap();
        let (free, pinned) = thread::spawn(move || {
            baseline.set(0).unwrap();
            let before = Attributes::get(gettid()).unwrap();
            let free = quarter.set(0);
            if free.is_ok() {
                let Attributes { util_min, util_max, .. } = before;
                let got = Attributes::get(gettid()).unwrap();
                assert_eq!(got, Attributes { util_min, util_max, ..quarter });
                // With the flag that resets it, a deadline thread may start another.
                let child = thread::spawn(|| Attributes::get(gettid()).unwrap());
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
