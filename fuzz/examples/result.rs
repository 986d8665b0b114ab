//! Any bytes are a `result.json` or are refused; what is one can be shown, as text and as a page.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_experiment::result::Document;
use vcoop_report::{Style, render, render_html};

fuzz_target!(|bytes: &[u8]| {
    let Ok(document) = serde_json::from_slice::<Document>(bytes) else { return };
    let _ = (render(&document, Style::default()), render_html(&document));
});
