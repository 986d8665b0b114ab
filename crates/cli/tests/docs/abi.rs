//! The page of the ABI.

use std::mem::{offset_of, size_of};

use vcoop_abi::conformance::Rule;
use vcoop_abi::discovery::{self, Features};
use vcoop_abi::{BoostRequest, CsState, GuestArea, Header, Hints, HostArea, Intent, Status, Word};

use super::page;

/// The rows of a page's tables that begin with this word's name, as `(first cell, second cell)`.
fn rows(text: &str, section: &str) -> Vec<(String, String)> {
    let (_, rest) = text.split_once(&format!("## {section}\n")).unwrap();
    let part = rest.split("\n## ").next().unwrap().split("\n### ").next().unwrap();
    part.lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
        .map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            (cells.next().unwrap().to_owned(), cells.next().unwrap().to_owned())
        })
        .collect()
}

/// Two tables say the same: a row for each, in order.
fn assert_rows(text: &str, section: &str, expected: &[(String, &str)]) {
    let expected: Vec<(String, String)> =
        expected.iter().map(|(a, b)| (a.clone(), (*b).to_owned())).collect();
    assert_eq!(rows(text, section), expected, "{section}");
}

#[test]
fn the_abi_page_has_the_offsets_of_the_types() {
    let text = page("abi.md");
    macro_rules! offsets {
        ($area:ident: $($field:ident),*) => {
            [$((offset_of!($area, $field).to_string(), concat!("`", stringify!($field), "`"))),*]
        };
    }
    let guest = offsets!(GuestArea: header, intent, cs, request, ack, deadline_tsc, pong, pong_tsc,
        remote);
    assert_rows(&text, "Guest area", &guest);
    let host = offsets!(HostArea: header, status, ticket, budget_left_ns, steal_ns, hints, ping,
        tell_idle, preferred);
    assert_rows(&text, "Host area", &host);
    for size in [size_of::<GuestArea>(), size_of::<HostArea>()] {
        assert!(text.contains(&format!("{size} bytes")), "{size}");
    }
}

#[test]
fn the_abi_page_has_the_bits_of_the_encodings() {
    let text = page("abi.md");
    let bits = |mask: u64| match (mask.trailing_zeros(), 63 - mask.leading_zeros()) {
        (lo, hi) if lo == hi => lo.to_string(),
        (lo, hi) => format!("{lo}-{hi}"),
    };
    let cs = |set: fn(&mut CsState)| {
        let mut cs = CsState::default();
        set(&mut cs);
        bits(cs.to_word())
    };
    let sections = [
        (cs(|c| c.nmi = u8::MAX), "NMI depth"),
        (cs(|c| c.hardirq = u8::MAX), "hard interrupt depth"),
        (cs(|c| c.softirq = u8::MAX), "softirq depth"),
        (cs(|c| c.preempt_off = true), "preemption off"),
        (cs(|c| c.section = u32::MAX), "section number"),
    ];
    assert_rows(&text, "Critical-section word", &sections);
    // The bytes of a task: found by what decodes from them.
    let byte = |n: u32| bits(0xff << (8 * n));
    let running = Intent::from_word(0x5002).running;
    assert_eq!((running.class as u8, running.prio), (2, 80));
    let pending = Intent::from_word(0x5002_0000 | Intent::PENDING_VALID).pending.unwrap();
    assert_eq!((pending.class as u8, pending.prio), (2, 80));
    let intent = [
        (byte(0), "class of the running task"),
        (byte(1), "its priority"),
        (byte(2), "class of the pending task"),
        (byte(3), "its priority"),
        (bits(Intent::PENDING_VALID), "the pending half counts"),
        (bits(Intent::IDLE), "idle loop"),
    ];
    assert_rows(&text, "Intent word", &intent);
    let hint = |set: fn(&mut Hints)| {
        let mut hints = Hints::default();
        set(&mut hints);
        bits(hints.to_word())
    };
    let hints = [
        (hint(|h| h.dedicated = true), "dedicated"),
        (hint(|h| h.unpreempted_when_boosted = true), "unpreempted when boosted"),
        (hint(|h| h.preferred_valid = true), "preferred mask valid"),
        (hint(|h| h.steal_valid = true), "steal valid"),
        (hint(|h| h.exitless_timer = true), "exitless timer"),
    ];
    assert_rows(&text, "Hints word", &hints);
    let feature = |f: Features| bits(u64::from(f.0));
    let features = [
        (feature(Features::BOOST), "boost"),
        (feature(Features::EXITLESS_TIMER), "exitless timer"),
        (feature(Features::PREFERRED), "preferred mask"),
        (feature(Features::STEAL), "steal clock"),
    ];
    assert_rows(&text, "Features", &features);
    let ours = Header::OURS;
    let header = [
        (bits(Header { abi: u16::MAX, protocol: 0, ..ours }.to_word() & 0xffff), "ABI version"),
        (bits(0xffff_0000), "protocol"),
        (bits(u64::from(u32::MAX) << 32), "magic"),
    ];
    assert_eq!(Header { abi: 0, protocol: 1, ..ours }.to_word() & 0xffff_ffff, 1 << 16);
    assert_rows(&text, "Header word", &header);
}

#[test]
fn the_abi_page_has_the_values_and_every_rule() {
    let text = page("abi.md");
    let values = [
        (Status::Disabled as u64, "disabled"),
        (Status::Normal as u64, "normal"),
        (Status::Boosted as u64, "boosted"),
        (Status::Throttled as u64, "throttled"),
    ];
    assert_rows(&text, "Status word", &values.map(|(v, name)| (v.to_string(), name)));
    let values = [
        (BoostRequest::None as u64, "none"),
        (BoostRequest::Unboost as u64, "unboost"),
        (BoostRequest::Boost as u64, "boost"),
    ];
    assert_rows(&text, "Request word", &values.map(|(v, name)| (v.to_string(), name)));
    for number in [
        discovery::LEAF_BASE,
        discovery::LEAF_FIRST,
        discovery::LEAF_STEP,
        discovery::MSR_REGISTER,
        discovery::MSR_NOTIFY,
        Header::MAGIC,
    ] {
        assert!(text.contains(&format!("`{number:#x}`")), "{number:#x}");
    }
    let rules = [
        Rule::SingleWriter,
        Rule::WholeWords,
        Rule::HeaderFirst,
        Rule::DefinedEncoding,
        Rule::StatusGates,
        Rule::AckWithinTicket,
        Rule::AckMonotone,
        Rule::UnboostWhenBoosted,
        Rule::NotifyMeansIt,
        Rule::BoostIsAnswered,
        Rule::TicketMonotone,
        Rule::TicketBeforeInterrupt,
        Rule::StatusCoversBoost,
        Rule::DisabledUntilRegistered,
        Rule::NotifyEndsBoost,
        Rule::WithinBudget,
    ];
    assert_eq!(rules.len(), Rule::COUNT);
    for rule in rules {
        assert!(text.contains(&format!("| `{rule:?}` |")), "{rule:?}");
    }
}
