//! Any bytes, as a page of the kernel's trace, and any text before a NUL, as what says where things
//! are in it: read or refused, never a panic, and no more events than there is room for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_sources::trace::format::Format;
use vcoop_sources::trace::page::{Layout, Page};

fuzz_target!(|bytes: &[u8]| {
    let (text, bytes) = bytes
        .iter()
        .position(|b| *b == 0)
        .map_or((&[][..], bytes), |nul| (&bytes[..nul], &bytes[nul + 1..]));
    let text = String::from_utf8_lossy(text);
    let format = Format::parse(&text);
    for layout in [Some(Layout::USUAL), Layout::parse(&text)].into_iter().flatten() {
        let Some(page) = Page::new(bytes, &layout) else { continue };
        let mut records = page.records();
        let mut count = 0;
        for record in records.by_ref() {
            count += 1;
            assert!(record.data.len() <= bytes.len());
            for name in ["common_type", "prev_pid", "prev_state", "next_comm", "ns"] {
                let Some(field) = format.as_ref().and_then(|f| f.field(name)) else { continue };
                let _ = (field.unsigned(record.data), field.signed(record.data));
                let _ = field.bytes(record.data);
            }
        }
        assert!(count <= bytes.len() / 4);
        // It ends where it ended.
        assert!(records.next().is_none());
    }
});
