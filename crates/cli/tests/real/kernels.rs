//! What the fair class of a distribution's kernel does with a thread that wakes up beside loops, measured in a guest and
//! simulated. The guest's clock counts instructions, so the results are the same on a busy host.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vcoop_stock::{Kernel, KernelTree, Options, guest_program};
use vcoop_testing::{Outcome, long, test};

use crate::vcoop::{guest, have, vcoop};

vcoop_testing::beside_others!();

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../stock/guest/wakeups.c");

/// The scenario of the same threads.
const SCENARIO: &str = "threads-1";

/// What the thread has, its work in microseconds, and the loops beside it.
type Cell = (&'static str, u32, u32);

const CELLS: [Cell; 2] = [("other", 1000, 2), ("slice", 1000, 2)];

/// All that leave the thread within its share of the CPU.
fn all() -> Vec<Cell> {
    let beside = |have, us| [(have, us, 1), (have, us, 2)];
    let each = |have| [100, 1000, 3000].into_iter().flat_map(move |us| beside(have, us));
    ["other", "slice", "nice"]
        .into_iter()
        .flat_map(each)
        .filter(|&(_, us, hogs)| (us, hogs) != (3000, 2))
        .collect()
}

/// Mean, median, 90th and 99th percentile, and maximum in us.
type Late = [f64; 5];

/// The simulated ones by cell, on a kernel of which `sets` tell.
fn simulated(cells: &[Cell], sets: &[&str]) -> Vec<Late> {
    let fixed = ["--json", "--quiet", "--repeats=4", "--duration=4s", "--set=host.pcpus=1"];
    let sets: Vec<String> = sets.iter().map(|set| format!("--set={set}")).collect();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let result = vcoop(&[&["run", SCENARIO][..], &fixed, &sets].concat()).json();
    let late = |cell: &Cell| -> Late {
        let has = ["other", "slice 300us", "nice -5"];
        let has = has.into_iter().find(|has| has.starts_with(cell.0)).unwrap();
        let of = |series: &Value| {
            series["metric"] == "latency"
                && series["params"]["thread_policy"] == has
                && series["params"]["work_us"] == cell.1
                && series["params"]["hog_count"] == cell.2
        };
        let series = result["series"].as_array().unwrap().iter().find(|s| of(s)).unwrap();
        ["mean", "p50", "p90", "p99", "max"].map(|q| series[q].as_f64().unwrap_or(f64::NAN))
    };
    cells.iter().map(late).collect()
}

fn as_simulated(name: &str, kernel: Kernel, sets: &[&str]) -> Outcome {
    let program = have(guest_program(Path::new(SOURCE)))?;
    let options = Options {
        name: name.to_owned(),
        counted: true,
        kernel: Some(kernel),
        programs: vec![program],
        ..Options::default()
    };
    let vm = guest(&options)?;
    let run = |line: &str| vm.run(line, Duration::from_secs(300)).unwrap().stdout;
    // What is left of the boot.
    run("wakeups other 100 1 0.5");
    let cells = long(CELLS.to_vec(), all());
    let seconds = long(2, 4);
    let mut wrong = String::new();
    println!("{}", run("uname -r").trim());
    for (cell @ (has, us, hogs), simulated) in cells.iter().zip(simulated(&cells, sets)) {
        let said = run(&format!("wakeups {has} {us} {hogs} {seconds}"));
        let values: Vec<f64> = said.split_whitespace().map(|v| v.parse().unwrap()).collect();
        let measured: Late = values[1..].try_into().unwrap();
        println!("{has} {us} {hogs}: kernel {measured:.1?}, simulated {simulated:.1?}");
        // The wake-up itself takes some instructions, and the tail of a few seconds has few samples.
        let off = (measured[0] - simulated[0]).abs();
        if off > 20.0 + simulated[0] / 4.0 {
            wrong += &format!("{cell:?}: {measured:?}, simulated {simulated:?}; ");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    Ok(())
}

test!("qemu", linux_6_12_schedules_threads_as_simulated, || -> Outcome {
    let sets = ["host.sched.fair=eevdf-6.12", "host.sched.yield_forfeits=true"];
    as_simulated("threads612", have(KernelTree::newest("6.12"))?.kernel, &sets)
});

test!("qemu", linux_7_schedules_threads_as_simulated, || -> Outcome {
    let sets = ["host.sched.fair=eevdf-7.3", "host.preemption=lazy"];
    as_simulated("threads7", have(KernelTree::newest("7"))?.kernel, &sets)
});
