//! Any text is a file of the daemon's rules or is refused, with words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_daemon::config::Config;

fuzz_target!(|text: &str| {
    if let Err(found) = Config::parse("vcoop.toml", text) {
        vcoop_fuzz::refused(found);
    }
});
