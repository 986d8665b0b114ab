//! Compiles a C program against `include/vcoop_abi.h` and compares what it prints with the Rust
//! types: sizes, offsets, and every constant and encoding.

use std::fmt::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use std::process::Command;

use vcoop_abi::discovery::{self, Features, SIGNATURE};
use vcoop_abi::layout::{PAGE_SIZE, PREFERRED_WORDS};
use vcoop_abi::window::{self, Doorbell, GuestPage, GuestReport, Identity, WindowHeader};
use vcoop_abi::{
    ABI_VERSION, BoostRequest, Class, CsState, GuestArea, Header, Hints, HostArea, Intent,
    PROTOCOL, Remote, Status, TaskIntent, Word,
};

/// C expressions and what Rust says they are.
fn expectations() -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = Vec::new();
    let mut is = |c: &str, rust: u64| all.push((c.to_owned(), rust));

    macro_rules! area {
        ($c:literal, $rust:ident: $($field:ident),*) => {
            is(concat!("sizeof(struct ", $c, ")"), size_of::<$rust>() as u64);
            is(concat!("_Alignof(struct ", $c, ")"), align_of::<$rust>() as u64);
            $(is(
                concat!("offsetof(struct ", $c, ", ", stringify!($field), ")"),
                offset_of!($rust, $field) as u64,
            );)*
        };
    }
    area!("vcoop_guest_area", GuestArea: header, intent, cs, request, ack, deadline_tsc, pong,
        pong_tsc, remote);
    area!("vcoop_host_area", HostArea: header, status, ticket, budget_left_ns, steal_ns, hints,
        ping, preferred);
    area!("vcoop_window_header", WindowHeader: host, doorbell, guest, vcpus, tsc_khz,
        registration);
    area!("vcoop_guest_report", GuestReport: vcpu, events, notified, deadlines, stale, dropped,
        latency_sum_ns, latency_max_ns, latency);
    area!("vcoop_guest_page", GuestPage: area, report);

    is("VCOOP_WINDOW_MOST_SLOTS", window::MOST_SLOTS);
    is("VCOOP_WINDOW_RAM_ALIGNMENT", window::RAM_ALIGNMENT);
    is("VCOOP_IVSHMEM_VENDOR", window::IVSHMEM_ID.0.into());
    is("VCOOP_IVSHMEM_DEVICE", window::IVSHMEM_ID.1.into());
    is("VCOOP_IVSHMEM_WINDOW_BAR", window::IVSHMEM_WINDOW_BAR.into());
    is("VCOOP_DOORBELL_REGISTER", window::DOORBELL_REGISTER);
    is("VCOOP_DOORBELL_VALID", Doorbell::VALID);
    is("VCOOP_VCPU_ONLINE", Identity::ONLINE);
    is("VCOOP_LATENCY_BUCKETS", window::LATENCY_BUCKETS as u64);
    for ns in (0..64).map(|bit| (1_u64 << bit).wrapping_mul(27) / 16).chain([u64::MAX]) {
        is(&format!("vcoop_latency_bucket(UINT64_C({ns}))"), window::latency_bucket(ns) as u64);
    }

    is("VCOOP_ABI_VERSION", ABI_VERSION.into());
    is("VCOOP_PROTOCOL", PROTOCOL.into());
    is("VCOOP_PAGE_SIZE", PAGE_SIZE);
    is("VCOOP_PREFERRED_WORDS", PREFERRED_WORDS as u64);
    is("VCOOP_HEADER", Header::OURS.to_word());

    let fifo = TaskIntent::fifo(80);
    let fair = TaskIntent::new(Class::Fair, 15);
    is(
        "VCOOP_TASK(VCOOP_CLASS_FAIR, -5 + 20) | \
         VCOOP_TASK(VCOOP_CLASS_FIFO, 80) << VCOOP_INTENT_PENDING_SHIFT | \
         VCOOP_INTENT_PENDING_VALID | VCOOP_INTENT_IDLE",
        Intent { running: fair, pending: Some(fifo), idle: true }.to_word(),
    );
    let declared = TaskIntent { declared: true, ..fair };
    is(
        "VCOOP_TASK(VCOOP_CLASS_FAIR | VCOOP_TASK_DECLARED, 15) | \
         UINT64_C(7) << VCOOP_REMOTE_COUNT_SHIFT",
        Remote { count: 7, task: declared }.to_word(),
    );
    for (name, class) in [
        ("NONE", Class::None),
        ("FAIR", Class::Fair),
        ("FIFO", Class::Fifo),
        ("RR", Class::Rr),
        ("DEADLINE", Class::Deadline),
        ("IDLE", Class::Idle),
        ("STOP", Class::Stop),
    ] {
        is(&format!("VCOOP_CLASS_{name}"), class as u64);
    }
    is(
        "UINT64_C(1) << VCOOP_CS_NMI_SHIFT | UINT64_C(2) << VCOOP_CS_HARDIRQ_SHIFT | \
         UINT64_C(3) << VCOOP_CS_SOFTIRQ_SHIFT | VCOOP_CS_PREEMPT_OFF | \
         UINT64_C(0x89abcdef) << VCOOP_CS_SECTION_SHIFT",
        CsState { nmi: 1, hardirq: 2, softirq: 3, preempt_off: true, section: 0x89ab_cdef }
            .to_word(),
    );
    is("VCOOP_REQUEST_NONE", BoostRequest::None.to_word());
    is("VCOOP_REQUEST_UNBOOST", BoostRequest::Unboost.to_word());
    is("VCOOP_REQUEST_BOOST", BoostRequest::Boost.to_word());
    is("VCOOP_STATUS_DISABLED", Status::Disabled.to_word());
    is("VCOOP_STATUS_NORMAL", Status::Normal.to_word());
    is("VCOOP_STATUS_BOOSTED", Status::Boosted.to_word());
    is("VCOOP_STATUS_THROTTLED", Status::Throttled.to_word());

    let none = Hints::default();
    is("VCOOP_HINT_DEDICATED", Hints { dedicated: true, ..none }.to_word());
    is(
        "VCOOP_HINT_UNPREEMPTED_WHEN_BOOSTED",
        Hints { unpreempted_when_boosted: true, ..none }.to_word(),
    );
    is("VCOOP_HINT_PREFERRED_VALID", Hints { preferred_valid: true, ..none }.to_word());
    is("VCOOP_HINT_STEAL_VALID", Hints { steal_valid: true, ..none }.to_word());
    is("VCOOP_HINT_EXITLESS_TIMER", Hints { exitless_timer: true, ..none }.to_word());

    is("VCOOP_LEAF_FIRST", discovery::LEAF_FIRST.into());
    is("VCOOP_LEAF_BASE", discovery::LEAF_BASE.into());
    is("VCOOP_LEAF_STEP", discovery::LEAF_STEP.into());
    is("VCOOP_LEAF_BLOCKS", discovery::LEAF_BLOCKS.into());
    is("sizeof(VCOOP_SIGNATURE)", SIGNATURE.len() as u64);
    is("VCOOP_FEATURE_BOOST", Features::BOOST.0.into());
    is("VCOOP_FEATURE_EXITLESS_TIMER", Features::EXITLESS_TIMER.0.into());
    is("VCOOP_FEATURE_PREFERRED", Features::PREFERRED.0.into());
    is("VCOOP_FEATURE_STEAL", Features::STEAL.0.into());
    is("VCOOP_MSR_REGISTER", discovery::MSR_REGISTER.into());
    is("VCOOP_MSR_NOTIFY", discovery::MSR_NOTIFY.into());
    is("VCOOP_REGISTER_ENABLE", discovery::REGISTER_ENABLE);
    for (i, byte) in SIGNATURE.iter().enumerate() {
        is(&format!("VCOOP_SIGNATURE[{i}]"), (*byte).into());
    }
    all
}

#[test]
fn the_c_header_says_what_the_rust_types_say() {
    let expected = expectations();
    let mut source = String::from(
        "#include <inttypes.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         #include \"vcoop_abi.h\"\n#include \"vcoop_abi.h\"\nint main(void)\n{\n",
    );
    for (expression, _) in &expected {
        writeln!(source, "\tprintf(\"%\" PRIu64 \"\\n\", (uint64_t)({expression}));").unwrap();
    }
    source.push_str("\treturn 0;\n}\n");

    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (dir.join("header_check.c"), dir.join("header_check"));
    std::fs::write(&file, source).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
        .args([include.as_path(), file.as_path(), Path::new("-o"), program.as_path()])
        .output()
        .unwrap();
    assert!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success());
    let printed = String::from_utf8(ran.stdout).unwrap();
    let values: Vec<u64> = printed.lines().map(|l| l.parse().unwrap()).collect();
    assert_eq!(values.len(), expected.len());
    for ((expression, rust), c) in expected.iter().zip(values) {
        assert_eq!(c, *rust, "{expression}");
    }
}
