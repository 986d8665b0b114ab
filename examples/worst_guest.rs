//! Looks for the guest that harms its host most under `dynamic`: the program of a hostile kernel whose boosts raise
//! the 99th percentile of a fair host thread's latency most, beyond a slice of the fair class.
//!
//! `cargo run --release -p vcoop-examples --bin worst-guest -- [--hogs 1] [--trials 2000] [--seed 1] [--set PATH=VALUE]...
//! [--program '["ask", "work 1ms"]']`
//!
//! The scenario is `rogue-guest` on today's fair class, with so many hogs beside each vCPU. Programs are drawn at
//! random and the best are changed a bit, in turns; the worst few are then measured for longer, with other seeds.
//! Nothing depends on the number of CPUs it runs on.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vcoop_model::builtin::builtin_scenario;
use vcoop_model::capture::NoCaptures;
use vcoop_model::plan::{Claim, HostSched, Ns, Plan, Program, Registers, RogueStep};
use vcoop_model::rng::Stream;
use vcoop_model::run::Run;
use vcoop_model::scenario::{Scenario, Set};
use vcoop_sched::config::Fair;

/// Programs measured between two looks at the best.
const BATCH: usize = 50;

/// Programs that are changed a bit.
const KEPT: usize = 10;

/// Programs that are measured for longer in the end.
const CONFIRMED: usize = 8;

/// Most steps of a program that is drawn.
const MOST_STEPS: u64 = 8;

/// Seeds that the search leaves to the confirmation.
const FRESH: u64 = 1_000;

/// Names of the modes that a search begins with; the others have an exit each microsecond, which takes long to simulate.
const MODES: [&str; 3] = ["forever", "toggle", "scribble"];

type Steps = Vec<RogueStep>;

/// What programs are measured on.
struct Bench {
    vanilla: Plan,
    dynamic: Plan,
}

/// What a program does to the host.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Harm {
    vanilla_ns: Ns,
    dynamic_ns: Ns,
    /// Slice of the host's fair class.
    slice_ns: Ns,
}

impl Harm {
    /// By what factor the p99 grows beyond what a fair thread waits for anyway, which is a slice of whoever runs.
    /// Whether it waits so in more or less than one wake-up of a hundred is a matter of phases, so that vanilla's own
    /// p99 may be far below.
    fn ratio(self) -> f64 {
        self.dynamic_ns as f64 / self.vanilla_ns.max(self.slice_ns) as f64
    }
}

impl Bench {
    fn new(hogs: u32, times: [&str; 2], sets: &[Set]) -> Result<Self, Box<dyn Error>> {
        let [warmup, duration] = times;
        let own = [
            ("host.sched.fair", "eevdf".to_owned()),
            ("load.hog.count", (4 * hogs).to_string()),
            ("warmup", warmup.to_owned()),
            ("duration", duration.to_owned()),
        ];
        let own = own.iter().map(|(path, value)| Set::of(path, value));
        let sets: Vec<Set> = own.chain(sets.iter().cloned()).collect();
        let text = builtin_scenario("rogue-guest").ok_or("no such scenario")?;
        let scenario = Scenario::parse("rogue-guest", text, &sets, &NoCaptures)?;
        let policies = ["vanilla", "dynamic"].map(str::to_owned);
        let [vanilla, dynamic] = scenario.plans(Some(&policies))?.try_into().map_err(|_| "two")?;
        Ok(Self { vanilla, dynamic })
    }

    /// The host probe's p99 beside a program, over these seeds.
    fn measure(&self, steps: &Steps, seeds: std::ops::Range<u64>) -> Result<Harm, String> {
        let p99 = |plan: &Plan| {
            let mut plan = plan.clone();
            let program = Program::Rogue { steps: Arc::new(steps.clone()) };
            for task in plan.vms.iter_mut().flat_map(|vm| &mut vm.tasks) {
                task.program = program.clone();
            }
            let mut all = None;
            for seed in seeds.clone() {
                let recording = vcoop_sim::run(Run::new(&plan, seed)).map_err(|e| e.to_string())?;
                let of = |probe: &str| recording.latencies.iter().find(|l| l.probe == probe);
                let hist = &of("host.cyclictest").ok_or("no probe")?.hist;
                match &mut all {
                    None => all = Some(hist.clone()),
                    Some(all) => all.add(hist).map_err(|e| e.to_string())?,
                }
            }
            Ok::<Ns, String>(all.map_or(0, |hist| hist.value_at_quantile(0.99)).max(1))
        };
        Ok(Harm {
            vanilla_ns: p99(&self.vanilla)?,
            dynamic_ns: p99(&self.dynamic)?,
            slice_ns: slice_ns(&self.vanilla),
        })
    }

    /// All programs, on all CPUs; in their order.
    fn measure_all(
        &self,
        programs: &[Steps],
        seeds: std::ops::Range<u64>,
    ) -> Result<Vec<Harm>, String> {
        let (next, workers) = (AtomicUsize::new(0), std::thread::available_parallelism());
        let work = || {
            let mut done = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(steps) = programs.get(i) else {
                    return Ok::<_, String>(done);
                };
                done.push((i, self.measure(steps, seeds.clone())?));
            }
        };
        let mut all = Vec::new();
        std::thread::scope(|scope| {
            let workers = workers.map_or(1, usize::from);
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| {
                all.extend(thread.join().map_err(|_| "a simulation panicked".to_owned())??);
                Ok::<(), String>(())
            })
        })?;
        all.sort_by_key(|(i, _)| *i);
        Ok(all.into_iter().map(|(_, harm)| harm).collect())
    }
}

/// Slice of a host's fair class.
fn slice_ns(plan: &Plan) -> Ns {
    match &plan.host.sched {
        HostSched::Linux(level) => match level.fair {
            Fair::Eevdf(eevdf) => eevdf.base_slice_ns,
            Fair::Cfs(cfs) => cfs.min_granularity_ns,
        },
        _ => 0,
    }
}

/// A time from 10 us to 10 ms, each order of magnitude as often as the other ones.
fn time(rng: &mut Stream) -> Ns {
    let least = [10_000, 100_000, 1_000_000][rng.below(3) as usize];
    least * (1 + rng.below(9))
}

fn step(rng: &mut Stream) -> RogueStep {
    match rng.below(12) {
        0 | 1 => RogueStep::Ask,
        2 | 3 => RogueStep::End,
        4 => RogueStep::Claim(Claim::ALL[rng.below(6) as usize]),
        5 => RogueStep::Acknowledge,
        6 => RogueStep::Notify,
        7 => RogueStep::Register(Registers::ALL[rng.below(3) as usize]),
        8 => RogueStep::Deadline(time(rng)),
        9 => RogueStep::Halt(time(rng)),
        10 if rng.below(4) == 0 => RogueStep::Scribble(time(rng)),
        _ => RogueStep::Work(time(rng)),
    }
}

fn random(rng: &mut Stream) -> Steps {
    (0..=rng.below(MOST_STEPS)).map(|_| step(rng)).collect()
}

/// One or two changes: a step is added, lost, moved or another one, or takes another time.
fn changed(steps: &Steps, rng: &mut Stream) -> Steps {
    let mut steps = steps.clone();
    for _ in 0..=rng.below(2) {
        let at = rng.below(steps.len() as u64) as usize;
        match rng.below(6) {
            0 => steps.insert(at, step(rng)),
            1 if steps.len() > 1 => drop(steps.remove(at)),
            2 => steps.swap(at, 0),
            3 => steps[at] = step(rng),
            _ => {
                let scale = |ns: Ns, rng: &mut Stream| (ns * (5 + rng.below(11)) / 10).max(1_000);
                match &mut steps[at] {
                    RogueStep::Work(ns)
                    | RogueStep::Halt(ns)
                    | RogueStep::Deadline(ns)
                    | RogueStep::Scribble(ns) => *ns = scale(*ns, rng),
                    other => *other = step(rng),
                }
            }
        }
    }
    steps
}

/// The programs that did most harm, worst first; measured by `bench` and then by `long`.
fn search(
    bench: &Bench,
    long: &Bench,
    trials: usize,
    seed: u64,
) -> Result<Vec<(Harm, Steps)>, Box<dyn Error>> {
    let mut rng = Stream::new(seed, &[]);
    let mut batch = Vec::new();
    for mode in MODES {
        batch.push(program(&[("mode", mode)])?);
    }
    let (mut best, mut seen) = (Vec::<(Harm, Steps)>::new(), BTreeSet::new());
    let mut tried = 0;
    loop {
        let harms = bench.measure_all(&batch, 0..1)?;
        tried += batch.len();
        best.extend(harms.into_iter().zip(std::mem::take(&mut batch)));
        best.sort_by(|a, b| b.0.ratio().total_cmp(&a.0.ratio()));
        best.truncate(KEPT);
        eprintln!("{tried}: {:.2}x {}", best[0].0.ratio(), written(&best[0].1));
        if tried >= trials {
            break;
        }
        while batch.len() < BATCH {
            let steps = match rng.below(3) {
                0 => random(&mut rng),
                _ => changed(&best[rng.below(best.len() as u64) as usize].1, &mut rng),
            };
            let fits = steps.iter().any(|step| step.takes_time());
            if fits && seen.insert(written(&steps)) {
                batch.push(steps);
            }
        }
    }
    best.truncate(CONFIRMED);
    let worst: Vec<Steps> = best.into_iter().map(|(_, steps)| steps).collect();
    let harms = long.measure_all(&worst, FRESH..FRESH + 3)?;
    let mut worst: Vec<(Harm, Steps)> = harms.into_iter().zip(worst).collect();
    worst.sort_by(|a, b| b.0.ratio().total_cmp(&a.0.ratio()));
    Ok(worst)
}

/// The steps of a rogue with these keys.
fn program(keys: &[(&str, &str)]) -> Result<Steps, Box<dyn Error>> {
    let sets =
        keys.iter().map(|(key, value)| Set::of(&format!("vm.rogue.task.rogue.{key}"), value));
    let plan = Bench::new(1, ["0s", "1s"], &sets.collect::<Vec<_>>())?.vanilla;
    match &plan.vms[0].tasks[0].program {
        Program::Rogue { steps } => Ok(steps.to_vec()),
        _ => Err("no rogue".into()),
    }
}

/// A program as a scenario has it.
fn read(steps: &str) -> Result<Steps, Box<dyn Error>> {
    program(&[("mode", "program"), ("steps", steps)])
}

/// As a scenario has it.
fn written(steps: &Steps) -> String {
    let steps: Vec<String> = steps.iter().map(|step| format!("\"{step}\"")).collect();
    format!("[{}]", steps.join(", "))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut hogs, mut trials, mut seed, mut sets) = (1, 2_000, 1, Vec::new());
    let mut program = None;
    let mut args = std::env::args().skip(1);
    while let Some(key) = args.next() {
        let value = args.next().ok_or_else(|| format!("{key} wants a value"))?;
        match key.as_str() {
            "--hogs" => hogs = value.parse()?,
            "--trials" => trials = value.parse()?,
            "--seed" => seed = value.parse()?,
            "--set" => sets.push(Set::parse(&value)?),
            "--program" => program = Some(value),
            _ => return Err(format!("{key} is not known").into()),
        }
    }
    let long = Bench::new(hogs, ["3s", "20s"], &sets)?;
    eprintln!("slice: {} us", slice_ns(&long.vanilla) / 1_000);
    let found = match program {
        Some(steps) => {
            let steps = read(&steps)?;
            vec![(long.measure(&steps, FRESH..FRESH + 3)?, steps)]
        }
        None => search(&Bench::new(hogs, ["1s", "4s"], &sets)?, &long, trials, seed)?,
    };
    for (harm, steps) in found {
        let [vanilla, dynamic] = [harm.vanilla_ns, harm.dynamic_ns].map(|ns| ns as f64 / 1e3);
        println!("{:.2}x of {vanilla:.0} us, {dynamic:.0} us: {}", harm.ratio(), written(&steps));
    }
    Ok(())
}

#[test]
fn a_search_is_the_same_for_one_seed_and_finds_something() {
    let bench = || Bench::new(1, ["0s", "300ms"], &[]).unwrap();
    let run = || search(&bench(), &bench(), 60, 3).unwrap();
    let found = run();
    assert!(found.len() == CONFIRMED && found[0].0.ratio() > 1.0, "{found:?}");
    assert_eq!(found, run());
}
