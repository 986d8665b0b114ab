//! Any text is a publication or is refused; what is one is held against its scenarios.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_experiment::published::Publication;
use vcoop_experiment::reproduce::{Selection, Setup};
use vcoop_model::builtin::is_path;
use vcoop_model::capture::NoCaptures;

fuzz_target!(|text: &str| {
    match Publication::parse("fuzz.toml", text) {
        Ok(publication) => {
            let mut selection = Selection::default();
            selection.add(publication).expect("the only one");
            // Files of the machine are no input.
            if selection.scenarios().iter().any(|name| is_path(name)) {
                return;
            }
            if let Err(found) = Setup::new(&selection, &[], &NoCaptures) {
                vcoop_fuzz::refused(found);
            }
        }
        Err(found) => vcoop_fuzz::refused(found),
    }
});
