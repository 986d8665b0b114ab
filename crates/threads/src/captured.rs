//! What a thread had before it was changed, and how to restore it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::{Pid, getpriority_process, setpriority_process};

use crate::affinity::{affinity, set_affinity};
use crate::attributes::Attributes;
use crate::error::Error;
use crate::pidfd::PidFd;
use crate::stats::Stat;

/// What a thread had: scheduling attributes and CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// The thread's number. Only together with `start` it identifies the thread.
    pub tid: i32,
    /// When it began, in ticks of user space's clock since boot.
    pub start: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its nice value, which a real-time thread has besides its priority.
    pub nice: i32,
    /// CPUs it may use, ascending, without offline ones. Empty: its CPUs are not captured, and stay as they are.
    pub cpus: Vec<u32>,
}

/// A thread with its baseline.
///
/// Open files identify the thread: if its number is given to another thread later, that one is not mistaken for it.
#[derive(Debug)]
pub struct Captured {
    stat: Stat,
    /// Used if this kernel has pidfds of threads: faster than reading `stat`.
    pidfd: Option<PidFd>,
    baseline: Baseline,
}

/// Result of restoring a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It has its baseline.
    Done,
    /// The thread has ended. Another thread that has its number now was left alone.
    Gone,
}

/// What a thread did not get back.
#[derive(Debug, thiserror::Error)]
#[error("thread {tid}: {}", said(attributes.as_ref(), affinity.as_ref()))]
pub struct NotRestored {
    /// The thread.
    pub tid: i32,
    /// Why the scheduling attributes were not restored; `None`: they were.
    pub attributes: Option<Error>,
    /// Why the CPUs were not restored; `None`: they were.
    pub affinity: Option<Error>,
}

fn said(attributes: Option<&Error>, affinity: Option<&Error>) -> String {
    let all: Vec<String> =
        [attributes, affinity].into_iter().flatten().map(Error::to_string).collect();
    all.join("; ")
}

impl Captured {
    /// Captures a thread of any process.
    ///
    /// # Errors
    ///
    /// [`Error`]: there is no such thread, or it may not be read.
    pub fn of(tid: i32) -> Result<Self, Error> {
        let gone = |source| Error { call: "open /proc/TID/stat", source };
        let (stat, pidfd) = (Stat::open(tid).map_err(gone)?, PidFd::of(tid).ok());
        let attributes = Attributes::get(tid)?;
        let nice = nice(tid)?;
        let cpus = affinity(tid)?;
        // Asked last: all that was read is of the thread that the file belongs to.
        let start = stat.start().ok_or_else(|| gone(io::Error::from_raw_os_error(libc::ESRCH)))?;
        Ok(Self { stat, pidfd, baseline: Baseline { tid, start, attributes, nice, cpus } })
    }

    /// Replaces the attributes by those that the thread has now. The captured CPUs are kept.
    ///
    /// # Errors
    ///
    /// [`Error`]: the thread has ended, or may not be read.
    pub fn renew(&mut self) -> Result<(), Error> {
        let tid = self.baseline.tid;
        let mut now = Attributes::get(tid)?;
        // A program that changes a nice value leaves the flag that a boost has set, which the thread did not have.
        now.flags &= self.baseline.attributes.flags;
        (self.baseline.attributes, self.baseline.nice) = (now, nice(tid)?);
        Ok(())
    }

    /// Replaces the nice value.
    pub fn renice(&mut self, nice: i32) {
        self.baseline.nice = nice;
        if self.baseline.attributes.is_fair() {
            self.baseline.attributes.nice = nice;
        }
    }

    /// Finds the thread of a recorded baseline; `None` if it has ended.
    ///
    /// # Errors
    ///
    /// [`Error`]: the thread may not be read, or no more files can be opened.
    pub fn again(baseline: Baseline) -> Result<Option<Self>, Error> {
        let stat = match Stat::open(baseline.tid) {
            Ok(stat) => stat,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                return Ok(None);
            }
            Err(source) => return Err(Error { call: "open /proc/TID/stat", source }),
        };
        let pidfd = PidFd::of(baseline.tid).ok();
        // Asked last: both files are of the thread that began then.
        Ok((stat.start() == Some(baseline.start)).then_some(Self { stat, pidfd, baseline }))
    }

    /// Drops the thread's CPUs, for a caller that does not change them: an administrator may.
    #[must_use]
    pub fn without_cpus(mut self) -> Self {
        self.baseline.cpus.clear();
        self
    }

    /// What the thread had.
    pub fn baseline(&self) -> &Baseline {
        &self.baseline
    }

    /// Whether the thread has not ended.
    pub fn is_alive(&self) -> bool {
        self.pidfd.as_ref().map_or_else(|| self.stat.start().is_some(), PidFd::is_alive)
    }

    /// File that becomes readable when the thread ends; `None` if this kernel has none.
    pub fn ends(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Whether the thread sleeps at the moment.
    pub fn is_asleep(&self) -> bool {
        self.stat.is_asleep()
    }

    /// Restores what the thread had. A second call does nothing. Attributes and CPUs that are already right are not set
    /// again: an affinity that is set, even to its old value, no longer follows the thread's cpuset.
    ///
    /// The thread's number could pass to another thread only between this call's check and its system calls. That is
    /// too short for the kernel to go through all numbers.
    ///
    /// # Errors
    ///
    /// [`NotRestored`]: the kernel refuses a part; the other part was restored.
    pub fn restore(&self) -> Result<Restored, NotRestored> {
        if !self.is_alive() {
            return Ok(Restored::Gone);
        }
        let first = self.restore_attributes();
        // A deadline thread cannot be moved, and one that is not free to use all CPUs cannot become one:
        // whichever of the two the thread was and is, one order works.
        let affinity = self.restore_affinity();
        let attributes = first.or_else(|_| self.restore_attributes());
        match (attributes.err(), affinity.err()) {
            (None, None) => Ok(Restored::Done),
            _ if !self.is_alive() => Ok(Restored::Gone),
            (attributes, affinity) => {
                Err(NotRestored { tid: self.baseline.tid, attributes, affinity })
            }
        }
    }

    fn restore_attributes(&self) -> Result<(), Error> {
        let Baseline { tid, attributes: was, nice: was_nice, .. } = &self.baseline;
        let now = Attributes::get(*tid)?;
        // Clamps are not set, so it does not matter who has changed them.
        let same = Attributes { util_min: was.util_min, util_max: was.util_max, ..now } == *was;
        if !same {
            if was.policy as i32 == libc::SCHED_IDLE {
                // Becoming idle changes neither nice value nor slice.
                let fair = Attributes { policy: libc::SCHED_OTHER as u32, ..*was };
                fair.set(*tid)?;
            }
            was.set(*tid)?;
        }
        if nice(*tid)? == *was_nice { Ok(()) } else { set_nice(*tid, *was_nice) }
    }

    fn restore_affinity(&self) -> Result<(), Error> {
        let Baseline { tid, cpus, .. } = &self.baseline;
        if cpus.is_empty() || affinity(*tid)? == *cpus { Ok(()) } else { set_affinity(*tid, cpus) }
    }
}

/// The nice value of a thread under any policy. A real-time thread has one as well, which its attributes do not show.
///
/// # Errors
///
/// [`Error`]: there is no such thread.
pub fn nice(tid: i32) -> Result<i32, Error> {
    getpriority_process(Pid::from_raw(tid)).map_err(Error::of("getpriority"))
}

fn set_nice(tid: i32, nice: i32) -> Result<(), Error> {
    setpriority_process(Pid::from_raw(tid), nice).map_err(Error::of("setpriority"))
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::{Captured, Restored, nice, set_nice};
    use crate::{Attributes, affinity, set_affinity};
    use vcoop_policy::Rest;
    use vcoop_policy::config::Means;
    use vcoop_policy::thread::{Policy, attributes};
    use vcoop_testing::{WaitingThread, until, without_files};

    fn boosted(policy: Policy, means: Means) -> Attributes {
        Attributes::from_policy(&attributes(policy, Some(means), Rest::default()))
    }

    fn has(tid: i32) -> (Attributes, i32, Vec<u32>) {
        (Attributes::get(tid).unwrap(), nice(tid).unwrap(), affinity(tid).unwrap())
    }

    #[test]
    fn every_policy_comes_back_as_it_was_from_every_means() {
        let fair = |policy: i32, nice, slice| {
            let mut attr = Attributes::from_policy(&Policy::Normal { nice, slice_ns: slice });
            attr.policy = policy as u32;
            // Not every thread resets its children.
            attr.flags = 0;
            attr
        };
        let policies = [
            fair(libc::SCHED_OTHER, 0, None),
            fair(libc::SCHED_OTHER, -5, Some(700_000)),
            fair(libc::SCHED_BATCH, 7, Some(900_000)),
            fair(libc::SCHED_IDLE, 0, None),
            Attributes::from_policy(&Policy::Rr(3)),
            Attributes::from_policy(&Policy::Deadline {
                runtime_ns: 1_000_000,
                deadline_ns: 20_000_000,
                period_ns: 20_000_000,
            }),
        ];
        let means = [
            Means::Fifo(50),
            Means::Nice(-20),
            Means::Slice(200_000),
            Means::Deadline { runtime_ns: 1_000_000, deadline_ns: 9_000_000, period_ns: 9_000_000 },
        ];
        for policy in policies {
            let thread = WaitingThread::start();
            let tid = thread.tid;
            // A nice value and a slice from an earlier life, under the policy of today.
            fair(libc::SCHED_OTHER, 4, Some(1_100_000)).set(tid).unwrap();
            if let Err(e) = policy.set(tid) {
                eprintln!("skipped: {policy}: {e}");
                continue;
            }
            let before = has(tid);
            let captured = Captured::of(tid).unwrap();
            for means in means {
                if let Err(e) = boosted(policy.to_policy(), means).set(tid) {
                    eprintln!("skipped: {means:?}: {e}");
                    continue;
                }
                // A deadline thread cannot be pinned.
                let _ = set_affinity(tid, &before.2[..1]);
                assert_ne!(has(tid), before, "{policy} by {means:?}");
                for _ in 0..2 {
                    assert_eq!(captured.restore().unwrap(), Restored::Done, "{policy}");
                    assert_eq!(has(tid), before, "{policy} from {means:?}");
                }
            }
            thread.end();
        }
    }

    #[test]
    fn a_nice_value_that_somebody_has_set_becomes_what_the_thread_had() {
        for policy in [Policy::NORMAL, Policy::Fifo(1)] {
            let thread = WaitingThread::start();
            Attributes::from_policy(&policy).set(thread.tid).unwrap();
            let mut captured = Captured::of(thread.tid).unwrap();
            set_nice(thread.tid, 9).unwrap();
            captured.renice(9);
            assert_eq!(captured.baseline(), Captured::of(thread.tid).unwrap().baseline());
            thread.end();
        }
    }

    #[test]
    fn clamps_that_somebody_has_set_stay() {
        const CLAMP_MIN_AND_MAX: u64 = 0x20 | 0x40;
        let thread = WaitingThread::start();
        let tid = thread.tid;
        let mut clamped = Attributes::get(tid).unwrap();
        (clamped.util_min, clamped.util_max) = (100, 700);
        clamped.flags |= CLAMP_MIN_AND_MAX;
        if !clamped.clamp(tid) {
            eprintln!("skipped: this kernel has no utilisation clamps");
            return;
        }
        let (before, captured) = (has(tid), Captured::of(tid).unwrap());
        assert_eq!((before.0.util_min, before.0.util_max), (100, 700));
        boosted(Policy::NORMAL, Means::Fifo(50)).set(tid).unwrap();
        assert_eq!(captured.restore().unwrap(), Restored::Done);
        assert_eq!(has(tid), before);
    }

    #[test]
    fn what_others_have_changed_since_is_given_back() {
        let thread = WaitingThread::start();
        let tid = thread.tid;
        let mut captured = Captured::of(tid).unwrap();
        let (before, _, cpus) = has(tid);
        let boost = || boosted(Policy::NORMAL, Means::Fifo(50)).set(tid);
        if let Err(e) = boost() {
            eprintln!("skipped: {e}");
            return;
        }
        // The flag of the boost is still there.
        let flags = Attributes::get(tid).unwrap().flags;
        assert_ne!(flags, before.flags);
        Attributes { nice: 5, flags, ..before }.set(tid).unwrap();
        captured.renew().unwrap();
        boost().unwrap();
        assert_eq!(captured.restore().unwrap(), Restored::Done);
        assert_eq!(has(tid), (Attributes { nice: 5, ..before }, 5, cpus.clone()));
        boost().unwrap();
        captured.renice(-3);
        assert_eq!(captured.restore().unwrap(), Restored::Done);
        assert_eq!(has(tid), (Attributes { nice: -3, ..before }, -3, cpus.clone()));
        // A real-time thread has a nice value beside its priority.
        let rt = Attributes::from_policy(&Policy::Rr(3));
        rt.set(tid).unwrap();
        captured.renew().unwrap();
        captured.renice(4);
        boost().unwrap();
        assert_eq!(captured.restore().unwrap(), Restored::Done);
        let (attributes, nice, _) = has(tid);
        assert_eq!((attributes.to_policy(), nice), (rt.to_policy(), 4));
    }

    #[test]
    fn a_thread_that_has_ended_is_gone_and_its_number_is_nobody() {
        let thread = WaitingThread::start();
        let tid = thread.tid;
        let captured = Captured::of(tid).unwrap();
        let me = Captured::of(crate::gettid()).unwrap();
        until("it waits", || captured.is_asleep());
        assert!(!me.is_asleep());
        let ends = |captured: &Captured| {
            let mut fd = [PollFd::from_borrowed_fd(captured.ends()?, PollFlags::IN)];
            Some(poll(&mut fd, Some(&Timespec::default())).unwrap() > 0)
        };
        assert!(ends(&captured) != Some(true));
        let mut other = captured.baseline().clone();
        other.start += 1;
        assert!(Captured::again(other).unwrap().is_none(), "another thread of this number");
        assert!(Captured::again(captured.baseline().clone()).unwrap().is_some());
        thread.end();
        until("it is gone", || !captured.is_alive());
        assert!(ends(&captured) != Some(false));
        assert_eq!(captured.restore().unwrap(), Restored::Gone);
        assert!(Captured::again(captured.baseline().clone()).unwrap().is_none());
        assert!(
            Captured::of(tid).is_err() && Captured::of(0).is_err() && Captured::of(-1).is_err()
        );
    }

    #[test]
    fn a_thread_that_cannot_be_looked_at_has_not_ended() {
        let thread = WaitingThread::start();
        let tid = thread.tid;
        let baseline = Captured::of(tid).unwrap().baseline().clone();
        let again = |(), _all| Captured::again(baseline).map(|c| c.is_some());
        if let Some(again) = without_files(|| (), again) {
            assert_eq!(again.unwrap_err().source.raw_os_error(), Some(libc::EMFILE));
        }
    }

    #[test]
    fn what_is_refused_is_said() {
        let thread = WaitingThread::start();
        let tid = thread.tid;
        let mut captured = Captured::of(tid).unwrap();
        captured.baseline.cpus = vec![8191];
        captured.baseline.attributes.policy = 42;
        let refused = captured.restore().unwrap_err();
        let text = refused.to_string();
        for part in [&tid.to_string(), "sched_setattr", "sched_setaffinity"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
