//! Any text is a profile or is refused; what is read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_model::profile::Profile;

fuzz_target!(|text: &str| {
    match Profile::parse("fuzz.toml", text) {
        Ok(profile) => {
            let again = Profile::parse("again.toml", &profile.to_toml());
            assert_eq!(again.expect("what was written is a profile"), profile);
        }
        Err(found) => vcoop_fuzz::refused(found),
    }
});
