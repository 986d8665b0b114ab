//! Any text is a scenario or is refused: reading it, making its plans and showing its errors never
//! panic. Text up to a NUL is the scenario, text after it an override.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_model::capture::NoCaptures;
use vcoop_model::scenario::{Scenario, Set};

fuzz_target!(|text: &str| {
    let (text, option) = text.split_once('\0').unwrap_or((text, ""));
    let sets: Vec<Set> = Set::parse(option).into_iter().collect();
    match Scenario::parse("fuzz.toml", text, &sets, &NoCaptures) {
        Ok(scenario) => {
            scenario.plans(None).expect("the policies compared are there");
        }
        Err(found) => vcoop_fuzz::refused(found),
    }
});
