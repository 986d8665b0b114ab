//! The context switches of single threads, by perf events.
//!
//! A software event that counts nothing, with `context_switch` set, writes a record into a ring
//! whenever its thread is switched to or from (`perf_event_open(2)`, `PERF_RECORD_SWITCH`). The
//! thread's ring is shared with this process; each record wakes who polls.
#![allow(unsafe_code, reason = "perf_event_open, and a ring shared with the kernel")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as sys;
use perf_event_open_sys::bindings as perf;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::react::{Error, Happened, Source, What};

/// Bytes of a page, which the kernel counts rings in.
const PAGE: usize = 4096;
/// Bytes of a ring: 256 records of 16 bytes. Who does not come before a thread has switched so often
/// loses records, and is told.
const RING: usize = PAGE;
/// `struct perf_event_header`, and the time behind it.
const RECORD: usize = 16;

/// Context switches of threads, by perf events.
#[derive(Debug, Default)]
pub struct Perf {
    rings: BTreeMap<i32, Ring>,
}

impl Source for Perf {
    fn name(&self) -> &'static str {
        "perf"
    }

    fn hears(&self) -> &'static str {
        "when a thread gets a CPU, is preempted and sleeps; a wake-up is heard when the thread runs"
    }

    fn watch(&mut self, tid: i32, epoll: BorrowedFd<'_>) -> Result<(), Error> {
        let ring = Ring::new(tid)?;
        // A hung-up event (its thread has ended) is always reported, and would be again and again.
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(epoll, &ring.fd, EventData::new_u64(tid as u64), flags)
            .map_err(|e| Error { call: "epoll_ctl", source: e.into() })?;
        self.rings.insert(tid, ring);
        Ok(())
    }

    fn forget(&mut self, tid: i32) {
        // Closing the descriptor takes it out of the epoll.
        self.rings.remove(&tid);
    }

    fn take(&mut self, tid: i32, each: &mut dyn FnMut(Happened)) {
        if let Some(ring) = self.rings.get_mut(&tid) {
            ring.take(each);
        }
    }
}

/// The ring of one thread.
#[derive(Debug)]
struct Ring {
    fd: OwnedFd,
    /// A page of control, and the records.
    map: NonNull<u8>,
    tail: u64,
}

// SAFETY: the mapping is this value's own; the kernel does not mind which thread reads it.
unsafe impl Send for Ring {}

impl Ring {
    fn new(tid: i32) -> Result<Self, Error> {
        let mut attr = perf::perf_event_attr {
            type_: perf::PERF_TYPE_SOFTWARE,
            size: size_of::<perf::perf_event_attr>() as u32,
            config: u64::from(perf::PERF_COUNT_SW_DUMMY),
            sample_type: u64::from(perf::PERF_SAMPLE_TIME),
            clockid: libc::CLOCK_MONOTONIC,
            ..perf::perf_event_attr::default()
        };
        attr.set_context_switch(1);
        attr.set_sample_id_all(1);
        attr.set_use_clockid(1);
        // A byte is enough to wake: every record does.
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = 1;
        let flags = u64::from(perf::PERF_FLAG_FD_CLOEXEC);
        // SAFETY: the kernel reads `attr`, which is as long as it says.
        let fd = unsafe { sys::perf_event_open(&mut attr, tid, -1, -1, flags as _) };
        if fd < 0 {
            return Err(Error { call: "perf_event_open", source: io::Error::last_os_error() });
        }
        // SAFETY: the kernel has just opened it for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let map = unsafe {
            libc::mmap(ptr::null_mut(), PAGE + RING, read_write, shared, fd.as_raw_fd(), 0)
        };
        match NonNull::new(map.cast::<u8>()).filter(|_| map != libc::MAP_FAILED) {
            Some(map) => Ok(Self { fd, map, tail: 0 }),
            None => Err(Error { call: "mmap", source: io::Error::last_os_error() }),
        }
    }

    fn control(&self) -> *const perf::perf_event_mmap_page {
        self.map.as_ptr().cast()
    }

    /// Where the kernel has written to.
    fn head(&self) -> u64 {
        // SAFETY: an aligned word of the mapping, which the kernel writes and only this reads.
        let head =
            unsafe { AtomicU64::from_ptr((&raw const (*self.control()).data_head).cast_mut()) };
        head.load(Ordering::Acquire)
    }

    /// A word of the records; `at` counts from the ring's beginning, and goes round.
    fn word(&self, at: u64) -> u64 {
        let offset = at as usize % RING / 8 * 8;
        // SAFETY: inside of the mapping and aligned; the kernel does not write between tail and head.
        unsafe { self.map.as_ptr().add(PAGE + offset).cast::<u64>().read_volatile() }
    }

    fn take(&mut self, each: &mut dyn FnMut(Happened)) {
        let head = self.head();
        while self.tail < head {
            // u32 type, u16 misc, u16 size.
            let header = self.word(self.tail);
            let (kind, misc, size) = (header as u32, (header >> 32) as u16, header >> 48);
            if size < 8 || size % 8 != 0 || size > head - self.tail {
                // Nothing that follows can be read.
                each(Happened { at: vcoop_threads::clock::monotonic(), what: What::Lost });
                self.tail = head;
                break;
            }
            // The time stands last.
            let at = self.word(self.tail + size - 8);
            let what = match kind {
                perf::PERF_RECORD_SWITCH if size as usize == RECORD => Some(switched(misc)),
                perf::PERF_RECORD_LOST => Some(What::Lost),
                _ => None,
            };
            if let Some(what) = what {
                each(Happened { at, what });
            }
            self.tail += size;
        }
        // SAFETY: an aligned word of the mapping, which only this writes.
        let tail =
            unsafe { AtomicU64::from_ptr((&raw const (*self.control()).data_tail).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

fn switched(misc: u16) -> What {
    let has = |bit: u32| u32::from(misc) & bit != 0;
    match (has(perf::PERF_RECORD_MISC_SWITCH_OUT), has(perf::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT)) {
        (false, _) => What::Runs,
        (true, true) => What::Preempted,
        (true, false) => What::Sleeps,
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with this length, and used by nobody else.
        unsafe { libc::munmap(self.map.as_ptr().cast(), PAGE + RING) };
    }
}

#[cfg(test)]
mod tests {
    use super::Perf;
    use crate::react::{Source, What};
    use rustix::event::epoll;
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};
    use vcoop_testing::Skip;
    use vcoop_threads::gettid;

    #[test]
    fn sleeps_and_runs_are_heard_in_their_order() {
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let sleeper = thread::spawn(move || {
            tell.send(gettid()).unwrap();
            gone.recv().unwrap();
            for _ in 0..10 {
                thread::sleep(Duration::from_millis(2));
            }
        });
        let tid = told.recv().unwrap();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut source = Perf::default();
        if let Err(why) = source.watch(tid, std::os::fd::AsFd::as_fd(&poll)) {
            return Skip::because(why.to_string()).tell();
        }
        go.send(()).unwrap();
        let mut heard = Vec::new();
        let began = Instant::now();
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let sleeps = |heard: &[(u64, What)]| heard.iter().filter(|h| h.1 == What::Sleeps).count();
        while sleeps(&heard) < 10 && began.elapsed() < Duration::from_secs(5) {
            let mut events = Vec::with_capacity(4);
            let room = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&poll, room, Some(&timeout)).unwrap();
            assert!(events.iter().all(|e| e.data.u64() == tid as u64));
            source.take(tid, &mut |h| heard.push((h.at, h.what)));
        }
        sleeper.join().unwrap();
        assert!(sleeps(&heard) >= 10, "{heard:?}");
        assert!(heard.is_sorted_by_key(|h| h.0), "{heard:?}");
        let out = |what| what != What::Runs;
        assert!(heard.windows(2).all(|w| out(w[0].1) != out(w[1].1)), "{heard:?}");
        source.forget(tid);
        source.take(tid, &mut |_| panic!("it is forgotten"));
    }

    #[test]
    fn a_thread_that_is_gone_cannot_be_watched_and_the_reason_is_said() {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let why = Perf::default().watch(i32::MAX, std::os::fd::AsFd::as_fd(&poll)).unwrap_err();
        assert!(why.to_string().starts_with("perf_event_open: "), "{why}");
    }

    #[test]
    fn records_that_were_not_fetched_in_time_are_told_as_lost() {
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let sleeper = thread::spawn(move || {
            tell.send(gettid()).unwrap();
            gone.recv().unwrap();
            for _ in 0..400 {
                thread::sleep(Duration::from_nanos(1));
            }
        });
        let tid = told.recv().unwrap();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut source = Perf::default();
        if let Err(why) = source.watch(tid, std::os::fd::AsFd::as_fd(&poll)) {
            return Skip::because(why.to_string()).tell();
        }
        go.send(()).unwrap();
        sleeper.join().unwrap();
        let mut heard = 0;
        source.take(tid, &mut |_| heard += 1);
        assert!(heard > 200 && heard <= 256, "{heard}");
    }
}
