//! A host with VMX: its formats, and a page of its events. There was no such host to record on.
//!
//! The formats follow `Documentation/trace/events.rst` of the kernel and the fields of its `kvm_entry` and `kvm_exit`.
//! Numbers and names of the reasons are those of Intel's manual (SDM volume 3, appendix C). This file writes the page.

use vcoop_threads::tsc::Clock;

use super::event::{Decoder, Event, EventKind, Reason};
use super::format::Format;
use super::page::{Layout, Page};
use super::timeline::{State, Timeline};

/// Common fields at the begin of every event.
const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

const SWITCH: u16 = 300;
const SWITCH_FIELDS: &str = "\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
    \tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;\n\
    \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
    \tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n\
    \tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;\n";

const ENTRY: u16 = 1410;
const ENTRY_FIELDS: &str = "\tfield:unsigned int vcpu_id;\toffset:8;\tsize:4;\tsigned:0;\n\
    \tfield:unsigned long rip;\toffset:16;\tsize:8;\tsigned:0;\n";

const EXIT: u16 = 1411;
const EXIT_FIELDS: &str = "\tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
    \tfield:unsigned long guest_rip;\toffset:16;\tsize:8;\tsigned:0;\n\
    \tfield:u32 isa;\toffset:24;\tsize:4;\tsigned:0;\n\
    \tfield:u64 info1;\toffset:32;\tsize:8;\tsigned:0;\n\
    \tfield:u64 info2;\toffset:40;\tsize:8;\tsigned:0;\n\
    \tfield:u32 intr_info;\toffset:48;\tsize:4;\tsigned:0;\n\
    \tfield:u32 error_code;\toffset:52;\tsize:4;\tsigned:0;\n\
    \tfield:unsigned int vcpu_id;\toffset:56;\tsize:4;\tsigned:0;\n";

/// Basic exit reasons of VMX.
const REASONS: [(u32, &str); 18] = [
    (0, "EXCEPTION_NMI"),
    (1, "EXTERNAL_INTERRUPT"),
    (2, "TRIPLE_FAULT"),
    (7, "INTERRUPT_WINDOW"),
    (8, "NMI_WINDOW"),
    (10, "CPUID"),
    (12, "HLT"),
    (28, "CR_ACCESS"),
    (30, "IO_INSTRUCTION"),
    (31, "MSR_READ"),
    (32, "MSR_WRITE"),
    (33, "INVALID_STATE"),
    (40, "PAUSE_INSTRUCTION"),
    (44, "APIC_ACCESS"),
    (45, "EOI_INDUCED"),
    (48, "EPT_VIOLATION"),
    (52, "PREEMPTION_TIMER"),
    (56, "APIC_WRITE"),
];

/// Bit of a reason: the entry failed.
const FAILED: u32 = 1 << 31;

const VMX: u32 = 1;
const VCPU: i32 = 77;

fn format(id: u16, fields: &str, print: &str) -> Format {
    let text = format!("name: x\nID: {id}\nformat:\n{COMMON}{fields}\nprint fmt: {print}\n");
    Format::parse(&text).unwrap()
}

fn exits() -> Format {
    let names: Vec<String> =
        REASONS.iter().map(|(number, name)| format!("{{ {number}, \"{name}\" }}")).collect();
    let print = format!(
        "\"vcpu %u reason %s%s%s rip 0x%lx\", REC->vcpu_id, \
         (REC->isa == 1) ? __print_symbolic(REC->exit_reason & 0xffff, {}) : \
         __print_symbolic(REC->exit_reason, {{ 0x052, \"nmi\" }}, {{ 0x078, \"hlt\" }}), \
         (REC->isa == 1 && REC->exit_reason & ~0xffff) ? \" \" : \"\", \
         (REC->isa == 1) ? __print_flags(REC->exit_reason & ~0xffff, \" \", \
         {{ 0x80000000, \"FAILED_VMENTRY\" }}) : \"\", REC->guest_rip",
        names.join(", ")
    );
    format(EXIT, EXIT_FIELDS, &print)
}

/// An event's bytes, of words at offsets.
fn bytes(id: u16, size: usize, words: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[..2].copy_from_slice(&id.to_le_bytes());
    for (at, word) in words {
        bytes[*at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn switch(prev: i32, state: u32, next: i32) -> Vec<u8> {
    let (prev, next) = (prev.cast_unsigned(), next.cast_unsigned());
    bytes(SWITCH, 64, &[(4, prev), (24, prev), (32, state), (56, next)])
}

fn entry() -> Vec<u8> {
    bytes(ENTRY, 24, &[(4, VCPU.cast_unsigned())])
}

fn exit(reason: u32) -> Vec<u8> {
    bytes(EXIT, 60, &[(4, VCPU.cast_unsigned()), (8, reason), (24, VMX)])
}

/// A page as the kernel's ring buffer could have it.
fn page(events: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let began = events[0].0;
    let (mut data, mut last) = (Vec::new(), began);
    for (time, event) in events {
        let head = u32::try_from(time - last).unwrap() << 5 | (event.len() / 4) as u32;
        data.extend(head.to_le_bytes());
        data.extend(event);
        last = *time;
    }
    let mut page = began.to_le_bytes().to_vec();
    page.extend((data.len() as u64).to_le_bytes());
    page.extend(data);
    page.resize(4096, 0);
    page
}

fn read(events: &[(u64, Vec<u8>)]) -> Vec<Event> {
    let mut decoder = Decoder::default();
    assert!(decoder.learn("sched_switch", &format(SWITCH, SWITCH_FIELDS, "\"\"")));
    assert!(decoder.learn("kvm_entry", &format(ENTRY, ENTRY_FIELDS, "\"\"")));
    assert!(decoder.learn("kvm_exit", &exits()));
    let page = page(events);
    let page = Page::new(&page, &Layout::USUAL).unwrap();
    let event = |record: super::page::Record<'_>| {
        let what = decoder.decode(record.data).unwrap();
        Event { time: record.time, cpu: 0, kind: what }
    };
    page.records().map(event).collect()
}

#[test]
fn exits_of_vmx_have_their_names() {
    let tables = exits();
    let names = tables.symbols();
    let of = |number: u32| {
        let events = read(&[(1, exit(number))]);
        let EventKind::Exit { tid: VCPU, reason: Some(reason) } = events[0].kind else {
            panic!("{events:?}")
        };
        (reason, reason.name(names))
    };
    for (number, name) in REASONS {
        assert_eq!(of(number), (Reason { isa: VMX, number }, name.to_owned()));
    }
    // An entry that fails ends by the same reasons, which the flag does not hide.
    assert_eq!(of(FAILED | 33).1, "INVALID_STATE");
    assert_eq!(of(77).1, "77", "a reason that the kernel has no name for");
}

#[test]
fn time_in_guest_mode_is_told_apart_on_vmx() {
    let timer = 52;
    let events = read(&[
        (1000, switch(0, 0, VCPU)),
        (1010, entry()),
        (1060, exit(1)),
        (1070, entry()),
        // The guest's timer, by the preemption timer: the vCPU goes on at once.
        (1200, exit(timer)),
        (1204, entry()),
        // It writes its next deadline.
        (1300, exit(32)),
        (1306, entry()),
        (1500, exit(12)),
        (1520, switch(VCPU, 1, 0)),
        (1800, switch(0, 0, VCPU)),
        (1810, entry()),
        (1810, exit(FAILED | 33)),
        (1830, switch(VCPU, 1, 0)),
    ]);
    let mut timeline = Timeline::new(Clock::new(0, 1_000_000));
    timeline.know(VCPU, "guest", true);
    events.iter().for_each(|event| timeline.apply(event));
    timeline.settle(2000);
    assert!(timeline.sees_entries(VCPU));
    let spans = timeline.spans(VCPU, 1000, 1830).unwrap();
    let sum =
        |state| -> u64 { spans.iter().filter(|s| s.state == state).map(|s| s.to - s.from).sum() };
    assert_eq!(sum(State::Guest), 50 + 130 + 96 + 194);
    assert_eq!(sum(State::Running), 10 + 10 + 4 + 6 + 20 + 30);
    assert_eq!(
        sum(State::Guest)
            + sum(State::Running)
            + sum(State::Waking)
            + sum(State::Preempted)
            + sum(State::Asleep),
        830,
        "{spans:?}"
    );
    let timers = events.iter().filter(|event| {
        matches!(event.kind, EventKind::Exit { reason: Some(reason), .. } if reason.number == timer)
    });
    assert_eq!(timers.count(), 1);
}
