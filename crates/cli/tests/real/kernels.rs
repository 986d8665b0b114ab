//! What the scheduler of a distribution's kernel does with a thread that wakes up beside loops, measured in a guest and
//! simulated. The guest's clock counts instructions, so the results are the same on a busy host.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vcoop_stock::{Kernel, KernelTree, Options, guest_program};
use vcoop_testing::{Outcome, long, test};

use crate::vcoop::{guest, have, vcoop};

vcoop_testing::concurrent!();

pub(crate) const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../stock/guest/wakeups.c");

/// The scenario of the same threads.
const SCENARIO: &str = "threads-1";

/// The same in groups.
const GROUPS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/groups.toml");

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

/// The thread, which works for 1 ms, in a control group, and loops.
#[derive(Clone, Copy)]
struct Grouped {
    /// `cpu.weight` of the group.
    weight: u32,
    /// `cpu.max` of the group, quota and period in ms.
    max: Option<(u32, u32)>,
    /// Loops in it.
    members: u32,
    /// `cpu.weight` of the group of the other loops, and their number.
    other: u32,
    hogs: u32,
}

const fn grouped(weight: u32, members: u32, other: u32, hogs: u32) -> Grouped {
    Grouped { weight, max: None, members, other, hogs }
}

const fn limited(max: (u32, u32), members: u32, hogs: u32) -> Grouped {
    Grouped { max: Some(max), ..grouped(100, members, 100, hogs) }
}

/// Where all threads of a CPU share a queue, those of one group matter to another one.
const GROUPED: [Grouped; 4] = [
    grouped(100, 0, 300, 2),
    grouped(100, 1, 100, 1),
    grouped(100, 1, 100, 0),
    limited((30, 100), 1, 1),
];

fn all_grouped() -> Vec<Grouped> {
    let more = [
        grouped(100, 0, 200, 1),
        grouped(100, 1, 100, 2),
        limited((50, 100), 1, 0),
        limited((8, 100), 0, 1),
        limited((15, 100), 0, 1),
        limited((20, 40), 1, 0),
    ];
    [&GROUPED[..], &more].concat()
}

impl Grouped {
    /// The arguments of `wakeups`.
    fn line(self, seconds: u32) -> String {
        let Self { weight, max, members, other, hogs } = self;
        let max = max.map_or("max".to_owned(), |(quota, period)| {
            format!("'{} {}'", 1000 * quota, 1000 * period)
        });
        format!("other 1000 {} {seconds} {weight} {max} {members} {other}", members + hogs)
    }

    /// The same, simulated on a kernel of which `sets` tell.
    fn simulated(self, sets: &[&str]) -> Late {
        let scaled = |weight: u32| weight * 1024 / 100;
        let loops = |name: &str, count: u32| {
            let enabled = format!("load.{name}.enabled={}", count > 0);
            [enabled, format!("load.{name}.count={}", count.max(1))]
        };
        let max = self.max.map(|(quota, period)| format!("group.own.cpu_max={quota}ms/{period}ms"));
        let sets = sets.iter().map(|&set| set.to_owned()).chain(max);
        let sets = sets.chain([
            format!("group.own.weight={}", scaled(self.weight)),
            format!("group.other.weight={}", scaled(self.other)),
        ]);
        let sets = sets.chain(loops("member", self.members)).chain(loops("hog", self.hogs));
        let found = latencies(GROUPS, &sets.collect::<Vec<_>>());
        assert_eq!(found.len(), 1, "{found:?}");
        late(&found[0])
    }
}

/// One loop beside the thread with a reservation, as `1d` of `wakeups` has it.
const RESERVED: [&str; 2] =
    ["load.hog.policy=deadline 3ms/9700us", "host.sched.dl_admission=false"];

/// Mean, median, 90th and 99th percentile, and maximum in us.
type Late = [f64; 5];

fn late(series: &Value) -> Late {
    ["mean", "p50", "p90", "p99", "max"].map(|q| series[q].as_f64().unwrap_or(f64::NAN))
}

/// The latencies of a simulation.
fn latencies(scenario: &str, sets: &[String]) -> Vec<Value> {
    let sets = sets.iter().map(|set| format!("--set={set}"));
    let args = ["run", scenario, "--json", "--quiet", "--repeats=4", "--duration=4s"];
    let args: Vec<String> = args.map(str::to_owned).into_iter().chain(sets).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut result = vcoop(&args).json();
    let mut series: Vec<Value> = std::mem::take(result["series"].as_array_mut().unwrap());
    series.retain(|series| series["metric"] == "latency");
    series
}

/// The simulated ones by cell, on a kernel of which `sets` tell.
fn simulated(cells: &[Cell], sets: &[&str]) -> Vec<Late> {
    let sets: Vec<String> =
        sets.iter().chain(&["host.pcpus=1"]).map(|&set| set.to_owned()).collect();
    let found = latencies(SCENARIO, &sets);
    let of = |cell: &Cell| {
        let has = ["other", "slice 300us", "nice -5"];
        let has = has.into_iter().find(|has| has.starts_with(cell.0)).unwrap();
        let of = |series: &&Value| {
            series["params"]["thread_policy"] == has
                && series["params"]["work_us"] == cell.1
                && series["params"]["hog_count"] == cell.2
        };
        late(found.iter().find(of).unwrap())
    };
    cells.iter().map(of).collect()
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
    let lines = cells.iter().map(|(has, us, hogs)| format!("{has} {us} {hogs} {seconds}"));
    let mut all: Vec<_> = lines.zip(simulated(&cells, sets)).collect();
    let reserved = simulated(&[("other", 1000, 1)], &[sets, &RESERVED].concat())[0];
    all.push((format!("other 1000 1d {seconds}"), reserved));
    let groups = long(GROUPED.to_vec(), all_grouped());
    all.extend(groups.iter().map(|cell| (cell.line(seconds), cell.simulated(sets))));
    let mut wrong = String::new();
    println!("{}", run("uname -r").trim());
    for (line, simulated) in all {
        let said = run(&format!("wakeups {line}"));
        let values: Vec<f64> = said.split_whitespace().map(|v| v.parse().unwrap()).collect();
        let measured: Late = values[1..6].try_into().unwrap();
        println!("{line}: kernel {measured:.1?}, simulated {simulated:.1?}");
        // The wake-up itself takes some instructions, and the tail of a few seconds has few samples.
        let off = (measured[0] - simulated[0]).abs();
        if off > 20.0 + simulated[0] / 4.0 {
            wrong += &format!("{line}: {measured:?}, simulated {simulated:?}; ");
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
