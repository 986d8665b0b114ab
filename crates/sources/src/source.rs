//! Events of threads, as they happen.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use vcoop_bpf::{Event, Events, Unsupported, WatchedVcpu};
use vcoop_threads::clock::of_event;
use vcoop_threads::{Ns, Stat};

use crate::event::{Error, ThreadEvent, ThreadEventKind};
use crate::perf::Perf;

/// A source of thread events.
///
/// Perf events report that a thread runs, once it has run for some time since it slept. BPF, if this build and this
/// kernel have it, reports that a thread sleeps; else perf events do. Only BPF reports interrupts for vCPUs.
#[derive(Debug)]
pub struct Source {
    perf: Perf,
    events: Result<Events, Unsupported>,
    /// Number of lost events as of the last call of [`take`](Self::take).
    lost: u64,
}

impl Source {
    /// The token of an epoll event that is about several threads; no thread has this number.
    pub const SEVERAL: i32 = 0;

    /// A source that watches no thread yet.
    ///
    /// # Errors
    ///
    /// tracefs is not mounted, or may not be read.
    pub fn open() -> Result<Self, Error> {
        Self::new(Events::open())
    }

    /// A source without BPF; `why` says why BPF is missing.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn without_bpf(why: Unsupported) -> Result<Self, Error> {
        Self::new(Err(why))
    }

    fn new(events: Result<Events, Unsupported>) -> Result<Self, Error> {
        Ok(Self { perf: Perf::new()?, events, lost: 0 })
    }

    /// What reports sleeps.
    pub fn name(&self) -> &'static str {
        if self.events.is_ok() { "BPF" } else { "perf" }
    }

    /// Watches a thread; its events are reported after [`await_run`](Self::await_run) or
    /// [`await_sleep`](Self::await_sleep). `epoll` gets an event with a token when there is something to
    /// [`take`](Self::take): the thread's number, or 0. `after`: a run need not be reported before the thread has run
    /// for so long, in nanoseconds, since its last event; fewer reports cost less.
    ///
    /// # Errors
    ///
    /// [`Error`]: the thread is not watched.
    pub fn watch(&mut self, tid: i32, after: Ns, epoll: BorrowedFd<'_>) -> Result<(), Error> {
        self.perf.watch(tid, after, epoll)?;
        let Ok(events) = &mut self.events else { return Ok(()) };
        let stat = Stat::open(tid).map_err(|e| Error::of("open /proc/TID/stat", e))?;
        let full = |why: Unsupported| Error::of("bpf", io::Error::other(why));
        events.watch(tid, || stat.is_asleep()).map_err(full)?;
        let token = EventData::new_u64(Self::SEVERAL as u64);
        // Edge-triggered: a record that is begun and not yet written makes the ring readable, but cannot be taken.
        // A waiter would spin, for ever if that keeps the writer from its CPU.
        match epoll::add(epoll, events.ready(), token, EventFlags::IN | EventFlags::ET) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(e) => Err(Error::of("epoll_ctl", e.into())),
        }
    }

    /// Starts to report a vCPU's interrupts, before the vCPU takes them. Its thread must be watched. Returns what
    /// reports them.
    ///
    /// # Errors
    ///
    /// This build or this kernel has no support for it.
    pub fn hear_interrupts(&mut self, vcpu: WatchedVcpu) -> Result<&'static str, Unsupported> {
        self.events.as_mut().map_err(|why| Unsupported::clone(why))?.hear_interrupts(vcpu)
    }

    /// Stops watching a thread. Does nothing if it is not watched.
    pub fn forget(&mut self, tid: i32) {
        self.perf.forget(tid);
        if let Ok(events) = &mut self.events {
            events.forget(tid);
        }
    }

    /// The thread sleeps, or is about to: its next run is reported, once, and no sleeps.
    pub fn await_run(&mut self, tid: i32) {
        if let Ok(events) = &mut self.events {
            events.hear_sleeps(tid, false);
        }
        self.perf.await_run(tid);
    }

    /// The thread runs: its sleeps are reported from now on. Returns whether it sleeps already; then no report is
    /// needed.
    pub fn await_sleep(&mut self, tid: i32) -> bool {
        match &mut self.events {
            Ok(events) => {
                // Asked after: a sleep that begins later is heard.
                events.hear_sleeps(tid, true);
                events.is_asleep(tid)
            }
            Err(_) => self.perf.await_sleep(tid),
        }
    }

    /// No sleeps are reported from now on. A run that was awaited is still reported, once.
    pub fn await_nothing(&mut self, tid: i32) {
        match &mut self.events {
            Ok(events) => events.hear_sleeps(tid, false),
            Err(_) => self.perf.await_nothing(tid),
        }
    }

    /// Hands the events since the last call, for a `token` of the epoll, to `each`; those of one thread in order. Does
    /// not block. Returns whether there is more for this token, which epoll will not report: one call takes a limited
    /// number.
    pub fn take(&mut self, token: i32, each: &mut dyn FnMut(i32, ThreadEvent)) -> bool {
        let events = match &mut self.events {
            Ok(events) if token == Self::SEVERAL => events,
            _ => {
                self.perf.take(token, &mut |happened| each(token, happened));
                return false;
            }
        };
        let (taken, more) = events.take();
        for Event { at, tid, kind: what, lost } in taken {
            if std::mem::replace(&mut self.lost, lost) != lost {
                events.watched().for_each(|tid| {
                    each(tid, ThreadEvent { at: of_event(at), kind: ThreadEventKind::Lost })
                });
            }
            let what = match what {
                vcoop_bpf::EventKind::Sleeps => ThreadEventKind::Sleeps,
                vcoop_bpf::EventKind::Interrupt { kind, coalesced } => {
                    ThreadEventKind::Interrupt { kind, coalesced }
                }
            };
            each(tid, ThreadEvent { at: of_event(at), kind: what });
        }
        more
    }

    /// Sleeps and interrupts that were lost until the last one that was reported, because too many came at once.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, ThreadEvent, ThreadEventKind};
    use rustix::event::epoll;
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;
    use std::process::Command;
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle};
    use std::time::{Duration, Instant};
    use vcoop_bpf::Unsupported;
    use vcoop_testing::{ProgramOutput, Skip};
    use vcoop_threads::clock::monotonic;
    use vcoop_threads::{Ns, gettid};

    /// How long a test waits for an event.
    const PATIENCE: Duration = Duration::from_secs(10);

    /// How a test gets its source.
    type Get = fn() -> Result<Source, Skip>;

    /// Each test twice: with sleeps reported by perf events, and by BPF.
    macro_rules! by_each {
        ($($test:ident),* $(,)?) => {
            mod perf {
                $(#[test]
                fn $test() {
                    super::$test(super::by_perf).unwrap_or_else(|skip| skip.tell());
                })*
            }
            mod bpf {
                $(#[test]
                fn $test() {
                    super::$test(super::by_bpf).unwrap_or_else(|skip| skip.tell());
                })*
            }
        };
    }

    by_each!(
        sleeps_and_runs_are_heard_in_their_order_and_preemptions_are_not,
        a_thread_that_is_gone_cannot_be_watched_and_the_reason_is_said,
        what_is_not_fetched_is_bounded_and_it_goes_on_after_that,
        what_is_asked_for_before_the_kernel_has_done_with_the_last_is_heard,
        short_runs_wake_nobody_until_they_add_up,
        what_is_not_taken_wakes_once,
    );

    fn by_perf() -> Result<Source, Skip> {
        let why = Unsupported { what: "this test wants none".to_owned(), remedy: "" };
        Source::without_bpf(why).map_err(Skip::because)
    }

    fn by_bpf() -> Result<Source, Skip> {
        let source = Source::open().map_err(Skip::because)?;
        source.events.as_ref().map_err(Skip::because)?;
        Ok(source)
    }

    /// A source, and a thread that begins its work when it is watched.
    fn watched(
        get: Get,
        after: Ns,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(Source, OwnedFd, i32, JoinHandle<()>), Skip> {
        let mut source = get()?;
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            tell.send(gettid()).unwrap();
            let _ = gone.recv();
            work();
        });
        let tid = told.recv().unwrap();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        source.watch(tid, after, poll.as_fd()).map_err(Skip::because)?;
        source.await_run(tid);
        go.send(()).unwrap();
        Ok((source, poll, tid, thread))
    }

    /// Takes the events.
    fn take(source: &mut Source, tid: i32, mut each: impl FnMut(ThreadEvent)) {
        let mut heard = Vec::new();
        for token in [tid, 0] {
            while source.take(token, &mut |of, happened| {
                assert_eq!(of, tid);
                heard.push(happened);
            }) {}
        }
        // They come by two ways, where BPF tells of sleeps.
        heard.sort_by_key(|happened| happened.at);
        heard.into_iter().for_each(&mut each);
    }

    /// Takes the events, and awaits the opposite of the last.
    fn follow(source: &mut Source, tid: i32, mut each: impl FnMut(ThreadEvent)) {
        let mut runs = None;
        take(source, tid, |h| {
            runs = Some(h.kind != ThreadEventKind::Sleeps);
            each(h);
        });
        // Before it is asked: the thread may run again before its answer is looked at.
        let at = monotonic();
        if runs == Some(true) && source.await_sleep(tid) {
            each(ThreadEvent { at, kind: ThreadEventKind::Sleeps });
            runs = Some(false);
        }
        if runs == Some(false) {
            source.await_run(tid);
        }
    }

    #[test]
    fn times_are_by_the_clock_of_this_process_in_a_time_namespace_too() {
        let inside = |seconds: &str, program: &Path, args: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(["--time", "--monotonic", seconds, "--fork", "--"]).arg(program);
            command.args(args).output()
        };
        let there = inside("1", Path::new("true"), &[]);
        if !there.is_ok_and(|output| output.status.success()) {
            Skip::because("no time namespace can be made").tell();
            return;
        }
        let tests = std::env::current_exe().unwrap();
        for seconds in ["1000", "-10"] {
            let said = ProgramOutput::from(inside(seconds, &tests, &["sleeps_and_runs"]).unwrap());
            assert!(said.code == Some(0), "{said}");
        }
    }

    fn spin(time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {}
    }

    /// How often this thread has slept. The kernel does not count preemptions and yields here.
    fn slept() -> usize {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    }

    fn sleeps_and_runs_are_heard_in_their_order_and_preemptions_are_not(
        get: Get,
    ) -> Result<(), Skip> {
        const ROUNDS: usize = 10;
        const YIELDS: usize = 1_000;
        // It goes on when the watcher has asked for what comes next, however late that is.
        let (asked, goes_on) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let work = move || {
            let before = slept();
            for _ in 0..ROUNDS {
                spin(Duration::from_micros(500));
                let began = Instant::now();
                while goes_on.try_recv().is_err() && began.elapsed() < PATIENCE {}
                let _ = goes_on.recv_timeout(PATIENCE);
            }
            // Gives its CPU away, and wants it back.
            (0..YIELDS).for_each(|_| thread::yield_now());
            tell.send(slept() - before).unwrap();
        };
        let began = monotonic();
        let (mut source, poll, tid, thread) = watched(get, 0, work)?;
        let mut heard = Vec::new();
        let mut wakes = 0;
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        while !thread.is_finished() {
            let mut events = Vec::with_capacity(4);
            let _ = epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
            assert!(events.iter().all(|e| [0, tid as u64].contains(&e.data.u64())));
            wakes += usize::from(!events.is_empty());
            let before = heard.len();
            follow(&mut source, tid, |h| heard.push((h.at, h.kind)));
            heard[before..].iter().for_each(|_| _ = asked.send(()));
        }
        thread.join().unwrap();
        take(&mut source, tid, |h| heard.push((h.at, h.kind)));
        let count = |what| heard.iter().filter(|h| h.1 == what).count();
        // The kernel may let it sleep besides, as for memory.
        let slept = told.recv().unwrap();
        assert!((ROUNDS..YIELDS).contains(&slept), "{slept}");
        assert!((ROUNDS..=slept).contains(&count(ThreadEventKind::Sleeps)), "{slept} {heard:?}");
        assert!((ROUNDS..=slept + 1).contains(&count(ThreadEventKind::Runs)), "{slept} {heard:?}");
        assert!(heard.is_sorted_by_key(|h| h.0), "{heard:?}");
        let since = began..=monotonic();
        assert!(heard.iter().all(|h| since.contains(&h.0)), "{since:?} {heard:?}");
        assert!(wakes < 60, "{wakes}");
        source.forget(tid);
        take(&mut source, tid, |_| panic!("it is forgotten"));
        Ok(())
    }

    fn a_thread_that_is_gone_cannot_be_watched_and_the_reason_is_said(
        get: Get,
    ) -> Result<(), Skip> {
        let mut source = get()?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let why = source.watch(i32::MAX, 0, poll.as_fd()).unwrap_err();
        assert!(why.to_string().starts_with("perf_event_open: "), "{why}");
        Ok(())
    }

    fn what_is_not_fetched_is_bounded_and_it_goes_on_after_that(get: Get) -> Result<(), Skip> {
        const SLEEPS: usize = 3_000;
        let (listen, listens) = mpsc::channel::<()>();
        let (more, again) = mpsc::channel::<()>();
        let (done, slept) = mpsc::channel::<()>();
        let work = move || {
            spin(Duration::from_millis(5));
            while listens.try_recv().is_err() {}
            (0..SLEEPS).for_each(|_| thread::sleep(Duration::from_nanos(1)));
            done.send(()).unwrap();
            let _ = again.recv();
            spin(Duration::from_millis(2));
            thread::sleep(Duration::from_nanos(1));
        };
        let (mut source, _poll, tid, thread) = watched(get, 0, work)?;
        let mut heard = Vec::new();
        let began = Instant::now();
        while heard.is_empty() && began.elapsed() < PATIENCE {
            follow(&mut source, tid, |h| heard.push(h.kind));
        }
        assert_eq!(heard, [ThreadEventKind::Runs], "from here on its sleeps are heard");
        listen.send(()).unwrap();
        slept.recv().unwrap();
        heard.clear();
        take(&mut source, tid, |h| heard.push(h.kind));
        assert!(heard.len() > 100 && heard.len() < SLEEPS, "{}", heard.len());
        more.send(()).unwrap();
        thread.join().unwrap();
        take(&mut source, tid, |h| heard.push(h.kind));
        assert!(heard.contains(&ThreadEventKind::Lost), "{heard:?}");
        Ok(())
    }

    fn what_is_asked_for_before_the_kernel_has_done_with_the_last_is_heard(
        get: Get,
    ) -> Result<(), Skip> {
        const ENOUGH: usize = 2_000;
        let (enough, had_enough) = mpsc::channel::<()>();
        let work = move || while let Err(mpsc::TryRecvError::Empty) = had_enough.try_recv() {};
        let (mut source, _poll, tid, thread) = watched(get, 0, work)?;
        // Nobody waits for the wake-up by the kernel: a record can be read before that.
        let (mut heard, mut last) = (0, Instant::now());
        while heard < ENOUGH && last.elapsed() < PATIENCE {
            let before = heard;
            take(&mut source, tid, |h| heard += usize::from(h.kind == ThreadEventKind::Runs));
            if heard > before {
                source.await_run(tid);
                last = Instant::now();
            }
        }
        drop(enough);
        thread.join().unwrap();
        assert_eq!(heard, ENOUGH, "nothing was heard any more");
        Ok(())
    }

    fn short_runs_wake_nobody_until_they_add_up(get: Get) -> Result<(), Skip> {
        let work = || {
            for _ in 0..200 {
                spin(Duration::from_micros(50));
                thread::sleep(Duration::from_millis(1));
            }
        };
        let (mut source, poll, tid, thread) = watched(get, 2_000_000, work)?;
        let (mut heard, mut wakes) = (Vec::new(), 0);
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        while !thread.is_finished() {
            let mut events = Vec::with_capacity(4);
            let _ = epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
            wakes += usize::from(!events.is_empty());
            follow(&mut source, tid, |h| heard.push(h.kind));
        }
        thread.join().unwrap();
        // It woke up 200 times, and ran for 10 ms in all.
        assert!(wakes < 190, "{wakes} {heard:?}");
        let runs = heard.iter().filter(|what| **what == ThreadEventKind::Runs).count();
        assert!(runs >= 1, "{heard:?}");
        Ok(())
    }
    fn what_is_not_taken_wakes_once(get: Get) -> Result<(), Skip> {
        let (listen, listens) = mpsc::channel::<()>();
        let work = move || {
            spin(Duration::from_millis(5));
            while listens.try_recv().is_err() {}
            thread::sleep(Duration::from_millis(1));
        };
        let (mut source, poll, tid, thread) = watched(get, 0, work)?;
        let (mut heard, began) = (Vec::new(), Instant::now());
        while heard.is_empty() && began.elapsed() < PATIENCE {
            follow(&mut source, tid, |h| heard.push(h.kind));
        }
        assert_eq!(heard, [ThreadEventKind::Runs], "from here on its sleeps are heard");
        listen.send(()).unwrap();
        thread.join().unwrap();
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let mut several = 0;
        for _ in 0..5 {
            let mut events = Vec::with_capacity(4);
            let _ = epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
            several += events.iter().filter(|e| e.data.u64() == 0).count();
        }
        assert!(several <= 1, "woken {several} times for the same");
        heard.clear();
        take(&mut source, tid, |h| heard.push(h.kind));
        assert!(heard.contains(&ThreadEventKind::Sleeps), "{heard:?}");
        Ok(())
    }
}
