//! Any bytes, as a trace: read or refused, never a panic, never more memory than the limits say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_capture::{Capture, Limits, Shape};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits {
        max_text_bytes: 1 << 22,
        max_line_bytes: 1024,
        max_threads: 256,
        max_steps: 1 << 14,
        max_cpus: 64,
        max_event_names: 8,
        ..Limits::default()
    };
    let Ok(capture) = Capture::read(bytes, &limits) else { return };
    // The account closes: every CPU's time is somebody's, and all demand was on some CPU.
    let mut busy = 0;
    for time in capture.losses.cpus.values() {
        assert_eq!(time.busy_ns + time.idle_ns + time.unattributed_ns, capture.span_ns);
        busy += time.busy_ns;
    }
    assert_eq!(busy, capture.demand_ns());
    assert!(capture.losses.to_string().lines().count() < 32);
    for shape in [
        Shape::default(),
        Shape { demand_ppm: 2_500_000, max_threads: Some(3), comms: vec!["c*".to_owned()] },
    ] {
        let replay = capture.replay(&shape);
        let threads = replay.threads.len();
        for step in replay.threads.iter().flat_map(|t| t.steps.iter()) {
            if let vcoop_model::plan::Step::Wake(peer) = step {
                assert!((*peer as usize) < threads);
            }
        }
    }
});
