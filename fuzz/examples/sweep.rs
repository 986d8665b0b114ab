//! Any text is a sweep or is refused: reading it, and asking for a point of it, never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_model::sweep::Sweep;
use vcoop_sweep::design::Design;

fuzz_target!(|text: &str| {
    match Sweep::parse("fuzz.toml", text) {
        Ok(sweep) => {
            let design = Design::new(&sweep);
            assert!(!design.is_empty() && design.len() <= 1_000_000);
            for point in [0, design.len() / 2, design.len() - 1] {
                assert_eq!(design.point(&sweep, point).len(), sweep.axes.len());
            }
        }
        Err(found) => vcoop_fuzz::refused(found),
    }
});
