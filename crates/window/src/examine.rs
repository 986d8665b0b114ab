//! Checks the guest of a window against the protocol, in the role of its host.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use vcoop_abi::conformance::{Limits, Report, SampledCheck};
use vcoop_abi::{HostArea, Status, Word};

use crate::map::Window;

/// Time between two looks.
const LOOK: Duration = Duration::from_micros(50);

/// Time between two boosts of a vCPU.
const PAUSE: Duration = Duration::from_millis(20);

/// Result for a vCPU.
#[derive(Clone, Debug, Default)]
pub struct ExaminedVcpu {
    /// Its slot in the window: the guest's number for it.
    pub slot: u64,
    /// Violations of [`SampledCheck::RULES`]. Times are nanoseconds since the beginning.
    pub report: Report,
    /// Changed words seen.
    pub changes: u64,
    /// Boosts that the vCPU was told of.
    pub boosts: u64,
    /// Boosts that the vCPU ended.
    pub answers: u64,
    /// Whether the guest took the vCPU offline before the end.
    pub gone: bool,
}

/// A vCPU and what it was told.
struct Vcpu<'w> {
    looks: SampledCheck,
    host: &'w HostArea,
    status: Status,
    since: Duration,
    answered: u64,
    found: ExaminedVcpu,
}

/// Acts as the host of a registered guest for `time`: tells each vCPU by turns that it is boosted and that it is not,
/// and checks its reactions. No thread is changed. A vCPU may take `grace` to react; `time` has to be a multiple of
/// that.
///
/// The window has to have [no other host](Window::is_in_use).
pub fn examine(
    window: &Window,
    time: Duration,
    grace: Duration,
    stop: impl Fn() -> bool,
) -> Vec<ExaminedVcpu> {
    let began = Instant::now();
    let next = || {
        thread::sleep(LOOK);
        began.elapsed()
    };
    examine_by(next, window, time, grace, stop)
}

/// As [`examine`], with another clock: `next` lets some time pass, and returns the time since the beginning.
fn examine_by(
    mut next: impl FnMut() -> Duration,
    window: &Window,
    time: Duration,
    grace: Duration,
    stop: impl Fn() -> bool,
) -> Vec<ExaminedVcpu> {
    let limits = Limits { grace_ns: ns(grace), ..Limits::default() };
    let vcpu = |(slot, _): (u64, u32)| {
        let (page, host) = (window.guest(slot)?, window.host(slot)?);
        host.ticket.store(0, Ordering::Release);
        Some(Vcpu {
            looks: SampledCheck::new(limits, 0, &page.area),
            host,
            status: Status::Disabled,
            since: Duration::ZERO,
            answered: 0,
            found: ExaminedVcpu { slot, ..ExaminedVcpu::default() },
        })
    };
    let mut vcpus: Vec<Vcpu<'_>> = window.online().into_iter().filter_map(vcpu).collect();
    // The host keeps every status at Disabled for this long at the start and at the end.
    let quiet = (time / 10).max(2 * grace);
    loop {
        let now = next();
        if now >= time || stop() || vcpus.iter().all(|vcpu| vcpu.found.gone) {
            break;
        }
        let talks = now >= quiet && now + quiet < time;
        for vcpu in vcpus.iter_mut().filter(|vcpu| !vcpu.found.gone) {
            vcpu.look(window, now);
            vcpu.turn(now, talks, grace);
        }
    }
    let now = next();
    vcpus.into_iter().map(|vcpu| vcpu.end(now)).collect()
}

impl Vcpu<'_> {
    fn look(&mut self, window: &Window, now: Duration) {
        let Some(page) = window.guest(self.found.slot) else { return };
        let mut looks = self.looks.clone();
        looks.look(ns(now), &page.area);
        // A vCPU says that it goes before its words do.
        if window.is_online(self.found.slot) {
            self.looks = looks;
        } else {
            self.found.gone = true;
            self.say(now, Status::Disabled);
        }
    }

    /// Takes the next step for a vCPU.
    fn turn(&mut self, now: Duration, talks: bool, grace: Duration) {
        let lasted = now - self.since;
        let answered = self.looks.answers() > self.answered;
        let next = match self.status {
            _ if !talks => Status::Disabled,
            // A guest that is idle keeps its boost.
            Status::Boosted if !answered && lasted < 2 * grace => return,
            Status::Boosted if self.found.boosts.is_multiple_of(2) => Status::Throttled,
            Status::Disabled | Status::Boosted => Status::Normal,
            Status::Normal | Status::Throttled if lasted < PAUSE => return,
            Status::Normal | Status::Throttled => {
                self.answered = self.looks.answers();
                self.found.boosts += 1;
                self.looks.ticket(ns(now), self.found.boosts);
                self.host.ticket.store(self.found.boosts, Ordering::Release);
                Status::Boosted
            }
        };
        self.say(now, next);
    }

    fn say(&mut self, now: Duration, status: Status) {
        if self.status != status {
            (self.status, self.since) = (status, now);
            self.looks.status(ns(now), status);
            self.host.status.store(status.to_word(), Ordering::Release);
        }
    }

    fn end(mut self, now: Duration) -> ExaminedVcpu {
        self.say(now, Status::Disabled);
        self.host.ticket.store(0, Ordering::Release);
        let looks = &self.looks;
        ExaminedVcpu {
            report: looks.report(),
            changes: looks.changes(),
            answers: looks.answers(),
            ..self.found
        }
    }
}

fn ns(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use vcoop_abi::conformance::Rule;
    use vcoop_abi::window::{Doorbell, Identity};
    use vcoop_abi::{BoostRequest, Header, Status, Word};

    use super::{ExaminedVcpu, LOOK, examine_by};
    use crate::map::Window;

    /// Examines a window whose guest has one vCPU; `guest` is called between any two looks. The clock is the test's: on
    /// this host's clock a guest that does not get its CPU in time would break a rule.
    fn examined(guest: impl Fn(&Window)) -> ExaminedVcpu {
        examined_until(guest, |_| false)
    }

    /// The same, until `stop` says so.
    fn examined_until(guest: impl Fn(&Window), stop: impl Fn(&Window) -> bool) -> ExaminedVcpu {
        let _one = crate::registered();
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * 4096).unwrap();
        let own = Window::map(&file, 0).unwrap();
        let page = own.guest(0).unwrap();
        page.area.header.store(Header::OURS.to_word(), Ordering::Release);
        page.report.vcpu.store(Identity { online: true, apic_id: 0 }.to_word(), Ordering::Release);
        for (offset, word) in [(72, 1), (64, Header::OURS.to_word())] {
            file.write_all_at(&word.to_le_bytes(), offset).unwrap();
        }
        let window = Window::map(&file, 0).unwrap();
        window.offer(Doorbell::default());
        assert!(!window.is_in_use());
        let mut now = Duration::ZERO;
        let next = || {
            guest(&own);
            now += LOOK;
            now
        };
        let (time, grace) = (Duration::from_millis(600), Duration::from_millis(50));
        // As another host has left it.
        window.host(0).unwrap().ticket.store(9, Ordering::Release);
        let mut found = examine_by(next, &window, time, grace, || stop(&own));
        assert!(!window.is_in_use());
        assert_eq!(window.host(0).unwrap().ticket(), 0);
        found.remove(0)
    }

    /// Acknowledges tickets, and ends every boost.
    fn honest(own: &Window) {
        let (area, host) = (&own.guest(0).unwrap().area, own.host(0).unwrap());
        let (status, ticket) = (host.status(), host.ticket());
        if status == Status::Disabled {
            return;
        }
        let request = match status {
            Status::Boosted => BoostRequest::Unboost,
            _ => BoostRequest::None,
        };
        area.request.store(request.to_word(), Ordering::Release);
        area.ack.store(ticket, Ordering::Release);
    }

    #[test]
    fn an_honest_guest_conforms_and_one_that_keeps_its_boosts_does_not() {
        let found = examined(honest);
        assert!(found.report.is_conforming(), "{found:?}");
        assert!(found.boosts > 3 && found.answers > 3 && !found.gone, "{found:?}");

        let found = examined(|own| {
            let host = own.host(0).unwrap();
            if host.status() != Status::Disabled {
                own.guest(0).unwrap().area.ack.store(host.ticket(), Ordering::Release);
            }
        });
        assert!(found.report.broke(Rule::BoostIsAnswered), "{found:?}");
        assert_eq!(found.answers, 0);
    }

    #[test]
    fn a_guest_is_shown_boosts_in_turns_and_nothing_at_the_begin_and_the_end() {
        // Statuses that the guest was shown, and when, in milliseconds.
        let shown = |guest: &dyn Fn(&Window)| {
            let (looks, all) = (Cell::new(0_u32), RefCell::new(vec![(0, Status::Disabled)]));
            let found = examined(|own| {
                let host = own.host(0).unwrap();
                let status = host.status();
                if status != Status::Disabled {
                    own.guest(0).unwrap().area.ack.store(host.ticket(), Ordering::Release);
                }
                if all.borrow().last().unwrap().1 != status {
                    all.borrow_mut().push((looks.get() * LOOK.as_micros() as u32 / 1_000, status));
                }
                // The guest answers late, but within its grace.
                if looks.get().is_multiple_of(20) {
                    guest(own);
                }
                looks.set(looks.get() + 1);
            });
            (found, all.into_inner())
        };
        let (found, all) = shown(&honest);
        assert!(found.report.is_conforming() && found.changes > 3, "{found:?}");
        let (normal, boosted, throttled) = (Status::Normal, Status::Boosted, Status::Throttled);
        let first =
            [(100, normal), (120, boosted), (120, normal), (140, boosted), (141, throttled)];
        assert_eq!((&all[1..6], all.last()), (&first[..], Some(&(500, Status::Disabled))));
        // A guest that keeps its boosts is shown each of them for longer.
        let (_, all) = shown(&|_| {});
        let first =
            [(100, normal), (120, boosted), (220, normal), (240, boosted), (340, throttled)];
        assert_eq!(all[1..6], first);
    }

    #[test]
    fn a_guest_that_is_boosted_when_it_is_stopped_is_so_no_more() {
        let is_boosted = |own: &Window| own.host(0).unwrap().status() == Status::Boosted;
        let found = examined_until(honest, is_boosted);
        assert!(found.boosts == 1 && found.report.is_conforming(), "{found:?}");
    }

    #[test]
    fn one_that_speaks_out_of_turn_is_found_and_one_that_leaves_is_not() {
        let found = examined(|own| {
            let area = &own.guest(0).unwrap().area;
            area.pong.fetch_add(1, Ordering::Release);
        });
        assert!(found.report.broke(Rule::StatusGates), "{found:?}");

        let found = examined(|own| {
            let page = own.guest(0).unwrap();
            page.report.vcpu.store(0, Ordering::Release);
            page.area.header.store(0, Ordering::Release);
        });
        assert!(found.gone && found.report.is_conforming(), "{found:?}");
    }
}
