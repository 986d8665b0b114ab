//! Watches single threads by perf events (`perf_event_open(2)`), two for each. The functions are described at
//! [`Source`](crate::Source).
//!
//! * *The thread runs*: its own CPU clock, which fires once when the thread has run for some time.
//! * *The thread sleeps*: the tracepoint `sched_switch`, filtered to switches in which the thread goes to sleep.
//!
//! So a thread that wakes up only to find nothing to do wakes no watcher, until such runs add up to that time. Neither
//! event reports preemptions, on purpose: a watcher that woke up for each context switch would preempt the thread on
//! the CPU that they share, which is two more switches, and so on without end.
//!
//! Both events write into one ring per thread, which is shared with this process. Each record wakes a poller.
#![allow(unsafe_code, reason = "perf_event_open, and a ring shared with the kernel")]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as sys;
use perf_event_open_sys::bindings as perf;
use rustix::event::epoll::{self, EventData, EventFlags};
use vcoop_threads::clock::{monotonic, of_event};
use vcoop_threads::{Ns, Stat};

use crate::event::{Error, ThreadEvent, ThreadEventKind};
use crate::tracefs::mount_point;

/// Shortest run that is reported: about as long as the wake-up of a watcher takes on the slowest hosts.
const LEAST_NS: Ns = 50_000;
/// `TASK_INTERRUPTIBLE`, as the tracepoint shows it: an idle vCPU, or a thread that waits for one.
const ASLEEP: &CStr = c"prev_state == 1";

/// Bytes of a page, which the kernel counts rings in.
const PAGE: usize = 4096;
/// Bytes of a ring: 170 records. If a thread sleeps more often than that before the ring is read, records are lost, and
/// the reader is told.
const RING: usize = PAGE;
/// A record: header, id of the event, and time.
const RECORD: u64 = 24;

/// Threads watched by perf events.
#[derive(Debug)]
pub(crate) struct Perf {
    /// Number of `sched_switch`.
    switch: u64,
    rings: BTreeMap<i32, Ring>,
}

impl Perf {
    /// A source that watches no thread yet.
    ///
    /// # Errors
    ///
    /// tracefs is not mounted, or may not be read.
    pub(crate) fn new() -> Result<Self, Error> {
        let missing = || Error::of("tracefs", io::Error::from_raw_os_error(libc::ENOENT));
        let id = mount_point().ok_or_else(missing)?.join("events/sched/sched_switch/id");
        let text = fs::read_to_string(id).map_err(|e| Error::of("tracefs", e))?;
        let odd = |_| Error::of("tracefs", io::Error::other("an event without a number"));
        Ok(Self { switch: text.trim().parse().map_err(odd)?, rings: BTreeMap::new() })
    }

    pub(crate) fn watch(
        &mut self,
        tid: i32,
        after: Ns,
        epoll: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let ring = Ring::new(tid, self.switch, after.max(LEAST_NS))?;
        // That the thread has ended is reported again and again, unless edges count.
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(epoll, &ring.sleeps, EventData::new_u64(tid as u64), flags)
            .map_err(|e| Error::of("epoll_ctl", e.into()))?;
        self.rings.insert(tid, ring);
        Ok(())
    }

    pub(crate) fn forget(&mut self, tid: i32) {
        // Closing the descriptor takes it out of the epoll.
        self.rings.remove(&tid);
    }

    pub(crate) fn await_run(&mut self, tid: i32) {
        if let Some(ring) = self.rings.get_mut(&tid) {
            ring.await_run();
        }
    }

    pub(crate) fn await_nothing(&mut self, tid: i32) {
        if let Some(ring) = self.rings.get_mut(&tid) {
            ring.await_nothing();
        }
    }

    pub(crate) fn await_sleep(&mut self, tid: i32) -> bool {
        self.rings.get_mut(&tid).is_some_and(Ring::await_sleep)
    }

    pub(crate) fn take(&mut self, tid: i32, each: &mut dyn FnMut(ThreadEvent)) {
        if let Some(ring) = self.rings.get_mut(&tid) {
            ring.take(each);
        }
    }
}

/// Opens an event of a thread.
fn open(attr: &mut perf::perf_event_attr, tid: i32) -> Result<OwnedFd, Error> {
    attr.size = size_of::<perf::perf_event_attr>() as u32;
    attr.sample_type = u64::from(perf::PERF_SAMPLE_IDENTIFIER | perf::PERF_SAMPLE_TIME);
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.set_use_clockid(1);
    attr.set_disabled(1);
    // A byte is enough to wake: every record does.
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = 1;
    let flags = u64::from(perf::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: the kernel reads `attr`, which is as long as it says.
    let fd = unsafe { sys::perf_event_open(attr, tid, -1, -1, flags as _) };
    if fd < 0 {
        return Err(Error::of("perf_event_open", io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The ring of one thread.
#[derive(Debug)]
struct Ring {
    sleeps: OwnedFd,
    runs: OwnedFd,
    /// Id of the records of `runs`.
    runs_id: u64,
    /// CPU time of the thread after which `runs` fires.
    after: Ns,
    /// `runs` will fire.
    armed: bool,
    /// When `runs` was armed.
    since: Ns,
    /// `sleeps` is enabled.
    hears_sleeps: bool,
    stat: Stat,
    /// The mapping: a page of control, and the records.
    map: NonNull<u8>,
    tail: u64,
}

// SAFETY: the mapping is this value's own; the kernel does not mind which thread reads it.
unsafe impl Send for Ring {}

impl Ring {
    fn new(tid: i32, switch: u64, after: Ns) -> Result<Self, Error> {
        let mut attr = perf::perf_event_attr {
            type_: perf::PERF_TYPE_TRACEPOINT,
            config: switch,
            ..perf::perf_event_attr::default()
        };
        attr.__bindgen_anon_1.sample_period = 1;
        let sleeps = open(&mut attr, tid)?;
        let mut attr = perf::perf_event_attr {
            type_: perf::PERF_TYPE_SOFTWARE,
            config: u64::from(perf::PERF_COUNT_SW_TASK_CLOCK),
            ..perf::perf_event_attr::default()
        };
        attr.__bindgen_anon_1.sample_period = after;
        let runs = open(&mut attr, tid)?;
        let stat = Stat::open(tid).map_err(|e| Error::of("open /proc/TID/stat", e))?;
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let map = unsafe {
            libc::mmap(ptr::null_mut(), PAGE + RING, read_write, shared, sleeps.as_raw_fd(), 0)
        };
        let map = NonNull::new(map.cast::<u8>()).filter(|_| map != libc::MAP_FAILED);
        let map = map.ok_or_else(|| Error::of("mmap", io::Error::last_os_error()))?;
        let mut ring = Self {
            sleeps,
            runs,
            runs_id: 0,
            after,
            armed: false,
            since: 0,
            hears_sleeps: false,
            stat,
            map,
            tail: 0,
        };
        let (sleeps, runs) = (ring.sleeps.as_raw_fd(), ring.runs.as_raw_fd());
        // SAFETY: the arguments are what these calls expect: a text that ends with zero, a descriptor,
        // room for a number, and nothing.
        let set = unsafe {
            [
                sys::ioctls::SET_FILTER(sleeps, ASLEEP.as_ptr().cast_mut()),
                sys::ioctls::SET_OUTPUT(runs, sleeps),
                sys::ioctls::ID(runs, &raw mut ring.runs_id),
            ]
        };
        if set.iter().any(|rc| *rc < 0) {
            return Err(Error::of("perf_event_open", io::Error::last_os_error()));
        }
        Ok(ring)
    }

    /// Arms `runs` once more, and disables `sleeps`. If the thread runs on another CPU, each change is a call into that
    /// CPU.
    fn await_run(&mut self) {
        self.await_nothing();
        if !self.armed {
            let runs = self.runs.as_raw_fd();
            self.since = monotonic();
            // A record is there to read before the kernel disables what has rung for the last time, on the
            // thread's CPU. It must not do so after this, so it is done now, and waited for.
            // SAFETY: no argument, and a plain number.
            self.armed = unsafe {
                sys::ioctls::DISABLE(runs, 0);
                sys::ioctls::REFRESH(runs, 1)
            } == 0;
        }
    }

    /// Enables `sleeps`. Returns whether the thread sleeps already.
    fn await_sleep(&mut self) -> bool {
        // Many who wait for the sleep of a thread whose runs are short come after it.
        if self.stat.is_asleep() {
            return true;
        }
        if !self.hears_sleeps {
            // SAFETY: no argument.
            self.hears_sleeps = unsafe { sys::ioctls::ENABLE(self.sleeps.as_raw_fd(), 0) } == 0;
        }
        // Looked at after: what comes later is heard.
        self.stat.is_asleep()
    }

    /// Disables `sleeps`. If `runs` is armed, it still fires once.
    fn await_nothing(&mut self) {
        if self.hears_sleeps {
            // SAFETY: no argument. If it fails, more is heard than needed.
            unsafe { sys::ioctls::DISABLE(self.sleeps.as_raw_fd(), 0) };
            self.hears_sleeps = false;
        }
    }

    fn control(&self) -> *const perf::perf_event_mmap_page {
        self.map.as_ptr().cast()
    }

    /// Where the kernel writes next.
    fn head(&self) -> u64 {
        // SAFETY: an aligned word of the mapping, which the kernel writes and only this reads.
        let head =
            unsafe { AtomicU64::from_ptr((&raw const (*self.control()).data_head).cast_mut()) };
        head.load(Ordering::Acquire)
    }

    /// A word of the records; `at` counts from the ring's beginning, and wraps.
    fn word(&self, at: u64) -> u64 {
        let offset = at as usize % RING / 8 * 8;
        // SAFETY: inside of the mapping and aligned; the kernel does not write between tail and head.
        unsafe { self.map.as_ptr().add(PAGE + offset).cast::<u64>().read_volatile() }
    }

    fn take(&mut self, each: &mut dyn FnMut(ThreadEvent)) {
        let head = self.head();
        while self.tail < head {
            // u32 type, u16 flags, u16 size.
            let header = self.word(self.tail);
            let (kind, size) = (header as u32, header >> 48);
            if size < 8 || size % 8 != 0 || size > head - self.tail {
                // Nothing that follows can be read.
                each(ThreadEvent { at: monotonic(), kind: ThreadEventKind::Lost });
                self.tail = head;
                break;
            }
            let (id, at) = (self.word(self.tail + 8), of_event(self.word(self.tail + 16)));
            match kind {
                perf::PERF_RECORD_SAMPLE if size == RECORD && id == self.runs_id => {
                    self.armed = false;
                    // It began to, at the latest. The kernel counts what it ran before the last sleep, too.
                    let at = at.saturating_sub(self.after).max(self.since);
                    each(ThreadEvent { at, kind: ThreadEventKind::Runs });
                }
                perf::PERF_RECORD_SAMPLE if size == RECORD => {
                    each(ThreadEvent { at, kind: ThreadEventKind::Sleeps });
                }
                perf::PERF_RECORD_LOST => {
                    self.armed = false;
                    each(ThreadEvent { at: monotonic(), kind: ThreadEventKind::Lost });
                }
                _ => {}
            }
            self.tail += size;
        }
        // SAFETY: an aligned word of the mapping, which only this writes.
        let tail =
            unsafe { AtomicU64::from_ptr((&raw const (*self.control()).data_tail).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with this length, and not used by others.
        unsafe { libc::munmap(self.map.as_ptr().cast(), PAGE + RING) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::thread;

    use vcoop_testing::{Skip, WaitingThread};

    use super::{Perf, Ring};

    #[test]
    fn a_ring_that_cannot_be_used_is_unmapped() {
        // More than other tests have at the same time.
        const TIMES: usize = 40;
        let Ok(perf) = Perf::new().map_err(|why| Skip::because(why).tell()) else { return };
        let watched = WaitingThread::start();
        let tid = watched.tid;
        let refused = thread::spawn(move || {
            // SAFETY: this thread has files of its own from here on; nobody else's are changed.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            let mut all = Vec::new();
            // Some systems have so high a limit that no test gets there.
            while all.len() < 1 << 20
                && let Ok(file) = File::open("/dev/null")
            {
                all.push(file);
            }
            // There is room for the two events, and for nothing else.
            all.truncate(all.len() - 2);
            (0..TIMES).all(|_| Ring::new(tid, perf.switch, 1_000_000).is_err())
        });
        if !refused.join().unwrap() {
            return Skip::because("more files can be opened than the test opens").tell();
        }
        let mapped = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(mapped.lines().filter(|line| line.contains("[perf_event]")).count() < TIMES);
    }
}
