//! Prints what a capture holds and what was lost: `capture-report FILE|builtin:NAME`.

use std::collections::BTreeMap;

use vcoop_capture::{Limits, Loader};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "builtin:build-serve".to_owned());
    let capture = Loader::new(Limits::default()).capture(&name)?;
    let mut by_name: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for thread in &capture.threads {
        let entry = by_name.entry(&thread.name).or_default();
        entry.0 += 1;
        entry.1 += thread.demand_ns;
    }
    let mut rows: Vec<_> = by_name.into_iter().collect();
    rows.sort_by_key(|(name, (_, demand))| (std::cmp::Reverse(*demand), *name));
    println!("{:>8} {:>12}  name", "threads", "demand ms");
    for (name, (threads, demand)) in rows {
        println!("{threads:>8} {:>12}  {name}", demand / 1_000_000);
    }
    let per_second = capture.demand_ns() as f64 / capture.span_ns.max(1) as f64;
    println!("demand: {per_second:.3} CPU-seconds a second, {} threads", capture.threads.len());
    println!("{}", capture.losses);
    Ok(())
}
