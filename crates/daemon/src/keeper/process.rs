//! The keeper's process.
#![allow(unsafe_code, reason = "changes what signals do to this process")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use vcoop_policy::thread::Policy;
use vcoop_service::write_at_once;
use vcoop_threads::clock::monotonic;
use vcoop_threads::journal::Journal;
use vcoop_threads::{Attributes, Baseline, Captured, Ns, RunTimes, SyscallFile};

use super::slots::{MOST_SLOTS, Slots, Stall};

/// Time between two looks at boosted threads.
pub const LOOK: Duration = Duration::from_millis(40);
/// A look that finds a thread lending its boost adds this; any other look takes one away. More than [`MOST_LENT`] is no
/// accident of a lock that is used now and then.
const LENT: u32 = 8;
const MOST_LENT: u32 = 2 * LENT;

/// Real-time priority of the keeper. It mostly sleeps, and must not wait when it wakes up.
const PRIORITY: u8 = 99;
/// Longest message.
const MOST_LINE: usize = 4096;

/// A thread that the keeper takes care of.
#[derive(Debug)]
struct KeptThread {
    captured: Captured,
    times: Option<RunTimes>,
    sleeps_in: Option<SyscallFile>,
    lending: Lending,
    /// `acts`, and CPU time when that was first seen, if the thread was boosted at each look since.
    since: Option<(u64, Ns)>,
}

impl KeptThread {
    fn new(
        captured: Captured,
        times: io::Result<RunTimes>,
        sleeps_in: io::Result<SyscallFile>,
    ) -> Self {
        let (times, sleeps_in) = (times.ok(), sleeps_in.ok());
        Self { captured, times, sleeps_in, lending: Lending::default(), since: None }
    }
}

/// Whether a boosted thread lends its boost.
#[derive(Clone, Copy, Debug, Default)]
struct Lending {
    /// How much it has done so lately: see [`LENT`].
    lent: u32,
    /// Its CPU time at the last look, if it did not lend then.
    without: Option<Ns>,
}

impl Lending {
    /// A look at a thread that has `ran` so long in all; `None`: not known. Returns whether it lends too often.
    ///
    /// `lends` asks the kernel, which takes most of the time of a look. A thread that has not run since it did not lend
    /// has not gone to sleep in a lock. The opposite does not hold: the time of a thread that runs may be old.
    fn look(&mut self, ran: Option<Ns>, lends: impl FnOnce() -> bool) -> bool {
        let lends = (ran.is_none() || self.without != ran) && lends();
        // Where the kernel does not count, it is 0.
        self.without = ran.filter(|ran| !lends && *ran > 0);
        self.lent = if lends { self.lent + LENT } else { self.lent.saturating_sub(1) };
        self.lent > MOST_LENT
    }
}

/// Writes a line to stderr.
macro_rules! say {
    ($($line:tt)*) => {
        _ = write_at_once(io::stderr(), format!("vcoop keeper: {}\n", format_args!($($line)*)).as_bytes())
    };
}

/// The keeper's main function: `vcoop keeper JOURNAL`, with a pipe as stdin and the lock as stdout.
///
/// # Errors
///
/// The process was not started by an owner.
pub fn run(journal: &Path) -> io::Result<()> {
    let slots = Slots::map(io::stdout())?;
    outlive();
    serve(io::stdin(), &slots, journal)
}

/// Serves the owner until it has died.
fn serve(pipe: impl AsFd, slots: &Slots, journal: &Path) -> io::Result<()> {
    let mut held: BTreeMap<usize, KeptThread> = BTreeMap::new();
    let mut bytes = Vec::new();
    let mut next_look = Instant::now() + LOOK;
    loop {
        let left = next_look.saturating_duration_since(Instant::now());
        let timeout = rustix::time::Timespec::try_from(left).unwrap_or_default();
        let timeout = (!held.is_empty()).then_some(&timeout);
        let ready = match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], timeout) {
            Ok(ready) => ready > 0,
            Err(Errno::INTR) => false,
            Err(e) => return Err(e.into()),
        };
        if ready {
            let goes_on = read(&pipe, &mut bytes);
            while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = bytes.drain(..=end).collect();
                listen(&mut held, &String::from_utf8_lossy(&line));
            }
            if !goes_on {
                restore_all(held, journal);
                return Ok(());
            }
        }
        if Instant::now() >= next_look {
            look(slots, &mut held);
            next_look = Instant::now() + LOOK;
        }
    }
}

/// Reads some of the owner's messages. Returns whether the owner lives. Reads the pipe itself: `poll` would not report
/// what a buffer of stdin held back.
fn read(pipe: impl AsFd, bytes: &mut Vec<u8>) -> bool {
    let mut some = [0; MOST_LINE];
    match rustix::io::read(pipe, &mut some) {
        Ok(n) => {
            bytes.extend_from_slice(&some[..n]);
            n > 0
        }
        // Nothing was read; the data is still there.
        Err(Errno::INTR | Errno::AGAIN) => true,
        // An owner that was killed resets the connection.
        Err(_) => false,
    }
}

/// Makes the keeper outlive its owner: it ignores the terminal's signals and those of a careless stop, it is not paged
/// out, and the OOM killer takes other processes first.
fn outlive() {
    let _ = rustix::process::setsid();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // What fails here only makes the keeper less certain to be in time.
    let _ = rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT);
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    let _ = Attributes::from_policy(&Policy::Fifo(PRIORITY)).set(0);
}

/// Handles a message.
fn listen(held: &mut BTreeMap<usize, KeptThread>, line: &str) {
    let (verb, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
    let (slot, thread) = rest.split_once(' ').unwrap_or((rest, ""));
    match (verb, slot.parse::<usize>()) {
        ("drop", Ok(slot)) => _ = held.remove(&slot),
        ("hold", Ok(slot)) if slot < MOST_SLOTS => {
            match Baseline::parse(thread).map(Captured::again) {
                Some(Ok(Some(captured))) => {
                    let tid = captured.baseline().tid;
                    let new =
                        KeptThread::new(captured, RunTimes::open(tid), SyscallFile::open(tid));
                    // The same thread with a new baseline: its process may change that at any time.
                    let lending = held.get(&slot).map_or(new.lending, |held| held.lending);
                    held.insert(slot, KeptThread { lending, ..new });
                }
                // It has ended.
                Some(Ok(None)) => {}
                Some(Err(why)) => say!("not watched: {thread}: {why}"),
                None => say!("not understood: {line:?}"),
            }
        }
        _ => say!("not understood: {line:?}"),
    }
}

/// Takes back the boosts that a stalled owner should have ended.
fn look(slots: &Slots, held: &mut BTreeMap<usize, KeptThread>) {
    let now = monotonic();
    for (slot, thread) in held.iter_mut() {
        let words = slots.get(*slot);
        // Mostly no vCPU is boosted. A look then reads only a few words.
        if !words.is_boosted() {
            thread.since = None;
            continue;
        }
        let ran = thread.times.as_ref().map(|times| times.read().ran_ns);
        let stall = words.stall(now, ran.unwrap_or(0), &mut thread.since);
        let sleeps_in = thread.sleeps_in.as_ref();
        let lends = || sleeps_in.is_some_and(SyscallFile::lends);
        let stall = stall.or_else(|| thread.lending.look(ran, lends).then_some(Stall::Lends));
        if let Some(stall) = stall {
            if stall == Stall::Lends {
                words.lent();
            }
            words.end_boost();
            let tid = thread.captured.baseline().tid;
            let done = match thread.captured.restore() {
                Ok(_) => "it is not boosted any more".to_owned(),
                Err(why) => why.to_string(),
            };
            say!("{stall}; thread {tid}: {done}");
        }
    }
}

/// The owner is gone: restores all threads.
fn restore_all(held: BTreeMap<usize, KeptThread>, journal: &Path) {
    let mut whole = true;
    for thread in held.values() {
        if let Err(why) = thread.captured.restore() {
            whole = false;
            say!("{why}");
        }
    }
    let threads = match held.len() {
        1 => "1 thread has what it had".to_owned(),
        n => format!("{n} threads have what they had"),
    };
    say!("the owner has died; {threads}");
    // Their files may be all that this process can open, and the journal's threads want some, too.
    drop(held);
    // The journal may have threads that the pipe did not tell of. Mostly there are none.
    match Journal::read(journal) {
        Ok(mut left) => {
            let (outcomes, written) = left.restore_all();
            if whole && written.is_ok() && outcomes.iter().all(|(_, outcome)| outcome.is_ok()) {
                let _ = left.remove();
            }
        }
        Err(why) => say!("{why}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::sync::atomic::AtomicU32;
    use std::sync::{Arc, mpsc};
    use std::thread;

    use vcoop_policy::thread::Policy;
    use vcoop_testing::{Skip, until};
    use vcoop_threads::{Attributes, Captured, RunTimes, SyscallFile, gettid};

    use super::{KeptThread, Lending, MOST_LINE, Slots, listen, look, serve};

    /// `futex(2)` with an operation on a word.
    fn futex(word: &AtomicU32, operation: libc::c_int) {
        // SAFETY: the word outlives the call, which has no other pointer.
        let rc = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 0, 0, 0, 0) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }

    /// Whether a thread runs as a real-time one, by whatever right: field 18 of its `stat`.
    fn is_urgent(tid: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        let priority = stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(15).unwrap();
        priority.parse::<i32>().unwrap() < 0
    }

    #[test]
    fn a_boost_that_a_sleeping_thread_lends_is_taken_back_for_good() {
        let word = Arc::new(AtomicU32::new(0));
        let (tell, told) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let (lock, say) = (word.clone(), tell.clone());
        let holder = thread::spawn(move || {
            futex(&lock, libc::FUTEX_LOCK_PI);
            say.send(gettid()).unwrap();
            let _ = may_go.recv();
            futex(&lock, libc::FUTEX_UNLOCK_PI);
        });
        let held_by = told.recv().unwrap();
        let vcpu = thread::spawn(move || {
            tell.send(gettid()).unwrap();
            futex(&word, libc::FUTEX_LOCK_PI);
            futex(&word, libc::FUTEX_UNLOCK_PI);
        });
        let tid = told.recv().unwrap();
        let captured = Captured::of(tid).unwrap().without_cpus();
        until("it sleeps", || captured.is_asleep());
        let was = Attributes::get(tid).unwrap();
        let file = tempfile::tempfile().unwrap();
        let slots = Slots::new(&file).unwrap();
        let ended = || {
            drop(go);
            holder.join().unwrap();
            vcpu.join().unwrap();
        };
        if let Err(why) = Attributes::from_policy(&Policy::Rr(8)).set(tid) {
            ended();
            return Skip::because(why).tell();
        }
        assert!(is_urgent(held_by), "it has what the other one was lent");
        slots.get(0).due(None);
        slots.get(0).boosted(false, 0);
        let held = KeptThread::new(captured, RunTimes::open(tid), SyscallFile::open(tid));
        let mut held = BTreeMap::from([(0, held)]);
        let looks = (1..=25).find(|_| {
            look(&slots, &mut held);
            !is_urgent(held_by)
        });
        let has = Attributes::get(tid).unwrap();
        ended();
        assert_eq!((looks, has), (Some(3), was));
        assert!(slots.get(0).lends(), "who owns it is told");
    }

    #[test]
    fn the_kernel_is_not_asked_again_about_a_thread_that_has_not_run_since() {
        let (mut lending, mut asked) = (Lending::default(), 0);
        let mut look = |ran, lends| {
            let before = asked;
            let too_often = lending.look(ran, || {
                asked += 1;
                lends
            });
            (asked > before, too_often)
        };
        assert_eq!(look(Some(5), false), (true, false));
        assert_eq!([(); 20].map(|()| look(Some(5), false)), [(false, false); 20]);
        assert_eq!(look(Some(6), true), (true, false));
        // It may run by now.
        assert_eq!(look(Some(6), false), (true, false));
        assert_eq!([(); 2].map(|()| look(Some(0), false)), [(true, false); 2], "not counted");
        assert_eq!([(); 2].map(|()| look(None, true)), [(true, false), (true, true)]);
    }

    #[test]
    fn a_new_baseline_is_no_excuse() {
        let me = Captured::of(gettid()).unwrap();
        let line = format!("hold 3 {}\n", me.baseline());
        let mut held = BTreeMap::new();
        listen(&mut held, &line);
        held.get_mut(&3).unwrap().lending.lent = 7;
        listen(&mut held, &line);
        assert_eq!(held[&3].lending.lent, 7);
        listen(&mut held, "drop 3\n");
        listen(&mut held, &line);
        assert_eq!(held[&3].lending.lent, 0);
    }

    #[test]
    fn a_backlog_longer_than_one_read_is_heard_to_its_end() {
        let file = tempfile::tempfile().unwrap();
        let slots = Slots::new(&file).unwrap();
        let (mut owner, pipe) = UnixStream::pair().unwrap();
        let me = Captured::of(gettid()).unwrap();
        let (mut all, mut last) = (String::new(), 0);
        while all.len() < MOST_LINE + 1_000 {
            last += 1;
            all += &format!("hold {last} {}\n", me.baseline());
        }
        owner.write_all(all.as_bytes()).unwrap();
        let same = Slots::map(&file).unwrap();
        same.get(last).boosted(false, 0);
        same.get(last).due(Some(0));
        let keeper = thread::spawn(move || serve(pipe, &slots, Path::new("/nowhere")));
        // Only the last line says whose boost this is.
        until("its boost has ended", || !same.get(last).is_boosted());
        drop(owner);
        keeper.join().unwrap().unwrap();
    }
}
