//! Finds the window of a VMM that was not served by this process: a file that the VMM has mapped.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::mem::offset_of;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt as _};
use std::time::{Duration, Instant};

use vcoop_abi::window::{LEAST_BYTES, MOST_SLOTS, RAM_ALIGNMENT, WindowHeader, guest_page};
use vcoop_abi::{Header, Word};

use crate::map::Window;

/// Most bytes that are read of a list of mappings.
const MOST_MAPS: u64 = 4 << 20;
/// A file up to this long is a window of its own: the size of the BAR that holds the largest window. A longer one may
/// be a guest's memory, or a part of it.
const MOST_WINDOW: u64 = guest_page(MOST_SLOTS).next_power_of_two();
/// Most words that are read of all files of a process: enough for 4 TiB of guest memory, in some two seconds.
const MOST_READS: usize = ((4 << 40) / RAM_ALIGNMENT) as usize;
/// Longest search of a process. Swapped-out memory is read from a disk, a page for each word, and the daemon's watchdog
/// waits for ten seconds.
const MOST_TIME: Duration = Duration::from_secs(3);
/// Opening a file takes about as long as this many reads.
const OPENING: usize = 16;
/// Offset of the guest's header word.
const GUEST_HEADER: u64 = offset_of!(WindowHeader, guest) as u64;
/// Offset of the guest's word for its number of vCPUs.
const GUEST_VCPUS: u64 = offset_of!(WindowHeader, vcpus) as u64;

/// The window of a process whose driver has registered; `None` if it has none.
///
/// Searches shared writable mappings of files in memory (tmpfs, memfd, hugetlbfs): the window's own file, whose driver
/// is an ivshmem or virtio-pmem device, or guest memory, in which the driver has taken pages. Reads and time are
/// bounded, however much the process has mapped.
///
/// # Errors
///
/// The process's mappings cannot be read: it has ended, or this user may not.
pub fn find(pid: u32) -> io::Result<Option<Window>> {
    let until = Instant::now() + MOST_TIME;
    let mut search = Search { pid, seen: BTreeSet::new(), reads: MOST_READS, until };
    first(pid, |mapping| search.look(mapping))
}

/// Address of a window in a process's memory; `None`: it is not mapped in one piece.
///
/// # Errors
///
/// As for [`find`].
pub fn address(pid: u32, window: &Window) -> io::Result<Option<u64>> {
    let (file, bytes) = window.place();
    first(pid, |mapping| {
        let has = mapping.offset..mapping.offset + (mapping.end - mapping.start);
        let all = mapping.file == file && has.start <= bytes.start && bytes.end <= has.end;
        all.then(|| mapping.start + (bytes.start - has.start))
    })
}

/// The first result of `find` over the mappings of a process.
fn first<T>(pid: u32, mut find: impl FnMut(&Mapping<'_>) -> Option<T>) -> io::Result<Option<T>> {
    let maps = BufReader::new(File::open(format!("/proc/{pid}/maps"))?.take(MOST_MAPS));
    for line in maps.split(b'\n') {
        let line = line?;
        let mapping = std::str::from_utf8(&line).ok().and_then(Mapping::parse);
        if let Some(found) = mapping.and_then(|mapping| find(&mapping)) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// A search through the files that a process has mapped.
struct Search {
    pid: u32,
    /// Parts of files that were searched: they may be mapped more than once.
    seen: BTreeSet<((u64, u64), u64, u64)>,
    /// Reads left, and the end of the time.
    reads: usize,
    until: Instant,
}

impl Search {
    fn look(&mut self, mapping: &Mapping<'_>) -> Option<Window> {
        let mapped = mapping.offset..mapping.offset + (mapping.end - mapping.start);
        if !self.seen.insert((mapping.file, mapped.start, mapped.end)) {
            return None;
        }
        let in_time = || Instant::now() < self.until;
        self.reads = self.reads.checked_sub(OPENING).filter(|_| in_time())?;
        let file = open(self.pid, mapping.range)?;
        // Its owner may cut it off at any time.
        let len = file.metadata().ok()?.len();
        if len < LEAST_BYTES {
            return None;
        }
        let is_of_its_own = len <= MOST_WINDOW;
        let (from, end) = if is_of_its_own {
            (0, LEAST_BYTES)
        } else {
            (mapped.start.checked_next_multiple_of(RAM_ALIGNMENT)?, mapped.end.min(len))
        };
        let word = |offset: u64| {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, offset).ok()?;
            Some(u64::from_le_bytes(word))
        };
        let places = (from..end).step_by(RAM_ALIGNMENT as usize).take(self.reads);
        let mut places = places.take_while(|_| in_time());
        let offset = places.find(|offset| {
            self.reads -= 1;
            word(offset + GUEST_HEADER).is_some_and(|w| Header::from_word(w).is_compatible())
        })?;
        // In guest memory the window ends with its last vCPU.
        let vcpus = word(offset + GUEST_VCPUS)?;
        let window = if is_of_its_own {
            Window::of_vcpus(&file, offset, vcpus)
        } else {
            Window::lent(&file, offset, vcpus)
        };
        let window = window.ok()?;
        window.guest_side().is_registered().then_some(window)
    }
}

/// The file of a mapping, if it is in memory. Opening, reading or touching any other file may wait for a disk or a
/// server.
fn open(pid: u32, range: &str) -> Option<File> {
    // The very file that is mapped, whatever its path leads to by now; not opened in earnest yet.
    let path = format!("/proc/{pid}/map_files/{range}");
    let it = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path).ok()?;
    let kind = rustix::fs::fstatfs(&it).ok()?.f_type;
    // A device may be in a tmpfs.
    if ![libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&kind) || !it.metadata().ok()?.is_file()
    {
        return None;
    }
    let path = format!("/proc/self/fd/{}", it.as_raw_fd());
    // Its owner may have a lease of it (fcntl(2)), and an open would wait for that, 45 s by default.
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).ok()
}

/// A line of `/proc/PID/maps` about a shared, writable file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    /// Its address range, as `map_files` names it.
    range: &'a str,
    start: u64,
    end: u64,
    /// Device and inode.
    file: (u64, u64),
    /// Where in the file it begins.
    offset: u64,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (range, rights) = (fields.next()?, fields.next()?);
        let number = |text| u64::from_str_radix(text, 16).ok();
        let offset = number(fields.next()?)?;
        let (device, inode) = (fields.next()?, fields.next()?.parse().ok()?);
        let (from, to) = range.split_once('-')?;
        let (major, minor) = device.split_once(':')?;
        let file = (number(major)? << 32 | number(minor)?, inode);
        let (start, end) = (number(from)?, number(to)?);
        let long = end.checked_sub(start)? >= LEAST_BYTES;
        let fits = long && offset.checked_add(end - start).is_some();
        (rights.starts_with("rw") && rights.ends_with('s') && inode != 0 && fits).then_some(Self {
            range,
            start,
            end,
            file,
            offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        GUEST_HEADER, GUEST_VCPUS, Mapping, OPENING, RAM_ALIGNMENT, Search, address, find, first,
    };
    use crate::map::Window;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::collections::BTreeSet;
    use std::fs::File;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::FileExt as _;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};
    use vcoop_abi::{Header, Word};
    use vcoop_testing::Skip;

    fn memory(bytes: u64) -> File {
        let file = File::from(memfd_create("vcoop-test", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(bytes).unwrap();
        file
    }

    /// Searches this process's mappings of some files with at most `most` reads. Returns the number of reads, and
    /// whether the window that was found is in guest memory. Needs the capability to follow `map_files`.
    fn looked(files: &[Window], most: usize) -> (usize, Option<bool>) {
        looked_for(files, most, Duration::from_secs(60))
    }

    /// The same, with a time limit.
    fn looked_for(files: &[Window], most: usize, time: Duration) -> (usize, Option<bool>) {
        let (me, until) = (std::process::id(), Instant::now() + time);
        let mut search = Search { pid: me, seen: BTreeSet::new(), reads: most, until };
        let found = first(me, |mapping| {
            let ours = files.iter().any(|window| window.place().0 == mapping.file);
            ours.then(|| search.look(mapping)).flatten()
        });
        (most - search.reads, found.unwrap().map(|window| window.is_lent()))
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn what_is_read_of_a_process_is_what_it_has_mapped_and_has_a_bound_for_all_its_files() {
        if !is_root() {
            return Skip::because("only root may follow map_files").tell();
        }
        let _one = crate::registered();
        let files = [4 << 40; 3].map(memory);
        let map = |vcpus| files.each_ref().map(|file| Window::of_vcpus(file, 0, vcpus).unwrap());
        let few = map(1);
        assert_eq!(looked(&few, 1_000), (3 * (OPENING + 1), None));
        assert_eq!(looked(&few, 2 * OPENING + 1), (2 * OPENING + 1, None));
        let again = map(1);
        assert_eq!(looked(&few, 1_000), (3 * (OPENING + 1), None), "once");
        drop((few, again));
        // Just over 4 MiB of each.
        let more = map(512);
        assert_eq!(looked(&more, 1_000), (3 * (OPENING + 3), None));
        let write = |at, word: u64| files[1].write_all_at(&word.to_le_bytes(), at).unwrap();
        write(RAM_ALIGNMENT + GUEST_HEADER, Header::OURS.to_word());
        write(RAM_ALIGNMENT + GUEST_VCPUS, 1);
        assert_eq!(looked(&more, 1_000).1, Some(true));
        assert_eq!(looked_for(&more, 1_000, Duration::ZERO), (0, None), "there is no time left");
    }

    #[test]
    fn a_file_longer_than_any_window_is_guest_memory() {
        if !is_root() {
            return Skip::because("only root may follow map_files").tell();
        }
        let _one = crate::registered();
        // A VM's first page, the largest window, and a place in a memory module of a VM.
        for (bytes, at, lent) in
            [(16 << 20, 0, true), (8 << 20, 0, false), (32 << 20, RAM_ALIGNMENT, true)]
        {
            let file = memory(bytes);
            let write = |at, word: u64| file.write_all_at(&word.to_le_bytes(), at).unwrap();
            write(at + GUEST_HEADER, Header::OURS.to_word());
            write(at + GUEST_VCPUS, 1);
            let guest = Window::map(&file, 0).unwrap();
            assert_eq!(looked(&[guest], 100).1, Some(lent), "{bytes} bytes, at {at}");
        }
    }

    #[test]
    fn a_file_on_a_disk_is_no_window() {
        let _one = crate::registered();
        let program = std::env::current_exe().unwrap();
        let disk = tempfile::tempfile_in(program.parent().unwrap()).unwrap();
        if !is_root() || rustix::fs::fstatfs(&disk).unwrap().f_type == libc::TMPFS_MAGIC {
            return Skip::because("needs root, and a target folder on a disk").tell();
        }
        for (file, found) in [(memory(1 << 16), Some(false)), (disk, None)] {
            file.set_len(1 << 16).unwrap();
            let write = |at, word: u64| file.write_all_at(&word.to_le_bytes(), at).unwrap();
            write(GUEST_HEADER, Header::OURS.to_word());
            write(GUEST_VCPUS, 3);
            let guest = Window::map(&file, 0).unwrap();
            assert_eq!(looked(&[guest], 100).1, found);
        }
    }

    #[test]
    fn only_shared_writable_files_are_looked_at() {
        let line = "7f00-ffff00 rw-s 00001000 fd:19 42  /dev/shm/a b (deleted)";
        let (start, end, offset) = (0x7f00, 0xff_ff00, 0x1000);
        let found =
            Mapping { range: "7f00-ffff00", start, end, file: (0xfd_0000_0019, 42), offset };
        assert_eq!(Mapping::parse(line), Some(found));
        for line in [
            "7f00-ffff00 rw-p 00000000 00:19 42 /x",
            "7f00-ffff00 r--s 00000000 00:19 42 /x",
            "7f00-ffff00 rw-s 00000000 00:19 0",
            "7f00-8000 rw-s 00000000 00:19 42 /x",
            "ffff00-7f00 rw-s 00000000 00:19 42 /x",
            "",
            "-",
            "a-b rw-s 0 0:0 1",
            "7f00 rw-s 0 0:1 1",
            "7f00-ffff00 rw-s 0 00 1",
        ] {
            assert_eq!(Mapping::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_file_that_is_cut_off_while_it_is_looked_at_is_no_window() {
        // Windows of this test are mapped for a moment, and other tests would find them.
        let _one = crate::registered();
        let file = memory(1 << 16);
        let _mapped = Window::map(&file, 0).unwrap();
        std::thread::scope(|scope| {
            let cuts = scope.spawn(|| {
                for _ in 0..20_000 {
                    file.set_len(0).unwrap();
                    file.set_len(1 << 16).unwrap();
                }
            });
            while !cuts.is_finished() {
                assert!(find(std::process::id()).is_ok());
            }
        });
    }

    #[test]
    #[allow(unsafe_code, reason = "leases have no safe wrapper")]
    fn a_file_that_its_owner_has_leased_is_not_waited_for() {
        if !is_root() {
            return Skip::because("only root may follow map_files").tell();
        }
        let _one = crate::registered();
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
            return Skip::because("no tmpfs").tell();
        };
        file.set_len(1 << 16).unwrap();
        let mapped = Window::map(&file, 0).unwrap();
        let lease = |of: libc::c_int| {
            // SAFETY: who breaks the lease does not end this process; a call without pointers.
            unsafe {
                libc::signal(libc::SIGIO, libc::SIG_IGN);
                libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, of)
            }
        };
        if lease(libc::F_WRLCK) != 0 {
            return Skip::because(std::io::Error::last_os_error()).tell();
        }
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let found = looked(std::slice::from_ref(&mapped), 1_000);
                tell.send(found).unwrap();
            });
            let found = told.recv_timeout(Duration::from_secs(20));
            lease(libc::F_UNLCK);
            assert_eq!(found, Ok((OPENING, None)));
        });
    }

    #[test]
    fn a_window_is_found_in_the_memory_of_who_has_mapped_it() {
        let at = |window: &Window| {
            let page: *const vcoop_abi::window::GuestPage = window.guest(2).unwrap();
            page as u64 - vcoop_abi::window::guest_page(2)
        };
        let me = std::process::id();
        let file = memory(1 << 16);
        let window = Window::map(&file, 1 << 13).unwrap();
        // The file may be mapped from its begin as well, and another's at the same place.
        let (all, other) = (Window::map(&file, 0).unwrap(), memory(1 << 16));
        let other = Window::map(&other, 0).unwrap();
        let first = at(&window).min(at(&all) + (1 << 13));
        assert_eq!(address(me, &window).unwrap(), Some(first));
        assert_eq!(address(me, &all).unwrap(), Some(at(&all)));
        assert_eq!(address(me, &other).unwrap(), Some(at(&other)));
        assert_eq!(address(1, &window).unwrap_or(None), None);
        drop(all);
        assert_eq!(address(me, &window).unwrap(), Some(at(&window)));
    }

    #[test]
    fn a_window_is_found_once_a_driver_has_registered() {
        let _one = crate::registered();
        let file = memory(1 << 16);
        let guest = Window::map(&file, 0).unwrap();
        let me = std::process::id();
        let slots = |w: Option<Window>| w.map(|w| w.slots());
        assert_eq!(slots(find(me).unwrap()), None);
        let write = |at, word: u64| file.write_all_at(&word.to_le_bytes(), at).unwrap();
        write(GUEST_HEADER, Header::OURS.to_word());
        // The file has room for seven; what is behind the third is none of the window's.
        write(GUEST_VCPUS, 3);
        assert!(guest.guest_side().is_registered());
        match find(me).unwrap() {
            Some(found) => {
                guest.guest(0).unwrap().area.ack.store(77, Ordering::Release);
                let ack = found.guest(0).unwrap().area.read().ack.bounded(u64::MAX);
                assert_eq!((found.slots(), ack), (3, 77));
            }
            // Following map_files wants a capability.
            None => assert_ne!(rustix::process::geteuid().as_raw(), 0),
        }
        assert!(find(u32::MAX).is_err());
    }
}
