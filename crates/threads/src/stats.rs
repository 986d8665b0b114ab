//! The kernel's counters of a thread.
//!
//! Open a file once and read it often: opening it costs more than reading it. An open file belongs to its thread, not
//! to the thread's number: after the thread has ended it reads as empty, even if another thread has the number by then.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::Ns;

/// Counters of a thread's run queues since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// CPU time used.
    pub ran_ns: Ns,
    /// Time in which it was runnable and did not run. A wait that is not over is not counted.
    pub waited_ns: Ns,
}

impl RunTime {
    /// Time awake: in which it ran or was to run.
    pub fn awake_ns(self) -> Ns {
        self.ran_ns + self.waited_ns
    }
}

/// An open `/proc/TID/schedstat`.
#[derive(Debug)]
pub struct RunTimes(File);

impl RunTimes {
    /// Opens the file of a thread of any process.
    ///
    /// # Errors
    ///
    /// There is no such thread, or no more files can be opened.
    pub fn open(tid: i32) -> io::Result<Self> {
        File::open(format!("/proc/{tid}/schedstat")).map(Self)
    }

    /// Reads the counters; zeros once the thread has ended.
    pub fn read(&self) -> RunTime {
        let mut text = [0; 64];
        let read = self.0.read_at(&mut text, 0).unwrap_or(0);
        let text = str::from_utf8(&text[..read]).unwrap_or_default();
        let mut words = text.split_ascii_whitespace().map(|w| w.parse().unwrap_or(0));
        let mut next = || words.next().unwrap_or(0);
        RunTime { ran_ns: next(), waited_ns: next() }
    }
}

/// The counters, for a single read; zeros if there is no such thread.
pub fn run_time(tid: i32) -> RunTime {
    RunTimes::open(tid).map(|file| file.read()).unwrap_or_default()
}

/// An open `/proc/TID/task/TID/stat`.
#[derive(Debug)]
pub struct Stat(File);

impl Stat {
    /// Opens the file of a thread of any process.
    ///
    /// # Errors
    ///
    /// There is no such thread, or no more files can be opened.
    pub fn open(tid: i32) -> io::Result<Self> {
        // The file right under /proc would add up all threads of the process.
        File::open(format!("/proc/{tid}/task/{tid}/stat")).map(Self)
    }

    /// The fields from the third (the state) on; empty if the thread has ended.
    fn read<'a>(&self, room: &'a mut [u8; 1024]) -> &'a str {
        let read = self.0.read_at(room, 0).unwrap_or(0);
        // The name, in parentheses, may hold anything.
        let after = room[..read].iter().rposition(|b| *b == b')').map_or(read, |at| at + 1);
        str::from_utf8(&room[after..read]).unwrap_or_default().trim_ascii()
    }

    /// When the thread began, in ticks of user space's clock since boot; `None` once it has ended. Number and start
    /// identify a thread: the kernel reuses a number only after all others.
    pub fn start(&self) -> Option<u64> {
        let mut room = [0; 1024];
        let mut fields = self.read(&mut room).split(' ');
        let lives = fields.next().is_some_and(|state| !matches!(state, "" | "Z" | "X"));
        // Field 22; the first here is the third.
        fields.nth(18).filter(|_| lives)?.parse().ok()
    }

    /// Whether the thread sleeps or [is stopped](Self::is_stopped), so that it uses no CPU. False for a thread that has
    /// ended.
    pub fn is_asleep(&self) -> bool {
        self.read(&mut [0; 1024]).starts_with(['S', 'D']) || self.is_stopped()
    }

    /// Whether a signal or a debugger has stopped it.
    pub fn is_stopped(&self) -> bool {
        self.read(&mut [0; 1024]).starts_with(['T', 't'])
    }

    /// Whether it sleeps uninterruptibly: in a page fault, for I/O, or for a lock of the kernel.
    pub fn is_blocked(&self) -> bool {
        self.read(&mut [0; 1024]).starts_with('D')
    }
}

/// An open `/proc/TID/syscall`, which shows the system call that a thread sleeps in.
#[derive(Debug)]
pub struct SyscallFile(File);

impl SyscallFile {
    /// Opens the file of a thread of any process.
    ///
    /// # Errors
    ///
    /// There is no such thread, or no more files can be opened.
    pub fn open(tid: i32) -> io::Result<Self> {
        File::open(format!("/proc/{tid}/task/{tid}/syscall")).map(Self)
    }

    /// Whether the thread waits for a lock whose holder has its priority meanwhile (a PI futex). False if the file is
    /// unreadable.
    pub fn lends(&self) -> bool {
        let mut text = [0; 256];
        let read = self.0.read_at(&mut text, 0).unwrap_or(0);
        str::from_utf8(&text[..read]).is_ok_and(lends)
    }
}

/// The same, from the text of that file: the call's number and its arguments.
fn lends(text: &str) -> bool {
    /// `futex` of 64-bit and 32-bit processes, and `futex_time64` of the latter.
    const FUTEX: [u64; 3] = [202, 240, 422];
    /// FUTEX_LOCK_PI, FUTEX_WAIT_REQUEUE_PI, FUTEX_LOCK_PI2, without their flags.
    const INHERIT: [u64; 3] = [6, 11, 13];
    /// Bit of system call numbers of the x32 ABI.
    const X32: u64 = 1 << 30;
    let mut words = text.split_ascii_whitespace();
    let call = words.next().and_then(|word| word.parse::<u64>().ok());
    let operation = words.nth(1).and_then(|word| word.strip_prefix("0x"));
    let operation = operation.and_then(|word| u64::from_str_radix(word, 16).ok());
    call.is_some_and(|call| FUTEX.contains(&(call & !X32)))
        && operation.is_some_and(|op| INHERIT.contains(&(op & 0x7f)))
}

/// How often a thread lost its CPU while runnable; 0 if there is no such thread.
pub fn preemptions(tid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    count.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use vcoop_testing::{WaitingThread, until};

    use super::{RunTime, RunTimes, Stat, SyscallFile, lends, preemptions, run_time};
    use crate::{affinity, gettid, pin};

    #[test]
    fn open_files_follow_their_thread_and_no_other() {
        let own = Stat::open(gettid()).unwrap();
        assert!(!own.is_asleep());
        let sleeper = WaitingThread::start();
        let tid = sleeper.tid;
        let (stat, times) = (Stat::open(tid).unwrap(), RunTimes::open(tid).unwrap());
        until("it sleeps", || stat.is_asleep());
        let slept = times.read();
        assert!(slept.ran_ns > 0 && times.read() == slept && run_time(tid) == slept);
        assert!(!stat.is_blocked());
        // It has just begun, in ticks of a hundredth of a second.
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let began = stat.start().unwrap() as f64 / 100.0;
        assert!((uptime - 60.0..uptime + 1.0).contains(&began), "{began} of {uptime}");
        sleeper.end();
        // The thread may be joined a moment before the kernel has let go of it.
        until("it is gone", || times.read() == RunTime::default());
        assert!(!stat.is_asleep() && stat.start().is_none());
        assert!(Stat::open(tid).is_err() || RunTimes::open(tid).is_ok());
    }

    #[test]
    fn locks_that_inherit_are_told_from_other_waits() {
        for text in ["202 0x7f00 0x86 0x0 0x0", "240 0x8000 0x6 0x0", "1073742026 0x7f00 0x18d 0x0"]
        {
            assert!(lends(text), "{text}");
        }
        // FUTEX_WAIT, an ioctl, and no call at all.
        for text in ["202 0x7f00 0x80 0x0", "16 0x10 0x6 0x0", "running", "-1 0x7f 0x6", "202", ""]
        {
            assert!(!lends(text), "{text}");
        }
        let sleeper = WaitingThread::start();
        let stat = Stat::open(sleeper.tid).unwrap();
        until("it sleeps", || stat.is_asleep());
        assert!(!SyscallFile::open(sleeper.tid).unwrap().lends());
        sleeper.end();
    }

    #[test]
    fn who_shares_a_cpu_is_preempted_and_nobody_is_not() {
        let cpu = affinity(0).unwrap()[0];
        let stop = AtomicBool::new(false);
        let preempted = thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            for _ in 0..2 {
                let (tell, stop) = (tell.clone(), &stop);
                scope.spawn(move || {
                    pin(&[cpu]).unwrap();
                    tell.send(gettid()).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let [tid, _] = [(); 2].map(|()| told.recv().unwrap());
            let began = Instant::now();
            while preemptions(tid) < 2 && began.elapsed() < Duration::from_secs(10) {
                thread::sleep(Duration::from_millis(1));
            }
            let preempted = preemptions(tid);
            stop.store(true, Ordering::Relaxed);
            preempted
        });
        assert!(preempted >= 2, "{preempted}");
        assert_eq!((preemptions(-1), run_time(-1)), (0, RunTime::default()));
    }

    #[test]
    fn a_name_cannot_pretend_to_sleep() {
        let named = thread::Builder::new().name(") S 1 (".to_owned());
        let asleep = named.spawn(|| Stat::open(gettid()).unwrap().is_asleep()).unwrap();
        assert!(!asleep.join().unwrap());
    }
}
