//! Where each word is.
//!
//! The two areas are separate pages, because the guest may write one and must not write the other: the host maps its
//! area read-only into the guest. Inside an area the header has the first cache line, and the words that change have
//! the following ones, so that a store to a hot word never invalidates the other side's line of constants.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::taint::FromGuest;
use crate::words::{BoostRequest, CsState, Header, Hints, Intent, Status, Word};

/// Size and alignment of the memory that holds an area. The rest of the page is reserved and zero.
pub const PAGE_SIZE: u64 = 4096;

/// Words of [`HostArea::preferred`]: one bit a vCPU, 256 in all.
pub const PREFERRED_WORDS: usize = 4;

/// The guest's half: written by its vCPU, read by the host.
///
/// The fields are atomics because host and guest use them at the same time; each has one writer.
/// They are public for the guest that stores them. A host loads them by the `read` methods only,
/// which hand them out as [`FromGuest`].
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct GuestArea {
    /// [`Header`].
    pub header: AtomicU64,
    reserved0: [u64; 7],
    /// [`Intent`].
    pub intent: AtomicU64,
    /// [`CsState`].
    pub cs: AtomicU64,
    /// [`BoostRequest`].
    pub request: AtomicU64,
    /// Highest interrupt ticket that the guest has handled.
    pub ack: AtomicU64,
    /// Guest TSC of the next timer deadline; 0 = none. A guest that cannot tell which timers are urgent publishes the
    /// next of all timers; other guests publish the next that wakes an urgent task.
    pub deadline_tsc: AtomicU64,
    /// The last [`ping`](HostArea::ping) that the guest has seen.
    pub pong: AtomicU64,
    /// Guest TSC just before it stored `pong`.
    pub pong_tsc: AtomicU64,
    /// [`Remote`](crate::Remote). The one word that has several writers: every vCPU that puts an urgent
    /// task on this one's queue exchanges it atomically.
    pub remote: AtomicU64,
}

/// The host's half: written by the host, read by the guest.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct HostArea {
    /// [`Header`].
    pub header: AtomicU64,
    reserved0: [u64; 7],
    /// [`Status`].
    pub status: AtomicU64,
    /// Number of the last interrupt for which the host boosted, or would have boosted; starts at 0, never goes back
    /// while the guest is registered.
    pub ticket: AtomicU64,
    /// Boosted time left in the vCPU's budget when the host last published it, in nanoseconds.
    pub budget_left_ns: AtomicU64,
    /// Time the vCPU was runnable and did not run, since its creation, in nanoseconds.
    pub steal_ns: AtomicU64,
    /// [`Hints`].
    pub hints: AtomicU64,
    /// A question for the guest's clock: a number other than 0 and the last one. The guest answers at its next event,
    /// in [`pong`](GuestArea::pong). A host that knows the guest's clock leaves it 0.
    pub ping: AtomicU64,
    /// Not 0: the host does not see this vCPU halt, and asks the guest to ring when the vCPU goes idle. Only a host
    /// whose doorbell needs no synchronous exit stores it; others leave it 0.
    pub tell_idle: AtomicU64,
    reserved1: u64,
    /// Bit `n % 64` of word `n / 64`: the host prefers that vCPU `n` is used.
    pub preferred: [AtomicU64; PREFERRED_WORDS],
    reserved2: [u64; 4],
}

const _: () = {
    assert!(size_of::<GuestArea>() == 128 && size_of::<HostArea>() == 192);
    assert!(offset_of!(GuestArea, header) == 0);
    assert!(offset_of!(GuestArea, intent) == 64);
    assert!(offset_of!(GuestArea, cs) == 72);
    assert!(offset_of!(GuestArea, request) == 80);
    assert!(offset_of!(GuestArea, ack) == 88);
    assert!(offset_of!(GuestArea, deadline_tsc) == 96);
    assert!(offset_of!(GuestArea, pong) == 104);
    assert!(offset_of!(GuestArea, pong_tsc) == 112);
    assert!(offset_of!(GuestArea, remote) == 120);
    assert!(offset_of!(HostArea, header) == 0);
    assert!(offset_of!(HostArea, status) == 64);
    assert!(offset_of!(HostArea, ticket) == 72);
    assert!(offset_of!(HostArea, budget_left_ns) == 80);
    assert!(offset_of!(HostArea, steal_ns) == 88);
    assert!(offset_of!(HostArea, hints) == 96);
    assert!(offset_of!(HostArea, ping) == 104);
    assert!(offset_of!(HostArea, tell_idle) == 112);
    assert!(offset_of!(HostArea, preferred) == 128);
    // A little-endian word is a native one only here; the crate would need byte swaps elsewhere.
    assert!(cfg!(target_endian = "little"));
};

/// One reading of the words a boost decision needs. Each word was read once; the four do not belong
/// to one moment unless the vCPU was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestWords {
    /// [`Intent`].
    pub intent: FromGuest<u64>,
    /// [`CsState`].
    pub cs: FromGuest<u64>,
    /// [`BoostRequest`].
    pub request: FromGuest<u64>,
    /// Highest handled ticket.
    pub ack: FromGuest<u64>,
}

impl GuestWords {
    /// All zero: a guest that has said nothing, or no guest.
    pub const SILENT: Self = Self::from_raw(0, 0, 0, 0);

    /// Wraps four words that were read from a guest.
    pub const fn from_raw(intent: u64, cs: u64, request: u64, ack: u64) -> Self {
        Self {
            intent: FromGuest::new(intent),
            cs: FromGuest::new(cs),
            request: FromGuest::new(request),
            ack: FromGuest::new(ack),
        }
    }

    /// The words that an honest guest with these facts shows (simulation, tests).
    pub fn new(intent: Intent, cs: CsState, request: BoostRequest, ack: u64) -> Self {
        Self::from_raw(intent.to_word(), cs.to_word(), request.to_word(), ack)
    }
}

impl GuestArea {
    /// Host: the words of a boost decision, each read once. Acquire pairs with the guest's release
    /// stores. To decide about a vCPU that is running, call [`fence`](Self::fence) first.
    ///
    /// The ack is read first: a guest stores it last, so an ack that covers an interrupt comes
    /// with the facts that this interrupt left behind, or newer ones.
    pub fn read(&self) -> GuestWords {
        let ack = self.ack.load(Ordering::Acquire);
        GuestWords::from_raw(
            self.intent.load(Ordering::Acquire),
            self.cs.load(Ordering::Acquire),
            self.request.load(Ordering::Acquire),
            ack,
        )
    }

    /// Host: the deadline, read once, in guest TSC; 0 = none.
    pub fn read_deadline_tsc(&self) -> FromGuest<u64> {
        FromGuest::new(self.deadline_tsc.load(Ordering::Acquire))
    }

    /// Host: the answer to a [`ping`](HostArea::ping), and the guest's TSC when it was given. The answer is
    /// read first, so the time belongs to it or to a later one.
    pub fn read_pong(&self) -> (FromGuest<u64>, FromGuest<u64>) {
        let pong = self.pong.load(Ordering::Acquire);
        (FromGuest::new(pong), FromGuest::new(self.pong_tsc.load(Ordering::Acquire)))
    }

    /// Host: what other vCPUs have put on this vCPU's queue, read once.
    pub fn read_remote(&self) -> FromGuest<u64> {
        FromGuest::new(self.remote.load(Ordering::Acquire))
    }

    /// Either side: the full fence of the handshake, between a side's own stores and its loads of the other side's
    /// words (see the crate's documentation).
    pub fn fence() {
        fence(Ordering::SeqCst);
    }
}

impl HostArea {
    /// Guest: the status. Acquire pairs with the host's release store.
    pub fn status(&self) -> Status {
        Status::from_word(self.status.load(Ordering::Acquire))
    }

    /// Guest: the last ticket.
    pub fn ticket(&self) -> u64 {
        self.ticket.load(Ordering::Acquire)
    }

    /// Guest: the hints.
    pub fn hints(&self) -> Hints {
        Hints::from_word(self.hints.load(Ordering::Acquire))
    }

    /// Guest: whether the host's ABI version and protocol are ours.
    pub fn is_compatible(&self) -> bool {
        Header::from_word(self.header.load(Ordering::Acquire)).is_compatible()
    }

    /// Guest: whether the host prefers that vCPU `vcpu` is used. vCPUs beyond the mask always are preferred.
    pub fn is_preferred(&self, vcpu: usize) -> bool {
        self.preferred
            .get(vcpu / 64)
            .is_none_or(|word| word.load(Ordering::Acquire) >> (vcpu % 64) & 1 != 0)
    }
}
