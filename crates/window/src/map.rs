//! A window, mapped into this process.
#![allow(unsafe_code, reason = "maps memory that a guest writes")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use vcoop_abi::layout::PAGE_SIZE;
use vcoop_abi::window::{self, Doorbell, GuestPage, GuestSide, Identity, WindowHeader};
use vcoop_abi::{Header, HostArea, Status, Word};

use crate::guard::Guard;

/// A window, mapped to be read and written.
///
/// Everything in it is atomic, because the guest uses it at the same time.
#[derive(Debug)]
pub struct Window {
    /// The mapping, of whole pages of its file, which may be huge ones, and its length.
    map: NonNull<u8>,
    bytes: usize,
    /// Offset of the window in the mapping.
    begin: usize,
    slots: u64,
    /// Device and inode of the file, as in `/proc/PID/maps`, and the window's offset in it.
    file: (u64, u64),
    offset: u64,
    guard: Guard,
    /// Whether this side has announced itself.
    offered: AtomicBool,
    /// Whether the window is in the guest's own memory, lent while its driver is registered.
    lent: bool,
    /// Whether a lent window has been given back: nothing more is written.
    returned: AtomicBool,
}

// SAFETY: the mapping is this value's own until it is dropped, and everything that is handed out of it
// is shared atomics.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

/// Numbers of a vCPU: the VMM's and KVM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuNumbers {
    /// The VMM's number.
    pub index: u32,
    /// KVM's number, if known.
    pub kvm_id: Option<u32>,
}

fn slots_of(vcpus: &[VcpuNumbers], online: &[(u64, u32)]) -> Vec<Option<u64>> {
    let exact = vcpus.iter().all(|vcpu| vcpu.kvm_id.is_some());
    let mut by_id: Vec<(u32, u64)> = online.iter().map(|(slot, id)| (*id, *slot)).collect();
    by_id.sort_unstable();
    let mut order: Vec<usize> = (0..vcpus.len()).collect();
    order.sort_unstable_by_key(|place| vcpus[*place].index);
    let mut slots = vec![None; vcpus.len()];
    for (rank, place) in order.into_iter().enumerate() {
        let own = |(id, _): &&(u32, u64)| Some(*id) == vcpus[place].kvm_id;
        let found = if exact { by_id.iter().find(own) } else { by_id.get(rank) };
        slots[place] = found.map(|(_, slot)| *slot);
    }
    slots
}

/// Offset and length of the mapping for `length` bytes from `offset` on, in a file with pages of size `page`. The
/// kernel maps only whole pages; those of a guest's memory may be of 1 GiB, while a window begins at any multiple of 2
/// MiB.
fn whole(offset: u64, length: u64, page: u64) -> (u64, usize) {
    let start = offset - offset % page;
    (start, (offset - start + length).next_multiple_of(page) as usize)
}

impl Window {
    /// Maps the window from `offset` of a file to the file's end.
    ///
    /// # Errors
    ///
    /// The file is shorter than a window with one vCPU, or cannot be mapped to be written.
    pub fn map(file: &File, offset: u64) -> io::Result<Self> {
        Self::of_vcpus(file, offset, u64::MAX)
    }

    /// Maps a window that a driver has put into its guest's own memory, for at most so many vCPUs: the memory behind it
    /// is used otherwise. The memory is the guest's again when the driver has gone.
    pub(crate) fn lent(file: &File, offset: u64, vcpus: u64) -> io::Result<Self> {
        let mut window = Self::of_vcpus(file, offset, vcpus)?;
        window.lent = true;
        Ok(window)
    }

    /// Maps a window of its own file, for at most so many vCPUs.
    pub(crate) fn of_vcpus(file: &File, offset: u64, vcpus: u64) -> io::Result<Self> {
        let short = || io::Error::new(io::ErrorKind::UnexpectedEof, "shorter than a window");
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let slots = window::slots(meta.len().saturating_sub(offset)).min(vcpus);
        if slots == 0 || !offset.is_multiple_of(PAGE_SIZE) {
            return Err(short());
        }
        let page = meta.blksize().max(PAGE_SIZE);
        let (start, bytes) = whole(offset, window::guest_page(slots), page);
        let begin = (offset - start) as usize;
        let file_id = (
            u64::from(libc::major(meta.dev())) << 32 | u64::from(libc::minor(meta.dev())),
            meta.ino(),
        );
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let map = unsafe { mmap(ptr::null_mut(), bytes, access, flags, file, start) }?;
        let Some((map, guard)) =
            NonNull::new(map.cast::<u8>()).zip(Guard::new(map as usize, bytes))
        else {
            // SAFETY: the mapping of above, which is not used any more.
            let _ = unsafe { munmap(map, bytes) };
            return Err(io::Error::other("too many windows"));
        };
        let [offered, returned] = [false; 2].map(AtomicBool::new);
        let lent = false;
        Ok(Self { map, bytes, begin, slots, file: file_id, offset, guard, offered, lent, returned })
    }

    /// How many vCPUs the window has room for.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Device and inode of the file, as in `/proc/PID/maps`, and the range of the window in it.
    pub(crate) fn place(&self) -> ((u64, u64), Range<u64>) {
        (self.file, self.offset..self.offset + window::guest_page(self.slots))
    }

    /// Whether its file became shorter: it then reads as zeroes, and writes have no effect.
    pub fn is_torn(&self) -> bool {
        self.guard.is_torn()
    }

    /// Address at an offset in the window.
    fn at(&self, offset: u64) -> NonNull<u8> {
        // SAFETY: callers stay within the window, which is within the mapping.
        unsafe { self.map.add(self.begin + offset as usize) }
    }

    fn header(&self) -> &WindowHeader {
        // SAFETY: within the mapping, aligned as pages are, and nothing but atomics.
        unsafe { self.at(0).cast().as_ref() }
    }

    /// The guest's half of the header.
    pub fn guest_side(&self) -> GuestSide {
        self.header().read_guest()
    }

    /// What the guest writes about a vCPU; `None` beyond the window.
    pub fn guest(&self, slot: u64) -> Option<&GuestPage> {
        let offset = (slot < self.slots).then(|| window::guest_page(slot))?;
        // SAFETY: `slots` are within the mapping; pages are aligned; reserved words are never read.
        Some(unsafe { self.at(offset).cast().as_ref() })
    }

    /// Whether the window is in the guest's memory. Any user of the guest can have put it there.
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// Whether this side may write the window. A guest's driver that goes says so in the window, and takes the memory
    /// back after [`Self::give_back`].
    fn is_ours(&self) -> bool {
        if !self.lent {
            return true;
        }
        if self.returned.load(Ordering::Relaxed) {
            return false;
        }
        let registered = self.guest_side().is_registered();
        if !registered {
            self.returned.store(true, Ordering::Relaxed);
        }
        registered
    }

    /// Tells a driver that has gone that the guest may have its memory back. That is the last word written: other users
    /// of this window must not write any more either. Does nothing while the window is this side's.
    pub fn give_back(&self) {
        if !self.is_ours()
            && self.offered.swap(false, Ordering::Relaxed)
            // If the driver has registered anew meanwhile, that is for another window in this place.
            && !self.guest_side().is_registered()
        {
            self.header().host.store(0, Ordering::Release);
        }
    }

    /// Whether the window was in the guest's memory and has been given back. A driver that registers anew has another
    /// window, wherever it is.
    pub fn is_returned(&self) -> bool {
        !self.is_ours()
    }

    /// What the host writes about a vCPU; `None` beyond the window, and after a lent window was given back.
    pub fn host(&self, slot: u64) -> Option<&HostArea> {
        let offset = (slot < self.slots && self.is_ours()).then(|| window::host_page(slot))?;
        // SAFETY: as above.
        Some(unsafe { self.at(offset).cast().as_ref() })
    }

    /// Whether a host has set the status of any vCPU to anything but disabled.
    pub fn is_in_use(&self) -> bool {
        let mut hosts = (0..self.slots).filter_map(|slot| self.host(slot));
        self.has_host() && hosts.any(|host| host.status() != Status::Disabled)
    }

    /// Whether a host has announced itself.
    pub fn has_host(&self) -> bool {
        Header::from_word(self.header().host.load(Ordering::Acquire)).is_compatible()
    }

    /// Whether the guest is registered, and uses this vCPU.
    pub fn is_online(&self, slot: u64) -> bool {
        let online =
            |page: &GuestPage| Identity::from_word(page.report.vcpu.load(Ordering::Acquire)).online;
        self.guest(slot).is_some_and(online) && self.guest_side().is_registered()
    }

    /// The vCPUs that the guest uses: slot and APIC id, by slot.
    pub fn online(&self) -> Vec<(u64, u32)> {
        let side = self.guest_side();
        if !side.is_registered() {
            return Vec::new();
        }
        let identity = |slot| -> Option<(u64, u32)> {
            let word = self.guest(slot)?.report.vcpu.load(Ordering::Acquire);
            let Identity { online, apic_id } = Identity::from_word(word);
            online.then_some((slot, apic_id))
        };
        (0..side.vcpus.bounded(self.slots)).filter_map(identity).collect()
    }

    /// The slots of vCPUs with these numbers: by KVM's number, which is the APIC id. If a KVM number is not known,
    /// vCPUs and slots are matched in order, which is how QEMU numbers them.
    pub fn slots_of(&self, vcpus: &[VcpuNumbers]) -> Vec<Option<u64>> {
        slots_of(vcpus, &self.online())
    }

    /// Announces the host, with its words as in a page of zeroes, and its doorbell.
    pub fn offer(&self, doorbell: Doorbell) {
        for slot in 0..self.slots {
            let Some(host) = self.host(slot) else { continue };
            let words = [
                &host.status,
                &host.ticket,
                &host.budget_left_ns,
                &host.steal_ns,
                &host.hints,
                &host.ping,
                &host.tell_idle,
            ];
            words.iter().for_each(|word| word.store(0, Ordering::Release));
            host.header.store(Header::OURS.to_word(), Ordering::Release);
        }
        if !self.is_ours() {
            return;
        }
        self.header().doorbell.store(doorbell.to_word(), Ordering::Release);
        self.header().host.store(Header::OURS.to_word(), Ordering::Release);
        self.offered.store(true, Ordering::Relaxed);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.give_back();
        if self.offered.load(Ordering::Relaxed) {
            self.header().host.store(0, Ordering::Release);
            for slot in 0..self.slots {
                if let Some(host) = self.host(slot) {
                    host.status.store(0, Ordering::Release);
                    host.hints.store(0, Ordering::Release);
                }
            }
        }
        // SAFETY: mapped by `map`, with this length; references into it do not outlive `self`.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::{VcpuNumbers, Window, slots_of};
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;
    use vcoop_abi::window::{Doorbell, Identity};
    use vcoop_abi::{Header, Status, Word};
    use vcoop_testing::Skip;

    fn window(bytes: u64) -> (std::fs::File, Window) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        let window = Window::map(&file, 0).unwrap();
        (file, window)
    }

    /// A file, and the window in it after a guest's driver has registered.
    fn registered() -> (std::fs::File, Window) {
        let (file, guest) = window(1 << 16);
        guest.header().guest.store(Header::OURS.to_word(), Ordering::Release);
        (file, guest)
    }

    #[test]
    fn vcpus_and_slots_meet_by_apic_id_or_in_their_order() {
        let number = |index, kvm_id| VcpuNumbers { index, kvm_id };
        let online = [(0, 0), (1, 4), (2, 1)];
        let vcpus = [number(0, Some(4)), number(1, Some(1)), number(2, Some(9))];
        assert_eq!(slots_of(&vcpus, &online), [Some(1), Some(2), None]);
        let vcpus = [number(1, None), number(0, None), number(2, Some(4)), number(3, None)];
        assert_eq!(slots_of(&vcpus, &online), [Some(2), Some(0), Some(1), None]);
        assert_eq!(slots_of(&vcpus, &[]), [None; 4]);
    }

    #[test]
    fn each_side_finds_what_the_other_wrote() {
        let _one = crate::registered();
        let (file, host) = window(1 << 16);
        assert_eq!(host.slots(), 7);
        assert!([7, u64::MAX].iter().all(|slot| host.guest(*slot).is_none()));
        assert!([7, u64::MAX].iter().all(|slot| host.host(*slot).is_none()));
        let guest = Window::map(&file, 0).unwrap();
        // Words that a killed host has left.
        let left = guest.host(2).unwrap();
        for word in [&left.status, &left.ticket, &left.hints] {
            word.store(2, Ordering::Release);
        }
        let doorbell = Doorbell { valid: true, peer: 0, vector: 0 };
        host.offer(doorbell);
        assert_eq!((left.status(), left.ticket()), (Status::Disabled, 0));
        assert_eq!(left.hints.load(Ordering::Acquire), 0);
        assert_eq!(guest.header().doorbell.load(Ordering::Acquire), doorbell.to_word());
        assert!(guest.host(6).unwrap().is_compatible() && !guest.is_in_use());
        host.host(3).unwrap().status.store(Status::Boosted.to_word(), Ordering::Release);
        host.host(3).unwrap().hints.store(1, Ordering::Release);
        assert_eq!(guest.host(3).unwrap().status(), Status::Boosted);
        assert!(guest.is_in_use());

        let vcpu = Identity { online: true, apic_id: 5 };
        guest.guest(2).unwrap().report.vcpu.store(vcpu.to_word(), Ordering::Release);
        // It says that it has more vCPUs than fit.
        guest.header().vcpus.store(u64::MAX, Ordering::Release);
        assert_eq!(host.online(), [], "not registered");
        guest.header().guest.store(Header::OURS.to_word(), Ordering::Release);
        assert_eq!(host.online(), [(2, 5)]);
        drop(host);
        assert_eq!(guest.host(3).unwrap().status(), Status::Disabled);
        assert_eq!(guest.host(3).unwrap().hints.load(Ordering::Acquire), 0);
        assert_eq!(guest.header().host.load(Ordering::Acquire), 0);
    }

    #[test]
    fn memory_that_a_guest_has_taken_back_is_not_written() {
        let (file, guest) = registered();
        let host = Window::lent(&file, 0, 7).unwrap();
        host.offer(Doorbell::default());
        assert!(guest.has_host() && host.host(3).is_some());
        // The driver goes, hears that this was seen, and uses the memory for something else.
        guest.header().guest.store(0, Ordering::Release);
        assert!(host.host(3).is_none() && host.is_returned());
        assert!(guest.has_host(), "who looks does not give back");
        host.give_back();
        assert_eq!(guest.header().host.load(Ordering::Acquire), 0);
        let words: Vec<u8> = (0..1 << 16).map(|i| i as u8).collect();
        file.write_all_at(&words, 0).unwrap();
        host.offer(Doorbell::default());
        assert!(host.host(3).is_none());
        drop(host);
        let mut after = vec![0; words.len()];
        file.read_exact_at(&mut after, 0).unwrap();
        assert!(after == words);
    }

    #[test]
    fn who_has_not_offered_gives_nothing_back() {
        let (file, guest) = registered();
        let [host, other] = [(); 2].map(|()| Window::lent(&file, 0, 7).unwrap());
        host.offer(Doorbell::default());
        guest.header().guest.store(0, Ordering::Release);
        assert!(other.is_returned());
        drop(other);
        assert!(guest.has_host());
        drop(host);
        assert!(!guest.has_host());
    }

    #[test]
    fn a_window_that_ends_takes_nothing_from_the_next_one_in_its_place() {
        let (file, guest) = registered();
        let register = |word| guest.header().guest.store(word, Ordering::Release);
        let before = Window::lent(&file, 0, 7).unwrap();
        before.offer(Doorbell::default());
        register(0);
        assert!(before.is_returned());
        register(Header::OURS.to_word());
        let next = Window::lent(&file, 0, 7).unwrap();
        next.offer(Doorbell::default());
        drop(before);
        assert!(guest.has_host() && next.host(3).is_some());
    }

    #[test]
    fn a_window_whose_file_becomes_shorter_is_torn_and_nothing_worse() {
        let (file, window) = window(1 << 16);
        let other = self::window(1 << 16).1;
        window.offer(Doorbell::default());
        file.set_len(0).unwrap();
        assert!(!window.is_torn());
        window.host(3).unwrap().ticket.store(1, Ordering::Release);
        assert!(window.is_torn());
        assert_eq!(window.guest(6).unwrap().area.read_deadline_tsc().bounded(9), 0);
        assert!(!window.guest_side().is_registered());
        assert!(!other.is_torn());
        // However many come and go, none of them is taken for that one.
        drop(window);
        for _ in 0..10_000 {
            assert!(!self::window(1 << 14).1.is_torn());
        }
    }

    #[test]
    fn a_window_in_memory_of_huge_pages_is_mapped_with_the_whole_page() {
        const MIB: u64 = 1 << 20;
        assert_eq!(super::whole(3 * 4096, 4096, 4096), (3 * 4096, 4096));
        assert_eq!(super::whole(6 * MIB, 3 * MIB, 2 * MIB), (6 * MIB, 4 << 20));
        assert_eq!(super::whole(1026 * MIB, 4 * MIB, 1 << 30), (1 << 30, 1 << 30));
        assert_eq!(super::whole(2046 * MIB, 4 * MIB, 1 << 30), (1 << 30, 2 << 30));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB;
        let Ok(memory) = memfd_create("vcoop-test", flags) else {
            return Skip::because("no pages of 1 GiB").tell();
        };
        let memory = std::fs::File::from(memory);
        memory.set_len(1 << 30).unwrap();
        // This host may have none to spare. It would refuse a part of one in any case.
        if let Err(why) = Window::lent(&memory, 2 * MIB, 1) {
            assert_eq!(why.raw_os_error(), Some(libc::ENOMEM));
        }
    }

    #[test]
    fn what_is_no_window_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096 * 3 - 1).unwrap();
        assert!(Window::map(&file, 0).is_err());
        file.set_len(4096 * 3).unwrap();
        assert_eq!(Window::map(&file, 0).unwrap().slots(), 1);
        assert!(Window::map(&file, 4096).is_err() && Window::map(&file, u64::MAX).is_err());
        assert!(Window::map(&std::fs::File::open("/dev/zero").unwrap(), 0).is_err());
    }
}
