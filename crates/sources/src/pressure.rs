//! Reports that threads wait for CPUs, by the kernel's pressure stall information (`Documentation/accounting/psi.rst`).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// Fires when threads of this host have waited for CPUs for 5 % of the time, and again as long as they do. Poll it for
/// `EPOLLPRI`. It costs nothing while no thread waits.
#[derive(Debug)]
pub struct Pressure(File);

/// Waiting time and window, in microseconds. With the first, the kernel checks ten times in a window; without
/// CAP_SYS_RESOURCE it takes only multiples of 2 s, and checks every 2 s.
const TRIGGERS: [&[u8]; 2] = [b"some 50000 1000000\0", b"some 100000 2000000\0"];

impl Pressure {
    /// Starts to watch.
    ///
    /// # Errors
    ///
    /// The kernel is built without pressure information or was booted with `psi=0`, or this user may not use it.
    pub fn open() -> io::Result<Self> {
        let [soon, later] = TRIGGERS.map(|trigger| {
            let mut file = OpenOptions::new().read(true).write(true).open("/proc/pressure/cpu")?;
            // In one call, with its end.
            file.write_all(trigger).map(|()| Self(file))
        });
        soon.or(later)
    }
}

impl AsFd for Pressure {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use vcoop_testing::Skip;

    use super::Pressure;

    #[test]
    fn threads_that_share_a_cpu_are_heard_of() {
        let pressure = match Pressure::open() {
            Ok(pressure) => pressure,
            Err(why) => return Skip::because(why).tell(),
        };
        let stop = AtomicBool::new(false);
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let spins = || {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop()
            }
        };
        let heard = thread::scope(|scope| {
            (0..=cpus).for_each(|_| drop(scope.spawn(spins)));
            let began = Instant::now();
            let mut heard = 0;
            while heard == 0 && began.elapsed() < Duration::from_secs(30) {
                let mut fds = [PollFd::new(&pressure, PollFlags::PRI)];
                let second = Timespec { tv_sec: 1, tv_nsec: 0 };
                heard = poll(&mut fds, Some(&second)).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            heard
        });
        assert_eq!(heard, 1);
    }
}
