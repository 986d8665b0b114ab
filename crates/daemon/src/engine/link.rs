//! State of a guest that cooperates.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vcoop_abi::{FromGuest, GuestArea, GuestWords, Hints, Intent, Remote, Status, Word, window};
use vcoop_policy::config::{AdvanceConfig, Ns};
use vcoop_policy::deadline;
use vcoop_vmm::VcpuThread;
use vcoop_window::{Clock, VcpuNumbers, Window};

use super::{Shares, WindowFound};
use crate::port::Page;

/// Rate limit of the looks at vCPUs' words that a guest causes by ringing: a burst (beside one look for each vCPU), and
/// a rate a second that grows with the number of vCPUs. A vCPU with an urgent task each millisecond rings for each
/// timer and each end. A look takes some microseconds at real-time priority; the largest rate is a tenth of the
/// engine's CPU.
const LOOKS_BURST: f64 = 50.0;
const LOOKS_PER_S: f64 = 5_000.0;
const LOOKS_PER_S_OF_VCPU: f64 = 2_500.0;
const MOST_LOOKS_PER_S: f64 = 20_000.0;

/// Least time between two looks at a guest that cannot ring.
pub(super) const NS_PER_LOOK: Ns = (1e9 / MOST_LOOKS_PER_S) as Ns;

/// Number of vCPUs whose words can be compared with the last ones for the cost of one look.
const COMPARED_FOR_A_LOOK: usize = 16;

/// Cost of a vCPU whose driver has registered anew, in looks.
const LOOKS_TO_MEET: usize = 4;

/// Least time for which the doorbell of a guest that rang too often is ignored.
const DEAF_NS: Ns = 5_000_000;

/// Time between two searches for the window of a guest that withdrew it: each searches all of the guest's memory.
const SEARCH_NS: Ns = 3_000_000_000;

/// The window of a guest.
#[derive(Debug)]
pub(super) struct Link {
    window: Arc<Window>,
    /// Its address in the VMM's memory.
    address: Option<u64>,
    /// Eventfd that the guest rings; `None`: its words are sampled.
    pub(super) bell: Option<Arc<OwnedFd>>,
    /// Ticks of this host's TSC in a millisecond.
    host_khz: u32,
    /// The driver's registration that the other fields are about; `None`: there is no driver.
    registration: Option<u64>,
    clock: Clock,
    ping: u64,
    lead: Ns,
    vcpus: Vec<LinkedVcpu>,
    /// Looks left in the rate limit.
    looks: f64,
    counted: Ns,
    /// When to search for the window again if the guest withdrew it; the largest time while a search runs.
    search_at: Ns,
}

/// What a guest says of a vCPU: its words, its deadline, what others have put on its queue, and the time of its last
/// answer about the clock, which a vCPU stores before it rings.
type VcpuReading = (GuestWords, [FromGuest<u64>; 3]);

/// A vCPU of the guest.
#[derive(Clone, Copy, Debug, Default)]
struct LinkedVcpu {
    /// What was said when news was last looked for.
    said: Option<VcpuReading>,
    /// Slot of its pages in the window.
    slot: Option<u64>,
    /// The last deadline for which it was boosted, in guest TSC.
    served: u64,
    /// Count of tasks that were put on its queue, as of the last look.
    remote: u64,
}

/// What to do about a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// Nothing: there is no deadline, or the vCPU was boosted for it.
    None,
    /// Look again at this time.
    Later(Ns),
    /// Boost now.
    Now,
}

impl Link {
    pub(super) fn new(shares: Shares, advance: AdvanceConfig, vcpus: usize, now: Ns) -> Self {
        let Shares { window, address, bell, host_khz } = shares;
        Self {
            window,
            address,
            bell,
            host_khz,
            registration: None,
            clock: Clock::new(1, 1),
            ping: 0,
            lead: deadline::lead(advance),
            vcpus: vec![LinkedVcpu::default(); vcpus],
            looks: LOOKS_BURST,
            counted: now,
            search_at: 0,
        }
    }

    /// Whether to search for the window now: a guest that has booted again, or was suspended, has another one in its
    /// memory. After `true` the caller reports the result by [`Self::searched`].
    pub(super) fn is_sought(&mut self, now: Ns) -> bool {
        let is_sought = self.window.is_returned() && self.search_at <= now;
        if is_sought {
            self.search_at = Ns::MAX;
        }
        is_sought
    }

    /// A search has ended. The state of the old window is dropped by [`Self::changed`].
    pub(super) fn searched(&mut self, found: Option<WindowFound>, now: Ns) {
        self.search_at = now.saturating_add(SEARCH_NS);
        if let Some((window, address)) = found {
            (self.window, self.address, self.registration) = (window, address, None);
        }
    }

    /// Whether a driver has come, gone, or registered anew since the last look. If so, the state of its vCPUs is read
    /// anew. `threads`: the vCPUs' threads, whose numbers tell which slot is whose.
    pub(super) fn changed(&mut self, threads: &[VcpuThread]) -> bool {
        let now = registration(&self.window);
        let number = |of: &VcpuThread| VcpuNumbers { index: of.index, kvm_id: of.kvm_id };
        let slots = self.window.slots_of(&threads.iter().map(number).collect::<Vec<_>>());
        let same = self.registration == now
            && self.vcpus.iter().map(|of| of.slot).eq(slots.iter().copied());
        if same {
            return false;
        }
        if self.registration != now {
            let khz = self.window.guest_side().tsc_khz.bounded(u64::from(u32::MAX));
            self.clock = Clock::new(khz, self.host_khz);
        }
        self.registration = now;
        let remote = |slot| self.window.guest(slot).map_or(0, |page| sent(&page.area));
        let of = |slot: Option<u64>| LinkedVcpu {
            slot,
            remote: slot.map_or(0, remote),
            ..LinkedVcpu::default()
        };
        self.vcpus = slots.into_iter().map(of).collect();
        true
    }

    /// Whether the guest has a driver, as of the last look.
    pub(super) fn is_registered(&self) -> bool {
        self.registration.is_some()
    }

    /// Whether a driver has come, gone or registered anew, so that [`Self::changed`] is to be called.
    pub(super) fn is_outdated(&self) -> bool {
        self.registration != registration(&self.window)
    }

    /// The slot of a vCPU, if its guest has told which it is.
    fn slot(&self, place: usize) -> Option<u64> {
        self.registration?;
        self.vcpus.get(place)?.slot
    }

    /// The pages of a vCPU, if its guest's driver reports on it.
    pub(super) fn pages(&self, place: usize) -> Option<Page<'_>> {
        let slot = self.slot(place)?;
        Some(Page { guest: &self.window.guest(slot)?.area, host: self.window.host(slot)? })
    }

    /// Address of the guest's page of a vCPU in the VMM's memory, if its guest's driver reports on it.
    pub(super) fn address(&self, place: usize) -> Option<u64> {
        Some(self.address? + window::guest_page(self.slot(place)?))
    }

    /// How early a vCPU is boosted for a deadline.
    pub(super) fn lead(&self) -> Ns {
        self.lead
    }

    /// Whether the window's address in the VMM's memory is known.
    pub(super) fn has_address(&self) -> bool {
        self.address.is_some()
    }

    /// No policy is in force: the status of all vCPUs becomes disabled.
    pub(super) fn end(&self) {
        for host in (0..self.window.slots()).filter_map(|slot| self.window.host(slot)) {
            host.status.store(Status::Disabled.to_word(), Ordering::Release);
        }
    }

    /// Asks a vCPU to ring when it goes idle (`wanted`), or not. Returns whether it will ring.
    pub(super) fn ask_idle(&self, place: usize, wanted: bool) -> bool {
        let (Some(page), true) = (self.pages(place), self.bell.is_some()) else { return false };
        page.host.tell_idle.store(wanted.into(), Ordering::Release);
        GuestArea::fence();
        wanted && !page.guest.read().intent.decode::<Intent>().idle
    }

    /// Asks the guest to use only its first `width` vCPUs; `None`: all.
    pub(super) fn prefer(&self, width: Option<u32>) {
        let hints = match width {
            Some(_) => Hints { preferred_valid: true, steal_valid: true, ..Hints::default() },
            None => Hints::default(),
        };
        for host in (0..self.window.slots()).filter_map(|slot| self.window.host(slot)) {
            for (n, word) in (0_u32..).zip(&host.preferred) {
                let first = width.unwrap_or(0).saturating_sub(64 * n).min(64);
                let bits = u64::MAX.checked_shr(64 - first).unwrap_or(0);
                word.store(bits, Ordering::Release);
            }
            host.hints.store(hints.to_word(), Ordering::Release);
        }
    }

    /// Publishes to a vCPU the time stolen since its thread began.
    pub(super) fn tell_steal(&self, place: usize, steal_ns: Ns) {
        if let Some(page) = self.pages(place) {
            page.host.steal_ns.store(steal_ns, Ordering::Release);
        }
    }

    /// If the driver has gone, stops using its window.
    pub(super) fn give_back(&self) {
        if !self.is_registered() {
            self.window.give_back();
        }
    }

    /// Whether the guest has answered a question for its clock.
    pub(super) fn has_clock(&self) -> bool {
        self.clock.is_set()
    }

    /// Asks every vCPU for its clock.
    pub(super) fn ask_clock(&mut self) {
        self.ping += 1;
        for of in &self.vcpus {
            if let Some(host) = of.slot.and_then(|slot| self.window.host(slot)) {
                host.ping.store(self.ping, Ordering::Release);
            }
        }
    }

    /// Reads a vCPU's answer, if there is one, at time `now`.
    pub(super) fn read_clock(&mut self, place: usize, now: Ns) {
        let Some(page) = self.pages(place) else { return };
        let (pong, tsc) = page.guest.read_pong();
        // An answer to an earlier question only seems to have taken longer, which does no harm.
        if self.ping > 0 && pong.bounded(u64::MAX) > 0 {
            self.clock.sample(tsc.bounded(u64::MAX), now);
        }
    }

    /// Whether other vCPUs have put urgent tasks on a vCPU's queue since the last call.
    pub(super) fn was_sent_tasks(&mut self, place: usize) -> bool {
        let Some(count) = self.pages(place).map(|page| sent(page.guest)) else { return false };
        std::mem::replace(&mut self.vcpus[place].remote, count) != count
    }

    /// The next deadline of a vCPU, in guest TSC; 0: none.
    fn deadline_tsc(&self, place: usize) -> Option<u64> {
        Some(self.pages(place)?.guest.read_deadline_tsc().bounded(u64::MAX))
    }

    /// What to do about the next deadline of a vCPU with this much budget left.
    pub(super) fn deadline(&self, place: usize, now: Ns, budget_left: Ns) -> Deadline {
        let Some(tsc) = self.deadline_tsc(place) else { return Deadline::None };
        let Some(at) = (tsc != 0).then(|| self.clock.time_of(tsc)).flatten() else {
            return Deadline::None;
        };
        let served = self.vcpus[place].served == tsc;
        match deadline::boost_from(at, served, now, budget_left, self.lead) {
            None => Deadline::None,
            Some(from) if from > now => Deadline::Later(from),
            Some(_) => Deadline::Now,
        }
    }

    /// A vCPU is boosted for its deadline. Returns whether for the first time.
    pub(super) fn serve(&mut self, place: usize) -> bool {
        let Some(tsc) = self.deadline_tsc(place) else { return false };
        std::mem::replace(&mut self.vcpus[place].served, tsc) != tsc
    }

    /// The vCPUs whose words have changed since the last call; all, if none has.
    pub(super) fn news(&mut self) -> Vec<usize> {
        let all = 0..self.vcpus.len();
        let is_new = |place: &usize| {
            let said = self.pages(*place).map(|page| {
                let (_, answered) = page.guest.read_pong();
                let others = [page.guest.read_deadline_tsc(), page.guest.read_remote(), answered];
                (page.guest.read(), others)
            });
            std::mem::replace(&mut self.vcpus[*place].said, said) != said
        };
        let new: Vec<usize> = all.clone().filter(is_new).collect();
        if new.is_empty() { all.collect() } else { new }
    }

    /// Cost of looking at all vCPUs, in looks.
    pub(super) fn cost_of_all(&self) -> usize {
        self.vcpus.len() * if self.is_outdated() { LOOKS_TO_MEET } else { 1 }
    }

    /// Cost of a ring after which this many vCPUs have news, in looks.
    pub(super) fn cost_of_ring(&self, news: usize) -> usize {
        if self.is_outdated() {
            self.cost_of_all()
        } else {
            news + self.vcpus.len() / COMPARED_FOR_A_LOOK
        }
    }

    /// Charges looks to the guest's rate limit.
    ///
    /// # Errors
    ///
    /// The limit is exceeded: how long to ignore the guest's doorbell.
    pub(super) fn charge(&mut self, now: Ns, looks: usize) -> Result<(), Ns> {
        let since = now.saturating_sub(std::mem::replace(&mut self.counted, now));
        let vcpus = self.vcpus.len() as f64;
        let per_s = (vcpus * LOOKS_PER_S_OF_VCPU).clamp(LOOKS_PER_S, MOST_LOOKS_PER_S);
        let all = self.looks + since as f64 / 1e9 * per_s;
        self.looks = all.min(LOOKS_BURST + vcpus) - looks as f64;
        let debt_ns = (-self.looks / per_s * 1e9) as Ns;
        if self.looks > 0.0 { Ok(()) } else { Err(debt_ns.max(DEAF_NS)) }
    }
}

/// The number of the driver's registration; `None`: there is no driver.
fn registration(window: &Window) -> Option<u64> {
    let side = window.guest_side();
    side.is_registered().then(|| side.registration.bounded(u64::MAX))
}

/// How many tasks other vCPUs have put on a vCPU's queue.
fn sent(area: &GuestArea) -> u64 {
    area.read_remote().decode::<Remote>().count
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Deadline, Link};
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use vcoop_abi::window::Identity;
    use vcoop_abi::{Header, Remote, TaskIntent, Word};
    use vcoop_policy::config::{AdvanceConfig, Ns};
    use vcoop_policy::deadline::{LEAD_NS, RESERVE_NS};
    use vcoop_vmm::{Source, Thread, VcpuThread};
    use vcoop_window::Window;

    use crate::engine::Shares;

    fn thread(index: u32, kvm_id: Option<u32>) -> VcpuThread {
        let thread = Thread { tid: 100 + index, start_time: 1, comm: String::new() };
        VcpuThread { index, kvm_id, thread, source: Source::ThreadName }
    }

    /// A window without a driver.
    fn window() -> (File, Shares) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(7 * 4096).unwrap();
        let window = Arc::new(Window::map(&file, 0).unwrap());
        (file, Shares { window, address: None, bell: None, host_khz: 1_000_000 })
    }

    /// The driver of a guest with one vCPU that is online, of three, registers. Its TSC is this host's time in
    /// nanoseconds.
    fn register(file: &File, window: &Window) {
        let page = window.guest(0).unwrap();
        let vcpu = Identity { online: true, apic_id: 0 };
        page.report.vcpu.store(vcpu.to_word(), Ordering::Release);
        for (offset, value) in [(72, 3), (80, 1_000_000), (88, 5), (64, Header::OURS.to_word())] {
            file.write_all_at(&value.to_le_bytes(), offset).unwrap();
        }
    }

    /// What a guest shares whose driver has registered, and the window's file.
    pub(in crate::engine) fn shares() -> (File, Shares) {
        let (file, shares) = window();
        register(&file, &shares.window);
        (file, shares)
    }

    fn guest() -> (Link, Arc<Window>) {
        let (file, shares) = window();
        let window = shares.window.clone();
        let mut link = Link::new(shares, AdvanceConfig::None, 1, 0);
        assert!(!link.changed(&[thread(0, None)]), "no driver");
        register(&file, &window);
        assert!(link.changed(&[thread(0, None)]));
        assert!(!link.changed(&[thread(0, None)]));
        assert_eq!(link.slot(0), Some(0));
        (link, window)
    }

    #[test]
    fn a_deadline_is_met_ahead_of_time_once_and_not_when_it_is_stale() {
        let (mut link, window) = guest();
        let area = &window.guest(0).unwrap().area;
        area.deadline_tsc.store(5_000_000, Ordering::Release);
        assert_eq!(link.deadline(0, 1_000_000, u64::MAX), Deadline::None, "the clock is not known");
        link.ask_clock();
        assert_eq!(window.host(0).unwrap().ping.load(Ordering::Acquire), 1);
        area.pong_tsc.store(1_000_000, Ordering::Release);
        area.pong.store(1, Ordering::Release);
        link.read_clock(0, 1_000_000);
        let due = |link: &Link, now| link.deadline(0, now, u64::MAX);
        assert_eq!(due(&link, 1_000_000), Deadline::Later(5_000_000 - LEAD_NS));
        assert_eq!(
            link.deadline(0, 1_000_000, LEAD_NS + RESERVE_NS - 1),
            Deadline::Later(5_000_000)
        );
        assert_eq!(due(&link, 5_000_000 - LEAD_NS), Deadline::Now);
        assert!(link.serve(0) && !link.serve(0));
        assert_eq!(due(&link, 4_990_000), Deadline::Now, "it has lost its boost, and is to come");
        assert_eq!(due(&link, 5_400_000), Deadline::Now, "its timer is on its way");
        assert_eq!(due(&link, 5_600_000), Deadline::None);
        area.deadline_tsc.store(6_000_000, Ordering::Release);
        assert_eq!(due(&link, 8_000_000), Deadline::Now, "late");
        assert_eq!(due(&link, 9_100_000), Deadline::None, "stale");
        area.deadline_tsc.store(u64::MAX, Ordering::Release);
        assert_eq!(due(&link, 5_000_000), Deadline::None);
        area.deadline_tsc.store(0, Ordering::Release);
        assert_eq!(due(&link, 5_000_000), Deadline::None, "none");
    }

    #[test]
    fn a_guest_is_asked_to_use_its_first_vcpus() {
        let (link, window) = guest();
        let host = window.host(0).unwrap();
        link.prefer(Some(2));
        let asked = || (0..3).filter(|vcpu| host.is_preferred(*vcpu)).count();
        assert_eq!((host.hints().preferred_valid, asked()), (true, 2));
        link.prefer(Some(300));
        assert!((0..256).all(|vcpu| host.is_preferred(vcpu)));
        link.tell_steal(0, 7);
        assert_eq!(host.steal_ns.load(Ordering::Acquire), 7);
        link.prefer(None);
        assert_eq!(host.hints.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_window_that_was_found_again_takes_the_place_of_the_one_before() {
        let (mut link, before) = guest();
        assert!(!link.is_sought(1), "it is the host's for ever");
        link.searched(None, 1);
        assert!(!link.is_outdated());
        let (_, now) = guest();
        link.searched(Some((now.clone(), Some(4096))), 1);
        assert!(link.is_outdated() && link.pages(0).is_none());
        assert!(link.changed(&[thread(0, None)]));
        link.tell_steal(0, 7);
        let told = |window: &Window| window.host(0).unwrap().steal_ns.load(Ordering::Acquire);
        assert_eq!((told(&before), told(&now)), (0, 7));
        assert_eq!(link.address(0), Some(4096 + vcoop_abi::window::guest_page(0)));
    }

    #[test]
    fn tasks_from_other_vcpus_are_noticed_once() {
        let (mut link, window) = guest();
        let area = &window.guest(0).unwrap().area;
        assert!(!link.was_sent_tasks(0));
        let remote = Remote { count: 1, task: TaskIntent::fifo(50) };
        area.remote.store(remote.to_word(), Ordering::Release);
        assert!(link.was_sent_tasks(0) && !link.was_sent_tasks(0) && !link.was_sent_tasks(7));
    }

    #[test]
    fn a_guest_that_rings_all_the_time_is_not_heard() {
        for looks in [1, 3] {
            let (mut link, _window) = guest();
            let mut rings = |at| link.charge(at, looks).is_ok();
            let heard = (0..1_000).filter(|i| rings(i * 10_000)).count();
            assert!((50 / looks..=110 / looks).contains(&heard), "{heard} rings in 10 ms");
            assert!((0..1_000).all(|i| rings(1_000_000_000 + i * 250_000 * looks as Ns)));
        }
    }

    #[test]
    fn a_guest_that_registers_anew_all_the_time_is_charged_for_all_of_its_vcpus() {
        let (mut link, _window) = guest();
        link.vcpus = vec![super::LinkedVcpu::default(); 64];
        assert_eq!((link.cost_of_all(), link.cost_of_ring(1)), (64, 5));
        link.registration = Some(1);
        assert_eq!((link.cost_of_all(), link.cost_of_ring(1)), (256, 256));
        let mut met = 0;
        let mut now = 0;
        while now < 1_000_000_000 {
            let looks = link.cost_of_ring(1);
            now += 50_000;
            match link.charge(now, looks) {
                Ok(()) => met += 1,
                Err(deaf) => (met, now) = (met + 1, now + deaf),
            }
        }
        // 20 000 looks a second.
        assert!((60..=100).contains(&met), "{met} times in a second");
    }

    #[test]
    fn a_guest_with_more_vcpus_may_ring_more_often_up_to_a_limit() {
        for (vcpus, gap) in [(1, 200_000), (2, 200_000), (4, 100_000), (8, 50_000), (512, 50_000)] {
            let (mut link, _window) = guest();
            link.vcpus = vec![super::LinkedVcpu::default(); vcpus];
            let mut all =
                |from: Ns, gap: Ns| (0..5_000).all(|i| link.charge(from + i * gap, 1).is_ok());
            assert!(all(0, gap), "{vcpus}");
            assert!(!all(10_000_000_000, gap * 4 / 5), "{vcpus}");
        }
    }

    #[test]
    fn a_ring_is_about_the_vcpus_that_have_said_something() {
        let (mut link, window) = guest();
        let threads = [0, 1, 2].map(|index| thread(index, None));
        for vcpu in 0..3 {
            let identity = Identity { online: true, apic_id: vcpu };
            let page = window.guest(vcpu.into()).unwrap();
            page.report.vcpu.store(identity.to_word(), Ordering::Release);
        }
        assert!(link.changed(&threads));
        assert_eq!(link.news(), [0, 1, 2], "nothing is known");
        window.guest(1).unwrap().area.deadline_tsc.store(7, Ordering::Release);
        assert_eq!(link.news(), [1]);
        window.guest(0).unwrap().area.pong_tsc.store(7, Ordering::Release);
        window.guest(2).unwrap().area.intent.store(7, Ordering::Release);
        assert_eq!(link.news(), [0, 2]);
        assert_eq!(link.news(), [0, 1, 2], "whoever rings wants something");
    }
}
