//! A window: the pages of all vCPUs of a VM in one piece of memory that host and guest share.
//!
//! A VMM that knows nothing of this interface has no CPUID leaves and no MSR for it. But most can share
//! a piece of memory with a guest: the second BAR of an ivshmem device, a virtio-pmem device, or pages
//! of the guest's own memory where that is a file. Discovery and registration are in its first page:
//!
//! ```text
//! page 0        WindowHeader
//! page 1 + 2n   GuestPage of vCPU n: its GuestArea, and what its driver reports
//! page 2 + 2n   HostArea of vCPU n
//! ```
//!
//! vCPU `n` is the guest's CPU number; [`GuestReport::vcpu`] has its APIC id, by which a host tells which
//! of its threads that is.
//!
//! A guest registers by storing [`WindowHeader::guest`], after everything else that it stores there, and ends its
//! registration by storing 0. A host announces itself by [`WindowHeader::host`] likewise. Neither waits for the other:
//! the second to come finds the first.
//!
//! The guest can write all of it, the host's areas too. So a host keeps its own state elsewhere, and never reads what
//! it has written. It trusts no number in the header: the number of pages follows from the size of its own mapping. A
//! guest that destroys its window loses its own boosts.
//!
//! A guest rings by a 32-bit store of [`Doorbell::value`] at offset [`DOORBELL_REGISTER`] of the device's first BAR. It
//! rings at the end of a boost (instead of writing [`MSR_NOTIFY`](crate::discovery::MSR_NOTIFY)), when a deadline
//! becomes earlier than the host can know, and after it has exchanged a [`Remote`](crate::Remote). Without a doorbell
//! the host samples the words.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{GuestArea, PAGE_SIZE};
use crate::taint::FromGuest;
use crate::words::{Header, Word};

/// Most vCPUs of a window.
pub const MOST_SLOTS: u64 = 512;

/// Smallest window: one vCPU.
pub const LEAST_BYTES: u64 = 3 * PAGE_SIZE;

/// Alignment of a window in guest memory, so that a host that searches for one need not look at every page.
pub const RAM_ALIGNMENT: u64 = 2 << 20;

/// PCI vendor and device of an ivshmem device.
pub const IVSHMEM_ID: (u16, u16) = (0x1af4, 0x1110);

/// BAR of an ivshmem device that holds the window.
pub const IVSHMEM_WINDOW_BAR: u8 = 2;

/// Offset of the doorbell in BAR 0 of an ivshmem device, in bytes.
pub const DOORBELL_REGISTER: u64 = 12;

/// How many vCPUs a window of `bytes` has room for. 0: `bytes` are too few for a window.
pub const fn slots(bytes: u64) -> u64 {
    let slots = bytes.saturating_sub(PAGE_SIZE) / (2 * PAGE_SIZE);
    if slots < MOST_SLOTS { slots } else { MOST_SLOTS }
}

/// Offset of a vCPU's [`GuestPage`] in the window, in bytes.
pub const fn guest_page(vcpu: u64) -> u64 {
    PAGE_SIZE * (1 + 2 * vcpu)
}

/// Offset of a vCPU's [`HostArea`](crate::HostArea) in the window, in bytes.
pub const fn host_page(vcpu: u64) -> u64 {
    PAGE_SIZE * (2 + 2 * vcpu)
}

/// Page 0. The host writes the first half, the guest the second; a half is valid while its header is there.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct WindowHeader {
    /// Host: [`Header`]; 0: no host.
    pub host: AtomicU64,
    /// Host: [`Doorbell`].
    pub doorbell: AtomicU64,
    reserved0: [AtomicU64; 6],
    /// Guest: [`Header`]; 0: no driver.
    pub guest: AtomicU64,
    /// Guest: the vCPUs are numbered below this.
    pub vcpus: AtomicU64,
    /// Guest: ticks of its TSC in a millisecond.
    pub tsc_khz: AtomicU64,
    /// Guest: a number that differs from that of the driver's previous registration.
    pub registration: AtomicU64,
    reserved1: [AtomicU64; 4],
}

/// What the guest wrote in the header, each word read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestSide {
    /// [`Header`].
    pub header: FromGuest<u64>,
    /// vCPUs are numbered below this.
    pub vcpus: FromGuest<u64>,
    /// Ticks of the TSC in a millisecond.
    pub tsc_khz: FromGuest<u64>,
    /// Differs from that of the previous registration.
    pub registration: FromGuest<u64>,
}

impl GuestSide {
    /// Whether a driver of our ABI version and protocol is registered.
    pub fn is_registered(&self) -> bool {
        self.header.decode::<Header>().is_compatible()
    }
}

impl WindowHeader {
    /// Host: the guest's half. The header is read first, so that everything stored before it is seen.
    pub fn read_guest(&self) -> GuestSide {
        let word = |word: &AtomicU64| FromGuest::new(word.load(Ordering::Acquire));
        GuestSide {
            header: word(&self.guest),
            vcpus: word(&self.vcpus),
            tsc_khz: word(&self.tsc_khz),
            registration: word(&self.registration),
        }
    }
}

/// How a guest rings.
///
/// ```text
/// 63      62   32 31      16 15     0
/// +-------+------+----------+--------+
/// | valid | 0    | peer     | vector |
/// +-------+------+----------+--------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doorbell {
    /// There is a doorbell.
    pub valid: bool,
    /// The host's number among the peers of the device.
    pub peer: u16,
    /// Which of the host's vectors.
    pub vector: u16,
}

impl Doorbell {
    /// Bit: there is a doorbell.
    pub const VALID: u64 = 1 << 63;

    /// What to store in the register.
    pub const fn value(self) -> u32 {
        (self.peer as u32) << 16 | self.vector as u32
    }
}

impl Word for Doorbell {
    fn from_word(word: u64) -> Self {
        Self { valid: word & Self::VALID != 0, peer: (word >> 16) as u16, vector: word as u16 }
    }

    fn to_word(self) -> u64 {
        u64::from(self.value()) | if self.valid { Self::VALID } else { 0 }
    }
}

/// Which vCPU of the VM a slot belongs to.
///
/// ```text
/// 63       62    32 31           0
/// +--------+-------+-------------+
/// | online | 0     | APIC id     |
/// +--------+-------+-------------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The guest uses the vCPU.
    pub online: bool,
    /// APIC id of the vCPU.
    pub apic_id: u32,
}

impl Identity {
    /// Bit: the guest uses the vCPU.
    pub const ONLINE: u64 = 1 << 63;
}

impl Word for Identity {
    fn from_word(word: u64) -> Self {
        Self { online: word & Self::ONLINE != 0, apic_id: word as u32 }
    }

    fn to_word(self) -> u64 {
        u64::from(self.apic_id) | if self.online { Self::ONLINE } else { 0 }
    }
}

/// What a driver reports of a vCPU. All but the first are counts since the registration.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct GuestReport {
    /// [`Identity`].
    pub vcpu: AtomicU64,
    /// Events given to the guest half.
    pub events: AtomicU64,
    /// Times the vCPU rang at the end of a boost.
    pub notified: AtomicU64,
    /// Urgent deadlines that were published.
    pub deadlines: AtomicU64,
    /// Deadlines that had passed unused and were dropped.
    pub stale: AtomicU64,
    /// Urgent timers that were not tracked, for lack of room.
    pub dropped: AtomicU64,
    /// Sum of the latencies below, in nanoseconds.
    pub latency_sum_ns: AtomicU64,
    /// The largest of the latencies below, in nanoseconds.
    pub latency_max_ns: AtomicU64,
    reserved: [AtomicU64; 8],
    /// Latencies of urgent tasks: from when the timer that woke the task was due to when the task ran.
    /// A count for each [bucket](latency_bucket).
    pub latency: [AtomicU64; LATENCY_BUCKETS],
}

/// The guest's page of a vCPU.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct GuestPage {
    /// The words of the protocol.
    pub area: GuestArea,
    /// What the driver reports.
    pub report: GuestReport,
}

/// Buckets of [`GuestReport::latency`].
pub const LATENCY_BUCKETS: usize = 352;

/// log2 of the width of the narrowest bucket, in nanoseconds.
const UNIT_BITS: u32 = 6;
/// log2 of the number of buckets for each power of two: neighbours differ by 6 % at most.
const SUB_BITS: u32 = 4;
/// Number of buckets of the narrowest width.
const LINEAR: u64 = 2 << SUB_BITS;

/// The bucket of a latency: 32 buckets of 64 ns, then 16 for each power of two, up to 2.1 s.
pub const fn latency_bucket(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    if units < LINEAR {
        return units as usize;
    }
    let octave = units.ilog2() - SUB_BITS;
    let bucket = LINEAR + ((octave - 1) as u64) * (LINEAR / 2) + (units >> octave) - LINEAR / 2;
    if bucket < LATENCY_BUCKETS as u64 { bucket as usize } else { LATENCY_BUCKETS - 1 }
}

/// The latency at which a bucket begins, in nanoseconds.
pub const fn latency_from(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < LINEAR {
        return bucket << UNIT_BITS;
    }
    let octave = (bucket - LINEAR) / (LINEAR / 2) + 1;
    let within = (bucket - LINEAR) % (LINEAR / 2) + LINEAR / 2;
    within << octave << UNIT_BITS
}

const _: () = {
    assert!(size_of::<WindowHeader>() == 128);
    assert!(offset_of!(WindowHeader, doorbell) == 8);
    assert!(offset_of!(WindowHeader, guest) == 64);
    assert!(offset_of!(WindowHeader, vcpus) == 72);
    assert!(offset_of!(WindowHeader, tsc_khz) == 80);
    assert!(offset_of!(WindowHeader, registration) == 88);
    assert!(size_of::<GuestPage>() as u64 == PAGE_SIZE);
    assert!(offset_of!(GuestPage, report) == 128);
    assert!(offset_of!(GuestReport, latency) == 128);
};

#[cfg(test)]
mod tests {
    use super::{
        Doorbell, LATENCY_BUCKETS, LEAST_BYTES, MOST_SLOTS, WindowHeader, guest_page, host_page,
        latency_bucket, latency_from, slots,
    };
    use crate::layout::PAGE_SIZE;
    use crate::words::{Header, Word};
    use core::sync::atomic::Ordering;

    #[test]
    fn every_latency_is_in_the_bucket_that_says_so() {
        for bucket in 0..LATENCY_BUCKETS {
            let from = latency_from(bucket);
            assert_eq!(latency_bucket(from), bucket);
            if bucket > 0 {
                assert_eq!(latency_bucket(from - 1), bucket - 1);
                assert!(from > latency_from(bucket - 1));
            }
            if bucket >= 32 {
                let width = latency_from(bucket + 1) - from;
                assert!(width * 16 <= from, "{bucket}: {from} {width}");
            }
        }
        assert_eq!(latency_bucket(u64::MAX), LATENCY_BUCKETS - 1);
        assert_eq!(latency_from(LATENCY_BUCKETS), 2_147_483_648);
    }

    #[test]
    fn a_window_has_room_for_as_many_pairs_as_fit() {
        assert_eq!((slots(0), slots(4096), slots(LEAST_BYTES - 1)), (0, 0, 0));
        assert_eq!((slots(LEAST_BYTES), slots(1 << 20)), (1, 127));
        assert_eq!(slots(u64::MAX), MOST_SLOTS);
    }

    #[test]
    fn pages_follow_each_other_and_fill_the_window() {
        let mut end = PAGE_SIZE;
        for vcpu in 0..3 {
            assert_eq!((guest_page(vcpu), host_page(vcpu)), (end, end + PAGE_SIZE));
            end += 2 * PAGE_SIZE;
            assert_eq!(slots(end), vcpu + 1);
        }
    }

    #[test]
    fn a_driver_is_there_while_its_header_is() {
        let header = WindowHeader::default();
        header.vcpus.store(4, Ordering::Relaxed);
        assert!(!header.read_guest().is_registered());
        header.guest.store(Header::OURS.to_word(), Ordering::Relaxed);
        let side = header.read_guest();
        assert!(side.is_registered());
        assert_eq!(side.vcpus.bounded(9), 4);
    }

    #[test]
    fn a_doorbell_is_rung_by_peer_and_vector() {
        assert_eq!(Doorbell { valid: true, peer: 7, vector: 3 }.value(), 0x7_0003);
    }
}
