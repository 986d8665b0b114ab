//! Memory shared with a guest.
#![allow(unsafe_code, reason = "maps memory that a guest writes at the same time")]

use std::ptr::NonNull;

use vcoop_abi::{GuestArea, HostArea};
use vcoop_guest::layout::{Control, TaskStats};
use vcoop_guest::line::Line;
use vcoop_guest::ring::Ring;

use crate::error::{Error, Whom};

/// Types that may lie in memory a guest writes.
///
/// # Safety
///
/// Every bit pattern is a value, and the host touches the type's fields only through atomics; fields
/// that are not atomic are never read while a guest runs.
pub(crate) unsafe trait Shared {}
// SAFETY: atomics, and reserved words that nobody reads.
unsafe impl Shared for GuestArea {}
// SAFETY: the same.
unsafe impl Shared for HostArea {}
// SAFETY: the same.
unsafe impl Shared for TaskStats {}
// SAFETY: the same.
unsafe impl Shared for Ring {}
// SAFETY: atomics, and reserved words that nobody reads.
unsafe impl Shared for Line {}
// SAFETY: words; the host reads no field but the atomic ones of `vcpu` after the guest has started.
unsafe impl Shared for Control {}

/// Anonymous memory, zeroed, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process; access is by atomics or before the guest runs.
unsafe impl Send for Memory {}
// SAFETY: the same.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `len` bytes, populated, and locked if the limits allow it: a page fault of the host in
    /// the middle of a run would be measured as the guest's latency.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn new(len: usize, whom: &Whom) -> Result<Self, Error> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        let base = NonNull::new(p.cast::<u8>()).filter(|_| p != libc::MAP_FAILED);
        let Some(base) = base else {
            return Err(Error::last_os("mmap of guest memory", whom.clone()));
        };
        // SAFETY: the range was just mapped. Failure only means it could be swapped out.
        unsafe { libc::mlock(p, len) };
        Ok(Self { base, len })
    }

    /// Host address, for the memory slot.
    pub(crate) fn host_address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Copies in. Only before the guest runs.
    ///
    /// # Panics
    ///
    /// Outside of the memory: all addresses are ours.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).expect("guest addresses fit");
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.len), "{at:#x}");
        // SAFETY: within the mapping; no guest runs, and no reference to it is alive.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len());
        }
    }

    /// Copies words in, as [`write`](Self::write) does.
    pub(crate) fn write_words(&self, at: u64, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            self.write(at + 8 * i as u64, &word.to_le_bytes());
        }
    }

    /// A shared structure.
    ///
    /// # Panics
    ///
    /// Outside of the memory or unaligned: all addresses are ours.
    pub(crate) fn at<T: Shared>(&self, at: u64) -> &T {
        let at = usize::try_from(at).expect("guest addresses fit");
        assert!(at + size_of::<T>() <= self.len && at.is_multiple_of(align_of::<T>()), "{at:#x}");
        // SAFETY: within the mapping, aligned, and of a type that stands being written by others.
        unsafe { self.base.add(at).cast::<T>().as_ref() }
    }

    /// One word, read once. For reports about a guest that has ended.
    pub(crate) fn read_word(&self, at: u64) -> u64 {
        let at = usize::try_from(at).expect("guest addresses fit");
        assert!(at + 8 <= self.len && at.is_multiple_of(8), "{at:#x}");
        // SAFETY: within the mapping and aligned.
        unsafe { self.base.add(at).cast::<u64>().read_volatile() }
    }

    /// Fills a control block. Only before the guest runs.
    pub(crate) fn control(&self, at: u64, fill: impl FnOnce(&mut Control)) {
        let offset = usize::try_from(at).expect("guest addresses fit");
        assert!(offset + size_of::<Control>() <= self.len && offset.is_multiple_of(64));
        // SAFETY: within the mapping and aligned; zero is a value of every field; nobody else holds
        // a reference to it before the guest runs.
        fill(unsafe { self.base.add(offset).cast::<Control>().as_mut() });
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the VM that uses it is closed before (field order of its owner).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
