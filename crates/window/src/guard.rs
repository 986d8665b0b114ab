//! Protects mappings of files that another process can truncate.
//!
//! Touching a page of a mapping whose file has become shorter raises SIGBUS. The handler here replaces such a mapping
//! by pages of zeroes and marks it, so that the reader goes on and finds that its window is torn.
#![allow(unsafe_code, reason = "handles SIGBUS")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most mappings at a time.
const MOST: usize = 1024;

/// One mapping. Free while `len` is 0.
#[derive(Debug)]
struct Range {
    taken: AtomicBool,
    start: AtomicUsize,
    len: AtomicUsize,
    torn: AtomicBool,
}

static RANGES: [Range; MOST] = [const {
    Range {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        torn: AtomicBool::new(false),
    }
}; MOST];

/// The previous action of SIGBUS.
static mut BEFORE: MaybeUninit<libc::sigaction> = MaybeUninit::uninit();

/// A mapping that is guarded until this is dropped.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards a mapping. `None`: too many are guarded already.
    pub(crate) fn new(start: usize, len: usize) -> Option<Self> {
        install();
        let free = |r: &Range| !r.taken.swap(true, Ordering::AcqRel);
        let at = RANGES.iter().position(free)?;
        let range = &RANGES[at];
        range.torn.store(false, Ordering::Relaxed);
        range.start.store(start, Ordering::Relaxed);
        range.len.store(len, Ordering::Release);
        Some(Self(at))
    }

    /// The file became shorter than the mapping, which has zeroes since.
    pub(crate) fn is_torn(&self) -> bool {
        RANGES[self.0].torn.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let range = &RANGES[self.0];
        range.len.store(0, Ordering::Release);
        range.taken.store(false, Ordering::Release);
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a zeroed sigaction is one; the handler has the signature that SA_SIGINFO asks for, and
        // BEFORE is written once, before the handler can run.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &raw const action, (&raw mut BEFORE).cast());
        }
    });
}

/// Does only what is allowed in a signal handler: atomics, mmap, sigaction.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a valid siginfo to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    for range in &RANGES {
        let len = range.len.load(Ordering::Acquire);
        let start = range.start.load(Ordering::Relaxed);
        if len == 0 || !(start..start + len).contains(&address) {
            continue;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces the mapping that the range's owner made there and holds.
        let map = unsafe { libc::mmap(start as *mut _, len, protection, flags, -1, 0) };
        if map != libc::MAP_FAILED {
            range.torn.store(true, Ordering::Release);
            return;
        }
    }
    // SAFETY: written by `install` before this could run. A handler from before is called as it asks to
    // be; else the signal does what it does by default when it is raised again.
    unsafe {
        let before: *const libc::sigaction = (&raw const BEFORE).cast();
        let handler = (*before).sa_sigaction;
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            libc::sigaction(signal, before, ptr::null_mut());
        } else if (*before).sa_flags & libc::SA_SIGINFO != 0 {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
        } else {
            std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::ptr;

    use super::Guard;

    /// Also at an address where a window was before, and with the previous handler.
    #[test]
    fn a_fault_that_no_window_made_ends_the_process_as_ever() {
        let file = tempfile::tempfile().unwrap();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, which stays.
        let map = unsafe {
            libc::mmap(ptr::null_mut(), 8192, rights, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(map, libc::MAP_FAILED);
        // The window behind it is not concerned.
        let _other = Guard::new(map as usize + 4096, 4096);
        drop(Guard::new(map as usize, 4096));
        // SAFETY: the child does nothing but to read of its mapping, and ends, at the latest by an alarm.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                ptr::read_volatile(map.cast::<u8>());
                libc::_exit(0);
            }
            child
        };
        let mut status = 0;
        // SAFETY: a child of this process, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGBUS);
    }
}
