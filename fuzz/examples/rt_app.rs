//! Any text, as an rt-app file: read or refused, never a panic; what is read has its peers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_model::plan::Act;
use vcoop_model::rt_app;

fuzz_target!(|text: &str| {
    let Ok(threads) = rt_app::parse(text) else { return };
    assert!(!threads.is_empty());
    for thread in &threads {
        assert!(!thread.acts.is_empty());
        for act in &thread.acts {
            match act {
                Act::Resume { peer } => assert!((*peer as usize) < threads.len()),
                Act::Loop { to, times } => {
                    assert!((*to as usize) < thread.acts.len() && *times > 0);
                }
                _ => {}
            }
        }
    }
});
