//! Memory shared with a guest.
#![allow(unsafe_code, reason = "maps memory that a guest writes at the same time")]

use std::ptr::NonNull;

use vcoop_abi::{GuestArea, HostArea};
use vcoop_guest::layout::{CONTROL, Control, TaskStats, Words};
use vcoop_guest::line::Line;
use vcoop_guest::ring::Ring;
use vm_memory::mmap::{MmapRegion, MmapRegionBuilder};
use vm_memory::{VolatileMemory, VolatileSlice};

use crate::error::{Error, RequestTarget};

/// Types that may lie in memory a guest writes.
///
/// # Safety
///
/// Every bit pattern is a value, and all fields are atomics but reserved ones, which the host does not
/// touch.
pub(crate) unsafe trait Shared {}
// SAFETY: atomics, and reserved words that are not read.
unsafe impl Shared for GuestArea {}
// SAFETY: the same.
unsafe impl Shared for HostArea {}
// SAFETY: the same.
unsafe impl Shared for TaskStats {}
// SAFETY: the same.
unsafe impl Shared for Ring {}
// SAFETY: atomics, and reserved words that are not read.
unsafe impl Shared for Line {}
// SAFETY: the same.
unsafe impl Shared for Words {}

/// Anonymous memory, zeroed, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Memory(MmapRegion);

impl Memory {
    /// Maps `len` bytes, populated, and locked if the limits allow it: a page fault of the host in
    /// the middle of a run would be measured as the guest's latency.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn new(len: usize, whom: &RequestTarget) -> Result<Self, Error> {
        let mapped = MmapRegionBuilder::new(len)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE)
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .build();
        let region = mapped.map_err(|_| Error::last_os("mmap of guest memory", whom.clone()))?;
        // SAFETY: the range was just mapped. Failure only means it could be swapped out.
        unsafe { libc::mlock(region.as_ptr().cast(), len) };
        Ok(Self(region))
    }

    /// Host address, for the memory slot.
    pub(crate) fn host_address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        self.0.size() as u64
    }

    /// Copies in. Only before the guest runs.
    ///
    /// # Panics
    ///
    /// Outside of the memory: all addresses are ours.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        self.part(at, bytes.len()).copy_from(bytes);
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
        // SAFETY: of a type that stands being written by others.
        unsafe { self.place::<T>(at).as_ref() }
    }

    /// One word, read once. For reports about a guest that has ended.
    pub(crate) fn read_word(&self, at: u64) -> u64 {
        // SAFETY: within the mapping and aligned.
        unsafe { self.place::<u64>(at).read_volatile() }
    }

    /// Changes the control block. Only before the guest runs.
    pub(crate) fn control(&self, change: impl FnOnce(&mut Control)) {
        let mut control = self.read_control();
        change(&mut control);
        // Not volatile: that would be an instruction for each of its thousands of words.
        // SAFETY: within the mapping and aligned; no reference into it exists, and no guest runs.
        unsafe { self.place::<Control>(CONTROL).write(control) };
    }

    /// A copy of the control block. Of use only before the guest runs.
    pub(crate) fn read_control(&self) -> Control {
        // SAFETY: within the mapping and aligned, and no guest runs; every bit pattern is a value of its words.
        unsafe { self.place::<Control>(CONTROL).read() }
    }

    fn part(&self, at: u64, len: usize) -> VolatileSlice<'_> {
        let slice = usize::try_from(at).ok().and_then(|at| self.0.get_slice(at, len).ok());
        slice.unwrap_or_else(|| panic!("{len} bytes at {at:#x} are outside of the guest's memory"))
    }

    /// Where a structure lies.
    fn place<T>(&self, at: u64) -> NonNull<T> {
        let start = self.part(at, size_of::<T>()).ptr_guard_mut().as_ptr().cast::<T>();
        assert!(start.is_aligned(), "{at:#x} is not aligned");
        NonNull::new(start).expect("a mapping does not begin at 0")
    }
}
