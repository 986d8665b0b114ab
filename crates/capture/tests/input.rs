//! Compression, limits, and inputs that are refused.

mod common;

use std::io::Write as _;

use common::Trace;
use vcoop_capture::{Capture, CaptureError, Limits};

fn trace() -> String {
    let mut t = Trace::default();
    for i in 0..200 {
        let us = i * 100;
        t.timer(us, 0, 0, 1).switch(us, 0, 0, "R", 1).switch(us + 30, 0, 1, "S", 0);
    }
    t.0
}

#[test]
fn gzip_and_zstd_say_the_same_as_plain_text() {
    let text = trace();
    let plain = Capture::read(text.as_bytes(), &Limits::default()).unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gz.write_all(text.as_bytes()).unwrap();
    let gz = gz.finish().unwrap();
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zst = ruzstd::encoding::compress_to_vec(text.as_bytes(), level);
    assert!(gz.len() < text.len() / 2 && zst.len() < text.len());
    for bytes in [&gz[..], &zst[..]] {
        let read = Capture::read(bytes, &Limits::default()).unwrap();
        assert_eq!(read.threads, plain.threads);
        assert_eq!(read.losses, plain.losses);
    }
    // A truncated file is an error, not a shorter capture.
    for bytes in [&gz[..gz.len() / 2], &zst[..zst.len() / 2]] {
        assert!(matches!(Capture::read(bytes, &Limits::default()), Err(CaptureError::Read { .. })));
    }
}

#[test]
fn limits_refuse_by_name() {
    let text = trace();
    let base = Limits::default();
    for (limits, name) in [
        (Limits { max_text_bytes: 1000, ..base }, "max_text_bytes"),
        (Limits { max_threads: 0, ..base }, "max_threads"),
        (Limits { max_steps: 100, ..base }, "max_steps"),
    ] {
        let error = Capture::read(text.as_bytes(), &limits).unwrap_err();
        assert!(matches!(error, CaptureError::Limit { name: n, .. } if n == name), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn lines_beyond_a_limit_are_counted() {
    let mut t = Trace::default();
    t.timer(0, 0, 0, 1).switch(0, 0, 0, "R", 1).switch(100, 5000, 0, "R", 1);
    t.line(&"x".repeat(20_000)).switch(90_000_000_000, 0, 1, "S", 0);
    for i in 0..100 {
        t.event(50, 0, 1, ".....", &format!("event_{i}: x"));
    }
    t.switch(100, 0, 1, "S", 0);
    let c = t.read();
    assert_eq!(c.losses.not_understood, 3);
    let first: Vec<u64> = c.losses.first_not_understood.iter().map(|f| f.0).collect();
    assert_eq!(first, [3, 4, 5]);
    assert_eq!((c.losses.other_events.len(), c.losses.other_events_unnamed), (64, 36));
    let shown = c.losses.to_string();
    assert!(shown.contains("line 4: line too long") && shown.lines().count() < 20, "{shown}");
}

#[test]
fn inputs_without_a_switch_are_refused_with_the_first_problem() {
    let error = Capture::read(&b"hello\nworld\n"[..], &Limits::default()).unwrap_err().to_string();
    assert!(error.contains("2 lines") && error.contains("line 1: not a trace line"), "{error}");
    let empty = Capture::read(&b""[..], &Limits::default()).unwrap_err().to_string();
    assert_eq!(empty, "no sched_switch event in 0 lines");
    let binary = Capture::read(&b"\x7fELF\0\0\0\n"[..], &Limits::default());
    assert!(matches!(binary, Err(CaptureError::NotText)));
}

#[test]
fn unknown_names_and_missing_files_are_said() {
    let error = Capture::builtin("nope").unwrap_err().to_string();
    assert!(error.contains("nope") && error.contains("build-serve"), "{error}");
    let missing = Capture::open(std::path::Path::new("no/such/file"), &Limits::default());
    assert!(matches!(missing, Err(CaptureError::Open(_))));
}

#[test]
fn ring_buffer_overruns_and_late_buffers_are_accounted_for() {
    let mut t = Trace::default();
    t.line("# entries-in-buffer/entries-written: 4/30   #P:4")
        .timer(0, 0, 0, 1)
        .switch(0, 0, 0, "R", 1)
        .line("##### CPU 1 buffer started ####")
        .switch(400, 1, 2, "S", 0)
        .switch(1000, 0, 1, "S", 0);
    let c = t.read();
    assert_eq!((c.losses.overwritten, c.losses.silent_cpus, c.cpus), (26, 2, 4));
    let late = c.losses.cpus[&1];
    assert_eq!((late.unattributed_ns, late.idle_ns), (400_000, 600_000));
    assert!(c.losses.is_lossy());
}
