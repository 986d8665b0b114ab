//! Any bytes, as the `manifest.json` and the only part of a sweep's folder: read or refused, never a
//! panic. The bytes up to the last `}` are the manifest.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use vcoop_sweep::manifest::manifest;
use vcoop_sweep::parquet_reader::records;
use vcoop_sweep::tally::Tally;

fuzz_target!(|bytes: &[u8]| {
    let dir = std::env::temp_dir().join(format!("vcoop-fuzz-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a temporary folder");
    let end = bytes.iter().rposition(|b| *b == b'}').map_or(0, |at| at + 1);
    let write = |name: &str, bytes: &[u8]| fs::write(dir.join(name), bytes).expect("written");
    write("manifest.json", &bytes[..end]);
    write("part-000000.parquet", &bytes[end..]);
    if let Ok(found) = manifest(&dir)
        && found.parts() <= 16
    {
        let _ = (records(&dir, &found, &["ratio"]), Tally::of(&dir));
    }
});
