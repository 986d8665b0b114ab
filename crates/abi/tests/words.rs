//! Words: every encoding decodes to itself, and every pattern of bits decodes to something.

use std::sync::atomic::Ordering;

use vcoop_abi::window::{Doorbell, Identity};
use vcoop_abi::{
    BoostRequest, Class, CsState, FromGuest, Header, Hints, HostArea, Intent, Remote, Status,
    TaskIntent, Word,
};

/// A fixed walk through patterns of bits: corners, then a full-period generator.
fn patterns() -> impl Iterator<Item = u64> {
    let corners = (0..64).flat_map(|n| [1 << n, !(1 << n), (1u64 << n) - 1]);
    let mut x = 1u64;
    let walk = std::iter::repeat_with(move || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        x
    });
    corners.chain([0, u64::MAX]).chain(walk.take(20_000))
}

/// Decoding is total and settles: what was decoded encodes to a word that decodes to the same.
fn settles<W: Word + PartialEq + std::fmt::Debug>() {
    for word in patterns() {
        let once: W = FromGuest::new(word).decode();
        assert_eq!(W::from_word(once.to_word()), once, "{word:#x}");
    }
}

#[test]
fn every_pattern_has_a_stable_meaning() {
    settles::<Header>();
    settles::<Intent>();
    settles::<CsState>();
    settles::<BoostRequest>();
    settles::<Status>();
    settles::<Hints>();
    settles::<Remote>();
    settles::<Doorbell>();
    settles::<Identity>();
}

/// Of the bits that a word defines, decoding loses none.
fn keeps<W: Word>(defined: u64) {
    for word in patterns() {
        let kept = W::from_word(word).to_word() & defined;
        assert_eq!(kept, word & defined, "{word:#x}");
        assert!(FromGuest::new(word & defined).is_canonical::<W>(), "{word:#x}");
        let reserved = word & !defined;
        assert_eq!(FromGuest::new(word).is_canonical::<W>(), reserved == 0, "{word:#x}");
    }
}

#[test]
fn every_defined_bit_is_decoded_and_no_other() {
    keeps::<CsState>(0xffff_ffff_01ff_ffff);
    keeps::<Hints>(0b1_1111);
    keeps::<Doorbell>(1 << 63 | 0xffff_ffff);
    keeps::<Identity>(1 << 63 | 0xffff_ffff);
}

#[test]
fn known_words() {
    let fifo = TaskIntent::fifo(80);
    let remote = Remote { count: 3, task: fifo };
    assert_eq!(remote.to_word(), 3 << 16 | 80 << 8 | 2);
    assert_eq!(Remote::from_word(remote.to_word()), remote);
    let hints = Hints { preferred_valid: true, exitless_timer: true, ..Hints::default() };
    assert_eq!(Hints::from_word(0b1_0100), hints);
    let cs = CsState { nmi: 1, hardirq: 2, softirq: 3, preempt_off: true, section: 4 };
    assert_eq!(CsState::from_word(0x4_0103_0201), cs);
    let bell = Doorbell { valid: true, peer: 7, vector: 3 };
    assert_eq!(Doorbell::from_word(1 << 63 | 0x7_0003), bell);
    assert_eq!(Identity::from_word(9), Identity { online: false, apic_id: 9 });
    for status in 0..4 {
        assert_eq!(Status::from_word(status).to_word(), status);
    }
    let classes = [
        Class::None,
        Class::Fair,
        Class::Fifo,
        Class::Rr,
        Class::Deadline,
        Class::Idle,
        Class::Stop,
    ];
    for (byte, class) in (0..).zip(classes) {
        assert_eq!(Intent::from_word(byte).running.class, class);
    }
}

#[test]
fn unknown_values_read_as_the_harmless_ones() {
    assert_eq!(Status::from_word(4), Status::Disabled);
    assert_eq!(Status::from_word(1 << 32 | 2), Status::Disabled);
    assert_eq!(BoostRequest::from_word(3), BoostRequest::None);
    assert_eq!(Intent::from_word(0xff).running.class, Class::None);
    assert!(!Intent::from_word(0x6363).is_urgent());
    assert!(!Header::from_word(u64::MAX).is_compatible());
}

#[test]
fn priorities_are_brought_into_range() {
    let word = |class: Class, prio: u64| class as u64 | prio << 8;
    assert_eq!(Intent::from_word(word(Class::Fifo, 255)).running, TaskIntent::fifo(99));
    assert_eq!(Intent::from_word(word(Class::Rr, 0)).running, TaskIntent::rr(1));
    assert_eq!(Intent::from_word(word(Class::Fair, 200)).running.prio, 39);
    assert_eq!(Intent::from_word(word(Class::Deadline, 7)).running.prio, 0);
}

#[test]
fn urgency_is_of_running_and_pending_and_not_of_idle() {
    let rt = Intent { running: TaskIntent::fifo(1), ..Intent::default() };
    assert!(rt.is_urgent());
    assert!(!Intent { idle: true, ..rt }.is_urgent());
    let pending = Intent { idle: true, pending: Some(TaskIntent::rr(1)), ..Intent::default() };
    assert!(pending.is_urgent());
    assert!(!Intent { running: TaskIntent::FAIR, ..Intent::default() }.is_urgent());
}

#[test]
fn urgency_orders_as_a_scheduler_picks() {
    let t = |class, prio| TaskIntent::new(class, prio);
    let order = [
        t(Class::None, 0),
        t(Class::Idle, 0),
        t(Class::Fair, 39),
        t(Class::Fair, 20),
        t(Class::Fair, 0),
        TaskIntent { declared: true, ..t(Class::Fair, 39) },
        TaskIntent::rr(1),
        TaskIntent::fifo(50),
        TaskIntent::rr(99),
        t(Class::Deadline, 0),
        t(Class::Stop, 0),
    ];
    assert!(order.is_sorted_by(|a, b| a.urgency() < b.urgency()));
}

#[test]
fn tainted_values_are_not_printed() {
    let secret = FromGuest::new(0xdead_beef_u64);
    assert_eq!(format!("{secret:?}"), "FromGuest(..)");
    assert_eq!(secret.bounded(7), 7);
    assert_eq!(secret.validate(|x| if x > 9 { Err("large") } else { Ok(x) }), Err("large"));
}

#[test]
fn a_guest_reads_in_the_host_area_what_is_there() {
    let host = HostArea::default();
    assert!(!host.is_compatible());
    host.header.store(Header::OURS.to_word(), Ordering::Relaxed);
    host.ticket.store(7, Ordering::Relaxed);
    host.hints.store(0b1000, Ordering::Relaxed);
    assert!(host.is_compatible());
    assert_eq!(host.ticket(), 7);
    assert_eq!(host.hints(), Hints { steal_valid: true, ..Hints::default() });
}

#[test]
fn preferred_mask_covers_256_vcpus_and_no_more() {
    let host = HostArea::default();
    host.preferred[3].store(1 << 63, Ordering::Relaxed);
    assert!(host.is_preferred(255) && !host.is_preferred(254) && !host.is_preferred(0));
    assert!(host.is_preferred(256), "vCPUs beyond the mask are never asked to stay away");
}
