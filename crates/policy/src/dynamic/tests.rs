extern crate std;

use std::vec::Vec;

use vcoop_abi::{BoostRequest, Class, CsState, GuestWords, Intent, Status, TaskIntent};

use super::Dynamic;
use crate::action::{Action, Actions, Reason, Rest};
use crate::config::{Budget, DynamicConfig, Means, Ns};
use crate::event::{Event, Injection};
use crate::govern::CpuTime;
use crate::repay::ACCOUNT_NS;
use crate::stats::PolicyStats;
use crate::vm_shared::VmShared;

const MEANS: Means = Means::Rr(8);
const BUDGET: Budget = Budget { burst_ns: 3_000_000, refill_ppm: 250_000 };
const VM: Budget = Budget { burst_ns: 1_000_000_000, refill_ppm: 0 };
const LONG: Budget = Budget { burst_ns: 50_000_000, refill_ppm: 0 };
const CONFIG: DynamicConfig = DynamicConfig::new(MEANS, BUDGET, VM);
const QUIET: GuestWords = GuestWords::SILENT;
const INJECT: Event = Event::Injected(Injection::Timer);

struct Rig {
    d: Dynamic,
    vm: VmShared,
}

impl Dynamic {
    fn on(&mut self, now: Ns, event: Event, vm: &mut VmShared) -> Actions {
        let mut out = Actions::new();
        self.answer(now, event, vm, &mut out);
        out
    }
}

impl Rig {
    fn unregistered(config: DynamicConfig) -> Self {
        let mut rig = Self { d: Dynamic::new(config, 0), vm: VmShared::new(config.vm_budget, 0) };
        assert!(rig.on(0, Event::Enable).is_empty(), "not registered yet");
        rig
    }

    fn with(config: DynamicConfig) -> Self {
        let mut rig = Self::unregistered(config);
        assert_eq!(*rig.on(0, Event::Registered(true)), [Action::Status(Status::Normal)]);
        rig
    }

    fn new() -> Self {
        Self::with(CONFIG)
    }

    fn on(&mut self, now: Ns, event: Event) -> Actions {
        self.d.on(now, event, &mut self.vm)
    }

    fn status_after(&mut self, now: Ns, event: Event) -> Status {
        self.on(now, event);
        self.d.control.status()
    }
}

fn asks() -> GuestWords {
    GuestWords::new(Intent::default(), CsState::default(), BoostRequest::Boost, 0)
}

fn acks(ack: u64) -> GuestWords {
    GuestWords::new(Intent::default(), CsState::default(), BoostRequest::Unboost, ack)
}

fn section(number: u32) -> GuestWords {
    let cs = CsState { preempt_off: true, section: number, ..CsState::default() };
    GuestWords::new(Intent::default(), cs, BoostRequest::None, 0)
}

#[test]
fn injection_publishes_the_ticket_boosts_and_rechecks() {
    let mut rig = Rig::new();
    let out = rig.on(10, INJECT);
    assert_eq!(
        out[..3],
        [Action::Ticket(1), Action::Status(Status::Boosted), Action::Boost(MEANS)]
    );
    assert!(out.contains(&Action::Recheck));
    // Boosted already: the ticket alone.
    assert_eq!(*rig.on(20, INJECT), [Action::Ticket(2)]);
}

#[test]
fn unanswered_interrupt_outlasts_exits_and_an_early_notification() {
    let mut rig = Rig::new();
    rig.on(10, INJECT);
    assert_eq!(rig.status_after(20, Event::Exit(QUIET)), Status::Boosted);
    rig.on(30, INJECT);
    assert_eq!(rig.status_after(40, Event::Notify(acks(1))), Status::Boosted);
    let out = rig.on(50, Event::Notify(acks(2)));
    assert_eq!(*out, [Action::Restore, Action::Status(Status::Normal)]);
    assert_eq!(rig.d.control.stats().notified, 1);
}

#[test]
fn a_notification_counts_whoever_reads_the_words() {
    let mut rig = Rig::new();
    rig.on(10, INJECT);
    assert_eq!(rig.status_after(20, Event::NotifySampled(acks(1))), Status::Normal);
    assert_eq!(rig.d.control.stats().notified, 1);
    // Read while the vCPU may run, a section is no reason to begin a boost.
    let cs = CsState { preempt_off: true, ..CsState::default() };
    let words = GuestWords::new(Intent::default(), cs, BoostRequest::None, 1);
    assert_eq!(rig.status_after(30, Event::NotifySampled(words)), Status::Normal);
    assert_eq!(rig.status_after(40, Event::Notify(words)), Status::Boosted);
}

#[test]
fn recheck_ends_a_boost_that_nobody_will_end() {
    let mut rig = Rig::new();
    rig.on(10, INJECT);
    assert_eq!(rig.status_after(11, Event::Recheck(acks(1))), Status::Normal);
    assert_eq!(rig.d.control.stats().raced, 1);
    // A section does not save it: the guest may have left it without looking.
    rig.on(20, INJECT);
    let cs = CsState { preempt_off: true, ..CsState::default() };
    let words = GuestWords::new(Intent::default(), cs, BoostRequest::None, 2);
    assert_eq!(rig.status_after(21, Event::Recheck(words)), Status::Normal);
}

#[test]
fn ack_from_the_future_is_ignored() {
    let mut rig = Rig::new();
    rig.on(10, INJECT);
    assert_eq!(rig.status_after(20, Event::Notify(acks(2))), Status::Boosted);
    assert_eq!(rig.status_after(30, Event::Notify(acks(u64::MAX))), Status::Boosted);
}

#[test]
fn request_is_read_at_exits_without_a_recheck_and_sampled_with_one() {
    let mut rig = Rig::new();
    let out = rig.on(10, Event::Exit(asks()));
    assert!(out.contains(&Action::Boost(MEANS)) && !out.contains(&Action::Recheck));
    assert_eq!(rig.status_after(20, Event::Exit(QUIET)), Status::Normal);
    assert!(rig.on(30, Event::Sampled(asks())).contains(&Action::Recheck));
    assert_eq!(rig.status_after(31, Event::Recheck(QUIET)), Status::Normal);
    assert_eq!(rig.d.control.stats().raced, 1);
}

#[test]
fn facts_count_without_a_request() {
    let rt = TaskIntent::new(Class::Deadline, 0);
    let cases = [
        (Intent { pending: Some(rt), ..Intent::default() }, CsState::default()),
        (Intent { running: rt, ..Intent::default() }, CsState::default()),
        (Intent::default(), CsState { softirq: 1, ..CsState::default() }),
        (Intent::default(), CsState { nmi: 1, ..CsState::default() }),
    ];
    for (intent, cs) in cases {
        let words = GuestWords::new(intent, cs, BoostRequest::None, 0);
        assert_eq!(Rig::new().status_after(10, Event::Exit(words)), Status::Boosted);
    }
    for words in
        [asks(), section(1), GuestWords::new(cases[0].0, cases[2].1, BoostRequest::Boost, 0)]
    {
        let mut rig = Rig::with(DynamicConfig { boost_on_request: false, ..CONFIG });
        assert_eq!(rig.status_after(10, Event::Exit(words)), Status::Normal);
    }
}

#[test]
fn sections_boost_until_they_are_too_long_and_new_ones_start_anew() {
    let mut rig = Rig::with(DynamicConfig { vcpu_budget: LONG, ..CONFIG });
    assert_eq!(rig.status_after(0, Event::Exit(section(1))), Status::Boosted);
    assert_eq!(rig.status_after(2_999_999, Event::Exit(section(1))), Status::Boosted);
    assert!(
        rig.on(3_000_000, Event::Exit(section(1))).contains(&Action::Denied(Reason::LongSection))
    );
    assert_eq!(rig.d.control.status(), Status::Normal);
    assert_eq!(
        *rig.on(3_000_001, Event::Exit(section(1))),
        [Action::Denied(Reason::LongSection)],
        "it goes on"
    );
    // Another one: seen as such although the host saw no gap.
    assert_eq!(rig.status_after(3_000_002, Event::Exit(section(2))), Status::Boosted);
    // Another one with the same number, after a gap, and one of another driver.
    rig.on(6_000_000, Event::Exit(QUIET));
    assert_eq!(rig.status_after(6_000_002, Event::Exit(section(2))), Status::Boosted);
    rig.on(6_000_003, Event::Registered(false));
    rig.on(6_000_004, Event::Registered(true));
    assert_eq!(rig.status_after(9_000_002, Event::Exit(section(2))), Status::Boosted);
}

#[test]
fn a_long_section_does_not_cancel_a_pending_interrupt() {
    let mut rig = Rig::new();
    rig.on(0, Event::Exit(section(1)));
    rig.on(3_500_000, Event::Exit(section(1)));
    rig.on(3_600_000, INJECT);
    assert_eq!(rig.status_after(3_700_000, Event::Exit(section(1))), Status::Boosted);
}

#[test]
fn a_section_is_bounded_without_any_exit() {
    let mut rig = Rig::with(DynamicConfig { vcpu_budget: LONG, ..CONFIG });
    let out = rig.on(0, Event::Exit(section(1)));
    assert!(out.contains(&Action::ArmTimer(3_000_000)), "{:?}", &*out);
    assert!(!rig.on(2_999_999, Event::Timer).contains(&Action::Recheck), "too early");
    assert_eq!(*rig.on(3_000_000, Event::Timer), [Action::Recheck, Action::ArmTimer(50_000_000)]);
    assert_eq!(rig.status_after(3_000_000, Event::Recheck(section(1))), Status::Normal);
    assert_eq!(rig.d.control.stats().raced, 0);
}

#[test]
fn a_sampled_section_neither_begins_nor_ends_a_boost() {
    let mut rig = Rig::new();
    assert_eq!(rig.status_after(0, Event::Sampled(section(1))), Status::Normal);
    rig.on(10, Event::Exit(section(2)));
    assert_eq!(rig.status_after(20, Event::Sampled(section(2))), Status::Boosted);
}

#[test]
fn halted_time_is_free_and_the_wake_is_urgent() {
    let mut rig = Rig::new();
    let out = rig.on(0, Event::Halted(QUIET));
    assert_eq!(*out, [Action::Status(Status::Boosted), Action::Boost(MEANS)], "and no timer");
    rig.on(1_000_000_000, Event::Woken);
    assert_eq!(rig.d.control.budget_left(1_000_000_000), BUDGET.burst_ns);
    // Still in the idle loop: the reason for the wake-up is on its way.
    let idle = Intent { idle: true, ..Intent::default() };
    let words = GuestWords::new(idle, CsState::default(), BoostRequest::None, 0);
    assert_eq!(rig.status_after(1_000_001_000, Event::Exit(words)), Status::Boosted);
    assert_eq!(rig.status_after(1_000_002_000, Event::Exit(QUIET)), Status::Normal);
    assert_eq!(rig.d.control.stats().boosted_ns, 2_000);

    // What ends the boost ends the wait for the reason.
    rig.on(2_000_000_000, Event::Halted(QUIET));
    rig.on(2_000_000_000, Event::Woken);
    rig.on(2_000_000_000, Event::Baseline { outranks: true });
    rig.on(2_000_000_000, Event::Baseline { outranks: false });
    assert_eq!(rig.status_after(2_000_000_000, Event::Exit(words)), Status::Normal);
    // A thread that comes is awake, also if the one before it slept.
    rig.on(3_000_000_000, Event::Halted(QUIET));
    rig.on(3_000_000_000, Event::Attached(false));
    rig.on(3_000_000_000, Event::Attached(true));
    assert_eq!(rig.status_after(3_000_000_000, INJECT), Status::Boosted);
    assert_eq!(rig.d.control.boosted_at(3_000_001_000), 3_000);
}

#[test]
fn without_boosting_across_idle_a_halt_ends_the_boost() {
    let mut rig = Rig::with(DynamicConfig { boost_across_idle: false, ..CONFIG });
    rig.on(0, Event::Exit(asks()));
    assert_eq!(rig.status_after(10, Event::Halted(QUIET)), Status::Normal);
    assert_eq!(rig.status_after(20, INJECT), Status::Boosted);
    assert_eq!(rig.d.control.budget_left(1_000_000), BUDGET.burst_ns, "not awake yet");
}

#[test]
fn what_is_heard_late_does_not_end_a_boost_across_idle() {
    let mut rig = Rig::new();
    rig.on(0, Event::Exit(asks()));
    assert_eq!(rig.status_after(10, Event::Halted(QUIET)), Status::Boosted);
    // The guest has rung at the end of its urgent task, and was idle when that was heard.
    assert_eq!(rig.status_after(20, Event::NotifySampled(QUIET)), Status::Boosted);
    rig.on(30, Event::Woken);
    assert_eq!(rig.status_after(40, Event::NotifySampled(QUIET)), Status::Normal);
}

#[test]
fn empty_bucket_throttles_until_half_full() {
    let mut rig = Rig::new();
    let out = rig.on(0, Event::Exit(asks()));
    // 3 ms of burst, a quarter of it refilled while it lasts.
    assert!(out.contains(&Action::ArmTimer(4_000_000)), "{:?}", &*out);
    let out = rig.on(4_000_000, Event::Timer);
    assert_eq!(
        *out,
        [
            Action::Restore,
            Action::Status(Status::Throttled),
            Action::Denied(Reason::VcpuBudget),
            Action::ArmTimer(10_000_000),
        ]
    );
    assert_eq!(*rig.on(5_000_000, Event::Exit(asks())), [Action::Denied(Reason::VcpuBudget)]);
    assert_eq!(*rig.on(6_000_000, Event::Halted(asks())), [Action::Denied(Reason::VcpuBudget)]);
    rig.on(7_000_000, Event::Woken);
    assert_eq!(*rig.on(10_000_000, Event::Timer), [Action::Status(Status::Normal)]);
    assert_eq!(rig.status_after(10_000_001, Event::Exit(asks())), Status::Boosted);
}

/// Asks for ever from `now` on; when each boost began and how long it lasted.
fn greedy(rig: &mut Rig, mut now: Ns, until: Ns) -> Vec<(Ns, Ns)> {
    let mut boosts = Vec::new();
    let mut since = None;
    while now < until {
        rig.on(now, Event::Timer);
        rig.on(now, Event::Exit(asks()));
        match (rig.d.control.status() == Status::Boosted, since) {
            (true, None) => since = Some(now),
            (false, Some(start)) => {
                boosts.push((start, now - start));
                since = None;
            }
            _ => {}
        }
        now += 100_000;
    }
    boosts
}

#[test]
#[cfg_attr(miri, ignore = "seconds of a vCPU's life, minutes of the interpreter's")]
fn a_guest_that_never_gives_back_is_held_off_longer_each_time() {
    let mut rig = Rig::new();
    let boosts = greedy(&mut rig, 0, 2_000_000_000);
    let gaps: Vec<Ns> = boosts.windows(2).map(|w| (w[1].0 - w[0].0 - w[0].1) / 1_000_000).collect();
    // At first the bucket alone decides: half the burst at a quarter's refill, 6 ms.
    assert_eq!(gaps[..7], [6, 6, 6, 6, 20, 80, 320], "{boosts:?}");
    let boosted: Ns = boosts.iter().map(|b| b.1).sum();
    assert!(boosted < 40_000_000, "{boosted} ns of two seconds");
}

#[test]
#[cfg_attr(miri, ignore = "seconds of a vCPU's life, minutes of the interpreter's")]
fn one_boost_given_back_wipes_the_strikes_out() {
    let mut rig = Rig::new();
    greedy(&mut rig, 0, 500_000_000);
    let now = 2_000_000_000;
    rig.on(now, Event::Timer);
    assert_eq!(rig.status_after(now, Event::Exit(asks())), Status::Boosted);
    assert_eq!(rig.status_after(now + 10_000, Event::Notify(QUIET)), Status::Normal);
    let boosts = greedy(&mut rig, now + 20_000, now + 50_000_000);
    let gap = (boosts[1].0 - boosts[0].0 - boosts[0].1) / 1_000_000;
    assert_eq!(gap, 6, "{boosts:?}");
}

#[test]
#[cfg_attr(miri, ignore = "seconds of a vCPU's life, minutes of the interpreter's")]
fn nonsense_that_ends_a_boost_wipes_no_strike_out() {
    // A reserved bit, a request that there is not, a ticket that was never given.
    let nonsense = [(1 << 30, 0, 0), (0, 9, 0), (0, 0, u64::MAX)];
    for words in nonsense.map(|(cs, request, ack)| GuestWords::from_raw(0, cs, request, ack)) {
        let mut rig = Rig::new();
        greedy(&mut rig, 0, 500_000_000);
        let now = 2_000_000_000;
        rig.on(now, Event::Timer);
        assert_eq!(rig.status_after(now, Event::Exit(asks())), Status::Boosted);
        assert_eq!(rig.status_after(now + 10_000, Event::Notify(words)), Status::Normal);
        let boosts = greedy(&mut rig, now + 20_000, now + 1_000_000_000);
        assert_eq!(boosts.len(), 1, "{boosts:?}");
    }
}

#[test]
fn a_boost_that_is_the_longest_allowed_is_throttled_and_is_a_strike() {
    let full = Budget { burst_ns: 50_000_000, refill_ppm: 1_000_000 };
    let mut rig =
        Rig::with(DynamicConfig { vcpu_budget: full, longest_boost_ns: Some(1_000_000), ..CONFIG });
    let boosts = greedy(&mut rig, 0, 1_000_000_000);
    let PolicyStats { throttles, too_long, by_vm, .. } = rig.d.control.stats();
    assert_eq!((throttles, too_long, by_vm), (boosts.len() as u64, boosts.len() as u64, 0));
    let gaps: Vec<Ns> = boosts.windows(2).map(|w| w[1].0 - w[0].0 - w[0].1).collect();
    assert!(gaps[5] >= 20_000_000 && gaps[6] >= 80_000_000, "{gaps:?}");
}

#[test]
fn the_vm_bucket_throttles_too() {
    let small = Budget { burst_ns: 1_000_000, refill_ppm: 100_000 };
    let mut rig = Rig::with(DynamicConfig { vm_budget: small, ..CONFIG });
    rig.on(0, Event::Exit(asks()));
    let mut now = 0;
    while rig.d.control.status() == Status::Boosted {
        now += 1_000;
        rig.on(now, Event::Timer);
    }
    assert!((1_000_000..1_200_000).contains(&now), "{now}");
    assert_eq!(rig.d.control.stats().by_vm, 1);
    assert!(rig.on(now, Event::Exit(asks())).contains(&Action::Denied(Reason::VmBudget)));
}

#[test]
fn disabling_restores_and_registering_again_does_not_end_throttling() {
    let mut rig = Rig::new();
    rig.on(0, Event::Exit(asks()));
    rig.vm.set_vm(false);
    let out = rig.on(10, Event::Enable);
    assert_eq!(*out, [Action::Restore, Action::Status(Status::Disabled), Action::CancelTimer]);
    assert!(rig.on(20, INJECT).is_empty() && rig.on(30, Event::Exit(asks())).is_empty());
    rig.vm.set_vm(true);
    assert_eq!(rig.status_after(40, Event::Enable), Status::Normal);
    rig.on(40, Event::Exit(asks()));
    rig.on(4_100_000, Event::Timer);
    assert_eq!(rig.d.control.status(), Status::Throttled);
    rig.on(4_200_000, Event::Registered(false));
    assert_eq!(rig.status_after(4_300_000, Event::Registered(true)), Status::Throttled);
}

#[test]
fn nothing_but_time_ends_a_throttling() {
    let mut rig = Rig::new();
    rig.on(0, Event::Exit(asks()));
    assert_eq!(rig.status_after(4_000_000, Event::Timer), Status::Throttled);
    let counted = PolicyStats {
        boosts: 1,
        boosted_ns: 4_000_000,
        throttles: 1,
        denied: 1,
        ..PolicyStats::default()
    };
    assert_eq!(rig.d.control.stats(), counted);
    for event in [
        Event::Exit(QUIET),
        Event::Exit(section(1)),
        Event::Notify(QUIET),
        Event::NotifySampled(QUIET),
        Event::Recheck(QUIET),
        Event::Halted(QUIET),
        Event::Woken,
        Event::Baseline { outranks: true },
        Event::Baseline { outranks: false },
        Event::Refused,
        Event::Registered(true),
        Event::Enable,
        INJECT,
    ] {
        assert_eq!(rig.status_after(4_100_000, event), Status::Throttled, "{event:?}");
    }
    // Time that passes while it is off counts as well.
    rig.vm.set_vm(false);
    assert_eq!(rig.status_after(5_000_000, Event::Enable), Status::Disabled);
    assert_eq!(rig.status_after(5_000_000, Event::Baseline { outranks: true }), Status::Disabled);
    rig.on(5_000_000, Event::Baseline { outranks: false });
    rig.vm.set_vm(true);
    assert_eq!(rig.status_after(20_000_000, Event::Enable), Status::Normal);
    // A boost that is over does not come back with the next switch, however little budget there is.
    assert_eq!(rig.status_after(20_000_000, Event::Exit(asks())), Status::Boosted);
    assert_eq!(rig.status_after(24_000_000, Event::Timer), Status::Throttled);
    assert_eq!(rig.status_after(30_000_000, Event::Timer), Status::Normal);
    assert_eq!(rig.status_after(30_000_000, Event::Exit(asks())), Status::Boosted);
    for (on, status) in [(false, Status::Disabled), (true, Status::Normal)] {
        rig.vm.set_vm(on);
        assert_eq!(rig.status_after(31_000_000, Event::Enable), status);
    }
}

/// A ticket that the guest's driver will not acknowledge, because it was off or came later.
#[test]
fn an_interrupt_from_before_holds_no_boost() {
    let mut rig = Rig::new();
    rig.on(10, INJECT);
    rig.on(11, Event::Enable);
    assert_eq!(rig.status_after(12, Event::Exit(QUIET)), Status::Boosted, "nothing was off");
    for on in [false, true] {
        rig.vm.set_vm(on);
        rig.on(20, Event::Enable);
    }
    assert_eq!(rig.status_after(30, Event::Exit(QUIET)), Status::Normal);
    rig.on(40, INJECT);
    rig.on(50, Event::Registered(true));
    assert_eq!(rig.status_after(60, Event::Exit(QUIET)), Status::Normal);
}

#[test]
fn a_thread_rests_with_its_slice_for_as_long_as_the_policy_is_on() {
    let rest = Rest { levels: 0, slice_ns: Some(700_000) };
    let mut rig = Rig::unregistered(DynamicConfig { rest_slice_ns: rest.slice_ns, ..CONFIG });
    let out = rig.on(0, Event::Registered(true));
    assert_eq!(*out, [Action::Status(Status::Normal), Action::Rest(rest)]);
    rig.on(0, INJECT);
    rig.on(10, Event::Notify(acks(1)));
    assert_eq!((rig.d.control.status(), rig.d.control.rest()), (Status::Normal, rest));
    let out = rig.on(20, Event::Registered(false));
    assert!(out.contains(&Action::Rest(Rest::default())), "{out:?}");
    assert_eq!(rig.d.control.rest(), Rest::default());
}

/// A guest that takes part only while it is boosted, beside two CPU loops.
#[test]
fn who_takes_its_page_away_pays_for_its_boosts() {
    let vm_budget = Budget { burst_ns: VM.burst_ns, refill_ppm: 1_000_000 };
    let mut rig = Rig::unregistered(DynamicConfig { repay: true, vm_budget, ..CONFIG });
    let cycle = ACCOUNT_NS / 8;
    let (mut since, mut ran, mut boosts) = (CpuTime::default(), 0, 0);
    for n in 0..800 {
        let now = n * cycle;
        rig.on(now, Event::Registered(true));
        let boosted = rig.status_after(now, INJECT) == Status::Boosted;
        let boosted_ns = if boosted { 2_900_000 } else { 0 };
        rig.on(now + boosted_ns, Event::Registered(false));
        let weight = 0.8f64.powi(rig.d.control.rest().levels.into());
        let rested_ns = (cycle - boosted_ns) as f64 * weight / (weight + 2.0);
        let busy_ns = boosted_ns + rested_ns as Ns;
        let time = CpuTime { busy_ns, steal_ns: cycle - busy_ns };
        since = [since, time].into_iter().sum();
        if n >= 400 {
            ran += busy_ns;
            boosts += u64::from(boosted);
        }
        if n % 8 == 7 {
            rig.on(now + cycle, Event::Ran(core::mem::take(&mut since)));
        }
    }
    assert_eq!(boosts, 400);
    let due = 400 * cycle / 3;
    assert!(ran.abs_diff(due) < due / 20, "{ran} ns of {due}");
    rig.vm.set_vm(false);
    let out = rig.on(800 * cycle, Event::Enable);
    assert!(out.contains(&Action::Rest(Rest::default())), "{out:?}");
}

/// A guest that spends its budget, ends its boost in time and asks again, so that it is throttled without a strike, beside
/// two CPU loops. A throttled vCPU is not lowered: that is what `repay` leaves to it.
#[test]
fn who_is_always_throttled_has_its_budget_and_its_share_of_the_rest() {
    const STEP: Ns = 50_000;
    let vm_budget = Budget { burst_ns: VM.burst_ns, refill_ppm: 1_000_000 };
    let mut rig = Rig::with(DynamicConfig { repay: true, vm_budget, ..CONFIG });
    let (mut since, mut ran) = (CpuTime::default(), 0);
    for n in 0..10_000_000_000 / STEP {
        let now = n * STEP;
        rig.on(now, Event::Timer);
        let boosted = rig.status_after(now, Event::Exit(asks())) == Status::Boosted;
        let weight = 0.8f64.powi(rig.d.control.rest().levels.into());
        let busy_ns = if boosted { STEP } else { (STEP as f64 * weight / (weight + 2.0)) as Ns };
        since = [since, CpuTime { busy_ns, steal_ns: STEP - busy_ns }].into_iter().sum();
        ran += if n >= 5_000_000_000 / STEP { busy_ns } else { 0 };
        if boosted && rig.d.control.budget_left(now) <= 2 * STEP {
            rig.on(now + STEP - 1, Event::Exit(QUIET));
        }
        if (n + 1) % (ACCOUNT_NS / STEP) == 0 {
            rig.on(now + STEP, Event::Ran(core::mem::take(&mut since)));
        }
    }
    let budget = 5_000_000_000 / 4;
    let most = budget + (5_000_000_000 - budget) / 3;
    assert!(ran.abs_diff(most) < most / 100, "{ran} ns of {most}");
}

#[test]
fn a_baseline_above_the_means_is_never_lowered() {
    let mut rig = Rig::new();
    rig.on(0, INJECT);
    assert_eq!(rig.status_after(10, Event::Baseline { outranks: true }), Status::Normal);
    assert!(rig.on(20, INJECT).contains(&Action::Denied(Reason::Baseline)));
    rig.on(30, Event::Baseline { outranks: false });
    assert_eq!(rig.status_after(40, INJECT), Status::Boosted);
}

#[test]
fn refused_means_cost_no_budget_and_are_asked_for_again() {
    let mut rig = Rig::new();
    assert!(rig.on(0, INJECT).contains(&Action::Boost(MEANS)));
    let out = rig.on(0, Event::Refused);
    assert_eq!(*out, [Action::Status(Status::Normal), Action::Denied(Reason::Refused)]);
    // The recheck that the injection asked for finds nothing to end.
    assert!(rig.on(0, Event::Recheck(QUIET)).is_empty());
    assert!(rig.on(0, Event::Refused).is_empty(), "nothing was asked for");
    let left = rig.d.control.budget_left(1_000_000);
    assert_eq!(left, rig.d.control.budget_left(0));
    assert_eq!(rig.d.control.stats(), PolicyStats { denied: 1, ..PolicyStats::default() });
    assert!(rig.on(2_000_000, INJECT).contains(&Action::Boost(MEANS)));
}

#[test]
fn the_timer_is_not_touched_by_short_boosts() {
    let mut rig = Rig::new();
    let arms = |out: Actions| out.iter().filter(|a| matches!(a, Action::ArmTimer(_))).count();
    assert_eq!(arms(rig.on(0, Event::Exit(asks()))), 1);
    for i in 1..100 {
        assert_eq!(arms(rig.on(i * 20_000, Event::Exit(QUIET))), 0);
        assert_eq!(arms(rig.on(i * 20_000 + 10_000, Event::Exit(asks()))), 0);
    }
}

/// Asks for receivers only.
const RECEIVER: DynamicConfig = DynamicConfig {
    boost_on_injection: false,
    boost_receiver: true,
    boost_on_request: false,
    boost_across_idle: false,
    ..CONFIG
};

#[test]
fn a_sender_has_its_receiver_boosted_until_that_has_answered() {
    let mut rig = Rig::with(RECEIVER);
    let out = rig.on(10, Event::Asked);
    assert_eq!(
        out[..3],
        [Action::Ticket(1), Action::Status(Status::Boosted), Action::Boost(MEANS)]
    );
    // The interrupt itself is no reason here.
    assert!(rig.on(11, INJECT).is_empty());
    assert_eq!(rig.status_after(20, Event::Exit(QUIET)), Status::Boosted);
    assert_eq!(rig.status_after(30, Event::Notify(acks(1))), Status::Normal);
    assert_eq!(rig.d.control.stats().boosted_ns, 20);
}

#[test]
fn senders_are_not_heard_unless_asked_for() {
    let mut rig = Rig::new();
    assert!(rig.on(10, Event::Asked).is_empty());
    assert_eq!(rig.d.control.status(), Status::Normal);
}

#[test]
#[cfg_attr(miri, ignore = "seconds of a vCPU's life, minutes of the interpreter's")]
fn who_asks_without_end_spends_its_own_vms_budget() {
    let vm = Budget { burst_ns: 2_000_000, refill_ppm: 100_000 };
    let mut shared = VmShared::new(vm, 0);
    let mut receivers = [(); 3].map(|()| Dynamic::new(RECEIVER, 0));
    for d in &mut receivers {
        d.on(0, Event::Registered(true), &mut shared);
        d.on(0, Event::Enable, &mut shared);
    }
    // Every 10 us, for a second, one vCPU asks for all the others, and none of them answers.
    for now in (10_000..1_000_000_000).step_by(10_000) {
        for d in &mut receivers {
            d.on(now, Event::Timer, &mut shared);
            d.on(now, Event::Asked, &mut shared);
        }
    }
    let boosted: Ns = receivers.iter().map(|d| d.control.stats().boosted_ns).sum();
    // A timer comes late by 10 us at most, once a boost.
    let late: Ns = receivers.iter().map(|d| d.control.stats().boosts * 10_000).sum();
    assert!(boosted <= 2_000_000 + 100_000_000 + late, "{boosted}");
    assert!(boosted >= 2_000_000, "{boosted}");
    assert!(receivers.iter().all(|d| d.control.stats().denied > 1_000));
}
