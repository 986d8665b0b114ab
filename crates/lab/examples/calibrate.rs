//! Calibrates this host and prints what was timed, then the profile.
//!
//! `cargo run -p vcoop-lab --example calibrate --release [-- quick] [host-only]`

use std::error::Error;

use vcoop_lab::{CalibrateOptions, calibrate};

fn main() -> Result<(), Box<dyn Error>> {
    let has = |word: &str| std::env::args().any(|a| a == word);
    let options =
        CalibrateOptions { quick: has("quick"), host_only: has("host-only"), ..Default::default() };
    let found = calibrate(options, &|| false, &|name| eprintln!("{name}"))?;
    for m in &found.measures {
        let d = m.distribution;
        println!(
            "{:22} {:8} {:8} {:8} {:8} n={} blocks={} stable={}",
            m.name, d.median_ns, d.p10_ns, d.p90_ns, d.max_ns, d.n, m.blocks, m.stable
        );
    }
    println!("{:?}\n{:?}", found.skipped, found.conditions);
    print!("{}", found.profile.to_toml());
    Ok(())
}
