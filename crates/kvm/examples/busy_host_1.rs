//! The scenario `busy-host-1` on real vCPUs: vanilla, dynamic and static, interleaved (ABBA), and
//! what each does to the guest, to the host's probe and to the load. After it the ablation: who
//! fires the timer, and who boosts.
//!
//! `cargo run -p vcoop-kvm --example busy_host_1 --release [-- SECONDS [ROUNDS]]`
//!
//! In the environment: `VCOOP_ONLY`, rows to run, with `;` between; `VCOOP_SET`, overrides of the
//! scenario, with spaces between; `VCOOP_SCALARS`, set to print everything measured;
//! `VCOOP_NO_TRACE`, set to record nothing of the host's scheduler.

use std::error::Error;

use vcoop_kvm::{Options, Timer};
use vcoop_model::builtin::builtin_scenario;
use vcoop_model::capture::NoCaptures;
use vcoop_model::plan::Plan;
use vcoop_model::recording::{LatencyRecord, Recording};
use vcoop_model::scenario::{Scenario, Set};

/// One line of the table: a policy, and who fires the timer.
struct Row {
    title: &'static str,
    plan: Plan,
    options: Options,
    rounds: Vec<Recording>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let seconds: u64 = args.next().map_or(Ok(3), |a| a.parse())?;
    let rounds: u64 = args.next().map_or(Ok(2), |a| a.parse())?;
    if let Err(missing) = vcoop_kvm::available() {
        eprintln!("skipped: {missing}");
        return Ok(());
    }
    for (name, value) in vcoop_kvm::environment() {
        eprintln!("{name}: {value}");
    }
    let text = builtin_scenario("busy-host-1").ok_or("no such scenario")?;
    let row = |title, policy: &str, means: &str, timer| -> Result<Row, Box<dyn Error>> {
        let mut set = Vec::new();
        if !means.is_empty() {
            set.push(Set::parse(&format!("policy.{policy}.means=\"{means}\""))?);
        }
        for more in std::env::var("VCOOP_SET").unwrap_or_default().split_whitespace() {
            set.push(Set::parse(more)?);
        }
        let scenario = Scenario::parse("busy-host-1", text, &set, &NoCaptures)?;
        let mut plans = scenario.plans(Some(&[policy.to_owned()]))?;
        let mut plan = plans.remove(0);
        plan.duration_ns = seconds * 1_000_000_000;
        plan.warmup_ns = 300_000_000;
        let trace = std::env::var_os("VCOOP_NO_TRACE").is_none();
        let options = Options { timer, trace, ..Options::default() };
        Ok(Row { title, plan, options, rounds: Vec::new() })
    };
    let mut rows = vec![
        row("vanilla", "vanilla", "", None)?,
        row("vanilla, exitless timer", "vanilla", "", Some(Timer::Exitless))?,
        row("dynamic rr 8", "dynamic", "", None)?,
        row("dynamic, lapic timer", "dynamic", "", Some(Timer::Lapic))?,
        row("dynamic fifo 8", "dynamic", "fifo 8", None)?,
        row("dynamic nice -20", "dynamic", "nice -20", None)?,
        row("dynamic slice 100us", "dynamic", "slice 100us", None)?,
        row("wake-boost", "wake-boost", "", None)?,
        row("static rr 8", "static", "", None)?,
        row("static nice -20", "static", "nice -20", None)?,
        row("static slice 100us", "static", "slice 100us", None)?,
    ];
    for (title, advance_ns) in [("dynamic, nothing early", 0), ("dynamic, 40 us early", 40_000)] {
        let mut early = row(title, "dynamic", "", None)?;
        early.options.advance_ns = Some(advance_ns);
        rows.insert(3, early);
    }
    if let Ok(only) = std::env::var("VCOOP_ONLY") {
        rows.retain(|row| only.split(';').any(|o| o == row.title));
    }
    for round in 0..rounds {
        // There and back, so that a drift of the machine meets all alike.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for i in order {
            let Row { title, plan, options, rounds } = &mut rows[i];
            eprintln!("round {round}: {title}");
            rounds.push(vcoop_kvm::run_with(plan, plan.seed + round, &|| false, options)?);
        }
    }
    print(&rows);
    Ok(())
}

fn print(rows: &[Row]) {
    println!(
        "{:24} {:>9} {:>9} {:>9} {:>9} {:>6} | {:>9} {:>9} {:>6} | {:>6} {:>7} {:>7} {:>8}",
        "us",
        "mean",
        "w/missed",
        "p99",
        "max",
        "missed",
        "host mean",
        "host p99",
        "missed",
        "load",
        "inject%",
        "boosts",
        "boosted%"
    );
    for row in rows {
        let probe = |name: &str, of: &dyn Fn(&LatencyRecord) -> f64| {
            let values = row
                .rounds
                .iter()
                .filter_map(|r| r.latencies.iter().find(|l| l.probe == name).map(of));
            median(values.collect())
        };
        let scalar = |probe: &str, metric: &str| {
            let key = (probe.to_owned(), metric.to_owned());
            median(row.rounds.iter().filter_map(|r| Some(r.scalars.get(&key)?.value)).collect())
        };
        let mean = |l: &LatencyRecord| l.sum_ns as f64 / 1e3 / l.hist.len().max(1) as f64;
        let p99 = |l: &LatencyRecord| l.hist.value_at_quantile(0.99) as f64 / 1e3;
        let max = |l: &LatencyRecord| l.max_ns as f64 / 1e3;
        let missed = |l: &LatencyRecord| l.missed as f64;
        let (guest, host) = ("guest.cyclictest", "host.cyclictest");
        println!(
            "{:24} {:9.1} {:9.1} {:9.1} {:9.0} {:6} | {:9.1} {:9.1} {:6} | {:6.3} {:7.2} {:7.0} {:8.2}",
            row.title,
            probe(guest, &mean),
            scalar(guest, "mean_with_missed"),
            probe(guest, &p99),
            probe(guest, &max),
            probe(guest, &missed),
            probe(host, &mean),
            probe(host, &p99),
            probe(host, &missed),
            scalar("host.hog", "throughput"),
            scalar("lab", "injector_cpu"),
            scalar("guest", "boosts"),
            scalar("guest", "boosted"),
        );
    }
    if std::env::var_os("VCOOP_SCALARS").is_some() {
        for row in rows {
            for l in row.rounds.iter().flat_map(|r| &r.latencies) {
                for (part, sum) in vcoop_model::recording::Part::ALL.iter().zip(l.parts_sum) {
                    let mean = sum as f64 / 1e3 / l.hist.len().max(1) as f64;
                    println!("{} {} part {} {mean:.2} us", row.title, l.probe, part.name());
                }
                let p = |q| l.hist.value_at_quantile(q) as f64 / 1e3;
                println!(
                    "{} {} p {} {} {} {}",
                    row.title,
                    l.probe,
                    p(0.01),
                    p(0.1),
                    p(0.5),
                    p(0.9)
                );
            }
            for ((probe, metric), s) in row.rounds.iter().flat_map(|r| &r.scalars) {
                println!("{} {probe} {metric} {} {}", row.title, s.value, s.unit);
            }
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => f64::midpoint(values[(n - 1) / 2], values[n / 2]),
    }
}
