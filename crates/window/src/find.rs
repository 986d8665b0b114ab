//! The window of a VMM that was not served by us: a file that it has mapped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;

use vcoop_abi::window::{LEAST_BYTES, RAM_ALIGNMENT};
use vcoop_abi::{Header, Word};

use crate::map::Window;

/// Longest that is read of a list of mappings.
const MOST_MAPS: u64 = 4 << 20;
/// A file up to this long is a window of its own; a longer one may be a guest's memory.
const MOST_WINDOW: u64 = 64 << 20;
/// Most guest memory that is looked through.
const MOST_RAM: u64 = 4 << 40;
/// Offset of the guest's header word.
const GUEST_HEADER: u64 = 64;

/// The window of a process whose driver has registered; `None` if it has none.
///
/// Shared writable mappings of files are looked at: the window's own file, whose driver is an ivshmem or
/// virtio-pmem device, or guest memory, in which the driver has taken pages.
///
/// # Errors
///
/// The process's mappings cannot be read: it has ended, or this user may not.
pub fn find(pid: u32) -> io::Result<Option<Window>> {
    let maps = BufReader::new(File::open(format!("/proc/{pid}/maps"))?.take(MOST_MAPS));
    let mut seen = Vec::new();
    for line in maps.split(b'\n') {
        let line = line?;
        let Some(mapping) = std::str::from_utf8(&line).ok().and_then(Mapping::parse) else {
            continue;
        };
        // A file may be mapped in parts.
        if seen.contains(&mapping.file) {
            continue;
        }
        seen.push(mapping.file);
        if let Some(window) = look(pid, &mapping) {
            return Ok(Some(window));
        }
    }
    Ok(None)
}

fn look(pid: u32, mapping: &Mapping<'_>) -> Option<Window> {
    // The very file that is mapped, whatever its path leads to by now.
    let path = format!("/proc/{pid}/map_files/{}", mapping.range);
    // Opening anything else may wait, or do something.
    if !fs::metadata(&path).is_ok_and(|meta| meta.is_file()) {
        return None;
    }
    let file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
    // Its owner may cut it off at any time.
    let len = file.metadata().ok()?.len();
    if len < LEAST_BYTES {
        return None;
    }
    let is_window = |offset: u64| {
        let mut word = [0; 8];
        let read = file.read_exact_at(&mut word, offset + GUEST_HEADER);
        read.is_ok() && Header::from_word(u64::from_le_bytes(word)).is_compatible()
    };
    let step = if len <= MOST_WINDOW { len } else { RAM_ALIGNMENT };
    let mut offsets = (0..len.min(MOST_RAM)).step_by(usize::try_from(step).ok()?);
    let offset = offsets.find(|offset| is_window(*offset))?;
    let window = Window::map(&file, offset).ok()?;
    window.guest_side().is_registered().then_some(window)
}

/// A line of `/proc/PID/maps` about a shared, writable file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    /// Its addresses, as `map_files` names them.
    range: &'a str,
    /// Device and inode.
    file: (u64, u64),
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (range, rights) = (fields.next()?, fields.next()?);
        let (device, inode) = (fields.nth(1)?, fields.next()?.parse().ok()?);
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (from, to) = range.split_once('-')?;
        let (major, minor) = device.split_once(':')?;
        let file = (number(major)? << 32 | number(minor)?, inode);
        let long = number(to)?.checked_sub(number(from)?)? >= LEAST_BYTES;
        (rights.starts_with("rw") && rights.ends_with('s') && inode != 0 && long)
            .then_some(Self { range, file })
    }
}

#[cfg(test)]
mod tests {
    use super::{Mapping, find};
    use crate::map::Window;
    use std::sync::atomic::Ordering;
    use vcoop_abi::{Header, Word};

    #[test]
    fn only_shared_writable_files_are_looked_at() {
        let line = "7f00-ffff00 rw-s 00000000 00:19 42  /dev/shm/a b (deleted)";
        let found = Mapping { range: "7f00-ffff00", file: (0x19, 42) };
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
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 16).unwrap();
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
    fn a_window_is_found_once_a_driver_has_registered() {
        let _one = crate::REGISTERED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 16).unwrap();
        let guest = Window::map(&file, 0).unwrap();
        let me = std::process::id();
        let slots = |w: Option<Window>| w.map(|w| w.slots());
        assert_eq!(slots(find(me).unwrap()), None);
        let word = Header::OURS.to_word().to_le_bytes();
        std::os::unix::fs::FileExt::write_all_at(&file, &word, 64).unwrap();
        assert!(guest.guest_side().is_registered());
        match find(me).unwrap() {
            Some(found) => {
                guest.guest(0).unwrap().area.ack.store(77, Ordering::Release);
                let ack = found.guest(0).unwrap().area.read().ack.bounded(u64::MAX);
                assert_eq!((found.slots(), ack), (7, 77));
            }
            // Following map_files wants a capability.
            None => assert_ne!(rustix::process::geteuid().as_raw(), 0),
        }
        assert!(find(u32::MAX).is_err());
    }
}
